"""Together, the processes see what the sampler says, in its order, and nothing else but the padding."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from evenly import GroupBalanced, ProgressiveExpansion, Sharded, Upsample
from evenly.data.samplers import Everything
from evenly.errors import EvenlyError


@st.composite
def samplers(draw):
    """A function that makes a sampler, the same at every call."""
    groups = torch.tensor(draw(st.lists(st.integers(0, 3), min_size=1, max_size=40)))
    seed, total = draw(st.integers(0, 99)), len(groups)
    hard = draw(st.lists(st.integers(0, total - 1), unique=True))
    factor, warmup, every = (draw(st.integers(low, 3)) for low in (1, 0, 1))
    return draw(
        st.sampled_from(
            [
                lambda: Everything(total, seed),
                lambda: Upsample(hard, total, factor, seed),
                lambda: ProgressiveExpansion(groups, warmup, every, 2, seed=seed),
                lambda: GroupBalanced(groups, seed=seed),
            ]
        )
    )


@settings(deadline=None, max_examples=100)
@given(make=samplers(), processes=st.integers(1, 6), batch=st.integers(1, 5), epochs=st.integers(1, 5))
def test_steps_of_all_processes_are_the_batches_of_one(make, processes, batch, epochs):
    shards = [Sharded(make(), rank, processes) for rank in range(processes)]
    alone = make()
    for epoch in range(epochs):
        alone.set_epoch(epoch)
        expected, padding = alone.indices(), shards[0].padding()
        lengths = {len(shard) for shard in shards}
        seen = [list(shard) for shard in shards]  # which moves each on to the next epoch
        assert {len(part) for part in seen} == lengths
        assert len(padding) == -len(expected) % processes
        together = torch.tensor(seen).T.flatten()
        assert torch.equal(together, torch.cat([expected, padding]))
        assert torch.equal(padding, expected[torch.arange(len(padding)) % len(expected)])
        for step, whole in enumerate(torch.cat([expected, padding]).split(batch * processes)):
            parts = [torch.tensor(part[step * batch : (step + 1) * batch]) for part in seen]
            assert torch.equal(torch.cat(parts).sort().values, whole.sort().values)


@given(make=samplers(), before=st.integers(1, 4), after=st.integers(1, 4), epoch=st.integers(0, 4))
@settings(deadline=None, max_examples=50)
def test_another_number_of_processes_goes_on_where_the_state_was_taken(make, before, after, epoch):
    first = Sharded(make(), before - 1, before)
    first.set_epoch(epoch)
    list(first)
    alone = make()
    alone.set_epoch(epoch + 1)
    counts = torch.bincount(alone.indices(), minlength=40)
    shards = [Sharded(make(), rank, after) for rank in range(after)]
    for shard in shards:
        shard.load_state_dict(first.state_dict())
        assert shard.epoch == epoch + 1
    seen = torch.bincount(torch.tensor([index for shard in shards for index in shard]), minlength=40)
    shards[0].set_epoch(epoch + 1)
    assert torch.equal(seen - torch.bincount(shards[0].padding(), minlength=40), counts)


def test_the_length_grows_with_the_set():
    """torch's DistributedSampler fixes its length once."""
    sampler = Sharded(ProgressiveExpansion([0] * 9 + [1] * 3, warmup_epochs=1, every=1, add=3), 1, 2)
    loader = DataLoader(TensorDataset(torch.arange(12)), batch_size=2, sampler=sampler)
    assert isinstance(sampler, DistributedSampler)  # what keeps Lightning from putting another around it
    sizes = []
    for epoch in range(4):
        sampler.set_epoch(epoch)
        assert (sampler.num_samples, sampler.total_size) == (len(sampler), 2 * len(sampler))
        sizes.append((len(loader), sum(len(batch) for (batch,) in loader)))
    assert sizes == [(2, 3), (3, 5), (3, 6), (3, 6)]


def test_an_epoch_goes_on_in_its_middle():
    sampler = Sharded(Everything(10, seed=3), 1, 2)
    whole = list(sampler)
    sampler.set_epoch(0)
    sampler.skip(2)
    assert len(sampler) == 5
    assert list(sampler) == whole[2:]
    assert (sampler.epoch, len(list(sampler))) == (1, 5)
    sampler.skip(2)
    sampler.set_epoch(7)  # another epoch begins at its beginning
    assert len(list(sampler)) == 5


def test_without_a_process_group_there_is_one_process():
    sampler = Sharded(Everything(5, seed=2))
    assert (sampler.rank, sampler.num_replicas, sampler.seed) == (0, 1, 2)
    assert list(sampler) == Everything(5, seed=2).indices().tolist()
    assert not len(sampler.padding())


def test_what_cannot_be_divided_is_refused():
    with pytest.raises(EvenlyError, match="a list cannot be divided among processes; give one of evenly's samplers"):
        Sharded([0, 1])
    with pytest.raises(EvenlyError, match="rank 2 is none of 2 processes; give both"):
        Sharded(Everything(4), 2, 2)
    with pytest.raises(EvenlyError, match="rank 0 is none of an unknown number of processes; give both"):
        Sharded(Everything(4), 0)
    with pytest.raises(EvenlyError, match="processes must be at least 1, got 0"):
        Sharded(Everything(4), 0, 0)
