"""The loop: epochs over sampled examples, one optimizer, one objective; resumable at every epoch, on the CPU exactly.

Everything random in an epoch is seeded by (seed, stage, epoch) and everything else is in the checkpoint, so a run that
was killed and resumed ends in the same weights as one that was not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from evenly.data.augment import Augment
from evenly.data.contract import Data
from evenly.data.samplers import EpochSampler
from evenly.engine.accuracy import measure
from evenly.engine.batches import Batches
from evenly.engine.captured import CapturedStep, capture, own_stream
from evenly.engine.checkpoints import Checkpoints, Row
from evenly.engine.evaluation import outputs_of
from evenly.engine.replicas import Replicas, has_batch_norm
from evenly.engine.selector import Selector, check_selection
from evenly.engine.side_by_side import pause
from evenly.engine.steps import Objective, Step
from evenly.engine.trained import FORWARD, Trained
from evenly.errors import EvenlyError
from evenly.optim.sharpness_aware import SharpnessAware
from evenly.randomness import derive, isolated, reseed

if TYPE_CHECKING:
    from evenly.engine.fit import Fit

WAYS = ("foreach", "fused", "capturable")
"""How an optimizer computes, not what: a checkpoint may go on where another way is the right one."""
SAVED = {"epoch", "finished", "how", "seconds", "cost", "evaluation_cost", "candidates", "model", "optimizer", "state"}
"""What a checkpoint holds, beside the observer's state."""

DRIFT = 1e-5
"""How far the norms of the weights of several processes may be apart; on equal hardware they are equal."""
TURN = 16
"""Steps between the turns of runs that go side by side."""
REPORT_SECONDS = 0.5
"""Seconds between reports of progress within an epoch, at least."""


class Loop:
    """One fit under way; its arguments are those of `Fit.__call__`."""

    def __init__(
        self,
        fit: Fit,
        model: nn.Module,
        data: Data,
        *,
        sampler: EpochSampler,
        objective: Objective,
        stage: str,
        until: Callable[[list[Row]], bool] | None,
        before_epoch: Callable[[int, Optimizer], None] | None,
        patient_from: int,
    ) -> None:
        settings, device, workers, stream = fit.settings, fit.device, fit.execution.workers, fit.execution.stream
        check_selection(data, settings)
        self.fit, self.settings, self.data, self.sampler, self.stage = fit, settings, data, sampler, stage
        self.until, self.before_epoch = until, before_epoch
        self.model = _placed(model, device)
        self.optimizer = fit.optimizer(self.model.parameters())
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        seed, augment = derive(fit.seed, "augment", stage), Augment(settings.augment)
        size, precision = settings.batch_size, settings.precision
        world, parts = fit.world, fit.execution.accumulate
        least = 2 if has_batch_norm(self.model) else 1
        if least > 1 and size == 1 and world.size > 1:
            raise EvenlyError(
                "a batch of one example, at batch size 1, is too few for the model's batch normalisation; "
                "raise batch_size"
            )
        self.train = Batches(data.train, size, device, workers, augment, seed, precision, stream, world, least)
        self.validation = (
            None
            if data.validation is None
            else Batches(data.validation, size, device, workers, precision=precision, stream=stream, world=world)
        )
        self.replicas = Replicas(self.model, world, device, fit.execution.sync_batchnorm)
        network = self.replicas.wrap(objective.per_example_loss, self.train)
        _attach(self.optimizer, network)
        self.step = Step(network, self.optimizer, objective, self.train.precision, device, world, parts, least)
        self.step.cost = fit.spent
        self.captured: CapturedStep | None = None
        self.how = "plain"
        patience = settings.patience if fit.budget is None else None
        self.selector = Selector(settings.select, fit.inferred, patience, patient_from)
        self.observer = None if fit.record is None else fit.record(data)
        self.history: list[Row] = []
        self.epoch, self.finished = 0, False
        self.evaluation_cost, self.seconds = 0.0, 0.0

    def run(self) -> Trained:
        """Train to the end, from where the checkpoint left off."""
        if self.fit.checkpoints is not None:
            self._resume(self.fit.checkpoints)
        with isolated(), own_stream(self.fit.device):
            self.fit.progress(self._progress(), "")
            if not self.finished:
                self._capture()
            while not self.finished:
                self._one_epoch()
        self.replicas.release()
        selected = self.selector.restore(self.model, self.epoch)
        return Trained(
            self.model.eval(),
            self.history,
            self.step.cost,
            self.selector.rule,
            selected,
            self.fit.seed,
            self.evaluation_cost,
            self.seconds,
            precision=self.settings.precision,
            step=self.how,
            workers=self.fit.execution.workers,
            seen_counts=self._seen_counts(selected),
            record=self.observer,
            world=self.fit.world,
        )

    def _capture(self) -> None:
        """On a GPU, record the step where it can be; `how` says why not."""
        if self.fit.device.type != "cuda":
            return
        if not self.fit.execution.capture:
            self.how = "plain: capture is off"
            return
        if self.fit.world.size > 1 or self.step.parts > 1:
            several = f"{self.fit.world.size} processes share" if self.fit.world.size > 1 else "several passes make up"
            self.how = f"plain: {several} a step"
            return
        steps = self.settings.epochs * len(self.sampler) // (self.settings.batch_size or 1)
        self.captured, self.how = capture(self.step, self.train, steps)

    def _one_epoch(self) -> None:
        started = time.perf_counter()
        lr = self._begin()
        self.model.train()
        seen = self._steps()
        self.replicas.share_buffers()
        pause()
        train_loss, train_accuracy = (value / max(seen, 1) for value in self.step.read())
        self._check_finite(train_loss)
        self.epoch += 1
        row: Row = {
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
        budget = self.fit.budget
        self.finished = self.epoch >= self.settings.epochs if budget is None else self.step.cost >= budget
        self.finished = self.finished or (self.until is not None and self.until(self.history))
        self._validate(row)
        self.seconds += time.perf_counter() - started
        if self.observer is not None:
            row |= self.observer(self.model, self.epoch)
        if self.fit.checkpoints is not None:
            self._save(self.fit.checkpoints, row)
        self.fit.on_row(row)
        self.fit.progress(self._progress(), self._note(row))

    def _begin(self) -> float:
        """Seed the epoch and set its learning rates; the first of them."""
        reseed(derive(self.fit.seed, self.stage, self.epoch))
        if self.step.own_draws is not None:  # each drops out units of its own examples
            self.step.own_draws.reseed(derive(self.fit.seed, self.stage, self.epoch, self.fit.world.rank))
        self.sampler.set_epoch(self.epoch)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * self.fit.schedule(self._progress())
        if self.before_epoch is not None:
            self.before_epoch(self.epoch, self.optimizer)
        if self.captured is not None and not self.captured.holds():
            self.captured, self.how = None, "plain: the optimizer's settings changed in training"
        return float(self.optimizer.param_groups[0]["lr"])

    def _steps(self) -> int:
        """The epoch's steps, or those that the budget allows; how many examples they saw."""
        seen, reported = 0, time.perf_counter()
        for number, size in enumerate(self._one_by_one(), 1):
            seen += size
            if (now := time.perf_counter()) - reported > REPORT_SECONDS:
                reported = now
                self.fit.progress(self._progress(seen / len(self.sampler)), "")
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
        places = self.train.places(self.sampler)
        for rows, place in zip(self.train.rows(places), places, strict=True):
            self.captured(place, rows)
            yield len(place)

    def _progress(self, share_of_epoch: float = 0.0) -> float:
        budget, epochs = self.fit.budget, self.settings.epochs
        return min((self.epoch + share_of_epoch) / epochs if budget is None else self.step.cost / budget, 1.0)

    def _note(self, row: Row) -> str:
        """An epoch in a few words."""
        stage = "" if self.stage == "final" else f"{self.stage}: "
        total = f" of {self.settings.epochs}" if self.fit.budget is None else ""
        measured = row.get("validation", {})
        parts = {"validation": measured.get("accuracy"), "worst": measured.get("worst_group")}
        shares = "".join(f", {name} {value:.1%}" for name, value in parts.items() if value is not None)
        return f"{stage}epoch {self.epoch}{total}, loss {row['train_loss']:.3f}{shares}"

    @torch.no_grad()
    def _check_finite(self, train_loss: float) -> None:
        parameters: list[Tensor] = [p for p in self.model.parameters() if p.is_floating_point()]
        norm = torch.stack([n.float().to(self.fit.device) for n in torch._foreach_norm(parameters)]).sum()
        finite_loss = bool(torch.isfinite(torch.tensor(train_loss)))
        if finite_loss and torch.isfinite(norm):
            self._check_alike(norm.item())
            return
        raise EvenlyError(
            f"the training {'weights' if finite_loss else 'loss'} became NaN or infinite in epoch {self.epoch + 1} of "
            f"stage {self.stage!r} at learning rate {float(self.optimizer.param_groups[0]['lr']):g}; lower the "
            "learning rate, or look for extreme values in the data"
        )

    def _check_alike(self, norm: float) -> None:
        """Refuse to go on where processes have other weights than the first, as by an optimizer with its own draws."""
        norms = self.fit.world.gathered(norm)
        if max(norms) - min(norms) > DRIFT * max(norms):
            raise EvenlyError(
                f"the weights of the {len(norms)} processes differ after epoch {self.epoch + 1} of stage "
                f"{self.stage!r}; the optimizer or a layer changes them by more than their gradients: use another, or "
                "one process"
            )

    def _validate(self, row: Row) -> None:
        every = self.settings.evaluate_every
        if self.validation is None or every is None or not (self.finished or self.epoch % every == 0):
            return
        outputs = outputs_of(self.model, self.validation)
        self.evaluation_cost += FORWARD * len(self.validation.split)
        row["validation"] = self.selector.named(measure(outputs, self.validation.split, self.data).row())
        tired = self.selector.out_of_patience(self.epoch, row["validation"], self.model)
        self.finished = self.finished or tired

    def _save(self, checkpoints: Checkpoints, row: Row) -> None:
        checkpoints.append(row)
        if not (self.finished or checkpoints.due):
            return
        optimizer = self.optimizer.state_dict()
        for group in optimizer["param_groups"]:
            group["lr"] = float(group["lr"])  # a captured step has it on the device
        state = {
            "epoch": self.epoch,
            "finished": self.finished,
            "cost": self.step.cost,
            "evaluation_cost": self.evaluation_cost,
            "seconds": self.seconds,
            "how": self.how,
            "processes": self.fit.world.size,
            "model": self.model.state_dict(),
            "optimizer": optimizer,
            "state": self.step.state,
            "candidates": self.selector.state_dict(),
            "observer": None if self.observer is None else self.observer.state_dict(),
        }
        checkpoints.save(self.stage, state)

    def _resume(self, checkpoints: Checkpoints) -> None:
        saved = checkpoints.load(self.stage)
        if saved is not None and not (isinstance(saved, dict) and saved.keys() >= SAVED):
            raise EvenlyError(
                f"{checkpoints.path}/checkpoint/{self.stage}.pt is no checkpoint of a fit; "
                "remove the folder to start over"
            )
        done = 0 if saved is None else saved["epoch"]
        rows = checkpoints.rewind(self.stage, done)
        self.history = [row for row in rows if row["stage"] == self.stage]
        if len(self.history) != done:
            epochs = f"{len(self.history)} epoch{'s' * (len(self.history) != 1)}"
            raise EvenlyError(
                f"{checkpoints.path}/metrics.jsonl is damaged (it has {epochs} of stage {self.stage!r}, the checkpoint "
                f"{done}); remove the folder to start over"
            )
        if saved is None:
            return
        begun_by, size = saved.get("processes", 1), self.fit.world.size
        if getattr(self.optimizer, "local_if_replicated", False) and begun_by != size:
            raise EvenlyError(
                f"the run was begun with {begun_by} process{'es' * (begun_by != 1)} and its optimizer perturbs by each "
                f"one's part of a batch, so that it cannot go on with {size}; start {begun_by}"
            )
        self.epoch = done
        self.finished, self.how, self.seconds = saved["finished"], saved["how"], saved["seconds"]
        self.step.cost, self.evaluation_cost = saved["cost"], saved["evaluation_cost"]
        self.selector.load_state_dict(saved["candidates"])
        self.model.load_state_dict(saved["model"])
        for group, mine in zip(saved["optimizer"]["param_groups"], self.optimizer.param_groups, strict=True):
            group.update({key: mine[key] for key in WAYS if key in mine})
        self.optimizer.load_state_dict(saved["optimizer"])
        self.step.state.update({key: value.to(self.fit.device) for key, value in saved["state"].items()})
        if self.observer is not None:
            self.observer.load_state_dict(saved["observer"])

    def _seen_counts(self, epochs: int) -> Tensor:
        """(N,) how often each training example was seen up to an epoch: draws are a function of it, so draw again."""
        counts, epoch = torch.zeros(len(self.data.train), dtype=torch.long), self.sampler.epoch
        for row in self.history[:epochs]:
            self.sampler.set_epoch(row["epoch"] - 1)
            drawn = self.sampler.members()
            if row["examples"] < len(drawn):  # a budget ended within the epoch
                drawn = self.sampler.indices()[: row["examples"]]
            counts += torch.bincount(drawn, minlength=len(counts))
        self.sampler.set_epoch(epoch)
        return counts


def _attach(optimizer: Optimizer, network: nn.Module) -> None:
    """Let SAM know the network whose running statistics its second pass leaves alone."""
    if isinstance(optimizer, SharpnessAware) and optimizer.model is None:
        optimizer.model = network


def _placed(model: nn.Module, device: torch.device) -> nn.Module:
    """The network on the device; on a GPU with its filters in the order in which convolutions are fastest."""
    model = model.to(device)
    if device.type == "cuda":
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.ndim == 4:
                tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)
    return model
