"""A tiny problem on which every method can be watched: inputs carry their own number, networks tell what they see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import evolve
from torch import Tensor, nn

from evenly.data import Data
from evenly.engine import Checkpoints, Fit, Trained
from evenly.methods import Method, infer_groups
from evenly.models import factory
from evenly.optim.registry import builder
from evenly.randomness import random_state
from evenly.settings import Settings, settings_of

SIZES = (30, 6, 8, 16)
"""Of the groups 2 * label + attribute."""
SETTINGS = {"epochs": 4, "batch_size": 16, "lr": 0.1, "momentum": 0.9, "rho": 0.1}


def keep(promise: str, kept: bool, way: str) -> None:
    """Raise unless a promise is kept.

    Args:
        promise: "pde with sam ends in the same weights for the same seed".
        way: what to do where it is not.
    """
    if not kept:
        raise AssertionError(f"broken promise: {promise}; {way}")


def rows(groups: Tensor, seed: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs (N, 5): a weak feature of the label, a strong one of the attribute, two of noise, and the row's number."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(len(groups), 5, generator=draw, dtype=dtype)
    x[:, 0] += 1.0 * (2 * (groups // 2) - 1)
    x[:, 1] += 3.0 * (2 * (groups % 2) - 1)
    x[:, 4] = torch.arange(len(groups)) / len(groups)
    return x, groups // 2, groups


def tiny(
    groups: Iterable[int] | None = None, *, held_out: bool = True, dtype: torch.dtype = torch.float32, **kwargs: Any
) -> Data:
    """60 training examples in four groups, stored in no order; `groups` gives others."""
    if groups is None:
        unsorted = torch.randperm(sum(SIZES), generator=torch.Generator().manual_seed(9))
        groups = torch.arange(4).repeat_interleave(torch.tensor(SIZES))[unsorted]
    others = torch.arange(24) % 4
    return Data(
        train=rows(torch.as_tensor(groups), 1, dtype),
        validation=rows(others, 2, dtype) if held_out else None,
        test=rows(others, 3, dtype) if held_out else None,
        **kwargs,
    )


def network() -> nn.Module:
    """With everything that a checkpoint could forget: dropout draws, running statistics.

    Without a bias before batch normalisation: its gradient is rounding alone, which Adam or a step by the sign would
    make as large as the others.
    """
    return nn.Sequential(nn.Linear(5, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))


def network_of(seed: int) -> nn.Module:
    """The same network at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return network()


def train(
    method: Method,
    data: Data,
    optimizer: str = "sgd",
    model: Any = network,
    *,
    seed: int = 0,
    checkpoints: Checkpoints | None = None,
    progress: Callable[[float, str], None] = lambda *_: None,
    **given: Any,
) -> Trained:
    """A method on a network with a seed of its own; settings and options by name."""
    given = SETTINGS | given
    settings = Settings(**{name: given.pop(name) for name in settings_of(Settings) if name in given})
    rates = {name: getattr(settings, name) for name in ("lr", "momentum", "weight_decay", "rho")}
    fresh, _ = factory(model, data.train.example_shape, data.classes, seed)
    fit = Fit(settings, builder(optimizer, **rates), seed=seed, checkpoints=checkpoints, progress=progress)
    if settings.groups == "infer":
        inferred = infer_groups(fresh, data, fit, settings.infer)
        data, fit = inferred.data, evolve(fit, spent=inferred.cost, inferred=True)
    return method(fresh, data, fit, **given)


class Watched:
    """What a method showed its networks: in every epoch how often each example had a gradient taken, and totals."""

    def __init__(self, size: int) -> None:
        self.size, self.gradients, self.forwards = size, 0, 0
        self.epochs: list[Counter[int]] = [Counter()]

    def hook(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if torch.is_grad_enabled():
            self.gradients += len(inputs[0])
            self.epochs[-1].update((inputs[0][:, 4] * self.size).round().long().tolist())
        else:
            self.forwards += len(inputs[0])

    def end_of_epoch(self, model: nn.Module) -> dict[str, float]:
        self.epochs.append(Counter())
        return {}


def watch(
    method: Method, fit: Fit, groups: Iterable[int] | None = None, **options: Any
) -> tuple[Trained, Watched, Data]:
    """Run a method under watch: (run, what was seen, data)."""
    data = tiny(groups, held_out=False)
    seen = Watched(len(data.train))
    data.observe = seen.end_of_epoch

    def build(draw: int = 0) -> nn.Module:
        model = network_of(3 + draw)
        model.register_forward_pre_hook(seen.hook)
        return model

    result = method(build, data, fit, **options)
    last = seen.epochs.pop()
    keep(f"{method.name} takes gradients in the epochs of a fit only", not last, "train by calling fit")
    return result, seen, data


def engine(optimizer: str = "sgd", lr: float = 0.1, momentum: float = 0.9, **given: Any) -> Fit:
    """The engine with an optimizer and four epochs of batches of 16, unless asked otherwise."""
    settings = {name: given.pop(name) for name in settings_of(Settings) if name in given}
    build = builder(optimizer, lr=lr, momentum=momentum, rho=0.1)
    return Fit(Settings(**{"epochs": 4, "batch_size": 16} | settings), build, **{"seed": 5} | given)


class EveryEpoch(Checkpoints):
    """Checkpoints after every epoch, however short it is."""

    @property
    def due(self) -> bool:
        return True


class Stopping(EveryEpoch):
    """Checkpoints that interrupt the run after each write, once.

    Args:
        stopped: the writes after which a run was interrupted already; others are added.
    """

    def __init__(self, path: Path, stopped: set[tuple[Any, ...]]) -> None:
        super().__init__(path)
        self.stopped = stopped

    def save(self, stage: str, state: dict[str, Any]) -> None:
        super().save(stage, state)
        self._stop("save", stage)

    def append(self, row: dict[str, Any]) -> None:
        super().append(row)
        self._stop("append", str(row))

    def _stop(self, *write: str) -> None:
        if (place := (*write, len(self.rows()))) not in self.stopped:
            self.stopped.add(place)
            raise KeyboardInterrupt


def weights(run: Any) -> dict[str, Tensor]:
    return dict(run.model.state_dict())


def equal(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    """Whether two state dicts agree in every bit."""
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


def bill(run: Trained) -> tuple[Any, ...]:
    """What it cost, and what it says of its weights and of the examples it chose."""
    chosen = None if run.selection is None else (run.selection.indices.tolist(), run.selection.times.tolist())
    seen = None if run.seen_counts is None else run.seen_counts.tolist()
    return run.cost, run.evaluation_cost, run.selected_epoch, run.remarks, seen, chosen


def global_states() -> tuple[Any, ...]:
    """The global random states of torch, numpy and Python."""
    python, numpy, cpu, _ = random_state()
    return cpu.tolist(), numpy[1].tolist(), numpy[2:], python
