"""PDE against Algorithm 1 of Deng et al., trained by hand on the sets that the sampler gives; and its first half."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from evenly import ProgressiveExpansion
from evenly.engine.schedules import step
from evenly.methods import METHODS


def by_hand(data: Any, model: Any, sets: list[Tensor], rates: list[float], reset_at: int | None) -> Tensor:
    """Full-batch SGD with momentum 0.9, one step on each set; the velocity is forgotten before step `reset_at`."""
    x = torch.cat([data.train.inputs, torch.ones(len(data.train), 1, dtype=torch.float64)], 1)
    w = torch.cat([model.weight, model.bias[:, None]], 1).detach()
    velocity = torch.zeros_like(w)
    for epoch, (members, rate) in enumerate(zip(sets, rates, strict=True)):
        if epoch == reset_at:
            velocity = torch.zeros_like(w)
        scores = x[members] @ w.T
        wrong = scores.softmax(1) - torch.eye(2, dtype=torch.float64)[data.train.labels[members]]
        velocity = 0.9 * velocity + wrong.T @ x[members] / len(members)
        w = w - rate * velocity
    return w


@pytest.mark.parametrize("add", [5, [3, 0, 7], "all"])
@pytest.mark.parametrize(("reset", "decay"), [(False, 1.0), (True, 1.0), (False, 0.2), (True, 0.2)])
def test_training_is_the_algorithm_box(
    tiny: Any, engine: Any, linear: Any, add: Any, reset: bool, decay: float
) -> None:
    data = tiny(dtype=torch.float64)
    fit = engine(batch_size=None, epochs=12, schedule=step)
    run = METHODS["pde"](
        linear, data, fit, warmup_epochs=5, every=2, add=add, draw="random", decay=decay, reset_momentum=reset
    )
    sampler = ProgressiveExpansion(data.train.groups, 5, 2, add, draw="random", seed=fit.seed)
    sets = []
    for epoch in range(12):
        sampler.set_epoch(epoch)
        sets.append(sampler.members())
    rates = [0.1 * step(epoch / 12) * (decay if epoch >= 5 else 1) for epoch in range(12)]
    assert [row["lr"] for row in run.history] == pytest.approx(rates)
    assert [row["examples"] for row in run.history] == [len(members) for members in sets]
    trained = torch.cat([run.model.weight, run.model.bias[:, None]], 1).detach()
    expected = by_hand(data, linear(), sets, rates, 5 if reset else None)
    torch.testing.assert_close(trained, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"warmup_epochs": 2, "every": 2, "add": 5}, [24, 24, 29, 29, 34, 34]),
        ({"warmup_epochs": 1, "every": 1, "add": 20}, [24, 44, 60, 60, 60, 60]),
        ({"warmup_epochs": 1, "add": "all"}, [24, 60, 60, 60, 60, 60]),
        ({"warmup_epochs": 3, "every": 1, "add": [1, 2]}, [24, 24, 24, 25, 27, 27]),
        ({"warmup_epochs": 2, "every": 9, "add": 4, "cap": 7}, [27, 27, 31, 31, 31, 31]),
        ({"warmup_epochs": 6, "add": 9}, [24] * 6),
        ({}, [24, 24, 24, 24, 25, 26]),  # two thirds of the epochs, a twentieth of the balanced set
    ],
)
def test_the_sets_seen_grow_as_asked(watch: Any, engine: Any, options: dict[str, Any], sizes: list[int]) -> None:
    fresh = {"warmup_epochs": None, "every": None, "add": None, "decay": 1.0, "reset_momentum": False}
    run, seen, data = watch("pde", engine(epochs=6), **{**fresh, **options})
    assert [len(epoch) for epoch in seen.epochs] == sizes
    warmup = Counter(data.train.groups[list(seen.epochs[0])].tolist())
    smallest = options.get("cap", 6)
    assert warmup == {g: min(smallest, n) for g, n in enumerate((30, 6, 8, 16))}
    entered = {i: next(e for e, epoch in enumerate(seen.epochs) if i in epoch) for i in seen.epochs[-1]}
    chosen = run.selection.indices.tolist()
    assert dict(zip(chosen, run.selection.details["entered_at_epoch"].tolist(), strict=True)) == entered


def test_what_is_added_after_the_kept_epoch_is_not_what_it_was_trained_on(train: Any, tiny: Any, tmp_path: Any) -> None:
    options = {"warmup_epochs": 3, "every": 1, "add": 3, "decay": 1.0, "reset_momentum": False}
    run = train(tiny(), "pde", epochs=12, lr=0.3, select="average", seed=1, **options)
    sizes, kept, selection = [row["examples"] for row in run.history], run.selected_epoch, run.selection
    assert 3 < kept < 12  # after some expansions and before others
    assert len(selection.indices) == sizes[kept - 1] < len(selection.details["ever_added"]) == sizes[-1]
    assert (run.seen_counts > 0).nonzero().flatten().tolist() == selection.indices.tolist()
    selection.save(tmp_path / "selection.npz")
    with np.load(tmp_path / "selection.npz") as saved:
        assert saved["indices"].tolist() == selection.indices.tolist()
        assert saved["entered_at_epoch"].max() == kept - 1
        assert len(saved["ever_added"]) == len(saved["ever_added_at_epoch"]) == sizes[-1]
        assert saved["ever_added_at_epoch"].max() == 11


def test_subsample_is_the_warm_up_alone(tiny: Any, engine: Any, linear: Any) -> None:
    data = tiny(dtype=torch.float64)
    warmup = METHODS["pde"](linear, data, engine(epochs=5), warmup_epochs=5)
    alone = METHODS["subsample"](linear, data, engine(epochs=5))
    assert torch.equal(warmup.model.weight, alone.model.weight)
    assert torch.equal(warmup.selection.indices, alone.selection.indices)
    assert torch.bincount(data.train.groups[alone.selection.indices]).tolist() == [6] * 4
