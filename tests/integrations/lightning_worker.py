"""Shared by the tests of Lightning, one of which runs it under torchrun: USEFUL, PDE and samplers in DDP."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import evenly
from evenly.integrations.lightning import PDECallback, SamplerCallback, UsefulCallback, WorstGroupAccuracy
from evenly.integrations.torchmetrics import WorstGroupAccuracy as WorstGroupMetric

BATCH = 20  # leaves no single example at the end of an epoch, which evenly.train puts into the batch before
KINDS = ("expansion", "upsample", "balanced")


class Indexed(Dataset):
    """(x, y, index), so that a training step can count what it sees."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i], i


class Net(pl.LightningModule):
    def __init__(self, net, optimizer=None, schedule=None):
        super().__init__()
        self.net, self.optimizer, self.schedule = net, optimizer, schedule
        self.seen, self.rates, self.validated = {}, [], []

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y, *index = batch
        if index:
            self.seen.setdefault(self.trainer.current_epoch, []).extend(index[0].tolist())
        return nn.functional.cross_entropy(self(x), y)

    def on_train_epoch_start(self):
        self.rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])

    def validation_step(self, batch, batch_idx):
        self.validated.append((self.trainer.current_epoch, len(self.seen.get(self.trainer.current_epoch, ()))))
        return {"outputs": self(batch[0]), "labels": batch[1]}

    def configure_optimizers(self):
        optimizer = (self.optimizer or sgd)(self.net.parameters())
        return (
            optimizer if self.schedule is None else {"optimizer": optimizer, "lr_scheduler": self.schedule(optimizer)}
        )


def sgd(params):
    return torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.0)


def trainer(*callbacks, epochs=3, **options):
    settings = {"max_epochs": epochs, "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    settings |= {"enable_model_summary": False, "accelerator": "cpu", "num_sanity_val_steps": 0} | options
    return pl.Trainer(callbacks=list(callbacks), **settings)


def make_data():
    """An easy feature that one example in five lacks, a difficult one that all have: far from any decision."""
    generator = torch.Generator().manual_seed(0)

    def split(per_class):
        y = torch.arange(2).repeat(per_class)
        sign = 2.0 * y - 1
        easy = torch.arange(2 * per_class) // 2 % 5 > 0
        noise = 0.05 * torch.randn(2 * per_class, 4, generator=generator)
        x = torch.stack([3 * sign * easy, 0.5 * sign, torch.zeros_like(sign), torch.zeros_like(sign)], dim=1) + noise
        return x, y, 2 * y + easy.long()

    return evenly.Data(train=split(30), validation=split(20))


def make_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def indexed(data):
    return Indexed(data.train.inputs, data.train.labels)


def plain(data):
    return TensorDataset(data.train.inputs, data.train.labels)


def validation(data, count=40):
    return DataLoader(TensorDataset(data.validation.inputs[:count], data.validation.labels[:count]), batch_size=16)


def loader(data, callback, **options):
    return DataLoader(indexed(data), sampler=callback.sampler, **{"batch_size": BATCH} | options)


def make_sampler(kind, groups):
    if kind == "expansion":
        return evenly.ProgressiveExpansion(groups, warmup_epochs=2, every=1, add=7, seed=3)
    return evenly.Upsample([1, 4, 9], len(groups), 3, seed=3) if kind == "upsample" else evenly.GroupBalanced(groups)


def saving(folder):
    return pl.callbacks.ModelCheckpoint(folder, save_top_k=-1, filename="{epoch}", save_on_train_epoch_end=True)


def in_ddp(folder, processes, resume):
    """What this process has seen and chosen; with `resume` from checkpoints of another number of processes."""
    data, rank = make_data(), int(os.environ.get("RANK", "0"))
    ddp = {"devices": processes, "strategy": "ddp"} if processes > 1 else {}
    results = {}

    def run(name, epochs, resumed_from, module, *callbacks, validated=()):
        path = folder / name
        save = [] if resume else [saving(path)]
        t = trainer(*callbacks, *save, epochs=epochs, enable_checkpointing=not resume, **ddp)
        batches = loader(data, callbacks[0], batch_size=max(1, BATCH // processes))
        ckpt_path = path / f"epoch={resumed_from}.ckpt" if resume else None
        t.fit(module, batches, *validated, ckpt_path=ckpt_path)
        results[name] = {"seen": module.seen, "weights": module.net.state_dict()}
        return results[name]

    for kind in KINDS:  # the first expansion comes with epoch 2
        run(kind, 5, 1, Net(make_net()), SamplerCallback(make_sampler(kind, data.train.groups)))
    for name, resumed_from, given in (("useful-early", 0, 2), ("useful-late", 2, 2), ("useful-rule", 0, None)):
        useful = UsefulCallback(plain(data), seed=5, separating_epoch=given)
        result = run(name, 4, resumed_from, Net(make_net()), useful)
        result |= {"chosen": useful.selection.indices, "losses": useful.stages.losses}
    pde = PDECallback(data.train.groups, seed=5, warmup_epochs=2, every=1, add=8)
    # 39 validation examples: one is seen twice by two processes and four
    worst = WorstGroupAccuracy(data.validation.groups[:39])
    result = run("pde", 6, 3, Net(make_net()), pde, worst, validated=[validation(data, 39)])
    result |= {"chosen": pde.selection.indices, "selected_epoch": pde.selected_epoch}
    result |= {"per_group": worst.result.per_group, "counts": worst.result.counts}
    results["metric"] = metric(data, rank, processes)
    torch.save(results, folder / f"{processes}-{rank}.pt")


def metric(data, rank, processes):
    """torchmetrics' synchronisation, on unequal parts."""
    worst = WorstGroupMetric(4, train_groups=data.train.groups)
    outputs = outputs_to_measure(data)
    for part in parts_to_measure(rank, processes).split(3):
        worst.update(outputs[part], data.validation.labels[part], data.validation.groups[part])
    value = worst.compute()
    result = worst.result
    return {"worst": value, "per_group": result.per_group, "mean": result.mean, "weighted": result.weighted}


def parts_to_measure(rank, processes):
    return torch.arange(rank, 31 if rank else 40, processes)


def outputs_to_measure(data):
    return torch.randn(40, 2, generator=torch.Generator().manual_seed(1)) + data.validation.inputs[:, :1]


if __name__ == "__main__":
    in_ddp(Path(sys.argv[1]), int(os.environ["WORLD_SIZE"]), sys.argv[2] == "resume")
