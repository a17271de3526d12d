"""Coherence of models against dense per-sample Gauss-Newton matrices by plain autograd, in float64."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evenly.diagnose import coherence
from evenly.diagnose.gauss_newton import GaussNewton, linear_layers
from evenly.diagnose.losses import curvature_of, softmax_root
from evenly.errors import EvenlyError
from evenly.theory.coherence import Coherence


def built(build, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build().double()


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def jacobian(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs (c,) and their derivatives (c, p) at one input, output by output."""
    weights = [w for w in model.parameters() if w.requires_grad]
    f = model(x[None]).reshape(-1)
    rows = [
        torch.cat(
            [g.reshape(-1) for g in torch.autograd.grad(each, weights, retain_graph=True, materialize_grads=True)]
        )
        for each in f
    ]
    return f.detach(), torch.stack(rows)


def second_derivative(loss: str, f: Tensor) -> Tensor:
    """d^2 loss / d f^2 by autograd on the loss written out; it does not depend on the target."""
    if loss == "logistic":  # autograd would lose small curvatures to cancellation
        return torch.diag(1 / ((1 + f.exp()) * (1 + (-f).exp()))) / len(f)
    losses = {
        "squared": lambda z: 0.5 * (z - 1).square().sum(),
        "mse": lambda z: (z - 1).square().mean(),
        "cross-entropy": lambda z: z.logsumexp(0) - z[0],
    }
    return torch.autograd.functional.hessian(losses[loss], f)


def dense(model: nn.Module, loss: str, x: Tensor) -> Tensor:
    """H_i = J^T (d^2 loss / d f^2) J, (n, p, p)."""
    found = []
    for each in x:
        f, j = jacobian(model, each)
        found.append(j.T @ second_derivative(loss, f) @ j)
    return torch.stack(found)


def by_definition(hessians: Tensor, c: float) -> dict[str, object]:
    mean = hessians.mean(0)
    m = torch.eye(len(mean), dtype=torch.float64) + c * mean
    s = torch.tensor([[torch.trace(m @ a @ m @ b).clamp(min=0).sqrt() for a in hessians] for b in hessians])
    own = torch.tensor([torch.linalg.eigvals(m @ h).real.max() for h in hessians])
    return {
        "matrix": s.double(),
        "sample_eigenvalues": own.double(),
        "largest_eigenvalue": float(torch.linalg.eigvalsh(s.double())[-1]),
        "largest_hessian_eigenvalue": float(torch.linalg.eigvals(m @ mean).real.max()),
    }


def assert_same(found: Coherence, expected: dict[str, object], tolerance: float = 1e-8) -> None:
    scale = max(1.0, float(expected["matrix"].max()))  # type: ignore[attr-defined]
    for name, value in expected.items():
        if isinstance(value, Tensor):
            torch.testing.assert_close(getattr(found, name), value, rtol=0, atol=tolerance * scale)
        else:
            assert getattr(found, name) == pytest.approx(value, rel=tolerance), name


class Residual(nn.Module):
    """A skip, a layer used twice, one frozen and one that no output depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.frozen, self.last, self.unused = (nn.Linear(4, 4) for _ in range(4))
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.frozen(x + torch.tanh(self.twice(torch.tanh(self.twice(x))))))[:, :3]


class Flat(nn.Module):
    """One output of shape (N,)."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x) @ self.w + (x @ self.w) ** 3


class Sequence(nn.Module):
    """A linear layer on every position of a sequence, then attention by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.score, self.out = nn.Linear(2, 3), nn.Linear(3, 1), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        z = self.embed(x.reshape(len(x), 2, 2))
        return self.out((z * self.score(z).softmax(1)).sum(1))


def mlp(*widths: int, activation: type[nn.Module] = nn.Tanh, **options):
    def build() -> nn.Module:
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after, **options), activation()]
        return nn.Sequential(*layers[:-1])

    return build


def conv(outputs: int, *, norm: bool = False):
    def build() -> nn.Module:
        layers = [nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2, padding=1), *([nn.BatchNorm2d(3)] if norm else [])]
        return nn.Sequential(*layers, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.5), nn.Linear(3, outputs))

    return build


class Branching(nn.Linear):
    """Control flow that vmap cannot batch."""

    def __init__(self) -> None:
        super().__init__(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.sum().item() > 0 else super().forward(-x)


NETS = [
    ("squared", mlp(4, 1)),
    ("squared", mlp(4, 6, 1)),
    ("squared", mlp(4, 6, 1, activation=nn.ReLU)),
    ("squared", mlp(4, 5, 5, 2, activation=nn.GELU)),
    ("squared", Flat),
    ("mse", mlp(4, 3, 1)),
    ("mse", mlp(4, 5, 3, activation=nn.SiLU)),
    ("mse", conv(2)),
    ("mse", Residual),
    ("mse", mlp(4, 3, 2, bias=False)),
    ("cross-entropy", mlp(4, 2)),
    ("cross-entropy", mlp(4, 6, 3)),
    ("cross-entropy", mlp(4, 5, 4, 4, 3, activation=nn.ELU)),
    ("cross-entropy", conv(3)),
    ("cross-entropy", conv(4, norm=True)),
    ("cross-entropy", Residual),
    ("cross-entropy", Sequence),
    ("cross-entropy", Branching),
    ("logistic", mlp(4, 5, 1)),
    ("logistic", Flat),
    ("logistic", conv(1)),
    ("logistic", mlp(4, 6, 3, activation=nn.ReLU)),
    ("logistic", lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU(inplace=True), nn.Linear(4, 1))),
]
TORCH = {"mse": nn.MSELoss(), "cross-entropy": nn.CrossEntropyLoss(), "logistic": nn.BCEWithLogitsLoss()}


def targets(loss: str, outputs: Tensor, seed: int) -> Tensor:
    flat = outputs.reshape(len(outputs), -1)
    if loss == "cross-entropy":
        return torch.randint(0, flat.shape[1], (len(flat),), generator=torch.Generator().manual_seed(seed))
    return torch.rand(outputs.shape, generator=torch.Generator().manual_seed(seed)).double()


@pytest.mark.parametrize("case", range(len(NETS)))
def test_models_against_dense_gauss_newton_matrices(case):
    loss, build = NETS[case]
    model, x = built(build, case).eval(), draw(case, 7, 4)
    y = targets(loss, model(x), case)
    expected = {c: by_definition(dense(model, loss, x), c) for c in (0.0, 0.4)}
    model.train()
    ways = [(0.0, {"chunk": 1}), (0.4, {"chunk": 1})]
    if build is not Branching:
        ways += [(0.0, {}), (0.4, {}), (0.4, {"memory": 4000}), (0.0, {"chunk": 3, "memory": 1})]
    for c, options in ways:
        assert_same(coherence(model, loss, (x, y), ascent=c, **options), expected[c])
    if loss in TORCH:
        assert_same(coherence(model, TORCH[loss], (x, y), chunk=1), expected[0.0])


@pytest.mark.parametrize("case", [case for case, (loss, _) in enumerate(NETS) if loss in ("squared", "mse")])
@pytest.mark.parametrize("c", [0.0, 0.3])
def test_interpolating_models_against_their_true_hessians(case, c):
    """Targets are the model's own outputs: the loss is 0, and the Gauss-Newton matrix is the Hessian."""
    loss, build = NETS[case]
    model, x = built(build, case).eval(), draw(case, 6, 4)
    y = model(x).detach()
    weights = {name: w.detach() for name, w in model.named_parameters() if w.requires_grad}
    sizes = [w.numel() for w in weights.values()]

    def loss_of(flat: Tensor, i: int) -> Tensor:
        parts = zip(weights.items(), flat.split(sizes), strict=True)
        f = torch.func.functional_call(
            model, {name: part.reshape(w.shape) for (name, w), part in parts}, (x[i : i + 1],)
        )
        return 0.5 * (f - y[i]).square().sum() if loss == "squared" else (f - y[i]).square().mean()

    start = torch.cat([w.reshape(-1) for w in weights.values()])
    true = torch.stack([torch.autograd.functional.hessian(lambda w, i=i: loss_of(w, i), start) for i in range(len(x))])
    expected = by_definition(true, c)
    assert_same(coherence(model, loss, (x, y), ascent=c), expected)
    assert_same(coherence(model, loss, (x, y), ascent=c, hessian="exact"), expected)


@pytest.mark.parametrize("loss", ["cross-entropy", "logistic", "squared", "mse"])
def test_exact_hessians_of_linear_models_are_the_gauss_newton_ones(loss):
    model, x = built(mlp(4, 2)), draw(1, 5, 4)
    y = targets(loss, model(x), 0)
    exact = coherence(model, loss, (x, y), hessian="exact", chunk=2)
    assert_same(exact, by_definition(dense(model, loss, x), 0.0))
    if loss in TORCH:
        assert_same(coherence(model, TORCH[loss], (x, y), hessian="exact"), by_definition(dense(model, loss, x), 0.0))


def test_exact_hessians_take_any_loss_and_refuse_saddles():
    model, x = built(mlp(4, 1)), draw(1, 5, 4)
    cubed = coherence(model, lambda f, y: (f - y).pow(4).sum(), (x, torch.zeros(5)), hessian="exact")
    f = model(x).detach().reshape(-1)
    scaled = x.new_tensor([math.sqrt(12) * abs(float(each)) for each in f])[:, None] * torch.cat(
        [x, torch.ones(5, 1)], 1
    )
    torch.testing.assert_close(cubed.matrix, (scaled @ scaled.T).abs())
    net = built(mlp(4, 3, 1))
    with pytest.raises(EvenlyError, match=r"Hessian \d is not positive semi-definite: its smallest eigenvalue is -"):
        coherence(net, "squared", (x, 100 * torch.ones(5, 1)), hessian="exact")


def test_the_factors_of_the_squared_losses():
    """1/2 (f - y)^2 gives |g_i . g_j|; torch's mean squared error gives 2 / outputs times as much, its sum 2 times."""
    model, x = built(mlp(4, 3, 1)), draw(2, 5, 4)
    g = torch.cat([jacobian(model, each)[1] for each in x])
    torch.testing.assert_close(coherence(model, "squared", (x, x[:, 0])).matrix, (g @ g.T).abs())
    torch.testing.assert_close(coherence(model, F.mse_loss, (x, x[:, 0])).matrix, 2 * (g @ g.T).abs())
    wide, y = built(mlp(4, 3, 4)), draw(3, 5, 4)
    squared = coherence(wide, "squared", (x, y)).matrix
    for loss, factor in ((nn.MSELoss(), 0.5), ("mse", 0.5), (nn.MSELoss(reduction="sum"), 2.0)):
        torch.testing.assert_close(coherence(wide, loss, (x, y)).matrix, factor * squared)
    label = torch.tensor([0, 1, 2, 3, 0])
    mean, total = (coherence(wide, nn.CrossEntropyLoss(reduction=r), (x, label)) for r in ("mean", "sum"))
    torch.testing.assert_close(mean.matrix, total.matrix)
    torch.testing.assert_close(mean.matrix, coherence(wide, F.cross_entropy, (x, label)).matrix)
    logistic = [coherence(wide, loss, (x, torch.ones(5, 4))).matrix for loss in (
        "logistic", F.binary_cross_entropy_with_logits, nn.BCEWithLogitsLoss(reduction="sum"))]  # fmt: skip
    torch.testing.assert_close(logistic[0], logistic[1])
    torch.testing.assert_close(4 * logistic[0], logistic[2])


@pytest.mark.parametrize(
    "logits", [[0.0, 0.0, 0.0], [3.0, -2.0, 0.5, 1.0], [900.0, 0.0, -900.0], [0.0, 60.0], [-800.0, 0.0]]
)
def test_the_root_of_the_softmax_curvature(logits):
    f = torch.tensor(logits, dtype=torch.float64)
    p = f.softmax(0)
    root = softmax_root(f)
    assert root.shape == (len(f) - 1, len(f))
    torch.testing.assert_close(root.T @ root, torch.diag(p) - torch.outer(p, p), rtol=1e-12, atol=1e-15)


def test_a_confident_logistic_model_keeps_its_small_curvature():
    model = nn.Linear(1, 1, bias=False, dtype=torch.float32)
    with torch.no_grad():
        model.weight.fill_(40.0)
    found = coherence(model, "logistic", (torch.ones(1, 1), torch.ones(1)))
    assert found.largest_eigenvalue == pytest.approx(math.exp(-40), rel=1e-5)
    assert coherence(model, "logistic", (-torch.ones(1, 1), torch.ones(1))).largest_eigenvalue > 0


class Leaking(nn.Module):
    """The first layer's weight also counts outside of the layer; the last two share theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.a, self.b = (
            nn.Linear(4, 4),
            nn.Linear(4, 4, bias=False),
            nn.Linear(4, 4),
            nn.Linear(4, 4),
        )
        self.b.weight = self.a.weight
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        z = torch.tanh(self.inner(torch.tanh(self.first(x)) * self.scale))
        return self.b(torch.tanh(self.a(z)))[:, :3] * self.first.weight.sum()


@pytest.mark.parametrize(
    ("build", "inside"),
    [
        (mlp(4, 5, 6, 3), {"0", "2", "4"}),
        (lambda: nn.Linear(4, 3), {""}),
        (Residual, {"last"}),
        (Leaking, {"inner"}),
        (conv(3, norm=True), {"7"}),
        (Sequence, {"out"}),
        (lambda: nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2), nn.Flatten()), None),
    ],
)
@pytest.mark.parametrize("memory", [2**30, 5000])
def test_linear_layers_need_no_gradients_of_their_weights(build, inside, memory):
    model, x = built(build).eval(), draw(0, 9, 4)
    factors = GaussNewton(model, curvature_of("cross-entropy"), x, torch.zeros(9, dtype=torch.long), memory=memory)
    layers = linear_layers(factors, memory)
    assert (None if layers is None else set(layers.layers)) == inside
    if layers is None:
        return
    k, rows = factors.k, factors.rows(0, 9).flatten(0, 1)
    gram = torch.full((len(rows), len(rows)), math.nan, dtype=torch.float64)
    for i, j, block in layers.products(memory):
        gram[k * i.start : k * i.stop, k * j.start : k * j.stop] = block
    torch.testing.assert_close(gram.nan_to_num(0).triu(), (rows @ rows.T).triu())
    assert not bool(gram[torch.ones_like(gram).triu().bool()].isnan().any())
    assert not any(layer._forward_hooks for layer in model.modules())


def test_a_frozen_bias_does_not_count():
    model, x = built(mlp(4, 5, 1)), draw(0, 3, 4)
    model[0].bias.requires_grad_(False)
    assert_same(coherence(model, "squared", (x, x[:, 0])), by_definition(dense(model, "squared", x), 0.0))


# ---- what data comes in, and what is left behind


def test_a_float32_model_is_near_its_float64_self():
    model, x = built(mlp(4, 16, 16, 3)), draw(0, 30, 4)
    y = torch.arange(30) % 3
    exact = coherence(model, "cross-entropy", (x, y))
    found = coherence(model.float(), "cross-entropy", (x, y))
    torch.testing.assert_close(found.matrix, exact.matrix, rtol=0, atol=1e-5 * exact.largest_sample_eigenvalue)
    assert found.measure == pytest.approx(exact.measure, rel=1e-5)


def test_token_ids_as_inputs():
    build = lambda: nn.Sequential(nn.Embedding(9, 3), nn.Flatten(), nn.Linear(12, 2))  # noqa: E731
    model, x = built(build), torch.randint(0, 9, (6, 4), generator=torch.Generator().manual_seed(0))
    expected = by_definition(dense(model, "cross-entropy", x), 0.0)
    assert_same(coherence(model, "cross-entropy", (x, torch.zeros(6, dtype=torch.long))), expected)


# ---- sketches


def test_ten_classes_by_a_sketch_within_its_bound():
    """The stated bound holds on every seed, says something, and the eigenvalues of samples and mean are exact."""
    model, x = built(mlp(12, 40, 30, 10, activation=nn.ReLU), 1), draw(4, 60, 12)
    y = torch.arange(60) % 10
    exact = coherence(model, "cross-entropy", (x, y))
    errors = []
    for seed in range(10):
        found = coherence(model, "cross-entropy", (x, y), sketch=1000, seed=seed)
        errors.append(abs(found.largest_eigenvalue - exact.largest_eigenvalue))
        assert 0 < errors[-1] <= found.error_bound
        assert found.error_bound < 0.6 * exact.largest_eigenvalue
        assert found.largest_sample_eigenvalue == pytest.approx(exact.largest_sample_eigenvalue, rel=1e-10)
        assert found.largest_hessian_eigenvalue == pytest.approx(exact.largest_hessian_eigenvalue, rel=1e-9)
    assert len(set(errors)) == 10


def test_a_sketch_sample_by_sample_is_the_same():
    model, x = built(mlp(4, 6, 3)), draw(4, 5, 4)
    batched, looped = (coherence(model, "cross-entropy", (x, Y.repeat(2)[:5]), sketch=20, chunk=c) for c in (2, 1))
    torch.testing.assert_close(looped.matrix, batched.matrix, rtol=1e-9, atol=1e-12)
    assert looped.largest_hessian_eigenvalue == pytest.approx(batched.largest_hessian_eigenvalue, rel=1e-9)


# ---- refusals

X, Y = torch.ones(3, 4), torch.tensor([0, 1, 0])


class Focal(nn.CrossEntropyLoss):
    pass


def with_nan() -> tuple[Tensor, Tensor]:
    x = X.clone()
    x[1, 2] = math.nan
    return x, Y


def frozen() -> nn.Module:
    return nn.Linear(4, 2).requires_grad_(False)


@pytest.mark.parametrize(
    ("model", "loss", "data", "options", "words"),
    [
        (nn.Linear(4, 2), nn.HuberLoss(), (X, Y), {}, "Gauss-Newton form of the loss HuberLoss is not known"),
        (nn.Linear(4, 2), Focal(), (X, Y), {}, "Gauss-Newton form of the loss Focal is not known"),
        (nn.Linear(4, 2), F.l1_loss, (X, Y), {}, "Gauss-Newton form of the loss l1_loss is not known"),
        (nn.Linear(4, 2), "hinge", (X, Y), {}, "no loss is called 'hinge'"),
        (nn.Linear(4, 2), nn.CrossEntropyLoss(weight=torch.ones(2)), (X, Y), {}, "CrossEntropyLoss has weights"),
        (nn.Linear(4, 1), nn.BCEWithLogitsLoss(pos_weight=torch.ones(1)), (X, Y), {}, "BCEWithLogitsLoss has weights"),
        (nn.Linear(4, 2), nn.MSELoss(reduction="none"), (X, X[:, :2]), {}, "MSELoss has reduction 'none'"),
        (nn.Linear(4, 1), "cross-entropy", (X, Y), {}, "cross-entropy needs two outputs or more"),
        (nn.Linear(4, 2), "cross-entropy", (X, Y + 1), {}, "label 2 is not among the model's 2 outputs"),
        (nn.Linear(4, 2), "cross-entropy", (X, Y - 100), {}, "label -100 is not among"),
        (nn.Linear(4, 2), "cross-entropy", (X, X[:, :2]), {}, "targets are torch.float32 of shape"),
        (nn.Linear(4, 2), "squared", (X, Y), {}, r"the model has 2 outputs and targets of shape \(3,\)"),
        (nn.Linear(4, 2), "logistic", (X, Y), {}, "the logistic loss takes a target for each output"),
        (nn.Linear(4, 1), "logistic", (X, 2 * Y - 1), {}, "targets reach from -1 to 1; the logistic loss takes 0"),
        (nn.Conv1d(4, 4, 1), "mse", (torch.ones(3, 4, 5), Y), {}, r"the model gives \(1, 4, 5\) for one sample"),
        (nn.LSTM(4, 2), "mse", (torch.ones(3, 5, 4), Y), {}, "the model gives tuple for one sample"),
        (frozen(), "mse", (X, Y), {}, "Linear has no trainable parameter"),
        (nn.ReLU(), "mse", (X, Y), {}, "ReLU has no trainable parameter"),
        (
            nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2, track_running_stats=False)), "cross-entropy", (X, Y), {},
            "1 normalises by the batch's own statistics",
        ),
        (nn.Linear(4, 2), "cross-entropy", with_nan(), {}, "gradient of sample 1 holds NaN"),
        (nn.Linear(4, 2), "cross-entropy", with_nan(), {"chunk": 1}, "gradient of sample 1 holds NaN"),
        (nn.Linear(4, 2), "cross-entropy", (X, Y), {"hessian": "exact", "sketch": 4}, "sketch 4 needs factors"),
        (nn.Linear(4, 2), "cross-entropy", (X, Y), {"hessian": "exact", "memory": 9}, "3 exact Hessians of 10 x 10"),
        (Branching(), "cross-entropy", (X, Y), {}, "torch.vmap cannot batch Branching .* give chunk=1"),
    ],
)  # fmt: skip
def test_what_has_no_coherence_is_refused(model, loss, data, options, words, refused):
    refused(words, coherence, model, loss, data, **options)


class Tied(nn.Module):
    """An autoencoder that uses its weight twice; a blank sample does not show the second use."""

    def __init__(self, gate: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.l, self.gate = nn.Linear(16, 5).double(), gate

    def forward(self, x: Tensor) -> Tensor:
        if self.gate:  # the weight is used once more for the samples that open the gate
            return self.l(x) + (x[:, :1] > 1.5) * self.l.weight.square().sum(1)
        return nn.functional.linear(torch.relu(self.l(x)), self.l.weight.T)


@pytest.mark.parametrize("gate", [False, True])
def test_a_weight_that_is_reused_for_some_samples_only(gate: bool) -> None:
    model = Tied(gate)
    x = torch.rand(6, 16, dtype=torch.float64)
    x[0] = 0
    x[5, 0] = 2.0 if gate else x[5, 0]
    model.l.bias.data.fill_(-0.01)
    y = torch.zeros(6, 5 if gate else 16, dtype=torch.float64)
    found, slow = coherence(model, "squared", (x, y)), coherence(model, "squared", (x, y), chunk=1)
    torch.testing.assert_close(found.matrix, slow.matrix)
    assert found.largest_hessian_eigenvalue == pytest.approx(slow.largest_hessian_eigenvalue)
