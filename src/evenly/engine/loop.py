"""The loop: epochs over sampled examples, one optimizer, one objective; resumable at every epoch, on the CPU exactly.

Everything random in an epoch is seeded by (seed, stage, epoch) and everything else is in the checkpoint, so a run that
was killed and resumed ends in the same weights as one that was not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from evenly.data.augment import Augment
from evenly.data.contract import Data
from evenly.data.samplers import EpochSampler, Everything
from evenly.engine.accuracy import check_groups, measure
from evenly.engine.batches import Batch, Batches, outputs_of
from evenly.engine.captured import COMPILE_STEPS, CapturedStep, NotCapturedError, own_stream, why_not
from evenly.engine.folder import Folder
from evenly.engine.precision import Precision
from evenly.engine.run import FORWARD, Record, Run
from evenly.engine.schedules import Schedule, constant
from evenly.engine.side_by_side import aside, pause
from evenly.engine.steps import Look, Objective, State, Step, look
from evenly.errors import EvenlyError, unknown
from evenly.optim.registry import Build, builder
from evenly.optim.sharpness_aware import SharpnessAware
from evenly.randomness import derive, isolated, reseed

CPU = torch.device("cpu")
History = list[dict[str, Any]]

RULES = {
    "last": None,
    "average": "accuracy",
    "worst-group": "worst_group",
    "worst-class": "worst_class",
}
"""Selection rules: the last epoch, or the one with the best value of a validation metric; ties go to the higher
average, then to the earlier epoch."""

INFERRED = {
    "worst_group": "worst_inferred_group",
    "groups": "inferred_groups",
    "group_counts": "inferred_group_counts",
    "train_weighted": "train_weighted_inferred",
}
"""What is measured by group is called so where the groups were inferred, lest it be taken for the true ones."""


CHECKPOINT_SECONDS = 0.05
CHECKPOINT_SHARE = 0.05
"""Epochs shorter than so many seconds share a checkpoint, and so do those shorter than what makes writing it this share
of the time: a large network on a fast GPU would spend more on writing than on training."""

WAYS = ("foreach", "fused", "capturable")
"""How an optimizer computes, not what: a checkpoint may go on where another way is the right one."""

SAVED = ("epoch", "finished", "cost", "seconds", "evaluation_cost", "model", "optimizer", "state", "best")
"""What a checkpoint holds."""

TURN = 16
"""Steps between the turns of runs that go side by side."""


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
        batch_size: None for full-batch training. What is left over at the end of an epoch is a smaller batch, but a
            single example joins the batch before it.
        select: a rule of `RULES`.
        evaluate_every: epochs between looks at the validation set (the last epoch is always looked at); None: no look.
        budget: stop after the step that reaches this many example-gradients, instead of after `epochs`.
        workers: processes that read a Dataset; tensors in memory need none.
        folder: where metrics and checkpoints go; None keeps nothing.
        augment: what happens to the training images, by name ("none", "basic", "basic+trivial", ...) or an `Augment`.
        precision: "auto", "bf16" or "float32", as in `evenly.engine.precision`.
        capture: on a GPU, record the step once and replay it, where that is possible.
        reading: only read back what is finished; refuse to train.
        patience: stop after so many epochs without a better value of what `select` goes by; never before a budget.
        spent: example-gradients that were used before the method began.
        inferred: whether the groups of the data were inferred.
        record: makes, for the data of a fit, what is called with (network, epoch) after every epoch; what it returns
            goes into the metrics, its state into the checkpoint. It counts neither as cost nor as time.
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
    augment: str | Augment = "none"
    precision: Precision = "auto"
    capture: bool = True
    reading: bool = False
    patience: int | None = None
    spent: float = 0.0
    inferred: bool = False
    record: Callable[[Data], Record] | None = None

    def __post_init__(self) -> None:
        if self.select not in RULES:
            raise unknown("selection rule", self.select, RULES)
        for name, value in (
            ("epochs", self.epochs),
            ("batch_size", self.batch_size),
            ("evaluate_every", self.evaluate_every),
            ("patience", self.patience),
        ):
            if value is not None and (value != int(value) or value < 1):
                raise EvenlyError(f"{name} {value} leaves nothing to do; give a whole number from 1")
        if self.budget is not None and not self.budget > 0:
            raise EvenlyError(f"budget {self.budget} leaves nothing to do; give a number of example-gradients above 0")

    def check_selection(self, data: Data) -> None:
        """Refuse data on which the rule cannot select; methods of several stages ask before the first."""
        metric = RULES[self.select]
        if metric is None:
            return
        if data.validation is None:
            raise EvenlyError(f"select {self.select!r} needs a validation set and there is none; use select='last'")
        if self.evaluate_every is None:
            raise EvenlyError(
                f"select {self.select!r} needs looks at validation; give evaluate_every, or select='last'"
            )
        if metric == "worst_group" and not self.inferred:
            if data.train.groups is None:
                raise EvenlyError("select 'worst-group' needs groups and there are none; use select='worst-class'")
            check_groups(data)

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
        spent: float | None = None,
        look: Look = look,
        gradients: float = 1.0,
        patient_from: int = 0,
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
            spent: example-gradients used so far, if the method itself has used any.
            look: how a batch is looked at, where that is not one network's cross-entropy.
            gradients: example-gradients that a look at one example costs.
            patient_from: epochs that `patience` lets pass before it begins to count.
            settings: replace settings of this engine for this fit.
        """
        fit = replace(self, **settings) if settings else self
        model = model.to(fit.device)
        if fit.device.type == "cuda":  # the order in which its convolutions are fastest
            for tensor in (*model.parameters(), *model.buffers()):
                if tensor.ndim == 4:
                    tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)
        return _Loop(
            fit,
            model,
            data,
            sampler,
            weights,
            objective,
            state or {},
            stage,
            until,
            before_epoch,
            fit.spent if spent is None else spent,
            look,
            gradients,
            patient_from,
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
        look: Look,
        gradients: float,
        patient_from: int,
    ) -> None:
        self.fit, self.model, self.data, self.stage = fit, model, data, stage
        self.sampler = Everything(len(data.train), fit.seed) if sampler is None else sampler
        self.until, self.before_epoch, self.patient_from = until, before_epoch, patient_from
        self.optimizer = builder(fit.optimizer)(model.parameters())
        if isinstance(self.optimizer, SharpnessAware) and self.optimizer.model is None:
            self.optimizer.model = model
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        augment = fit.augment if isinstance(fit.augment, Augment) else Augment(fit.augment)
        seed = derive(fit.seed, "augment", stage)
        self.train = Batches(data.train, fit.batch_size, fit.device, fit.workers, augment, seed, fit.precision)
        self.validation = (
            None
            if data.validation is None
            else Batches(data.validation, fit.batch_size, fit.device, fit.workers, precision=fit.precision)
        )
        self.step = Step(
            model, self.optimizer, objective, {key: value.to(fit.device) for key, value in state.items()},
            None if weights is None else weights.to(fit.device), self.train.precision, fit.device, look, gradients,
        )  # fmt: skip
        self.step.cost = spent
        self.captured: CapturedStep | None = None
        self.how = "plain"
        self.metric = RULES[fit.select]
        fit.check_selection(data)
        self.epoch, self.finished = 0, False
        self.save_again_at, self.saved_epoch = 0.0, 0
        self.evaluation_cost, self.seconds = 0.0, 0.0
        self.history: History = []
        self.record = None if fit.record is None else fit.record(data)
        self.best: dict[str, Any] | None = None

    def run(self) -> Run:
        self._resume()
        if self.fit.reading and not self.finished:
            where = "this folder" if self.fit.folder is None else self.fit.folder.path
            raise EvenlyError(f"{where} has no finished checkpoint of the stage {self.stage!r}; train it again")
        with isolated(), own_stream(self.fit.device):
            if not self.finished:
                self._capture()
            while not self.finished:
                self._one_epoch()
        if self.best is not None:
            self.model.load_state_dict(self.best["model"])
        self.model.eval()
        return Run(
            self.model,
            self.history,
            self.step.cost,
            "worst-inferred-group" if self.fit.inferred and self.fit.select == "worst-group" else self.fit.select,
            self.epoch if self.best is None else self.best["epoch"],
            self.fit.seed,
            self.evaluation_cost,
            self.seconds,
            out=None if self.fit.folder is None else self.fit.folder.path,
            precision=self.fit.precision,
            step=self.how,
            workers=self.fit.workers,
            shown=self._shown(self.epoch if self.best is None else self.best["epoch"]),
            record=self.record,
        )

    def _shown(self, epochs: int) -> Tensor:
        """(N,) how often each training example was seen up to an epoch: draws are a function of it, so draw again."""
        shown, at = torch.zeros(len(self.data.train), dtype=torch.long), self.sampler.epoch
        for row in self.history[:epochs]:
            self.sampler.set_epoch(row["epoch"] - 1)
            drawn = self.sampler.members()
            if row["examples"] < len(drawn):  # a budget ended within the epoch
                drawn = self.sampler.indices()[: row["examples"]]
            shown += torch.bincount(drawn, minlength=len(shown))
        self.sampler.set_epoch(at)
        return shown

    def _capture(self) -> None:
        """Record the step where it can be; else say in `how` why not."""
        if self.fit.device.type != "cuda":
            return
        reason = why_not(self.train, self.optimizer) if self.fit.capture else "capture is off"
        if reason is None:
            assert self.fit.batch_size is not None
            steps = self.fit.epochs * len(self.sampler) // self.fit.batch_size
            self.model.train()
            try:
                self.captured = CapturedStep(self.step, self.train, compiled=steps >= COMPILE_STEPS)
            except NotCapturedError as error:
                reason = str(error)
        if self.captured is None:
            self.how = f"plain: {reason}"
        else:
            self.how = "captured" if self.captured.uncompiled is None else f"captured: {self.captured.uncompiled}"

    def _one_epoch(self) -> None:
        started = time.perf_counter()
        reseed(derive(self.fit.seed, self.stage, self.epoch))
        self.sampler.set_epoch(self.epoch)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * self.fit.schedule(self._progress())
        if self.before_epoch is not None:
            self.before_epoch(self.epoch, self.optimizer)
        lr = float(self.optimizer.param_groups[0]["lr"])
        if self.captured is not None and not self.captured.holds():
            self.captured, self.how = None, "plain: the optimizer's settings changed in training"

        self.model.train()
        seen = self._steps()
        pause()
        train_loss, train_accuracy = (value / max(seen, 1) for value in self.step.read())
        self._check_finite(train_loss)
        self.epoch += 1
        row = {
            "stage": self.stage,
            "epoch": self.epoch,
            "lr": lr,
            "examples": seen,
            "cost": self.step.cost,
            "train_loss": train_loss,
            "train_accuracy": train_accuracy,
        }
        if self.data.observe is not None:
            row |= self.data.observe(self.model)
        self.history.append(row)
        self.finished = (
            self.epoch >= self.fit.epochs if self.fit.budget is None else self.step.cost >= self.fit.budget
        ) or (self.until is not None and self.until(self.history))
        self._validate(row)
        self.seconds += time.perf_counter() - started
        if self.record is not None:
            row |= self.record(self.model, self.epoch)
        self._save(row)
        self.fit.progress(self._progress(), f"{self.stage} epoch {self.epoch}, loss {train_loss:.3f}")

    def _steps(self) -> int:
        """The epoch's steps, or those that the budget allows; how many examples they saw."""
        seen = 0
        for number, size in enumerate(self._one_by_one(), 1):
            seen += size
            if self.fit.budget is not None and self.step.cost >= self.fit.budget:
                break
            if number % TURN == 0:
                pause()
        return seen

    def _one_by_one(self) -> Iterator[int]:
        """Take the epoch's steps; the number of examples in each."""
        if self.captured is None:
            for batch in self.train.epoch(self.sampler):
                self.step(batch)
                yield len(batch)
            return
        self.captured.set_rates()
        for place in self.train.places(self.sampler):
            self.captured(place)
            yield len(place)

    def _progress(self) -> float:
        return self.epoch / self.fit.epochs if self.fit.budget is None else min(self.step.cost / self.fit.budget, 1.0)

    @torch.no_grad()
    def _check_finite(self, train_loss: float) -> None:
        parameters: list[Tensor] = [p for p in self.model.parameters() if p.is_floating_point()]
        norm = torch.stack([n.float().to(self.fit.device) for n in torch._foreach_norm(parameters)]).sum()
        if torch.isfinite(norm) and torch.isfinite(torch.tensor(train_loss)):
            return
        elsewhere = ""
        if self.fit.folder is not None:
            kept = f", which keeps the checkpoint of epoch {self.saved_epoch}" if self.saved_epoch else ""
            elsewhere = f", and choose another out or remove {self.fit.folder.path}{kept}"
        what = "loss" if not torch.isfinite(torch.tensor(train_loss)) else "weights"
        raise EvenlyError(
            f"the training {what} became NaN or infinite in epoch {self.epoch + 1} of stage {self.stage!r} "
            f"at learning rate {float(self.optimizer.param_groups[0]['lr']):g}; lower the learning rate{elsewhere}"
        )

    def _validate(self, row: dict[str, Any]) -> None:
        every = self.fit.evaluate_every
        if self.validation is None or every is None or not (self.finished or self.epoch % every == 0):
            return
        outputs = outputs_of(self.model, self.validation)
        self.evaluation_cost += FORWARD * len(self.data.validation)
        split = self.validation.split
        measured = measure(outputs, split, self.data)
        if self.fit.inferred:
            measured = {INFERRED.get(key, key): value for key, value in measured.items()}
        row["validation"] = measured
        if self.metric is None:
            return
        metric = INFERRED.get(self.metric, self.metric) if self.fit.inferred else self.metric
        value = [measured[metric], measured["accuracy"]]  # a worst group of few examples ties often
        if self.best is None or value > self.best["value"]:
            weights = {key: value.detach().clone() for key, value in self.model.state_dict().items()}
            self.best = {"epoch": self.epoch, "value": value, "model": weights}
        if self.fit.patience is not None and self.fit.budget is None:
            waited = self.epoch - max(self.best["epoch"], self.patient_from)
            self.finished = self.finished or waited >= self.fit.patience

    def _save(self, row: dict[str, Any]) -> None:
        if self.fit.folder is None:
            return
        self.fit.folder.append(row)
        started = time.monotonic()
        if not self.finished and started < self.save_again_at:
            return
        self.saved_epoch = self.epoch
        optimizer = self.optimizer.state_dict()
        for group in optimizer["param_groups"]:
            group["lr"] = float(group["lr"])  # a captured step has it on the device
        saved = {
            "epoch": self.epoch, "finished": self.finished, "cost": self.step.cost, "seconds": self.seconds,
            "evaluation_cost": self.evaluation_cost, "model": self.model.state_dict(), "optimizer": optimizer,
            "state": self.step.state, "best": self.best, "how": self.how,
        }  # fmt: skip
        if self.record is not None:
            saved["record"] = self.record.state_dict()
        saved = tree_map_only(Tensor, lambda tensor: tensor.detach().cpu(), saved)  # what follows leaves the GPU alone
        with aside():
            self.fit.folder.save(self.stage, saved)
        took = time.monotonic() - started
        self.save_again_at = started + max(CHECKPOINT_SECONDS, took / CHECKPOINT_SHARE)

    def _resume(self) -> None:
        if self.fit.folder is None:
            return
        saved = self.fit.folder.load(self.stage)
        if saved is not None and (strange := [key for key in SAVED if key not in saved]):
            raise EvenlyError(
                f"{self.fit.folder.path}/checkpoint/{self.stage}.pt is no checkpoint of evenly ({strange[0]} is "
                "missing); remove the folder to start over"
            )
        done = 0 if saved is None else saved["epoch"]

        def done_by_then(row: dict[str, Any]) -> bool:
            return bool(row["stage"] != self.stage or row["epoch"] <= done)

        self.history = [row for row in self.fit.folder.rows() if row["stage"] == self.stage and done_by_then(row)]
        if len(self.history) != done:
            epochs = f"{len(self.history)} epoch{'s' * (len(self.history) != 1)}"
            raise EvenlyError(
                f"{self.fit.folder.path}/metrics.jsonl has {epochs} of stage {self.stage!r}, "
                f"its checkpoint {done}; remove the folder to start over"
            )
        self.fit.folder.rewind(done_by_then)
        if saved is None:
            return
        self.epoch, self.finished, self.best = done, saved["finished"], saved["best"]
        self.saved_epoch = done
        self.step.cost, self.evaluation_cost = saved["cost"], saved["evaluation_cost"]
        self.seconds, self.how = saved["seconds"], saved.get("how", self.how)
        self.model.load_state_dict(saved["model"])
        for group, mine in zip(saved["optimizer"]["param_groups"], self.optimizer.param_groups, strict=True):
            group.update({key: mine[key] for key in WAYS if key in mine})
        self.optimizer.load_state_dict(saved["optimizer"])
        self.step.state.update({key: value.to(self.fit.device) for key, value in saved["state"].items()})
        if self.record is not None:
            self.record.load_state_dict(saved.get("record", {}))


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
