"""USEFUL and PDE in Lightning: the selections and weights of `evenly.train`, counted examples, resumed runs."""

from __future__ import annotations

import copy
from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import evenly
from evenly.data.samplers import Everything
from evenly.errors import EvenlyError

pl = pytest.importorskip("lightning.pytorch", reason="needs Lightning: pip install 'evenly[lightning]'")

from evenly.integrations.lightning import (  # noqa: E402
    PDECallback,
    SAMCallback,
    SamplerCallback,
    UsefulCallback,
    WorstGroupAccuracy,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers which may be a bottleneck"),
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks used to create"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
    pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended"),
]
BATCH = 10  # leaves no single example at the end of an epoch, which evenly.train puts into the batch before


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
        return optimizer if self.schedule is None else {"optimizer": optimizer, "lr_scheduler": self.schedule(optimizer)}


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


@pytest.fixture
def data():
    return make_data()


def indexed(data):
    return Indexed(data.train.inputs, data.train.labels)


def plain(data):
    return TensorDataset(data.train.inputs, data.train.labels)


def validation(data):
    return DataLoader(TensorDataset(data.validation.inputs, data.validation.labels), batch_size=16)


def loader(data, callback, **options):
    return DataLoader(indexed(data), sampler=callback.sampler, **{"batch_size": BATCH} | options)


def trained(data, method, epochs, **options):
    settings = {"epochs": epochs, "batch_size": BATCH, "lr": 0.1, "momentum": 0.9, "weight_decay": 0.0}
    return evenly.train(data, model=make_net(), method=method, optimizer="sgd", seed=5, **settings | options)


def same(a, b):
    weights = b.state_dict()
    return all(torch.allclose(value, weights[name], rtol=1e-5, atol=1e-6) for name, value in a.state_dict().items())


@pytest.mark.parametrize("options", [{}, {"separating_epoch": 2}, {"factor": 3, "on": "logits"}])
def test_useful_is_that_of_train(data, options, tmp_path):
    run = trained(data, "useful", 4, **options)
    useful = UsefulCallback(plain(data), seed=5, path=tmp_path / "chosen.npz", **options)
    module = Net(make_net())
    trainer(useful, epochs=4).fit(module, loader(data, useful))
    assert useful.selection.indices.tolist() == run.selection.indices.tolist()
    assert 0 < len(useful.selection.indices) < 60
    assert useful.selection.times.tolist() == run.selection.times.tolist()
    assert useful.selection.why == run.selection.why
    details = run.selection.details
    assert useful.selection.details["separating_epoch"] == int(details["separating_epoch"])
    assert useful.selection.details["early_losses"] == pytest.approx(np.asarray(details["early_losses"]).tolist())
    assert useful.selection.details["separation"] == str(details["separation"])
    assert same(module.net, run.model)
    assert np.load(tmp_path / "chosen.npz")["indices"].tolist() == useful.selection.indices.tolist()


@pytest.mark.parametrize(
    "options", [{}, {"warmup_epochs": 2, "every": 1, "add": 6}, {"warmup_epochs": 2, "decay": 0.1, "add": "all"},
    {"warmup_epochs": 3, "reset_momentum": True, "cap": 4, "draw": "random", "add": [4, 0, 8], "every": 1}]
)  # fmt: skip
@pytest.mark.parametrize("select", ["worst-group", "worst-group-argmax", "last"])
def test_pde_is_that_of_train(data, options, select):
    run = trained(data, "pde", 6, select=select, **options)
    pde = PDECallback(data.train.groups, seed=5, select=select, **options)
    module = Net(make_net())
    worst = WorstGroupAccuracy(data.validation.groups)
    trainer(pde, worst, epochs=6).fit(module, loader(data, pde), validation(data))
    assert pde.selected_epoch == run.results.selected_epoch
    assert pde.selection.indices.tolist() == run.selection.indices.tolist()
    entered = pde.selection.details["ever_added_at_epoch"]
    assert entered.tolist() == np.asarray(run.selection.details["ever_added_at_epoch"]).tolist()
    assert same(module.net, run.model)


def counted(sampler, epochs):
    """What a sampler says of some epochs, in the order of visit."""
    seen = {}
    for epoch in epochs:
        sampler.set_epoch(epoch)
        seen[epoch] = sampler.indices().tolist()
    return seen


def make_sampler(kind, groups):
    if kind == "expansion":
        return evenly.ProgressiveExpansion(groups, warmup_epochs=2, every=1, add=7, seed=3)
    return evenly.Upsample([1, 4, 9], len(groups), 3, seed=3) if kind == "upsample" else evenly.GroupBalanced(groups)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["expansion", "upsample", "balanced"])
def test_a_training_step_sees_what_the_sampler_says(data, kind, workers):
    if workers and kind != "expansion":
        pytest.skip("as with no workers")
    sampling = SamplerCallback(make_sampler(kind, data.train.groups))
    module = Net(make_net())
    trainer(sampling, epochs=5).fit(module, loader(data, sampling, batch_size=4, num_workers=workers), validation(data))
    assert module.seen == counted(make_sampler(kind, data.train.groups), range(5))
    # every validation came at the end of an epoch, also of those that had grown
    assert {(epoch, len(module.seen[epoch])) for epoch in range(5)} == set(module.validated)
    if kind == "expansion":
        assert [len(module.seen[epoch]) for epoch in range(5)] == [24, 24, 31, 38, 45]


def test_without_the_callback_lightning_cuts_the_grown_epochs(data):
    """Why there is a callback; and what `DistributedSampler`'s fixed length did."""
    sampler = evenly.Sharded(make_sampler("expansion", data.train.groups))
    module = Net(make_net())
    trainer(epochs=3).fit(module, DataLoader(indexed(data), batch_size=4, sampler=sampler))
    assert len(module.seen[2]) == 24


class Remember(pl.Callback):
    """Keeps what was seen in the checkpoint."""

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        checkpoint["seen"] = copy.deepcopy(pl_module.seen)


def both(path, module):
    """What was seen before a checkpoint and after it."""
    before = torch.load(path, weights_only=False)["seen"]
    return {epoch: before.get(epoch, []) + module.seen.get(epoch, []) for epoch in {**before, **module.seen}}


@pytest.mark.parametrize("when", ["end", "validation", "step"])
def test_a_resumed_run_sees_what_the_sampler_says(data, when, tmp_path):
    """From every checkpoint of a run, whose first expansion comes with epoch 2."""

    def run(ckpt_path=None):
        sampling, module = SamplerCallback(make_sampler("expansion", data.train.groups)), Net(make_net())
        step = 1 if when == "step" else None
        save = [pl.callbacks.ModelCheckpoint(
            tmp_path, save_top_k=-1, save_on_train_epoch_end=when == "end", every_n_train_steps=step
        )] if ckpt_path is None else []  # fmt: skip
        validated = () if when == "end" else (validation(data),)
        t = trainer(sampling, *save, Remember(), epochs=4, enable_checkpointing=bool(save))
        t.fit(module, loader(data, sampling, batch_size=8), *validated, ckpt_path=ckpt_path, weights_only=False)
        return module

    expected = counted(make_sampler("expansion", data.train.groups), range(4))
    assert run().seen == expected
    paths = list(tmp_path.glob("*.ckpt"))
    assert len(paths) == (15 if when == "step" else 4)
    for path in paths:
        assert both(path, run(path)) == expected, path.name
