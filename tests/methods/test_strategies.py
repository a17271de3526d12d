"""USEFUL's rivals and variants: which examples each singles out early, what it makes of them, what that costs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import evenly
from evenly import Data, hard_examples
from evenly.engine.losses import losses
from evenly.methods import METHODS
from evenly.methods.misclassification import misclassified
from evenly.methods.quantile import above_quantile

EARLY = ("useful", "misclassification", "quantile", "upweight", "jtt")


def logistic(row: list[float], label: int) -> float:
    """-log softmax(row)[label], or the logistic loss of a single logit, one example at a time."""
    if len(row) == 1:
        return math.log1p(math.exp(-row[0] if label else row[0]))
    top = max(row)
    return math.log(sum(math.exp(value - top) for value in row)) + top - row[label]


def wrong(logits: Tensor, labels: Tensor) -> list[int]:
    return [i for i, row in enumerate(logits.tolist()) if row.index(max(row)) != int(labels[i])]


def higher_loss_half(logits: Tensor, labels: Tensor) -> list[int]:
    each = [logistic(row, int(label)) for row, label in zip(logits.tolist(), labels, strict=True)]
    return [i for i, loss in enumerate(each) if loss > statistics.median(each)]


CHOSEN: dict[str, Callable[[Tensor, Tensor], list[int]]] = {
    "useful": lambda logits, labels: hard_examples(logits, labels, seed=5).tolist(),
    "misclassification": wrong,
    "quantile": higher_loss_half,
    "upweight": lambda logits, labels: hard_examples(logits, labels, seed=5).tolist(),
    "jtt": wrong,
}


def descend(model: nn.Linear, x: Tensor, y: Tensor, weights: Tensor, steps: int, lr: float = 0.1) -> nn.Linear:
    """Gradient descent on the mean of weight times loss, by autograd on the written-out loss."""
    w, b = model.weight.detach().clone(), model.bias.detach().clone()
    for _ in range(steps):
        w.requires_grad_()
        b.requires_grad_()
        z = x @ w.T + b
        each = z.exp().sum(1).log() - z[torch.arange(len(y)), y]
        g_w, g_b = torch.autograd.grad((weights * each).sum() / len(y), [w, b])
        w, b = (w - lr * g_w).detach(), (b - lr * g_b).detach()
    model.weight.data, model.bias.data = w, b
    return model


@pytest.mark.parametrize("method", EARLY)
def test_is_early_descent_a_choice_and_descent_anew(tiny: Any, engine: Any, linear: Any, method: str) -> None:
    data = tiny(dtype=torch.float64)
    x, y, ones = data.train.inputs, data.train.labels, torch.ones(60, dtype=torch.float64)
    early = descend(linear(), x, y, ones, 3)
    chosen = CHOSEN[method](early(x), y)
    assert 0 < len(chosen) < 60
    run = METHODS[method](linear, data, engine(epochs=7, batch_size=None, momentum=0), separating_epoch=3, factor=3)
    assert run.selection.indices.tolist() == chosen
    weights = ones.clone()
    weights[chosen] = 3
    if method != "upweight":  # repeats are divided by as well
        weights *= 60 / weights.sum()
    expected = descend(linear(), x, y, weights, 7)
    torch.testing.assert_close(run.model.weight, expected.weight, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(run.model.bias, expected.bias, rtol=1e-12, atol=1e-12)
    assert (run.model.weight - descend(linear(), x, y, ones, 7).weight).abs().max() > 1e-3


@pytest.mark.parametrize("method", EARLY)
def test_the_details_tell_when_why_and_how_much_of_each_class(tiny: Any, engine: Any, linear: Any, method: str) -> None:
    data = tiny(dtype=torch.float64)
    fit = engine(epochs=20, batch_size=None, momentum=0)
    curve = [row["train_loss"] for row in METHODS["erm"](linear, data, fit).history]
    given_one = METHODS[method](linear, data, fit, separating_epoch=3).selection
    assert given_one.details["separating_epoch"] == 3
    assert given_one.details["early_losses"] == pytest.approx(curve[:3], rel=1e-12)
    assert given_one.details["decided"] == "given"
    assert "never shrank" not in given_one.why
    by_rule = METHODS[method](linear, data, fit).selection
    found = by_rule.details["separating_epoch"]
    assert 1 < found < 20
    assert by_rule.details["early_losses"] == pytest.approx(curve[:found], rel=1e-12)
    assert by_rule.details["decided"] == "rule"
    slow = METHODS[method](linear, data, engine(lr=1e-6, batch_size=None)).selection
    assert (slow.details["separating_epoch"], slow.details["decided"]) == (4, "end")
    assert "never shrank" in slow.why
    labels = data.train.labels.tolist()
    share = [sum(labels[i] == k for i in by_rule.indices.tolist()) / labels.count(k) for k in (0, 1)]
    assert by_rule.details["share_per_class"].tolist() == pytest.approx(share, rel=1e-12)
    assert by_rule.details.get("weight") == (2.0 if method == "upweight" else None)


@pytest.mark.parametrize("method", ["useful", "misclassification", "quantile", "jtt"])
def test_all_but_upweight_repeat_what_they_chose(watch: Any, engine: Any, method: str) -> None:
    run, seen, _ = watch(method, engine(), separating_epoch=1, factor=4)
    chosen = set(run.selection.indices.tolist())
    assert 0 < len(chosen) < 60
    assert all(epoch == dict.fromkeys(range(60), 1) for epoch in seen.epochs[:1])
    assert all(epoch == {i: 4 if i in chosen else 1 for i in range(60)} for epoch in seen.epochs[1:])
    assert run.cost == pytest.approx(60 + 60 / 3 + 4 * (60 + 3 * len(chosen)), rel=1e-12)


@pytest.mark.parametrize("method", EARLY)
def test_with_nothing_to_choose_it_is_plain_training(engine: Any, linear: Any, method: str) -> None:
    labels = torch.arange(20) % 2
    # mirror images of each other: all outputs of a class are alike, and so are all losses
    alike = Data((torch.where(labels[:, None] == 1, 1.0, -1.0).double().expand(20, 5).clone(), labels))

    def symmetric() -> nn.Module:
        model = linear()
        model.weight.data = torch.stack([-model.weight.data[1], model.weight.data[1]])
        model.bias.data.zero_()
        return model

    fit = engine(batch_size=None)
    run, erm = (METHODS[name](symmetric, alike, fit, **more) for name, more in ((method, {"factor": 3}), ("erm", {})))
    assert run.selection.indices.tolist() == []
    assert "there are none, so this is plain training" in run.selection.why
    assert len(run.remarks) == 1
    assert run.remarks[0].startswith("nothing was weighed up: " if method == "upweight" else "nothing was repeated: ")
    assert erm.remarks == ()
    assert run.selection.details["share_per_class"].tolist() == [0, 0]
    assert torch.equal(run.model.weight, erm.model.weight)


@pytest.mark.parametrize("above", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("count", [1, 2, 7, 8, 61])
def test_above_a_quantile_is_above_the_interpolated_one(above: float, count: int) -> None:
    values = torch.rand(count, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    expected = [i for i in range(count) if values[i] > np.quantile(values.numpy(), above)]
    assert above_quantile(values, above).tolist() == expected


def test_losses_that_tie_with_the_quantile_are_left_out() -> None:
    assert above_quantile(torch.tensor([1.0, 2.0, 2.0, 2.0, 3.0])).tolist() == [4]
    assert above_quantile(torch.tensor([2.0, 2.0 + 1e-14, 2.0, 2.0 - 1e-14], dtype=torch.float64)).tolist() == []
    assert above_quantile(torch.tensor([3.0, 1.0, 1.0, 3.0]), 0.5).tolist() == [0, 3]


@pytest.mark.parametrize(("above", "count", "why"), [(0.5, 30, "the median"), (0.75, 15, "the 0.75 quantile")])
def test_the_quantile_sets_how_many_are_repeated(watch: Any, engine: Any, above: float, count: int, why: str) -> None:
    run, _, _ = watch("quantile", engine(), above=above)
    assert len(run.selection.indices) == count
    assert why in run.selection.why


def test_misclassified_takes_one_logit_in_any_form() -> None:
    logits, labels = torch.tensor([2.0, -1.0, 0.5, -3.0]), torch.tensor([1, 1, 0, 0])
    for form in (logits, logits[:, None], torch.stack([-logits, logits], 1)):
        assert misclassified(form, labels).tolist() == [1, 2]


PICKS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "probabilities": lambda z, y, f: hard_examples(z, y),
    "logits": lambda z, y, f: hard_examples(z, y, on="logits"),
    "features": lambda z, y, f: hard_examples(z, y, features=f),
    "quantile": lambda z, y, f: above_quantile(losses(z.double(), y), 0.4),
    "misclassification": lambda z, y, f: misclassified(z, y),
}


@pytest.mark.parametrize("pick", PICKS)
@given(
    order=st.permutations(range(37)), seed=st.integers(0, 10**6), classes=st.integers(1, 4), coarse=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)  # fmt: skip
def test_the_order_of_storage_changes_no_choice(
    pick: str, order: list[int], seed: int, classes: int, coarse: bool, dtype: torch.dtype
) -> None:
    draw = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(37, classes, generator=draw, dtype=dtype)
    features = torch.randn(37, 3, generator=draw)
    if coarse:  # many equal outputs
        logits, features = logits.round(), features.round()
    labels = torch.arange(37) % max(classes, 2)
    stored = PICKS[pick](logits, labels, features)
    moved = PICKS[pick](logits[order], labels[order], features[order])
    assert sorted(order[i] for i in moved.tolist()) == stored.tolist()
    assert moved.tolist() == sorted(moved.tolist())


def test_clusters_of_equal_loss_are_told_apart_alike_in_every_order() -> None:
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(150, generator=draw, dtype=torch.float64).repeat(2)
    labels = torch.ones(302, dtype=torch.long)
    labels[300:] = 0
    logits = torch.cat([logits, torch.zeros(2, dtype=torch.float64)])
    features = torch.zeros(302, 1)
    features[150:300] = 1
    expected = hard_examples(logits, labels, features=features)
    assert len(expected) == 150
    for _ in range(20):
        order = torch.randperm(302, generator=draw)
        moved = hard_examples(logits[order], labels[order], features=features[order])
        assert torch.equal(order[moved].sort().values, expected)


@pytest.mark.parametrize(
    ("method", "options"),
    [*((name, {}) for name in (*EARLY, "eiil")), ("useful", {"on": "logits"}), ("useful", {"on": "features"})],
)
def test_a_whole_run_chooses_the_same_in_any_order(
    tiny: Any, engine: Any, linear: Any, method: str, options: dict[str, str]
) -> None:
    data = tiny(dtype=torch.float64)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(2))
    shuffled = Data(tuple(part[order] for part in (data.train.inputs, data.train.labels)))
    stored, moved = (
        METHODS[method](linear, d, engine(batch_size=None), separating_epoch=3, **options).selection.indices
        for d in (data, shuffled)
    )
    assert torch.equal(order[moved].sort().values, stored)


def test_useful_on_features_of_a_linear_network_clusters_the_inputs(tiny: Any, engine: Any, linear: Any) -> None:
    data = tiny(dtype=torch.float64)
    fit = engine(batch_size=None, momentum=0)
    run = METHODS["useful"](linear, data, fit, separating_epoch=3, on="features")
    early = descend(linear(), data.train.inputs, data.train.labels, torch.ones(60, dtype=torch.float64), 3)
    expected = hard_examples(
        early(data.train.inputs), data.train.labels, features=data.train.inputs.float(), seed=fit.seed
    )
    assert torch.equal(run.selection.indices, expected)


def test_outputs_that_are_no_numbers_are_refused(tiny: Any, engine: Any, linear: Any) -> None:
    class Overflowing(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            z = super().forward(x)
            return z if torch.is_grad_enabled() else z / 0

    for method in ("misclassification", "quantile"):
        with pytest.raises(evenly.EvenlyError, match="NaN or infinity; train with a lower learning rate"):
            METHODS[method](lambda: Overflowing(5, 2), tiny(), engine(), separating_epoch=1)


@pytest.mark.parametrize("method", ["useful", "misclassification", "quantile", "upweight", "jtt", "eiil"])
def test_what_was_chosen_stays_chosen_where_a_run_goes_on(
    train: Any, tiny: Any, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other hardware rounds otherwise and might choose others: the choice is kept, not made again."""

    def stop(share: float, note: str) -> None:
        if note.startswith("epoch 1 "):
            raise InterruptedError

    with pytest.raises(InterruptedError):
        train(tiny(), method, out=tmp_path, progress=stop)
    straight = train(tiny(), method)
    monkeypatch.setattr("evenly.methods.early.Early.outputs", lambda early: pytest.fail("it chose again"))
    resumed = train(tiny(), method, out=tmp_path)
    assert torch.equal(resumed.selection.indices, straight.selection.indices)
    assert resumed.cost == straight.cost
