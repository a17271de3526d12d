"""The page and the terminal output of an improvement, of values made by hand: one per verdict, and of every shape."""

from __future__ import annotations

import io
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from attrs import evolve
from PIL import Image

from evenly.engine.accuracy import intervals
from evenly.report import write_report
from evenly.report.improve_console import show_improvement
from evenly.report.improve_figures import Gain, gains
from evenly.report.improve_pages import slices
from evenly.report.improve_words import short, size_reason, uncertain
from evenly.report.figures import Style
from evenly.runs.arms import Arm
from evenly.runs.differences import Difference
from evenly.runs.improvement import (
    Changed,
    Choice,
    DataProfile,
    GiveAway,
    Improvement,
    NotTried,
    Tested,
    Tried,
    read_improvement,
)
from evenly.runs.results import DataSummary
from evenly.runs.summary import Metric, Summary

NASTY = "<script>alert(1)</script>"
LONG = "a group whose name has sixty characters, as columns may give"
ERM, SAM, USEFUL, DRO = Arm("erm", "sgd"), Arm("erm", "sam"), Arm("useful", "sgd"), Arm("group_dro", "sgd")
CONTROL, SAM_CONTROL = Arm("random_upsample", "sgd", control_of=USEFUL), Arm("erm", "sgd", control_of=SAM)
VERDICTS = {
    "raised": "The gain is clear",
    "raised-for-these": "clear for these models only",
    "not-confirmed": "the test set does not confirm it",
    "no-clear-gain": "no clear gain",
    "too-few": "too few examples to tell",
    "nothing-tried": "Nothing was tried besides plain training",
}


def summary(arm, level, cost=1.0, gain=None, seeds=3, groups=4, average=0.9, counts=(500, 120, 31, 8), width=0.02):
    """An arm over its seeds; `gain` is its difference from ERM in the worst group."""

    def metric(mean, difference):
        spread = 0.004
        values = tuple(mean + spread * (k - (seeds - 1) / 2) for k in range(seeds))
        if difference is None:
            return Metric(mean, spread, values)
        over_seeds = (difference - width, difference + width) if seeds > 2 else (None, None)
        interval = Difference(difference, *over_seeds, seeds, 0.01, difference - width, difference + width)
        return Metric(mean, spread, values, interval)

    shares = tuple(min(level + 0.1 * g, 1.0) for g in reversed(range(groups)))
    counts = counts[:groups]
    metrics = {
        "accuracy": metric(average - (gain is not None) * 0.011, None if gain is None else -0.011),
        "worst_class": metric(level + 0.1, None if gain is None else gain / 2),
    }
    if groups:
        metrics["worst_group"] = metric(level, gain)
    return Summary(
        arm, seeds, "worst-group", cost, metrics, groups=shares, group_counts=counts,
        group_intervals=intervals(shares, counts), seed_numbers=tuple(range(seeds)),
    )  # fmt: skip


def improvement(verdict="raised", grouping="given", seeds=3, kind="image", names=None, **changes) -> Improvement:
    """A whole job. On validation USEFUL is 9.9 points better than ERM, on the test set 7.3."""
    better = verdict in ("raised", "raised-for-these", "not-confirmed")
    groups = 0 if grouping == "none" else 4
    metric, goal = ("worst_group", "worst-group") if groups else ("worst_class", "worst-class")
    names = names or (("landbird on land", "waterbird on water", NASTY, LONG) if groups else ())
    data = DataSummary(
        "birds & co", "Birds before backgrounds.", {"train": 4000, "validation": 1200, "test": 659},
        ("landbird", NASTY), names, groups,
    )  # fmt: skip
    profile = DataProfile(
        data, {"train": (3000, 1000), "validation": (1100, 100), "test": (500, 159)}, grouping, names,
        {} if not groups else {"train": (2700, 900, 300, 100), "validation": (900, 200, 88, 12)},
        drawn=("test",), duplicates={"validation": 0, "test": 17},
        give_aways=(GiveAway("file_size", 0.93, 0.75),) if kind == "table" else (),
        slice="place = water" if grouping == "slice" else "",
    )  # fmt: skip

    def reached(arm, level, cost=1.0, gain=None, at=seeds, **shape):
        return summary(arm, level, cost, gain, at, groups, **shape)

    tried = [Tried(ERM, "the baseline", True, reached(ERM, 0.52))]
    if verdict != "nothing-tried":
        control = reached(CONTROL, 0.55, 1.3, 0.031)
        tried += [
            Tried(USEFUL, "one group is far below the average", True, reached(USEFUL, 0.62, 1.3, 0.099), control,
                  Difference(0.068, 0.05, 0.08, seeds, 0.01, 0.04, 0.09)),
            Tried(SAM, "it learns features more evenly", False, reached(SAM, 0.53, 2.0, 0.012, at=1)),
            Tried(DRO, "groups are known", False, reached(DRO, 0.49, 1.0, -0.03, at=1)),
        ]  # fmt: skip
    tested = [Tested(ERM, reached(ERM, 0.5))]
    if better:
        tested.append(Tested(USEFUL, reached(USEFUL, 0.573, 1.3, 0.073, width=0.09 if verdict == "not-confirmed" else 0.02),
                             Difference(0.054, 0.03, 0.08, seeds, 0.01, 0.02, 0.09)))  # fmt: skip
        tested.append(Tested(CONTROL, reached(CONTROL, 0.519, 1.3, 0.019)))
    on_validation = tried[1].on_validation.difference(metric) if better else None
    choice = Choice(
        USEFUL if better else ERM, ERM, verdict, "validation decided by the goal", "a", {},
        CONTROL if better else None, on_validation,
    )  # fmt: skip
    gained, lost = (
        tuple(
            Changed(k, "landbird", *order, group=NASTY, place=f"{k}.png" if kind == "image" else "",
                    text={"text": f"a text with {NASTY}", "table": f"age=3, name={NASTY}"}.get(kind, ""))
            for k in indices
        )
        for indices, order in (((4, 7, 9), (NASTY, "landbird")), ((11,), ("landbird", NASTY)))
    )  # fmt: skip
    asked = Improvement(
        profile, goal, metric, "worst-group", "resnet18", tuple(range(seeds)), 0, 12.0, 84000.0, 4000.0,
        2000.0 if grouping == "inferred" else 0.0, 100.0, 754.0, tuple(tried),
        (NotTried(Arm("pde", "sgd"), "the budget has no room for it"),), choice, verdict, tuple(tested),
        gained if better else (), lost if better else (), 31 if better else 0, 1 if better else 0,
        ("One run was interrupted and resumed",), ("import evenly", 'run = evenly.load("best")'),
    )  # fmt: skip
    return evolve(asked, **changes)


def saved(job: Improvement, folder: Path, images: bool = False) -> Path:
    """The job in its folder, as `evenly improve` leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    job.save(folder / "improve.json")
    for each in (*job.gained, *job.lost) if images else ():
        (folder / "changed").mkdir(exist_ok=True)
        for name, shade in ((f"{each.index}.png", 40 * (each.index % 6)), (f"{each.index}-heat.png", 200)):
            Image.new("RGB", (32, 32), (shade, 90, 120)).save(folder / "changed" / name)
    return folder
