"""WorstGroupAccuracy and HardExamples give the results of evenly's functions."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import evenly
from evenly.errors import EvenlyError

pl = pytest.importorskip("lightning.pytorch", reason="needs Lightning: pip install 'evenly[lightning]'")

from evenly.integrations.lightning import HardExamples, WorstGroupAccuracy  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers which may be a bottleneck"),
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`"),
]


class Net(pl.LightningModule):
    def __init__(self, net, grouped=False):
        super().__init__()
        self.net, self.grouped, self.augmented = net, grouped, 0

    def forward(self, x):
        return self.net(x)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        self.augmented += 1  # as augmentation on the device would
        return batch

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        result = {"outputs": self(batch[0]), "labels": batch[1]}
        return result | {"groups": batch[2]} if self.grouped else result

    def configure_optimizers(self):
        return torch.optim.SGD(self.net.parameters(), lr=0.3)


def trainer(*callbacks, epochs=1, **options):
    settings = {"max_epochs": epochs, "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    settings |= {"enable_model_summary": False, "accelerator": "cpu", "log_every_n_steps": 1} | options
    return pl.Trainer(callbacks=list(callbacks), **settings)


@pytest.fixture
def p(plain):
    x, y = plain.data(37)
    groups = 2 * y.clamp(max=1) + (x[:, 2] > 0).long()
    return SimpleNamespace(
        x=x, y=y, groups=groups, net=plain.net(), train_groups=torch.tensor([0] * 10 + [1, 2, 3]),
        train=DataLoader(TensorDataset(x, y), batch_size=8),
        validation=DataLoader(TensorDataset(x, y, groups), batch_size=8),
    )  # fmt: skip


@pytest.mark.parametrize("source", ["array", "returned"])
def test_the_logged_metrics_are_those_of_group_accuracy(p, source):
    worst = WorstGroupAccuracy(p.groups if source == "array" else None, p.train_groups)
    module = Net(p.net, grouped=source == "returned")
    t = trainer(worst, epochs=2)
    t.fit(module, p.train, p.validation)
    with torch.no_grad():
        outputs = p.net.eval()(p.x)
    expected = evenly.group_accuracy(outputs, p.y, p.groups, p.train_groups)
    assert worst.result.worst == expected.worst
    assert torch.equal(worst.result.per_group, expected.per_group)
    logged = {name: float(value) for name, value in t.logged_metrics.items()}
    assert logged == {
        "val_worst_group_accuracy": pytest.approx(expected.worst, abs=1e-7),
        "val_mean_accuracy": pytest.approx(expected.mean, abs=1e-7),
        "val_weighted_accuracy": pytest.approx(expected.weighted, abs=1e-7),
    }
    assert expected.worst < expected.mean != expected.weighted


def test_without_train_groups_there_is_no_weighted_average(p):
    t = trainer(WorstGroupAccuracy(p.groups))
    t.validate(Net(p.net), p.validation, verbose=False)
    assert set(t.logged_metrics) == {"val_worst_group_accuracy", "val_mean_accuracy"}


def test_the_sanity_check_gives_no_result(p):
    worst = WorstGroupAccuracy(p.groups)
    module = Net(p.net)
    early = []
    module.on_train_start = lambda: early.append(worst.result)
    trainer(worst, num_sanity_val_steps=2).fit(module, p.train, p.validation)
    assert early == [None]
    assert worst.result is not None


def test_groups_that_overlap(p):
    members = torch.stack([p.x[:, 0] > 0, p.x[:, 1] > 0], dim=1)
    worst = WorstGroupAccuracy(members)
    trainer(worst).validate(Net(p.net), p.validation, verbose=False)
    assert worst.result.worst == evenly.group_accuracy(p.net.eval()(p.x), p.y, members).worst


def test_part_of_the_validation_set_goes_with_part_of_the_groups(p):
    worst = WorstGroupAccuracy(p.groups)
    trainer(worst, limit_val_batches=2).fit(Net(p.net), p.train, p.validation)
    expected = evenly.group_accuracy(p.net.eval()(p.x[:16]), p.y[:16], p.groups[:16])
    assert torch.equal(worst.result.counts, expected.counts)
    assert worst.result.worst == expected.worst


def test_a_monitor_can_select_by_the_worst_group(p, tmp_path):
    best = pl.callbacks.ModelCheckpoint(tmp_path, monitor="val_worst_group_accuracy", mode="max")
    worst = WorstGroupAccuracy(p.groups)
    trainer(worst, best, epochs=2, enable_checkpointing=True).fit(Net(p.net), p.train, p.validation)
    assert best.best_model_score is not None


@pytest.mark.filterwarnings("ignore:Your `val_dataloader`'s sampler has shuffling enabled")
def test_what_cannot_be_grouped_is_refused(p):
    def refused(match, groups=p.groups, loader=p.validation, module=None):
        with pytest.raises(EvenlyError, match=match):
            trainer(WorstGroupAccuracy(groups)).validate(module or Net(p.net), loader, verbose=False)

    refused("groups must have 37 entries, one per validation example, got 3", groups=[0, 1, 2])
    refused("keeps the order", loader=DataLoader(TensorDataset(p.x, p.y), batch_size=8, shuffle=True))
    refused("needs one validation loader, got 2", loader=[p.validation, p.validation])
    refused(r"\['labels', 'outputs'\].*groups", groups=None)
    silent = Net(p.net)
    silent.validation_step = lambda batch, batch_idx: None
    refused("a NoneType", module=silent)


def test_the_hard_examples_are_those_of_the_function(p, tmp_path, plain):
    hard = HardExamples(TensorDataset(p.x, p.y), epoch=2, path=tmp_path / "hard.npz", factor=3, seed=4)
    with pytest.raises(EvenlyError, match="not known before the end of epoch 2"):
        hard.sampler()
    module = Net(p.net)
    trainer(hard, epochs=3).fit(module, p.train)

    reference = Net(plain.net())
    trainer(epochs=2).fit(reference, p.train)
    with torch.no_grad():
        expected = evenly.hard_examples(reference.net.eval()(p.x), p.y, seed=4)
    assert torch.equal(hard.hard, expected)
    assert 0 < len(expected) < 37
    assert torch.equal(hard.sampler().members(), evenly.Upsample(expected, 37, factor=3).members())
    written = np.load(tmp_path / "hard.npz")
    assert written["indices"].tolist() == expected.tolist()
    assert set(written["times"].tolist()) == {3}
    assert written["separating_epoch"] == 2
    assert module.augmented == 3 * len(p.train)


@pytest.mark.filterwarnings("ignore:Found 1 module.* in eval mode at the start of training")
def test_finding_them_leaves_the_run_as_it_was(p, plain):
    """Shuffled data, dropout and running statistics: the same weights with the callback and without."""

    def run(*callbacks):
        torch.manual_seed(0)
        module = Net(nn.Sequential(*plain.net(), nn.Dropout(0.2)))
        module.net[0].eval()  # a part that the user keeps in eval mode stays so
        modes = []
        module.on_train_batch_end = lambda *_: modes.append([m.training for m in module.net])
        loader = DataLoader(TensorDataset(p.x, p.y), batch_size=8, shuffle=True)
        trainer(*callbacks, epochs=3).fit(module, loader)
        return module.net, modes

    hard = HardExamples(DataLoader(TensorDataset(p.x, p.y), batch_size=5), epoch=1)
    (a, modes), (b, same_modes) = run(), run(hard)
    assert plain.same(a, b)
    assert modes == same_modes
    assert len(hard.hard)


def test_the_hard_examples_are_in_the_checkpoint(p, tmp_path, plain):
    first = HardExamples(TensorDataset(p.x, p.y), epoch=1)
    t = trainer(first, epochs=1)
    t.fit(Net(p.net), p.train)
    t.save_checkpoint(tmp_path / "a.ckpt")
    again = HardExamples(TensorDataset(p.x, p.y), epoch=1)
    trainer(again, epochs=2).fit(Net(plain.net()), p.train, ckpt_path=tmp_path / "a.ckpt")
    assert torch.equal(again.hard, first.hard)


def test_in_double_and_in_bf16(p, plain):
    for precision in ("64-true", "bf16-mixed"):
        hard = HardExamples(TensorDataset(p.x, p.y), epoch=1)
        trainer(hard, precision=precision).fit(Net(plain.net()), p.train)
        assert len(hard.hard)


def test_what_cannot_be_separated_is_refused(p):
    data = TensorDataset(p.x, p.y)
    with pytest.raises(EvenlyError, match="`epoch` must be at least 1, got 0"):
        HardExamples(data, epoch=0)
    with pytest.raises(EvenlyError, match="factor must be at least 1, got 0"):
        HardExamples(data, epoch=1, factor=0)
    for loader in (DataLoader(data, shuffle=True), DataLoader(data, drop_last=True)):
        with pytest.raises(EvenlyError, match="shuffle=False and drop_last=False"):
            HardExamples(loader, epoch=1)
    with pytest.raises(EvenlyError, match="`epoch` of HardExamples must be at most 2 in a run of 2 epochs, got 3"):
        trainer(HardExamples(data, epoch=3), epochs=2).fit(Net(p.net), p.train)

    class Named(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return {"x": p.x[index], "y": p.y[index]}

    with pytest.raises(EvenlyError, match=r"batches for HardExamples must be \(x, y\), got a dict"):
        trainer(HardExamples(Named(), epoch=1)).fit(Net(p.net), p.train)
