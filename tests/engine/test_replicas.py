"""What surrounds a network that several processes train, in one process: the collectives themselves are tested under
torchrun."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from evenly.engine.batches import _part
from evenly.engine.replicas import Replicas
from evenly.engine.world import ALONE, World, own_device
from evenly.errors import EvenlyError, EvenlyWarning
from evenly.randomness import Stream

TWO = World(1, 2)


def network():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Sequential(nn.BatchNorm2d(4), nn.ReLU()))


def test_parts_of_a_batch_follow_each_other_and_leave_nothing_out():
    for size in range(1, 6):
        for count in range(20):
            rows = [range(count)[World(rank, size).part(count)] for rank in range(size)]
            assert [row for part in rows for row in part] == list(range(count))
            assert max(map(len, rows)) - min(map(len, rows)) <= 1


def test_batch_normalisation_is_synchronised_and_given_back_as_it_was():
    """On a GPU; what is tested here is which layers are put in, since torch synchronises on GPUs only."""
    model = network()
    own = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]
    replicas = Replicas(model, TWO, torch.device("cuda"), synchronise=True)
    synchronised = [layer for layer in model.modules() if isinstance(layer, nn.SyncBatchNorm)]
    assert len(synchronised) == len(own) == 2
    for layer, kept in zip(synchronised, own, strict=True):
        assert layer.weight is kept.weight
        assert layer.running_mean is kept.running_mean
    replicas.release()
    assert [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)] == own
    assert not any(isinstance(layer, nn.SyncBatchNorm) for layer in model.modules())


@pytest.mark.parametrize(
    ("device", "synchronise", "reason"),
    [("cpu", True, "torch synchronises its statistics on GPUs only"), ("cuda", False, "sync_batchnorm is off")],
)
def test_batch_normalisation_of_each_part_alone_is_reported(device, synchronise, reason):
    with pytest.warns(EvenlyWarning, match=f"each of 2 processes normalises by its own part of a batch .{reason}"):
        Replicas(network(), TWO, torch.device(device), synchronise)


def test_one_process_changes_nothing():
    model = network()
    replicas = Replicas(model, ALONE, torch.device("cpu"), synchronise=True)
    assert replicas.wrap(lambda *_: pytest.fail("no trial is needed"), None) is model


def test_a_process_without_a_gpu_of_its_own_is_refused(monkeypatch):
    for name, value in {"RANK": "2", "WORLD_SIZE": "3", "MASTER_ADDR": "x", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(EvenlyError, match="process 2 has no GPU of its own among 2; start at most 2"):
        own_device(torch.device("cuda"))
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert own_device(torch.device("cuda")) == torch.device("cuda:1")
    assert own_device(torch.device("cuda:0")) == torch.device("cuda:0")
    assert own_device(torch.device("cpu")) == torch.device("cpu")
    monkeypatch.delenv("MASTER_ADDR")  # as where a scheduler exports WORLD_SIZE alone
    assert own_device(torch.device("cuda")) == torch.device("cuda")


def test_padding_is_of_rows_that_a_process_has_not():
    """Two equal rows would have no variance to normalise by."""
    for count, size, least in ((3, 2, 2), (2, 2, 2), (3, 4, 1), (5, 4, 2)):
        for rank in range(size):
            rows, padding = _part(count, World(rank, size), least)
            assert len(rows) >= least
            assert len(rows.unique()) == min(len(rows), count)
            assert rows[: len(rows) - padding].tolist() == [*range(count)[World(rank, size).part(count)]]


def test_a_stream_of_draws_leaves_the_others_alone():
    stream = Stream(torch.device("cpu"))
    torch.manual_seed(1)
    expected = torch.rand(4)
    torch.manual_seed(1)
    stream.reseed(2)
    own = []
    for _ in range(2):
        with stream():
            own.append(torch.rand(2))
    assert torch.equal(torch.rand(4), expected)
    torch.manual_seed(2)
    assert torch.equal(torch.cat(own), torch.cat([torch.rand(2), torch.rand(2)]))
