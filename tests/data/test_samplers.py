"""Samplers: which examples an epoch holds, how often, in which order. Each against counting by hand."""

import time
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from evenly import GroupBalanced, ProgressiveExpansion, Upsample
from evenly.data import Everything
from evenly.data.samplers import members_by_group

GROUPS = [0] * 25 + [1] * 4 + [3] * 11  # group 2 has no example
SAMPLERS = {
    "everything": lambda seed: Everything(40, seed),
    "upsample": lambda seed: Upsample([1, 5, 30], 40, 3, seed),
    "progressive": lambda seed: ProgressiveExpansion(GROUPS, 2, 1, 5, seed=seed),
    "balanced": lambda seed: GroupBalanced(GROUPS, seed=seed),
}
some_groups = st.lists(st.integers(0, 4), min_size=1, max_size=40)
seeds = st.integers(0, 2**40)


def epochs(sampler, count):
    return [list(sampler) for _ in range(count)]


def by_group(indices, groups):
    return Counter(groups[i] for i in indices)


# every sampler


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_order_is_a_function_of_seed_and_epoch_and_of_no_global_state(name):
    state = torch.random.get_rng_state()
    first, again, other = (epochs(SAMPLERS[name](seed), 3) for seed in (7, 7, 8))
    assert first == again
    assert len({*map(tuple, first), *map(tuple, other)}) == 6
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("name", SAMPLERS)
def test_iterating_moves_to_the_next_epoch_and_set_epoch_or_a_state_dict_to_any(name):
    sampler = SAMPLERS[name](7)
    five = epochs(sampler, 5)
    assert sampler.epoch == 5
    sampler.set_epoch(1)
    assert list(sampler) == five[1]
    assert sampler.epoch == 2
    assert len(sampler) == len(five[2])
    assert sampler.indices().tolist() == five[2] == sampler.indices().tolist()
    assert sorted(sampler.members().tolist()) == sorted(five[2])
    resumed = SAMPLERS[name](0)
    resumed.load_state_dict(sampler.state_dict())
    assert epochs(resumed, 3) == five[2:], "a state dict brings its epoch and its seed"


@pytest.mark.parametrize("name", SAMPLERS)
def test_feeds_a_data_loader_epoch_after_epoch(name):
    expected = epochs(SAMPLERS[name](7), 2)
    loader = DataLoader(TensorDataset(torch.arange(40)), batch_size=7, sampler=SAMPLERS[name](7))
    assert len(loader) == -(-len(expected[0]) // 7)
    assert [[int(i) for (batch,) in loader for i in batch] for _ in range(2)] == expected


# Everything and Upsample


@given(total=st.integers(1, 50), seed=seeds)
def test_everything_is_every_index_once(total, seed):
    for epoch in epochs(Everything(total, seed), 2):
        assert sorted(epoch) == list(range(total))


@given(total=st.integers(1, 50), factor=st.integers(1, 4), seed=seeds, draw=st.data())
def test_upsample_counts_are_exact(total, factor, seed, draw):
    hard = draw.draw(st.lists(st.integers(0, total - 1), unique=True))
    for epoch in epochs(Upsample(hard, total, factor, seed), 2):
        assert Counter(epoch) == {i: factor if i in hard else 1 for i in range(total)}


# ProgressiveExpansion

additions = st.one_of(st.integers(0, 9), st.lists(st.integers(0, 9), max_size=4), st.just("all"))


def simulated_sizes(groups, warmup, every, add, cap, count):
    """How many of each epoch there must be: the algorithm box, one epoch after the other."""
    sizes = Counter(groups).values()
    size = min(sizes) * len(sizes) if cap is None else sum(min(cap, n) for n in sizes)
    left = iter([add] * count if isinstance(add, int) else [len(groups)] if add == "all" else add)
    result = []
    for epoch in range(count):
        if epoch >= warmup and (epoch - warmup) % every == 0:
            size = min(size + next(left, 0), len(groups))
        result.append(size)
    return result


@given(
    groups=some_groups, warmup=st.integers(0, 5), every=st.integers(1, 4), add=additions,
    cap=st.none() | st.integers(1, 6), draw=st.sampled_from(["even", "random"]), seed=seeds,
)  # fmt: skip
def test_expansion_agrees_with_a_simulation(groups, warmup, every, add, cap, draw, seed):
    sampler = ProgressiveExpansion(groups, warmup, every, add, cap, draw, seed)
    sets = epochs(sampler, 14)
    expected = simulated_sizes(groups, warmup, every, add, cap, 14)
    assert [len(epoch) for epoch in sets] == expected == [sampler.size(epoch) for epoch in range(14)]
    for epoch in sets:
        assert len(set(epoch)) == len(epoch)
        assert set(epoch) <= set(range(len(groups)))
    for before, after in pairwise(sets):
        assert set(before) <= set(after)
    entered = [next((e for e, epoch in enumerate(sets) if i in epoch), -1) for i in range(len(groups))]
    assert sampler.entry_epochs(14).tolist() == entered


@given(groups=some_groups, cap=st.none() | st.integers(1, 6), seed=seeds)
def test_the_warmup_set_is_balanced(groups, cap, seed):
    sizes = Counter(groups)
    expected = {g: min(sizes.values()) if cap is None else min(cap, n) for g, n in sizes.items()}
    for epoch in epochs(ProgressiveExpansion(groups, warmup_epochs=3, cap=cap, seed=seed), 3):
        assert by_group(epoch, groups) == expected


@given(groups=some_groups, add=st.integers(1, 9), cap=st.none() | st.integers(1, 3), seed=seeds)
def test_every_expansion_is_as_even_as_what_is_left_allows(groups, add, cap, seed):
    sizes = Counter(groups)
    sets = epochs(ProgressiveExpansion(groups, 1, 1, add, cap, "even", seed), 30)
    for before, after in pairwise(sets):
        drawn, have = by_group(sorted(set(after) - set(before)), groups), by_group(after, groups)
        open_groups = [drawn[g] for g in sizes if have[g] < sizes[g]]
        if open_groups:
            assert max(open_groups) - min(open_groups) <= 1
            assert all(drawn[g] <= min(open_groups) + 1 for g in sizes)


@given(groups=some_groups, add=additions, cap=st.none() | st.integers(1, 3), seed=seeds, draw=st.data())
def test_group_counts_depend_neither_on_the_order_of_storage_nor_on_the_numbering(groups, add, cap, seed, draw):
    def counts(groups):
        sampler = ProgressiveExpansion(groups, 2, 2, add, cap, "even", seed)
        return [by_group(epoch, groups) for epoch in epochs(sampler, 8)]

    stored = counts(groups)
    assert counts(draw.draw(st.permutations(groups))) == stored
    renumbered = counts([3 * g + 1 for g in groups])
    assert [{3 * g + 1: n for g, n in epoch.items()} for epoch in stored] == renumbered


def share_of_first_group(draw, seed):
    groups = [0] * 94 + [1] * 14  # four of each in the warm-up set, so the pool is 90 to 10
    sampler = ProgressiveExpansion(groups, 1, 1, 10, cap=4, draw=draw, seed=seed)
    before, after = epochs(sampler, 2)
    return by_group(sorted(set(after) - set(before)), groups)[0]


def test_a_random_draw_follows_the_pool_and_an_even_one_does_not():
    assert {share_of_first_group("even", seed) for seed in range(20)} == {5}
    drawn = [share_of_first_group("random", seed) for seed in range(200)]
    deviation = (10 * 0.9 * 0.1 * 90 / 99) ** 0.5  # hypergeometric
    assert abs(np.mean(drawn) - 9) < 5 * deviation / 200**0.5
    assert len(set(drawn)) > 2


def test_every_member_of_a_large_group_is_as_likely_to_be_in_the_warmup_set():
    groups = [0] * 20 + [1] * 5
    chosen = Counter(i for seed in range(800) for i in ProgressiveExpansion(groups, 1, seed=seed).members().tolist())
    assert all(chosen[i] == 800 for i in range(20, 25))
    deviation = (800 * 0.25 * 0.75) ** 0.5
    assert all(abs(chosen[i] - 200) < 5 * deviation for i in range(20))


def test_numpy_numbers_serve_as_additions_and_seeds_give_different_sets():
    assert ProgressiveExpansion([0, 1, 1, 1], 1, 1, np.int64(1)).size(1) == 3
    assert ProgressiveExpansion([0, 1, 1, 1], 1, 1, np.array([1, 1])).size(2) == 4
    sets = {tuple(sorted(ProgressiveExpansion(GROUPS, 1, seed=seed).members().tolist())) for seed in range(10)}
    assert len(sets) == 10


# GroupBalanced


@given(groups=some_groups, total=st.none() | st.integers(1, 60), seed=seeds)
def test_balanced_groups_are_drawn_equally_often_and_evenly_within(groups, total, seed):
    sampler = GroupBalanced(groups, total, seed)
    sizes = Counter(groups)
    over_epochs = Counter()
    for epoch in epochs(sampler, len(sizes)):
        assert len(epoch) == len(sampler) == (len(groups) if total is None else total)
        drawn, times = by_group(epoch, groups), Counter(epoch)
        assert max(drawn[g] for g in sizes) - min(drawn[g] for g in sizes) <= 1
        for g in sizes:
            within = [times[i] for i, group in enumerate(groups) if group == g]
            assert max(within) - min(within) <= 1
        over_epochs += drawn
    assert len({over_epochs[g] for g in sizes}) == 1  # the odd draw goes round the groups


def test_balanced_draws_differ_between_epochs_and_favour_nobody():
    groups = [0] * 20 + [1] * 20
    sampler = GroupBalanced(groups, total=10, seed=3)
    times = Counter(i for epoch in epochs(sampler, 400) for i in epoch)
    deviation = (400 * 0.25 * 0.75) ** 0.5
    assert all(abs(times[i] - 100) < 5 * deviation for i in range(40))


THREE = [0, 1, 1]
REFUSED = [
    (lambda: Upsample([5], 5), "hard indices must be from 0 to 4, got 5"),
    (lambda: Upsample([-1, 2], 5), "hard indices must be from 0 to 4, got -1"),
    (lambda: Upsample([2, 1, 2], 5), "hard must name each index once, got 2 twice"),
    (lambda: Upsample([False, True], 2), "hard must be integer indices, got torch.bool"),
    (lambda: ProgressiveExpansion([]), r"groups must be integers \(N,\), got shape \(0,\)"),
    (lambda: ProgressiveExpansion([[0, 1]]), r"groups must be .*, got shape \(1, 2\)"),
    (lambda: ProgressiveExpansion([True, False]), "groups must be .* type torch.bool"),
    (lambda: ProgressiveExpansion([0.0, 1.0]), "groups must be .* type torch.float32"),
    (lambda: ProgressiveExpansion(THREE, add=-1), "add must be at least 0, got -1"),
    (lambda: ProgressiveExpansion(THREE, add=[3, -2]), r"add must be at least 0, got \[3, -2\]"),
    (lambda: ProgressiveExpansion(THREE, add="some"), "add must be a whole number or a list or one of all, got 'some'"),
    (lambda: ProgressiveExpansion(THREE, add=2.5), "add must be .* got 2.5"),
    (lambda: GroupBalanced([]), r"groups must be .*, got shape \(0,\)"),
    (lambda: GroupBalanced(torch.ones(4, 2).bool()), r"groups must be .*, got shape \(4, 2\)"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_refusals(refused, call, message):
    refused(message, call)


# many groups


def test_members_of_groups_with_gaps():
    groups = torch.tensor([70, 3, 70, 3, 3, 5])
    assert {g: members.tolist() for g, members in members_by_group(groups).items()} == {
        3: [1, 3, 4],
        5: [5],
        70: [0, 2],
    }


def test_time_grows_with_examples_plus_groups():
    """A comparison of every example with every group takes over ten seconds here."""
    groups = 5 * (torch.arange(400_000) % 20_000)
    started = time.perf_counter()
    assert len(GroupBalanced(groups)) == 400_000
    assert time.perf_counter() - started < 2
