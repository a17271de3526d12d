"""The bounds inside the proofs of Theorems C.7, C.8 and C.9, eq. 64 and Lemma 4.1, computed for a set of Hessians.

With A = I + cH, J = I - eta H A and v = 1/(Bn) - 1/n^2, a step Jhat_t = I - eta H_t A has

    E[Jhat_1^T ... Jhat_k^T Jhat_k ... Jhat_1] = T^k(I),    T(M) = J M J + N(M),    N(M) = eta^2 v A (sum_i H_i M H_i) A

so that every sum over y_1 ... y_k in the paper is a power of the map N. No sum of n^k terms is formed.

>>> step = Step(Hessians.dense(hessians), lr=0.1, batch_size=2, ascent=0.5)
>>> expected_product(step, 3) - theorem_c_8_1(step, 3)      # positive semidefinite

Some bounds are wrong as printed. They have a ``"printed"`` and a ``"corrected"`` form; each docstring says why.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Literal

import numpy as np
from attrs import evolve, frozen

from evenly.errors import EvenlyError
from evenly.theory.arguments import ascent_of, batch_size_of, not_negative, positive, whole
from evenly.theory.stability.hessians import Array, Hessians

Form = Literal["printed", "corrected"]
_LARGEST_MAP = 40
"""The dimension up to which a map on matrices is written as a matrix itself, (p^2, p^2)."""


@frozen(slots=False, eq=False)
class Step:
    """The linear dynamics at a minimum: its Hessians, eta, B and SAM's c = rho/alpha, which is 0 for SGD."""

    hessians: Hessians
    lr: float
    batch_size: int
    ascent: float = 0.0

    def __attrs_post_init__(self) -> None:
        positive("lr", self.lr)
        batch_size_of(self.batch_size, self.hessians.n)
        ascent_of(None, self.ascent)

    @cached_property
    def mean(self) -> Array:
        """H, (d, d)."""
        return self.hessians.mean()

    @cached_property
    def eigenvalues(self) -> Array:
        """Of H, ascending, (d,); none below 0."""
        return np.asarray(np.maximum(np.linalg.eigvalsh(self.mean), 0.0), dtype=np.float64)

    @cached_property
    def amplifier(self) -> Array:
        """A = I + cH, (d, d)."""
        return np.eye(self.d) + self.ascent * self.mean

    @cached_property
    def jacobian(self) -> Array:
        """J = I - eta H (I + cH), (d, d)."""
        return np.eye(self.d) - self.lr * self.mean @ self.amplifier

    @property
    def d(self) -> int:
        return self.hessians.dimension

    @property
    def sampling(self) -> float:
        """v = 1/(Bn) - 1/n^2."""
        return (1 / self.batch_size - 1 / self.hessians.n) / self.hessians.n

    def noise(self, M: Array) -> Array:
        """N(M) = eta^2 v A (sum_i H_i M H_i) A."""
        inner = self.hessians.sandwich(M)
        return np.asarray(self.lr**2 * self.sampling * self.amplifier @ inner @ self.amplifier, dtype=np.float64)

    def __call__(self, M: Array) -> Array:
        """T(M) = E[Jhat^T M Jhat] = J M J + N(M)."""
        return np.asarray(self.jacobian @ M @ self.jacobian + self.noise(M), dtype=np.float64)

    @property
    def squared(self) -> Array:
        """E[H_t^2] = H^2 + v sum_i H_i^2 (eq. 33)."""
        H = self.mean
        return np.asarray(H @ H + self.sampling * self.hessians.sandwich(np.eye(self.d)), dtype=np.float64)

    @cached_property
    def without_ascent(self) -> Step:
        return evolve(self, ascent=0.0) if self.ascent else self

    @cached_property
    def coherence(self) -> tuple[float, float]:
        """lambda_max(S) and max_i lambda_max(H_i); of S^SAM and (I + cH) H_i (eqs 65, 79) with an ascent."""
        values, vectors = np.linalg.eigh(self.amplifier)
        root = (vectors * np.sqrt(values)) @ vectors.T
        amplified = Hessians.dense(root @ dense(self.hessians) @ root)
        return float(np.linalg.eigvalsh(amplified.coherence())[-1]), float(amplified.sample_eigenvalues().max())

    @property
    def sigma(self) -> float:
        """The coherence measure; sigma^SAM with an ascent."""
        top, sample = self.coherence
        return top / sample


def dense(hessians: Hessians) -> Array:
    """The H_i as matrices, (n, d, d)."""
    if hessians.kind == "dense":
        return hessians.values
    if hessians.kind == "factors":
        return np.asarray(hessians.values.transpose(0, 2, 1) @ hessians.values, dtype=np.float64)
    return np.asarray(hessians.values[:, :, None] * np.eye(hessians.dimension), dtype=np.float64)


def expected_product(step: Step, k: int) -> Array:
    """E[Jhat_1^T ... Jhat_k^T Jhat_k ... Jhat_1] = T^k(I), (d, d), exactly. Its trace is E||w_k||^2 from N(0, I)."""
    return _power(step, k, step.d)


def noise_product(step: Step, k: int) -> Array:
    """N_k of Theorem C.9 (eq. 47), (d, d):

    eta^2k v^k sum_{y_1 ... y_k} (I + cH) H_yk ... (I + cH) H_y1^2 (I + cH) ... H_yk (I + cH)
    """
    return _power(step.noise, k, step.d)


def theorem_c_8_1(step: Step, k: int) -> Array:
    """Theorem C.8.1 (eq. 28): M_k = J^2k + N_k, (d, d), which the expected product is never below."""
    return np.linalg.matrix_power(step.jacobian, 2 * k) + noise_product(step, k)


def theorem_c_8_2(step: Step, k: int) -> float:
    """Theorem C.8.2 (eq. 29): Tr M_k is at least (1 + c lambda_min(H))^2k eta^2k v^k Tr sum_y H_yk ... H_y1^2 ... H_yk.

    The proof (eqs 38, 39) drops the factors I + cH from each term of the sum, which `equation_39` shows can fail. The
    sum was never seen to.
    """
    low = 1 + step.ascent * float(step.eigenvalues[0])
    return low ** (2 * k) * float(np.trace(noise_product(step.without_ascent, k)))


def equation_39(step: Step, order: list[int]) -> tuple[float, float]:
    """Both sides of eq. 39 for one term y_1 ... y_k of the sum: the left is said to be at least the right."""
    H, A = dense(step.hessians), step.amplifier
    plain, amplified = np.eye(step.d), np.eye(step.d)
    for y in order:
        plain, amplified = H[y] @ plain, A @ H[y] @ amplified
    low = 1 + step.ascent * float(step.eigenvalues[0])
    return float((amplified**2).sum()), low ** (2 * len(order)) * float((plain**2).sum())


def theorem_c_8_3(step: Step, k: int) -> float:
    """Theorem C.8.3 (eq. 30), a lower bound of Tr M_k by the coherence measure sigma of the plain Hessians:

    eta^2k (n/B - 1)^k (1 + c lambda_min(H))^2k lambda_max(H)^2k / (sigma^2k n d^5)
    """
    n, low, top = step.hessians.n, float(step.eigenvalues[0]), float(step.eigenvalues[-1])
    rate = step.lr * top * (1 + step.ascent * low) / step.without_ascent.sigma
    return (rate**2 * (n / step.batch_size - 1)) ** k / (n * step.d**5)


def epsilon(step: Step) -> float:
    """The largest eps with eps/eta <= lambda_i + c lambda_i^2 <= (2 - eps)/eta for every i (eqs 49, 59, 60).

    For this and every smaller eps, -(1 - eps) I <= J <= (1 - eps) I. At most 1, and not above 0 if there is none.
    """
    pull = step.lr * step.eigenvalues * (1 + step.ascent * step.eigenvalues)
    return float(min(pull[0], 2 - pull[-1]))


def theorem_c_9_1(step: Step, k: int) -> Array:
    """Theorem C.9.1 (eq. 46): sum_r (1 - eps)^2(k-r) binom(k, r) N_r, (d, d), with the largest eps of `epsilon`.

    The expected product is said to be below it, as matrices. The induction (eq. 61) uses J M J <= (1 - eps)^2 M, which
    is true of M = I but not of every M, so the order of matrices can fail from k = 2 on. See `growth_bound`.
    """
    decay = (1 - _positive_epsilon(step)) ** 2
    total, product = np.zeros((step.d, step.d)), np.eye(step.d)
    for r in range(k + 1):
        total += decay ** (k - r) * math.comb(k, r) * product
        product = step.noise(product)
    return total


def noise_growth(step: Step) -> float:
    """lim (Tr N_k)^(1/k): the spectral radius of N."""
    return _radius(step.noise, step.d)


def growth_bound(step: Step) -> float:
    """Theorem C.9.1, corrected: E||w||^2 grows per step by at most (1 - eps)^2 + lim (Tr N_k)^(1/k).

    In the coordinates (I + cH)^(1/2) w both parts of T are self-adjoint, and the largest eigenvalue of a sum is at most
    the sum of the largest. Eq. 63 bounds the trace of the product by the same rate, up to a constant.
    """
    return (1 - _positive_epsilon(step)) ** 2 + noise_growth(step)


def theorem_c_9_2(step: Step, k: int, form: Form = "corrected") -> float:
    """Theorem C.9.2 (eq. 48): an upper bound of Tr N_k by sigma^SAM. See `equation_67` for the steps of its proof.

        printed    eta^2k (1/B - 1/n)^k d^(3k+2) n^4k lambda_max(H^SAM)^4k / sigma_SAM^2k
        corrected  eta^2k (1/B - 1/n)^k d^(k+1)  n^2k lambda_max(H^SAM)^2k / sigma_SAM^2k
                       * (1 + c lambda_max(H)) / (1 + c lambda_min(H))

    The printed one rests on eq. 64, whose sides have different units: it fails if the Hessians are small. Corrected:
    with K_i = A^(1/2) H_i A^(1/2), Tr N_k <= cond(A) d (eta^2 (1/B - 1/n) max_i lambda_max(K_i)^2)^k, and
    max_i lambda_max(K_i) = lambda_max(S^SAM)/sigma_SAM <= n sqrt(d) lambda_max(H^SAM)/sigma_SAM.
    """
    n, d, c = step.hessians.n, step.d, step.ascent
    low, high = (1 + c * float(step.eigenvalues[index]) for index in (0, -1))
    top = float(step.eigenvalues[-1]) * high
    rate = step.lr**2 * (1 / step.batch_size - 1 / n) / step.sigma**2
    if form == "printed":
        return (rate * d**3 * n**4 * top**4) ** k * d**2
    return (rate * d * n**2 * top**2) ** k * d * high / low


def equation_67(step: Step, k: int) -> list[float]:
    """The chain of eq. 67, each term said to be at most the next: Tr N_k, then bounds by

        d^2 sum_y prod ||A H_y||_F^2,   n^k d^2 max_i ||A H_i||_F^2k,   n^k d^(k+2) max_i lambda_max(A H_i)^2k

    each times eta^2k v^k, and the printed Theorem C.9.2.
    """
    n, d = step.hessians.n, step.d
    squares = (np.linalg.norm(step.amplifier @ dense(step.hessians), axis=(1, 2)) ** 2).tolist()
    unit = step.lr**2 * step.sampling
    return [
        float(np.trace(noise_product(step, k))),
        d**2 * (unit * sum(squares)) ** k,
        d**2 * (unit * n * max(squares)) ** k,
        d**2 * (unit * n * d * step.coherence[1] ** 2) ** k,
        theorem_c_9_2(step, k, "printed"),
    ]


def theorem_c_9_3(step: Step) -> bool:
    """Theorem C.9.3 (eq. 49): whether some eps in (0, 1) has both conditions, so that the expected product goes to 0.

    eps/eta <= lambda_i + c lambda_i^2 <= (2 - eps)/eta, which holds up to `epsilon`, and lim Tr N_k / eps^k = 0, which
    holds above `noise_growth`.
    """
    return noise_growth(step) < epsilon(step)


def lemma_4_1(step: Step) -> Literal["diverges", "converges", "undecided"]:
    """Lemma 4.1 of Dexter et al. 2024 (C.14, eqs 90, 91), for SGD; with the square of ||H_y1 ... H_yk||_F.

    Diverges if lambda_max(H) > 2/eta or (eta^2 v)^k sum_y ||H_y1 ... H_yk||_F^2, which is Tr N_k, goes to infinity.
    Converges if the conditions of Theorem C.9.3 hold without ascent. At equality nothing is decided.
    """
    plain = step.without_ascent
    if step.lr * step.eigenvalues[-1] > 2 or noise_growth(plain) > 1:
        return "diverges"
    return "converges" if theorem_c_9_3(plain) else "undecided"


def equation_64(hessians: Hessians, k: int, form: Form = "corrected") -> tuple[float, float]:
    """Eq. 64: lambda_max(S)^k, and what it is said to be at most.

        printed    n^2k d^k lambda_max(H)^2k
        corrected  n^k d^(k/2) lambda_max(H)^k

    The printed chain replaces sqrt(Tr H_i H_j) by Tr H_i H_j, which is larger only above 1. Corrected:
    lambda_max(S)^2 <= Tr S^2 = n^2 Tr H^2 <= n^2 d lambda_max(H)^2.
    """
    n, d = hessians.n, hessians.dimension
    top = float(np.linalg.eigvalsh(hessians.mean())[-1])
    bound = n**2 * d * top**2 if form == "printed" else n * math.sqrt(d) * top
    return float(np.linalg.eigvalsh(hessians.coherence())[-1]) ** k, bound**k


def random_perturbation_mean_squares(step: Step, k: int, noise: float = 1.0) -> Array:
    """E||w_j||^2, j = 0..k, of w <- w - eta H_t (w + delta), delta ~ N(0, noise^2 I), from N(0, I); exact, (k + 1,).

    The first term of eq. 15 is Tr T^j(I), the second eta^2 noise^2 sum_{i<j} Tr(T^i(I) E[H_t^2]). Without noise: SGD's.
    """
    plain, scale = step.without_ascent, (step.lr * not_negative("noise", noise)) ** 2
    squared, product, added, values = plain.squared, np.eye(step.d), 0.0, []
    for _ in range(k + 1):
        values.append(float(np.trace(product)) + added)
        added += scale * float((product * squared).sum())
        product = plain(product)
    return np.array(values)


def stationary_mean_square(step: Step, noise: float = 1.0) -> float:
    """The limit of E||w_k||^2 under random perturbation, over the range of H; infinite if the mean square diverges."""
    plain = Step(step.hessians.on_range()[1], step.lr, step.batch_size)
    matrix = _matrix(plain, plain.d)
    if np.abs(np.linalg.eigvals(matrix)).max() >= 1:
        return math.inf
    sums = np.linalg.solve(np.eye(len(matrix)) - matrix, np.eye(plain.d).ravel()).reshape(plain.d, plain.d)
    return float((step.lr * noise) ** 2 * (sums * plain.squared).sum())


def equation_21(step: Step, k: int, noise: float = 1.0, form: Form = "corrected") -> float:
    """Eq. 21, a lower bound of E||w_k||^2 under random perturbation from N(0, I); with noise 0, eq. 17's for SGD.

        Tr J^2k + r^k/(n d^5) + eta^2 noise^2 lambda_min(H)^2 sum_t (Tr J^2t + r^t/(n d^5)),
        r = (eta lambda_max(H)/sigma)^2 (n/B - 1)

    The sum over t is from 1 to k as printed. A perturbation of step t is multiplied by the k - t steps after it, so it
    has to be from 0 to k - 1, where the term t = 0 is Tr I = d. The printed form can exceed the exact value.
    """
    t = np.arange(k + 1)
    shrunk = (1 - step.lr * step.eigenvalues) ** (2 * t[:, None])
    smallest, r = step.hessians.n * step.d**5, _rate(step)
    of_sgd = shrunk.sum(1) + np.where(t > 0, r**t / smallest, 0.0)
    added = of_sgd[1:] if form == "printed" else of_sgd[:-1]
    return float(of_sgd[-1] + (step.lr * noise * float(step.eigenvalues[0])) ** 2 * added.sum())


def theorem_c_7_2(step: Step, noise: float = 1.0, form: Form = "corrected") -> float:
    """Theorem C.7.2 (eqs 22, 23): the limit of eq. 21's bound for random perturbation over the one for SGD.

        printed 1 + eta^2 noise^2 lambda_min(H)^2 g/(g - 1),   corrected 1 + eta^2 noise^2 lambda_min(H)^2 /(g - 1)

    g is the larger of alpha = max_i (1 - eta lambda_i)^2, the rate of Tr J^2k, and r. It has to be above 1.
    """
    g = max(float(((1 - step.lr * step.eigenvalues) ** 2).max()), _rate(step))
    if g <= 1:
        raise EvenlyError(f"the bounds do not grow, their rate is {g:.4g}; give a larger lr or a smaller batch_size")
    factor = g / (g - 1) if form == "printed" else 1 / (g - 1)
    return 1 + (step.lr * noise * float(step.eigenvalues[0])) ** 2 * factor


def theorem_c_7_3(step: Step, noise: float = 1.0, form: Form = "corrected") -> float:
    """Theorem C.7.3 (eq. 25): an upper bound of lim E||w_k||^2 under random perturbation, r = (1 - eps)^2 + eps.

        printed    eta^2 noise^2 lambda_max(H) r/(1 - r)
        corrected  eta^2 noise^2 sqrt(d) ||E[H_t^2]||_F / (1 - r)

    For steps that meet Theorem C.9.3 without ascent. The printed one has lambda_max(H) in the place of E[H_t^2] and
    leaves out the constant C of eq. 24. Corrected: T is self-adjoint, and its largest eigenvalue is at most r.
    """
    plain = step.without_ascent
    if not theorem_c_9_3(plain):
        raise EvenlyError("the step does not meet the conditions of Theorem C.9.3; give a smaller lr")
    eps = epsilon(plain)
    r, scale = (1 - eps) ** 2 + eps, (step.lr * noise) ** 2
    if form == "printed":
        return scale * float(step.eigenvalues[-1]) * r / (1 - r)
    return scale * math.sqrt(step.d) * float(np.linalg.norm(plain.squared)) / (1 - r)


def _rate(step: Step) -> float:
    """r = (eta lambda_max(H)/sigma)^2 (n/B - 1), of SGD."""
    share = step.lr * float(step.eigenvalues[-1]) / step.without_ascent.sigma
    return share**2 * (step.hessians.n / step.batch_size - 1)


def _power(map: Callable[[Array], Array], k: int, d: int) -> Array:
    product = np.eye(d)
    for _ in range(whole("k", k, 0)):
        product = map(product)
    return product


def _matrix(map: Callable[[Array], Array], d: int) -> Array:
    """The map on (d, d) matrices as a (d^2, d^2) matrix."""
    if d > _LARGEST_MAP:
        raise EvenlyError(f"the Hessians have {d} dimensions, and this is computed for up to {_LARGEST_MAP}")
    return np.stack([map(unit.reshape(d, d)).ravel() for unit in np.eye(d * d)], axis=1)


def _radius(map: Callable[[Array], Array], d: int) -> float:
    return float(np.abs(np.linalg.eigvals(_matrix(map, d))).max())


def _positive_epsilon(step: Step) -> float:
    if (eps := epsilon(step)) <= 0:
        raise EvenlyError(f"no eps above 0 meets eqs 59 and 60, the largest is {eps:.4g}; H must be of full rank")
    return eps
