"""Augmentation in the loop: how an example looks is a function of (seed, stage, epoch, index, copy), and of no more."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import Dataset

from evenly.data import Data, Everything, Split, Upsample
from evenly.data.augment import Augment
from evenly.engine import Checkpoints, Objective, measure
from evenly.engine.batches import Batches, numbered
from evenly.errors import EvenlyError
from evenly.optim import SAM
from evenly.randomness import derive

CPU = torch.device("cpu")
COUNT = 23
HARD = [4, 0, 17]


class Read(Dataset):
    """The same images, one at a time, as a reader of files gives them."""

    def __init__(self, images, labels):
        self.images, self.targets = images, labels

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, i):
        return self.images[i], int(self.targets[i])


def images(count=COUNT, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, 9, 8), generator=draw, dtype=torch.uint8), torch.arange(count) % 3


def data_of(streamed=False):
    parts = {"train": images(), "validation": images(12, 1), "test": images(15, 2)}
    return Data(**{name: Read(*part) if streamed else part for name, part in parts.items()})


@pytest.fixture
def net():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(nn.Flatten(), nn.Linear(216, 6), nn.Tanh(), nn.Dropout(0.2), nn.Linear(6, 3))


def sgd(params):
    return torch.optim.SGD(params, lr=0.05, momentum=0.9)


def weights_of(run):
    return torch.cat([value.flatten() for value in run.model.state_dict().values()])


def alone(augment, index, number_of_copy, epoch, seed):
    """One image augmented by itself, not in a batch, as numbers in [0, 1]."""
    place = torch.tensor([index + number_of_copy * COUNT])
    return augment(images()[0][index : index + 1], place, epoch, seed)[0].float() / 255


def watched(fit, net, data, **given):
    """Train, and collect {(epoch, index, copy): view} of every first pass; epochs are told apart by `before_epoch`."""
    views, now = {}, {}

    def before_epoch(epoch, optimizer):
        now["epoch"], now["times"] = epoch, torch.zeros(COUNT, dtype=torch.long)

    def objective(losses, batch, state):
        if batch.first:
            now["x"] = batch.x.clone()
            for x, index in zip(batch.x, batch.index.tolist(), strict=True):
                views[now["epoch"], index, int(now["times"][index])] = x.clone()
                now["times"][index] += 1
        else:
            assert torch.equal(batch.x, now["x"])  # SAM looks twice at the same pixels
        return losses.mean()

    fit(copy.deepcopy(net), data, objective=Objective(objective), before_epoch=before_epoch, **given)
    return views


# What an example looks like


@pytest.mark.parametrize(
    ("recipe", "size", "streamed"),
    [
        ("basic", None, False), ("basic", 1, False), ("basic+trivial", 11, False), ("resized", 50, False),
        ("basic+trivial", None, True), ("basic", 11, True),
    ],
)  # fmt: skip
def test_the_batch_and_the_order_change_nothing(recipe, size, streamed):
    augment, seed = Augment(recipe), 2**50 + 7
    batches = Batches(data_of(streamed).train, size, CPU, augment=augment, seed=seed)
    for sampler in (Everything(COUNT, seed=5), Upsample(HARD, COUNT, factor=3, seed=6)):
        for epoch in (0, 3):
            sampler.set_epoch(epoch)
            times = [0] * COUNT
            for batch in batches.epoch(sampler):
                for x, y, index in zip(batch.x, batch.y, batch.index.tolist(), strict=True):
                    assert torch.equal(x, alone(augment, index, times[index], epoch, seed))
                    assert y == index % 3
                    times[index] += 1
            assert times == torch.bincount(sampler.members(), minlength=COUNT).tolist()


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n - 1), max_size=40))))
def test_numbered_against_counting(case):
    total, indices = case
    times, expected = dict.fromkeys(range(total), 0), []
    for index in indices:
        expected.append(index + total * times[index])
        times[index] += 1
    given_ = torch.tensor(indices, dtype=torch.int64)
    assert numbered(given_, total).tolist() == expected
    assert given_.tolist() == indices


def test_copies_of_an_example_differ_and_the_first_is_as_in_plain_training(fit, net):
    engine = fit(epochs=2, optimizer=sgd, batch_size=6, augment="basic", seed=4)
    plain = watched(engine, net, data_of())
    repeated = watched(engine, net, data_of(), sampler=Upsample(HARD, COUNT, factor=3, seed=8))
    assert set(plain) == {(epoch, index, 0) for epoch in range(2) for index in range(COUNT)}
    assert set(repeated) == set(plain) | {(e, i, r) for e in range(2) for i in HARD for r in (1, 2)}
    for key, view in plain.items():
        assert torch.equal(view, repeated[key])
    for epoch in range(2):
        for index in HARD:
            first, second, third = (repeated[epoch, index, r] for r in range(3))
            assert not torch.equal(first, second)
            assert not torch.equal(first, third)
            assert not torch.equal(second, third)


@pytest.mark.parametrize("size", [7, None])
def test_the_loop_keys_by_seed_stage_and_epoch(fit, net, size):
    """A full batch, too, is another one in every epoch."""
    seen = {}
    for seed, stage in ((0, "final"), (1, "final"), (0, "early")):
        engine = fit(epochs=3, optimizer=sgd, batch_size=size, augment="basic", seed=seed)
        views = watched(engine, net, data_of(), stage=stage)
        key, augment = derive(seed, "augment", stage), Augment("basic")
        for (epoch, index, number), view in views.items():
            assert torch.equal(view, alone(augment, index, number, epoch, key))
        seen[seed, stage] = torch.stack([views[key] for key in sorted(views)]).view(3, COUNT, -1)
    first = seen[0, "final"]
    for other in (seen[1, "final"], seen[0, "early"], first.roll(1, 0)):
        same = (first == other).all(-1).float().mean()
        assert same < 0.2  # a crop of 9 x 9 places and a flip: one in 162 by chance, more where the image is dull


def test_sam_sees_the_same_pixels_twice(fit, net):
    sam = fit(epochs=2, optimizer=lambda params: SAM(sgd(params), rho=0.05), batch_size=6, augment="basic+trivial")
    plain = fit(epochs=2, optimizer=sgd, batch_size=6, augment="basic+trivial")
    ours, theirs = watched(sam, net, data_of()), watched(plain, net, data_of())
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


# What does not change the run


@pytest.mark.parametrize(("workers", "size"), [(0, None), (2, 6)])
def test_images_read_by_workers_train_to_the_same_bits(fit, net, workers, size):
    runs = [
        fit(epochs=2, optimizer=sgd, batch_size=size, augment="basic+trivial", select="average", workers=w)(
            copy.deepcopy(net), data_of(streamed), sampler=Upsample(HARD, COUNT, factor=3)
        )
        for streamed, w in ((False, 0), (True, workers))
    ]
    assert runs[0].history == runs[1].history
    assert torch.equal(weights_of(runs[0]), weights_of(runs[1]))


@pytest.mark.parametrize(("size", "streamed"), [(6, False), (None, False), (6, True)])
def test_resumed_is_the_run_that_was_never_stopped(fit, net, tmp_path, size, streamed):
    def run(**kept):
        sampler = Upsample(HARD, COUNT, factor=2, seed=1)
        engine = fit(epochs=5, optimizer=sgd, batch_size=size, augment="basic+trivial", **kept)
        return engine(copy.deepcopy(net), data_of(streamed), sampler=sampler)

    def stop(share, note):
        if share > 0.5:
            raise InterruptedError

    straight = run()
    with pytest.raises(InterruptedError):
        run(checkpoints=Checkpoints(tmp_path), progress=stop)
    resumed = run(checkpoints=Checkpoints(tmp_path))
    assert torch.equal(weights_of(resumed), weights_of(straight))
    assert resumed.history == straight.history


def by_hand(net, size=6, epochs=2, look=lambda x, index, epoch: x):
    """SGD on pixels in [0, 1], written out; what is random in an epoch is seeded as the engine says."""
    model, (x, y), sampler = copy.deepcopy(net).train(), images(), Everything(COUNT, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with torch.random.fork_rng(devices=[]):
        for epoch in range(epochs):
            torch.manual_seed(derive(0, "final", epoch))
            sampler.set_epoch(epoch)
            for index in sampler.indices().split(size):
                optimizer.zero_grad()
                pixels = look(x[index], index, epoch).float() / 255
                nn.functional.cross_entropy(model(pixels), y[index]).backward()
                optimizer.step()
    return torch.cat([value.flatten() for value in model.state_dict().values()])


def test_none_is_bit_for_bit_plain_training(fit, net, monkeypatch):
    """And augmentation draws nothing from the global generators: dropout falls as it did."""
    expected, engine = by_hand(net), fit(epochs=2, optimizer=sgd, batch_size=6)
    assert torch.equal(weights_of(engine(copy.deepcopy(net), data_of())), expected)
    monkeypatch.setattr("evenly.engine.loop.Augment", lambda name: Augment(lambda pixels, keys: pixels))
    assert torch.equal(weights_of(engine(copy.deepcopy(net), data_of())), expected)


def test_training_on_augmented_images_written_out(fit, net):
    augment, seed = Augment("basic"), derive(0, "augment", "final")
    expected = by_hand(net, look=lambda x, index, epoch: augment(x, index, epoch, seed))
    run = fit(epochs=2, optimizer=sgd, batch_size=6, augment="basic")(copy.deepcopy(net), data_of())
    assert torch.equal(weights_of(run), expected)
    assert not torch.equal(expected, by_hand(net))


# What is never augmented


@pytest.mark.parametrize(("size", "streamed"), [(6, False), (None, False), (6, True)])
def test_nothing_that_is_evaluated_is_augmented(fit, net, streamed, size, monkeypatch):
    """With an augmentation that turns every image into its negative, only training sees negatives."""
    data, negative = data_of(streamed), Augment(lambda pixels, keys: 255 - pixels)
    monkeypatch.setattr("evenly.engine.loop.Augment", lambda name: negative)
    run = fit(epochs=2, optimizer=sgd, batch_size=size)(copy.deepcopy(net), data)
    for name, part in (("train", images()), ("validation", images(12, 1)), ("test", images(15, 2))):
        with torch.no_grad():
            expected = run.model(part[0].float() / 255)
        torch.testing.assert_close(run.outputs(data.splits[name]), expected)
        if name == "validation":
            measured = measure(expected, Split(*part, name="validation"), data)
            assert run.history[-1]["validation"]["loss"] == pytest.approx(measured.loss, rel=1e-5)
    batches = Batches(data.train, size, CPU, augment=negative)
    positive = images()[0].float() / 255
    assert torch.equal(torch.cat([batch.x for batch in batches.in_order()]), positive)
    seen = torch.cat([batch.x for batch in batches.epoch(Everything(COUNT))])
    assert (seen.sum() - (1 - positive).sum()).abs() < 1e-2
    assert (seen.sum() - positive.sum()).abs() > 1


# What is refused


@pytest.mark.parametrize("streamed", [False, True])
def test_numbers_that_are_no_pixels_are_refused(fit, net, streamed):
    x, y = images()
    given_ = Read(x.float() / 255, y) if streamed else (x.float() / 255, y)
    said = r"images are float32 .*uint8" if streamed else r"Augment\('basic'\) is .* train inputs are .*augment='none'"
    with pytest.raises(EvenlyError, match=said) as refused:
        fit(epochs=1, optimizer=sgd, batch_size=6, augment="basic")(net, Data(train=given_))
    assert "\n" not in str(refused.value)
    fit(epochs=1, optimizer=sgd, batch_size=6, augment="none")(net, Data(train=given_))
