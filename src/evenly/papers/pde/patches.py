"""ERM and PDE on the synthetic data, with the network and schedule of the authors' code (Table 1, Figures 4 and 7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from evenly.experiment.graph import RunNode
from evenly.papers.claims import Scale, claim
from evenly.papers.judging import clearly_above, differences
from evenly.papers.nodes import computed, trained
from evenly.papers.pde.data import BY_TEXT, NOISE, N, distribution
from evenly.runs.differences import mean
from evenly.runs.run import Run
from evenly.runs.verdict import Chart, Check, Judgement, Measurement, line, measurement
from evenly.theory import cubic

SEEDS = 5
GD_STEPS, WARMUP, LENGTH = 401, 801, 801 + 7 * 101
MOMENTUM = {"lr": 0.03, "momentum": 0.9}
LAST = {"select": "last", "evaluate_every": 10_000}
CHOICES = (
    "the authors' network: a bias in each filter, torch's uniform initialisation times 0.1",
    "the authors' schedule: ERM 401 iterations; warm-up 801; expansions of 100, 100, 100, 50, 50, 25, 25 examples with "
    "101 iterations each; torch's momentum, so that lr 0.03 is 0.3 in eq. 3.1",
    "expansions drawn as evenly over the groups as possible (Section 3.2); the authors' code has another order",
    BY_TEXT,
)
ARMS: dict[str, dict[str, Any]] = {
    "ERM (GD)": {"method": "erm", "epochs": GD_STEPS} | LAST,
    "ERM (GD+M)": {"method": "erm", "epochs": GD_STEPS} | MOMENTUM | LAST,
    "Warmup+All (Reset)": {"method": "pde", "add": "all", "reset_momentum": True} | LAST,
    "Warmup+All": {"method": "pde", "add": "all"} | LAST,
    "PDE (Reset)": {"method": "pde", "reset_momentum": True} | LAST,
    "PDE": {"method": "pde"} | LAST,
    "warm-up alone": {"method": "subsample"} | LAST,
    "PDE, best validation epoch": {"method": "pde"},
    "Warmup+All, best validation epoch": {"method": "pde", "add": "all"},
}
"""PDE's schedule is the recipe of `spurious-patches`, and so is the rule "worst-group-argmax"."""
BIASED = "reduced: the network of the authors' code, with a bias that the paper's does not have"
PUBLISHED = {
    "ERM (GD)": (0.00, 97.71), "ERM (GD+M)": (0.00, 97.71), "Warmup+All (Reset)": (67.69, 31.18),
    "Warmup+All": (74.24, 24.76), "PDE (Reset)": (92.51, 2.29), "PDE": (93.01, 0.03),
}  # fmt: skip


def arm(name: str, seed: int, **data: float) -> RunNode:
    """The node of an arm of Table 1."""
    return trained("spurious-patches", seed=seed, data_options={"noise": NOISE, **data}, **ARMS[name])


def arms(*names: str, seeds: int = SEEDS) -> Any:
    """What a claim uses: the runs of these arms by name."""

    def uses(scale: Scale) -> dict[str, list[RunNode]]:
        return {name: [arm(name, seed) for seed in scale.seeds(seeds)] for name in names}

    return uses


Runs = Sequence[Run]


def worst(run: Run) -> float:
    """The worst of the four test groups, %."""
    value = run.results.splits["test"].worst_group
    assert value is not None
    return 100 * value


def pooled(run: Run) -> float:
    """Both small groups of the test set together, %: what the authors' code calls the worst group."""
    reached = run.results.splits["test"]
    counts = [reached.group_counts[k] for k in (1, 3)]
    right = sum((reached.groups[k] or 0.0) * n for k, n in zip((1, 3), counts, strict=True))
    return 100 * right / sum(counts)


def overall(run: Run) -> float:
    return 100 * run.results.splits["test"].accuracy


def gaps(runs: Runs) -> list[float]:
    return [overall(run) - worst(run) for run in runs]


def rows(results: Mapping[str, Runs]) -> list[Measurement]:
    """Worst group, gap, both small groups and overall accuracy of each arm."""
    measurements = []
    for name, runs in results.items():
        group, gap = PUBLISHED.get(name, ("", ""))
        measurements += [
            measurement(f"{name}: worst group", map(worst, runs), f"{group:.2f}" if group != "" else "", "%"),
            measurement(f"{name}: gap", gaps(runs), f"{gap:.2f}" if gap != "" else "", "points"),
            measurement(f"{name}: both small groups", map(pooled, runs), unit="%"),
            measurement(f"{name}: overall", map(overall, runs), unit="%"),
        ]
    return measurements


def of(values: Any, runs: Runs) -> list[float]:
    return [values(run) for run in runs]


SIX = tuple(PUBLISHED)


@claim(
    "pde/table1",
    fidelity=BIASED,
    revised="The side point of 10 points above adding all at once was added after a first run.",
    where="Table 1",
    states="PDE raises the worst group far above ERM and above adding all data at once after the warm-up, with or "
    "without a reset of the momentum.",
    rule="Over 5 seeds, by the worst of the four test groups after the last iteration: the 95% interval of PDE minus "
    "ERM (GD), of PDE minus Warmup+All and of PDE (Reset) minus Warmup+All (Reset) is above 0, and so it is by both "
    "small groups together. Side points: PDE is at least 10 points above Warmup+All by the latter, and within 5 points "
    "of 93.01, its gap below 3; Warmup+All is within 5 points of 74.24.",
    published={f"{name}: worst group": f"{values[0]:.2f}" for name, values in PUBLISHED.items()},
    choices=CHOICES,
    uses=arms(*SIX),
)
def table_1(**results: Runs) -> Judgement:
    checks = []
    for one, other in (("PDE", "ERM (GD)"), ("PDE", "Warmup+All"), ("PDE (Reset)", "Warmup+All (Reset)")):
        for name, values in (("worst group", worst), ("both small groups", pooled)):
            found = differences(of(values, results[one]), of(values, results[other]))
            met = clearly_above(of(values, results[one]), of(values, results[other]))
            checks.append(Check(f"{one} above {other}, {name}: {found.mean:+.1f} points", met))
    level, gap, all_at_once = (
        mean(of(worst, results["PDE"])), mean(gaps(results["PDE"])), mean(of(worst, results["Warmup+All"])),
    )  # fmt: skip
    more = differences(of(pooled, results["PDE"]), of(pooled, results["Warmup+All"])).mean
    checks += [
        Check(f"PDE at least 10 points above Warmup+All, both small groups ({more:.1f})", more >= 10, main=False),
        Check(f"PDE within 5 points of 93.01 ({level:.1f})", abs(level - 93.01) <= 5, main=False),
        Check(f"PDE's gap below 3 points ({gap:.1f})", gap <= 3, main=False),
        Check(f"Warmup+All within 5 points of 74.24 ({all_at_once:.1f})", abs(all_at_once - 74.24) <= 5, main=False),
    ]
    return Judgement(checks, rows(results))


def judged_erm(name: str, runs: Runs) -> Judgement:
    """ERM's rows: nothing of the small groups, and nearly all of the rest."""
    _, gap = PUBLISHED[name]
    checks = [
        Check("the worst group is at most 1%", mean(of(worst, runs)) <= 1),
        Check("both small groups are at most 1%", mean(of(pooled, runs)) <= 1),
        Check(f"the gap is within 1 point of {gap}", abs(mean(gaps(runs)) - gap) <= 1, main=False),
    ]
    return Judgement(checks, rows({name: runs}))


ERM_RULE = (
    "Over 5 seeds: the mean of the worst test group, and of both small groups, is at most 1%. Side point: the gap."
)


@claim(
    "pde/table1-erm",
    fidelity=BIASED,
    where="Table 1, ERM (GD)",
    states="ERM by gradient descent classifies none of the worst group correctly.",
    rule=ERM_RULE,
    published={"worst group": "0.00", "gap": "97.71"},
    choices=CHOICES,
    uses=arms("ERM (GD)"),
)
def table_1_erm(**results: Runs) -> Judgement:
    return judged_erm("ERM (GD)", results["ERM (GD)"])


@claim(
    "pde/table1-erm-momentum",
    fidelity=BIASED,
    where="Table 1, ERM (GD+M)",
    states="ERM with momentum, set as for PDE, classifies none of the worst group correctly either.",
    rule=ERM_RULE,
    published={"worst group": "0.00", "gap": "97.71"},
    choices=(*CHOICES, "401 iterations, as many as without momentum; the paper trains until convergence"),
    uses=arms("ERM (GD+M)"),
)
def table_1_erm_momentum(**results: Runs) -> Judgement:
    return judged_erm("ERM (GD+M)", results["ERM (GD+M)"])


def erm_continued(seed: int, steps: int = 2_000, n: int = N) -> dict[str, Any]:
    """ERM (GD) with the authors' network, trained on: [iteration, small groups of the test set %, overall %, training
    loss, spurious alignment, core alignment] every 50 iterations."""
    source, every = distribution(), 50
    planted = torch.cat([torch.stack(source.directions(seed)), torch.zeros(2, 1)], 1)

    def with_one(name: str) -> tuple[Tensor, Tensor, Tensor]:
        split = source.sample(n, seed, name)
        assert isinstance(split.inputs, Tensor)
        inputs = torch.cat([split.inputs, torch.ones(n, 3, 1)], 2)  # the bias is the weight of a constant
        return inputs, split.labels, split.attributes["strong"] == 1

    (x, y, _), (test, labels, agrees) = with_one("train"), with_one("test")
    data, bound, rows = cubic.fold(x, y), 0.1 / 50**0.5, []
    w = bound * (2 * torch.rand(40, 51, generator=torch.Generator().manual_seed(seed)) - 1)
    for t in range(0, steps + 1, every):
        right = ((test @ w.T).pow(3).sum((1, 2)) > 0) == (labels == 1)
        shares = [100 * float(each.double().mean()) for each in (right[~agrees], right)]
        path = cubic.train(w, data, planted, lr=0.1, steps=every, every=every)
        rows.append([t, *shares, float(path.loss[0]), *path.largest[0].tolist()])
        w = path.weights
    return {"rows": rows}


@claim(
    "pde/table1-convergence",
    fidelity=BIASED,
    where="Table 1, ERM (GD); Appendix A",
    states="ERM is unable to predict the small groups; all models are trained until convergence.",
    rule="Over 3 seeds: gradient descent goes on to 2,000 iterations, five times the authors' 401. The small groups "
    "are then still at most 1% on every seed.",
    published={"small groups": "0.00"},
    choices=CHOICES,
    uses=lambda scale: {"runs": [computed(erm_continued, seed=seed) for seed in scale.seeds(3)]},
)
def table_1_convergence(runs: Sequence[Mapping[str, Any]]) -> Judgement:
    def at(run: Mapping[str, Any], t: int, k: int) -> float:
        return float(next(row[k] for row in run["rows"] if row[0] == t))

    last = [at(run, 2_000, 1) for run in runs]
    measurements = [
        measurement(f"{name} at {t:,}", [at(run, t, k) for run in runs], "0.00" if k == 1 and t == 400 else "", unit)
        for t in (400, 1_000, 2_000)
        for k, name, unit in ((1, "small groups", "%"), (3, "training loss", ""))
    ]
    t = [row[0] for row in runs[0]["rows"]]
    charts = [
        Chart("test accuracy of ERM (GD), %, one seed", "iteration", [
            line(name, t, [row[k] for row in runs[0]["rows"]]) for k, name in ((1, "small groups"), (2, "overall"))
        ], marks=(GD_STEPS,)),
        Chart("largest alignment of ERM (GD), one seed", "iteration", [
            line(name, t, [row[k] for row in runs[0]["rows"]]) for k, name in ((4, "spurious"), (5, "core"))
        ], marks=(GD_STEPS,)),
    ]  # fmt: skip
    met = max(last) <= 1
    return Judgement([Check("the small groups are at most 1% at 2,000, on every seed", met)], measurements, charts)


@claim(
    "pde/table1-reset",
    revised="Similar numbers were known from earlier runs when the rule was written.",
    fidelity=BIASED,
    where="Table 1, Reset",
    states="The momentum of the warm-up matters: a reset lowers the worst group, from 74.24 to 67.69 if all data are "
    "added at once and from 93.01 to 92.51 in PDE.",
    rule="Over 5 seeds: the 95% interval of Warmup+All minus Warmup+All (Reset), by the worst of the four groups, is "
    "above 0. Side point: the same for PDE minus PDE (Reset).",
    published={"Warmup+All minus its reset": "6.55", "PDE minus its reset": "0.50"},
    choices=CHOICES,
    uses=arms("Warmup+All", "Warmup+All (Reset)", "PDE", "PDE (Reset)"),
)
def table_1_reset(**results: Runs) -> Judgement:
    checks, measurements = [], []
    for name, published in (("Warmup+All", "6.55"), ("PDE", "0.50")):
        kept, reset = (of(worst, results[each]) for each in (name, f"{name} (Reset)"))
        met = clearly_above(kept, reset)
        checks.append(Check(f"{name}: kept above reset", met, main=name == "Warmup+All"))
        differences = [a - b for a, b in zip(kept, reset, strict=True)]
        measurements.append(measurement(f"{name} minus its reset", differences, published, "points"))
    return Judgement(checks, measurements)


@claim(
    "pde/table1-line15",
    fidelity=BIASED,
    revised="Cut from five to three seeds after both were seen, with the same verdict.",
    where="Table 1 by line 15 of Algorithm 1",
    states="The weights of PDE are those of the best epoch by the worst group of validation; with them, too, PDE is "
    "above adding all data at once.",
    rule="Over 3 seeds, evaluated every 20 iterations: the epoch has the largest worst group of validation, and the "
    "95% interval of PDE minus Warmup+All, by the worst of the four test groups, is above 0.",
    published={"PDE: worst group": "93.01", "Warmup+All: worst group": "74.24"},
    choices=(*CHOICES, "line 15 for both; Table 1 does not say which weights its rows have"),
    uses=arms("PDE, best validation epoch", "Warmup+All, best validation epoch", seeds=3),
)
def table_1_line_15(**results: Runs) -> Judgement:
    def best(run: Run) -> bool:
        values = {row["epoch"]: row["validation"]["worst_group"] for row in run.history if "validation" in row}
        return bool(values[run.results.selected_epoch] == max(values.values()))

    one, other = (of(worst, runs) for runs in results.values())
    in_warmup = sum(run.results.selected_epoch <= WARMUP for run in results["Warmup+All, best validation epoch"])
    checks = [
        Check("the best epoch of validation", all(best(run) for runs in results.values() for run in runs)),
        Check(f"PDE above Warmup+All: {differences(one, other).mean:+.1f} points, of whose weights {in_warmup} of "
              f"{len(other)} are of the warm-up", clearly_above(one, other)),
    ]  # fmt: skip
    selected = [
        measurement(f"{name}: iteration", [run.results.selected_epoch for run in runs])
        for name, runs in results.items()
    ]
    return Judgement(checks, [*rows(results), *selected])


@claim(
    "pde/table4-patches",
    revised="Similar numbers were known from earlier runs when the rule was written.",
    where="Table 4, on the synthetic data; Section 4.1",
    states="The expansion goes on learning: the worst group is higher after it than after the warm-up alone, and so is "
    "the average.",
    rule="Over 5 seeds: the 95% interval of PDE minus its warm-up alone, by the worst of the four test groups, is "
    "above 0. Side points: the same by both small groups together, and by overall accuracy.",
    published={"worst group, Waterbirds, CelebA, CivilComments": "+4.3, +3.2, +3.8"},
    choices=CHOICES,
    fidelity="proxy: the table is of Waterbirds, CelebA and CivilComments, which are not here",
    uses=arms("warm-up alone", "PDE"),
)
def table_4_patches(**results: Runs) -> Judgement:
    checks = []
    for name, values, main in (
        ("worst group", worst, True),
        ("both small groups", pooled, False),
        ("overall", overall, False),
    ):
        after, before = of(values, results["PDE"]), of(values, results["warm-up alone"])
        found = differences(after, before)
        checks.append(Check(f"{name}: {found.mean:+.1f} points", clearly_above(after, before), main=main))
    return Judgement(checks, rows(results))
