"""The plain loop that every host must equal: torch and evenly's optimizers alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from evenly.optim import ASAM, LSAM, SAM, RandomPerturbation

ROOT = Path(__file__).parents[2]

METHODS: dict[str, Callable[..., Any]] = {
    "sam": lambda base, last: SAM(base, rho=0.3),
    "asam": lambda base, last: ASAM(base, rho=0.8),
    "lsam": lambda base, last: LSAM(base, params=last.parameters(), rho=0.5),
    "random": lambda base, last: RandomPerturbation(base, sigma=0.05),
}


def small_net() -> nn.Sequential:
    """With everything that the passes may affect: running statistics, biases, a last layer."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))


def small_data(n: int = 40) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(5))
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


def plain_loop(
    model: nn.Module,
    opt: Any,
    batches: Iterable[Any],
    loss_of: Callable[[nn.Module, Any], Tensor],
    *,
    accumulate: int = 1,
    normalize: Callable[[int], int] | None = None,
    clip: Callable[[list[Tensor]], Any] | None = None,
    scaler: Any = None,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    after_step: Callable[[], None] = lambda: None,
) -> list[float]:
    """The first pass' loss of each step; steps are seeded with their number.

    ``clip`` acts on the last pass' gradient, by a hook on the base; ``normalize`` maps the number of batches in a step
    to the divisor of the loss, by default ``accumulate``.
    """
    params = [p for group in opt.param_groups for p in group["params"]]

    def clip_before_step(*_: object) -> None:
        if clip is not None:
            clip(params)

    opt.base.register_step_pre_hook(clip_before_step)
    model.train()
    batches, losses = list(batches), []
    for start in range(0, len(batches), accumulate):
        window = batches[start : start + accumulate]
        parts = normalize(len(window)) if normalize else accumulate

        def closure(window=window, parts=parts) -> Tensor:
            opt.zero_grad()
            total = torch.zeros(())
            for batch in window:
                with autocast():
                    loss = loss_of(model, batch) / parts
                (loss if scaler is None else scaler.scale(loss)).backward()
                total = total + loss.detach()
            return total

        torch.manual_seed(start // accumulate)
        losses.append(float(opt.step(closure, scaler=scaler)))
        if scaler is not None:
            scaler.update()
        after_step()
    return losses


def same(a: nn.Module, b: nn.Module) -> bool:
    """Whether all weights and buffers are equal bit for bit."""
    mine, theirs = a.state_dict(), b.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


def run_example(name: str) -> str:
    """The output of an example script."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name)],
        capture_output=True, text=True, timeout=120, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


class Plain:
    """The helpers above, for tests that cannot import a conftest."""

    methods = METHODS
    net = staticmethod(small_net)
    data = staticmethod(small_data)
    loop = staticmethod(plain_loop)
    same = staticmethod(same)
    example = staticmethod(run_example)


@pytest.fixture(scope="session")
def plain() -> type[Plain]:
    return Plain


@pytest.fixture(autouse=True)
def deterministic():
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)
