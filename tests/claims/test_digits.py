"""Shortcut digits with the default options, seeds 100-104: the methods' accuracy if the bright edge is wrong."""

import statistics

import pytest

import evenly

pytestmark = pytest.mark.claims

SEEDS = range(100, 105)


def worst_groups(method, **settings):
    runs = [evenly.train("shortcut-digits", method=method, seed=seed, **settings) for seed in SEEDS]
    return [100 * run.results.splits["test"].worst_group for run in runs]


@pytest.fixture(scope="module")
def erm():
    return worst_groups("erm")


def test_erm_leans_on_the_shortcut(erm):
    balanced = worst_groups("erm", data_options={"rate": 0.5})
    print(f"\nworst group: ERM {statistics.mean(erm):.1f}, the same on balanced data {statistics.mean(balanced):.1f}")
    assert statistics.mean(erm) <= statistics.mean(balanced) - 20


@pytest.mark.parametrize("method", ["pde", "group_dro", "subsample"])
def test_group_methods_raise_the_worst_group(method, erm):
    reached = worst_groups(method)
    gains = [r - e for r, e in zip(reached, erm, strict=True)]
    print(f"\n{method}: worst group {statistics.mean(reached):.1f}, ERM {statistics.mean(erm):.1f}, gains {gains}")
    assert statistics.mean(gains) >= 15
