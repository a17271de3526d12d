"""ASAM against its formula written out, and the parameters that count as biases."""

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
@pytest.mark.parametrize("model_given", [True, False])
def test_equals_the_written_formula(draw_case, seed, model_given):
    case = draw_case(seed, rho=10 ** (-1 + seed % 4 / 2), eta=0.01)
    w, losses = case.by_hand(BY_NAME if model_given else BY_SHAPE)
    opt = ASAM(case.make_base(), rho=case.defaults["rho"], eta=0.01, model=case.model if model_given else None)
    assert case.train(opt) == pytest.approx(losses, abs=1e-12)
    assert case.worst_difference(w) < 1e-12


class LayerNamedBias(nn.Module):
    """A layer whose name contains "bias": only its bias is one."""

    def __init__(self):
        super().__init__()
        self.bias_layer = nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("make", "model_given", "weights"),
    [
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), True, {"0.weight", "1.weight"}),
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), False, {"0.weight"}),
        (lambda: nn.GRU(2, 2), True, {"weight_ih_l0", "weight_hh_l0"}),
        (LayerNamedBias, True, {"bias_layer.weight"}),
        (LayerNamedBias, False, {"bias_layer.weight"}),
    ],
    ids=["norm, by name", "norm, by shape", "recurrent, by name", "layer called bias, by name", "the same, by shape"],
)
def test_biases_are_told_by_the_last_part_of_their_name_or_by_shape(make, model_given, weights):
    model, unnamed = make().double(), nn.Parameter(torch.full((2,), 1.5).double())  # unnamed: not the model's
    parameters = {**dict(model.named_parameters()), "unnamed": unnamed}
    opt = ASAM(torch.optim.SGD(parameters.values(), lr=0.1), eta=0.5, model=model if model_given else None)
    for p in parameters.values():
        nn.init.constant_(p, 1.5)  # T = 2 on weights, 1 on biases
        p.grad = torch.ones_like(p)
    opt.ascend()
    T = {name: 2.0 if name in weights else 1.0 for name in parameters}
    norm = sum(T[name] ** 2 * p.numel() for name, p in parameters.items()) ** 0.5
    for name, p in parameters.items():
        torch.testing.assert_close(p.detach(), torch.full_like(p, 1.5 + T[name] ** 2 / norm))


def test_a_rescaling_between_layers_does_not_change_the_perturbed_loss():
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
