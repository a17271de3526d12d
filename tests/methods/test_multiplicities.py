"""Showing an example k times on the full batch is weighing its loss by k over the mean of k."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from evenly import Upsample
from evenly.data.samplers import EpochSampler
from evenly.engine import Objective


class Repeat(EpochSampler):
    """Example i is shown times[i] times."""

    def __init__(self, times: Tensor) -> None:
        super().__init__(seed=0)
        self.times = times

    def members(self) -> Tensor:
        return torch.arange(len(self.times)).repeat_interleave(self.times)


@pytest.mark.parametrize("optimizer", ["sgd", "sam", "adam"])
@pytest.mark.parametrize("kind", ["upsample", "any"])
def test_repeating_is_weighing(tiny: Any, engine: Any, linear: Any, optimizer: str, kind: str) -> None:
    data = tiny(dtype=torch.float64)
    if kind == "upsample":
        sampler: EpochSampler = Upsample([3, 8, 40], 60, factor=4)
    else:
        sampler = Repeat(torch.randint(0, 4, (60,), generator=torch.Generator().manual_seed(0)))
    k = torch.bincount(sampler.members(), minlength=60).double()
    fit = engine(optimizer, epochs=20, batch_size=None)
    repeated = fit(linear(), data, sampler=sampler)
    weighed = fit(linear(), data, objective=Objective(weights=k / k.mean()))
    plain = fit(linear(), data)
    torch.testing.assert_close(repeated.model.weight, weighed.model.weight, rtol=0, atol=1e-10)
    assert (repeated.model.weight - plain.model.weight).abs().max() > 1e-3
    assert (repeated.cost, weighed.cost) == tuple(
        passes * (2 if optimizer == "sam" else 1) * 20 for passes in (k.sum(), 60)
    )
