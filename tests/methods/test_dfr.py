"""Deep feature reweighting against scikit-learn called by hand on the same features."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import nn

from evenly import Data
from evenly.methods import METHODS
from evenly.methods.dfr import STRENGTHS, draw, halves

L1: dict[str, Any] = {"l1_ratio": 1.0} if LogisticRegression().penalty == "deprecated" else {"penalty": "l1"}
SEED = 5  # the engine's


def by_hand(
    features: dict[str, np.ndarray], data: Data, on: str, draws: int, strengths: tuple[float, ...] = STRENGTHS
) -> tuple[np.ndarray, np.ndarray, float, StandardScaler]:
    """(coefficients, intercepts, C, the scaler they are for) of features (N, D) by split."""

    def fit(x: np.ndarray, y: np.ndarray, C: float) -> tuple[np.ndarray, np.ndarray]:
        models = [
            LogisticRegression(C=C, solver="liblinear", max_iter=1000, random_state=SEED, **L1).fit(x, y == k)
            for k in ([1] if data.classes == 2 else range(data.classes))
        ]
        return np.concatenate([m.coef_ for m in models]), np.concatenate([m.intercept_ for m in models])

    split, y = data.splits[on], data.splits[on].labels.numpy()
    trained = StandardScaler().fit(features["train"])
    if on == "train" and data.validation is not None:
        tuned, held_out, measured, scaler = draw(split.groups, SEED, "strength"), slice(None), "validation", trained
    else:
        first, held_out = halves(split.groups, SEED)
        tuned, measured = first[draw(split.groups[first], SEED, "half")], on
        scaler = StandardScaler().fit(features[on][tuned]) if on == "validation" else trained
    x, of = scaler.transform(features[measured])[held_out], data.splits[measured].groups[held_out].numpy()
    worst = []
    for C in strengths:
        w, b = fit(scaler.transform(features[on])[tuned], y[tuned], C)
        z = x @ w.T + b
        hits = ((z[:, 0] > 0) if data.classes == 2 else z.argmax(1)) == data.splits[measured].labels.numpy()[held_out]
        worst.append(min(hits[of == g].mean() for g in np.unique(of)))
    C = strengths[worst.index(max(worst))]
    sets = [draw(split.groups, SEED, number) for number in range(draws)]
    parts = [fit(trained.transform(features[on])[members], y[members], C) for members in sets]
    return np.mean([w for w, _ in parts], 0), np.mean([b for _, b in parts], 0), C, trained


def body(outputs: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, outputs))


@pytest.mark.parametrize(("on", "draws"), [("train", 10), ("validation", 20)])
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("strengths", [STRENGTHS, (0.02, 0.5)])
def test_the_last_layer_is_the_average_of_regressions(
    tiny: Any, engine: Any, on: str, draws: int, outputs: int, strengths: tuple[float, ...]
) -> None:
    data = tiny()
    with torch.random.fork_rng(devices=[]):
        erm = METHODS["erm"](lambda: body(outputs), data, engine()).model
        run = METHODS["dfr"](lambda: body(outputs), data, engine(), on=on, strengths=strengths)
    split = data.splits[on]
    features = {name: erm[:2](each.inputs).detach().double().numpy() for name, each in data.splits.items()}
    w, b, C, scaler = by_hand(features, data, on, draws, strengths)
    decision = scaler.transform(features["test"]) @ w[0] + b[0]
    logits = run.model(data.test.inputs).detach().double()
    learned = logits[:, 0] if outputs == 1 else logits[:, 1] - logits[:, 0]
    np.testing.assert_allclose(learned.numpy(), decision, rtol=1e-4, atol=1e-4)  # the network is float32
    assert run.selection.details["C"] == C
    for name in ("0.weight", "0.bias"):
        assert torch.equal(run.model.state_dict()[name], erm.state_dict()[name])
    assert run.cost == pytest.approx(4 * 60 + (60 + 24 + 1) / 3, rel=1e-12)
    counted = Counter(i for number in range(draws) for i in draw(split.groups, SEED, number).tolist())
    assert {i: n for i, n in enumerate(run.selection.details["times_drawn"].tolist()) if n} == counted
    assert run.selection.indices.tolist() == (sorted(counted) if on == "train" else [])
    assert run.selection.why == (
        "in at least one of the 10 group-balanced draws of training examples that fit the last layer"
        if on == "train"
        else "the last layer is fitted to 20 group-balanced draws of validation examples"
    )
    (remark,) = run.remarks
    assert remark.startswith("after the epochs the last layer was fitted anew to group-balanced draws of ")
    assert ("accuracy on validation is no test of it" in remark) is (on == "validation")


def test_of_three_classes_each_is_told_from_the_others(engine: Any) -> None:
    draws = torch.Generator().manual_seed(1)
    labels = torch.arange(90) % 3
    groups = 2 * labels + (torch.rand(90, generator=draws) < 0.3).long()
    x = torch.randn(90, 5, generator=draws)
    x[torch.arange(90), labels] += 1.0
    data = Data((x, labels, groups))
    with torch.random.fork_rng(devices=[]):
        erm = METHODS["erm"](lambda: body(3), data, engine()).model
        run = METHODS["dfr"](lambda: body(3), data, engine(), draws=2)
    features = erm[:2](x).detach().double().numpy()
    w, b, _, scaler = by_hand({"train": features}, data, "train", 2)
    decision = scaler.transform(features) @ w.T + b
    np.testing.assert_allclose(run.model(x).detach().numpy(), decision, rtol=1e-4, atol=1e-4)


def test_draws_are_balanced_and_halves_hold_every_group() -> None:
    groups = torch.tensor([0] * 11 + [2] * 4 + [5])
    first, second = halves(groups, 3)
    assert sorted(torch.cat([first, second]).tolist()) == list(range(16))
    assert Counter(groups[first].tolist()) == {0: 6, 2: 2, 5: 1}
    assert Counter(groups[second].tolist()) == {0: 5, 2: 2}
    sets = [tuple(draw(groups[:15], 3, number).tolist()) for number in range(5)]
    assert all(Counter(groups[list(members)].tolist()) == {0: 4, 2: 4} for members in sets)
    assert len(set(sets)) == 5


class Untouchable:
    """A test set of which only that it is there may be known, and that it has no groups."""

    groups = evaluation_groups = None

    def __getattr__(self, name: str) -> Any:
        pytest.fail(f"looked at {name} of the test set")


@pytest.mark.parametrize("on", ["train", "validation"])
def test_the_test_set_is_not_touched(tiny: Any, engine: Any, net: Any, on: str) -> None:
    data = tiny()
    data.test = Untouchable()
    METHODS["dfr"](net, data, engine(select="worst-group"), on=on, draws=2)


def test_groups_of_one_example_each_leave_the_penalty_as_it_is(tiny: Any, engine: Any, net: Any) -> None:
    run = METHODS["dfr"](net, tiny([0, 1, 2, 3], held_out=False), engine(), draws=2)
    assert run.selection.details["C"] == STRENGTHS[0]
    assert np.isnan(run.selection.details["held_out_worst_group"])


def test_a_layer_without_a_bias_gets_one(tiny: Any, engine: Any) -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2, bias=False))

    run = METHODS["dfr"](build, tiny(), engine(), draws=2)
    assert run.model[2].bias.abs().sum() > 0


def test_the_layer_is_kept_with_the_run(train: Any, tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = train(tiny(), "dfr", out=tmp_path)
    monkeypatch.setattr(sys.modules["evenly.methods.dfr"], "last_layer", lambda *_: pytest.fail("fitted again"))
    again = train(tiny(), "dfr", out=tmp_path)
    assert torch.equal(again.outputs(tiny().test), first.outputs(tiny().test))
