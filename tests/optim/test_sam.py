"""SAM against its formula written out; parameter groups, zeros and extreme sizes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from evenly.optim import ASAM, SAM


def sam_eps(w, g, settings):
    norm = sum(d.square().sum() for d in g.values()).sqrt()
    return {name: settings[name]["rho"] * g[name] / norm for name in w}


@pytest.mark.parametrize("seed", range(50))
def test_equals_the_written_formula(draw_case, seed):
    case = draw_case(seed, rho=10 ** (-2 + seed % 5 / 2))
    w, losses = case.by_hand(sam_eps)
    returned = case.train(SAM(case.make_base(), rho=case.defaults["rho"]))
    assert case.worst_difference(w) < 1e-12
    assert returned == pytest.approx(losses, abs=1e-12)


def ascent(opt, params):
    before = [p.detach().clone() for p in params]
    opt.ascend()
    eps = [p.detach() - b for p, b in zip(params, before, strict=True)]
    opt.restore()
    return eps


def test_weight_decay_does_not_enter_the_perturbation():
    steps = []
    for decay in (0.0, 10.0):
        p = nn.Parameter(torch.tensor([3.0, 4.0], dtype=torch.float64))
        p.grad = torch.tensor([0.0, -2.0], dtype=torch.float64)
        steps += ascent(SAM(torch.optim.SGD([p], lr=0.1, weight_decay=decay), rho=0.5), [p])
    assert torch.equal(steps[0], steps[1])
    assert steps[0].tolist() == [0.0, -0.5]


def test_each_group_has_its_rho_and_all_share_the_norm():
    a, b = (nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in range(2))
    opt = SAM(torch.optim.SGD([{"params": [a]}, {"params": [b], "rho": 10.0}], lr=0.1), rho=1.0)
    a.grad, b.grad = torch.full_like(a, 3.0), torch.full_like(b, 4.0)
    assert [e.item() for e in ascent(opt, [a, b])] == pytest.approx([0.6, 8.0], rel=1e-15)
    opt.param_groups[0]["rho"] = torch.tensor(2.0)  # a schedule may hold it in a tensor
    assert ascent(opt, [a])[0].item() == pytest.approx(1.2, rel=1e-15)
    opt.param_groups[0]["rho"] = 0.0  # and may end at 0
    assert ascent(opt, [a])[0].item() == 0.0


def test_a_base_that_maximizes_is_perturbed_the_other_way():
    p = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    p.grad = torch.tensor([3.0, 4.0], dtype=torch.float64)
    opt = SAM(torch.optim.SGD([p], lr=0.1, maximize=True), rho=5.0)
    assert ascent(opt, [p])[0].tolist() == [-3.0, -4.0]


@pytest.mark.parametrize("gradient", [0.0, 1.0])
@pytest.mark.parametrize("rho", [0.0, 0.05])  # a schedule may begin with rho 0
@pytest.mark.parametrize("method", [SAM, ASAM])
def test_a_zero_gradient_or_rho_is_no_perturbation(method, rho, gradient, closure_of):
    w, seen = nn.Parameter(torch.ones(3)), []
    opt = method(torch.optim.SGD([w], lr=0.1))
    opt.param_groups[0]["rho"] = rho

    def loss():
        seen.append(w.detach().clone())
        return gradient * w.sum()

    opt.step(closure_of(opt, loss))
    assert torch.equal(*seen) == (0.0 in (gradient, rho))
    torch.testing.assert_close(w.detach(), torch.full((3,), 1 - 0.1 * gradient))


@pytest.mark.parametrize("size", [1e-40, 1e-30, 1e-12, 1.0, 1e30])
def test_a_gradient_of_any_size_gives_a_perturbation_of_length_rho(size):
    p = nn.Parameter(torch.zeros(100))
    p.grad = torch.full((100,), size)
    assert ascent(SAM(torch.optim.SGD([p], lr=0.1), rho=0.5), [p])[0].norm().item() == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_whose_norm_does_not_fit(dtype):
    p = nn.Parameter(torch.zeros(10_000, dtype=dtype))
    p.grad = torch.full((10_000,), 6e4, dtype=dtype)  # the norm is 6e6
    (eps,) = ascent(SAM(torch.optim.SGD([p], lr=0.1), rho=1.0), [p])
    assert eps.float().norm().item() == pytest.approx(1, rel=0.01)


def test_parameters_of_several_dtypes_share_one_norm():
    params = [nn.Parameter(torch.zeros(1, dtype=t)) for t in (torch.float32, torch.float64, torch.bfloat16)]
    for p, value in zip(params, (2.0, 3.0, 6.0), strict=True):
        p.grad = torch.full_like(p, value)
    eps = ascent(SAM(torch.optim.SGD(params, lr=0.1), rho=7.0), params)
    assert [e.item() for e in eps] == [2.0, 3.0, 6.0]


def test_frozen_and_unused_parameters_are_left_out(closure_of):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1)).double()
    model[0].requires_grad_(False)
    unused = nn.Parameter(torch.ones(2, dtype=torch.float64))
    opt = SAM(torch.optim.SGD([*model.parameters(), unused], lr=0.1))
    before = [p.detach().clone() for p in (*model[0].parameters(), unused)]
    x = torch.randn(4, 3).double()
    moving = [p.detach().clone() for p in model[2].parameters()]
    opt.step(closure_of(opt, lambda: model(x).square().sum()))
    assert not any(torch.equal(p, b) for p, b in zip(model[2].parameters(), moving, strict=True))
    assert all(torch.equal(p, b) for p, b in zip((*model[0].parameters(), unused), before, strict=True))


def test_gradients_accumulated_in_the_closure_equal_the_whole_batch(draw_case):
    whole, parts = draw_case(3, rho=0.3), draw_case(3, rho=0.3)
    opt = SAM(parts.make_base(), rho=0.3)
    whole.train(SAM(whole.make_base(), rho=0.3))
    for x, y in parts.batches:

        def closure(x=x, y=y):
            opt.zero_grad()
            total = 0.0
            for i in range(len(x)):
                loss = parts.loss(parts.model(x[i : i + 1]), y[i : i + 1]) / len(x)
                loss.backward()
                total += loss.item()
            return total

        assert isinstance(opt.step(closure), float)
    assert whole.worst_difference(dict(parts.model.named_parameters())) < 1e-12
