"""Nguyen et al. 2024 on patch data, full size: what SAM does to the features, what USEFUL finds and gains."""

import statistics

import pytest

import evenly
from evenly.data import load
from evenly.methods.early import drop_has_shrunk
from evenly.methods.useful import hard_examples

pytestmark = [pytest.mark.claims, pytest.mark.usefixtures("one_thread")]


def precision_and_recall(hard, data):
    lacks = data.train.attributes["strong"] == 0
    return lacks[hard].double().mean().item(), (lacks[hard].sum() / lacks.sum()).item()


@pytest.fixture(scope="module")
def growth():
    """Alignments of GD and SAM over 600 iterations: sigma_0 0.01414, no bias, N 4000, beta_d 0.2, lr 0.1, rho 0.02."""
    runs = []
    for seed in range(10):
        data = load("patches", seed=seed, n=4000)
        gd, sam = (evenly.train(data, method="erm", optimizer=o, seed=seed, evaluate_every=600) for o in ("sgd", "sam"))
        runs.append((data, gd, sam))
    return runs


def half_time(run):
    easy = [row["alignment_easy"] for row in run.history]
    return 1 + next(t for t, value in enumerate(easy) if value >= easy[-1] / 2)


def test_sam_learns_the_easy_feature_later(growth):
    gd, sam = zip(*((half_time(g), half_time(s)) for _, g, s in growth), strict=True)
    later = sum(s >= 1.4 * g for g, s in zip(gd, sam, strict=True))
    print(f"\nhalf-time of the easy alignment: GD {gd}, SAM {sam}; SAM >= 1.4x later on {later}/10")
    assert 190 <= statistics.median(gd) <= 310
    assert later >= 8


def test_equation_11_sam_keeps_the_features_closer(growth):
    def holds(gd, sam):
        return all(
            s["alignment_easy"] - s["alignment_difficult"] < g["alignment_easy"] - g["alignment_difficult"]
            for g, s in zip(gd.history, sam.history, strict=True)
        )

    count = sum(holds(gd, sam) for _, gd, sam in growth)
    print(f"\neq. 11 holds at every t <= 600 on {count}/10 seeds")
    assert count >= 9


def test_clustering_finds_the_examples_without_the_easy_feature(growth):
    found = []
    for seed, (data, gd, _) in enumerate(growth):
        losses = [row["train_loss"] for row in gd.history]
        separating = next(t for t in range(1, 601) if drop_has_shrunk(losses[:t]))
        early = evenly.train(data, method="erm", seed=seed, epochs=separating, evaluate_every=separating)
        hard = hard_examples(early.outputs(data.train), data.train.labels)
        found.append((separating, *precision_and_recall(hard, data)))
    print("\n(separating iteration, precision, recall):", [(t, round(p, 3), round(r, 3)) for t, p, r in found])
    assert all(precision >= 0.95 and recall >= 0.95 for _, precision, recall in found)


def test_useful_gains_and_random_upsampling_does_not():
    """sigma_0 0.1, beta_d 0.4, N 2000, 3000 iterations, seeds 0-4."""
    settings = {"epochs": 3000, "evaluate_every": 3000, "model_options": {"sigma_0": 0.1}}
    gains, random_gains, found = [], [], []
    for seed in range(5):
        data = load("patches", seed=seed, n=2000, beta_d=0.4)
        erm = evenly.train(data, method="erm", seed=seed, **settings)
        useful = evenly.train(data, method="useful", seed=seed, **settings)
        hard = useful.selection.indices
        random = evenly.train(
            data, method="random_upsample", seed=seed, count=len(hard), budget=useful.results.cost, **settings
        )
        found.append(precision_and_recall(hard, data))
        gains.append(100 * (useful.results.splits["test"].accuracy - erm.results.splits["test"].accuracy))
        random_gains.append(100 * (random.results.splits["test"].accuracy - erm.results.splits["test"].accuracy))
        print(f"\nseed {seed}: ERM {erm.results.splits['test'].accuracy:.2%}, USEFUL {gains[-1]:+.2f}", end="")
        print(f" points, random upsampling at equal cost {random_gains[-1]:+.2f}", end="")
    print(f"\nmean: USEFUL {statistics.mean(gains):+.2f}, random {statistics.mean(random_gains):+.2f}")
    assert all(precision >= 0.95 and recall >= 0.95 for precision, recall in found)
    assert statistics.mean(gains) >= 1
    assert min(gains) >= 0  # where ERM is at its ceiling already there is nothing to gain
    assert all(abs(gain) <= 0.5 for gain in random_gains)
