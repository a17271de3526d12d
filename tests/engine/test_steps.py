"""One step: what it sums, and how few operations it takes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from evenly.data import Data
from evenly.engine.batches import Batches
from evenly.engine.steps import Objective, Step

CPU = torch.device("cpu")


class Counted(TorchDispatchMode):
    """Counts the operations that torch is asked for."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 2))


def batches_of(sizes):
    x, y = torch.randn(sum(sizes), 5, generator=torch.Generator().manual_seed(1)), torch.arange(sum(sizes)) % 2
    return Batches(Data(train=(x, y)).train, 8, CPU)._read(list(torch.arange(sum(sizes)).split(sizes)), None)


def made():
    model = network()
    return Step(model, torch.optim.SGD(model.parameters(), lr=0.1), Objective(), "float32", CPU)


def test_a_step_takes_hardly_more_operations_than_a_plain_loop_that_sums_nothing():
    model, step, batches = network(), made(), list(batches_of([8] * 40))
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with Counted() as plain:
        for batch in batches:
            sgd.zero_grad()
            cross_entropy(model(batch.x), batch.y).backward()
            sgd.step()
    with Counted() as ours:
        for batch in batches:
            step(batch)
        step.read()
    assert ours.count <= 1.1 * plain.count


@pytest.mark.parametrize("sizes", [[8] * 150 + [5], [3, 3, 8, 8, 1], [4]])
def test_losses_and_hits_are_those_of_a_loop_that_sums_batch_by_batch(sizes):
    model, loss_sum, right = network(), 0.0, 0
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches_of(sizes):
        sgd.zero_grad()
        outputs = model(batch.x)
        losses = cross_entropy(outputs, batch.y, reduction="none")
        losses.mean().backward()
        sgd.step()
        loss_sum, right = loss_sum + losses.sum().item(), right + int((outputs.argmax(1) == batch.y).sum())
    step = made()
    for batch in batches_of(sizes):
        step(batch)
    assert step.read() == [loss_sum, right]
    assert step.read() == [0, 0]
    assert all(torch.equal(*pair) for pair in zip(step.model.parameters(), model.parameters(), strict=True))
