"""A tiny problem on which every method can be watched: inputs carry their own number, networks tell what they see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from attrs import evolve
from hypothesis import settings
from torch import Tensor, nn

from evenly import Data
from evenly.engine import Checkpoints, Fit, Trained
from evenly.methods import METHODS, infer_groups
from evenly.models import factory
from evenly.optim.registry import builder
from evenly.settings import Settings, settings_of

settings.register_profile("evenly", deadline=None, derandomize=True, max_examples=30)
settings.load_profile("evenly")

SIZES = (30, 6, 8, 16)  # of the groups 2 * label + attribute
OPTIONS: dict[str, dict[str, Any]] = {
    "pde": {"warmup_epochs": 2, "every": 1, "add": 5, "decay": 0.5, "reset_momentum": True},
    "useful": {"separating_epoch": 2},
    "misclassification": {"separating_epoch": 1},
    "quantile": {"separating_epoch": 2, "above": 0.7},
    "upweight": {"separating_epoch": 2, "factor": 3},
    "group_dro": {"step_size": 0.2, "C": 0.5},
    "jtt": {"separating_epoch": 1, "factor": 4},
    "lff": {"average": 0.5},
    "eiil": {"separating_epoch": 2, "step_size": 0.2, "C": 0.5},
    "dfr": {"draws": 3},
}


def rows(groups: Tensor, seed: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs (N, 5): a weak feature of the label, a strong one of the attribute, two of noise, and the row's number."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(len(groups), 5, generator=draw, dtype=dtype)
    x[:, 0] += 1.0 * (2 * (groups // 2) - 1)
    x[:, 1] += 3.0 * (2 * (groups % 2) - 1)
    x[:, 4] = torch.arange(len(groups)) / len(groups)
    return x, groups // 2, groups


@pytest.fixture
def tiny() -> Callable[..., Data]:
    """60 training examples in four groups, stored in no order; `groups` gives others."""

    def build(
        groups: Iterable[int] | None = None, *, held_out: bool = True, dtype: torch.dtype = torch.float32, **kwargs: Any
    ) -> Data:
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

    return build


def network() -> nn.Module:
    """With everything that a checkpoint could forget: dropout draws, running statistics."""
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))


@pytest.fixture
def net() -> Callable[[], nn.Module]:
    return network


@pytest.fixture
def linear() -> Callable[[], nn.Module]:
    """A linear network in float64, the same at every call: simple enough to train by hand."""

    def build(draw: int = 0) -> nn.Module:
        model = nn.Linear(5, 2).double()
        with torch.no_grad():
            model.weight.copy_(torch.linspace(-0.5, 0.5, 10, dtype=torch.float64).reshape(2, 5))
            model.bias.copy_(torch.tensor([0.1, -0.1]))
        return model

    return build


@pytest.fixture
def engine() -> Callable[..., Fit]:
    """The engine with SGD or SAM and four epochs of batches of 16, if not told otherwise."""

    def build(optimizer: str = "sgd", lr: float = 0.1, momentum: float = 0.9, **given: Any) -> Fit:
        settings = {name: given.pop(name) for name in settings_of(Settings) if name in given}
        build = builder(optimizer, lr=lr, momentum=momentum, rho=0.1)
        return Fit(Settings(**{"epochs": 4, "batch_size": 16} | settings), build, **{"seed": 5} | given)

    return build


@pytest.fixture
def train(net: Callable[[], nn.Module]) -> Callable[..., Trained]:
    """A method by name on a network with a seed of its own, kept in `out`; settings and options by name."""

    def run(data: Data, method: str, optimizer: str = "sgd", model: Any = net, **given: Any) -> Trained:
        given = {"epochs": 4, "batch_size": 16, "lr": 0.1, "momentum": 0.9, "rho": 0.1} | given
        seed, out, progress = given.pop("seed", 0), given.pop("out", None), given.pop("progress", lambda *_: None)
        settings = Settings(**{name: given.pop(name) for name in settings_of(Settings) if name in given})
        rates = {name: getattr(settings, name) for name in ("lr", "momentum", "weight_decay", "rho")}
        fresh, _ = factory(model, data.train.example_shape, data.classes, seed)
        checkpoints = None if out is None else Checkpoints(out)
        fit = Fit(settings, builder(optimizer, **rates), seed=seed, checkpoints=checkpoints, progress=progress)
        options = OPTIONS.get(method, {}) | given
        if settings.groups == "infer":
            inferred = infer_groups(fresh, data, fit, settings.infer)
            data, fit = inferred.data, evolve(fit, spent=inferred.cost, inferred=True)
        return METHODS[method](fresh, data, fit, **options)

    return run


@pytest.fixture
def asked(engine: Callable[..., Fit]) -> Callable[..., dict[str, Any]]:
    """What a method asks of the engine, nothing being trained: the arguments of its fit by name."""
    arguments: dict[str, Any] = {}

    class Asked(Fit):
        def __call__(self, model: nn.Module, data: Data, **given: Any) -> Any:
            arguments.update(given)
            return SimpleNamespace()

    def ask(method: str, data: Data, batch_size: int | None = 16, **options: Any) -> dict[str, Any]:
        fit = engine(batch_size=batch_size)
        METHODS[method](nn.Identity, data, Asked(fit.settings, fit.optimizer), **options)
        return arguments

    return ask


class Watched:
    """What a method showed its networks: in every epoch how often each example had a gradient taken, and totals."""

    def __init__(self, size: int) -> None:
        self.size, self.epochs, self.gradients, self.forwards = size, [Counter[int]()], 0, 0

    def hook(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if torch.is_grad_enabled():
            self.gradients += len(inputs[0])
            self.epochs[-1].update((inputs[0][:, 4] * self.size).round().long().tolist())
        else:
            self.forwards += len(inputs[0])

    def end_of_epoch(self, model: nn.Module) -> dict[str, float]:
        self.epochs.append(Counter())
        return {}


@pytest.fixture
def watch(tiny: Callable[..., Data]) -> Callable[..., tuple[Any, Watched, Data]]:
    """Run a method by name under watch: (run, what was seen, data)."""

    def run(name: str, fit: Fit, groups: Iterable[int] | None = None, **options: Any) -> tuple[Any, Watched, Data]:
        data = tiny(groups, held_out=False)
        seen = Watched(len(data.train))
        data.observe = seen.end_of_epoch

        def build(draw: int = 0) -> nn.Module:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(3 + draw)
                model = network()
            model.register_forward_pre_hook(seen.hook)
            return model

        result = METHODS[name](build, data, fit, **{**OPTIONS.get(name, {}), **options})
        assert not seen.epochs.pop()  # what comes after the last epoch is without gradients
        return result, seen, data

    return run


@pytest.fixture
def options() -> dict[str, dict[str, Any]]:
    """Options that make every method do what is special about it within four epochs."""
    return OPTIONS
