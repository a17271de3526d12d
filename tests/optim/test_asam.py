"""ASAM against its formula written out, and which parameters it takes for biases."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from evenly.optim import ASAM


def asam_eps(is_bias):
    def eps(w, g, settings):
        T = {n: torch.ones_like(p) if is_bias(n, p) else p.abs() + settings[n]["eta"] for n, p in w.items()}
        norm = sum((T[n] * g[n]).square().sum() for n in w).sqrt()
        return {n: settings[n]["rho"] * T[n] ** 2 * g[n] / norm for n in w}

    return eps


BY_NAME = asam_eps(lambda name, _: name.endswith("bias"))
BY_SHAPE = asam_eps(lambda _, p: p.ndim < 2)


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("named", [True, False])
def test_equals_the_written_formula(draw_case, seed, named):
    case = draw_case(seed, rho=10 ** (-1 + seed % 4 / 2), eta=0.01)
    w, losses = case.by_hand(BY_NAME if named else BY_SHAPE)
    opt = ASAM(case.make_base(), rho=case.defaults["rho"], eta=0.01, model=case.model if named else None)
    assert case.train(opt) == pytest.approx(losses, abs=1e-12)
    assert case.worst_difference(w) < 1e-12


def scales(model, *, by_name):
    """T_w, read off a perturbation: eps = rho T^2 g / ||T g|| with g = 1."""
    opt = ASAM(torch.optim.SGD(model.parameters(), lr=0.1), eta=0.5, model=model if by_name else None)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    opt.ascend()
    return {name: (p.detach() - before[name]).reshape(-1)[0].item() for name, p in model.named_parameters()}


@pytest.mark.parametrize("by_name", [True, False])
def test_a_normalization_weight_is_a_weight_by_name_and_a_bias_by_shape(by_name):
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).double()
    for p in model.parameters():
        nn.init.constant_(p, 1.5)  # T = 2 on weights, 1 on biases
    eps = scales(model, by_name=by_name)
    weights = {name for name, value in eps.items() if value > 2 * min(eps.values())}
    assert weights == ({"0.weight", "1.weight"} if by_name else {"0.weight"})


def test_a_recurrent_bias_is_a_bias_by_name():
    model = nn.GRU(2, 2).double()
    for p in model.parameters():
        nn.init.constant_(p, 1.5)
    eps = scales(model, by_name=True)
    assert {name for name, value in eps.items() if value > 2 * min(eps.values())} == {
        "weight_ih_l0",
        "weight_hh_l0",
    }


def test_zero_gradient_zero_perturbation():
    p = nn.Parameter(torch.ones(2, 2))
    p.grad = torch.zeros(2, 2)
    ASAM(torch.optim.SGD([p], lr=0.1)).ascend()
    assert torch.equal(p, torch.ones(2, 2))


def test_the_perturbation_does_not_see_a_rescaling_between_layers():
    """Kwon et al. Theorem 1: with eta = 0, (a W1, W2 / a) is perturbed by (a eps1, eps2 / a)."""
    losses = []
    for a in (1.0, 8.0):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5, bias=False), nn.ReLU(), nn.Linear(5, 1, bias=False)).double()
        with torch.no_grad():
            model[0].weight *= a
            model[2].weight /= a
        opt = ASAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=0.1, eta=1e-14)
        x = torch.randn(6, 4).double()
        model(x).square().mean().backward()
        opt.ascend()
        losses.append(model(x).square().mean().item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)
