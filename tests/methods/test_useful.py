"""USEFUL: the examples it finds hard, when it looks, what it repeats, and what it says that cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from evenly import EvenlyError, hard_examples
from evenly.methods.early import drop_has_shrunk


def planted(classes: int, seed: int, size: int = 200) -> tuple[Tensor, Tensor, Tensor]:
    """Logits (N, K) of a network that knows 70% of each class, labels, and which it does not know."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (size,), generator=draw)
    hard = torch.rand(size, generator=draw) < 0.3
    logits = 0.1 * torch.randn(size, classes, generator=draw, dtype=torch.float64)
    logits[torch.arange(size), labels] += torch.where(hard, -0.5, 3.0)
    return logits, labels, hard.nonzero().flatten()


@pytest.mark.parametrize("on", ["probabilities", "logits"])
@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("seed", [0, 2**40])
def test_planted_clusters_are_found_exactly(on: str, classes: int, seed: int) -> None:
    logits, labels, hard = planted(classes, 1)
    found = hard_examples(logits, labels, on=on, seed=seed)
    assert found.dtype == torch.int64
    assert torch.equal(found, hard)


@pytest.mark.parametrize("on", ["probabilities", "logits"])
def test_one_logit_in_any_form_is_two_logits(on: str) -> None:
    two, labels, _ = planted(2, 2)
    one = two[:, 1] - two[:, 0]
    forms = [one, one[:, None], torch.stack([torch.zeros_like(one), one], 1), torch.stack([-one / 2, one / 2], 1)]
    found = [hard_examples(logits, labels, on=on).tolist() for logits in forms]
    assert found[0] == found[1] == found[2] == found[3]
    assert found[0]


def test_takes_arrays_lists_and_outputs_with_gradients() -> None:
    logits, labels, hard = planted(3, 3)
    for form in (logits.numpy(), logits.tolist(), logits.float().requires_grad_()):
        assert torch.equal(hard_examples(form, labels.tolist()), hard)


def test_features_are_clustered_instead_and_losses_still_choose() -> None:
    labels = torch.arange(40) % 2
    hard = torch.tensor([0, 3, 8, 13, 21])
    features = torch.randn(40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    features[hard] += 100
    logits = torch.where(torch.arange(40) % 4 < 2, 2.0, -2.0).double()  # says nothing about the clusters
    logits[hard] = torch.where(labels[hard] == 1, -3.0, 3.0).double()
    assert torch.equal(hard_examples(logits, labels, features=features), hard)
    assert not torch.equal(hard_examples(logits, labels), hard)


def best_threshold(values: np.ndarray, cost: np.ndarray) -> set[int]:
    """The global optimum of 2-means on a line, over all thresholds; positions of its higher-loss side."""
    order = np.argsort(values)
    spread = [
        sum(part.var() * len(part) for part in (values[order[:cut]], values[order[cut:]]))
        for cut in range(1, len(values))
    ]
    cut = int(np.argmin(spread)) + 1
    return set(max(order[:cut], order[cut:], key=lambda side: cost[side].mean()).tolist())


@given(
    sizes=st.tuples(st.integers(1, 12), st.integers(1, 12)), gap=st.floats(2, 6), seed=st.integers(0, 10**6),
    on=st.sampled_from(["probabilities", "logits"]),
)  # fmt: skip
def test_a_class_is_cut_at_the_best_of_all_thresholds(sizes: tuple[int, int], gap: float, seed: int, on: str) -> None:
    random = np.random.default_rng(seed)
    middle = random.uniform(-2, 2)
    of_class_1 = np.concatenate([random.normal(middle + side, 0.1, n) for side, n in zip((-gap / 2, gap / 2), sizes)])  # noqa: B905
    logits = random.permutation(of_class_1)
    labels = np.ones(len(logits) + 2, dtype=int)
    labels[-2:] = 0
    points = logits if on == "logits" else 1 / (1 + np.exp(-logits))
    expected = best_threshold(points, np.log1p(np.exp(-logits)))
    found = hard_examples(np.append(logits, [0.0, 0.0]), labels, on=on)
    assert set(found.tolist()) == expected


@pytest.mark.parametrize("seed", range(3))
def test_every_point_is_nearest_to_the_mean_of_its_cluster(seed: int) -> None:
    points = torch.randn(5000, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    chosen = torch.zeros(5000, dtype=torch.bool)
    chosen[hard_examples(points[:, 0], torch.ones(5000), features=points)] = True
    means = torch.stack([points[~chosen].mean(0), points[chosen].mean(0)])
    assert torch.equal(torch.cdist(points, means).argmin(1).bool(), chosen)


def test_the_higher_loss_cluster_is_chosen_even_where_it_is_the_larger() -> None:
    logits = torch.tensor([4.0] * 3 + [-1.0] * 17 + [-4.0] * 17 + [1.0] * 3)
    labels = torch.tensor([1] * 20 + [0] * 20)
    assert hard_examples(logits, labels).tolist() == [*range(3, 20), *range(37, 40)]


def test_a_class_of_equal_outputs_has_no_hard_examples() -> None:
    labels = torch.arange(8) % 2
    assert hard_examples(torch.where(labels == 1, 2.0, -1.0), labels).tolist() == []
    mixed = torch.where(labels == 1, 2.0, torch.tensor([-3.0, 0, -3.0, 0, -3.0, 0, 1.0, 0]))
    assert hard_examples(mixed, labels).tolist() == [6]


@pytest.mark.parametrize(
    ("logits", "labels", "options", "message"),
    [
        (torch.zeros(4, 2), [0, 0, 1], {}, r"logits \(4, 2\) do not go with labels \(3,\)"),
        (torch.zeros(4, 2), [[0, 0, 1, 1]], {}, "do not go with labels"),
        (torch.zeros(4, 2), [0, 0, 0, 1], {}, "class 1 has one example and cannot be split"),
        (torch.tensor([0.0, 1.0, torch.nan, 1.0]), [0, 0, 1, 1], {}, "NaN or infinity; train with a lower"),
        (torch.tensor([0.0, 1.0, torch.inf, 1.0]), [0, 0, 1, 1], {}, "NaN or infinity"),
        (torch.zeros(4, 2), [-1, -1, 1, 1], {}, "labels run from -1 to 1"),
        (torch.arange(6.0), [0, 0, 1, 1, 2, 2], {}, "labels run from 0 to 2; give 0..K-1"),
        (torch.zeros(0, 2), [], {}, "there are no examples to split"),
        (torch.arange(4.0), [0, 0, 1, 1], {"features": np.zeros((3, 2))}, r"features \(3, 2\) must be 4 finite rows"),
        (torch.arange(4.0), [0, 0, 1, 1], {"features": np.full((4, 2), np.nan)}, "must be 4 finite rows"),
        (torch.zeros(4, 2), [0, 0, 1, 1], {"on": "odds"}, "on must be one of probabilities, logits, got 'odds'"),
    ],
)
def test_hard_examples_refuses(logits: Tensor, labels: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(EvenlyError, match=message):
        hard_examples(logits, labels, **options)


@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_a_class_that_is_learned_to_the_last_digit_has_no_hard_examples(scale: float) -> None:
    z = scale * torch.linspace(40, 60, 20, dtype=torch.float64)
    labels = torch.arange(20) % 2
    logits = torch.stack([torch.zeros(20), torch.where(labels == 1, z, -z)], 1)
    assert hard_examples(logits, labels).tolist() == []


def test_leaves_global_states_alone() -> None:
    before = torch.random.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    hard_examples(*planted(3, 4)[:2])
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002


@pytest.mark.parametrize(
    ("curve", "shrunk"),
    [
        ([], False),
        ([1.0], False),
        ([1.0, 0.5], False),  # the only drop is its own peak
        ([1.0, 0.5, 0.3], False),  # 0.2 is more than a quarter of 0.5
        ([1.0, 0.5, 0.376], True),  # 0.124 is less
        ([1.0, 0.5, 0.375], False),  # exactly a quarter
        ([1.0, 0.99, 0.989], False),  # a plateau at the start
        ([1.0, 0.95, 0.6, 0.55], True),  # 0.05 against 0.35
        ([1.0, 0.5, 0.6], True),  # it rises
        ([1.0, 1.2, 1.25], False),  # it never fell
        ([1.0, 0.905, 0.901], False),  # not yet by a tenth
        ([1.0, 0.905, 0.899], True),
    ],
)
def test_when_the_drop_has_shrunk(curve: list[float], shrunk: bool) -> None:
    assert drop_has_shrunk(curve) is shrunk


def test_separates_by_itself_when_the_drop_has_shrunk(watch: Any, engine: Any) -> None:
    run, seen, _ = watch("useful", engine(epochs=30), separating_epoch=None)
    early = run.selection.details["separating_epoch"]
    assert 1 < early < 30
    assert len(seen.epochs) == early + 30


@pytest.mark.parametrize(
    ("options", "count", "factor"), [({}, 18, 2), ({"count": 7, "factor": 3}, 7, 3), ({"count": 0}, 0, 2)]
)
def test_random_upsampling_repeats_as_many_as_asked(
    watch: Any, engine: Any, options: dict[str, int], count: int, factor: int
) -> None:
    run, seen, _ = watch("random_upsample", engine(), **options)
    chosen = run.selection.indices.tolist()
    assert len(set(chosen)) == len(chosen) == count
    assert all(epoch == {i: factor if i in chosen else 1 for i in range(60)} for epoch in seen.epochs)
    assert run.cost == 4 * (60 + (factor - 1) * count)


def test_the_early_stage_is_not_evaluated(train: Any, tiny: Any) -> None:
    assert train(tiny(), "useful").evaluation_cost == pytest.approx(4 * 24 / 3)
