"""The stability paper's Figs 3 and 4, C.4 and C.5: what SGD, random perturbation and SAM do to coherence as they train.

The 15-10-1 network, mean squared error, n 50, batches of 10, y = x_1 x_2, lr 0.1, 250 epochs, seeds 0-9.
"""

import statistics

import pytest

from evenly.diagnose.tracking import r_squared
from evenly.papers.coherence_in_training import (
    ARMS_OF_C_4,
    C_4,
    FIGURE_4_LEFT,
    FIGURE_4_MIDDLE,
    FIGURE_4_RIGHT,
    Arm,
    compare,
)

pytestmark = [pytest.mark.claims, pytest.mark.usefixtures("one_thread")]

SEEDS = range(10)
SGD, SAM_01, SAM_05, SAM_10 = FIGURE_4_LEFT
RANDOM = Arm("random_perturbation", rho=0.05)


@pytest.fixture(scope="module")
def outcome():
    runs = compare((SGD, RANDOM, SAM_01, SAM_05, SAM_10), seeds=SEEDS)
    print("\n" + runs.table())
    return runs


def test_sam_flattens_the_sharpest_sample(outcome):
    """Lower on at least 9 of 10 seeds at rho 0.05, and the more so the larger rho is; random perturbation of the same
    length does much less. The measure sigma does not fall with SAM but rises: lambda_max(S) falls less than
    max_i lambda_max(H_i), its denominator."""
    below = sum(ratio < 1 for ratio in outcome.ratios(SAM_05))
    means = {arm: statistics.fmean(outcome.ratios(arm)) for arm in (RANDOM, SAM_01, SAM_05, SAM_10)}
    sigma = {arm: statistics.fmean(outcome.ratios(arm, "sigma")) for arm in means}
    print(f"\nmax_i lambda_max(H_i) of SGD's: {', '.join(f'{arm} {mean:.2f}' for arm, mean in means.items())}")
    print(f"sigma of SGD's: {', '.join(f'{arm} {mean:.2f}' for arm, mean in sigma.items())}")
    print(f"SAM, rho 0.05 is below SGD on {below}/10 seeds")
    assert below >= 9
    assert 1 > means[SAM_01] > means[SAM_05] > means[SAM_10]
    assert means[RANDOM] > means[SAM_05] + 0.2
    assert all(ratio > 1 for ratio in sigma.values())


def test_the_sharpest_sample_and_the_coherence_matrix_lie_on_a_line(outcome):
    """R^2 between max_i lambda_max(H_i) and lambda_max(S) is at least 0.85 over the records of SGD and SAM together
    (Fig. 4's panel) on every seed, and over every run of SGD and of SAM with rho up to 0.05 in C.4's 50 epochs. It is
    not in every run of 250 epochs: in 9 of 10 of SGD's and of SAM's with rho 0.01, in 5 and 4 of 10 with 0.05 and 0.1.
    Asserted is what holds."""
    arms = (SGD, SAM_01, SAM_05, SAM_10)
    panels = [r_squared([row for arm in arms for row in outcome.tracks[arm][k].history]) for k in SEEDS]
    early = {arm: [r_squared(track.history[:51]) for track in outcome.tracks[arm]] for arm in arms}
    whole = {arm: [track.r_squared for track in outcome.tracks[arm]] for arm in arms}
    print(f"\nR^2, all arms of a seed: least {min(panels):.3f}, median {statistics.median(panels):.3f}")
    for arm in arms:
        for name, fits in (("50 epochs", early[arm]), ("250 epochs", whole[arm])):
            print(f"  {arm!s:14} {name:10} least {min(fits):.3f}, median {statistics.median(fits):.3f}", end="")
            print(f", at least 0.85 on {sum(fit >= 0.85 for fit in fits)}/10")
    assert min(panels) >= 0.85
    assert min(early[SGD] + early[SAM_01] + early[SAM_05]) >= 0.85
    assert statistics.median(whole[SGD]) >= 0.85
    assert sum(fit >= 0.85 for fit in whole[SGD]) >= 9


def test_figure_4_larger_learning_rate(outcome):
    """lr 0.3: flatter than lr 0.1 and SAM still below SGD; within a run the line is looser than at lr 0.1."""
    runs = compare(FIGURE_4_MIDDLE, seeds=SEEDS)
    print("\n" + runs.table())
    (larger, *sam), smaller = runs.tracks, outcome.tracks[SGD]
    assert all(sum(ratio < 1 for ratio in runs.ratios(arm)) >= 9 for arm in sam)
    pairs = list(zip(runs.tracks[larger], smaller, strict=True))
    assert sum(a.final["sample_sharpness"] < b.final["sample_sharpness"] for a, b in pairs) >= 9
    assert statistics.median(a.r_squared for a, _ in pairs) < statistics.median(b.r_squared for _, b in pairs)


def test_figure_4_contrastive_loss():
    """Strengths 0, 0.01 and 0.1 of a supervised contrastive loss on the hidden activations, by SGD: sharper, not
    flatter, at 0.1, and along a line on most seeds."""
    runs = compare(FIGURE_4_RIGHT, seeds=SEEDS)
    panels = [runs.pooled_r_squared(k) for k in SEEDS]
    print("\n" + runs.table())
    print(f"R^2, all arms of a seed: least {min(panels):.3f}, median {statistics.median(panels):.3f}")
    assert sum(ratio > 1 for ratio in runs.ratios(FIGURE_4_RIGHT[2])) >= 9
    assert statistics.median(panels) >= 0.85


def test_c_4():
    """100-50-1, n 500, lr 0.01, rho 0.01, 50 epochs, 5 runs: SAM below SGD on each, random perturbation of that length
    like SGD, and every run along a line."""
    runs = compare(ARMS_OF_C_4, C_4, seeds=range(5))
    print("\n" + runs.table())
    _, random, sam = ARMS_OF_C_4
    assert all(ratio < 1 for ratio in runs.ratios(sam))
    assert statistics.fmean(runs.ratios(random)) == pytest.approx(1, abs=0.05)
    assert min(track.r_squared for tracks in runs.tracks.values() for track in tracks) >= 0.85
