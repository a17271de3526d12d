"""The closed-form simulator against autograd: the module, torch's SGD, evenly's SAM."""

import pytest
import torch
import torch.nn.functional as F

import evenly
from evenly.data.patches import PatchDistribution
from evenly.errors import EvenlyError
from evenly.models.cubic import CubicCNN
from evenly.theory import cubic
from evenly.theory.growth import two_features

pytestmark = pytest.mark.usefixtures("one_thread")


def normal(*shape, seed=0, scale=1.0):
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def drawn(n=60, seed=0, **options):
    distribution = PatchDistribution(dimension=7, **options)
    split = distribution.sample(n, seed)
    return split.inputs.double(), split.labels


def boolean(n=40, seed=0):
    """Entries -1, 0, 1 in two dimensions: patches repeat within and across examples, with either sign, and vanish."""
    x = torch.randint(-1, 2, (n, 4, 2), generator=torch.Generator().manual_seed(seed)).double()
    return x, torch.arange(n) % 2


def halves(n=50):
    """A quarter of the examples share their patch, the others have one to three of their own."""
    x = normal(n, 3, 5)
    x[: n // 4, 0] = x[0, 0]
    x[5:9, 1:] = 0
    x[9:20, 2] = 0
    return x, torch.arange(n) % 2


DATA = {
    "absent": drawn,
    "opposite": lambda: drawn(otherwise="opposite", alpha=0.7),
    "two noise patches": lambda: drawn(patches=4),
    "no noise": lambda: drawn(noise=0.0, alpha=0.8),
    "nothing shared": lambda: (normal(30, 3, 5), torch.arange(30) % 2),
    "one example": lambda: (normal(1, 2, 3), torch.ones(1, dtype=torch.long)),
    "all zero": lambda: (torch.zeros(4, 2, 3, dtype=torch.float64), torch.tensor([0, 1, 1, 0])),
    "boolean": boolean,
    "halves": halves,
}


def oracle(w, x, labels):
    """Loss and gradient by autograd, from the definition."""
    w = w.clone().requires_grad_()
    y = 2.0 * labels - 1
    loss = F.softplus(-y * ((x @ w.T) ** 3).sum((1, 2)), threshold=100).mean()
    return loss.detach(), torch.autograd.grad(loss, w)[0]


@pytest.mark.parametrize("name", DATA)
def test_the_gradient_is_autograds(name):
    x, labels = DATA[name]()
    for scale in (0.01, 0.3, 1.0):
        w = normal(6, x.shape[-1], scale=scale)
        loss, gradient = cubic.gradient(w, cubic.fold(x, labels))
        expected_loss, expected = oracle(w, x, labels)
        assert abs(loss - expected_loss) <= 1e-12
        assert (gradient - expected).abs().max() <= 1e-12 * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("name", DATA)
def test_labels_of_either_kind(name):
    x, labels = DATA[name]()
    zero_one, signs = cubic.fold(x, labels), cubic.fold(x, 2 * labels - 1)
    assert all(torch.equal(getattr(zero_one, part), getattr(signs, part)) for part in ("shared", "counts", "own"))


def test_features_are_multiplied_once_and_the_noise_is_left():
    for options in ({}, {"otherwise": "opposite", "alpha": 0.7}):
        data = cubic.fold(*drawn(n=200, **options))
        assert data.shared.shape == (2, 7)
        assert data.own.shape == (1, 200, 7)
    assert cubic.fold(*drawn(n=200, patches=5)).own.shape == (3, 200, 7)


def test_without_noise_the_examples_are_a_handful():
    x, labels = drawn(n=200, noise=0.0)
    data = cubic.fold(x, labels)
    assert data.shared.shape == (2, 7)
    assert data.own.shape == (0, 2, 7)
    has_it = (x != 0).any(-1).sum(1) == 2
    assert sorted(data.weight.tolist()) == pytest.approx(
        sorted([float((~has_it).double().mean()), float(has_it.double().mean())])
    )


def test_a_patch_that_repeats_rarely_is_not_shared():
    x = normal(1000, 2, 3)
    x[:8, 0] = x[0, 0]
    assert cubic.fold(x, torch.ones(1000)).shared.shape == (0, 3)
    x[:11, 0] = x[0, 0]
    assert cubic.fold(x, torch.ones(1000)).shared.shape == (1, 3)


def test_rows_that_share_a_fingerprint_are_not_confused(monkeypatch):
    x, labels = drawn()
    w = normal(6, 7, scale=0.5)
    monkeypatch.setattr(cubic, "_fingerprint", lambda rows: torch.zeros(len(rows), dtype=torch.int64))
    _, gradient = cubic.gradient(w, cubic.fold(x, labels))
    assert (gradient - oracle(w, x, labels)[1]).abs().max() <= 1e-12


def test_fingerprints_of_different_rows_differ():
    rows = torch.cartesian_prod(*[torch.tensor([-1.0, 0.0, 0.5, 1.0])] * 6)
    assert len(cubic._fingerprint(rows).unique()) == len(rows)


def module_trained(w0, x, labels, *, lr, steps, rho=0.0, momentum=0.0):
    """Weights after every step, and the losses before it."""
    model = CubicCNN(w0.shape[1], len(w0)).double()
    model.filters.data.copy_(w0)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    if rho:
        optimizer = evenly.SAM(optimizer, rho=rho)

    def closure():
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model(x), labels.double())
        loss.backward()
        return loss

    weights, losses = [w0], []
    for _ in range(steps):
        losses.append(optimizer.step(closure).item())
        weights.append(model.filters.detach().clone())
    return torch.stack(weights), torch.tensor([*losses, closure().item()], dtype=torch.float64)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("rho", [0.0, 0.02])
def test_training_is_torchs(rho, momentum):
    """The papers' size but for N: 300 steps through the learning of the easy feature, every one compared."""
    distribution = PatchDistribution(weak=0.4)
    split = distribution.sample(100, 1)
    x, features = split.inputs.double(), torch.stack(distribution.directions(1)).double()
    w0 = normal(40, 50, scale=0.03)
    settings = {"lr": 0.1 if momentum == 0 else 0.02, "steps": 300, "rho": rho, "momentum": momentum}
    weights, losses = module_trained(w0, x, split.labels, **settings)
    ours = cubic.train(w0, cubic.fold(x, split.labels), features, **settings)
    assert ours.largest[-1, 0] > 1 > 5 * ours.largest[0, 0]
    assert (ours.weights - weights[-1]).abs().max() <= 1e-6
    assert (ours.alignments - features @ weights.mT).abs().max() <= 1e-6
    assert (ours.loss - losses).abs().max() <= 1e-6
    assert torch.equal(ours.largest, ours.alignments.amax(-1))


def test_training_is_torchs_on_any_patches():
    x, labels = halves()
    w0 = normal(4, 5, scale=0.1)
    for rho in (0.0, 0.1):
        weights, _ = module_trained(w0, x, labels, lr=0.01, steps=100, rho=rho)
        ours = cubic.train(w0, cubic.fold(x, labels), torch.eye(5)[:2], lr=0.01, steps=100, rho=rho, every=100)
        assert (ours.weights - weights[-1]).abs().max() <= 1e-6


@pytest.mark.parametrize("rho", [0.0, 0.02])
@pytest.mark.parametrize(("otherwise", "s"), [("absent", 0.0), ("opposite", -1.0)])
def test_without_noise_it_is_the_recursion_of_the_alignments(otherwise, s, rho):
    v = torch.linalg.qr(normal(7, 2)).Q.T
    y = torch.where(torch.arange(100) % 3 == 0, 1.0, -1.0).double()
    strong = torch.where(torch.arange(100) < 80, 1.0, s).double()
    x = torch.stack([(y * strong)[:, None] * v[0], 0.5 * y[:, None] * v[1]], 1)
    w0 = normal(6, 7, scale=0.05)
    ours = cubic.train(w0, cubic.fold(x, y), v, lr=0.2, steps=150, rho=rho)
    expected = two_features(
        w0 @ v[0], w0 @ v[1], beta_strong=1.0, beta_weak=0.5, alpha=0.8, lr=0.2, steps=150, rho=rho, otherwise=otherwise
    )
    assert (ours.alignments - torch.stack(expected, 1)).abs().max() <= 1e-10


def test_several_networks_at_once_are_each_by_itself():
    for name in ("absent", "two noise patches", "no noise"):
        x, labels = DATA[name]()
        data, features = cubic.fold(x, labels), torch.eye(7)[:3]
        w0 = normal(3, 5, 7, scale=0.2)
        settings = {"lr": 0.1, "steps": 40, "rho": 0.05, "momentum": 0.5, "every": 7}
        together = cubic.train(w0, data, features, **settings)
        assert together.alignments.shape == (7, 3, 3, 5)
        for s in range(3):
            alone = cubic.train(w0[s], data, features, **settings)
            assert torch.allclose(together.alignments[:, s], alone.alignments, atol=1e-12)
            assert torch.allclose(together.loss[:, s], alone.loss, atol=1e-12)
            assert torch.allclose(together.weights[s], alone.weights, atol=1e-12)
        losses, gradients = cubic.gradient(w0, data)
        for s in range(3):
            loss, gradient = oracle(w0[s], x, labels)
            assert abs(losses[s] - loss) <= 1e-12
            assert (gradients[s] - gradient).abs().max() <= 1e-12


def test_what_is_recorded():
    x, labels = drawn()
    data, w0 = cubic.fold(x, labels), normal(3, 7)
    before = w0.clone()
    path = cubic.train(w0, data, torch.eye(7)[:1], lr=0.1, steps=20, every=7)
    assert path.steps.tolist() == [0, 7, 14, 20]
    assert path.loss[0] == cubic.gradient(w0, data)[0]
    assert torch.equal(path.alignments[0, 0], w0[:, 0])
    assert torch.equal(path.alignments[-1, 0], path.weights[:, 0])
    assert torch.equal(w0, before)
    still = cubic.train(w0, data, torch.eye(7)[:1], lr=0.1, steps=0)
    assert still.steps.tolist() == [0]
    assert torch.equal(still.weights, w0)


def test_float32_and_parameters():
    x, labels = drawn()
    w0 = torch.nn.Parameter(normal(3, 7, scale=0.1).float())
    path = cubic.train(w0, cubic.fold(x.float(), labels), torch.eye(7)[:1], lr=0.1, steps=30)
    double = cubic.train(w0.double(), cubic.fold(x, labels), torch.eye(7)[:1], lr=0.1, steps=30)
    assert path.weights.dtype == torch.float32
    assert not path.weights.requires_grad
    assert torch.allclose(path.weights.double(), double.weights, atol=1e-5)


def test_sam_stays_where_there_is_no_gradient():
    data = cubic.fold(*drawn())
    path = cubic.train(torch.zeros(3, 7), data, torch.eye(7)[:1], lr=0.1, steps=3, rho=0.1)
    assert torch.equal(path.weights, torch.zeros(3, 7))


@pytest.mark.parametrize(
    ("patches", "labels", "message"),
    [
        (
            torch.zeros(0, 3, 5),
            torch.zeros(0),
            r"patches must have shape \(N, P, d\), .* got \(0, 3, 5\)",
        ),
        (torch.zeros(4, 5), torch.zeros(4), r"patches must have shape .* got \(4, 5\)"),
        (torch.zeros(4, 3, 5), torch.zeros(3), r"labels must have shape \(4,\), got \(3,\)"),
        (torch.full((4, 3, 5), torch.nan), torch.zeros(4), "patches must be finite"),
        (torch.ones(4, 3, 5, dtype=torch.long), torch.zeros(4), "patches must be finite floating-point numbers"),
        (torch.zeros(3, 3, 5), torch.tensor([0, 1, 2]), r"labels must be 0/1 or -1/\+1, got \[0, 1, 2\]"),
        (torch.zeros(3, 3, 5), torch.tensor([-1, 0, 1]), r"labels must be 0/1 or -1/\+1, got \[-1, 0, 1\]"),
    ],
)
def test_data_that_cannot_be_folded(patches, labels, message):
    with pytest.raises(EvenlyError, match=message) as caught:
        cubic.fold(patches, labels)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w0": torch.zeros(3, 6)}, r"weights must have shape \(J, 7\), or .*, got \(3, 6\)"),
        ({"w0": torch.zeros(7)}, r"weights must have shape .* got \(7,\)"),
        ({"w0": torch.zeros(0, 7)}, r"weights must have shape .* got \(0, 7\)"),
        ({"w0": torch.full((3, 7), torch.inf)}, "initial weights must be finite"),
        ({"features": torch.ones(2, 7)}, "feature 0 must be a unit vector, got norm 2.64575"),
        ({"features": torch.full((1, 7), torch.nan)}, "feature 0 must be a unit vector, got norm nan"),
        ({"features": torch.eye(6)}, r"features must have shape \(K, 7\), got \(6, 6\)"),
        ({"w0": 100 * torch.ones(3, 7), "lr": 1e30, "steps": 30}, "not finite at step [0-9]+; train with an lr below"),
    ],
)
def test_settings_that_cannot_be_trained(change, message):
    x, labels = drawn()
    settings = {"w0": torch.ones(3, 7), "features": torch.eye(7)[:1], "lr": 0.1, "steps": 3} | change
    with pytest.raises(EvenlyError, match=message) as caught:
        cubic.train(data=cubic.fold(x.float(), labels), **settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("w", [torch.zeros(3, 6), torch.full((3, 7), torch.nan)])
def test_weights_without_a_gradient(w):
    with pytest.raises(EvenlyError, match="weights"):
        cubic.gradient(w, cubic.fold(*drawn()))


@pytest.mark.parametrize("name", DATA)
def test_margins_are_the_labels_times_the_outputs(name):
    x, labels = DATA[name]()
    w, data = normal(6, x.shape[-1], scale=0.5), cubic.fold(x, labels)
    margins = (2.0 * labels - 1) * ((x @ w.T) ** 3).sum((1, 2))
    if data.own.shape[0]:  # without noise equal examples are merged
        assert torch.allclose(cubic.margins(w, data), margins, atol=1e-12)
    assert cubic.margins(w, data) @ data.weight == pytest.approx(float(margins.mean()), abs=1e-12)


def test_the_perturbed_weights_are_uphill_by_rho():
    x, labels = drawn()
    w, data = normal(6, 7, scale=0.3), cubic.fold(x, labels)
    moved = cubic.perturbed(w, data, 0.01)
    assert float((moved - w).norm()) == pytest.approx(0.01)
    assert torch.allclose((moved - w) / 0.01, oracle(w, x, labels)[1] / oracle(w, x, labels)[1].norm(), atol=1e-10)


def test_noise_alignments_are_those_of_the_noise_patches_and_projecting_leaves_the_rest():
    distribution = PatchDistribution(dimension=7)
    split, features = distribution.sample(50), torch.stack(distribution.directions()).double()
    x = split.inputs.double()
    w, data = normal(6, 7), cubic.fold(x, split.labels)
    is_noise = ((x @ features.T).abs().amax(2) < x.norm(dim=2) * (1 - 1e-6)) & (x != 0).any(2)
    noise = x[is_noise]
    assert torch.allclose(cubic.noise_alignments(w, data)[0], (noise @ w.T).abs(), atol=1e-12)
    apart = cubic.orthogonal_noise(data, features)
    assert float((apart.own @ features.T).abs().max()) < 1e-6  # the directions are float32
    assert torch.allclose(apart.own[0] + data.own[0] @ features.T @ features, data.own[0], atol=1e-12)
    assert apart.shared is data.shared


def test_a_constant_coordinate_is_a_bias():
    from evenly.papers.useful.dynamics import with_constant

    x, labels = drawn()
    model = CubicCNN(7, bias=True, init="uniform").double()
    w = torch.cat([model.filters, model.bias[:, None]], 1).detach()
    data = cubic.fold(with_constant(x), labels)
    assert torch.allclose(cubic.margins(w, data), (2.0 * labels - 1) * model(x).detach(), atol=1e-12)
    F.binary_cross_entropy_with_logits(model(x), labels.double()).backward()
    gradient = torch.cat([model.filters.grad, model.bias.grad[:, None]], 1)
    assert torch.allclose(cubic.gradient(w, data)[1], gradient, atol=1e-12)
