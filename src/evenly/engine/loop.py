"""The loop: epochs over sampled examples, one optimizer, one objective; resumable at every epoch, exact to the bit.

Everything random in an epoch is seeded by (seed, stage, epoch) and everything else is in the checkpoint, so a run that
was killed and resumed ends in the same weights as one that was not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from evenly.data.contract import Data
from evenly.data.samplers import EpochSampler, Everything
from evenly.engine.accuracy import measure
from evenly.engine.batches import Batch, Batches, outputs_of
from evenly.engine.folder import Folder
from evenly.engine.losses import losses, predictions
from evenly.engine.run import FORWARD, Run
from evenly.engine.schedules import Schedule, constant
from evenly.errors import EvenlyError, unknown
from evenly.optim.registry import Build, builder
from evenly.randomness import derive, isolated, reseed

CPU = torch.device("cpu")
State = dict[str, Tensor]
Objective = Callable[[Tensor, Batch, State], Tensor]
History = list[dict[str, Any]]

RULES = {
    "last": None,
    "average": "accuracy",
    "worst-group": "worst_group",
    "worst-class": "worst_class",
}
"""Selection rules: the last epoch, or the one with the best value of a validation metric; ties go to the higher
average, then to the earlier epoch."""


CHECKPOINT_SECONDS = 0.05
"""Epochs shorter than this share a checkpoint: writing one takes about as long as a full-batch step on small data."""


def mean(losses: Tensor, batch: Batch, state: State) -> Tensor:
    """Plain training: the mean loss."""
    return losses.mean()


@dataclass(frozen=True)
class Fit:
    """The engine with its settings, called by methods as ``fit(model, data, sampler=..., ...)``.

    Args:
        epochs: passes over what the sampler gives.
        optimizer: a name ("sgd", "adam", "adamw", "sam", at evenly's default rates), or a function from parameters to
            an optimizer.
        schedule: a function from progress in [0, 1) to a factor on the learning rate, applied per epoch.
        batch_size: None for full-batch training.
        select: a rule of `RULES`.
        evaluate_every: epochs between looks at the validation set (the last epoch is always looked at); None: no look.
        budget: stop after the step that reaches this many example-gradients, instead of after `epochs`.
        folder: where metrics and checkpoints go; None keeps nothing.
        reading: only read back what is finished; refuse to train.
    """

    epochs: int
    optimizer: str | Build
    schedule: Schedule = constant
    batch_size: int | None = 128
    select: str = "last"
    evaluate_every: int | None = 1
    budget: float | None = None
    seed: int = 0
    device: torch.device = CPU
    workers: int = 0
    folder: Folder | None = None
    progress: Callable[[float, str], None] = lambda share, note: None
    reading: bool = False

    def __post_init__(self) -> None:
        if self.select not in RULES:
            raise unknown("selection rule", self.select, RULES)
        for name, value in (
            ("epochs", self.epochs),
            ("batch_size", self.batch_size),
            ("evaluate_every", self.evaluate_every),
        ):
            if value is not None and (value != int(value) or value < 1):
                raise EvenlyError(f"{name} {value} leaves nothing to do; give a whole number from 1")
        if self.budget is not None and not self.budget > 0:
            raise EvenlyError(f"budget {self.budget} leaves nothing to do; give a number of example-gradients above 0")

    def __call__(
        self,
        model: nn.Module,
        data: Data,
        *,
        sampler: EpochSampler | None = None,
        weights: Tensor | None = None,
        objective: Objective = mean,
        state: State | None = None,
        stage: str = "final",
        until: Callable[[History], bool] | None = None,
        before_epoch: Callable[[int, Optimizer], None] | None = None,
        spent: float = 0.0,
        **settings: Any,
    ) -> Run:
        """Train a network on ``data.train``.

        Args:
            sampler: which examples, how often, in which epoch; every example once where not given.
            weights: (N,) factors on the losses of the training examples.
            objective: from losses (B,), the batch and the state to the scalar to minimise.
            state: tensors that the objective keeps between steps; checkpointed with the run.
            stage: a name for this fit among those of one run.
            until: stop early once this is true of the history.
            before_epoch: called with (epoch, optimizer) before each epoch.
            spent: example-gradients that the method has already used.
            settings: replace settings of this engine for this fit.
        """
        fit = replace(self, **settings) if settings else self
        return _Loop(
            fit,
            model.to(fit.device),
            data,
            sampler,
            weights,
            objective,
            state or {},
            stage,
            until,
            before_epoch,
            spent,
        ).run()


class _Loop:
    """One fit under way."""

    def __init__(
        self,
        fit: Fit,
        model: nn.Module,
        data: Data,
        sampler: EpochSampler | None,
        weights: Tensor | None,
        objective: Objective,
        state: State,
        stage: str,
        until: Callable[[History], bool] | None,
        before_epoch: Callable[[int, Optimizer], None] | None,
        spent: float,
    ) -> None:
        self.fit, self.model, self.data, self.stage = fit, model, data, stage
        self.sampler = Everything(len(data.train), fit.seed) if sampler is None else sampler
        self.weights = None if weights is None else weights.to(fit.device)
        self.objective, self.until, self.before_epoch = objective, until, before_epoch
        self.state = {key: value.to(fit.device) for key, value in state.items()}
        self.optimizer = builder(fit.optimizer)(model.parameters())
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.train = Batches(data.train, fit.batch_size, fit.device, fit.workers)
        self.validation = (
            None if data.validation is None else Batches(data.validation, fit.batch_size, fit.device, fit.workers)
        )
        self.metric = RULES[fit.select]
        if self.metric is not None and data.validation is None:
            raise EvenlyError(f"select {fit.select!r} needs a validation set and there is none; use select='last'")
        if self.metric is not None and fit.evaluate_every is None:
            raise EvenlyError(f"select {fit.select!r} needs looks at validation; give evaluate_every, or select='last'")
        if self.metric == "worst_group" and data.train.groups is None:
            raise EvenlyError("select 'worst-group' needs groups and there are none; use select='worst-class'")
        self.epoch, self.finished = 0, False
        self.saved_at, self.saved_epoch = 0.0, 0
        self.cost, self.evaluation_cost, self.seconds = spent, 0.0, 0.0
        self.history: History = []
        self.best: dict[str, Any] | None = None

    def run(self) -> Run:
        self._resume()
        if self.fit.reading and not self.finished:
            where = "this folder" if self.fit.folder is None else self.fit.folder.path
            raise EvenlyError(f"{where} has no finished checkpoint of the stage {self.stage!r}; train it again")
        with isolated():
            while not self.finished:
                self._one_epoch()
        if self.best is not None:
            self.model.load_state_dict(self.best["model"])
        self.model.eval()
        return Run(
            self.model,
            self.history,
            self.cost,
            self.fit.select,
            self.epoch if self.best is None else self.best["epoch"],
            self.fit.seed,
            self.evaluation_cost,
            self.seconds,
            out=None if self.fit.folder is None else self.fit.folder.path,
        )

    def _one_epoch(self) -> None:
        started = time.perf_counter()
        reseed(derive(self.fit.seed, self.stage, self.epoch))
        self.sampler.set_epoch(self.epoch)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * self.fit.schedule(self._progress())
        if self.before_epoch is not None:
            self.before_epoch(self.epoch, self.optimizer)

        self.model.train()
        total = torch.zeros(2, dtype=torch.float64, device=self.fit.device)
        seen = 0
        for batch in self.train.epoch(self.sampler):
            total += self._step(batch)
            seen += len(batch)
            if self.fit.budget is not None and self.cost >= self.fit.budget:
                break
        train_loss, train_accuracy = (total / max(seen, 1)).tolist()
        self._check_finite(train_loss)
        self.epoch += 1
        row = {
            "stage": self.stage,
            "epoch": self.epoch,
            "lr": self.optimizer.param_groups[0]["lr"],
            "examples": seen,
            "cost": self.cost,
            "train_loss": train_loss,
            "train_accuracy": train_accuracy,
        }
        if self.data.observe is not None:
            row |= self.data.observe(self.model)
        self.history.append(row)
        self.finished = (
            self.epoch >= self.fit.epochs if self.fit.budget is None else self.cost >= self.fit.budget
        ) or (self.until is not None and self.until(self.history))
        self._validate(row)
        self.seconds += time.perf_counter() - started
        self._save(row)
        self.fit.progress(self._progress(), f"{self.stage} epoch {self.epoch}, loss {train_loss:.3f}")

    def _step(self, batch: Batch) -> Tensor:
        """One optimizer step; returns the batch's summed loss and number right, as seen in the first pass."""
        seen = torch.zeros(2, dtype=torch.float64, device=self.fit.device)
        batch.first = True

        def closure() -> Tensor:
            self.optimizer.zero_grad()
            outputs = self.model(batch.x)
            each = losses(outputs, batch.y)
            if batch.first:
                seen[0] = each.detach().sum()
                seen[1] = (predictions(outputs.detach()) == batch.y).sum()
            if self.weights is not None:
                each = each * self.weights[batch.index]
            loss = self.objective(each, batch, self.state)
            loss.backward()
            batch.first = False
            self.cost += len(batch)
            return loss

        self.optimizer.step(closure)  # type: ignore[arg-type]
        return seen

    def _progress(self) -> float:
        return self.epoch / self.fit.epochs if self.fit.budget is None else min(self.cost / self.fit.budget, 1.0)

    @torch.no_grad()
    def _check_finite(self, train_loss: float) -> None:
        parameters: list[Tensor] = [p for p in self.model.parameters() if p.is_floating_point()]
        norm = torch.stack([n.float().to(self.fit.device) for n in torch._foreach_norm(parameters)]).sum()
        if torch.isfinite(norm) and torch.isfinite(torch.tensor(train_loss)):
            return
        kept = (
            f"; the checkpoint of epoch {self.saved_epoch} is kept in {self.fit.folder.path}"
            if self.fit.folder and self.saved_epoch
            else ""
        )
        what = "loss" if not torch.isfinite(torch.tensor(train_loss)) else "weights"
        raise EvenlyError(
            f"the training {what} became NaN or infinite in epoch {self.epoch + 1} of stage {self.stage!r} "
            f"at learning rate {self.optimizer.param_groups[0]['lr']:g}; lower the learning rate{kept}"
        )

    def _validate(self, row: dict[str, Any]) -> None:
        every = self.fit.evaluate_every
        if self.validation is None or every is None or not (self.finished or self.epoch % every == 0):
            return
        outputs = outputs_of(self.model, self.validation)
        self.evaluation_cost += FORWARD * len(self.data.validation)
        split = self.validation.split
        row["validation"] = measured = measure(outputs, split, self.data)
        if self.metric is None:
            return
        value = [measured[self.metric], measured["accuracy"]]  # a worst group of few examples ties often
        if self.best is None or value > self.best["value"]:
            weights = {key: value.detach().clone() for key, value in self.model.state_dict().items()}
            self.best = {"epoch": self.epoch, "value": value, "model": weights}

    def _save(self, row: dict[str, Any]) -> None:
        if self.fit.folder is None:
            return
        self.fit.folder.append(row)
        if not self.finished and time.monotonic() - self.saved_at < CHECKPOINT_SECONDS:
            return
        self.saved_at, self.saved_epoch = time.monotonic(), self.epoch
        self.fit.folder.save(self.stage, {
            "epoch": self.epoch, "finished": self.finished, "cost": self.cost, "evaluation_cost": self.evaluation_cost,
            "seconds": self.seconds, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
            "state": self.state, "best": self.best,
        })  # fmt: skip

    def _resume(self) -> None:
        if self.fit.folder is None:
            return
        saved = self.fit.folder.load(self.stage)
        done = 0 if saved is None else saved["epoch"]

        def done_by_then(row: dict[str, Any]) -> bool:
            return bool(row["stage"] != self.stage or row["epoch"] <= done)

        self.history = [row for row in self.fit.folder.rows() if row["stage"] == self.stage and done_by_then(row)]
        if len(self.history) != done:
            raise EvenlyError(
                f"{self.fit.folder.path}/metrics.jsonl has {len(self.history)} epochs of stage {self.stage!r}, "
                f"its checkpoint {done}; remove the folder to start over"
            )
        self.fit.folder.rewind(done_by_then)
        if saved is None:
            return
        self.epoch, self.finished, self.best = done, saved["finished"], saved["best"]
        self.saved_epoch = done
        self.cost, self.evaluation_cost, self.seconds = (
            saved["cost"],
            saved["evaluation_cost"],
            saved["seconds"],
        )
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.state = {key: value.to(self.fit.device) for key, value in saved["state"].items()}


def fit(
    model: nn.Module,
    data: Data,
    *,
    epochs: int,
    optimizer: str | Build = "sgd",
    schedule: Schedule = constant,
    batch_size: int | None = 128,
    sampler: EpochSampler | None = None,
    weights: Tensor | None = None,
    objective: Objective = mean,
    state: State | None = None,
    **settings: Any,
) -> Run:
    """Train a network once, for those who need the loop and no method; further settings are those of `Fit`."""
    engine = Fit(epochs, optimizer, schedule, batch_size, **settings)
    return engine(model, data, sampler=sampler, weights=weights, objective=objective, state=state)
