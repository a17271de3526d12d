"""More of the image experiments on CIFAR-10: which examples are forgotten, and when to separate (Figures 8, 9, 11a)."""

from __future__ import annotations

from itertools import pairwise

from evenly.papers.claims import claim, untestable
from evenly.papers.useful.images import CHOICES, READ_BEFORE, SAM, SEEDS_RULE, SGD, USEFUL, File, by_seed, lower
from evenly.runs.differences import mean
from evenly.runs.verdict import Chart, Check, Judgement, line, measurement

FORGETTING = "forgetting at epoch ends, without augmentation; often: 20 times in 200 epochs"


@claim(
    "useful/fig8",
    revised=READ_BEFORE,
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
    revised="The numbers of SGD had been read before the rule was written.",
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
        rows = [(row["forgotten_times"], row["never_right"]) for row in by_seed(file["rows"])]
        return [
            100 * sum(n for t, n in times.items() if low <= int(t) <= high) / (sum(times.values()) + never_right)
            for times, never_right in rows
        ]

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


@claim(
    "useful/fig11a",
    revised=READ_BEFORE,
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
