"""The patch data against its definition: patches, frequencies, directions, noise, independent splits."""

import math

import pytest
import torch

from evenly.data import PatchDistribution, load
from evenly.data.patches import alignment
from evenly.models import CubicCNN

DISTRIBUTIONS = {
    "absent": PatchDistribution(
        strong=1.5, weak=0.3, alpha=0.8, otherwise="absent", noise=0.1, dimension=20, patches=4
    ),
    "opposite": PatchDistribution(
        strong=1.0, weak=0.2, alpha=0.6, otherwise="opposite", noise=0.2, dimension=12, patches=3
    ),
}
N = 3000


@pytest.fixture(params=DISTRIBUTIONS)
def distribution(request):
    return DISTRIBUTIONS[request.param]


def signs(distribution, split):
    """(s, y) in the definition's ±1 and 0, from what the split says of itself."""
    y = 2 * split.labels - 1
    return torch.where(split.attributes["strong"] == 1, y, 0 if distribution.otherwise == "absent" else -y), y


def places(split, patch):
    """(N, P) where a patch (N, d) stands, exactly."""
    return (split.inputs == patch[:, None]).all(-1)


def near(count, draws, probability):
    """Within five standard deviations of a binomial."""
    return abs(count - draws * probability) <= 5 * math.sqrt(draws * probability * (1 - probability)) + 1e-9


def test_every_example_holds_both_features_exactly_and_noise(distribution):
    split = distribution.sample(N, seed=1)
    (s, y), (v_strong, v_weak) = signs(distribution, split), distribution.directions(1)
    strong = places(split, distribution.strong * s[:, None] * v_strong)
    weak = places(split, distribution.weak * y[:, None] * v_weak)
    assert bool((strong.sum(1) == 1).all())
    assert bool((weak.sum(1) == 1).all())
    noise = split.inputs[~(strong | weak)].double()
    assert noise.shape == (N * (distribution.patches - 2), distribution.dimension)
    assert noise.std().item() == pytest.approx(distribution.noise, rel=5 / math.sqrt(2 * noise.numel()))
    assert abs(noise.mean().item()) < 5 * distribution.noise / math.sqrt(noise.numel())
    for place in range(distribution.patches):
        assert near(strong[:, place].sum(), N, 1 / distribution.patches)
        assert near(weak[:, place].sum(), N, 1 / distribution.patches)


def test_labels_and_agreement_have_their_frequencies_and_give_the_groups(distribution):
    split = distribution.sample(N, seed=2)
    agrees = split.attributes["strong"]
    assert near(split.labels.sum(), N, 0.5)
    for label in (0, 1):
        members = split.labels == label
        assert near(agrees[members].sum(), int(members.sum()), distribution.alpha)
    assert torch.equal(split.groups, 2 * split.labels + 1 - agrees)


def test_directions_are_an_orthonormal_pair_and_the_seed_decides_everything(distribution):
    state = torch.random.get_rng_state()
    pair = torch.stack(distribution.directions(3)).double()
    torch.testing.assert_close(pair @ pair.T, torch.eye(2, dtype=torch.float64), atol=1e-6, rtol=0)
    assert torch.equal(pair, torch.stack(distribution.directions(3)).double())
    assert not torch.equal(pair, torch.stack(distribution.directions(4)).double())
    first, again, other = (distribution.sample(50, seed) for seed in (5, 5, 6))
    assert torch.equal(first.inputs, again.inputs)
    assert torch.equal(first.labels, again.labels)
    assert not torch.equal(first.inputs, other.inputs)
    assert torch.equal(torch.random.get_rng_state(), state)
    for alpha in (0.0, 1.0):
        assert PatchDistribution(alpha=alpha).sample(200).attributes["strong"].unique().tolist() == [int(alpha)]


def test_splits_are_independent_draws_with_the_same_directions(distribution):
    train, test = distribution.sample(N, 7, "train"), distribution.sample(N, 7, "test")
    assert near((train.labels == test.labels).sum(), N, 0.5)
    together = distribution.alpha**2 + (1 - distribution.alpha) ** 2
    assert near((train.attributes["strong"] == test.attributes["strong"]).sum(), N, together)
    correlation = torch.corrcoef(torch.stack([train.inputs.flatten(), test.inputs.flatten()]))[0, 1]
    assert abs(float(correlation)) < 5 / math.sqrt(N)  # the features' signs are the slowest to average out
    weak = distribution.weak * signs(distribution, test)[1][:, None] * distribution.directions(7)[1]
    assert bool(places(test, weak).any(1).all())


def test_alignment_is_the_largest_inner_product():
    filters, v, w = (torch.randn(size, dtype=torch.float64) for size in ((7, 5), (5,), (5,)))
    by_hand = [max(sum(float(a * b) for a, b in zip(row, u, strict=True)) for row in filters) for u in (v, w)]
    assert alignment(filters, v, w) == pytest.approx(by_hand, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "features", "otherwise"),
    [("patches", ("easy", "difficult"), "absent"), ("spurious-patches", ("spurious", "core"), "opposite")],
)
def test_the_named_sets_have_three_splits_and_observe_alignments(name, features, otherwise):
    data = load(name, n=80, seed=8)
    assert [len(split) for split in data.splits.values()] == [80, 20, 80]
    assert data.group_names[1] == f"y=-1, {features[0]} {otherwise}"
    assert data.options["n"] == 80
    model = CubicCNN(50)
    expected = alignment(model.filters, *PatchDistribution(otherwise=otherwise).directions(8))
    assert data.observe(model) == dict(zip([f"alignment_{f}" for f in features], expected, strict=True))
    assert data.observe(torch.nn.Linear(3, 2)) == {}
    assert load(name, n=80, seed=8).fingerprint() == data.fingerprint() != load(name, n=80, seed=9).fingerprint()
