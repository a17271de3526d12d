"""Numbers by key: the bits against SplitMix64 in Python's integers, and how they are spread."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from evenly.data.augment.keys import generated_keys, integers, keyed, split, uniform

LAST = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
int64s = st.integers(-(2**63), 2**63 - 1)


def mix(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & LAST
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & LAST
    return z ^ (z >> 31)


def key_of(seed, epoch, index):
    return mix((mix((mix((seed + GOLDEN) & LAST) + epoch) & LAST) + index) & LAST)


def unsigned(tensor):
    return [value % 2**64 for value in tensor.tolist()]


def test_the_bits_are_those_of_splitmix64():
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]  # of the state 0
    assert [unsigned(split(torch.tensor([0]), part))[0] for part in range(3)] == published


@given(seed=st.integers(-(2**70), 2**70), epoch=int64s, index=st.lists(int64s, min_size=1, max_size=4))
def test_keys_and_numbers_equal_those_in_python(seed, epoch, index):
    keys = keyed(seed, epoch, torch.tensor(index))
    expected = [key_of(seed, epoch, each) for each in index]
    assert unsigned(keys) == expected
    for draw in (0, 1, 19):
        bits = [mix((key + (draw + 1) * GOLDEN) & LAST) for key in expected]
        assert unsigned(split(keys, draw)) == bits
        assert uniform(keys, draw).tolist() == [(each >> 11) / 2**53 for each in bits]
        for below in (1, 2, 31, 2**31 - 1):
            assert integers(keys, draw, below).tolist() == [(each >> 32) * below >> 32 for each in bits]


def test_a_bound_for_each_example():
    keys, below = keyed(1, 2, torch.arange(500)), torch.arange(500) % 7 + 1
    drawn = integers(keys, 3, below)
    assert torch.equal(drawn, torch.stack([integers(keys[i : i + 1], 3, int(below[i]))[0] for i in range(500)]))
    assert bool((drawn < below).all())


def test_seed_and_epoch_may_be_tensors_and_of_any_integer_type():
    index = torch.arange(6)
    plain = keyed(7, 3, index)
    for seed, epoch in itertools.product(
        [7, np.int64(7), torch.tensor(7), torch.full((6,), 7)], [3, np.int32(3), torch.tensor(3, dtype=torch.int32)]
    ):
        assert torch.equal(keyed(seed, epoch, index), plain)
    assert torch.equal(keyed(7, 3, index.int()), plain)


def test_numbers_are_uniform():
    for draw in (0, 1, 7):
        u = uniform(keyed(0, 0, torch.arange(100_000)), draw)
        assert float(u.min()) >= 0
        assert float(u.max()) < 1
        assert abs(float(u.mean()) - 1 / 2) < 4 * np.sqrt(1 / 12 / 1e5)
        assert abs(float(u.var()) - 1 / 12) < 4 * np.sqrt(1 / 180 / 1e5)
        assert stats.kstest(u.numpy(), "uniform").pvalue > 1e-3
        low = (u * 2**40 % 256).long()  # bits far below the first ones
        assert stats.chisquare(torch.bincount(low, minlength=256).numpy()).pvalue > 1e-3


@pytest.mark.parametrize("lag", [1, 2, 128])
def test_neighbours_are_independent_along_every_part_of_the_key(lag):
    count = 50_000
    index, zero = torch.arange(count), torch.zeros(count, dtype=torch.int64)
    streams = {
        "index": uniform(keyed(3, 5, index), 0),
        "epoch": uniform(keyed(3, index, zero + 5), 0),
        "seed": uniform(keyed(index, 3, zero + 5), 0),
    }
    for stream in streams.values():
        assert abs(np.corrcoef(stream[:-lag], stream[lag:])[0, 1]) < 4 / np.sqrt(count)
    pairs = [*itertools.combinations(streams.values(), 2)]
    keys = keyed(3, 5, index)
    pairs += [(uniform(keys, 0), uniform(keys, lag)), (uniform(keys, 0), uniform(split(keys, 0), 0))]
    pairs += [(uniform(keyed(3, 5, index), 0), uniform(other, 0)) for other in (keyed(4, 5, index), keyed(3, 6, index))]
    for one, other in pairs:
        assert abs(np.corrcoef(one, other)[0, 1]) < 4 / np.sqrt(count)


def test_no_two_of_many_adjacent_keys_are_equal():
    keys = [keyed(seed, epoch, torch.arange(2000)) for seed in range(-5, 5) for epoch in range(10)]
    assert len(torch.cat(keys).unique()) == 10 * 10 * 2000


def test_one_flipped_bit_flips_half_of_the_bits():
    for place in (0, 1, 31, 62):
        one, other = (unsigned(keyed(0, 0, torch.arange(400) ^ flipped)) for flipped in (0, 1 << place))
        share = np.mean([(a ^ b).bit_count() / 64 for a, b in zip(one, other, strict=True)])
        assert abs(share - 0.5) < 4 * 0.5 / np.sqrt(400 * 64)


def test_generated_keys_come_from_the_generator():
    first, again, other = (generated_keys(1000, generator=torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert len(first.unique()) == 1000
    state = torch.get_rng_state()
    try:
        torch.manual_seed(3)
        one = generated_keys(4)
        assert not torch.equal(one, generated_keys(4))
        torch.manual_seed(3)
        assert torch.equal(one, generated_keys(4))
    finally:
        torch.set_rng_state(state)


@pytest.mark.parametrize(
    ("seed", "epoch", "index", "message"),
    [
        (0, 0, [1, 2], r"index must be an integer tensor \(N,\), the examples' places, got a list"),
        (0, 0, torch.zeros(2), r"index must be .*, got a float32 tensor of shape \(2,\)"),
        (0, 0, torch.zeros(2, dtype=torch.bool), "index must be .*, got a bool tensor"),
        (0, 0, torch.zeros(2, 1, dtype=torch.int64), r"index must be .*, got a int64 tensor of shape \(2, 1\)"),
        (0.5, 0, torch.arange(2), "seed must be an integer, got 0.5"),
        (True, 0, torch.arange(2), "seed must be an integer, got True"),
        (0, None, torch.arange(2), "epoch must be an integer, got None"),
        (0, torch.zeros(3, dtype=torch.int64), torch.arange(2), r"epoch must be .* \(2,\) .* shape \(3,\)"),
        (torch.tensor(0.0), 0, torch.arange(2), r"seed must be .*, got a float32 tensor of shape \(\)"),
    ],
)
def test_what_cannot_be_a_key_is_refused(seed, epoch, index, message, refused):
    refused(message, keyed, seed, epoch, index)
