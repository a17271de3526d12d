"""The engine with its settings: what methods call to train one network once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attrs import evolve, field, frozen
from torch import nn
from torch.optim import Optimizer

from evenly.data.contract import Data
from evenly.data.samplers import EpochSampler, Everything
from evenly.engine.checkpoints import Checkpoints, Row, Saved
from evenly.engine.loop import Loop
from evenly.engine.schedules import schedule
from evenly.engine.steps import Objective
from evenly.engine.trained import Observer, Trained
from evenly.engine.world import ALONE, World
from evenly.optim.registry import Build
from evenly.settings import Execution, Option, Settings, above

CPU = torch.device("cpu")
BUDGET = Option("budget", float | None, (above(0),))


def _check_budget(fit: Fit, attribute: Any, budget: float | None) -> None:
    BUDGET.checked(budget)


@frozen(eq=False)
class Fit:
    """Trains a network; methods call it as ``fit(model, data, sampler=..., ...)``.

    Args:
        optimizer: from parameters to an optimizer, e.g. of `evenly.optim.registry.builder`.
        execution: its `workers` and `capture` are read here; `device` is a device already.
        checkpoints: where progress is kept; None keeps nothing.
        budget: stop after the step that reaches this many example-gradients, instead of after ``settings.epochs``.
        spent: example-gradients that were used before the method began.
        inferred: whether the groups of the data were inferred.
        record: makes, for the data of a fit, what is called with (network, epoch) after every epoch; what it returns
            goes into the metrics, its state into the checkpoint. It counts neither as cost nor as time.
        progress: called with the share that is done, and a note, after every epoch.
        on_row: called with the row of every epoch once it is in the metrics.
        world: the processes that train together; each calls the method alike, with data and settings of its own.
    """

    settings: Settings
    optimizer: Build
    seed: int = field(default=0, kw_only=True)
    device: torch.device = field(default=CPU, kw_only=True)
    execution: Execution = field(factory=Execution, kw_only=True)
    checkpoints: Checkpoints | None = field(default=None, kw_only=True)
    budget: float | None = field(default=None, kw_only=True, validator=_check_budget)
    spent: float = field(default=0.0, kw_only=True)
    inferred: bool = field(default=False, kw_only=True)
    record: Callable[[Data], Observer] | None = field(default=None, kw_only=True)
    progress: Callable[[float, str], None] = field(default=lambda share, note: None, kw_only=True)
    on_row: Callable[[Row], None] = field(default=lambda row: None, kw_only=True)
    world: World = field(default=ALONE, kw_only=True)

    @property
    def epochs(self) -> int:
        """Passes over what the sampler gives."""
        return self.settings.epochs

    @property
    def select(self) -> str:
        """The rule that selects an epoch."""
        return self.settings.select

    @property
    def schedule(self) -> Callable[[float], float]:
        """From progress in [0, 1) to a factor on the learning rate, applied per epoch."""
        return schedule(self.settings.schedule)

    def __call__(
        self,
        model: nn.Module,
        data: Data,
        *,
        sampler: EpochSampler | None = None,
        objective: Objective | None = None,
        stage: str = "final",
        until: Callable[[list[Row]], bool] | None = None,
        before_epoch: Callable[[int, Optimizer], None] | None = None,
        spent: float | None = None,
        patient_from: int = 0,
        **settings: Any,
    ) -> Trained:
        """Train a network on ``data.train``.

        Args:
            sampler: which examples, how often, in which epoch; every example once where not given.
            objective: what to minimise; the mean loss where not given.
            stage: a name for this fit among those of one run.
            until: stop early once this is true of the history.
            before_epoch: called with (epoch, optimizer) before each epoch.
            spent: example-gradients used so far, if the method itself has used any.
            patient_from: epochs that `patience` lets pass before it begins to count.
            settings: replace settings for this fit.
        """
        fit = evolve(self, settings=evolve(self.settings, **settings), spent=self.spent if spent is None else spent)
        return Loop(
            fit,
            model,
            data,
            sampler=Everything(len(data.train), fit.seed) if sampler is None else sampler,
            objective=Objective() if objective is None else objective,
            stage=stage,
            until=until,
            before_epoch=before_epoch,
            patient_from=patient_from,
        ).run()

    def load_or_compute(self, name: str, compute: Callable[[], Saved]) -> Saved:
        """What a method works out between its fits; kept with the checkpoints and read back where the run goes on.

        On other hardware the same network rounds otherwise, and would choose other examples in the middle of a run.
        Of several processes the first one's holds for all, for the same reason.
        """
        saved = None if self.checkpoints is None else self.checkpoints.load(name)
        if saved is None:
            computed = compute()
            saved = self.world.shared(lambda: computed)
            if self.checkpoints is not None:
                self.checkpoints.save(name, saved)
        return saved
