"""Run by test_torchrun.py, in one process or in several under torchrun: trains what a file lists and saves what came of
it, with the training examples that gradients came from.

python torchrun_worker.py FOLDER JOBS.json
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

import evenly
from evenly.engine import checkpoints

EXAMPLES, BATCH, EPOCHS = 203, 20, 6
"""The last batch has 3 examples: with four processes one has none."""


def data() -> evenly.Data:
    """Two classes, four groups, far apart, of unequal sizes. The last column numbers the examples."""
    draw = torch.Generator().manual_seed(5)
    labels = torch.arange(EXAMPLES) % 2
    spurious = torch.where(torch.rand(EXAMPLES, generator=draw) < 0.12, 1 - labels, labels)

    def split(y: torch.Tensor, place: torch.Tensor) -> tuple[torch.Tensor, ...]:
        centres = torch.stack([0.6 * (2 * y - 1), 3.0 * (2 * place - 1)], 1).float()
        x = torch.cat([centres, torch.zeros(len(y), 4)], 1) + 0.05 * torch.randn(len(y), 6, generator=draw)
        return torch.cat([x, torch.arange(len(y))[:, None].float()], 1), y, 2 * y + place

    other = torch.arange(80) % 2, torch.arange(80) // 2 % 2
    return evenly.Data(train=split(labels, spurious), validation=split(*other), test=split(*other))


class Counting(nn.Module):
    """A small network that keeps, for every backward pass, the numbers of the examples with a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
        self.passes: list[list[int]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs = self.layers(x[:, :-1])
        if self.training and outputs.requires_grad:
            numbers = x[:, -1].long()
            outputs.register_hook(lambda g: self.passes.append(numbers[g.abs().sum(1) > 0].tolist()))
        return outputs


class Normalised(Counting):
    """With batch normalisation, dropout, and a layer that takes no part."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 2))
        self.unused = nn.Linear(3, 3)


class Noisy(torch.optim.SGD):
    """An optimizer that draws random numbers."""

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    p.add_(torch.randn_like(p), alpha=0.01)
        return loss


class StoppedError(Exception):
    """A run was stopped on purpose."""


def train(
    folder: Path,
    name: str,
    stop_at: float | None = None,
    sleep: float = 0.0,
    network: str = "Counting",
    **arguments: object,
) -> None:
    """Train in FOLDER/NAME and save weights and counts as NAME.RANK.pt; stop once a share of the run is done."""
    models = []
    if arguments.get("optimizer") == "noisy":
        arguments["optimizer"] = lambda params: Noisy(params, lr=0.1)

    def build() -> Counting:
        torch.manual_seed(3)
        models.append(globals()[network]())
        return models[-1]

    def progress(share: float, note: str) -> None:
        time.sleep(sleep if note else 0)
        if stop_at is not None and note and "early" not in note and share >= stop_at:
            raise StoppedError

    settings = {"epochs": EPOCHS, "batch_size": BATCH, "lr": 0.1, "precision": "float32"} | arguments
    saved: dict[str, object] = {}
    try:
        with patch("evenly.engine.batches.EVALUATION_BATCH", BATCH):  # so that there are several to share
            run = evenly.train(data(), model=build, out=folder / name, progress=progress, **settings)
        saved = {"weights": run.model.state_dict(), "cost": run.results.cost, "processes": run.results.processes}
        if run.selection is not None:
            saved["selection"] = run.selection.indices
        with torch.no_grad():
            saved["test outputs"] = run.model.eval()(data().test.inputs)
    except StoppedError:
        pass
    saved["passes"] = [each for model in models for each in model.passes]
    torch.save(saved, folder / f"{name}.{os.environ.get('RANK', '0')}.pt")


if __name__ == "__main__":
    checkpoints.CHECKPOINT_SECONDS, checkpoints.CHECKPOINT_SHARE = 0.0, float("inf")
    torch.set_num_threads(1)
    for job in json.loads(Path(sys.argv[2]).read_text()):
        train(Path(sys.argv[1]), **job)
