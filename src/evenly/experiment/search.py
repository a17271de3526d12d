"""A search for the settings of every method before they are compared, on validation alone.

A trial is an ordinary run, with a seed that the comparison does not have, on data whose test set is withheld. Every arm
may spend the same number of example-gradients on its trials. So may its control, since a control that is tuned less
than its arm would flatter the arm; the control's trials have the cost of the arm with the values chosen for it. The
values of the best trial are those of the arm, or the control, for all seeds of the comparison.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from attrs import evolve, frozen

from evenly.data import Data, Split
from evenly.data.duplicates import keys_of
from evenly.engine.progress import log
from evenly.engine.selector import INFERRED, RULES
from evenly.errors import EvenlyError, EvenlyWarning
from evenly.experiment.arms import COUNTED_IN_EPOCHS, ArmPlan, Asked, arm_plan, check_plans, control_of
from evenly.experiment.graph import RunNode
from evenly.experiment.request import SETTINGS
from evenly.experiment.searchers import SEARCHERS, SEED, Values, import_optuna
from evenly.experiment.sweep import Pair, points
from evenly.experiment.work import RunWork
from evenly.files import make_folder, read_json, write_json
from evenly.parallel.graph import Failed, Walked
from evenly.runs.arms import Arm, point_name, varies
from evenly.runs.folder import FORMAT
from evenly.runs.plan import DataSpec, Plan
from evenly.runs.run import Run
from evenly.runs.search import Search, Searched, Space, Trial
from evenly.values import plain

FILE = "search.json"
FOLDER = "search"
REPEATS = 50
"""Proposals in a row that were tried before, after which a space is taken for exhausted."""
ROUNDING = 1e-9
Walk = Callable[[Sequence[RunNode], RunWork], Walked[Run]]


def check_search(asked: Asked, data: Data, spec: DataSpec) -> None:
    """Refuse, before anything is trained, a search without validation, and values that some method cannot have.

    Args:
        data: of the comparison's first seed.
    """
    if asked.searching.searcher == "optuna":
        import_optuna()
    if data.validation is None:
        raise EvenlyError(
            "a search goes by the validation set and there is none; give one (a split named validation), or leave "
            "search out"
        )
    if SEED in asked.seeds:
        raise EvenlyError(f"seed {SEED} is that of the search; give other seeds")
    for pair, swept in points(asked.sweep, asked.pairs):
        for name, space in spaces_of(asked, pair).items():
            for value in space.choices or (space.low, space.high):
                values = {Arm(*pair, plain(swept)): {name: value}}
                check_plans([arm_plan(evolve(asked, values=values), pair, swept, data, spec).plan], data)


def search(asked: Asked, first: Data, spec: DataSpec, work: RunWork, walk: Walk) -> Search:
    """Choose values for every arm and every control; what earlier calls have chosen in the folder is kept and returned.

    Args:
        first: the data of the comparison's first seed; `spec` is what its plans have.
        work: of the comparison.
    """
    found = _stored(work) or Search(asked.spaces, asked.searching.trials, asked.searching.searcher, SEED)
    arms = [each for each in searched_arms(asked) if each.spaces or (each.control is not None and each.control.spaces)]
    controls = [(each, each.control) for each in arms if each.control is not None and each.control.spaces]
    wanted = {each.arm for each in arms} | {control.arm for _, control in controls}
    if wanted - {each.arm for each in found.searched}:
        data = asked.source.data(SEED)
        _warn_of_new_splits(first, data)
        if work.folder is not None:
            make_folder(work.folder / FOLDER)
        log.info("  search: each may spend %d times the cost of ERM on trials", found.trials)
        trials = _Trials(asked, replace(data, test=None), spec, work, walk)
        found = _with(found, trials.searched([trials.of_arm(each) for each in arms if not found.of(each.arm)]), work)
        missing = [(each, control) for each, control in controls if not found.of(control.arm)]
        parts = [trials.of_control(each, control, found.values(each.arm)) for each, control in missing]
        found = _with(found, trials.searched([part for part in parts if part is not None]), work)
    return found


def with_values(asked: Asked, found: Search) -> Asked:
    """What was asked for, with the values that a search has chosen."""
    controls = [each.control for each in searched_arms(asked) if each.control is not None]
    apart = {control.arm for control in controls if not control.uncut}
    apart |= {each.arm for each in found.searched if each.arm.control_of is not None and not each.uncut}
    return evolve(asked, values={each.arm: each.values for each in found.searched}, searched_apart=frozenset(apart))


@frozen
class _Control:
    """A control and what is searched of it; `uncut` says whether that is what is searched of ERM, which may serve."""

    arm: Arm
    spaces: Mapping[str, Space]
    uncut: bool


@frozen
class _Arm:
    """An arm and what is searched of it, by the names of settings and options."""

    pair: Pair
    swept: Mapping[str, Any]
    arm: Arm
    spaces: Mapping[str, Space]
    control: _Control | None


def searched_arms(asked: Asked) -> list[_Arm]:
    """Every arm with what is searched of it and of its control."""
    arms = []
    for pair, swept in points(asked.sweep, asked.pairs):
        arm, spaces, control = Arm(*pair, plain(swept)), spaces_of(asked, pair), None
        if asked.controls and (control_pair := control_of(*pair)) is not None:
            of_method = {name: space for name, space in spaces.items() if "." in space.name}
            beside = spaces_of(asked, control_pair)
            its_spaces = {
                name: space
                for name, space in (beside | of_method).items()
                if name in SETTINGS and name not in COUNTED_IN_EPOCHS and varies(name, *control_pair)
            }
            control = _Control(Arm(*control_pair, arm.swept, control_of=arm), its_spaces, its_spaces == beside)
        arms.append(_Arm(pair, swept, arm, spaces, control))
    return arms


def spaces_of(asked: Asked, pair: Pair) -> dict[str, Space]:
    """The spaces that vary an arm, by the name of the setting or option."""
    return {space.setting: space for space in asked.spaces if varies(space.name, *pair)}


@frozen
class _Part:
    """The search of an arm, or of a control.

    Args:
        node: from values to a trial.
        default: the values without a search.
        cost: of a trial, where it is known before the first.
    """

    arm: Arm
    spaces: Mapping[str, Space]
    node: Callable[[Values], RunNode]
    default: Values
    cost: float | None = None

    @property
    def is_control(self) -> bool:
        return self.arm.control_of is not None


class _Trials:
    """Runs the trials, each once."""

    def __init__(self, asked: Asked, data: Data, spec: DataSpec, work: RunWork, walk: Walk) -> None:
        source = evolve(asked.source, without_test=True)
        self.asked, self.data = evolve(asked, source=source, seeds=(SEED,), record=None), data
        self.spec = source.spec(data) if spec.kind == "own" else spec
        self.work = RunWork(
            source, work.execution, None if work.folder is None else work.folder / FOLDER, work.callback
        )
        self.walk = walk
        self.done: dict[str, Run | Failed] = {}

    def run(self, nodes: Sequence[RunNode]) -> list[Run | Failed]:
        new = {node.id: node for node in nodes if node.id not in self.done}
        if new:
            walked = self.walk(list(new.values()), self.work)
            results = {id: walked.result(id) or walked.failure(id) for id in new}
            self.done |= {id: result for id, result in results.items() if result is not None}
        return [self.done[node.id] for node in nodes]

    def of_arm(self, each: _Arm) -> _Part:
        def node(values: Values) -> RunNode:
            return RunNode(self._planned(each, {each.arm: values}).plan, _label(each.arm, values))

        return _Part(each.arm, each.spaces, node, _values(node({}).plan, each.spaces))

    def of_control(self, each: _Arm, control: _Control, values: Values) -> _Part | None:
        """The control is cut to the cost of its arm at the values chosen; None where the arm could not be trained."""
        chosen = self.of_arm(each).node(values)
        run = self.run([chosen])[0]
        if isinstance(run, Failed):
            return None

        def node(its_values: Values) -> RunNode:
            planned = self._planned(each, {each.arm: values, control.arm: its_values})
            assert planned.control is not None
            waiting = RunNode(planned.control, "", passes=planned.passes if control.uncut else None)
            return RunNode(waiting.completed_plan(run.results), _label(control.arm, its_values))

        default = _values(node({}).plan, control.spaces)
        return _Part(control.arm, control.spaces, node, default, run.results.cost)

    def _planned(self, each: _Arm, values: Mapping[Arm, Values]) -> ArmPlan:
        asked = evolve(self.asked, values=values)
        return arm_plan(asked, each.pair, each.swept, self.data, self.spec).without_unused_groups()

    def searched(self, parts: Sequence[_Part]) -> list[Searched]:
        """All trials of these parts, those of different parts side by side."""
        under_way = [_UnderWay(part, self.asked, len(self.data.train)) for part in parts]
        while waves := [(each, nodes) for each in under_way if (nodes := each.next())]:
            results = iter(self.run([node for _, nodes in waves for node in nodes]))
            for each, nodes in waves:
                each.take(nodes, [next(results) for _ in nodes])
        return [each.searched() for each in under_way]


class _UnderWay:
    """A search that is under way: its trials, in the order of their proposals, as far as the budget goes."""

    def __init__(self, part: _Part, asked: Asked, examples: int) -> None:
        self.part, self.plan = part, part.node(part.default).plan
        self.unit = float(self.plan.reference_epochs * examples)
        self.budget = asked.searching.trials * self.unit * (1 + ROUNDING)
        self.searcher = SEARCHERS[asked.searching.searcher](part.spaces)
        self.rule = self.plan.settings.select
        self.trials: list[Trial] = []
        self.proposed: list[Values] = []
        self.costs: list[float] = []
        self.over = False

    def next(self) -> list[RunNode]:
        """The trials that still fit the budget if none costs more than the most expensive one so far."""
        expected = max([*self.costs, self.part.cost or 0.0])
        room = int((self.budget - sum(self.costs)) / expected) if expected else 1
        if self.searcher.batch is not None:
            room = min(room, self.searcher.batch)
        self.proposed = [] if self.over else self._proposals(room if self.trials else max(room, 1))
        return [self.part.node(values) for values in self.proposed]

    def _proposals(self, count: int) -> list[Values]:
        proposed, repeats = ([] if self.trials else [self.part.default]), 0
        scores = [(trial.values, trial.score) for trial in self.trials]
        while self.part.spaces and len(proposed) < count and repeats < REPEATS:
            values = self.searcher.propose()
            known = [score for tried, score in scores if tried == values]
            repeats = repeats + 1 if known or values in proposed else 0
            if known:
                self.searcher.learn(values, known[0])
            elif not repeats:
                proposed.append(values)
        return proposed

    def take(self, nodes: Sequence[RunNode], results: Sequence[Run | Failed]) -> None:
        for values, node, result in zip(self.proposed, nodes, results, strict=True):
            trial = self._trial(values, result)
            # the last step of a control may exceed its budget
            cost = trial.cost if node.plan.budget is None else min(trial.cost, node.plan.budget)
            self.over = bool(self.trials) and sum(self.costs) + cost > self.budget
            if self.over:
                return
            self.trials.append(trial)
            self.costs.append(cost)
            self.searcher.learn(values, trial.score)

    def _trial(self, values: Values, result: Run | Failed) -> Trial:
        if isinstance(result, Failed):
            return Trial(values, max([*self.costs, self.part.cost or 0.0]) or self.unit, reason=result.reason)
        score, loss = _score(result, self.rule), result.results.splits["validation"].loss
        reason = "" if score is not None else "its history has no validation of the epoch that was selected"
        return Trial(values, result.results.cost, score, loss, reason)

    def searched(self) -> Searched:
        ranks = [
            (trial.score, -float("inf") if trial.loss is None else -trial.loss, -k)
            for k, trial in enumerate(self.trials)
            if trial.score is not None
        ]
        best, uncut = (-max(ranks)[2] if ranks else None), self.part.is_control and self.plan.budget is None
        metric = RULES[self.rule] or "accuracy"
        part = self.part
        return Searched(part.arm, part.spaces, tuple(self.trials), self.unit, metric, best, uncut)


def _score(run: Run, rule: str) -> float | None:
    """The rule's metric on validation at the epoch that it selected; by inferred groups where it went by these."""
    metric = RULES[rule] or "accuracy"
    if "inferred" not in run.results.rule:
        return run.results.splits["validation"].metric(metric)
    rows = [row for row in run.history if row["epoch"] == run.results.selected_epoch]
    score: float | None = rows[0].get("validation", {}).get(INFERRED[metric]) if rows else None
    return score


def _values(plan: Plan, names: Iterable[str]) -> dict[str, Any]:
    """The values of settings and options in a plan."""
    return {
        name: plan.method.options[name] if name in plan.method.options else getattr(plan.settings, name)
        for name in names
    }


def _label(arm: Arm, values: Values) -> str:
    name = f"search of {arm.name.replace('+', ' with ')}"
    return f"{name}, {point_name(values)}" if values else name


def _stored(work: RunWork) -> Search | None:
    if work.folder is None:
        return None
    again = "remove it, and it is made again of the trials"
    content = read_json(work.folder / FILE, again)
    try:
        return None if content is None else Search.from_dict({k: v for k, v in content.items() if k != "format"})
    except (EvenlyError, TypeError, AttributeError) as error:
        raise EvenlyError(f"{work.folder / FILE} is damaged ({error}); {again}") from None


def _with(found: Search, searched: Sequence[Searched], work: RunWork) -> Search:
    """A search with more in it, in the file as well; a part of which every trial failed is not decided there."""
    from evenly.report.search_blocks import search_sentence

    for each in searched:
        log.info("%s", search_sentence(each))
    found = evolve(found, searched=(*found.searched, *searched))
    decided = tuple(each for each in found.searched if each.best is not None)
    if work.folder is not None and decided and searched:
        write_json(work.folder / FILE, {"format": FORMAT, **evolve(found, searched=decided).to_dict()})
    return found


def _warn_of_new_splits(first: Data, data: Data) -> None:
    """Warn where every seed splits one set of examples anew: the search then has examples that some seed tests on."""
    if first.test is not None and _shared(first.test, [data.train, data.validation or data.train]):
        warnings.warn(
            "every seed splits these data anew, so that the search sees examples that the comparison tests on; for a "
            "test set that it never sees, give the splits with the data",
            EvenlyWarning,
            stacklevel=3,
        )


def _shared(test: Split, splits: Sequence[Split]) -> bool:
    """Whether a test example is in other splits, as far as inputs are held as numbers or texts."""
    rows = set(keys_of(test))
    return any(row in rows for split in splits for row in keys_of(split))
