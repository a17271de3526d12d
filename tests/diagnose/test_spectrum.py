"""The Hessian's spectrum against dense Hessians by plain autograd, in float64."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import wasserstein_distance
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from evenly.data import Data, Split
from evenly.diagnose.mean_hessian import MeanHessian
from evenly.diagnose.spectrum import Density, hessian_spectrum
from evenly.errors import EvenlyError


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def built(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build().double().eval()


def perceptron(*widths: int, activation: type[nn.Module] = nn.Tanh) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), activation()]
        return nn.Sequential(*layers[:-1])

    return build


def conv() -> nn.Module:
    net = nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 4, 2, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.5), nn.Linear(4, 3),
    )  # fmt: skip
    net[2].running_mean.copy_(torch.linspace(-0.3, 0.3, 4))
    return net


class Attention(nn.Module):
    """Attention of torch's own kernels, which have no second derivative; one output of shape (N,)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.attend = nn.Linear(2, 4), nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        z = self.embed(x.reshape(len(x), 2, 2))
        return self.attend(z, z, z, need_weights=False)[0].square().sum((1, 2))


class Tied(nn.Module):
    """A layer used twice under two names, one frozen, one that no output depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.frozen, self.unused, self.last = (nn.Linear(4, 4) for _ in range(4))
        self.again = self.twice
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.frozen(torch.tanh(self.again(torch.tanh(self.twice(x))))))[:, :3]


def huber(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss that is not among the known ones: the mean of a batch."""
    return F.smooth_l1_loss(outputs, targets, beta=0.3)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "squared": lambda f, y: 0.5 * (f - y).square().sum(1).mean(),
    "mse": lambda f, y: (f - y).square().mean(),
    "cross-entropy": lambda f, y: (f.logsumexp(1) - f[torch.arange(len(f)), y]).mean(),
    "logistic": lambda f, y: (f.clamp(min=0) - f * y + torch.log1p(torch.exp(-f.abs()))).mean(),
}


def dense(model: nn.Module, mean_loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
    """H (p, p) over the trainable parameters, row by row."""
    weights = [w for w in model.parameters() if w.requires_grad]

    def flat(value: Tensor, **options: bool) -> Tensor:
        found = torch.autograd.grad(value, weights, materialize_grads=True, **options)
        return torch.cat([part.reshape(-1) for part in found])

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        gradient = flat(mean_loss(model(x), y), create_graph=True)
    return torch.stack([flat(each, retain_graph=True) for each in gradient])


def classes(seed: int, n: int = 40, c: int = 3) -> tuple[Tensor, Tensor]:
    return draw(seed, n, 4), torch.arange(n) % c


def regression(seed: int, n: int = 40, c: int = 1) -> tuple[Tensor, Tensor]:
    return draw(seed, n, 4), draw(seed + 1000, n, c)


def binary(seed: int, n: int = 40) -> tuple[Tensor, Tensor]:
    return draw(seed, n, 4), (draw(seed + 1000, n, 1) > 0).double()


CASES = [
    *(("cross-entropy", perceptron(4, 6, 3), classes(seed), seed) for seed in range(5)),
    *(("cross-entropy", perceptron(4, 8, 5, 3, activation=nn.GELU), classes(seed), seed) for seed in (5, 6)),
    ("cross-entropy", perceptron(4, 7, 3, activation=nn.ReLU), classes(7), 7),
    *(("squared", perceptron(4, 6, 2), regression(seed, c=2), seed) for seed in (8, 9)),
    *(("mse", perceptron(4, 9, 1, activation=nn.SiLU), regression(seed), seed) for seed in (10, 11)),
    *(("logistic", perceptron(4, 9, 1), binary(seed), seed) for seed in (12, 13)),
    *(("cross-entropy", conv, classes(seed), seed) for seed in (14, 15)),
    *(("cross-entropy", Tied, classes(seed), seed) for seed in (16, 17)),
    ("mse", Attention, regression(18), 18),
    ("squared", perceptron(4, 3), regression(19, c=3), 19),
]


@pytest.mark.parametrize(("loss", "build", "data", "seed"), CASES)
def test_networks_against_the_dense_hessian(loss, build, data, seed):
    model, (x, y) = built(build, seed), data
    h = dense(model, lambda f, t: LOSSES[loss](f.reshape(len(f), -1), t), x, y)
    exact = torch.linalg.eigvalsh(h)
    if loss == "cross-entropy" and seed < 5:
        assert float(exact[0]) < -1e-3  # a saddle
    for which, order in (("largest", -exact), ("magnitude", -exact.abs())):
        expected = exact[order.argsort(stable=True)]
        found = hessian_spectrum(
            model, loss, data, which=which, tolerance=1e-7, runs=2, batch_size=23, vectors=True, seed=seed
        )
        torch.testing.assert_close(found.eigenvalues.abs(), expected[:5].abs(), rtol=1e-6, atol=1e-10)
        torch.testing.assert_close(found.eigenvalues, expected[:5], rtol=1e-6, atol=1e-10)
        assert bool(found.converged.all())
        truly = (h @ found.vectors.T - found.vectors.T * found.eigenvalues).norm(dim=0)
        torch.testing.assert_close(found.residuals, truly, rtol=1e-3, atol=1e-11)
        torch.testing.assert_close(
            found.vectors @ found.vectors.T, torch.eye(5, dtype=torch.float64), rtol=0, atol=1e-6
        )


def test_the_default_tolerance_stops_early_and_says_how_good_it_is():
    model, data = built(perceptron(4, 12, 3)), classes(3)
    exact = torch.linalg.eigvalsh(h := dense(model, LOSSES["cross-entropy"], *data)).flip(0)
    found = hessian_spectrum(model, "cross-entropy", data, vectors=True)
    assert found.products < 40 < len(exact)
    assert bool((found.residuals <= 1e-3 * exact[0]).all())
    assert float(found.residuals.max()) > 1e-6 * exact[0]  # no more work than was asked for
    truly = (h @ found.vectors.T - found.vectors.T * found.eigenvalues).norm(dim=0)
    torch.testing.assert_close(found.residuals, truly, rtol=1e-6, atol=1e-12)
    assert bool(((found.eigenvalues - exact[:5]).abs() <= found.residuals + 1e-12).all())
    assert found.ratio(5) == pytest.approx(float(exact[0] / exact[4]), rel=1e-3)
    assert found.ratio(1) == 1
    assert "5 of 5 converged" in repr(found)


def test_what_has_not_converged_is_marked():
    model, data = built(perceptron(4, 12, 3)), classes(3)
    exact = torch.linalg.eigvalsh(dense(model, LOSSES["cross-entropy"], *data))
    found = hessian_spectrum(model, "cross-entropy", data, most_steps=13)
    assert found.products == 13
    assert found.converged.tolist()[0] is True
    assert found.converged.tolist()[-1] is False
    assert torch.equal(found.converged, found.residuals <= 1e-3 * found.eigenvalues[0])
    for value, residual in zip(found.eigenvalues, found.residuals, strict=True):
        assert float((exact - value).abs().min()) <= float(residual) + 1e-12


def test_the_density_of_all_eigenvalues():
    model, data = built(perceptron(4, 16, 3)), classes(3)
    exact = torch.linalg.eigvalsh(dense(model, LOSSES["cross-entropy"], *data))
    apart = []
    for runs in (1, 12):
        found = hessian_spectrum(model, "cross-entropy", data, runs=runs, least_steps=30)
        density = found.density
        assert float(density.weights.sum()) == pytest.approx(1)
        grid, values = density.curve(4000)
        assert float(torch.trapezoid(values, grid)) == pytest.approx(1, abs=1e-6)
        assert bool((values >= 0).all())
        apart.append(wasserstein_distance(density.nodes, exact, density.weights) / float(exact[-1]))
    nothing = wasserstein_distance([0.0], exact) / float(exact[-1])
    assert apart[0] < 0.35 * nothing
    assert apart[1] < 0.1 * nothing
    assert found.runs == 12


def test_a_density_of_one_node_and_of_a_given_width():
    one = Density(torch.tensor([3.0, 3.0], dtype=torch.float64), torch.tensor([0.5, 0.5], dtype=torch.float64))
    assert float(torch.trapezoid(*reversed(one.curve()))) == pytest.approx(1, abs=1e-6)
    zero = Density(torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64))
    assert float(torch.trapezoid(*reversed(zero.curve()))) == pytest.approx(1, abs=1e-6)
    grid, values = one.curve(width=2.0)
    expected = torch.exp(-((grid - 3) ** 2) / 8) / (2 * (2 * torch.pi) ** 0.5)
    torch.testing.assert_close(values, expected)


def many(seed: int, n: int = 640) -> tuple[Tensor, Tensor]:
    """Enough samples for a pilot, the classes apart."""
    x, y = draw(seed, n, 4), torch.arange(n) % 3
    return x + 2 * torch.eye(3, 4, dtype=torch.float64)[y], y


def zeros() -> nn.Module:
    """An output layer of zeros: every eigenvalue occurs several times."""
    net = perceptron(4, 6, 3)()
    for w in net[2].parameters():
        nn.init.zeros_(w)
    return net


@pytest.mark.parametrize("which", ["largest", "magnitude"])
@pytest.mark.parametrize("case", ["classes", "one class", "no gradient", "zeros", "train"])
def test_with_a_pilot_against_the_dense_hessian(case, which):
    model = built(zeros if case == "zeros" else conv if case == "train" else perceptron(4, 6, 3), 1)
    x, y = many(0)
    loss = "cross-entropy"
    if case == "one class":
        y = torch.zeros_like(y)
    if case == "no gradient":
        loss, y = "squared", model(x).detach()
    exact = dense(model, LOSSES[loss], x, y)
    if case == "train":
        model[6].p = 0.0
        exact = sum(dense(model.train(), LOSSES[loss], x[i], y[i]) for i in torch.arange(640).split(128)) / 5
        model.eval()
    exact = torch.linalg.eigvalsh(exact)
    exact = exact[(-exact if which == "largest" else -exact.abs()).argsort(stable=True)][:5]
    mode = "train" if case == "train" else "eval"
    found = hessian_spectrum(model, loss, (x, y), which=which, mode=mode, tolerance=1e-7, runs=2, pilot=True)
    torch.testing.assert_close(found.eigenvalues, exact, rtol=1e-6, atol=1e-10)
    assert bool(found.converged.all())
    assert found.products < found.cost <= found.products + 40 / 16


def test_the_pilots_products_are_counted_by_their_share(monkeypatch):
    model, data = built(perceptron(4, 12, 3)), many(0)
    asked: list[int] = []
    inside = MeanHessian.times
    monkeypatch.setattr(MeanHessian, "times", lambda self, v: asked.append(len(self.x)) or inside(self, v))
    found = hessian_spectrum(model, "cross-entropy", data, pilot=True)
    assert set(asked) == {640, 40}
    assert asked.count(640) == found.products
    assert sum(asked) / 640 == pytest.approx(found.cost)
    asked.clear()
    plain = hessian_spectrum(model, "cross-entropy", data)
    assert plain.cost == plain.products
    assert set(asked) == {640}
    monkeypatch.setattr("evenly.diagnose.spectrum.FEWEST", 41)
    few = hessian_spectrum(model, "cross-entropy", data, pilot=True)
    assert few.cost == few.products
    exact = torch.linalg.eigvalsh(dense(model, LOSSES["cross-entropy"], *data)).flip(0)[:5]
    torch.testing.assert_close(found.eigenvalues, exact, rtol=0, atol=1e-3 * float(exact[0]))


def test_what_is_wrong_with_a_sample_of_the_pilot_is_said_of_the_sample():
    model, (x, y) = built(perceptron(4, 6, 3)), many(0)
    x[130:] = float("nan")
    with pytest.raises(EvenlyError, match=r"the loss of samples 100 to 149 is nan; check their inputs"):
        hessian_spectrum(model, "cross-entropy", (x, y), batch_size=50, pilot=True)


def test_the_density_with_a_pilot():
    model, data = built(perceptron(4, 16, 3)), many(3)
    exact = torch.linalg.eigvalsh(dense(model, LOSSES["cross-entropy"], *data))
    nothing = wasserstein_distance([0.0], exact)
    apart = []
    for seed in range(3):
        found = hessian_spectrum(model, "cross-entropy", data, least_steps=30, seed=seed, pilot=True)
        assert found.cost > found.products
        assert float(found.density.weights.sum()) == pytest.approx(1)
        apart.append(wasserstein_distance(found.density.nodes, exact, found.density.weights) / nothing)
    assert np.mean(apart) < 0.35


@pytest.mark.parametrize("memory", [0, None, 200_000])
def test_batches_and_kept_graphs_change_nothing(memory):
    model, data = built(conv, 1), classes(5)
    exact = torch.linalg.eigvalsh(dense(model, LOSSES["cross-entropy"], *data)).flip(0)[:5]
    for size in (9, 40, 100):
        found = hessian_spectrum(model, "cross-entropy", data, tolerance=1e-8, batch_size=size, memory=memory)
        torch.testing.assert_close(found.eigenvalues, exact, rtol=1e-6, atol=1e-10)


def test_as_many_graphs_are_kept_as_memory_holds(monkeypatch):
    model, (x, y) = built(perceptron(4, 6, 3)), classes(5)
    made: list[int] = []
    inside = MeanHessian._gradient
    monkeypatch.setattr(
        MeanHessian, "_gradient", lambda self, number, batch: made.append(number) or inside(self, number, batch)
    )

    def hessian(memory: int) -> MeanHessian:
        return MeanHessian(model, ["0.weight"], "cross-entropy", x, y, batch_size=10, memory=memory, seed=0)

    each = 10 * hessian(1).bytes_per_sample
    for memory, kept in ((0, 0), (each - 1, 0), (2 * each, 2), (100 * each, 4)):
        h = hessian(memory)
        made.clear()
        v = h.random(3)
        first, second = h.times(v), h.times(v)
        assert torch.equal(first, second)
        assert len(made) == 4 + (4 - kept)


def test_the_room_of_a_graph_is_measured():
    """A layer tanh(W x) keeps at least its input and its output for each sample."""
    model = built(perceptron(4, 500, 1))
    x, y = regression(0)
    names = [name for name, _ in model.named_parameters()]
    h = MeanHessian(model, names, "mse", x, y, batch_size=10, memory=1, seed=0)
    assert 500 * 8 <= h.bytes_per_sample <= 40 * 500 * 8


def test_train_mode_is_the_loss_of_training_batch_by_batch():
    model, (x, y) = built(conv, 2), classes(6)
    model[6].p = 0.0
    model.train()
    before = {name: b.clone() for name, b in model.named_buffers()}
    h = sum(dense(model, LOSSES["cross-entropy"], x[i], y[i]) for i in torch.arange(40).split(10)) / 4
    model.load_state_dict(before, strict=False)
    model.eval()
    exact = torch.linalg.eigvalsh(h).flip(0)[:5]
    found = hessian_spectrum(model, "cross-entropy", (x, y), mode="train", tolerance=1e-8, batch_size=10)
    torch.testing.assert_close(found.eigenvalues, exact, rtol=1e-6, atol=1e-10)
    loader = DataLoader(TensorDataset(x, y), batch_size=10)
    again = hessian_spectrum(model, "cross-entropy", loader, mode="train", tolerance=1e-8)
    assert torch.equal(again.eigenvalues, found.eigenvalues)
    other = hessian_spectrum(model, "cross-entropy", (x, y), mode="train", tolerance=1e-8, batch_size=20)
    assert not torch.allclose(other.eigenvalues, found.eigenvalues, rtol=1e-3)
    assert not model.training
    for name, b in model.named_buffers():
        assert torch.equal(b, before[name])


def test_dropout_masks_are_the_seeds_and_stay():
    model, data = built(conv, 2), classes(6)
    found = [
        hessian_spectrum(model, "cross-entropy", data, mode="train", batch_size=13, memory=memory, seed=seed)
        for memory, seed in ((0, 0), (None, 0), (0, 1))
    ]
    assert torch.equal(found[0].eigenvalues, found[1].eigenvalues)
    assert bool(found[0].converged.all())  # masks that change between products would not let it
    assert not torch.allclose(found[0].eigenvalues, found[2].eigenvalues, rtol=1e-3)


@pytest.mark.parametrize("chosen", ["2", ["2.weight", "2.bias"], "tensors"])
def test_chosen_parameters(chosen):
    model, data = built(perceptron(4, 6, 3)), classes(1)
    whole = dense(model, LOSSES["cross-entropy"], *data)
    exact = torch.linalg.eigvalsh(whole[30:, 30:]).flip(0)[:5]
    parameters = list(model[2].parameters()) if chosen == "tensors" else chosen
    found = hessian_spectrum(model, "cross-entropy", data, parameters=parameters, tolerance=1e-8, vectors=True)
    torch.testing.assert_close(found.eigenvalues, exact, rtol=1e-6, atol=1e-10)
    assert {name: tuple(shape) for name, shape in found.shapes.items()} == {"2.weight": (3, 6), "2.bias": (3,)}
    assert found.vectors.shape == (5, 21)


def test_a_name_does_not_stand_for_those_it_begins():
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(12))).double()
    found = hessian_spectrum(model, "mse", (draw(0, 9, 2), draw(1, 9, 2)), top=1, parameters="1")
    assert set(found.shapes) == {"1.weight", "1.bias"}


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(), nn.CrossEntropyLoss(reduction="sum"), F.cross_entropy,
        lambda f, y: F.cross_entropy(f, y).clone(), lambda f, y: F.cross_entropy(f, y, reduction="none"),
    ],
)  # fmt: skip
def test_ways_to_give_a_loss(loss):
    model, data = built(perceptron(4, 6, 3)), classes(1)
    named = hessian_spectrum(model, "cross-entropy", data, batch_size=16)
    torch.testing.assert_close(hessian_spectrum(model, loss, data, batch_size=16).eigenvalues, named.eigenvalues)


def test_a_loss_of_ones_own_and_label_smoothing():
    model, (x, y) = built(perceptron(4, 6, 1)), regression(1)
    exact = torch.linalg.eigvalsh(dense(model, huber, x, y)).flip(0)[:5]
    for targets in (y, y[:, 0]):  # (N,) for outputs (N, 1) is not spread over pairs
        found = hessian_spectrum(model, huber, (x, targets), tolerance=1e-8, batch_size=16)
        torch.testing.assert_close(found.eigenvalues, exact, rtol=1e-6, atol=1e-10)
    module = nn.HuberLoss(reduction="sum", delta=0.3)
    h = dense(model, lambda f, t: module(f, t) / len(f), x, y)
    found = hessian_spectrum(model, module, (x, y), tolerance=1e-8, batch_size=16)
    torch.testing.assert_close(found.eigenvalues, torch.linalg.eigvalsh(h).flip(0)[:5], rtol=1e-6, atol=1e-10)
    smooth = nn.CrossEntropyLoss(label_smoothing=0.2)
    net, data = built(perceptron(4, 6, 3)), classes(1)
    found = hessian_spectrum(net, smooth, data, tolerance=1e-8)
    torch.testing.assert_close(
        found.eigenvalues, torch.linalg.eigvalsh(dense(net, smooth, *data)).flip(0)[:5], rtol=1e-6, atol=1e-10
    )


def test_a_loss_without_curvature_has_a_spectrum_of_zeros():
    model = built(perceptron(4, 1))
    found = hessian_spectrum(model, lambda f, y: f.sum(1), regression(1), top=3)
    assert found.eigenvalues.tolist() == [0, 0, 0]
    assert bool(found.converged.all())
    constant = hessian_spectrum(model, lambda f, y: y.mean() + 0 * f.detach().sum(), regression(1), top=2)
    assert constant.eigenvalues.tolist() == [0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_precisions(dtype):
    model, data = built(perceptron(4, 12, 3)), classes(1)
    exact = hessian_spectrum(model, "cross-entropy", data, tolerance=1e-8).eigenvalues
    tolerance, near = (1e-3, 1e-4) if dtype == torch.float32 else (0.1, 0.2)
    found = hessian_spectrum(model.to(dtype), "cross-entropy", data, tolerance=tolerance, vectors=True)
    torch.testing.assert_close(found.eigenvalues, exact, rtol=near, atol=near * float(exact[0]))
    assert found.eigenvalues.dtype == torch.float64
    assert found.vectors.dtype == torch.float32
    if dtype == torch.float32:
        assert bool(found.converged.all())


def expected_top(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return torch.linalg.eigvalsh(dense(model, LOSSES["cross-entropy"], x, y)).flip(0)[:5]


def test_by_class_and_by_group():
    model, (x, y) = built(perceptron(4, 6, 3)), classes(1)
    y[:4] = 2
    groups = (torch.arange(40) % 4 > 0).long()
    overlap = torch.stack([groups > 0, y > 0, torch.zeros(40, dtype=torch.bool)], 1)
    split, by_group = Split(x, y, groups), {k: groups == k for k in range(2)}
    for data, by, masks in (
        ((x, y), "class", {k: y == k for k in range(3)}),
        (split, "group", by_group),
        (Data(train=split), "group", by_group),
        (Split(x, y, overlap), "group", {k: overlap[:, k] for k in range(2)}),
    ):
        found = hessian_spectrum(model, "cross-entropy", data, by=by, tolerance=1e-8, batch_size=9)
        assert list(found) == sorted(masks)
        for number, mask in masks.items():
            expected = expected_top(model, x[mask], y[mask])
            torch.testing.assert_close(found[number].eigenvalues, expected, rtol=1e-6, atol=1e-10)
            assert found[number].samples == int(mask.sum())


def test_the_seed_decides():
    model, data = built(conv, 3), classes(2)
    first, again, other = (
        hessian_spectrum(model, "cross-entropy", data, top=3, vectors=True, seed=seed) for seed in (0, 0, 1)
    )
    assert torch.equal(first.vectors, again.vectors)
    assert not torch.equal(first.eigenvalues, other.eigenvalues)
    torch.testing.assert_close(first.eigenvalues, other.eigenvalues, rtol=1e-3, atol=0)
    assert hessian_spectrum(model, "cross-entropy", data).vectors is None


class Spoilt(nn.Module):
    """Outputs that are not a row for each sample."""

    def __init__(self, outputs: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.layer, self.outputs = nn.Linear(4, 3), outputs

    def forward(self, x: Tensor) -> object:
        return self.outputs(self.layer(x))


class Rooted(torch.autograd.Function):
    """The identity, with a derivative that cannot be differentiated."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g


X, Y = classes(1)
PARTLY_FROZEN, FROZEN = built(perceptron(4, 6, 3)), built(perceptron(4, 6, 3)).requires_grad_(False)
PARTLY_FROZEN[0].requires_grad_(False)
WITH_NAN = X.clone()
WITH_NAN[25] = float("nan")


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("top 52 exceeds the 51 parameters, and so the eigenvalues there are; ask for fewer", {"top": 52}),
        ("top 22 exceeds the 21 parameters", {"top": 22, "parameters": "2"}),
        ("most_steps 4 cannot show 5 eigenvalues; give at least 5, or a smaller top", {"most_steps": 4}),
        (r"tolerance \(option of hessian_spectrum\) must be above 0, got 0", {"tolerance": 0}),
        ("no option of hessian_spectrum is called 'tolernce'; did you mean 'tolerance'", {"tolernce": 0.1}),
        (r"no loss is called 'cross-entrpy'; did you mean 'cross-entropy'\?", {"loss": "cross-entrpy"}),
        ("loss None is no function; give 'cross-entropy'", {"loss": None}),
        ("loss NLLLoss is no function; give 'cross-entropy'", {"loss": nn.NLLLoss}),
        ("CrossEntropyLoss has weights", {"loss": nn.CrossEntropyLoss(weight=torch.ones(3))}),
        (r"the loss is of shape \(3,\); it must be the batch's mean loss", {"loss": lambda f, y: f.mean(0)}),
        ("the loss is float; it must be the batch's mean loss or one number for each", {"loss": lambda f, y: 1.0}),
        (r"the loss mean cannot take outputs \(2, 3\) and targets \(2,\) .*; give a loss", {"loss": torch.mean}),
        (
            "matrix-vector product 1 holds NaN or infinity; for a Hessian, look for a square root",
            {"loss": lambda f, y: (f - f.detach()).abs().pow(1.5).sum(1)},
        ),
        ("parameters is a int; give names", {"parameters": 3}),
        ("no parameter or module is called '3'", {"parameters": "3"}),
        (r"did you mean '2.weight'\?", {"parameters": ["2.weigth"]}),
        ("there is no parameter to differentiate Sequential by", {"parameters": []}),
        (
            r"a tensor of shape \(2,\) in parameters is none of Sequential's; take them from model.parameters\(\)",
            {"parameters": [torch.ones(2)]},
        ),
        ("parameter 0.weight requires no gradient; set requires_grad", {"model": PARTLY_FROZEN, "parameters": "0"}),
        ("there is no parameter to differentiate Sequential by; set requires_grad", {"model": FROZEN}),
        (r"Sequential cannot take samples of shape \(8,\) \(mat1 and.*\); give", {"data": (X.repeat(1, 2), Y)}),
        ("label 5 is not among the model's 3 outputs; number the labels 0..2", {"data": (X, Y + 3)}),
        (
            r"the model gives \(\) for 2 samples; it must give a tensor with a row for each",
            {"model": Spoilt(torch.sum)},
        ),
        (r"the model gives \(1, 6\) for 2 samples", {"model": Spoilt(lambda z: z.reshape(-1, 6))}),
        ("the model gives a dict for 2 samples", {"model": Spoilt(lambda z: {"logits": z})}),
        ("the loss of samples 20 to 29 is nan; check their", {"data": (WITH_NAN, Y), "batch_size": 10, "memory": 0}),
        ("the loss of samples 20 to 29 is nan; check their", {"data": (WITH_NAN, Y), "batch_size": 10}),
        (
            r"torch cannot differentiate Spoilt twice \(.*\); give parameters= that come after that layer",
            {"model": Spoilt(Rooted.apply), "loss": "squared", "data": (X, X[:, :3])},
        ),
        (r"by='group' needs a Split or Data with groups; give these, or by='class'", {"by": "group"}),
        ("by='group' needs a Split or Data with groups", {"data": Split(X, Y), "by": "group"}),
        (
            r"targets are torch.float64 of shape \(40, 1\), no classes; give integers \(N,\)",
            {"model": built(perceptron(4, 1)), "loss": "mse", "data": regression(0), "by": "class"},
        ),
    ],
)
def test_what_has_no_spectrum_is_refused(message, changes, refused):
    asked = {"model": built(perceptron(4, 6, 3)), "loss": "cross-entropy", "data": (X, Y), **changes}
    refused(message, hessian_spectrum, **{**asked, "model": asked["model"].double()})


def test_a_ratio_is_of_eigenvalues_that_were_found(refused):
    found = hessian_spectrum(built(perceptron(4, 6, 3)), "cross-entropy", (X, Y), top=2)
    for k in (0, 3):
        refused(f"eigenvalue {k} is not among the 2 found; give 1 to 2, or ask for a larger top", found.ratio, k)
