"""The tracker against gradients by autograd, in a plain loop and in evenly's engine; it leaves no trace."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import evenly
from evenly.data import Data
from evenly.diagnose import losses
from evenly.diagnose.losses import gradient_norm, mean_loss
from evenly.diagnose.tracking import COLUMNS, CoherenceTracker, r_squared


def samples(n: int = 12, d: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=draw, dtype=torch.float64)
    return x, torch.randn(n, generator=draw, dtype=torch.float64)


def small(d: int = 4, outputs: int = 1) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(d, 5), nn.Tanh(), nn.Linear(5, outputs)).double()


def by_autograd(model: nn.Module, x: Tensor, y: Tensor, ascent: float) -> dict[str, float]:
    """The columns for the loss (f - y)^2, from p x p matrices."""
    gradients = []
    for each in x:
        parts = torch.autograd.grad(model(each[None]).sum(), list(model.parameters()))
        gradients.append(torch.cat([part.flatten() for part in parts]))
    hessians = [2 * g[:, None] * g for g in gradients]
    H = sum(hessians) / len(x)
    ascend = torch.eye(len(H), dtype=H.dtype) + ascent * H
    S = torch.stack([torch.stack([torch.trace(ascend @ a @ ascend @ b) for b in hessians]) for a in hessians]).sqrt()
    values, samples_ = torch.linalg.eigvalsh(S), [torch.linalg.eigvals(ascend @ a).real.max().item() for a in hessians]
    return {
        "coherence": values[-1].item(),
        "sample_sharpness": max(samples_),
        "sharpness": torch.linalg.eigvals(ascend @ H).real.max().item(),
        "sigma": values[-1].item() / max(samples_),
        "loss": ((model(x)[:, 0] - y) ** 2).mean().item(),
    }


@pytest.mark.parametrize("ascent", [0.0, 0.4])
def test_rows_are_the_definition_at_every_step(ascent: float) -> None:
    x, y = samples()
    model, tracker = small(), CoherenceTracker(nn.MSELoss(), (x, y), ascent=ascent)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    expected = []
    for step in range(4):
        expected.append({"step": step, **by_autograd(model, x, y, ascent)})
        tracker(model, step)
        optimizer.zero_grad()
        F.mse_loss(model(x)[:, 0], y).backward()
        optimizer.step()
    assert [list(row) for row in tracker.history] == [["step", *COLUMNS]] * 4
    for row, wanted in zip(tracker.history, expected, strict=True):
        assert row == pytest.approx(wanted, rel=1e-8)
    assert tracker.history[0]["loss"] > tracker.history[-1]["loss"]


def test_every_counts_given_steps_or_calls() -> None:
    model, (x, y) = small(), samples()
    given, counted = (CoherenceTracker("squared", (x, y), every=3) for _ in range(2))
    returned = [(given(model, step), counted(model)) for step in range(7)]
    assert [row["step"] for row in given.history] == [0, 3, 6]
    assert [row["step"] for row in counted.history] == [3, 6]
    assert [bool(a) for a, _ in returned] == [True, False, False, True, False, False, True]
    assert [bool(b) for _, b in returned] == [False, False, True, False, False, True, False]
    assert returned[0][0] == {name: given.history[0][name] for name in COLUMNS}


LOSSES = {
    "squared": lambda f, y: 0.5 * ((f - y) ** 2).sum(1).mean(),
    "mse": lambda f, y: ((f - y) ** 2).mean(),
    "logistic": lambda f, y: torch.log1p(torch.exp(f) * 1.0).sub(f * y).mean(),
}


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_is_the_mean_over_samples(name: str, outputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "CHUNK", 5)  # 12 samples in chunks of 5, 5 and 2
    x, _ = samples()
    model, y = small(outputs=outputs), torch.randint(0, 2, (12, outputs), generator=torch.Generator().manual_seed(1))
    wanted = LOSSES[name](model(x), y.double()).item()
    assert mean_loss(model, name, x, y) == pytest.approx(wanted, rel=1e-12)
    assert mean_loss(model, name, x.float(), y.float()) == pytest.approx(wanted, rel=1e-6)
    if name != "squared":
        module = {"mse": nn.MSELoss, "logistic": nn.BCEWithLogitsLoss}[name]
        assert mean_loss(model, module(), x, y) == pytest.approx(wanted, rel=1e-12)
        assert mean_loss(model, module(reduction="sum"), x, y) == pytest.approx(wanted * outputs, rel=1e-12)


def test_cross_entropy_is_the_mean_over_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "CHUNK", 5)
    x, _ = samples()
    model, y = small(outputs=3), torch.arange(12) % 3
    wanted = -model(x).log_softmax(1)[torch.arange(12), y].mean().item()
    for loss in ("cross-entropy", nn.CrossEntropyLoss(), F.cross_entropy, nn.CrossEntropyLoss(reduction="none")):
        assert mean_loss(model, loss, x, y) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("loss", ["squared", "mse"])
def test_the_gradients_norm_is_that_of_the_mean_loss(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "CHUNK", 5)
    model, (x, y) = small(), samples()
    model[0].bias.requires_grad_(False)
    model[0].weight.grad = torch.full_like(model[0].weight, 7.0)
    mean = (0.5 if loss == "squared" else 1.0) * (model(x)[:, 0] - y).square().mean()
    gradients = torch.autograd.grad(mean, [w for w in model.parameters() if w.requires_grad])
    wanted = torch.cat([g.flatten() for g in gradients]).norm().item()
    assert gradient_norm(model, loss, x, y) == pytest.approx(wanted, rel=1e-12)
    assert torch.equal(model[0].weight.grad, torch.full_like(model[0].weight, 7.0))
    assert model.training


def test_evenly_train_writes_the_columns_to_its_history() -> None:
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(30, 4, generator=draw), torch.arange(30) % 2
    tracker = CoherenceTracker("logistic", (x[:10], y[:10]), every=2)
    data = Data((x, y), test=(x, y), observe=tracker)
    run = evenly.train(data, model=lambda: small().float(), epochs=6, lr=0.1, batch_size=10)
    assert [row["epoch"] for row in run.history if "sigma" in row] == [2, 4, 6]
    assert [row["step"] for row in tracker.history] == [2, 4, 6]
    assert run.history[-1]["sigma"] == tracker.history[-1]["sigma"]
    assert {"train_loss", *COLUMNS} <= set(run.history[-1])
    assert r_squared(run.history) == tracker.r_squared


def test_table_and_json_hold_the_history() -> None:
    tracker = CoherenceTracker("squared", samples(), every=2, ascent=0.5)
    tracker(small(), 10)
    tracker.history.append({"step": 12, **dict.fromkeys(COLUMNS, math.nan)})
    header, first, second = tracker.table().splitlines()
    assert header.split() == ["step", *COLUMNS]
    assert [float(word) for word in first.split()] == pytest.approx(list(tracker.history[0].values()), rel=1e-5)
    assert second.split() == ["12", *["nan"] * 5]
    rows = [tracker.history[0], {"step": 12, **dict.fromkeys(COLUMNS)}]
    assert tracker.to_dict() == {"every": 2, "history": rows}


def test_r_squared_is_numpys() -> None:
    draw = np.random.default_rng(0)
    a = draw.normal(size=20)
    b = -2 * a + draw.normal(size=20)
    history = [{"step": 0.0}] + [{"sample_sharpness": p, "coherence": q, "loss": -q} for p, q in zip(a, b, strict=True)]
    assert r_squared(history) == pytest.approx(np.corrcoef(a, b)[0, 1] ** 2, rel=1e-12)
    assert r_squared(history, "coherence", "loss") == pytest.approx(1, rel=1e-12)


def rows(*values: float) -> list[dict[str, float]]:
    return [{"sample_sharpness": value, "coherence": float(k)} for k, value in enumerate(values)]


REFUSED = {
    "2 records of sample_sharpness and coherence": lambda: r_squared(rows(1, 2)),
    "0 records of": lambda: r_squared([]),
    "sample_sharpness or coherence is not finite in record 2": lambda: r_squared(rows(1, 2, math.inf, 3)),
    "sample_sharpness or coherence is the same in all 3 records": lambda: r_squared(rows(0.1, 0.1, 0.1)),
    "no loss is called 'mean'": lambda: CoherenceTracker("mean", samples())(small()),
    "data is a str": lambda: CoherenceTracker("mse", "here"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refusals(message: str, refused: Any) -> None:
    refused(f"^{message}", REFUSED[message])
