"""Run by test_ddp.py in two processes under torchrun: trains on halves of a batch, saves the result."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel

from evenly.errors import EvenlyError
from evenly.optim import SAM

RHO, LR, MOMENTUM, DECAY, STEPS = 0.5, 0.1, 0.9, 0.01, 4


def make_model(between: nn.Module | None = None) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), between or nn.Tanh(), nn.Linear(5, 2)).double()


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(8, 3, generator=generator).double(), torch.randint(2, (8,), generator=generator))
        for _ in range(STEPS)
    ]


def half(rank: int, batch: Tensor) -> Tensor:
    return batch[4 * rank : 4 * rank + 4]


def train(rank: int, model: nn.Module, overflow_in_step: int | None = None, **options: Any) -> dict[str, Any]:
    """``overflow_in_step``: rank 1 alone sees an infinite loss in the first pass of that step."""
    ddp = DistributedDataParallel(model)
    scaler = options.pop("scaler", None)
    base = torch.optim.SGD(ddp.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY)
    opt = SAM(base, RHO, model=ddp, **options)
    refused = ""
    for step, (x, y) in enumerate(batches()):
        runs = []

        def closure(x: Tensor = x, y: Tensor = y, step: int = step, runs: list[None] = runs) -> Tensor:
            runs.append(None)
            opt.zero_grad()
            loss = nn.functional.cross_entropy(ddp(half(rank, x)), half(rank, y))
            if rank == 1 and step == overflow_in_step and len(runs) == 1:
                loss = loss * float("inf")
            (loss if scaler is None else scaler.scale(loss)).backward()
            return loss

        try:
            opt.step(closure, scaler=scaler)
        except EvenlyError as error:
            refused = str(error)
        if scaler is not None:
            scaler.update()
    return {
        "state": {name: value.detach() for name, value in model.state_dict().items()},
        "scale": scaler.get_scale() if scaler is not None else 0.0,
        "refused": refused,
    }


def main(folder: Path) -> None:
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    results = {
        "global": train(rank, make_model()),
        "local": train(rank, make_model(), local=True),
        "norm": train(rank, make_model(nn.BatchNorm1d(5))),
        "norm local": train(rank, make_model(nn.BatchNorm1d(5)), local=True),
        "scaled": train(rank, make_model(), local=True, scaler=GradScaler("cpu", init_scale=64.0)),
        "skipped": train(rank, make_model(), 1, local=True, scaler=GradScaler("cpu", init_scale=64.0)),
        "refused": train(rank, make_model(), 1, local=True, check_finite=True),
    }
    torch.save(results, folder / f"{rank}.pt")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
