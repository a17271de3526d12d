"""Batches that are read ahead are those of inputs in memory, bit for bit: every sampler, optimizer and kind of step."""

from __future__ import annotations

import copy
import pickle
import threading

import numpy as np
import pytest
import torch

from evenly.data import Data, ProgressiveExpansion, Split, Upsample
from evenly.data.augment import Augment
from evenly.data.mapped import MappedRows
from evenly.engine import streaming
from evenly.engine.batches import Batches
from evenly.engine.evaluation import features_on, in_chunks
from evenly.engine.streaming import is_streamed, read_ahead
from evenly.optim.registry import builder

CPU = torch.device("cpu")


def mapped(split, path):
    """The split with its inputs in a file, in another order than there."""
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(4))
    array = np.empty(tuple(split.inputs.shape), split.inputs.numpy().dtype)
    array[order] = split.inputs.numpy()
    np.save(path, array)
    rows = MappedRows(np.load(path, mmap_mode="r"), order, split.labels)
    return Split(rows, split.labels, split.groups, name=split.name)


@pytest.fixture
def pair(problem, tmp_path):
    """The same data in memory and in files."""
    held = problem(50, validation=20)
    return held, Data(**{name: mapped(split, tmp_path / f"{name}.npy") for name, split in held.splits.items()})


def same(one, other):
    assert [row | {"seconds": 0} for row in one.history] == [row | {"seconds": 0} for row in other.history]
    return all(torch.equal(a, b) for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True))


@pytest.mark.parametrize("size", [6, 7, 64, None])
@pytest.mark.parametrize("optimizer", ["sgd", "sam"])
@pytest.mark.parametrize("sampler", [None, "upsample", "expand"])
def test_training_ends_in_the_same_weights(pair, fit, net, size, optimizer, sampler):
    def trained(data, **how):
        chosen = {"upsample": Upsample(range(9), 50, 3), "expand": ProgressiveExpansion(pair[0].train.groups, 1, 1)}
        engine = fit(optimizer=builder(optimizer, lr=0.1), batch_size=size, **how)
        return engine(copy.deepcopy(net), data, sampler=chosen.get(sampler))

    held = trained(pair[0])
    for data, stream in ((pair[1], "auto"), (pair[1], "never"), (pair[0], "always")):
        assert same(held, trained(data, stream=stream)), stream


def test_what_is_read_once_over_is_the_same(pair, net):
    held, stored = pair
    assert held.fingerprint() == stored.fingerprint()
    assert torch.equal(features_on(net, held.train), features_on(net, stored.train))
    for ours, theirs in zip(in_chunks(net, held.train), in_chunks(net, stored.train), strict=True):
        assert torch.equal(ours.x, theirs.x)
    again = pickle.loads(pickle.dumps(stored.train.inputs))
    assert len(pickle.dumps(stored.train.inputs)) < 3000, "the file is named, not copied"
    assert torch.equal(again.at(torch.arange(50)), held.train.inputs)
    assert torch.equal(again[3][0], held.train.inputs[3])
    assert again[3][1] == held.train.labels[3]


def test_an_epoch_that_ends_early_leaves_no_thread_and_errors_arrive(pair):
    before = threading.active_count()
    read = read_ahead(pair[1].train.inputs, torch.arange(50).split(2), CPU)
    next(read)
    assert threading.active_count() > before
    read.close()
    assert threading.active_count() == before
    with pytest.raises(IndexError):
        list(read_ahead(pair[1].train.inputs, [torch.tensor([50])], CPU))
    assert threading.active_count() == before


def test_no_more_than_a_few_batches_are_read_ahead(pair, monkeypatch):
    inputs, asked = pair[1].train.inputs, []
    original = inputs.at
    monkeypatch.setattr(inputs, "at", lambda index, out: asked.append(index) or original(index, out))
    for i, _ in enumerate(read_ahead(inputs, torch.arange(50).split(2), CPU), 1):
        assert i <= len(asked) <= i + streaming.AHEAD


def test_augmented_images_are_those_in_memory(tmp_path):
    x = torch.randint(0, 256, (30, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    held = Data(train=(x, torch.arange(30) % 3)).train
    sampler = Upsample(range(9), 30, 3)
    for split in (held, mapped(held, tmp_path / "x.npy")):
        batches = Batches(split, 7, CPU, augment=Augment("basic+trivial"), seed=3, stream="always")
        seen = [batch.x for batch in batches.epoch(sampler)]
        expected = Batches(held, 7, CPU, augment=Augment("basic+trivial"), seed=3).epoch(sampler)
        assert all(torch.equal(ours, batch.x) for ours, batch in zip(seen, expected, strict=True))


def test_a_gpu_streams_what_is_more_than_a_share_of_its_free_memory(pair, monkeypatch):
    size, cuda = 50 * 4 * 8, torch.device("cuda")
    for name, value in (("memory_reserved", 300), ("memory_allocated", 100)):
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    for data in pair:
        for more, streamed in ((0, False), (-1, True)):
            free = size / streaming.DEVICE_SHARE - 200 + more
            monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 1e9))
            assert is_streamed(data.train.inputs, cuda, "auto") == streamed
            assert is_streamed(data.train.inputs, cuda, "always")
            assert not is_streamed(data.train.inputs, cuda, "never")
    assert [is_streamed(data.train.inputs, CPU, "auto") for data in pair] == [False, True]
