"""USEFUL and PDE in Lightning: the selections and weights of `evenly.train`, counted examples, resumed runs."""

from __future__ import annotations

import copy
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import evenly

pl = pytest.importorskip("lightning.pytorch", reason="needs Lightning: pip install 'evenly[lightning]'")

from evenly.integrations.lightning import (  # noqa: E402
    PDECallback,
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
WORKER = Path(__file__).with_name("lightning_worker.py")
spec = importlib.util.spec_from_file_location("lightning_worker", WORKER)
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)
BATCH, Net, indexed, loader, plain, validation = (
    worker.BATCH, worker.Net, worker.indexed, worker.loader, worker.plain, worker.validation,
)  # fmt: skip
make_data, make_net, make_sampler, trainer = worker.make_data, worker.make_net, worker.make_sampler, worker.trainer


@pytest.fixture
def data():
    return make_data()


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
        t.fit(module, loader(data, sampling, batch_size=8), *validated, ckpt_path=ckpt_path)
        return module

    expected = counted(make_sampler("expansion", data.train.groups), range(4))
    assert run().seen == expected
    paths = list(tmp_path.glob("*.ckpt"))
    assert len(paths) == (15 if when == "step" else 4)
    for path in paths:
        assert both(path, run(path)) == expected, path.name


@pytest.mark.parametrize("when", ["end", "validation", "step"])
@pytest.mark.parametrize("method", ["useful", "pde"])
def test_a_resumed_method_ends_in_the_same_weights(data, method, when, tmp_path):
    """From checkpoints in both stages, between them, in the warm-up and between expansions."""

    def run(ckpt_path=None):
        if method == "useful":
            callback = UsefulCallback(plain(data), separating_epoch=2)
        else:
            callback = PDECallback(data.train.groups, warmup_epochs=2, add=8, decay=0.5, reset_momentum=True)
        # a new process may draw other initial weights
        module = Net(make_net() if ckpt_path is None else make_net().apply(shaken))
        step = 1 if when == "step" else None
        save = [pl.callbacks.ModelCheckpoint(
            tmp_path, save_top_k=-1, save_on_train_epoch_end=when == "end", every_n_train_steps=step
        )] if ckpt_path is None else []  # fmt: skip
        worst = WorstGroupAccuracy(data.validation.groups)
        epochs = 2 if method == "useful" else 4
        t = trainer(callback, worst, *save, Remember(), epochs=epochs, enable_checkpointing=bool(save))
        t.fit(module, loader(data, callback), validation(data), ckpt_path=ckpt_path)
        return module, callback.selection.indices.tolist()

    whole, chosen = run()
    paths = list(tmp_path.glob("*.ckpt"))
    if when == "step":  # within epochs and after their last batches
        paths = [path for path in paths if int(path.stem.split("step=")[1]) in (2, 3, 5, 6, 7)]
    assert len(paths) >= 4
    for path in paths:
        resumed, chosen_again = run(path)
        assert both(path, resumed) == whole.seen, path.name
        assert chosen_again == chosen, path.name
        assert same(resumed.net, whole.net), path.name


def shaken(layer):
    for parameter in layer.parameters(recurse=False):
        torch.nn.init.normal_(parameter)


def under_torchrun(processes, folder, *arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(evenly.__file__).parents[1])}
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [*launch, WORKER, folder, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [torch.load(folder / f"{processes}-{rank}.pt", weights_only=False) for rank in range(processes)]


def check_counts(ranks, data, epochs):
    """Every index as often as the sampler says, in its order, and the padding that `Sharded` states."""
    for kind in worker.KINDS:
        for epoch, expected in counted(make_sampler(kind, data.train.groups), epochs).items():
            seen = torch.tensor([rank[kind]["seen"][epoch] for rank in ranks]).T.flatten().tolist()
            assert seen == expected + expected[: -len(expected) % len(ranks)], (kind, epoch)


def check_methods(ranks, data):
    """The selections and weights of `evenly.train`, in every process."""
    validated = [each[:39] for each in (data.validation.inputs, data.validation.labels, data.validation.groups)]
    cut = evenly.Data(train=(data.train.inputs, data.train.labels, data.train.groups), validation=tuple(validated))
    useful = trained(data, "useful", 4, separating_epoch=2)
    by_rule = trained(data, "useful", 4)
    # sizes that four divide, since padding would change the weights
    pde = trained(cut, "pde", 6, warmup_epochs=2, every=1, add=8)
    for rank in ranks:
        for name, run in {"useful-early": useful, "useful-late": useful, "useful-rule": by_rule, "pde": pde}.items():
            assert rank[name]["chosen"].tolist() == run.selection.indices.tolist(), name
            for key, value in run.model.state_dict().items():
                assert torch.allclose(rank[name]["weights"][key], value, rtol=1e-4, atol=1e-5), (name, key)
        assert rank["useful-rule"]["losses"] == pytest.approx(list(by_rule.selection.details["early_losses"]), rel=1e-4)
        assert rank["pde"]["selected_epoch"] == pde.results.selected_epoch
        assert rank["pde"]["counts"].tolist() == torch.bincount(validated[2]).tolist()  # no example twice


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ddp")
    return folder, under_torchrun(2, folder, "train")


def test_two_processes_see_and_choose_what_one_does(data, two):
    check_counts(two[1], data, range(5))
    check_methods(two[1], data)
    part = torch.cat([worker.parts_to_measure(rank, 2) for rank in (0, 1)])
    outputs, labels, groups = worker.outputs_to_measure(data), data.validation.labels, data.validation.groups
    expected = evenly.group_accuracy(outputs[part], labels[part], groups[part], data.train.groups)
    assert expected.worst < expected.mean < 1
    for rank in two[1]:
        assert float(rank["metric"]["worst"]) == expected.worst
        assert torch.equal(rank["metric"]["per_group"], expected.per_group)
        assert (rank["metric"]["mean"], rank["metric"]["weighted"]) == (expected.mean, expected.weighted)


def test_one_process_two_and_four_resume_what_two_began(data, two):
    worker.in_ddp(two[0], 1, resume=True)
    one = [torch.load(two[0] / "1-0.pt", weights_only=False)]
    for ranks in (one, *(under_torchrun(processes, two[0], "resume") for processes in (2, 4))):
        check_counts(ranks, data, range(2, 5))
        check_methods(ranks, data)
