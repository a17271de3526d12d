"""The patch law against its definition: patches, frequencies, directions, noise, independence of the splits."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from evenly import EvenlyError
from evenly.data import PatchLaw, Split, load
from evenly.data.patches import alignment
from evenly.models import CubicCNN

LAWS = {
    "absent": PatchLaw(strong=1.5, weak=0.3, alpha=0.8, otherwise="absent", noise=0.1, dimension=20, patches=4),
    "opposite": PatchLaw(strong=1.0, weak=0.2, alpha=0.6, otherwise="opposite", noise=0.2, dimension=12, patches=3),
}
N = 3000


@pytest.fixture(params=LAWS)
def law(request: pytest.FixtureRequest) -> PatchLaw:
    return LAWS[request.param]


def signs(law: PatchLaw, split: Split) -> tuple[Tensor, Tensor]:
    """(s, y) in the definition's ±1 and 0, from what the split says of itself."""
    y = 2 * split.labels - 1
    return torch.where(split.attributes["strong"] == 1, y, 0 if law.otherwise == "absent" else -y), y


def places(split: Split, patch: Tensor) -> Tensor:
    """(N, P) where a patch (N, d) stands, exactly."""
    return (split.inputs == patch[:, None]).all(-1)


def near(count: float, draws: int, probability: float) -> bool:
    """Within five standard deviations of a binomial."""
    return abs(count - draws * probability) <= 5 * math.sqrt(draws * probability * (1 - probability)) + 1e-9


def test_every_example_holds_both_features_exactly_and_noise(law: PatchLaw) -> None:
    split = law.sample(N, seed=1)
    (s, y), (v_strong, v_weak) = signs(law, split), law.directions(1)
    strong = places(split, law.strong * s[:, None] * v_strong)
    weak = places(split, law.weak * y[:, None] * v_weak)
    assert bool((strong.sum(1) == 1).all())
    assert bool((weak.sum(1) == 1).all())
    noise = split.inputs[~(strong | weak)].double()
    assert noise.shape == (N * (law.patches - 2), law.dimension)
    assert noise.std().item() == pytest.approx(law.noise, rel=5 / math.sqrt(2 * noise.numel()))
    assert abs(noise.mean().item()) < 5 * law.noise / math.sqrt(noise.numel())
    for place in range(law.patches):
        assert near(strong[:, place].sum(), N, 1 / law.patches)
        assert near(weak[:, place].sum(), N, 1 / law.patches)


def test_labels_and_agreement_have_their_frequencies_and_give_the_groups(law: PatchLaw) -> None:
    split = law.sample(N, seed=2)
    agrees = split.attributes["strong"]
    assert near(split.labels.sum(), N, 0.5)
    for label in (0, 1):
        members = split.labels == label
        assert near(agrees[members].sum(), int(members.sum()), law.alpha)
    assert torch.equal(split.groups, 2 * split.labels + 1 - agrees)


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_alpha_at_its_ends(alpha: float) -> None:
    assert PatchLaw(alpha=alpha).sample(200).attributes["strong"].unique().tolist() == [int(alpha)]


def test_directions_are_an_orthonormal_pair_that_the_seed_decides(law: PatchLaw) -> None:
    pair = torch.stack(law.directions(3)).double()
    torch.testing.assert_close(pair @ pair.T, torch.eye(2, dtype=torch.float64), atol=1e-6, rtol=0)
    assert torch.equal(pair, torch.stack(law.directions(3)).double())
    assert not torch.equal(pair, torch.stack(law.directions(4)).double())


def test_same_seed_same_data_and_the_global_state_is_left_alone(law: PatchLaw) -> None:
    state = torch.random.get_rng_state()
    first, again, other = law.sample(50, 5), law.sample(50, 5), law.sample(50, 6)
    assert torch.equal(first.inputs, again.inputs)
    assert torch.equal(first.labels, again.labels)
    assert not torch.equal(first.inputs, other.inputs)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_splits_are_independent_draws_with_the_same_directions(law: PatchLaw) -> None:
    train, test = law.sample(N, 7, "train"), law.sample(N, 7, "test")
    assert near((train.labels == test.labels).sum(), N, 0.5)
    together = law.alpha**2 + (1 - law.alpha) ** 2
    assert near((train.attributes["strong"] == test.attributes["strong"]).sum(), N, together)
    correlation = torch.corrcoef(torch.stack([train.inputs.flatten(), test.inputs.flatten()]))[0, 1]
    assert abs(float(correlation)) < 5 / math.sqrt(N)  # the features' signs are the slowest to average out
    assert bool(places(test, law.weak * signs(law, test)[1][:, None] * law.directions(7)[1]).any(1).all())


def test_alignment_is_the_largest_inner_product() -> None:
    filters, v, w = (torch.randn(size, dtype=torch.float64) for size in ((7, 5), (5,), (5,)))
    by_hand = [max(sum(float(a * b) for a, b in zip(row, u, strict=True)) for row in filters) for u in (v, w)]
    assert alignment(filters, v, w) == pytest.approx(by_hand, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "features", "otherwise"),
    [("patches", ("easy", "difficult"), "absent"), ("spurious-patches", ("spurious", "core"), "opposite")],
)
def test_named_laws_have_three_splits_and_observe_alignments(
    name: str, features: tuple[str, str], otherwise: str
) -> None:
    data = load(name, n=80, seed=8)
    assert [len(split) for split in data.splits.values()] == [80, 20, 80]
    assert data.group_names[1] == f"y=-1, {features[0]} {otherwise}"
    assert data.options["n"] == 80
    model = CubicCNN(50)
    expected = alignment(model.filters, *PatchLaw(otherwise=otherwise).directions(8))
    assert data.observe(model) == dict(zip([f"alignment_{f}" for f in features], expected, strict=True))
    assert data.observe(torch.nn.Linear(3, 2)) == {}
    assert load(name, n=80, seed=8).fingerprint() == data.fingerprint() != load(name, n=80, seed=9).fingerprint()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 1.1}, "alpha 1.1 is not a probability"),
        ({"alpha": float("nan")}, "alpha nan"),
        ({"otherwise": "random"}, "otherwise 'random' is not known"),
        ({"dimension": 1}, "dimension 1"),
        ({"patches": 1}, "patches 1"),
    ],
)
def test_refuses_laws_that_cannot_be(options: dict[str, object], message: str) -> None:
    with pytest.raises(EvenlyError, match=message):
        PatchLaw(**options)


def test_refuses_to_draw_nothing() -> None:
    with pytest.raises(EvenlyError, match="n 0 leaves the training set empty"):
        load("patches", n=0)
