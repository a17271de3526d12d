"""Run by test_sampled_hosts.py: trains with evenly's samplers in Trainer, accelerate and a plain DDP loop, in 1, 2 and
4 processes, and saves which examples each process saw.

The libraries are imported once; the processes of each run are forked from this one.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import socket
import sys
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import evenly
from evenly.data.samplers import EpochSampler

EPOCHS, TOGETHER, WARMUP = 4, 12, 2
"""Examples per step in all processes together; PDE's warm-up."""
STOPS = (3, 5)
"""Steps whose checkpoints runs resume from: in the epoch before PDE's first expansion, and in that after it."""
GROUPS = torch.tensor([0] * 20 + [1] * 12 + [2] * 8)
SAMPLERS = {
    "pde": lambda: evenly.ProgressiveExpansion(GROUPS, warmup_epochs=WARMUP, every=1, add=5, seed=1),
    "upsample": lambda: evenly.Upsample([0, 3, 39], total=40, factor=3, seed=2),
    "balanced": lambda: evenly.GroupBalanced(GROUPS, total=31, seed=3),
}


class Model(nn.Module):
    """Notes the examples of its training passes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net, self.seen = nn.Linear(3, 2), []

    def forward(self, x: Tensor, labels: Tensor, index: Tensor) -> dict[str, Tensor]:
        if self.training:
            self.seen.append(index.tolist())
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def rows(count: int = len(GROUPS)) -> list[dict[str, Any]]:
    x = torch.randn(count, 3, generator=torch.Generator().manual_seed(1))
    return [{"x": x[i], "labels": int(x[i, 0] > 0), "index": i} for i in range(count)]


def backend() -> str | None:
    return "gloo" if distributed.is_initialized() else None


def in_trainer(folder: Path, name: str, world: int, stop: int | None) -> list[list[int]]:
    import transformers

    from evenly.integrations.transformers import SampledTrainer

    accumulate = 2 if world == 1 else 1
    args = transformers.TrainingArguments(
        output_dir=str(folder / f"{name}-trainer"), num_train_epochs=EPOCHS, gradient_accumulation_steps=accumulate,
        per_device_train_batch_size=TOGETHER // world // accumulate, report_to=[], logging_strategy="no",
        save_strategy="steps" if (name, world, stop) == ("pde", 2, None) else "no", save_steps=1, disable_tqdm=True,
        use_cpu=True, ddp_backend=backend(), dataloader_pin_memory=False,
    )  # fmt: skip
    model = Model()
    trainer = SampledTrainer(model, args, train_dataset=rows(), train_sampler=SAMPLERS[name]())
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train(None if stop is None else f"{args.output_dir}/checkpoint-{stop}")
    assert trainer.state.global_step == trainer.state.max_steps
    assert float(trainer.lr_scheduler.get_last_lr()[0]) == 0.0  # the schedule ends where the run does
    assert trainer.state.epoch == EPOCHS
    seen = model.seen
    if accumulate == 1:
        return seen
    # the batches of a step put together; the last step of an epoch may have a single one
    size, batches, steps = TOGETHER // accumulate, iter(seen), []
    first, skip = place_of(SAMPLERS[name](), stop or 0)
    for epoch, length in list(enumerate(lengths(SAMPLERS[name]())))[first:]:
        left = -(-length // size) - (skip * accumulate if epoch == first else 0)
        own = list(islice(batches, left))
        steps += [list(chain(*own[i : i + accumulate])) for i in range(0, left, accumulate)]
    assert not list(batches)
    return steps


def lengths(sampler: EpochSampler) -> list[int]:
    result = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        result.append(len(sampler))
    return result


def place_of(sampler: EpochSampler, step: int) -> tuple[int, int]:
    """The epoch of a step, and its number within it."""
    for epoch, length in enumerate(lengths(sampler)):
        if step < (steps := -(-length // TOGETHER)):
            return epoch, step
        step -= steps
    raise AssertionError


def in_accelerate(name: str, world: int, stop: int | None, sharded: bool) -> list[list[int]]:
    from accelerate import Accelerator

    from evenly.integrations.accelerate import prepare_loader

    accelerator, model, sampler = Accelerator(cpu=True), Model(), SAMPLERS[name]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader: Any = DataLoader(
        rows(), batch_size=TOGETHER // world, sampler=evenly.Sharded(sampler) if sharded else sampler
    )
    if sharded:
        loader = prepare_loader(accelerator, loader)
    net, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    first, skip = place_of(SAMPLERS[name](), stop or 0)
    for epoch in range(first, EPOCHS):
        loader.set_epoch(epoch)
        skipped = accelerator.skip_first_batches(loader, skip) if epoch == first and skip else loader
        for batch in skipped:
            optimizer.zero_grad()
            accelerator.backward(net(**batch)["loss"])
            optimizer.step()
    return model.seen


def in_plain_loop(name: str, world: int, stop: int | None) -> list[list[int]]:
    model, sampler = Model(), evenly.Sharded(SAMPLERS[name]())
    net = DistributedDataParallel(model) if world > 1 else model
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loader = DataLoader(rows(), batch_size=TOGETHER // world, sampler=sampler)
    first, skip = place_of(SAMPLERS[name](), stop or 0)
    for epoch in range(first, EPOCHS):
        sampler.set_epoch(epoch)
        for batch in islice(loader, skip if epoch == first else 0, None):
            optimizer.zero_grad()
            net(**batch)["loss"].backward()
            optimizer.step()
    return model.seen


def metrics(folder: Path) -> dict[int, Any]:
    """What Trainer's evaluation reports of sets of several sizes, and the outputs of one process."""
    import transformers

    from evenly.integrations.transformers import worst_group_metrics

    reported = {}
    for count in (1, 3, 7, 8, 13):
        groups = torch.arange(count) % 3
        for by_name in (False, True):
            data: list[dict[str, Any]] = rows(count)
            if by_name:
                data = [{**row, "groups": int(group)} for row, group in zip(data, groups, strict=True)]
            args = transformers.TrainingArguments(
                output_dir=str(folder / "metrics"), per_device_eval_batch_size=4, report_to=[], disable_tqdm=True,
                use_cpu=True, ddp_backend=backend(), dataloader_pin_memory=False, batch_eval_metrics=by_name,
                label_names=["labels", "groups"] if by_name else None, remove_unused_columns=False,
            )  # fmt: skip
            measure = worst_group_metrics(*(() if by_name else (groups, GROUPS)))
            model = WithGroups() if by_name else Model()
            trainer = transformers.Trainer(model, args, eval_dataset=data, compute_metrics=measure)
            trainer.remove_callback(transformers.PrinterCallback)
            reported[count, by_name] = trainer.evaluate()
    return reported


class WithGroups(Model):
    def forward(self, x: Tensor, labels: Tensor, index: Tensor, groups: Tensor) -> dict[str, Tensor]:
        return super().forward(x, labels, index)


def methods() -> Any:
    """The data and networks of test_trainer_methods.py."""
    path = Path(__file__).with_name("test_trainer_methods.py")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def useful(folder: Path, world: int, checkpoint: Path | None = None) -> dict[str, Any]:
    from evenly.integrations.transformers import UsefulTrainer

    cases = methods()
    options = {
        "per_device_train_batch_size": cases.BATCH // world, "save_strategy": "steps", "save_steps": 5,
        "ddp_backend": backend(),
    }  # fmt: skip
    trainer = cases.build(UsefulTrainer, folder, arguments_of=options)
    trainer.train(None if checkpoint is None else str(checkpoint))
    assert trainer.selection is not None
    losses = trainer.selection.details["early_losses"]
    return {"chosen": trainer.selection.indices, "losses": losses, "weights": cases.weights(trainer.model.net)}


def all_hosts(folder: Path, name: str, world: int, stop: int | None) -> dict[str, list[list[int]]]:
    return {
        "trainer": in_trainer(folder, name, world, stop),
        "prepare_loader": in_accelerate(name, world, stop, sharded=True),
        "accelerate": in_accelerate(name, world, stop, sharded=False),
        "plain": in_plain_loop(name, world, stop),
    }


def work(folder: Path, rank: int, world: int, port: int) -> None:
    """What one process of `world` does."""
    if world > 1:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
        os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
        distributed.init_process_group("gloo")
    result: dict[Any, Any] = {}
    if world < 4:
        result |= {(name, None): all_hosts(folder, name, world, None) for name in SAMPLERS}
        result["metrics"] = metrics(folder)
    result |= {("pde", stop): all_hosts(folder, "pde", world, stop) for stop in STOPS}
    if world == 2:
        result["useful"] = useful(folder / "useful", world)
    early = folder / "useful" / "early" / "checkpoint-5"
    if world > 1:
        distributed.barrier()
    copied = folder / f"useful-{world}" / "early"
    if rank == 0:
        copied.mkdir(parents=True)
        (copied / early.name).symlink_to(early)
        (copied / "initial.pt").symlink_to(early.parent / "initial.pt")
    if world > 1:
        distributed.barrier()
    result["resumed useful"] = useful(copied.parent, world, copied / early.name)
    torch.save(result, folder / f"{world}-{rank}.pt")
    if world > 1:
        distributed.destroy_process_group()


def forked(folder: Path, world: int) -> None:
    context = multiprocessing.get_context("fork")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    children = [context.Process(target=work, args=(folder, rank, world, port)) for rank in range(world)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert not any(child.exitcode for child in children), [child.exitcode for child in children]


if __name__ == "__main__":
    import accelerate  # noqa: F401
    import transformers  # noqa: F401

    import evenly.integrations.transformers

    for count in (2, 1, 4):  # the checkpoints of two processes are those that all resume from
        forked(Path(sys.argv[1]), count)
