"""Optimizers by name."""

from __future__ import annotations

import torch
from torch import nn

from evenly.optim.registry import builder


def test_sam_by_name_passes_the_settings_to_its_base():
    opt = builder("sam", lr=0.3, momentum=0.8, weight_decay=0.01, rho=0.2)([nn.Parameter(torch.zeros(1))])
    group = opt.param_groups[0]
    assert (group["lr"], group["momentum"], group["weight_decay"], group["rho"]) == (0.3, 0.8, 0.01, 0.2)
