"""Norms of a network's weights."""

from __future__ import annotations

from torch import nn


def l1_norm(model: nn.Module) -> float:
    """sum |w| over all parameters, shared ones once; the smaller, the sparser (Nguyen et al. 2024, Fig. 5)."""
    return sum(float(w.detach().double().abs().sum()) for w in model.parameters())
