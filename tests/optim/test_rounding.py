"""Weights stored in half precision: how much of a perturbation rounding leaves, and stochastic rounding."""

from __future__ import annotations

import pickle
import warnings

import pytest
import torch
from torch import nn

from evenly.errors import EvenlyError, EvenlyWarning
from evenly.optim import ASAM, LSAM, SAM, RandomPerturbation
from evenly.optim.foreach import add_rounded


def of_gaussians(count, dtype=torch.bfloat16):
    """Weights of deviation 0.02, as a transformer's are drawn, with a Gaussian gradient."""
    draw = torch.Generator().manual_seed(0)
    param = nn.Parameter((0.02 * torch.randn(count, generator=draw)).to(dtype))
    param.grad = torch.randn(count, generator=draw).to(dtype)
    return param


def moved(opt, param):
    """By how much `ascend` moves the weights; they are put back bit for bit."""
    before = param.detach().clone()
    opt.ascend()
    shift = param.detach().float() - before.float()
    opt.restore()
    assert torch.equal(param.detach().view(torch.int16), before.view(torch.int16))
    return shift


def test_the_first_step_warns_once_with_the_share_that_is_left():
    """0.88 for a million weights, by simulation in float32."""
    param = of_gaussians(1_000_000)
    opt = SAM(torch.optim.SGD([param], lr=0.1), rho=0.05)
    with pytest.warns(EvenlyWarning) as caught:
        shift = moved(opt, param)
    eps = 0.05 * param.grad.float() / param.grad.float().norm()
    share = float((shift * eps).sum() / (eps * eps).sum())
    assert share == pytest.approx(0.88, abs=0.01)
    (warning,) = caught
    assert str(warning.message) == (
        f"{share:.0%} of the perturbation of SAM is left when rounded to weights in bfloat16; keep the weights in "
        "float32 under autocast, or give rounding='stochastic'"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        moved(opt, param)


@pytest.mark.parametrize(
    "make",
    [
        lambda param, base: SAM(base, rho=0.05, rounding="stochastic"),
        lambda param, base: ASAM(base, rho=0.05, rounding="stochastic"),
        lambda param, base: LSAM(base, [param], rho=0.05, rounding="stochastic"),
        lambda param, base: RandomPerturbation(base, sigma=5e-5, rounding="stochastic"),
    ],
)
def test_with_stochastic_rounding_the_whole_perturbation_is_left_and_nothing_is_warned_of(make):
    param = of_gaussians(1_000_000)
    opt = make(param, torch.optim.SGD([param], lr=0.1))
    torch.manual_seed(3)
    ((_, (direction,), divisor),) = opt.perturbation()
    eps = direction.detach().float() / divisor.detach().float()
    torch.manual_seed(3)  # random noise is the same again
    shift = moved(opt, param)
    assert float((shift * eps).sum() / (eps * eps).sum()) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_rounded_sum_is_one_of_its_two_neighbours_and_exact_on_average(dtype):
    torch.manual_seed(0)
    start = torch.tensor([1.0, -1.0, 0.0, -0.0, 0.5, 2.0, -3.0, 1e-3, 1.0]).to(dtype)
    shift = torch.tensor([1e-4, 1e-4, 1e-6, -1e-6, -1e-4, -3e-4, 1e-3, 2e-6, 0.0])
    draws = 40_000
    weights = start.expand(draws, -1).clone()
    add_rounded([weights], [2 * shift.expand(draws, -1)], torch.tensor(2.0), [torch.rand(weights.shape)])
    exact = start.float() + shift
    for column, value in zip(weights.float().T, exact, strict=True):
        low, high = column.min(), column.max()
        assert len(column.unique()) == 1 + int(low < high)
        assert low <= value <= high
        assert float(column.mean()) == pytest.approx(float(value), abs=5 * float(high - low) / draws**0.5 / 2 + 1e-12)


def test_in_float32_and_where_little_is_lost_nothing_is_warned_of():
    for param in (of_gaussians(1000), of_gaussians(1_000_000, torch.float32)):
        SAM(torch.optim.SGD([param], lr=0.1)).ascend()


def test_an_unknown_rounding_is_refused_and_a_known_one_is_kept():
    base = torch.optim.SGD([of_gaussians(3)], lr=0.1)
    with pytest.raises(EvenlyError, match="`rounding` must be nearest or stochastic, got 'up'"):
        SAM(base, rounding="up")
    assert pickle.loads(pickle.dumps(SAM(base, rounding="stochastic"))).rounding == "stochastic"
