"""Operations on lists of tensors, against the same on their concatenation in double precision."""

from __future__ import annotations

import pytest
import torch

from evenly.optim.foreach import RUN, SMALL, add_divided, norm


def tensors(*sizes, dtype=torch.float32):
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=draw).to(dtype) for size in sizes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "sizes",
    [(1,), (SMALL, SMALL + 1), (3 * SMALL,), (5,) * (RUN + 1), (0, 3), (SMALL + 1, 2, 2 * SMALL, 7)],
    ids=["one", "the border", "large", "a run and one more", "an empty one", "mixed"],
)
def test_the_norm_is_that_of_all_of_them(sizes, dtype):
    parts = tensors(*sizes, dtype=dtype)
    expected = torch.cat(parts).double().norm()
    torch.testing.assert_close(norm([parts]).double(), expected, rtol=1e-13, atol=0)
    torch.testing.assert_close(norm([parts, [], parts]).double(), expected * 2**0.5, rtol=1e-13, atol=0)


def test_the_norm_of_many_numbers_keeps_its_digits():
    ten_million = torch.full((10_000_000,), 0.1)
    assert norm([[ten_million]]).item() == pytest.approx(float(ten_million[0]) * 10_000_000**0.5, rel=1e-10)


@pytest.mark.parametrize("size", [1e-42, 1e-25, 1e25, 3e38])
def test_the_norm_neither_vanishes_nor_overflows(size):
    value = norm([[torch.full((100,), size)]])
    assert value.item() == pytest.approx(10 * float(torch.tensor(size)), rel=1e-6)


@pytest.mark.parametrize("divisor", [2.0, -2.0, 1e-35, 1e35])
def test_adding_divided(divisor):
    a, d = tensors(4, 5), tensors(4, 5)
    d = [direction * min(abs(divisor), 1e30) for direction in d]
    expected = [x.double() + y.double() / divisor for x, y in zip(a, d, strict=True)]
    add_divided(a, d, torch.tensor(divisor, dtype=torch.float64))
    for x, e in zip(a, expected, strict=True):
        torch.testing.assert_close(x.double(), e, rtol=1e-5, atol=1e-6)
