"""The spiral simulator at full size: 32 runs of 15 epochs, recorded after every epoch, on one core."""

from __future__ import annotations

import time

import pytest

from evenly.data.spiral import SpiralDistribution, draw
from evenly.theory import spiral

pytestmark = [pytest.mark.full_size, pytest.mark.usefixtures("one_thread")]


def test_32_runs_of_15_epochs_take_under_20_seconds_of_one_core() -> None:
    seeds = [*range(8)] * 4
    rho = [radius for radius in (0.0, 0.75, 1.0, 1.5) for _ in range(8)]
    started = time.process_time()
    spiral.train(*draw(SpiralDistribution(), seeds), seeds=seeds, rho=rho, epochs=15, every=1)
    seconds = time.process_time() - started
    print(f"\n32 runs of 15 epochs, measured after every epoch: {seconds:.1f} s of one core")
    assert seconds < 20
