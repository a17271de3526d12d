"""RandomPerturbation: one pass, at fresh Gaussian noise around the weights."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from evenly.optim import RandomPerturbation


def test_the_gradient_is_the_one_at_the_noisy_weights(closure_of):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    x = torch.randn(5, 3).double()
    opt = RandomPerturbation(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), sigma=0.3)
    hand = copy.deepcopy(model)
    base = torch.optim.SGD(hand.parameters(), lr=0.1, momentum=0.9)
    seen = []

    def loss():
        seen.append([p.detach().clone() for p in model.parameters()])
        return model(x).square().mean()

    for step in range(4):
        returned = opt.step(closure_of(opt, loss))
        assert len(seen) == step + 1
        noisy = copy.deepcopy(hand)
        for p, value in zip(noisy.parameters(), seen[-1], strict=True):
            p.data.copy_(value)
        expected = noisy(x).square().mean()
        grads = torch.autograd.grad(expected, list(noisy.parameters()))
        for p, g in zip(hand.parameters(), grads, strict=True):
            p.grad = g
        base.step()
        assert returned.item() == expected.item()
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), hand.parameters(), strict=True))


def test_the_noise_is_gaussian_of_each_groups_sigma_and_fresh():
    a, b = nn.Parameter(torch.ones(200, 100)), nn.Parameter(torch.ones(20_000, dtype=torch.float64))
    frozen = nn.Parameter(torch.ones(3), requires_grad=False)
    groups = [{"params": [a, frozen]}, {"params": [b], "sigma": 2.0}]
    opt = RandomPerturbation(torch.optim.SGD(groups, lr=0.1), sigma=0.1)
    torch.manual_seed(0)
    draws = []
    for _ in range(2):
        opt.ascend()
        draws.append((a.detach().flatten() - 1, b.detach() - 1))
        assert torch.equal(frozen, torch.ones(3))
        opt.restore()
    for noise, sigma in zip(draws[0], (0.1, 2.0), strict=True):
        assert noise.mean().item() == pytest.approx(0, abs=0.03 * sigma)
        assert noise.std().item() == pytest.approx(sigma, rel=0.03)
        within = (noise.abs() < sigma).double().mean().item()
        assert within == pytest.approx(0.6827, abs=0.015)
    for first, second in zip(*draws, strict=True):
        correlation = torch.corrcoef(torch.stack([first.double(), second.double()]))[0, 1].item()
        assert correlation == pytest.approx(0, abs=0.03)
    assert torch.corrcoef(torch.stack([draws[0][0].double(), draws[0][1]]))[0, 1].item() == pytest.approx(0, abs=0.03)


def test_the_global_generator_decides_the_noise():
    p = nn.Parameter(torch.zeros(5))
    opt = RandomPerturbation(torch.optim.SGD([p], lr=0.1), sigma=1.0)
    seen = []
    for _ in range(2):
        torch.manual_seed(7)
        opt.ascend()
        seen.append(p.detach().clone())
        opt.restore()
    assert torch.equal(*seen)


def test_every_tensor_gets_noise_of_its_own():
    params = [nn.Parameter(torch.zeros(50)) for _ in range(3)]
    RandomPerturbation(torch.optim.SGD(params, lr=0.1), sigma=0.1).ascend()
    assert not torch.equal(params[0], params[1])
    assert not torch.equal(params[1], params[2])


def test_running_statistics_move_once(closure_of):
    torch.manual_seed(0)
    model = nn.BatchNorm1d(2)
    opt = RandomPerturbation(torch.optim.SGD(model.parameters(), lr=0.1), sigma=0.1)
    x = torch.randn(6, 2)
    opt.step(closure_of(opt, lambda: model(x).square().sum()))
    assert model.num_batches_tracked.item() == 1
    assert torch.allclose(model.running_mean, 0.1 * x.mean(0))
