"""More of the image experiments: variants of SAM, other networks, forgetting, ablations (Tables 4 to 6, Figures 7 to
11)."""

from __future__ import annotations

from itertools import pairwise

from attrs import evolve

from evenly.papers.claims import claim, untestable
from evenly.papers.nodes import Stored
from evenly.papers.useful.images import CHOICES, NOT_RUN, SAM, SEEDS_RULE, SGD, USEFUL, File, errors, lower
from evenly.runs.differences import mean
from evenly.runs.verdict import Chart, Check, Judgement, line, measurement

EARLIER, MLP = Stored("cifar10-useful-4.json"), Stored("cifar10-mlp.json")
ARMS = {
    "sgd": "SGD", "useful": "USEFUL", "random": "random upsampling", "sam": "SAM", "sam-useful": "SAM with USEFUL",
    "sam-random": "SAM with random upsampling",
}  # fmt: skip
FORGETTING = "forgetting at epoch ends, without augmentation; often: 20 times in 200 epochs"

untestable(
    "useful/table4",
    where="Table 4",
    states="USEFUL lowers the test error of SAM and ASAM, with and without TrivialAugment.",
    why=NOT_RUN.format(120),
    published={
        "SAM, ASAM": "4.23±0.08, 4.33±0.19", "+USEFUL": "4.04±0.06, 4.09±0.10", "+TA": "4.06±0.08, 3.93±0.11",
        "+TA+USEFUL": "3.49±0.09, 3.46±0.01",
    },
)  # fmt: skip
untestable(
    "useful/table5",
    where="Table 5",
    states="Repeating the hard examples is better than doubling their loss, with SGD and with SAM.",
    why=f"{NOT_RUN.format(25)} (CIFAR-10); the data of CIFAR-100 are not here",
    published={
        "upweighting, CIFAR-10": "SGD 5.33±0.09, SAM 4.28±0.02", "USEFUL, CIFAR-10": "SGD 4.79±0.05, SAM 4.04±0.06",
        "upweighting, CIFAR-100": "SGD 26.70±3.25, SAM 21.75±0.25",
        "USEFUL, CIFAR-100": "SGD 22.58±0.08, SAM 20.66±0.44",
    },
)  # fmt: skip
untestable(
    "useful/table6",
    where="Table 6",
    states="Clusters choose better examples to repeat than a quantile of the loss or misclassification.",
    why=f"{NOT_RUN.format(20)} (CIFAR-10); the data of CIFAR-100 are not here; useful/sec4-choice is on the toy data",
    published={
        "CIFAR-10": "quantile 5.27±0.10, misclassification 4.98±0.17, USEFUL 4.79±0.05",
        "CIFAR-100": "quantile 23.49±0.82, misclassification 23.86±0.70, USEFUL 22.58±0.08",
    },
)


@claim(
    "useful/fig7",
    revised="The stored numbers had been read before the rule was written.",
    where="Figure 7, section D.2",
    states="USEFUL lowers the test error of a 3-layer MLP on CIFAR-10 by nearly 1 point, with SGD and with SAM; SGD "
    "with USEFUL is below SAM.",
    rule=f"{SEEDS_RULE}: USEFUL's error is below SGD's; SAM's with USEFUL is below SAM's; SGD's with USEFUL is below "
    "SAM's. Side points: on every seed; USEFUL's is below that of random upsampling at the same cost; each mean gain "
    "is within 0.5 to 1.5 points.",
    published={"gain": "nearly 1 point"},
    choices=(*CHOICES, "separated after 8 epochs", "random repetition has USEFUL's whole cost, early epochs included"),
    uses=lambda scale: {"mlp": MLP},
)
def figure_7(mlp: File) -> Judgement:
    arms = {name: errors(arm) for name, arm in mlp["arms"].items()}
    gains = {
        "SGD": mean(arms["sgd"]) - mean(arms["useful"]),
        "SAM": mean(arms["sam"]) - mean(arms["sam-useful"]),
    }
    random, others = lower("USEFUL's error is below random upsampling's", arms["random"], arms["useful"])
    return Judgement(
        [
            *lower("USEFUL's error is below SGD's", arms["sgd"], arms["useful"]),
            *lower("SAM's error with USEFUL is below SAM's", arms["sam"], arms["sam-useful"]),
            *lower("SGD's error with USEFUL is below SAM's", arms["sam"], arms["useful"]),
            evolve(random, main=False),
            others,
            *(
                Check(
                    f"USEFUL's gain with {name} is within 0.5 to 1.5 points ({gain:.2f})",
                    0.5 <= gain <= 1.5,
                    main=False,
                )
                for name, gain in gains.items()
            ),
        ],
        [measurement(f"test error, {ARMS[name]}", values, unit="%") for name, values in arms.items()],
    )


@claim(
    "useful/fig8",
    revised="The stored numbers had been read before the rule was written.",
    where="Figure 8, section D.3: SGD and SGD with USEFUL",
    states="With USEFUL fewer examples are forgotten often, and more rarely or never.",
    rule=f"{SEEDS_RULE}: the share forgotten 20 times or more is lower with USEFUL. Side points: on every seed; "
    "the share never forgotten is higher on every seed.",
    published={"forgetting scores": "drawn only"},
    choices=(*CHOICES, FORGETTING),
    uses=lambda scale: {"sgd": SGD, "useful": USEFUL},
)
def figure_8(sgd: File, useful: File) -> Judgement:
    return forgotten_less("USEFUL", sgd, useful)


@claim(
    "useful/fig8-sam",
    where="Figure 8: SAM",
    states="SAM, too, has fewer examples that are forgotten often.",
    rule=f"{SEEDS_RULE}: the share forgotten 20 times or more is lower with SAM. Side points: on every seed; "
    "the share never forgotten is higher on every seed.",
    published={"forgetting scores": "drawn only"},
    choices=(*CHOICES, FORGETTING),
    uses=lambda scale: {"sgd": SGD, "sam": SAM},
)
def figure_8_sam(sgd: File, sam: File) -> Judgement:
    return forgotten_less("SAM", sgd, sam)


def forgotten_less(arm: str, sgd: File, other: File) -> Judgement:
    """Fewer examples are forgotten often by an arm than by SGD."""

    def share(file: File, low: int, high: float) -> list[float]:
        counts = [row["forgotten_times"] for row in file["rows"]]
        return [100 * sum(n for t, n in each.items() if low <= int(t) <= high) / sum(each.values()) for each in counts]

    often, never = ([share(file, *part) for file in (sgd, other)] for part in ((20, 1000), (0, 0)))
    more = sum(after > before for before, after in zip(*never, strict=True))
    lines = [
        line(name, range(0, 41, 2), [mean(share(file, t, t + 1)) for t in range(0, 41, 2)])
        for name, file in (("SGD", sgd), (arm, other))
    ]
    return Judgement(
        [
            *lower(f"{arm}'s share forgotten often is below SGD's", *often),
            Check(f"more are never forgotten ({more} of {len(never[0])} seeds)", more == len(never[0]), main=False),
        ],
        [
            measurement(f"{words}, {name}", values, unit="%")
            for words, pair in (("forgotten 20 times or more", often), ("never forgotten", never))
            for name, values in zip(("SGD", arm), pair, strict=True)
        ],
        [Chart("share of the examples, %, in twos", "times forgotten", tuple(lines))],
    )


untestable(
    "useful/fig9",
    where="Figure 9, section D.5",
    states="On Waterbirds SAM and USEFUL lower the balanced test error; USEFUL also with a fine-tuned ResNet-50.",
    why="the data are not here",
    published={"SAM": "-6.21 points", "USEFUL": "-5.8 points", "ResNet-50": "drawn only"},
)
for place, words, minutes in (
    ("left", "USEFUL lowers SGD's test error at batch sizes 128, 256 and 512", 60),
    ("middle", "USEFUL lowers SGD's test error at learning rates 0.1, 0.2 and 0.4, and larger rates are worse", 60),
    ("right", "Upsampling factors 2 to 5 lower SGD's test error, and 2 is best", 45),
):
    untestable(
        f"useful/fig10-{place}",
        where=f"Figure 10 ({place}), section D.6",
        states=f"{words}.",
        why=NOT_RUN.format(minutes),
        published={"test errors": "drawn only"},
    )


@claim(
    "useful/fig11a",
    revised="The stored numbers had been read before the rule was written.",
    where="Figure 11a, section C.2",
    states="At the separating epoch, about 8 on CIFAR-10, the fall of the training error has become small.",
    rule="On every one of 3 seeds of SGD: the mean fall of the training error over epochs 7 and 8 is under 25% of the "
    "largest fall of an epoch.",
    published={"separating epoch": "about 8"},
    choices=(*CHOICES, "training error with augmentation, as it is counted during the epoch; small: under 25%"),
    uses=lambda scale: {"sgd": SGD},
)
def figure_11a(sgd: File) -> Judgement:
    curves = [[100 * (1 - value) for value in row["train_accuracy"][:30]] for row in sgd["rows"]]
    falls = [[before - after for before, after in pairwise(curve)] for curve in curves]
    parts = [(curve[5] - curve[7]) / 2 / max(fall) for curve, fall in zip(curves, falls, strict=True)]
    average = [mean(values) for values in zip(*curves, strict=True)]
    return Judgement(
        [Check(f"under 25% on every seed (largest {max(parts):.0%})", max(parts) < 0.25)],
        [measurement("mean fall at epochs 7 and 8 over the largest", parts)],
        [Chart("training error, %, mean over seeds", "epoch", (line("SGD", range(1, 31), average),), marks=(8.0,))],
    )


@claim(
    "useful/fig11b",
    revised="The stored numbers had been read before the rule was written.",
    where="Figure 11b, section C.2",
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
