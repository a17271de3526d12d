"""The coherence matrix and its measure, for SGD and SAM; identities that the proofs use (C.6, eqs 33, 64 to 66)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from evenly.papers.claims import claim
from evenly.papers.nodes import computed
from evenly.papers.stability.sets import DRAWS, EXACT, SETS, at_least, hessian_sets, none_broken, steps
from evenly.runs.verdict import Check, Judgement, Measurement
from evenly.theory import coherence
from evenly.theory.stability.bounds import dense, equation_64
from evenly.theory.stability.hessians import Array

SETS_OF = {"seed": 0, "count": SETS}


def root(matrix: Array) -> Array:
    """The square root of a positive semidefinite matrix."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T, dtype=np.float64)


def measures(seed: int, count: int) -> dict[str, Any]:
    """evenly's coherence against the definition: the square roots of all Hessians, and Frobenius norms of products."""
    error, error_sam, low, above_n, cases = 0.0, 0.0, math.inf, 0, 0
    for step, draw in steps(count, seed):
        H = dense(step.hessians)
        roots = [root(each) for each in H]
        S = np.array([[np.linalg.norm(a @ b) for b in roots] for a in roots])
        ours = coherence.of_hessians(torch.from_numpy(H))
        assert ours.matrix is not None
        error = max(error, float(np.abs(ours.matrix.numpy() - S).max() / S.max()))
        sigma = float(np.linalg.eigvalsh(S)[-1] / np.linalg.eigvalsh(H).max())
        error = max(error, abs(ours.measure / sigma - 1))
        A = step.amplifier
        S_sam = np.array([[math.sqrt(max(float(np.trace(A @ a @ A @ b)), 0)) for b in H] for a in H])
        sam = coherence.of_hessians(torch.from_numpy(H), ascent=step.ascent)
        assert sam.matrix is not None
        error_sam = max(error_sam, float(np.abs(sam.matrix.numpy() - S_sam).max() / S_sam.max()))
        h_sam = float(np.linalg.eigvals(A @ H.mean(0)).real.max())
        error_sam = max(error_sam, abs(sam.largest_hessian_eigenvalue / h_sam - 1))
        n, p = int(draw.integers(2, 9)), int(draw.integers(1, 9))
        rank_one = coherence.of_gradients(torch.from_numpy(draw.standard_normal((n, p))))
        low, above_n = min(low, rank_one.measure), above_n + (rank_one.measure > n * (1 + EXACT))
        cases += 1
    equal = coherence.of_gradients(torch.ones(7, 3, dtype=torch.float64)).measure
    orthogonal = coherence.of_gradients(torch.eye(7, dtype=torch.float64)).measure
    return {
        "cases": cases, "error": error, "error_sam": error_sam, "least": low, "above_n": above_n,
        "equal": equal, "orthogonal": orthogonal,
    }  # fmt: skip


@claim(
    "stability/coherence",
    where="Sections 2 and C.10, eq. 69",
    states="The coherence matrix has S_ij = ||H_i^(1/2) H_j^(1/2)||_F, and the coherence measure is "
    "lambda_max(S) / max_i lambda_max(H_i): 1 for orthogonal samples, n for equal ones.",
    rule="On 500 random sets evenly's S and sigma equal the definition with matrix square roots to 1e-6. On as many "
    "sets of rank one sigma is within 1 and n. It is 1 for orthogonal gradients and n for equal ones.",
    choices=(DRAWS,),
    uses=lambda scale: {"found": computed(measures, **SETS_OF)},
)
def coherence_measure(found: Mapping[str, Any]) -> Judgement:
    n = 7
    return Judgement([
        Check(f"S and sigma equal the definition to 1e-6 ({found['error']:.1e})", found["error"] < 1e-6),
        Check(
            f"sigma of rank one is within 1 and n (least {found['least']:.3f})",
            found["least"] >= 1 - EXACT and found["above_n"] == 0,
        ),
        Check(f"orthogonal samples: 1 ({found['orthogonal']:.6f})", abs(found["orthogonal"] - 1) < EXACT),
        Check(f"{n} equal samples: {n} ({found['equal']:.6f})", abs(found["equal"] - n) < EXACT),
    ])  # fmt: skip


@claim(
    "stability/eq65",
    where="Eqs 65, 66",
    states="Under SAM the coherence matrix has S_ij = sqrt(Tr((I + cH) H_i (I + cH) H_j)) and the Hessian is "
    "(I + cH) H, c = rho/alpha.",
    rule="On 500 random sets evenly's S and lambda_max equal these to 1e-6, for c over several powers of e.",
    choices=(DRAWS,),
    uses=lambda scale: {"found": computed(measures, **SETS_OF)},
)
def coherence_under_sam(found: Mapping[str, Any]) -> Judgement:
    return Judgement([
        Check(f"S^SAM and H^SAM equal eqs 65 and 66 to 1e-6 ({found['error_sam']:.1e})", found["error_sam"] < 1e-6)
    ])  # fmt: skip


def squared_hessians(seed: int, count: int) -> dict[str, Any]:
    """E[H_t] and E[H_t^2] over all 2^n batches, against H and eq. 33."""
    error_mean = error_square = 0.0
    for step, _ in steps(count, seed):
        H, n, B = dense(step.hessians), step.hessians.n, step.batch_size
        mean, square = np.zeros_like(H[0]), np.zeros_like(H[0])
        for chosen in itertools.product((0, 1), repeat=n):
            probability = (B / n) ** sum(chosen) * (1 - B / n) ** (n - sum(chosen))
            H_t = np.tensordot(chosen, H, 1) / B
            mean, square = mean + probability * H_t, square + probability * H_t @ H_t
        error_mean = max(error_mean, float(np.abs(mean - step.mean).max() / np.abs(step.mean).max()))
        error_square = max(error_square, float(np.abs(square - step.squared).max() / np.abs(square).max()))
    return {"mean": error_mean, "square": error_square}


@claim(
    "stability/eq33",
    where="Definition 3, eqs 10 and 33",
    states="With H_t = (1/B) sum_i x_i H_i and x_i Bernoulli(B/n), E[H_t] = H and "
    "E[H_t^2] = H^2 + (1/(Bn) - 1/n^2) sum_i H_i^2.",
    rule="On 100 random sets both equal the sums over all 2^n batches to 1e-9.",
    choices=(DRAWS,),
    uses=lambda scale: {"found": computed(squared_hessians, seed=0, count=100)},
)
def equation_33(found: Mapping[str, float]) -> Judgement:
    return Judgement([
        Check(f"E[H_t] is H ({found['mean']:.1e})", found["mean"] < EXACT),
        Check(f"E[H_t^2] is eq. 33 ({found['square']:.1e})", found["square"] < EXACT),
    ])  # fmt: skip


def powers_of_s(seed: int, count: int) -> dict[str, int]:
    """How often eq. 64 is broken for k = 1 to 4, as printed and corrected."""
    counts = {"cases": 0, "printed": 0, "corrected": 0, "printed, entries of S above 1": 0}
    for hessians, _ in hessian_sets(count, seed):
        for k in range(1, 5):
            counts["cases"] += 1
            broken = {form: not at_least(*equation_64(hessians, k, form)[::-1]) for form in ("printed", "corrected")}
            for form in ("printed", "corrected"):
                counts[form] += broken[form]
            counts["printed, entries of S above 1"] += broken["printed"] and bool(hessians.coherence().min() > 1)
    return counts


@claim(
    "stability/eq64",
    where="Eq. 64",
    states="lambda_max(S)^k is at most n^2k d^k lambda_max(H)^2k.",
    rule="No violation on 500 random sets, k = 1 to 4.",
    choices=(DRAWS,),
    uses=lambda scale: {"found": computed(powers_of_s, **SETS_OF)},
)
def equation_64_printed(found: Mapping[str, int]) -> Judgement:
    large = found["printed, entries of S above 1"]
    return Judgement(
        [none_broken("lambda_max(S)^k is at most the printed bound", found, "printed")],
        [Measurement("violations where every entry of S is above 1", large)],
    )


@claim(
    "stability/eq64-corrected",
    where="Eq. 64, corrected",
    states="lambda_max(S)^k is at most n^k d^(k/2) lambda_max(H)^k. The printed chain drops a square root, so that its "
    "two sides have different units.",
    rule="No violation on 500 random sets, k = 1 to 4.",
    choices=(DRAWS,),
    uses=lambda scale: {"found": computed(powers_of_s, **SETS_OF)},
)
def equation_64_corrected(found: Mapping[str, int]) -> Judgement:
    return Judgement([none_broken("lambda_max(S)^k is at most the corrected bound", found, "corrected")])


def identities(seed: int, count: int) -> dict[str, int]:
    """Lemmas C.1 to C.6 on random matrices: how often each is broken."""
    broken = {"cases": 0, "C.1": 0, "C.1, B semidefinite": 0, **{f"C.{k}": 0 for k in range(2, 7)}}
    for k in range(count):
        draw = np.random.default_rng([seed, k])
        d = int(draw.integers(1, 6))
        X, B, C = draw.standard_normal((3, d, d))
        A = X @ X.T
        low, top = np.linalg.eigvalsh(A)[[0, -1]]

        def bounded(A: Array, B: Array, low: float = low, top: float = top) -> bool:
            middle = float(np.trace(A @ B))
            slack = EXACT * top * float(np.abs(B).sum())
            return bool(top * np.trace(B) >= middle - slack and middle >= low * np.trace(B) - slack)

        broken["cases"] += 1
        broken["C.1"] += not bounded(A, B)
        broken["C.1, B semidefinite"] += not bounded(A, B @ B.T)
        traces = [np.trace(A @ B @ C), np.trace(B @ C @ A), np.trace(C @ A @ B)]
        broken["C.2"] += bool(np.ptp(traces) > EXACT * (1 + abs(traces[0])))
        x = draw.standard_normal(d)
        one, two = float(np.abs(x).sum()), float(np.linalg.norm(x))
        broken["C.3"] += not (at_least(one, two) and at_least(math.sqrt(d) * two, one))
        n, m = int(draw.integers(2, 40)), int(draw.integers(1, 40))
        broken["C.4"] += math.comb(n, m) != math.comb(n - 1, m - 1) + math.comb(n - 1, m)
        nuclear = float(np.linalg.norm(B, "nuc"))
        frobenius = float(np.linalg.norm(B))
        broken["C.5"] += not (at_least(nuclear, frobenius) and at_least(math.sqrt(d) * frobenius, nuclear))
        product = B @ C @ A
        broken["C.6"] += not at_least(float(np.linalg.norm(product, "nuc")), float(np.trace(product)))
    return broken


@claim(
    "stability/lemC.1",
    where="Lemma C.1",
    states="For A positive semidefinite and any B, lambda_max(A) Tr B >= Tr AB >= lambda_min(A) Tr B.",
    rule="No violation in 1,000 pairs of random matrices, B of any kind.",
    uses=lambda scale: {"found": computed(identities, seed=0, count=1000)},
)
def lemma_c_1(found: Mapping[str, int]) -> Judgement:
    return Judgement([none_broken("the inequality holds for every B", found, "C.1")])


@claim(
    "stability/lemC.1-corrected",
    where="Lemma C.1, corrected",
    states="The inequality of Lemma C.1 holds where B is positive semidefinite too.",
    rule="No violation in 1,000 pairs of random positive semidefinite matrices.",
    uses=lambda scale: {"found": computed(identities, seed=0, count=1000)},
)
def lemma_c_1_corrected(found: Mapping[str, int]) -> Judgement:
    return Judgement([none_broken("the inequality holds for semidefinite B", found, "C.1, B semidefinite")])


@claim(
    "stability/lemC.2-C.6",
    where="Lemmas C.2 to C.6",
    states="Traces are cyclic; l1 and l2 norms, and nuclear and Frobenius norms, differ by at most sqrt(d); Pascal's "
    "rule; a trace is at most the nuclear norm.",
    rule="No violation of any of them in 1,000 draws.",
    uses=lambda scale: {"found": computed(identities, seed=0, count=1000)},
)
def lemmas_c_2_to_c_6(found: Mapping[str, int]) -> Judgement:
    return Judgement([none_broken(f"Lemma C.{k}", found, f"C.{k}") for k in range(2, 7)])
