"""Constructed networks against brute force: gradients by autograd, dense Hessians, draws of data."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from evenly import EvenlyError
from evenly.diagnose import coherence
from evenly.theory.parity import (
    TwoLayerReLU,
    blocks,
    boolean_inputs,
    coherence_matrix,
    converse_of_theorem_3_4_fails,
    equation_79,
    flattest_r,
    gradient_products,
    is_memorizing,
    labels,
    mean_overlap,
    memorizing,
    solution,
    theorem_3_5,
    theorem_3_6,
    trace,
)

SIZES = [(d, C) for d in (5, 6, 7, 8) for C in (1, 2, 3, 4)]
RADII = (0.4, 1.0, 3.0, None)


def scale(r: float | None, d: int) -> float:
    return flattest_r(d) if r is None else r


def autograd_gradients(network: nn.Module, x: Tensor) -> Tensor:
    """(n, p): one backward pass per sample, parameters in their order."""
    rows = []
    for sample in x:
        grads = torch.autograd.grad(network(sample[None]).sum(), list(network.parameters()))
        rows.append(torch.cat([g.flatten() for g in grads]))
    return torch.stack(rows)


def dense_coherence(gradients: Tensor, ascent: float = 0.0) -> tuple[Tensor, Tensor]:
    """S_ij = sqrt(Tr (I + cH) H_i (I + cH) H_j) from p x p matrices, and lambda_max((I + cH) H_i) for each i."""
    hessians = [g[:, None] * g for g in gradients]
    H = sum(hessians) / len(hessians)
    ascend = torch.eye(len(H), dtype=H.dtype) + ascent * H
    S = torch.stack([torch.stack([torch.trace(ascend @ a @ ascend @ b) for b in hessians]) for a in hessians])
    largest = torch.stack([torch.linalg.eigvals(ascend @ a).real.max() for a in hessians])
    return S.clamp(min=0).sqrt(), largest


def draw(n: int, d: int, seed: int) -> Tensor:
    return torch.randint(0, 2, (n, d), generator=torch.Generator().manual_seed(seed)).double() * 2 - 1


def lambda_max(S: Tensor) -> float:
    return float(torch.linalg.eigvalsh(S)[-1])


def test_boolean_inputs_are_all_of_them():
    x = boolean_inputs(4)
    assert x.dtype == torch.float64
    assert sorted(map(tuple, x.tolist())) == sorted(itertools.product((-1.0, 1.0), repeat=4))
    assert x[:3, :2].tolist() == [[1, 1], [-1, 1], [1, -1]]


def test_labels_read_two_inputs_or_one():
    x = draw(30, 5, seed=0)
    assert labels(x, 1).tolist() == [row[0] for row in x.tolist()]
    for C in (2, 3, 5):
        assert labels(x, C).tolist() == [row[0] * row[1] for row in x.tolist()]


def test_the_weights_of_the_papers_example():
    """C.1: d = 5, C = 3, r = 1, ten units."""
    network = solution(5, 3, 1.0, hidden=10)
    assert [name for name, _ in network.named_parameters()] == ["W2", "W1", "b"]
    rows = [[1, 1, 1], [-1, 1, 1], [1, -1, 1], [-1, -1, 1], [1, 1, -1], [-1, 1, -1], [1, -1, -1], [-1, -1, -1]]
    assert network.W1.tolist() == [[*row, 0, 0] for row in rows] + [[0] * 5] * 2
    assert network.W2.tolist() == [1, -1, -1, 1, 1, -1, -1, 1, 0, 0]
    assert network.b.tolist() == [-2] * 8 + [0, 0]


@pytest.mark.parametrize(("d", "C"), SIZES)
@pytest.mark.parametrize("r", RADII)
def test_solutions_are_exact_with_one_active_unit_and_the_traces_they_should_have(d: int, C: int, r: float | None):
    r = scale(r, d)
    x = boolean_inputs(d)
    network = solution(d, C, r, hidden=2**C + 3)
    y = x[:, 0] * (x[:, 1] if C > 1 else 1)
    torch.testing.assert_close(network(x), y, rtol=0, atol=1e-12)
    active = network.active(x)
    assert bool((active.sum(1) == 1).all())
    assert torch.equal(active.long().argmax(1), blocks(x, C))

    some = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(d + C))[:24]]
    gradients = autograd_gradients(network, some)
    assert (gradients**2).sum(1).tolist() == pytest.approx([r**2 + (d + 1) / r**2] * len(some), rel=1e-12)
    assert trace(d, r) == pytest.approx(r**2 + (d + 1) / r**2, rel=1e-12)
    torch.testing.assert_close(gradient_products(some, C, r), gradients @ gradients.T, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(coherence_matrix(some, C, r), (gradients @ gradients.T).abs(), rtol=1e-12, atol=1e-12)


def test_s_counts_negative_products_by_their_size():
    """r = 0.4 makes 1 + x_i . x_j large; without the modulus S would have negative entries."""
    x = boolean_inputs(8)
    assert float(gradient_products(x, 2, 0.4).min()) < -1
    assert float(coherence_matrix(x, 2, 0.4).min()) == 0


@pytest.mark.parametrize(("d", "C"), [(5, 1), (5, 2), (6, 3)])
@pytest.mark.parametrize("ascent", [0.0, 0.3])
def test_sam_coherence_is_its_definition(d: int, C: int, ascent: float):
    x, r = draw(9, d, seed=d), 0.9
    S, largest = dense_coherence(autograd_gradients(solution(d, C, r), x), ascent)
    closed = coherence_matrix(x, C, r, ascent=ascent)
    torch.testing.assert_close(closed, S, rtol=1e-10, atol=1e-6)  # the definition's root loses half the digits near 0
    torch.testing.assert_close(closed.diagonal(), largest, rtol=1e-10, atol=0)


@pytest.mark.parametrize("ascent", [0.0, 0.3])
def test_evenly_measures_the_closed_form_on_the_module(ascent: float):
    x, r = draw(40, 7, seed=2), 1.2
    measured = coherence(solution(7, 3, r, hidden=10), "squared", (x, labels(x, 3)), ascent=ascent)
    S = coherence_matrix(x, 3, r, ascent=ascent)
    assert measured.matrix is not None
    torch.testing.assert_close(measured.matrix, S, rtol=1e-10, atol=1e-12)
    assert measured.measure == pytest.approx(lambda_max(S) / float(S.diagonal().max()), rel=1e-10)
    distinct = x.unique(dim=0)
    y = labels(distinct, 3)
    one = coherence(memorizing(distinct, y), "squared", (distinct, y), ascent=ascent)
    assert one.measure == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("d", [1, 3, 8, 100])
def test_the_flattest_r_is_the_flattest(d: int):
    best = flattest_r(d)
    assert trace(d, best) == pytest.approx(2 * math.sqrt(d + 1), rel=1e-12)
    assert all(trace(d, best * factor) > trace(d, best) for factor in (0.9, 0.99, 1.01, 1.1))


@pytest.mark.parametrize("r", [0.5, 1.7])
def test_the_mean_overlap_is_that_of_all_pairs_in_a_block(r: float):
    d, C = 6, 3
    x = boolean_inputs(d)
    block = x[blocks(x, C) == 5]
    assert mean_overlap(C, r) == pytest.approx(float((r**2 + (1 + block @ block.T) / r**2).mean()), rel=1e-12)


@pytest.mark.parametrize(
    ("d", "n", "hidden", "r"), [(5, 20, None, None), (8, 50, 60, 1.3), (3, 8, None, 0.7), (1, 2, 2, 2)]
)
def test_memorizing_solutions_have_a_unit_per_sample_and_coherence_one(
    d: int, n: int, hidden: int | None, r: float | None
):
    chosen = torch.randperm(2**d, generator=torch.Generator().manual_seed(n))[:n]
    x, y = boolean_inputs(d)[chosen], torch.linspace(-1, 2, n, dtype=torch.float64)
    network = memorizing(x, y, r, hidden)
    torch.testing.assert_close(network(x), y, rtol=0, atol=1e-12)
    assert network.W2.numel() == (hidden or n)
    assert is_memorizing(network, x)
    assert torch.equal(network.active(x)[:, :n], torch.eye(n, dtype=torch.bool))
    gradients = autograd_gradients(network, x)
    S = (gradients @ gradients.T).abs()
    assert torch.equal(S, S.diagonal().diag())
    assert lambda_max(S) / float(S.diagonal().max()) == pytest.approx(1, abs=1e-12)
    r = scale(r, d)
    torch.testing.assert_close(S.diagonal(), r**2 + (d + 1) * y**2 / r**2, rtol=1e-12, atol=0)


def test_memorizing_what_the_labels_are_is_the_solution_that_reads_all_inputs():
    x = boolean_inputs(4)
    mine, reads_all = memorizing(x, labels(x, 4), 1.5), solution(4, 4, 1.5)
    for ours, theirs in zip(mine.parameters(), reads_all.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)


def test_a_solution_that_reads_few_inputs_is_not_memorizing():
    x = boolean_inputs(5)
    assert not is_memorizing(solution(5, 2, 1.0), x)
    assert is_memorizing(solution(5, 2, 1.0), x[:4])  # these four differ in the inputs that are read
    idle = TwoLayerReLU(torch.ones(4), torch.zeros(4, 5), -torch.ones(4)).double()
    assert not is_memorizing(idle, x[:4])  # a sample without a unit is not memorized


def test_the_converse_of_theorem_3_4_fails():
    network, x = converse_of_theorem_3_4_fails()
    assert float(x[0] @ x[1]) == -2
    assert torch.equal(network(x), labels(x, 2))
    assert not is_memorizing(network, x)
    gradients = autograd_gradients(network, x)
    assert float(gradients[0] @ gradients[1]) == 0
    assert torch.equal(coherence_matrix(x, 2, 1.0), torch.eye(2).double() * trace(6, 1.0))


@pytest.mark.parametrize(("d", "C"), SIZES)
def test_the_converse_of_theorem_3_4_holds_at_the_flattest_r(d: int, C: int):
    x = boolean_inputs(d)
    unit = blocks(x, C)
    shared = unit[:, None] == unit
    assert float(coherence_matrix(x, C, flattest_r(d))[shared].min()) > 0


@pytest.mark.parametrize("form", ["printed", "corrected"])
def test_theorem_3_5_is_its_formula(form: str):
    s = 2 * math.sqrt(9) if form == "printed" else 1.5**2 + 9 / 1.5**2
    expected = s * (40 / 8 + math.sqrt(40 * (3 + math.log(1 / 0.1)) / 2))
    assert theorem_3_5(40, 8, 3, 1.5, delta=0.1, form=form) == pytest.approx(expected, rel=1e-12)
    assert theorem_3_5(40, 8, 3, form="printed") == pytest.approx(theorem_3_5(40, 8, 3), rel=1e-12)


def test_theorem_3_5_holds_in_five_hundred_draws_and_as_printed_not_at_every_r():
    printed_broken = 0
    for seed in range(500):
        d, C, n = 5 + seed % 4, 1 + seed // 4 % 4, (20, 60)[seed // 16 % 2]
        x, r = draw(n, d, seed), (0.5, 1.0, flattest_r(d), 4.0)[seed // 32 % 4]
        measured = lambda_max(coherence_matrix(x, C, r))
        assert measured <= theorem_3_5(n, d, C, r, delta=0.05)
        printed_broken += measured > theorem_3_5(n, d, C, r, delta=0.05, form="printed")
    assert printed_broken > 0


def formula_3_6(n: int, C: int, s: float, c: float) -> float:
    u = 1 / 2**C
    return n * u * s * math.sqrt((1 + c * u * s) ** 2 + c**2 * (u - u**2) * s**2 / n)


def test_theorem_3_6_is_its_formula():
    n, d, C, r, c = 30, 7, 2, 1.3, 0.2
    within = r**2 + (1 + C) / r**2
    assert theorem_3_6(n, d, C, r, ascent=c) == pytest.approx(formula_3_6(n, C, within, c), rel=1e-12)
    printed = formula_3_6(n, C, 2 * math.sqrt(d + 1), c)
    assert theorem_3_6(n, d, C, r, ascent=c, form="printed") == pytest.approx(printed, rel=1e-12)
    sure = n / 4 * within * (1 + c / 4 * within)
    assert theorem_3_6(n, d, C, r, ascent=c, form="sure") == pytest.approx(sure, rel=1e-12)
    assert theorem_3_6(n, d, C, ascent=c) == theorem_3_6(n, d, C, flattest_r(d), ascent=c)


def test_theorem_3_6_fails_as_printed_and_holds_as_corrected():
    printed_fails = 0
    for seed in range(96):
        d, C, n = 5 + seed % 4, 1 + seed // 4 % 4, (40, 120)[seed // 16 % 2]
        r, c = (1.0, flattest_r(d))[seed % 2], (0.05, 0.2, 1.0)[seed // 32]
        measured = lambda_max(coherence_matrix(draw(n, d, seed), C, r, ascent=c))
        assert measured >= theorem_3_6(n, d, C, r, ascent=c)
        printed_fails += measured < theorem_3_6(n, d, C, r, ascent=c, form="printed")
    assert printed_fails >= 10


def test_theorem_3_6_as_corrected_is_about_draws_and_the_sure_form_about_every_data_set():
    """All 2^d inputs once: blocks of equal size whose samples average out, so nothing is left over."""
    d, C, r, c = 6, 2, flattest_r(6), 0.5
    x = boolean_inputs(d)
    measured = lambda_max(coherence_matrix(x, C, r, ascent=c))
    assert measured == pytest.approx(theorem_3_6(len(x), d, C, r, ascent=c, form="sure"), rel=1e-12)
    corrected = theorem_3_6(len(x), d, C, r, ascent=c)
    assert measured < corrected < 1.01 * measured
    for seed in range(20):
        few = draw(3 + seed, d, seed)
        at_least = theorem_3_6(len(few), d, C, 0.8, ascent=c, form="sure")
        assert lambda_max(coherence_matrix(few, C, 0.8, ascent=c)) >= at_least


@pytest.mark.parametrize("r", [0.8, None])
def test_equation_79_is_the_mean_over_data_sets(r: float | None):
    """All data sets of n = 3 samples with d = 3: 512 of them, the mean is exact."""
    n, d, C, c = 3, 3, 2, 0.7
    points, r_used = boolean_inputs(d), scale(r, d)
    sets = [points[list(chosen)] for chosen in itertools.product(range(8), repeat=n)]
    each = torch.stack([coherence_matrix(x, C, r_used, ascent=c).diagonal() for x in sets])
    mean = equation_79(n, d, C, r, ascent=c)
    assert each.mean(0).tolist() == pytest.approx([mean] * n, rel=1e-12)
    assert float(each.max(1).values.mean()) > mean
    s = 2 * math.sqrt(d + 1)
    assert equation_79(n, d, C, r, ascent=c, form="printed") == pytest.approx(s * (1 + c / 4 * s), rel=1e-12)


def test_float32_networks_on_request():
    network = solution(5, 2, 1.0, dtype=torch.float32)
    assert {p.dtype for p in network.parameters()} == {torch.float32}
    assert network(boolean_inputs(5, dtype=torch.float32)).shape == (32,)
    assert network(boolean_inputs(5, dtype=torch.float32)[3]).shape == ()


X = torch.tensor([[1.0, -1.0, 1.0], [-1.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
REFUSED = {
    "C must be at most 3, the number of inputs, got 4": lambda: solution(3, 4, 1.0),
    "hidden must be at least 4, a unit for each of the 2^2 patterns, got 3": lambda: solution(3, 2, 1.0, 3),
    "hidden must be at least 3, a unit for each sample, got 2": lambda: memorizing(X, torch.ones(3), hidden=2),
    "x[1, 2] must be -1 or 1, got 0.5": lambda: blocks(torch.tensor([[1, 1, 1], [1, 1, 0.5]]), 2),
    "x[0, 0] must be -1 or 1, got nan": lambda: labels(torch.tensor([[math.nan, 1.0]]), 1),
    "x must be floating-point numbers (n, d) with n >= 1, got torch.float32 of (3,)": lambda: labels(torch.ones(3), 1),
    "x must be floating-point numbers (n, d) with n >= 1, got torch.float32 of (0, 3)": lambda: blocks(X[:0], 1),
    "x must be floating-point numbers (n, d) with n >= 1, got torch.int64": lambda: labels(X.long(), 1),
    "samples 0 and 2 are equal": lambda: memorizing(X[[0, 1, 0]], torch.ones(3)),
    "y must be 3 finite numbers, one per row of x, got shape (2,)": lambda: memorizing(X, torch.ones(2)),
    "y must be 3 finite numbers": lambda: memorizing(X, torch.tensor([1, math.inf, 0])),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refusals_in_one_line(message: str):
    with pytest.raises(EvenlyError) as refused:
        REFUSED[message]()
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)
