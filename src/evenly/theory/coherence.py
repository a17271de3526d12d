"""Coherence of a minimum: how similar the samples' Hessians are (Dexter et al. 2024).

    H = (1/n) sum_i H_i,    S_ij = || H_i^{1/2} H_j^{1/2} ||_F = sqrt(Tr H_i H_j)
    sigma = lambda_max(S) / max_i lambda_max(H_i)

sigma is at least 1, and if every H_i has rank one at most n: 1 if the samples are orthogonal, n if they are equal. For
SAM with a frozen gradient norm alpha and c = rho/alpha, H_i is multiplied by I + cH:

    S_ij = sqrt(Tr (I + cH) H_i (I + cH) H_j),    max_i lambda_max((I + cH) H_i),    lambda((I + cH) H)

(eqs 65, 79 and 66 of the paper that extends the analysis to SAM). This is the plain coherence of the
matrices (I + cH)^{1/2} H_i (I + cH)^{1/2}, whose mean is (I + cH) H.

>>> coherence = of_gradients(gradients)         # (n, p): H_i = g_i g_i^T, so that S_ij = |g_i . g_j|
>>> coherence.measure, coherence.largest_hessian_eigenvalue

No root of an H_i is taken. With factors H_i = A_i^T A_i no p x p matrix is formed unless p is the
smaller side: Tr H_i H_j = || A_i A_j^T ||_F^2, and H has the eigenvalues of the Gram matrix of all rows, over n.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from evenly.errors import EvenlyError
from evenly.settings import at_least, checks_options
from evenly.theory.arguments import Count, NotNegative
from evenly.theory.factors import (
    MEMORY,
    Block,
    Factors,
    InMemory,
    in_memory_if_it_fits,
    product,
    products,
    projected,
    refuse_infinite,
    samples_within,
)
from evenly.theory.lanczos import Array, run

DENSE = 1024
"""Side of the largest matrix whose whole spectrum is computed; of larger ones the largest eigenvalue, by Lanczos."""
CONFIDENCE = 0.95
"""Probability with which the error bound of a sketch holds."""


@dataclass(frozen=True, eq=False, repr=False)
class Coherence:
    """The coherence of n samples' Hessians, in the units of the loss over parameters squared; sigma has no unit.

    Attributes:
        n: the number of samples.
        largest_eigenvalue: lambda_max(S).
        sample_eigenvalues: (n,) lambda_max(H_i); of (I + cH) H_i if `ascent` is not 0.
        largest_hessian_eigenvalue, smallest_hessian_eigenvalue: of H; of (I + cH) H if `ascent` is not 0. The
            smallest is exactly 0 if there are more parameters than rows of factors, and the lower bound 0 if it is not
            computed: for a sketch, or if both exceed `DENSE`.
        ascent: c = rho/alpha; 0 for SGD.
        matrix: S (n, n), float64, or None if only numbers are known.
        error_bound: `largest_eigenvalue` is this close to the exact one with probability 0.95; 0 without a sketch.
    """

    n: int
    largest_eigenvalue: float
    sample_eigenvalues: Tensor
    largest_hessian_eigenvalue: float
    smallest_hessian_eigenvalue: float
    ascent: float = 0.0
    matrix: Tensor | None = None
    error_bound: float = 0.0

    @property
    def largest_sample_eigenvalue(self) -> float:
        """max_i lambda_max(H_i)."""
        return float(self.sample_eigenvalues.max())

    @property
    def measure(self) -> float:
        """sigma = lambda_max(S) / max_i lambda_max(H_i); nan if every H_i is 0."""
        top = self.largest_sample_eigenvalue
        return self.largest_eigenvalue / top if top > 0 else math.nan

    def __repr__(self) -> str:
        error = f" ± {self.error_bound:.3g}" if self.error_bound else ""
        return (
            f"Coherence(n={self.n}, measure={self.measure:.4g}, "
            f"largest_eigenvalue={self.largest_eigenvalue:.4g}{error}, "
            f"largest_sample_eigenvalue={self.largest_sample_eigenvalue:.4g}, "
            f"largest_hessian_eigenvalue={self.largest_hessian_eigenvalue:.4g}, ascent={self.ascent:g})"
        )


@checks_options
def of_hessians(hessians: Tensor, *, ascent: NotNegative = 0.0) -> Coherence:
    """Coherence of dense Hessians (n, p, p): one product of the flattened matrices.

    Each must be symmetric and positive semi-definite to within sqrt(eps) of its own largest entry or eigenvalue (1.5e-8
    in float64). An entry of S below sqrt(eps) of its row's largest is rounding: give factors or gradients instead.
    """
    c = float(ascent)
    matrices = _symmetric(hessians).double()
    spectra = _positive_spectra(matrices, torch.finfo(hessians.dtype).eps ** 0.5)
    n, p, _ = matrices.shape
    spectrum, vectors = torch.linalg.eigh(matrices.mean(0))
    if c:
        root = (vectors * (1 + c * spectrum).sqrt()) @ vectors.T
        matrices = root @ matrices @ root
        spectra = torch.linalg.eigvalsh(matrices)
    flat = matrices.reshape(n, p * p)
    s = (flat @ flat.T).clamp_(min=0).sqrt_()
    low, high = (float(spectrum[index].clamp(min=0)) for index in (0, -1))
    return _result(s, spectra[:, -1].clamp(min=0).cpu(), c, high, low)


def of_gradients(
    gradients: Tensor, *, ascent: float = 0.0, sketch: int | None = None, memory: int = MEMORY, seed: int = 0
) -> Coherence:
    """Coherence of H_i = g_i g_i^T from gradients (n, p), as at a minimum of zero squared loss: S_ij = |g_i . g_j|."""
    if gradients.ndim != 2:
        raise EvenlyError(f"gradients must have shape (n, p), a row for each sample, got {tuple(gradients.shape)}")
    return of_factors(gradients[:, None], ascent=ascent, sketch=sketch, memory=memory, seed=seed)


def of_factors(
    factors: Tensor, *, ascent: float = 0.0, sketch: int | None = None, memory: int = MEMORY, seed: int = 0
) -> Coherence:
    """Coherence of H_i = A_i^T A_i from factors A_i (n, k, p). See :func:`of_stream` for the options."""
    if factors.ndim != 3 or 0 in factors.shape:
        raise EvenlyError(f"factors must have shape (n, k, p), each at least 1, got {tuple(factors.shape)}")
    if not factors.is_floating_point():
        raise EvenlyError(f"factors must be floating-point numbers, got {factors.dtype}")
    refuse_infinite(factors.detach(), 0)
    return of_stream(InMemory(factors.detach()), ascent=ascent, sketch=sketch, memory=memory, seed=seed)


@checks_options
def of_stream(
    factors: Factors,
    *,
    ascent: NotNegative = 0.0,
    sketch: Annotated[int | None, at_least(2)] = None,
    memory: Count = MEMORY,
    seed: int = 0,
) -> Coherence:
    """Coherence of factors that are computed in blocks; S is symmetric, so half of the pairs of blocks is enough.

    Args:
        factors: the source of the A_i. They are kept in memory if they fit, and computed again otherwise.
        ascent: c = rho/alpha of SAM; 0 for SGD.
        sketch: project the p columns of every A_i at random to this many, in a single pass; see :func:`sketched`.
        memory: bytes of factors held at a time. S and, for k = 1 or few rows, the Gram matrix of nk rows come on top.
        seed: of the sketch.
    """
    c = float(ascent)
    if sketch is not None and sketch < factors.p:
        if c:
            raise EvenlyError(f"sketch {sketch} has no error bound with ascent {c:g}; leave out one of the two")
        return sketched(factors, sketch, memory=memory, seed=seed)
    n, k, p = factors.n, factors.k, factors.p
    if p <= min(n * k, DENSE):
        return _through_hessian(in_memory_if_it_fits(factors, memory), c, memory)
    if k == 1 or 8 * (n * k) ** 2 <= memory:
        return _through_gram(factors, c, memory)
    return _through_blocks(factors, c, memory)


def _through_hessian(factors: Factors, c: float, memory: int) -> Coherence:
    """Few parameters: H itself, p x p, and the rows of A_i (I + cH)^{1/2}."""
    h = torch.zeros(factors.p, factors.p, dtype=torch.float64, device=factors.device)
    step = samples_within(factors, memory // 8)
    for start in range(0, factors.n, step):
        a = factors.rows(start, min(start + step, factors.n)).reshape(-1, factors.p).double()
        h += a.T @ a / factors.n
    spectrum, vectors = torch.linalg.eigh(h)
    root = (vectors * (1 + c * spectrum.clamp(min=0)).sqrt()) @ vectors.T if c else None

    def amplify(rows: Tensor) -> Tensor:
        return rows if root is None else rows.double() @ root

    low, high = float(spectrum[0].clamp(min=0)), float(spectrum[-1])
    return _assembled(factors, products(factors, memory, amplify, amplify), c, high, low)


def _through_gram(factors: Factors, c: float, memory: int) -> Coherence:
    """Few rows: the Gram matrix G (nk, nk), whose eigenvalues are those of nH; A (I + cH) A^T = G + (c/n) G^2."""
    n, k = factors.n, factors.k
    gram = torch.empty(n * k, n * k, dtype=torch.float64, device=factors.device)
    for i, j, block in factors.products(memory):
        rows, columns = slice(i.start * k, i.stop * k), slice(j.start * k, j.stop * k)
        gram[rows, columns] = block
        gram[columns, rows] = block.T
    high = max(largest_eigenvalue(gram), 0.0) / n
    if c:
        gram = torch.addmm(gram, gram, gram, alpha=c / n)
    if k > 1:
        return _assembled(factors, [(slice(0, n), slice(0, n), gram)], c, high, 0.0)
    sample = gram.diagonal().clamp(min=0).cpu()
    return _result(gram.abs_(), sample, c, high, 0.0)


def _through_blocks(factors: Factors, c: float, memory: int) -> Coherence:
    """Many rows and many parameters: neither matrix is formed; A_j (I + cH) is summed over all samples."""
    factors = in_memory_if_it_fits(factors, memory) if c else factors
    step = samples_within(factors, memory // 8)

    def amplify(rows: Tensor) -> Tensor:
        total = torch.zeros_like(rows)
        for start in range(0, factors.n, step):
            a = factors.rows(start, min(start + step, factors.n)).reshape(-1, factors.p)
            total += product(rows, a).to(a.dtype) @ a
        return rows + (c / factors.n) * total

    high = largest_of_operator(factors.times_hessian, _random(factors.p, factors.device))
    blocks = products(factors, memory, right=amplify) if c else factors.products(memory)
    return _assembled(factors, blocks, c, high, 0.0)


def _assembled(factors: Factors, blocks: Iterable[Block], c: float, high: float, low: float) -> Coherence:
    """S and the samples' eigenvalues from blocks of A (I + cH) A^T; `high` and `low` are eigenvalues of the plain H."""
    n, k = factors.n, factors.k
    s = torch.empty(n, n, dtype=torch.float64, device=factors.device)
    sample = torch.empty(n, dtype=torch.float64)
    for i, j, block in blocks:
        quads = block.reshape(i.stop - i.start, k, j.stop - j.start, k)
        entries = quads[:, 0, :, 0].abs() if k == 1 else torch.linalg.vector_norm(quads, dim=(1, 3))
        s[i, j] = entries
        s[j, i] = entries.T
        if j.start < i.stop:
            diagonal = torch.arange(j.start, j.stop, device=block.device)
            gram = quads[diagonal - i.start, :, diagonal - j.start, :]
            sample[j] = torch.linalg.eigvalsh((gram + gram.mT) / 2)[:, -1].clamp(min=0).cpu()
    return _result(s, sample, c, high, low)


def _result(s: Tensor, sample: Tensor, c: float, high: float, low: float) -> Coherence:
    """The result; `high` and `low` are eigenvalues of the plain H."""
    return Coherence(
        n=len(s),
        largest_eigenvalue=largest_eigenvalue(s),
        sample_eigenvalues=sample,
        largest_hessian_eigenvalue=high * (1 + c * high),
        smallest_hessian_eigenvalue=low * (1 + c * low),
        ascent=c,
        matrix=s.cpu(),
    )


def sketched(factors: Factors, columns: int, *, memory: int = MEMORY, seed: int = 0) -> Coherence:
    """Coherence by two independent random projections P, Q of the parameters to `columns` = m numbers, in one pass.

    T_ij = < (A_i P)(A_j P)^T, (A_i Q)(A_j Q)^T > is an unbiased estimate of Tr H_i H_j, and S_ij = sqrt(max(T_ij, 0)).
    A projection divides the parameters at random into m equal bins and sums each bin with random signs. The
    diagonal of S and the samples' and the mean's eigenvalues are exact.

    The bound: with l_i = lambda_max(H_i) and d_i = ||H_i||_F, a pair of parameters shares a bin with probability at
    most 1/m, so

        Var T_ij <= (4 / m) l_i l_j Tr H_i H_j + ((d_i d_j + Tr H_i H_j) / m)^2,

    the first term from either projection's error alone, the second from the product of both. As (sqrt a - sqrt b)^2 <=
    min(|a - b|, (a - b)^2 / b), E (error of S_ij)^2 <= (4 l_i l_j + d_i d_j)(1 + 4/m) / m whatever Tr H_i H_j is. The
    error of lambda_max(S) is at most the Frobenius norm of the error of S, so by Markov's inequality it is at most
    sqrt((4 (sum l_i)^2 + (sum d_i)^2)(1 + 4/m) / (0.05 m)) with probability 0.95.
    """
    n, k, m = factors.n, factors.k, columns
    sketches, gram = projected(factors, m, memory=memory, seed=seed)
    sample = torch.linalg.eigvalsh(gram)[:, -1].clamp(min=0)
    norm = torch.linalg.matrix_norm(gram)
    s = torch.empty(n, n, dtype=torch.float64, device=factors.device)
    first, second = map(InMemory, sketches)
    for (i, j, block), (_, _, other) in zip(products(first, memory), products(second, memory), strict=True):
        pairs = (block * other).reshape(i.stop - i.start, k, j.stop - j.start, k).sum((1, 3)).clamp_(min=0).sqrt_()
        s[i, j] = pairs
        s[j, i] = pairs.T
    s.diagonal().copy_(norm)
    spread = 4 * float(sample.sum()) ** 2 + float(norm.sum()) ** 2
    return Coherence(
        n=n,
        largest_eigenvalue=largest_eigenvalue(s),
        sample_eigenvalues=sample.cpu(),
        largest_hessian_eigenvalue=largest_of_operator(factors.times_hessian, _random(factors.p, factors.device)),
        smallest_hessian_eigenvalue=0.0,
        matrix=s.cpu(),
        error_bound=math.sqrt(spread * (1 + 4 / m) / ((1 - CONFIDENCE) * m)),
    )


def largest_eigenvalue(matrix: Tensor) -> float:
    """lambda_max of a symmetric matrix: all eigenvalues of a small one, Lanczos on a large one."""
    if len(matrix) > DENSE:
        value, settled = _lanczos(matrix.mv, _random(len(matrix), matrix.device))
        if settled:
            return value
    return float(torch.linalg.eigvalsh(matrix)[-1])


def largest_of_operator(times: Callable[[Tensor], Tensor], start: Tensor) -> float:
    """lambda_max of a positive semi-definite matrix that is known by its products with vectors.

    The relative residual is 1e-7 if 300 products suffice; the error is its square over the relative gap.
    """
    return max(_lanczos(times, start, tolerance=1e-7)[0], 0.0)


def _lanczos(
    times: Callable[[Tensor], Tensor], start: Tensor, tolerance: float = 1e-10, steps: int = 300
) -> tuple[float, bool]:
    """The largest Ritz value, and whether its residual fell below the tolerance."""

    def settled(values: Array, residuals: Array, rounding: float) -> bool:
        return bool(residuals[-1] <= tolerance * abs(values[-1]))

    result = run(times, start, start.new_empty(0, len(start)), settled, 1, steps)
    return float(result.values[-1]), result.settled


def _random(size: int, device: torch.device) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(device)


def _symmetric(hessians: Tensor) -> Tensor:
    if hessians.ndim != 3 or hessians.shape[1] != hessians.shape[2] or 0 in hessians.shape:
        raise EvenlyError(f"Hessians must have shape (n, p, p), each at least 1, got {tuple(hessians.shape)}")
    if not hessians.is_floating_point():
        raise EvenlyError(f"Hessians must be floating-point numbers, got {hessians.dtype}")
    h = hessians.detach()
    if not bool(torch.isfinite(h).all()):
        bad = (~torch.isfinite(h)).flatten(1).any(1).nonzero().flatten()
        raise EvenlyError(f"Hessian {int(bad[0])} holds NaN or infinity; remove the sample or check its loss")
    difference = (h - h.mT).abs().amax((1, 2))
    asymmetric = difference > torch.finfo(h.dtype).eps ** 0.5 * h.abs().amax((1, 2))
    if bool(asymmetric.any()):
        i = int(asymmetric.nonzero()[0])
        least = float(torch.linalg.eigvalsh((h[i] + h[i].mT) / 2)[0])
        raise EvenlyError(
            f"Hessian {i} is not symmetric: it differs from its transpose by {float(difference[i]):.3g} "
            f"(smallest eigenvalue of its symmetric part {least:.3g}); give (H + H^T) / 2 if that is intended"
        )
    return (h + h.mT) / 2


def _positive_spectra(hessians: Tensor, tolerance: float) -> Tensor:
    """The spectra (n, p), ascending; refused if one is negative beyond the tolerance times the largest."""
    spectra: Tensor = torch.linalg.eigvalsh(hessians)
    negative = spectra[:, 0] < -tolerance * spectra.abs().amax(1)
    if bool(negative.any()):
        i = int(negative.nonzero()[0])
        raise EvenlyError(
            f"Hessian {i} is not positive semi-definite: its smallest eigenvalue is {float(spectra[i, 0]):.3g}; "
            "coherence is defined at a minimum of every sample's loss, or for Gauss-Newton matrices"
        )
    return spectra
