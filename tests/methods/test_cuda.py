"""On a GPU: methods with objectives of their own are recorded, and end where plain steps do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from evenly import Data
from evenly.engine import Fit
from evenly.methods import METHODS
from evenly.optim.registry import builder
from evenly.settings import Execution, Settings

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

METHODS_WITH_OPTIONS: dict[str, dict[str, Any]] = {
    "lff": {},
    "eiil": {"separating_epoch": 2, "step_size": 0.2},
    "reweight": {"by": "loss"},
    "dfr": {"draws": 2},
}


def network(draw: int = 0) -> nn.Module:
    torch.manual_seed(draw)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 2))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "sam"])
@pytest.mark.parametrize("method", METHODS_WITH_OPTIONS)
def test_a_recorded_run_ends_where_the_plain_one_does(
    method: str, optimizer: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evenly.engine.captured.COMPILE_STEPS", 0 if compiled else 10**9)
    draw = torch.Generator().manual_seed(1)
    y = torch.randint(2, (160,), generator=draw)
    x = torch.randint(0, 200, (160, 3, 8, 8), generator=draw, dtype=torch.uint8)
    x[torch.arange(160), y] += 40
    data = Data((x, y, 2 * y + torch.randint(2, (160,), generator=draw)))
    settings, runs = Settings(epochs=3, batch_size=32, precision="float32"), []
    for capture in (True, False):
        build = builder(optimizer, lr=0.02)
        execution = Execution(capture=capture)
        fit = Fit(settings, build, device=torch.device("cuda"), execution=execution)
        runs.append(METHODS[method](network, data, fit, **METHODS_WITH_OPTIONS[method]))
    recorded, plain = runs
    assert recorded.step.startswith("captured")
    assert plain.step == "plain: capture is off"
    assert recorded.cost == plain.cost
    for ours, theirs in zip(recorded.history, plain.history, strict=True):
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=5e-3)
    if method != "dfr":  # whose last layer is fitted to features that differ in their last digits
        for key, value in plain.model.state_dict().items():
            torch.testing.assert_close(recorded.model.state_dict()[key], value, atol=2e-3, rtol=2e-3)
