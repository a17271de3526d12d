"""USEFUL on CIFAR-10 with the paper's recipe, from runs on a GPU that are stored in `docs/results`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve

from evenly.errors import EvenlyError
from evenly.papers.claims import claim, untestable
from evenly.papers.judging import in_words, is_above
from evenly.papers.nodes import Stored
from evenly.runs.differences import mean, paired
from evenly.runs.verdict import Check, Judgement, measurement

File = Mapping[str, Any]
Row = Mapping[str, Any]
SGD, USEFUL, RANDOM = Stored("cifar10-sgd-200.json"), Stored("cifar10-useful-8.json"), Stored("cifar10-random.json")
SAM, HALF = Stored("cifar10-sam-200.json", minutes=17), Stored("cifar10.json")
SAM_USEFUL, SAM_RANDOM = Stored("cifar10-sam-useful.json", minutes=23), Stored("cifar10-sam-random.json", minutes=21)
SEEDS_RULE = "Three seeds, as in the paper. By the 95% interval of the difference, paired by seed"
READ_BEFORE = "The stored numbers had been read before the rule was written."
CHOICES = (
    "USEFUL clusters class probabilities of the images without augmentation, in eval mode",
    "bf16; the last epoch's weights; zero padding of 4, crop and flip",
)
EQUAL_COST = "random repetition has USEFUL's whole cost, the early epochs included: 207 epochs"
HESSIAN = "Hessian of the mean loss over the first 100 images of each class, eval mode, float32"


def by_seed(rows: Sequence[Row]) -> Sequence[Row]:
    """The runs of an arm, which must be those of seeds 0, 1 and 2, as rules pair them."""
    seeds = [row["seed"] for row in rows]
    if seeds != [0, 1, 2]:
        raise EvenlyError(f"a stored file has seeds {', '.join(map(str, seeds))}, and not 0, 1, 2; run its unit again")
    return rows


def errors(file: File) -> list[float]:
    """Test errors in %, by seed."""
    return [row["test_error"] for row in by_seed(file["rows"])]


def at_the_end(file: File, *names: str) -> list[float]:
    """A recorded quantity at the end of training, or the ratio of two, by seed; NaN where it did not converge."""
    recorded = [row["recorded"][-1] for row in by_seed(file["rows"])]
    values = [[each.get(name, math.nan) for name in names] for each in recorded]
    return [value[0] / value[1] if len(names) > 1 else value[0] for value in values]


def lower(words: str, higher: Sequence[float], less: Sequence[float], *, unit: str = "points") -> list[Check]:
    """Main: the 95% interval of the difference is below 0. Side point: lower on every seed."""
    gains = [a - b for a, b in zip(higher, less, strict=True)]
    every = sum(gain > 0 for gain in gains)
    return [
        Check(f"{words} clearly: {in_words(paired(gains), unit=unit)}", is_above(paired(gains))),
        Check(f"{words} on every seed ({every} of {len(gains)})", every == len(gains), main=False),
    ]


@claim(
    "useful/fig3-cifar10",
    revised=READ_BEFORE,
    where="Figure 3, CIFAR-10: SGD and SGD with USEFUL",
    states="USEFUL lowers SGD's test error at 1.3 times its cost.",
    rule=f"{SEEDS_RULE}: USEFUL's error is below SGD's. Side points: on every seed; the cost is within 1.25 to 1.35.",
    published={"SGD": "5.07±0.04", "USEFUL": "4.79±0.05", "cost": "1.3x"},
    choices=CHOICES,
    uses=lambda scale: {"sgd": SGD, "useful": USEFUL},
)
def figure_3(sgd: File, useful: File) -> Judgement:
    costs = [row["cost_multiple"] for row in useful["rows"]]
    near = all(1.25 <= cost <= 1.35 for cost in costs)
    return Judgement(
        [
            *lower("USEFUL's error is below SGD's", errors(sgd), errors(useful)),
            Check("the cost is within 1.25 to 1.35 on every seed", near, main=False),
        ],
        [
            measurement("test error, SGD", errors(sgd), "5.07±0.04", "%"),
            measurement("test error, USEFUL", errors(useful), "4.79±0.05", "%"),
            measurement("cost of USEFUL over SGD's", costs, "1.3"),
        ],
    )


def half_length(half: File, method: str, optimizer: str) -> list[float]:
    """Test errors of an arm of the comparison of 100 epochs, in %."""
    for arm in half["comparison"]["summary"]:
        if (arm["arm"]["method"], arm["arm"]["optimizer"]) == (method, optimizer):
            return [100 * (1 - value) for value in arm["metrics"]["accuracy"]["values"]]
    raise KeyError(f"{method} with {optimizer}")


def sam_is_lowest(sgd: Sequence[float], useful: Sequence[float], sam: Sequence[float]) -> Judgement:
    """Test errors of three arms in %, by seed: SAM's is below SGD's and below USEFUL's."""
    return Judgement(
        [*lower("SAM's error is below SGD's", sgd, sam), *lower("SAM's error is below USEFUL's", useful, sam)],
        [
            measurement("test error, SGD", sgd, "5.07±0.04", "%"),
            measurement("test error, USEFUL", useful, "4.79±0.05", "%"),
            measurement("test error, SAM", sam, "4.23±0.08", "%"),
        ],
    )


@claim(
    "useful/fig3-cifar10-sam",
    revised="The numbers of SGD and USEFUL, and those of all three at half the length, had been read before the rule "
    "was written.",
    where="Figure 3, CIFAR-10: SGD and SAM; Table 3, original data",
    states="SAM's test error is below SGD's, and below that of SGD with USEFUL.",
    rule=f"{SEEDS_RULE}: SAM's error is below SGD's, and below USEFUL's. Side points: on every seed; SAM costs twice "
    "as much as SGD, to 2%.",
    published={"SGD": "5.07±0.04", "USEFUL": "4.79±0.05", "SAM": "4.23±0.08", "cost of SAM": "2x"},
    choices=CHOICES,
    uses=lambda scale: {"sgd": SGD, "useful": USEFUL, "sam": SAM},
)
def figure_3_sam(sgd: File, useful: File, sam: File) -> Judgement:
    judgement = sam_is_lowest(errors(sgd), errors(useful), errors(sam))
    costs = [row["cost_multiple"] for row in by_seed(sam["rows"])]
    twice = Check("SAM costs twice as much as SGD", all(abs(cost - 2) <= 0.04 for cost in costs), main=False)
    cost = measurement("cost of SAM", costs, "2x")
    return evolve(judgement, checks=[*judgement.checks, twice], measurements=[*judgement.measurements, cost])


@claim(
    "useful/fig3-cifar10-sam-half",
    revised=READ_BEFORE,
    where="Figure 3, CIFAR-10: SGD and SAM, at half the length",
    states="SAM's test error is below SGD's, and below that of SGD with USEFUL.",
    rule=f"{SEEDS_RULE}: SAM's error is below SGD's, and below USEFUL's. Side point: on every seed.",
    published={"SGD": "5.07±0.04", "USEFUL": "4.79±0.05", "SAM": "4.23±0.08"},
    fidelity="reduced: 100 epochs instead of 200; USEFUL separates at epoch 4",
    choices=CHOICES,
    uses=lambda scale: {"half": HALF},
)
def figure_3_sam_half(half: File) -> Judgement:
    return sam_is_lowest(*(half_length(half, *arm) for arm in (("erm", "sgd"), ("useful", "sgd"), ("erm", "sam"))))


@claim(
    "useful/fig3-cifar10-sam-useful",
    where="Figure 3, CIFAR-10: SAM and SAM with USEFUL",
    states="USEFUL lowers SAM's test error at 2.6 times SGD's cost.",
    rule=f"{SEEDS_RULE}: the error of SAM with USEFUL is below SAM's. Side points: on every seed; the cost is within "
    "2.5 to 2.7.",
    published={"SAM": "4.23±0.08", "SAM with USEFUL": "4.04±0.06", "cost": "2.6x"},
    choices=CHOICES,
    uses=lambda scale: {"sam": SAM, "useful": SAM_USEFUL},
)
def figure_3_sam_useful(sam: File, useful: File) -> Judgement:
    costs = [row["cost_multiple"] for row in useful["rows"]]
    near = all(2.5 <= cost <= 2.7 for cost in costs)
    return Judgement(
        [
            *lower("the error of SAM with USEFUL is below SAM's", errors(sam), errors(useful)),
            Check("the cost is within 2.5 to 2.7 on every seed", near, main=False),
        ],
        [
            measurement("test error, SAM", errors(sam), "4.23±0.08", "%"),
            measurement("test error, SAM with USEFUL", errors(useful), "4.04±0.06", "%"),
            measurement("cost of SAM with USEFUL over SGD's", costs, "2.6"),
        ],
    )


untestable(
    "useful/fig3-others",
    where="Figure 3: CIFAR-100, STL-10, CINIC-10, Tiny-ImageNet",
    states="USEFUL lowers the test error of SGD and of SAM on four more data sets; on STL-10 SGD with it is below SAM.",
    why="the data are not here",
    published={"CIFAR-100": "SGD 24.06, USEFUL 22.58, SAM 21.25, SAM+USEFUL 20.66", "others": "drawn only"},
)


@claim(
    "useful/sec5.2-shares",
    fidelity="reduced: the shares at epoch 4 are of runs of 100 epochs",
    revised=READ_BEFORE,
    where="Section 5.2",
    states="USEFUL repeats roughly 30% of CIFAR-10.",
    rule="The share is within 25% to 35% on every seed, separated after 8 epochs of 200 and after 4 of 100.",
    published={"CIFAR-10": "about 30%"},
    choices=CHOICES,
    uses=lambda scale: {"useful": USEFUL, "half": HALF},
)
def shares(useful: File, half: File) -> Judgement:
    at_8 = [100 * row["results"]["chosen"] / row["results"]["data"]["sizes"]["train"] for row in useful["rows"]]
    at_4 = [100 * selection["share"] for selection in half["selections"]]
    return Judgement(
        [
            Check(f"{words}: {min(values):.1f}% to {max(values):.1f}%", all(25 <= value <= 35 for value in values))
            for words, values in (("after 8 epochs", at_8), ("after 4 epochs", at_4))
        ],
        [measurement("after 8 epochs", at_8, "about 30", "%"), measurement("after 4 epochs", at_4, "about 30", "%")],
    )


untestable(
    "useful/sec5.2-shares-others",
    where="Section 5.2",
    states="USEFUL repeats roughly 50%, 50%, 45% and 60% of CIFAR-100, STL-10, CINIC-10 and Tiny-ImageNet.",
    why="the data are not here",
    published={"CIFAR-100": "50%", "STL-10": "50%", "CINIC-10": "45%", "Tiny-ImageNet": "60%"},
)


def _figure_5(id: str, first: str, second: str, files: tuple[Stored, Stored], revised: str = "") -> None:
    """Register the claim that the second arm's L1 norm is below the first's."""

    @claim(
        id,
        revised=revised,
        where=f"Figure 5, CIFAR-10: {first} and {second}",
        states=f"The weights of {second} have a lower L1 norm than those of {first}.",
        rule=f"{SEEDS_RULE}: the L1 norm is lower with {second}. Side point: on every seed.",
        published={"L1 norm": "drawn only"},
        choices=(*CHOICES, "the sum of the absolute values of all parameters"),
        uses=lambda scale: {"arms": files},
    )
    def judge(arms: Sequence[File]) -> Judgement:
        norms = [at_the_end(file, "l1_norm") for file in arms]
        return Judgement(
            lower(f"the L1 norm of {second} is below that of {first}", *norms, unit=""),
            [measurement(f"L1 norm, {name}", values) for name, values in zip((first, second), norms, strict=True)],
        )


_figure_5("useful/fig5", "SGD", "USEFUL", (SGD, USEFUL), READ_BEFORE)
_figure_5("useful/fig5-sam", "SGD", "SAM", (SGD, SAM), "The numbers of SGD had been read before the rule was written.")
_figure_5("useful/fig5-sam-useful", "SAM", "SAM with USEFUL", (SAM, SAM_USEFUL))
untestable(
    "useful/fig5-others",
    where="Figure 5: ResNet-34 on CIFAR-100",
    states="SAM's L1 norm is below SGD's, and USEFUL lowers both.",
    why="the data are not here",
    published={"L1 norms": "drawn only"},
)


@claim(
    "useful/table1",
    revised=READ_BEFORE,
    where="Table 1: SGD and SGD with USEFUL",
    states="USEFUL lowers the largest eigenvalue of the Hessian and its ratio to the fifth.",
    rule=f"{SEEDS_RULE}: each is lower with USEFUL. Side points: on every seed; "
    "SGD's mean largest eigenvalue is within a factor of 1.5 of the published.",
    published={"lambda_max": "53.8, USEFUL 41.8", "lambda_max / lambda_5": "3.8, USEFUL 1.5"},
    choices=(*CHOICES, HESSIAN),
    uses=lambda scale: {"sgd": SGD, "useful": USEFUL},
)
def table_1(sgd: File, useful: File) -> Judgement:
    largest = [at_the_end(file, "lambda_1") for file in (sgd, useful)]
    ratios = [at_the_end(file, "lambda_1", "lambda_5") for file in (sgd, useful)]
    level = mean(largest[0])
    return Judgement(
        [
            *lower("USEFUL's largest eigenvalue is below SGD's", *largest, unit=""),
            *lower("its ratio to the fifth is below SGD's", *ratios, unit=""),
            Check(f"SGD's largest is near 53.8 ({level:.1f})", 53.8 / 1.5 <= level <= 53.8 * 1.5, main=False),
        ],
        [
            measurement("lambda_max, SGD", largest[0], "53.8"),
            measurement("lambda_max, USEFUL", largest[1], "41.8"),
            measurement("lambda_max / lambda_5, SGD", ratios[0], "3.8"),
            measurement("lambda_max / lambda_5, USEFUL", ratios[1], "1.5"),
        ],
    )


@claim(
    "useful/table1-sam",
    revised="The eigenvalues of SGD and USEFUL had been read before the rule was written.",
    where="Table 1: SAM",
    states="SAM's largest eigenvalue is the smallest of the three; its ratio to the fifth is between the others.",
    rule="Three seeds, as in the paper. By the 95% interval of the mean log ratio, paired by seed: SAM's largest "
    "eigenvalue is below SGD's. Side points: on every seed; it is clearly below USEFUL's, too; the mean ratio to the "
    "fifth is between USEFUL's and SGD's.",
    published={"lambda_max, SAM": "12.4", "lambda_max / lambda_5, SAM": "2.4"},
    choices=(*CHOICES, HESSIAN, "logarithms, as eigenvalues of three seeds of SGD differ by a factor of 2.4"),
    uses=lambda scale: {"sgd": SGD, "useful": USEFUL, "sam": SAM},
)
def table_1_sam(sgd: File, useful: File, sam: File) -> Judgement:
    logs = [[math.log(value) for value in at_the_end(file, "lambda_1")] for file in (sgd, useful, sam)]
    ratios = [at_the_end(file, "lambda_1", "lambda_5") for file in (sgd, useful, sam)]
    above, below, between = map(mean, ratios)
    over_useful = lower("the log of SAM's largest eigenvalue is below USEFUL's", logs[1], logs[2], unit="")[0]
    return Judgement(
        [
            *lower("the log of SAM's largest eigenvalue is below SGD's", logs[0], logs[2], unit=""),
            evolve(over_useful, main=False),
            Check(f"its ratio to the fifth ({between:.1f}) is between USEFUL's ({below:.1f}) and SGD's ({above:.1f})",
                  below < between < above, main=False),
        ],
        [
            measurement("lambda_max, SAM", at_the_end(sam, "lambda_1"), "12.4"),
            measurement("lambda_max / lambda_5, SAM", ratios[2], "2.4"),
        ],
    )  # fmt: skip


def against_random(arms: Mapping[str, tuple[File, str]], other: tuple[str, str]) -> Judgement:
    """Tables 2 and 3.

    Args:
        arms: an optimizer alone, with random upsampling and with USEFUL: results and the published error.
        other: two of these arms; a side point is that the mean error of the first is at most that of the second.
    """
    _, random, useful = arms
    pair = [errors(arms[name][0]) for name in (random, useful)]
    means = {name: mean(errors(file)) for name, (file, _) in arms.items()}
    least, most = other
    near = [
        Check(f"{name} is within 0.2 of {published} ({means[name]:.2f})",
              abs(means[name] - float(published.partition("±")[0])) <= 0.2, main=False)
        for name, (_, published) in arms.items()
    ]  # fmt: skip
    return Judgement(
        [
            *lower(f"the error of {useful} is below that of {random}", *pair),
            Check(f"the mean of {least} ({means[least]:.2f}) is not above that of {most} ({means[most]:.2f})",
                  means[least] <= means[most], main=False),
            *near,
        ],
        [measurement(f"test error, {name}", errors(file), published, "%") for name, (file, published) in arms.items()],
    )  # fmt: skip


@claim(
    "useful/table2",
    revised=READ_BEFORE,
    where="Table 2, CIFAR-10",
    states="USEFUL's test error is below that of random upsampling, which does not lower SGD's.",
    rule=f"{SEEDS_RULE}: USEFUL's error is below random upsampling's. Side points: on every seed; "
    "SGD's mean is not above random upsampling's; each mean is within 0.2 of the published.",
    published={"SGD": "5.07±0.04", "random upsampling": "5.14±0.11", "USEFUL": "4.79±0.05"},
    choices=(*CHOICES, EQUAL_COST),
    uses=lambda scale: {"sgd": SGD, "random": RANDOM, "useful": USEFUL},
)
def table_2(sgd: File, random: File, useful: File) -> Judgement:
    arms = {"SGD": (sgd, "5.07±0.04"), "random upsampling": (random, "5.14±0.11"), "USEFUL": (useful, "4.79±0.05")}
    return against_random(arms, ("SGD", "random upsampling"))


@claim(
    "useful/table3",
    where="Table 3, CIFAR-10",
    states="The test error of SAM with USEFUL is below that of SAM with random upsampling, and below SAM's.",
    rule=f"{SEEDS_RULE}: the error with USEFUL is below that with random upsampling. Side points: on every seed; the "
    "mean with USEFUL is not above SAM's; each mean is within 0.2 of the published.",
    published={"SAM": "4.23±0.08", "SAM with random upsampling": "4.17±0.03", "SAM with USEFUL": "4.04±0.06"},
    choices=(*CHOICES, "random repetition has USEFUL's whole cost on its seed, the early epochs included"),
    uses=lambda scale: {"sam": SAM, "random": SAM_RANDOM, "useful": SAM_USEFUL},
)
def table_3(sam: File, random: File, useful: File) -> Judgement:
    arms = {
        "SAM": (sam, "4.23±0.08"),
        "SAM with random upsampling": (random, "4.17±0.03"),
        "SAM with USEFUL": (useful, "4.04±0.06"),
    }
    return against_random(arms, ("SAM with USEFUL", "SAM"))


@claim(
    "useful/table2-half",
    revised=READ_BEFORE,
    where="Table 2, CIFAR-10, at half the length",
    states="USEFUL's test error is below SGD's and below that of random upsampling.",
    rule=f"{SEEDS_RULE}: USEFUL's error is below each of the two. Side point: on every seed.",
    published={"SGD": "5.07±0.04", "random upsampling": "5.14±0.11", "USEFUL": "4.79±0.05"},
    fidelity="reduced: 100 epochs instead of 200; USEFUL separates at epoch 4",
    choices=(*CHOICES, "random repetition has USEFUL's whole cost, the early epochs included"),
    uses=lambda scale: {"half": HALF},
)
def table_2_half(half: File) -> Judgement:
    sgd, random, useful = (half_length(half, arm, "sgd") for arm in ("erm", "random_upsample", "useful"))
    return Judgement(
        [
            *lower("USEFUL's error is below SGD's", sgd, useful),
            *lower("USEFUL's error is below random upsampling's", random, useful),
        ],
        [
            measurement("test error, SGD", sgd, "5.07±0.04", "%"),
            measurement("test error, random upsampling", random, "5.14±0.11", "%"),
            measurement("test error, USEFUL", useful, "4.79±0.05", "%"),
        ],
    )


untestable(
    "useful/table2-cifar100",
    where="Table 2, CIFAR-100",
    states="USEFUL's test error is below SGD's and random upsampling's.",
    why="the data are not here",
    published={"SGD": "24.06±0.47", "random upsampling": "24.30±1.19", "USEFUL": "22.58±0.08"},
)
untestable(
    "useful/table3-cifar100",
    where="Table 3, CIFAR-100",
    states="SAM with USEFUL has a lower test error than SAM and SAM with random upsampling.",
    why="the data are not here",
    published={"SAM": "21.25±0.11", "random upsampling": "21.11±0.04", "USEFUL": "20.66±0.44"},
)
