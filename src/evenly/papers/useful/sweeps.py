"""USEFUL over batch sizes, learning rates, factors and separating epochs: a ResNet-18 on CIFAR-10 as in the paper, and
the 3-layer MLP in its place, which needs minutes of a GPU instead of hours (Figures 7, 10, 11b)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import evolve

from evenly.papers.claims import claim
from evenly.papers.judging import clearly_above
from evenly.papers.nodes import Stored
from evenly.papers.useful.comparisons import FEW_SEEDS
from evenly.papers.useful.images import CHOICES, READ_BEFORE, SEEDS_RULE, SGD, USEFUL, File, by_seed, errors, lower
from evenly.runs.differences import mean
from evenly.runs.verdict import Chart, Check, Judgement, Measurement, line, measurement

Errors = Mapping[float, Sequence[float]]
"""Test errors in % by seed, at each value of what is swept."""

EARLIER, MLP = Stored("cifar10-useful-4.json"), Stored("cifar10-mlp.json")
LOWER_RATE = Stored("cifar10-mlp-lower-rate.json", minutes=10)
MLP_CHOICES = (*CHOICES, "separated after 8 epochs", "a run that diverges counts as an error of 90%, that of guessing")
NO_COMMIT = "the results of Figure 7 are of a commit that is not in the history of this repository"
MLP_FIDELITY = "proxy: a 3-layer MLP at a tenth of the paper's learning rate, for a ResNet-18"
ARMS = {
    "sgd": "SGD", "useful": "USEFUL", "random": "random upsampling", "sam": "SAM", "sam-useful": "SAM with USEFUL",
    "sam-random": "SAM with random upsampling",
}  # fmt: skip
GUESSING = 90.0
AFTER_FIGURE_7 = "Figure 7 had been measured at learning rate 0.1, where it does not hold; hence the rate 0.01."
KNOWN = (
    "The numbers at {} had been read before the rule was written: USEFUL is not clearly below SGD there, by 0.13 "
    "points [-0.31, 0.58]. This is therefore a side point."
)


def stored(unit: str, minutes: int) -> Stored:
    return Stored(f"cifar10-{unit}.json", minutes=minutes)


def errors_of(file: File, arm: str) -> list[float]:
    """Test errors of an arm of the MLP in %, by seed."""
    return [row.get("test_error", GUESSING) for row in by_seed(file["arms"][arm]["rows"])]


def lower_at_each(name: str, sgd: Errors, useful: Errors, known: float | None = None) -> Judgement:
    """USEFUL's test error is below SGD's at every value; where it had been measured before, that is a side point."""
    checks = [
        evolve(check, main=check.main and value != known)
        for value in sgd
        for check in lower(f"{name} {value:g}: USEFUL's error is below SGD's", sgd[value], useful[value])
    ]
    return Judgement(checks, measurements(name, sgd, useful), [chart(name, sgd, useful)])


def measurements(name: str, sgd: Errors, useful: Errors) -> list[Measurement]:
    return [
        measurement(f"test error, {arm}, {name} {value:g}", values, unit="%")
        for arm, by_value in (("SGD", sgd), ("USEFUL", useful))
        for value, values in by_value.items()
    ]


def chart(name: str, sgd: Errors, useful: Errors) -> Chart:
    lines = [
        line(arm, list(by_value), [mean(values) for values in by_value.values()])
        for arm, by_value in (("SGD", sgd), ("USEFUL", useful))
    ]
    return Chart("test error, %", name, tuple(lines))


# Figure 7


def _figure_7(id: str, file: Stored, prefix: str, where: str, revised: str, fidelity: str, *choices: str) -> None:
    @claim(
        id,
        revised=revised,
        where=where,
        states="USEFUL lowers the test error of a 3-layer MLP on CIFAR-10 by nearly 1 point, with SGD and with SAM; "
        "SGD with USEFUL is below SAM.",
        rule=f"{SEEDS_RULE}: USEFUL's error is below SGD's; SAM's with USEFUL is below SAM's; SGD's with USEFUL is "
        "below SAM's. Side points: on every seed; USEFUL's is below that of random upsampling at the same cost, with "
        "SGD and with SAM; each mean gain is within 0.5 to 1.5 points.",
        published={"gain": "nearly 1 point"},
        choices=(*MLP_CHOICES, "random repetition has USEFUL's whole cost, early epochs included", *choices),
        fidelity=fidelity,
        uses=lambda scale: {"mlp": file},
    )
    def judge(mlp: File) -> Judgement:
        return lower_with_both({name: errors_of(mlp, f"{prefix}{name}") for name in ARMS})


def lower_with_both(arms: Mapping[str, Sequence[float]]) -> Judgement:
    """USEFUL's error is below SGD's and SAM's, and SAM's with USEFUL below SAM's; controls are side points."""
    gains = {"SGD": mean(arms["sgd"]) - mean(arms["useful"]), "SAM": mean(arms["sam"]) - mean(arms["sam-useful"])}
    controls = [
        evolve(check, main=False)
        for prefix, name in (("", "USEFUL"), ("sam-", "SAM with USEFUL"))
        for check in lower(
            f"the error of {name} is below that of random upsampling", arms[f"{prefix}random"], arms[f"{prefix}useful"]
        )
    ]
    return Judgement(
        [
            *lower("USEFUL's error is below SGD's", arms["sgd"], arms["useful"]),
            *lower("SAM's error with USEFUL is below SAM's", arms["sam"], arms["sam-useful"]),
            *lower("SGD's error with USEFUL is below SAM's", arms["sam"], arms["useful"]),
            *controls,
            *(
                Check(f"USEFUL's gain with {name} is within 0.5 to 1.5 points ({gain:.2f})", 0.5 <= gain <= 1.5, False)
                for name, gain in gains.items()
            ),
        ],
        [measurement(f"test error, {ARMS[name]}", values, unit="%") for name, values in arms.items()],
    )


_figure_7(
    "useful/fig7", MLP, "", "Figure 7, section D.2",
    READ_BEFORE, "paper", NO_COMMIT,
)  # fmt: skip
_figure_7(
    "useful/fig7-lower-rate", LOWER_RATE, "lower-", "Figure 7, at a tenth of the learning rate", AFTER_FIGURE_7,
    "reduced: learning rate 0.01 instead of 0.1, at which this network's training loss stays near 2.0 for 100 epochs",
)  # fmt: skip


# Figure 10


@claim(
    "useful/fig10-left",
    revised=KNOWN.format("batch size 128"),
    where="Figure 10 (left), section D.6",
    states="USEFUL lowers SGD's test error at batch sizes 128, 256 and 512.",
    rule=f"{SEEDS_RULE}: USEFUL's error is below SGD's at 256 and 512. Side points: at 128; on every seed.",
    published={"test errors": "drawn only"},
    choices=(*CHOICES, FEW_SEEDS),
    uses=lambda scale: {
        "sgd": {128: SGD, 256: stored("sgd-batch-256", 7), 512: stored("sgd-batch-512", 7)},
        "useful": {128: USEFUL, 256: stored("useful-batch-256", 9), 512: stored("useful-batch-512", 9)},
    },
)
def figure_10_left(sgd: Mapping[float, File], useful: Mapping[float, File]) -> Judgement:
    return lower_at_each("batch size", errors_at(sgd), errors_at(useful), known=128)


@claim(
    "useful/fig10-middle",
    revised=KNOWN.format("learning rate 0.1"),
    where="Figure 10 (middle), section D.6",
    states="USEFUL lowers SGD's test error at learning rates 0.1, 0.2 and 0.4, and larger rates are worse.",
    rule=f"{SEEDS_RULE}: USEFUL's error is below SGD's at 0.2 and 0.4; SGD's error is higher at 0.4 than at 0.1. "
    "Side points: USEFUL's is below SGD's at 0.1; on every seed; SGD's mean error rises from each rate to the next.",
    published={"test errors": "drawn only"},
    choices=(*CHOICES, FEW_SEEDS),
    uses=lambda scale: {
        "sgd": {0.1: SGD, 0.2: stored("sgd-lr-0.2", 8), 0.4: stored("sgd-lr-0.4", 8)},
        "useful": {0.1: USEFUL, 0.2: stored("useful-lr-0.2", 11), 0.4: stored("useful-lr-0.4", 11)},
    },
)
def figure_10_middle(sgd: Mapping[float, File], useful: Mapping[float, File]) -> Judgement:
    return larger_rates_are_worse(errors_at(sgd), errors_at(useful), known=0.1)


def larger_rates_are_worse(sgd: Errors, useful: Errors, known: float | None = None) -> Judgement:
    """USEFUL's error is below SGD's at every learning rate, and SGD's rises with the rate."""
    judgement = lower_at_each("learning rate", sgd, useful, known)
    rates, means = list(sgd), [mean(values) for values in sgd.values()]
    first, last = rates[0], rates[-1]
    worse = [
        Check(f"SGD's error is clearly higher at {last:g} than at {first:g}", clearly_above(sgd[last], sgd[first])),
        Check("SGD's mean error rises from each rate to the next", means == sorted(means), main=False),
    ]
    return evolve(judgement, checks=[*judgement.checks, *worse])


@claim(
    "useful/fig10-right",
    revised=KNOWN.format("factor 2"),
    where="Figure 10 (right), section D.6",
    states="Upsampling factors 2 to 5 lower SGD's test error, and 2 is best.",
    rule=f"{SEEDS_RULE}: USEFUL's error is below SGD's with factors 3, 4 and 5; the mean error is lowest at 2. Side "
    "points: it is below SGD's with factor 2; on every seed.",
    published={"best factor": "2"},
    choices=(*CHOICES, FEW_SEEDS, "each factor costs more than the one before: 1.3, 1.6, 1.8 and 2.1 times SGD's cost"),
    uses=lambda scale: {
        "sgd": SGD,
        "useful": {2: USEFUL} | {k: stored(f"useful-x{k}", minutes) for k, minutes in ((3, 13), (4, 15), (5, 18))},
    },
)
def figure_10_right(sgd: File, useful: Mapping[float, File]) -> Judgement:
    return factor_2_is_best(errors(sgd), errors_at(useful), known=2)


def factor_2_is_best(sgd: Sequence[float], useful: Errors, known: float | None = None) -> Judgement:
    """USEFUL's error is below SGD's with every factor, and in the mean lowest with 2."""
    judgement = lower_at_each("factor", dict.fromkeys(useful, sgd), useful, known)
    best = min(useful, key=lambda factor: mean(useful[factor]))
    return evolve(judgement, checks=[*judgement.checks, Check(f"the mean is lowest at factor {best:g}", best == 2)])


# Figure 11b


@claim(
    "useful/fig11b",
    revised=READ_BEFORE,
    where="Figure 11b, section C.2: epochs 4 and 8",
    states="Of the separating epochs 4, 5, 6, 7, 8 and 10, about 8 gives the lowest test error.",
    rule=f"{SEEDS_RULE}: the error is lower separated after 8 epochs than after 4. Side point: on every seed.",
    published={"best": "about 8"},
    fidelity="reduced: two of the six epochs, 4 and 8",
    choices=CHOICES,
    uses=lambda scale: {"early": EARLIER, "useful": USEFUL},
)
def figure_11b(early: File, useful: File) -> Judgement:
    return Judgement(
        lower("the error is lower after 8 epochs than after 4", errors(early), errors(useful)),
        [
            measurement("test error, separated after 4", errors(early), unit="%"),
            measurement("test error, separated after 8", errors(useful), unit="%"),
        ],
    )


EPOCHS_RULE = (
    f"{SEEDS_RULE}: the mean error is lowest after 7 or 8 epochs, and none of the six is clearly below 8. Side point: "
    "the means after 4, 5 and 6 are all above that after 8."
)
BY_CHANCE = "about 8: 7 or 8. If the epoch makes no difference, one of these two is lowest in a third of all cases"


@claim(
    "useful/fig11b-all",
    revised="After 4 and 8 epochs, 4.88 and 4.82%, it had been measured before the rule was written.",
    where="Figure 11b, section C.2",
    states="Of the separating epochs 4, 5, 6, 7, 8 and 10, about 8 gives the lowest test error.",
    rule=EPOCHS_RULE,
    published={"best": "about 8"},
    choices=(*CHOICES, BY_CHANCE),
    uses=lambda scale: {
        "useful": {4: EARLIER, 8: USEFUL} | {epoch: stored(f"useful-{epoch}", 11) for epoch in (5, 6, 7, 10)}
    },
)
def figure_11b_all(useful: Mapping[float, File]) -> Judgement:
    return about_8_is_best(errors_at(useful))


def about_8_is_best(useful: Errors) -> Judgement:
    """The error is lowest if the examples are separated after about 8 epochs."""
    by_epoch = dict(sorted(useful.items()))
    best = min(by_epoch, key=lambda epoch: mean(by_epoch[epoch]))
    better = [f"{epoch:g}" for epoch in by_epoch if clearly_above(by_epoch[8], by_epoch[epoch])]
    means = [mean(values) for values in by_epoch.values()]
    before = min(mean(by_epoch[epoch]) for epoch in (4, 5, 6))
    return Judgement(
        [
            Check(f"the mean is lowest after {best:g} epochs", best in (7, 8)),
            Check(f"none is clearly below 8 ({', '.join(better) or 'none'})", not better),
            Check("the means after 4, 5 and 6 are above that after 8", before > mean(by_epoch[8]), main=False),
        ],
        [measurement(f"test error, separated after {epoch:g}", by_epoch[epoch], unit="%") for epoch in by_epoch],
        [Chart("test error, %", "separating epoch", (line("USEFUL", list(by_epoch), means),), marks=(8.0,))],
    )


def errors_at(files: Mapping[float, File]) -> Errors:
    """Test errors of the files at each value."""
    return {float(value): errors(file) for value, file in files.items()}


# The same with the MLP

BATCHES = Stored("cifar10-mlp-batches.json", minutes=3)
RATES, FACTORS = Stored("cifar10-mlp-rates.json", minutes=4), Stored("cifar10-mlp-factors.json", minutes=6)
SEPARATING = Stored("cifar10-mlp-epochs.json", minutes=6)


@claim(
    "useful/fig10-left-mlp",
    revised=AFTER_FIGURE_7,
    where="Figure 10 (left), with an MLP",
    states="USEFUL lowers SGD's test error at batch sizes 128, 256 and 512.",
    rule=f"{SEEDS_RULE}: USEFUL's error is below SGD's at each of the three. Side point: on every seed.",
    choices=MLP_CHOICES,
    fidelity=MLP_FIDELITY,
    uses=lambda scale: {"usual": LOWER_RATE, "others": BATCHES},
)
def figure_10_left_mlp(usual: File, others: File) -> Judgement:
    sgd, useful = (
        {128.0: errors_of(usual, f"lower-{arm}")}
        | {size: errors_of(others, f"{arm}-batch_size-{size:.0f}") for size in (256.0, 512.0)}
        for arm in ("sgd", "useful")
    )
    return lower_at_each("batch size", sgd, useful)


@claim(
    "useful/fig10-middle-mlp",
    revised=AFTER_FIGURE_7,
    where="Figure 10 (middle), with an MLP",
    states="USEFUL lowers SGD's test error at learning rates 0.01, 0.02 and 0.04, and larger rates are worse.",
    rule=f"{SEEDS_RULE}: USEFUL's error is below SGD's at each of the three; SGD's error is higher at 0.04 than at "
    "0.01. Side points: on every seed; SGD's mean error rises from each rate to the next.",
    choices=MLP_CHOICES,
    fidelity=MLP_FIDELITY,
    uses=lambda scale: {"usual": LOWER_RATE, "others": RATES},
)
def figure_10_middle_mlp(usual: File, others: File) -> Judgement:
    sgd, useful = (
        {0.01: errors_of(usual, f"lower-{arm}")}
        | {rate: errors_of(others, f"{arm}-lr-{rate}") for rate in (0.02, 0.04)}
        for arm in ("sgd", "useful")
    )
    return larger_rates_are_worse(sgd, useful)


@claim(
    "useful/fig10-right-mlp",
    revised=AFTER_FIGURE_7,
    where="Figure 10 (right), with an MLP",
    states="Upsampling factors 2 to 5 lower SGD's test error, and 2 is best.",
    rule=f"{SEEDS_RULE}: USEFUL's error is below SGD's at each factor; the mean error is lowest at 2. Side point: on "
    "every seed.",
    choices=MLP_CHOICES,
    fidelity=MLP_FIDELITY,
    uses=lambda scale: {"usual": LOWER_RATE, "others": FACTORS},
)
def figure_10_right_mlp(usual: File, others: File) -> Judgement:
    useful = {2.0: errors_of(usual, "lower-useful")} | {float(k): errors_of(others, f"useful-x{k}") for k in (3, 4, 5)}
    return factor_2_is_best(errors_of(usual, "lower-sgd"), useful)


@claim(
    "useful/fig11b-mlp",
    revised=AFTER_FIGURE_7,
    where="Figure 11b, with an MLP",
    states="Of the separating epochs 4, 5, 6, 7, 8 and 10, about 8 gives the lowest test error.",
    rule=EPOCHS_RULE,
    choices=(*MLP_CHOICES, BY_CHANCE),
    fidelity=MLP_FIDELITY,
    uses=lambda scale: {"usual": LOWER_RATE, "others": SEPARATING},
)
def figure_11b_mlp(usual: File, others: File) -> Judgement:
    useful = {float(epoch): errors_of(others, f"useful-{epoch}") for epoch in (4, 5, 6, 7, 10)}
    return about_8_is_best(useful | {8.0: errors_of(usual, "lower-useful")})
