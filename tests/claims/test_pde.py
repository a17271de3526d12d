"""Deng et al. 2023 on patch data, full size, with the network and schedule of the authors' code."""

import statistics

import pytest

import evenly
from evenly.data import load
from evenly.engine import predictions

pytestmark = pytest.mark.claims

SEEDS = range(5)
SCHEDULE = {"epochs": 801 + 7 * 101, "warmup_epochs": 801, "every": 101, "lr": 0.03, "momentum": 0.9}
EXPANSIONS = [100, 100, 100, 50, 50, 25, 25]


def pooled_minority(run, data):
    """Accuracy on all examples whose spurious feature points the wrong way, and on all."""
    right = predictions(run.outputs(data.test)) == data.test.labels
    minority = data.test.attributes["strong"] == 0
    return 100 * right[minority].double().mean().item(), 100 * right.double().mean().item()


def test_pde_learns_the_core_feature_where_erm_does_not():
    measured = {}
    for seed in SEEDS:
        data = load("spurious-patches", seed=seed)
        common = {"seed": seed, "select": "last", "evaluate_every": 10_000}
        runs = {
            "ERM": evenly.train(data, method="erm", epochs=401, **common),
            "warm-up only": evenly.train(data, method="subsample", epochs=801, lr=0.03, momentum=0.9, **common),
            "warm-up+all": evenly.train(data, method="pde", add="all", **SCHEDULE, **common),
            "PDE": evenly.train(data, method="pde", add=EXPANSIONS, **SCHEDULE, **common),
            "PDE, group-blind draw": evenly.train(
                data, method="pde", add=EXPANSIONS, draw="random", **SCHEDULE, **common
            ),
            "PDE, momentum reset": evenly.train(
                data, method="pde", add=EXPANSIONS, reset_momentum=True, **SCHEDULE, **common
            ),
        }
        for name, run in runs.items():
            measured.setdefault(name, []).append(pooled_minority(run, data))
    minority = {name: statistics.mean(m for m, _ in values) for name, values in measured.items()}
    print("\npooled minority % (sd) / overall %, seeds 0-4")
    for name, values in measured.items():
        spread = statistics.stdev(m for m, _ in values)
        print(f"  {name:22} {minority[name]:5.1f} ({spread:.1f}) / {statistics.mean(o for _, o in values):.1f}")
    assert minority["ERM"] <= 2
    assert minority["PDE"] >= 80
    assert minority["PDE"] >= minority["warm-up+all"] + 10
