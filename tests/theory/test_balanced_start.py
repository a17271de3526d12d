"""The lemmas on a balanced start and on noise, against data made by hand and autograd."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from evenly.data.patches import PatchDistribution
from evenly.theory import balanced_start
from evenly.theory.balanced_start import Parts


def sample(n: int = 200, noise: float = 0.1, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    distribution = PatchDistribution(alpha=0.7, otherwise="opposite", noise=noise)
    split, (v_s, v_c) = distribution.sample(n, seed), distribution.directions(seed)
    assert isinstance(split.inputs, Tensor)
    return split.inputs, split.labels, v_s, v_c


def test_parts_are_found_whatever_their_order() -> None:
    x, labels, v_s, v_c = sample()
    parts = Parts(x, labels, v_s, v_c)
    y = (2 * labels - 1).double()
    torch.testing.assert_close(parts.core @ v_c.double(), torch.full_like(y, 0.2), atol=1e-6, rtol=0)
    torch.testing.assert_close((parts.spurious @ v_s.double()).abs(), torch.ones_like(y), atol=1e-6, rtol=0)
    torch.testing.assert_close(parts.patches.sum(1), y[:, None] * x.double().sum(1))
    assert 0.6 < parts.agrees.double().mean() < 0.8
    assert (parts.agrees == ((x @ v_s).sum(1) * y > 0)).double().mean() > 0.95  # noise may turn a sign


def test_orthogonal_noise_has_nothing_of_the_features() -> None:
    parts = Parts(*sample(), orthogonal=True)
    assert float((parts.noise @ parts.features.T).abs().max()) < 1e-12
    assert float((parts.core @ parts.features[0]).abs().max()) < 1e-15
    assert Parts(*sample()).noise.norm() > parts.noise.norm() > 0


def test_derivatives_are_those_of_the_loss() -> None:
    x, labels, v_s, v_c = sample(40)
    parts = Parts(x, labels, v_s, v_c)
    w = torch.randn(6, 50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    f = (x.double() @ w.T).pow(3).sum((1, 2)).requires_grad_()
    loss = F.binary_cross_entropy_with_logits(f, labels.double(), reduction="sum")
    (gradient,) = torch.autograd.grad(loss, f)
    torch.testing.assert_close(parts.derivatives(w), gradient.abs(), rtol=1e-6, atol=1e-9)


def test_the_pull_by_hand_and_within_its_limit() -> None:
    m_c, m_s = torch.randn(2, 1000, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    pull = balanced_start.spurious_pull(m_c, m_s, 0.5)
    by_hand = 0.5 / (1 + torch.exp(m_c + m_s)) - 0.5 / (1 + torch.exp(m_c - m_s))
    torch.testing.assert_close(pull, by_hand)
    assert bool((pull.abs() <= balanced_start.balanced_pull_limit(m_s)).all())
    assert bool((pull * m_s <= 0).all())
    at_zero = torch.zeros(1, dtype=torch.float64)
    assert balanced_start.spurious_pull(at_zero, at_zero, 0.5).item() == 0
    assert balanced_start.spurious_pull(at_zero, at_zero, 0.98).item() == pytest.approx(0.48)
    tight = balanced_start.spurious_pull(at_zero, at_zero + 1e-3, 0.5) / balanced_start.balanced_pull_limit(
        at_zero + 1e-3
    )
    assert tight.item() == pytest.approx(-1, abs=1e-5)


def test_the_order_of_noise_is_that_of_a_normal_start() -> None:
    draw = torch.Generator().manual_seed(3)
    w, noise = 0.02 * torch.randn(40, 50, generator=draw), 0.78 / math.sqrt(50) * torch.randn(5000, 50, generator=draw)
    largest = balanced_start.largest_noise_alignment(w, noise)
    assert largest == pytest.approx(balanced_start.noise_alignment_order(0.02, 0.78, 5000, 40), rel=0.3)
    assert largest == float((w @ noise.T).abs().max())
