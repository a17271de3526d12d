"""The card against matrices written out, and what it says of them."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from evenly import EvenlyError
from evenly.diagnose.stability import StabilityCard, judge, stability_card
from evenly.theory.stability import Hessians, Minimum, mean_square_growth


def linear_problem(n: int = 12, p: int = 4) -> tuple[nn.Linear, torch.Tensor, torch.Tensor]:
    """A linear model that fits its targets: H_i = x_i x_i^T exactly, and the loss is 0."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(n, p, generator=draw, dtype=torch.float64)
    model = nn.Linear(p, 1, bias=False, dtype=torch.float64)
    return model, x, model(x).detach()[:, 0]


def brute_force_lr(hessians: np.ndarray, B: int) -> float:
    """The lr at which E[J (x) J] has the spectral radius 1 on the range, by bisection on the p^2 x p^2 matrix."""
    n, p, _ = hessians.shape
    H = hessians.mean(0)
    noise = (1 / B - 1 / n) / n * sum(np.kron(h, h) for h in hessians)

    def radius(lr: float) -> float:
        J = np.eye(p) - lr * H
        return float(np.abs(np.linalg.eigvals(np.kron(J, J) + lr**2 * noise)).max())

    low, high = 0.0, 2 / np.linalg.eigvalsh(H)[-1]
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if radius(middle) < 1 else (low, middle)
    return low


@pytest.mark.parametrize("batch_size", [1, 3, 12])
def test_a_linear_model_is_judged_exactly(batch_size: int) -> None:
    model, x, y = linear_problem()
    card = stability_card(model, "squared", (x, y + 0.1), lr=0.05, batch_size=batch_size, rho=0.1)
    limit = brute_force_lr(np.stack([np.outer(row, row) for row in x.numpy()]), batch_size)
    assert card.lrs.exact
    assert card.lrs.stable == pytest.approx(limit, rel=1e-8)
    assert card.sgd.margin == pytest.approx(limit / 0.05 if limit > 0.05 else 0.05 / limit, rel=1e-8)
    assert card.loss == pytest.approx(0.005)
    gradient = (0.1 * x).mean(0).norm().item()
    assert card.gradient_norm == pytest.approx(gradient)
    assert card.ascent == pytest.approx(0.1 / gradient)
    alone = judge(Hessians.rank_one(x), lr=0.05, batch_size=batch_size, rho=0.1 / gradient)
    assert card.sam is not None
    assert alone.sam is not None
    assert card.sam.margin == pytest.approx(alone.sam.margin)
    assert card.rhos.unstable == pytest.approx(gradient * alone.rhos.unstable, rel=1e-6)


def test_more_parameters_than_rows_and_several_outputs() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 30), nn.Tanh(), nn.Linear(30, 3)).double()
    x, y = torch.randn(8, 5, dtype=torch.float64), torch.arange(8) % 3
    card = stability_card(model, "cross-entropy", (x, y), lr=0.1, batch_size=2)
    params = dict(model.named_parameters())
    rows = []
    for sample in x:
        jacobian = torch.func.jacrev(lambda w, s=sample: torch.func.functional_call(model, w, s[None])[0])(params)
        J = torch.cat([part.reshape(3, -1) for part in jacobian.values()], 1)
        q = model(sample[None])[0].softmax(0)
        rows.append((J.T @ (torch.diag(q) - torch.outer(q, q)) @ J).detach())
    hessians = Hessians.dense(torch.stack(rows))
    growth = mean_square_growth(hessians, card.lrs.unstable, 2)
    assert card.lrs.exact
    assert growth == pytest.approx(1.0, abs=1e-6)


def test_a_draw_of_the_examples_stands_for_all() -> None:
    model, x, y = linear_problem(n=60)
    whole = stability_card(model, "squared", (x, y + 1), lr=0.01, batch_size=5)
    part = stability_card(model, "squared", (x, y + 1), lr=0.01, batch_size=5, samples=30, seed=1)
    assert (part.examples, part.minimum.n) == (30, 60)
    assert not part.lrs.exact
    assert isinstance(part.judged, Minimum)
    chosen = torch.randperm(60, generator=torch.Generator().manual_seed(1))[:30]
    drawn = stability_card(model, "squared", (x[chosen], y[chosen] + 1), lr=0.01, batch_size=5)
    assert part.minimum.sigma == pytest.approx(2 * drawn.minimum.sigma)
    assert part.minimum.smallest == pytest.approx(drawn.minimum.smallest)
    assert 0 < part.minimum.smallest < part.minimum.largest
    assert part.gradient_norm == pytest.approx(drawn.gradient_norm)
    assert part.gradient_norm != pytest.approx(whole.gradient_norm, rel=1e-3)
    assert part.lrs.stable is not None
    assert part.lrs.stable <= part.lrs.unstable
    again = stability_card(model, "squared", (x, y + 1), lr=0.01, batch_size=5, samples=30, seed=1)
    assert again.to_dict() == part.to_dict()
    assert "estimated from 30 of 60 examples" in str(part)
    assert part.to_dict()["estimated"] is True
    assert "estimated" not in str(whole)


def test_where_the_gradient_is_0_rho_is_that_of_sam_without_normalization() -> None:
    model, x, y = linear_problem()
    card = stability_card(model, "squared", (x, y), lr=0.05, batch_size=2, rho=0.1)
    assert card.gradient_norm == 0
    assert card.ascent == 0.1
    alone = judge(Hessians.rank_one(x), lr=0.05, batch_size=2)
    assert card.rhos.unstable == pytest.approx(alone.rhos.unstable, rel=1e-6)
    assert "without normalization" in str(card)


def one_eigenvalue(lr: float, rho: float | None = None) -> StabilityCard:
    """n = 2 samples of curvature 1 in one dimension: full-batch gradient descent is stable below lr 2."""
    return judge(Hessians.rank_one(np.ones((2, 1))), lr=lr, batch_size=2, rho=rho)


def test_what_it_says() -> None:
    assert one_eigenvalue(0.5).sentences() == [
        "At learning rate 0.5 and batch size 2, "
        "SGD stays at this minimum: the learning rate could be 4 times as large.",
        "SAM would leave it with rho above 3.",
    ]
    assert one_eigenvalue(0.5).stable is True
    unstable = one_eigenvalue(4.0, rho=1.0)
    assert unstable.sentences()[0].endswith("SGD leaves this minimum: the learning rate is 2 times the limit.")
    assert unstable.sentences()[1] == "SAM would leave it with any rho."
    assert "To stay, give a learning rate below 2." in unstable.sentences()
    assert unstable.stable is False
    assert dict(unstable.limits())["batch size"] == "unstable at any value"
    circling = one_eigenvalue(0.5, rho=4.0)
    assert circling.stable is True
    assert "With rho 4, SAM leaves this minimum" in str(circling)
    assert "circles at a distance of the order of rho" in str(circling)
    undecided = judge(Minimum(n=100, sigma=9.0, largest=2.0), lr=0.5, batch_size=5)
    assert undecided.stable is None
    assert "no theorem decides whether SGD stays at this minimum (the nearest comes to" in str(undecided)
    assert dict(undecided.limits())["learning rate"].startswith("stable below 0.32")
    assert ", unstable from 1" in dict(undecided.limits())["learning rate"]
    some = judge(Minimum(n=100, sigma=9.0, largest=2.0), lr=0.1, batch_size=5)
    assert some.sentences()[0].startswith(
        "At learning rate 0.1 and batch size 5, SGD stays at some minima with these numbers"
    )
    assert f"with rho above {judge(Minimum(100, 9.0, 2.0), lr=0.3, batch_size=60).rhos.unstable:.3g}" in str(
        judge(Minimum(100, 9.0, 2.0), lr=0.3, batch_size=60)
    )
    steep = judge(Minimum(n=100, sigma=9.0, largest=2.0, largest_sample=60.0), lr=3.0, batch_size=1)
    assert "SAM would leave it with any rho" in str(steep)
    assert dict(steep.limits())["rho of SAM"] == "unstable at any value"
    flat = judge(Minimum(n=10, sigma=1.0, largest=0.0), lr=0.5, batch_size=5)
    assert dict(flat.limits())["learning rate"] == "stable at any value"


def test_batches_of_one_size_may_stay_where_the_theorems_batches_do_not() -> None:
    card = judge(Hessians.rank_one(np.ones((20, 1))), lr=1.5, batch_size=1)
    assert card.sgd.answer == "diverges"
    assert card.lr_of_loaders == pytest.approx(2.0)
    assert card.stable is True
    assert "In batches of exactly that size, as loaders make them, SGD stays." in str(card)
    assert dict(card.limits())["in batches of one size"] == "stable below 2, exactly"
    assert judge(Hessians.rank_one(np.ones((20, 1))), lr=2.5, batch_size=1).stable is False


def test_json_has_no_infinities() -> None:
    card = judge(Minimum(n=10, sigma=1.0, largest=0.0), lr=0.5, batch_size=5)
    content = json.loads(json.dumps(card.to_dict(), allow_nan=False))
    assert content["lrs"]["stable"] is None
    assert math.isinf(card.lrs.unstable)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_size": 13}, "batch_size must be at most 12, the number of examples, got 13"),
        ({"lr": 0.0}, "lr must be above 0, got 0.0"),
        ({"loss": "hinge"}, "hinge"),
    ],
)
def test_what_is_refused(options: dict, said: str) -> None:
    model, x, y = linear_problem()
    settings = {"loss": "squared", "lr": 0.1, "batch_size": 2, **options}
    with pytest.raises(EvenlyError, match=said):
        stability_card(model, data=(x, y), **settings)


def test_no_curvature_is_refused() -> None:
    model, x, y = linear_problem()
    with pytest.raises(EvenlyError, match="curvature is 0"):
        stability_card(model, "squared", (0 * x, y), lr=0.1, batch_size=2)


def test_exact_hessians_of_a_loss_of_ones_own() -> None:
    model, x, y = linear_problem()
    quartic = lambda f, t: (f - t).pow(4).mean() + (f - t).square().mean()  # noqa: E731
    card = stability_card(model, quartic, (x, y), lr=0.05, batch_size=3, hessian="exact")
    twice = judge(Hessians.rank_one(2**0.5 * x), lr=0.05, batch_size=3)
    assert card.lrs.exact
    assert card.lrs.unstable == pytest.approx(twice.lrs.unstable)


def test_far_from_a_minimum_it_says_so() -> None:
    model, x, y = linear_problem()
    card = stability_card(model, "squared", (x, y + 10), lr=0.05, batch_size=12)
    assert "The mean loss is 50" in str(card)
