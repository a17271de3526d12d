"""The spiral data against its definition: the line, the arm point by point, three kinds of noise, balanced sets."""

import math

import pytest
import torch
from attrs import asdict
from torch import nn

from evenly.data.spiral import SpiralDistribution, draw, probing_errors, spiral

N = 4000


def parts(distribution, seed=1, count=N, split="train"):
    """Labels ±1 (N,), easy and hard feature (N, 2), in float64."""
    (x, y), _ = draw(distribution, [seed], n=count, held_out=1, dtype=torch.float64)
    if split == "test":
        _, (x, y) = draw(distribution, [seed], n=1, held_out=count, dtype=torch.float64)
    return y[0], x[0, :, :2], x[0, :, 2:]


def uniform(values):
    """Kolmogorov-Smirnov against U(0, 1), at a level of about 1e-3."""
    ranks = torch.arange(1, len(values) + 1, dtype=values.dtype) / len(values)
    gap = (values.sort().values - ranks).abs().max()
    return bool((values >= 0).all() and (values <= 1).all() and gap < 1.95 / math.sqrt(len(values)))


def near(count, draws, probability):
    """Within five standard deviations of a binomial."""
    return abs(float(count) - draws * probability) <= 5 * math.sqrt(draws * probability * (1 - probability)) + 1e-9


def test_the_easy_feature_lies_on_the_label_s_half_of_a_line():
    y, easy, _ = parts(SpiralDistribution(a_easy=3.0))
    assert torch.equal(easy[:, 0], easy[:, 1])
    assert uniform(y * easy[:, 0] / 3.0)
    assert near((y > 0).sum(), N, 0.5)


@pytest.mark.parametrize(("complexity", "a_hard"), [(315.0, 0.25), (90.0, 1.5)])
def test_the_hard_feature_lies_on_an_arm_and_its_antipode(complexity, a_hard):
    """A spiral of nearly no angle is a point, and leaves the uniform noise: what it leaves of another is the arm."""
    y, _, hard = parts(SpiralDistribution(complexity=complexity, a_hard=a_hard))
    _, _, point = parts(SpiralDistribution(complexity=1e-9, a_hard=1.0))
    noise = y[:, None] * point
    assert uniform(2 * noise[:, 0])
    assert uniform(2 * noise[:, 1])
    arm = y[:, None] * hard / a_hard - noise
    r = arm.norm(dim=1)
    torch.testing.assert_close(arm, torch.stack([-r * torch.cos(r), r * torch.sin(r)], 1), atol=1e-9, rtol=0)
    assert uniform((r / math.radians(complexity)) ** 2)
    assert abs(torch.corrcoef(torch.stack([r, noise[:, 0], noise[:, 1], y]))[0, 1:]).max() < 5 / math.sqrt(N)


def test_the_features_are_independent_given_the_label():
    y, easy, hard = parts(SpiralDistribution())
    pairs = torch.stack([y * easy[:, 0], *(y[:, None] * hard).T])
    assert torch.corrcoef(pairs)[0, 1:].abs().max() < 5 / math.sqrt(N)


def test_the_arms_do_not_meet_at_315_degrees():
    """The nearest of 4,000 other points has the same label."""
    (y, _, hard), (y_test, _, hard_test) = parts(SpiralDistribution(), 1), parts(SpiralDistribution(), 2, 1000)
    nearest = torch.cdist(hard_test, hard).argmin(1)
    assert int((y[nearest] != y_test).sum()) <= 1


@pytest.mark.parametrize("noise_on", ["both", "hard"])
def test_label_noise_turns_features_and_leaves_labels(noise_on):
    distribution = SpiralDistribution(label_noise=0.1, noise_on=noise_on)
    (y, *clean), (y_noisy, *noisy) = parts(distribution.clean), parts(distribution)
    assert torch.equal(y, y_noisy)
    turned = []
    for before, after in zip(clean, noisy, strict=True):
        flipped = (after == -before).all(1)
        assert bool((flipped | (after == before).all(1)).all())
        turned.append(flipped)
    assert near(turned[0].sum(), N, 0.1 if noise_on == "both" else 0)
    assert near(turned[1].sum(), N, 0.1)
    assert near((turned[0] & turned[1]).sum(), N, 0.01 if noise_on == "both" else 0)
    split = distribution.sample(N, 1)
    for name, flipped in zip(("easy", "hard"), turned, strict=True):
        assert torch.equal(split.attributes[name] != split.labels, flipped)


@pytest.mark.parametrize("noise_on", ["both", "hard"])
def test_dropout_sets_features_to_zero(noise_on):
    distribution = SpiralDistribution(dropout=0.4, noise_on=noise_on)
    (_, *clean), (_, *noisy) = parts(distribution.clean), parts(distribution)
    for k, (before, after) in enumerate(zip(clean, noisy, strict=True)):
        gone = (after == 0).all(1)
        assert torch.equal(after[~gone], before[~gone])
        assert near(gone.sum(), N, 0.4 if noise_on == "both" or k == 1 else 0)
        split = distribution.sample(N, 1)
        assert torch.equal(split.attributes[("easy", "hard")[k]] == 2, gone)
        if k == 0:
            assert torch.equal(split.groups % 2 == 1, gone)


@pytest.mark.parametrize("noise_on", ["both", "hard"])
def test_gaussian_noise_is_added_last(noise_on):
    """After scale, sign and dropout (eq. 45)."""
    distribution = SpiralDistribution(gaussian_noise=0.7, label_noise=0.1, dropout=0.2, noise_on=noise_on)
    before = parts(SpiralDistribution(label_noise=0.1, dropout=0.2, noise_on=noise_on))
    added = torch.cat([a - b for a, b in zip(parts(distribution)[1:], before[1:], strict=True)], 1)
    if noise_on == "hard":
        assert bool((added[:, :2] == 0).all())
        added = added[:, 2:]
    assert added.std(0).sub(0.7).abs().max() < 5 * 0.7 / math.sqrt(2 * N)
    assert added.mean(0).abs().max() < 5 * 0.7 / math.sqrt(N)
    normal = torch.distributions.Normal(0.0, 0.7)
    assert all(uniform(normal.cdf(column)) for column in added.T)
    assert torch.corrcoef(added.T).triu(1).abs().max() < 5 / math.sqrt(N)


def test_held_out_points_are_free_of_noise():
    distribution = SpiralDistribution(label_noise=0.3, gaussian_noise=1.0, dropout=0.3)
    for noisy, clean in zip(parts(distribution, split="test"), parts(distribution.clean, split="test"), strict=True):
        assert torch.equal(noisy, clean)
    data = spiral(label_noise=0.3, gaussian_noise=1.0, dropout=0.3)
    assert torch.equal(data.test.inputs, spiral().test.inputs)
    assert torch.equal(data.validation.inputs, spiral().validation.inputs)
    assert not torch.equal(data.train.inputs, spiral().train.inputs)


def test_balanced_sets_part_the_features_and_label_by_the_hard_one():
    split, plain = SpiralDistribution().sample(N, 3, balanced=True), SpiralDistribution().sample(N, 3)
    easy, hard = split.attributes["easy"], split.attributes["hard"]
    assert torch.equal(hard, split.labels)
    assert all(near(((easy == a) & (hard == b)).sum(), N, 0.25) for a in (0, 1) for b in (0, 1))
    assert torch.equal((split.inputs[:, 0] > 0).long(), easy)
    assert torch.equal(split.inputs[:, 2:], plain.inputs[:, 2:])
    assert torch.equal(split.groups, 2 * hard + (easy != hard).long())
    assert plain.groups.unique().tolist() == [0, 2]


def test_draws_are_stacked_by_run_and_decided_by_seed_and_split():
    distributions = [SpiralDistribution(), SpiralDistribution(complexity=90), SpiralDistribution()]
    (x, y), (x_test, y_test) = draw(distributions, [4, 4, 5], n=50, held_out=70)
    assert [tuple(t.shape) for t in (x, y, x_test, y_test)] == [(3, 50, 4), (3, 50), (3, 70, 4), (3, 70)]
    assert x.dtype == y.dtype == torch.float32
    sample = SpiralDistribution(complexity=90).sample(50, 4)
    assert torch.equal(sample.inputs, x[1])
    assert torch.equal(2 * sample.labels - 1, y[1].long())
    assert torch.equal(x[0, :, :2], x[1, :, :2])
    assert not torch.equal(x[0, :, 2:], x[1, :, 2:])
    assert not torch.equal(x[0], x[2])
    train, test = (SpiralDistribution().sample(50, 4, split) for split in ("train", "test"))
    assert float(torch.cdist(train.inputs, test.inputs).min()) > 0
    assert not torch.equal(train.labels, test.labels)


def test_the_data_set_meets_the_contract():
    state = torch.get_rng_state()
    data = spiral(n=80, complexity=200.0, seed=3)
    assert torch.equal(state, torch.get_rng_state())
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 80, "validation": 1000, "test": 1000}
    assert data.options == {"n": 80, "seed": 3, **asdict(SpiralDistribution(complexity=200.0))}
    assert data.group_count == len(data.group_names or ()) == 4
    assert data.train.groups.unique().tolist() == [0, 2]
    assert data.test.groups.unique().tolist() == [0, 1, 2, 3]
    assert data.fingerprint() == spiral(n=80, complexity=200.0, seed=3).fingerprint()
    assert data.fingerprint() != spiral(n=80, complexity=200.0, seed=4).fingerprint()


class Reads(nn.Module):
    """Answers by the sign of the first coordinate: right on the easy feature, always 0 without it."""

    def __init__(self, logits):
        super().__init__()
        self.scale, self.logits, self.norm = nn.Parameter(torch.ones(())), logits, nn.BatchNorm1d(4)

    def forward(self, x):
        self.norm(x)
        z = self.scale * x[:, 0] - 1e-9
        return z if self.logits == 0 else z[:, None] if self.logits == 1 else torch.stack([-z, z], 1)


@pytest.mark.parametrize("logits", [0, 1, 2])
def test_probing_errors_ask_for_one_feature_at_a_time_and_leave_the_model_alone(logits):
    split, model = SpiralDistribution().sample(1000, 5, balanced=True), Reads(logits)
    running = model.norm.running_mean.clone()
    errors = probing_errors(model, split)
    assert errors["easy_probing_error"] == 0
    assert errors["hard_probing_error"] == pytest.approx(split.labels.double().mean().item())
    assert model.training
    assert torch.equal(model.norm.running_mean, running)
    data = spiral(seed=5)
    assert data.observe is not None
    assert data.observe(model) == probing_errors(model, data.validation)


def test_probing_errors_read_a_representation_where_there_is_one():
    model = Reads(0)
    model.representation = lambda x: torch.stack([-x[:, 0], 1 + 0 * x[:, 2]], 1)
    split = SpiralDistribution().sample(500, 5, balanced=True)
    errors = probing_errors(model, split)
    assert errors["easy_probing_error"] == 1
    assert errors["hard_probing_error"] == pytest.approx(1 - split.labels.double().mean().item())


def test_refusals(refused):
    refused("^n must be at least 1, got 0 for the train set$", spiral, n=0)
    for distributions, seeds in (([SpiralDistribution()] * 2, [0]), (SpiralDistribution(), [])):
        refused(r"distributions for \d seeds; give one distribution, or one for each", draw, distributions, seeds)


def test_what_is_said_of_the_data_is_true_of_its_noise():
    assert "each of the two features predicts the class. In validation" in spiral(noise_on="hard").about
    for noise in ("label_noise", "dropout", "gaussian_noise"):
        assert "predicts the class, but for the noise on each. In validation" in spiral(**{noise: 0.4}).about
        assert "class, but for the noise on the spiral. In" in spiral(**{noise: 0.4}, noise_on="hard").about
