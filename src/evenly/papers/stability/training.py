"""Coherence in training: what SGD, random perturbation and SAM do to it (C.2, C.4, C.5, Figures 3 and 4)."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from evenly.diagnose.tracking import COLUMNS, r_squared
from evenly.papers.claims import Scale, claim
from evenly.papers.nodes import computed
from evenly.papers.stability import coherence_in_training as experiment
from evenly.papers.stability.coherence_in_training import C_4, C_5, Arm
from evenly.runs.differences import paired
from evenly.runs.verdict import Chart, Check, Judgement, Line, Measurement, line, measurement

SEEDS = 10
STRAIGHT = 0.85
SHARPEST, COHERENT = "sample_sharpness", "coherence"
NAMES = {SHARPEST: "max_i lambda_max(H_i)", COHERENT: "lambda_max(S)", "sharpness": "lambda_max(H)", "sigma": "sigma"}
OPEN = (
    "lr 0.1, from the caption of Figure 4; C.5 refers to a section that our copy does not have",
    "250 epochs: the first multiple of 50 at which SGD's loss is below 1e-4 on seeds that no claim uses",
    "y = x_1 x_2 on uniform boolean inputs; torch's default initialization",
)
LINE = "a strong regression line: R^2 of at least 0.85, a number that the paper does not give"
Path = Mapping[str, Any]
Paths = Mapping[str, Sequence[Path]]


def path(
    setting: str,
    optimizer: Literal["sgd", "random_perturbation", "sam"],
    rho: float,
    contrast: float,
    lr: float,
    seed: int,
) -> dict[str, Any]:
    """One run of C.5's network, or C.4's: the columns of its records, and whether it diverged."""
    arm = Arm(optimizer, rho=rho, contrast=contrast, lr=lr)
    track = experiment.train(arm, {"C.4": C_4, "C.5": C_5}[setting], seed)
    columns = {name: [float(f"{row[name]:.6g}") for row in track.history] for name in ("step", *COLUMNS)}
    return {**columns, "diverged": track.diverged}


def paths(scale: Scale, arms: Sequence[Arm], setting: str = "C.5", count: int = SEEDS) -> dict[str, Any]:
    """The runs of arms by name, a run for each seed. Arms of one seed have the same start, data and batches."""
    default = {"C.4": C_4, "C.5": C_5}[setting].lr
    return {
        str(arm): [
            computed(
                path, setting=setting, optimizer=arm.optimizer, rho=arm.rho, contrast=arm.contrast,
                lr=default if arm.lr is None else arm.lr, seed=seed,
            )
            for seed in scale.seeds(count)
        ]
        for arm in arms
    }  # fmt: skip


def final(runs: Sequence[Path], quantity: str) -> list[float]:
    return [run[quantity][-1] for run in runs]


def ratios(runs: Sequence[Path], base: Sequence[Path], quantity: str = SHARPEST) -> list[float]:
    """Last values over those of other runs of the same seeds."""
    return [a / b for a, b in zip(final(runs, quantity), final(base, quantity), strict=True)]


def lower(text: str, values: Sequence[float], *, main: bool = True) -> Check:
    """That ratios are below 1: the 95% interval of the mean of their logarithms is below 0."""
    interval = paired([math.log(value) for value in values])
    high = math.nan if interval.high is None else math.exp(interval.high)
    met = interval.high is not None and interval.high < 0
    return Check(f"{text} ({math.exp(interval.mean):.2f} times, 95% interval up to {high:.2f})", met, main)


def higher(text: str, values: Sequence[float], *, main: bool = True) -> Check:
    """That ratios are above 1, likewise."""
    interval = paired([math.log(value) for value in values])
    low = math.nan if interval.low is None else math.exp(interval.low)
    met = interval.low is not None and interval.low > 0
    return Check(f"{text} ({math.exp(interval.mean):.2f} times, 95% interval from {low:.2f})", met, main)


def fit(runs: Sequence[Path], until: int | None = None) -> float:
    """R^2 between max_i lambda_max(H_i) and lambda_max(S) over the records of some runs together."""
    records = [
        {SHARPEST: x, COHERENT: y}
        for run in runs
        for x, y in zip(run[SHARPEST][:until], run[COHERENT][:until], strict=True)
    ]
    return r_squared(records)


def straight(panels: Sequence[float], names: str) -> list[Check]:
    """The line of a panel: its median R^2 over seeds is the point, that of every seed a side point."""
    least, middle = min(panels), statistics.median(panels)
    return [
        Check(f"R^2 of {names}: median {middle:.3f}, at least {STRAIGHT}", middle >= STRAIGHT),
        Check(f"on every seed (least {least:.3f})", least >= STRAIGHT, main=False),
    ]


def dots(runs: Paths) -> Chart:
    """Figure 4: a dot for every tenth record, of the first seed."""
    drawn = [
        line(name, of_arm[0][COHERENT][::10], of_arm[0][SHARPEST][::10], dots=True) for name, of_arm in runs.items()
    ]
    return Chart(f"{NAMES[SHARPEST]}, one seed", NAMES[COHERENT], tuple(drawn))


def curve(name: str, runs: Sequence[Path], quantity: str, every: int = 5) -> Line:
    """A quantity over epochs, averaged over seeds."""
    steps = runs[0]["step"][::every]
    return line(name, steps, [statistics.fmean(run[quantity][k * every] for run in runs) for k in range(len(steps))])


def curves(runs: Paths, quantity: str, title: str | None = None, every: int = 5, *, log_y: bool = False) -> Chart:
    drawn = tuple(curve(name, of_arm, quantity, every) for name, of_arm in runs.items())
    return Chart(title or f"{NAMES[quantity]}, mean over seeds", "epoch", drawn, log_y=log_y)


@claim(
    "stability/fig3",
    revised="Similar numbers were known from earlier runs when the rule was written.",
    where="C.2, Figure 3",
    states="SAM lowers the largest eigenvalue of every sample's Hessian, and with it the largest eigenvalue of the "
    "coherence matrix. The stability condition is then met with a smaller sigma.",
    rule="Over 10 seeds, SAM with rho 0.05 against SGD from the same start: the 95% interval of the mean log ratio of "
    "the last max_i lambda_max(H_i) is below 0, and so is that of lambda_max(S). SAM's ratio is lower than that of "
    "random perturbation of the same length. Side points: max_i lambda_max(H_i) is lower on at least 9 of 10 seeds; "
    "lambda_max(H) is lower, so that the condition asks for less.",
    choices=(*OPEN, "rho 0.05; random perturbations are as long on average"),
    uses=lambda scale: {"runs": paths(scale, experiment.FIGURE_3)},
)
def figure_3(runs: Paths) -> Judgement:
    sgd, random, sam = runs.values()
    sharpest = ratios(sam, sgd)
    against = [a / b for a, b in zip(sharpest, ratios(random, sgd), strict=True)]
    below = sum(ratio < 1 for ratio in sharpest)
    return Judgement(
        [
            lower("SAM lowers max_i lambda_max(H_i)", sharpest),
            lower("SAM lowers lambda_max(S)", ratios(sam, sgd, COHERENT)),
            lower("SAM lowers max_i lambda_max(H_i) more than random perturbation", against),
            Check(f"on at least 9 of 10 seeds ({below} of {len(sharpest)})", below >= 0.9 * len(sharpest), main=False),
            lower("lambda_max(H) is lower", ratios(sam, sgd, "sharpness"), main=False),
        ],
        [
            measurement(f"{NAMES[quantity]}, {name} over SGD", ratios(of_arm, sgd, quantity))
            for quantity in (SHARPEST, COHERENT, "sigma")
            for name, of_arm in runs.items()
            if of_arm is not sgd
        ],
        [curves(runs, SHARPEST), curves(runs, COHERENT)],
    )


@claim(
    "stability/coherent-features",
    where="Appendix B, on Andriushchenko et al.",
    states="SAM's bias leads to simpler, more coherent use of features.",
    rule="Over 10 seeds, SAM with rho 0.05 against SGD: the 95% interval of the mean log ratio of the last coherence "
    "measure sigma is above 0. Side point: so it is at rho 0.01 and 0.1.",
    choices=OPEN,
    uses=lambda scale: {"runs": paths(scale, experiment.FIGURE_4_LEFT)},
)
def coherent_features(runs: Paths) -> Judgement:
    sgd, *sams = runs.values()
    sigma = {name: ratios(sam, sgd, "sigma") for name, sam in zip(list(runs)[1:], sams, strict=True)}
    checks = [higher(f"sigma, {name}", values, main="0.05" in name) for name, values in sigma.items()]
    numbers = [measurement(f"sigma, {name} over SGD", values) for name, values in sigma.items()]
    return Judgement(checks, numbers, [curves(runs, "sigma")])


@claim(
    "stability/fig4-left",
    revised="Similar numbers were known from earlier runs when the rule was written.",
    where="Figure 4, left",
    states="Over SGD and SAM with several rho, lambda_max(S) and max_i lambda_max(H_i) form a strong regression line, "
    "along which a larger rho shifts the runs downwards.",
    rule="Over 10 seeds: the median R^2 over all records of a seed is at least 0.85, and each larger rho of 0.01, "
    "0.05, 0.1 has a lower last max_i lambda_max(H_i) by the 95% interval of the mean log ratio. Side points: the R^2 "
    "of every seed, and of every single run over 50 and over 250 epochs, is at least 0.85.",
    choices=(*OPEN, LINE, "rho 0.01, 0.05, 0.1: the legend cannot be read in our copy"),
    uses=lambda scale: {"runs": paths(scale, experiment.FIGURE_4_LEFT)},
)
def figure_4_left(runs: Paths) -> Judgement:
    names, of_arms = list(runs), list(runs.values())
    panels = [fit(of_seed) for of_seed in zip(*of_arms, strict=True)]
    single = {until: [fit([run], until) for of_arm in of_arms for run in of_arm] for until in (51, None)}
    checks = straight(panels, "all arms of a seed")
    checks += [lower(f"{b} is below {a}", ratios(runs[b], runs[a])) for a, b in itertools.pairwise(names)]
    for until, fits in single.items():
        good = sum(each >= STRAIGHT for each in fits)
        epochs = "250" if until is None else "50"
        checks.append(Check(f"every run of {epochs} epochs ({good} of {len(fits)})", good == len(fits), main=False))
    numbers = [measurement("R^2, all arms of a seed", panels)]
    numbers += [
        measurement(f"{NAMES[SHARPEST]}, {name} over SGD", ratios(runs[name], of_arms[0])) for name in names[1:]
    ]
    return Judgement(checks, numbers, [dots(runs)])


@claim(
    "stability/fig4-middle",
    where="Figure 4, middle",
    states="A learning rate of 0.3 instead of 0.1 shifts the runs along the line.",
    rule="Over 10 seeds: the median R^2 over the records of both learning rates of a seed is at least 0.85. SGD's last "
    "max_i lambda_max(H_i) is lower at lr 0.3, and SAM's at lr 0.3 is below SGD's for every rho, each by the 95% "
    "interval of the mean log ratio. Side points: R^2 on every seed; the median R^2 of single runs at lr 0.3.",
    choices=(*OPEN, LINE),
    uses=lambda scale: {
        "runs": paths(scale, experiment.FIGURE_4_MIDDLE),
        "before": paths(scale, experiment.FIGURE_4_LEFT),
    },
)
def figure_4_middle(runs: Paths, before: Paths) -> Judgement:
    (first, *names), old = list(runs), list(before.values())
    both = [fit(of_seed) for of_seed in zip(*runs.values(), *old, strict=True)]
    single = statistics.median(fit([run]) for of_arm in runs.values() for run in of_arm)
    checks = [
        *straight(both, "all arms at both learning rates"),
        lower("SGD at lr 0.3 is below SGD at 0.1", ratios(runs[first], old[0])),
        *(lower(f"{name} is below SGD", ratios(runs[name], runs[first])) for name in names),
        Check(f"median R^2 of a run at lr 0.3 is at least {STRAIGHT} ({single:.3f})", single >= STRAIGHT, main=False),
    ]
    numbers = [
        measurement("R^2, all arms at both learning rates", both),
        measurement(f"{NAMES[SHARPEST]}, SGD at lr 0.3 over lr 0.1", ratios(runs[first], old[0])),
        *(measurement(f"{NAMES[SHARPEST]}, {name} over SGD", ratios(runs[name], runs[first])) for name in names),
    ]
    black = {f"{name}, lr 0.1": of_arm for name, of_arm in before.items()}
    return Judgement(checks, numbers, [dots({**black, **runs})])


@claim(
    "stability/fig4-right",
    where="Figure 4, right",
    states="A contrastive loss of strength 0, 0.01 or 0.1 shifts the runs along the line.",
    rule="Over 10 seeds: the median R^2 over the records of all strengths of a seed is at least 0.85, and the 95% "
    "interval of the mean log ratio of the last max_i lambda_max(H_i) at strength 0.1 to that at 0 excludes 0. Side "
    "points: R^2 on every seed; the same shift at 0.01.",
    choices=(*OPEN, LINE, "the supervised contrastive loss of Khosla et al. on hidden activations, temperature 0.1"),
    fidelity="proxy: the paper does not give its contrastive loss",
    uses=lambda scale: {"runs": paths(scale, experiment.FIGURE_4_RIGHT)},
)
def figure_4_right(runs: Paths) -> Judgement:
    sgd, weak, strong = runs.values()
    panels = [fit(of_seed) for of_seed in zip(sgd, weak, strong, strict=True)]
    checks = straight(panels, "all strengths of a seed")
    for name, of_arm, main in (("0.1", strong, True), ("0.01", weak, False)):
        interval = paired([math.log(each) for each in ratios(of_arm, sgd)])
        met = interval.low is not None and interval.high is not None and (interval.low > 0 or interval.high < 0)
        checks.append(Check(f"strength {name} shifts the runs ({math.exp(interval.mean):.2f} times)", met, main))
    numbers = [measurement("R^2, all strengths of a seed", panels)]
    numbers += [measurement(f"{NAMES[SHARPEST]}, {name} over SGD", ratios(runs[name], sgd)) for name in list(runs)[1:]]
    return Judgement(checks, numbers, [dots(runs)])


@claim(
    "stability/c4",
    where="C.4, from a random start",
    states="In a 100-50-1 network with batches of 10, rho 0.01 and lr 0.01, all algorithms start from the same "
    "weights; the loss is logged over 50 epochs and averaged over 5 runs.",
    rule="Over 5 runs: the loss of every arm falls below 1% of its start, SAM's last max_i lambda_max(H_i) is below "
    "SGD's by the 95% interval of the mean log ratio, and random perturbation's is within 5% of it. Side point: R^2 "
    "between it and lambda_max(S) is at least 0.85 in every run.",
    choices=("500 samples: the number is not given", "random perturbations are as long as SAM's on average", *OPEN[2:]),
    uses=lambda scale: {"runs": paths(scale, experiment.ARMS_OF_C_4, "C.4", 5)},
)
def section_c_4(runs: Paths) -> Judgement:
    sgd, random, sam = runs.values()
    learned = max(run["loss"][-1] / run["loss"][0] for of_arm in runs.values() for run in of_arm)
    near = statistics.fmean(ratios(random, sgd))
    least = min(fit([run]) for of_arm in runs.values() for run in of_arm)
    return Judgement(
        [
            Check(f"every loss falls below 1% of its start (largest {learned:.1e})", learned < 0.01),
            lower("SAM lowers max_i lambda_max(H_i)", ratios(sam, sgd)),
            Check(f"random perturbation's is within 5% of SGD's ({near:.3f} times)", abs(near - 1) <= 0.05),
            Check(f"every run is along a line (least R^2 {least:.3f})", least >= STRAIGHT, main=False),
        ],
        [measurement(f"last loss, {name}", final(of_arm, "loss")) for name, of_arm in runs.items()],
        [curves(runs, "loss", "loss, mean over runs", 1, log_y=True)],
    )


def shape() -> dict[str, float]:
    """The network and the data of C.5."""
    x, y = experiment.boolean_data(C_5)
    (first, _), (last, _) = (layer.parameters() for layer in (experiment.network(C_5)[0], experiment.network(C_5)[2]))
    return {
        "d": x.shape[1], "n": len(y), "hidden": len(first), "outputs": len(last),
        "batch_size": C_5.batch_size, "product": float((y == x[:, 0] * x[:, 1]).all()),
    }  # fmt: skip


@claim(
    "stability/c5",
    where="C.5",
    states="The experiments on coherence in training have 15 inputs, 10 hidden units and 50 samples.",
    rule="The network and the data of Figures 3 and 4 have these sizes, and batches of 10.",
    uses=lambda scale: {"found": computed(shape)},
)
def section_c_5(found: Mapping[str, float]) -> Judgement:
    wanted = {"d": 15, "hidden": 10, "n": 50, "batch_size": 10, "outputs": 1, "product": 1.0}
    sizes = [Measurement(name, found[name], published=str(wanted[name])) for name in ("d", "hidden", "n", "batch_size")]
    checks = [Check(f"{name} is {value:g} ({found[name]:g})", found[name] == value) for name, value in wanted.items()]
    return Judgement(checks, sizes)
