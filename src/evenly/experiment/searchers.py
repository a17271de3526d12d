"""Who proposes the next values of a search: chance, or Optuna.

Every method gets the same proposals, as long as their scores are the same: what is drawn depends on the name of a space
and the number of the proposal only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from evenly.errors import EvenlyError
from evenly.randomness import derive
from evenly.runs.search import Space

Values = Mapping[str, Any]
SEED = derive(0, "search") % 10**6
"""Of every trial, and of what is proposed."""
BATCH = 4
"""Trials of one method that Optuna proposes before it learns their scores. It does not depend on the number of
processes, so that the proposals do not either."""
BY_CHANCE = 2 * BATCH
"""Optuna's first proposals, which are random."""


class Searcher(Protocol):
    """Proposes values."""

    batch: int | None
    """How many proposals it makes before it learns their scores; None: as many as there are to be."""

    def propose(self) -> Values:
        """The next values, by the name of the setting or option."""
        ...

    def learn(self, values: Values, score: float | None) -> None:
        """Take note of the score of values that were proposed; None where the run failed."""
        ...


class RandomSearcher:
    """Independent draws."""

    batch = None

    def __init__(self, spaces: Mapping[str, Space]) -> None:
        self.spaces, self.count = spaces, 0

    def propose(self) -> Values:
        self.count += 1
        places = {name: derive(SEED, "search", space.name, self.count) / 2**56 for name, space in self.spaces.items()}
        return {name: space.at(places[name]) for name, space in self.spaces.items()}

    def learn(self, values: Values, score: float | None) -> None: ...


class OptunaSearcher:
    """Optuna's tree-structured Parzen estimator, on [0, 1] for a range and on its members for a list."""

    batch = BATCH

    def __init__(self, spaces: Mapping[str, Space]) -> None:
        optuna = import_optuna()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = optuna.samplers.TPESampler(seed=SEED, n_startup_trials=BY_CHANCE)
        self.study = optuna.create_study(direction="maximize", sampler=sampler)
        self.failed = optuna.trial.TrialState.FAIL
        self.spaces, self.proposed = spaces, list[tuple[Values, Any]]()
        self.distributions = {
            name: optuna.distributions.CategoricalDistribution(range(len(space.choices)))
            if space.choices
            else optuna.distributions.FloatDistribution(0.0, 1.0)
            for name, space in spaces.items()
        }

    def propose(self) -> Values:
        trial = self.study.ask(self.distributions)
        values = {
            name: space.choices[trial.params[name]] if space.choices else space.at(trial.params[name])
            for name, space in self.spaces.items()
        }
        self.proposed.append((values, trial))
        return values

    def learn(self, values: Values, score: float | None) -> None:
        for trial in [trial for proposed, trial in self.proposed if proposed == values]:
            self.study.tell(trial, score, state=self.failed if score is None else None)
        self.proposed = [each for each in self.proposed if each[0] != values]


def import_optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise EvenlyError("searcher 'optuna' needs optuna; run: pip install 'evenly[optuna]'") from None
    return optuna


SEARCHERS: dict[str, type[RandomSearcher] | type[OptunaSearcher]] = {
    "random": RandomSearcher,
    "optuna": OptunaSearcher,
}
