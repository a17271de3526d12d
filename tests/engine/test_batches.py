"""Batches: in memory or through a DataLoader, cut to size, with their indices and groups."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from evenly.data import Data, Everything, Split
from evenly.engine.batches import EVALUATION_NUMBERS, Batches
from evenly.engine.evaluation import outputs_of

CPU = torch.device("cpu")


class Pairs(Dataset):
    """The same examples, one at a time."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], int(self.y[i])


def as_dataset(data: Data) -> Data:
    def split(part):
        return None if part is None else Split(Pairs(part.inputs, part.labels), groups=part.groups)

    return Data(train=split(data.train), validation=split(data.validation))


@pytest.mark.parametrize(
    ("count", "size", "expected"),
    [(12, 5, [5, 5, 2]), (11, 5, [5, 6]), (10, 5, [5, 5]), (6, 5, [6]), (3, 5, [3]), (3, 1, [1, 1, 1]), (9, None, [9])],
)
@pytest.mark.parametrize("loader", [False, True])
def test_sizes_and_contents(problem, count, size, expected, loader):
    """A last batch of one joins the one before; every batch carries what belongs to its indices."""
    data = problem(count)
    sampler = Everything(count, seed=3)
    batches = list(Batches((as_dataset(data) if loader else data).train, size, CPU).epoch(sampler))
    assert [len(batch) for batch in batches] == expected
    seen = torch.cat([batch.index for batch in batches])
    assert torch.equal(seen, sampler.members() if size is None else sampler.indices())
    for batch in batches:
        assert torch.equal(batch.x, data.train.inputs[batch.index])
        assert torch.equal(batch.y, data.train.labels[batch.index])
        assert torch.equal(batch.group, data.train.groups[batch.index])


def test_a_full_batch_follows_the_sampler_from_epoch_to_epoch(problem):
    class Growing(Everything):
        def members(self):
            return torch.arange(2 + self.epoch)

    batches, sampler = Batches(problem().train, None, CPU), Growing(20)
    seen = []
    for epoch in (0, 1, 1, 4):
        sampler.set_epoch(epoch)
        seen += [batch.index.tolist() for batch in batches.epoch(sampler)]
    assert seen == [[0, 1], [0, 1, 2], [0, 1, 2], [0, 1, 2, 3, 4, 5]]


@pytest.mark.parametrize("loader", [False, True])
def test_bytes_are_scaled_to_one(loader):
    pixels = torch.arange(0, 256, 5, dtype=torch.uint8)[:, None]
    labels = torch.arange(len(pixels)) % 2
    split = Split(Pairs(pixels, labels)) if loader else Split(pixels, labels)
    x = torch.cat([batch.x for batch in Batches(split, 10, CPU).in_order()])
    assert x.dtype == torch.float32
    assert x.flatten().tolist() == pytest.approx([v / 255 for v in range(0, 256, 5)])
    assert split.inputs.dtype == torch.uint8 if not loader else True


def test_outputs_are_in_order_in_eval_mode_and_leave_the_mode_alone(problem):
    data = problem(2500)  # more than one batch of evaluation
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3).double())
    for training in (True, False):
        model.train(training)
        outputs = outputs_of(model, Batches(data.train, 64, CPU))
        assert model.training is training
        torch.testing.assert_close(outputs, model[1](data.train.inputs).detach())


@pytest.mark.parametrize("size", [None, 6])
def test_a_network_that_works_in_place_does_not_change_the_data(fit, problem, size):
    data = problem()
    before = data.fingerprint()
    fit(epochs=2, batch_size=size)(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 3)).double(), data)
    assert data.fingerprint() == before


def test_large_examples_are_evaluated_a_few_at_a_time():
    split = Data(train=(torch.zeros(8, EVALUATION_NUMBERS // 3, dtype=torch.uint8), torch.arange(8) % 2)).train
    assert [len(batch) for batch in Batches(split, None, CPU).in_order()] == [3, 3, 2]
    assert [len(batch) for batch in Batches(split, 6, CPU).in_order()] == [6, 2]
