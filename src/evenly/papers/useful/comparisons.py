"""Pairs of arms on CIFAR-10, of which one is to have the lower test error: TrivialAugment, ASAM, other networks,
doubled losses, other choices of examples (Figures 3 and 4, Tables 4 to 6). All wait for runs on a GPU."""

from __future__ import annotations

from attrs import frozen

from evenly.papers.claims import claim, untestable
from evenly.papers.nodes import Stored
from evenly.papers.useful.images import CHOICES, SAM, SAM_USEFUL, SEEDS_RULE, USEFUL, File, errors, lower
from evenly.runs.differences import mean
from evenly.runs.verdict import Check, Judgement, measurement

LEVEL = 0.2
"""Points around a published error that count as near."""
COSTS = "the two arms differ in cost, which is measured; useful/table2 and useful/table3 have controls of equal cost"
SAME_COST = "both arms cost the same"
FEW_SEEDS = (
    "three seeds: the interval is the mean ± 2.5 standard deviations of the paired differences. USEFUL's error had "
    "a standard deviation of 0.2 points over seeds, so that a difference below about 0.5 points may not be shown. That "
    "a claim does not hold then means that three seeds do not show it"
)
VGG_FIDELITY = "reduced: a VGG-19 with a linear head; the paper's has two more layers of 4096, 119 of its 140M weights"


@frozen
class Arm:
    """Results of an arm, and its published test error with its spread."""

    name: str
    file: Stored
    published: str = ""


def arm(name: str, unit: str, minutes: int, published: str = "") -> Arm:
    """An arm whose unit of `benchmarks/gpu.py` takes about so many minutes."""
    return Arm(name, Stored(f"cifar10-{unit}.json", minutes=minutes), published)


def is_lower(
    id: str,
    where: str,
    states: str,
    higher: Arm,
    less: Arm,
    *choices: str,
    costs: str = COSTS,
    fidelity: str = "paper",
) -> None:
    """Register the claim that one arm's test error is below another's."""
    level = f"; each mean is within {LEVEL} of the published" if less.published else ""

    @claim(
        id,
        revised="USEFUL's own numbers had been read before the rule was written." if less.file == USEFUL else "",
        where=where,
        states=states,
        rule=f"{SEEDS_RULE}: the test error of {less.name} is below that of {higher.name}. Side points: on every seed"
        f"{level}.",
        published={each.name: each.published or "drawn only" for each in (higher, less)},
        choices=(*CHOICES, FEW_SEEDS, costs, *choices),
        fidelity=fidelity,
        uses=lambda scale: {"high": higher.file, "low": less.file},
    )
    def judge(high: File, low: File) -> Judgement:
        arms = {higher: high, less: low}
        near = [
            Check(
                f"{each.name} is within {LEVEL} of {each.published} ({mean(errors(file)):.2f})",
                abs(mean(errors(file)) - float(each.published.partition("±")[0])) <= LEVEL,
                main=False,
            )
            for each, file in arms.items()
            if each.published
        ]
        return Judgement(
            [*lower(f"the error of {less.name} is below that of {higher.name}", errors(high), errors(low)), *near],
            [
                *(measurement(f"test error, {each.name}", errors(file), each.published, "%")
                  for each, file in arms.items()),
                *(measurement(f"cost of {each.name} over SGD's", [row["cost_multiple"] for row in file["rows"]])
                  for each, file in arms.items()),
            ],
        )  # fmt: skip


ALONE, UPSAMPLED = Arm("SAM", SAM, "4.23±0.08"), Arm("SAM with USEFUL", SAM_USEFUL, "4.04±0.06")
AUGMENTED = arm("SAM with TrivialAugment", "sam-ta", 17, "4.06±0.08")
ASAM, ASAM_AUGMENTED = arm("ASAM", "asam", 17, "4.33±0.19"), arm("ASAM with TrivialAugment", "asam-ta", 17, "3.93±0.11")

is_lower(
    "useful/fig3-cifar10-ta",
    "Figure 3, CIFAR-10: SAM with TrivialAugment",
    "TrivialAugment lowers SAM's test error.",
    ALONE,
    AUGMENTED,
    costs=SAME_COST,
)
is_lower(
    "useful/table4-asam",
    "Table 4: ASAM",
    "USEFUL lowers ASAM's test error.",
    ASAM,
    arm("ASAM with USEFUL", "asam-useful", 23, "4.09±0.10"),
)
is_lower(
    "useful/table4-sam-ta",
    "Table 4, and Figure 3: SAM with TrivialAugment",
    "USEFUL lowers the test error of SAM with TrivialAugment.",
    AUGMENTED,
    arm("SAM with TrivialAugment and USEFUL", "sam-ta-useful", 23, "3.49±0.09"),
)
is_lower(
    "useful/table4-asam-ta",
    "Table 4: ASAM with TrivialAugment",
    "USEFUL lowers the test error of ASAM with TrivialAugment.",
    ASAM_AUGMENTED,
    arm("ASAM with TrivialAugment and USEFUL", "asam-ta-useful", 23, "3.46±0.01"),
)
is_lower(
    "useful/table5-sgd",
    "Table 5, CIFAR-10, SGD",
    "Repeating the hard examples gives a lower test error than doubling their losses.",
    arm("doubled losses", "upweight", 9, "5.33±0.09"),
    Arm("USEFUL", USEFUL, "4.79±0.05"),
)
is_lower(
    "useful/table5-sam",
    "Table 5, CIFAR-10, SAM",
    "With SAM, too, repeating the hard examples gives a lower test error than doubling their losses.",
    arm("SAM with doubled losses", "sam-upweight", 17, "4.28±0.02"),
    UPSAMPLED,
)
for _method, _name, _minutes, _error in (
    ("quantile", "the upper half of the losses", 13, "5.27±0.10"),
    ("misclassification", "the misclassified examples", 11, "4.98±0.17"),
):
    is_lower(
        f"useful/table6-{_method}",
        f"Table 6, CIFAR-10: {_method}",
        f"Repeating the examples that clusters choose gives a lower test error than repeating {_name}.",
        arm(f"repeating {_name}", _method, _minutes, _error),
        Arm("USEFUL", USEFUL, "4.79±0.05"),
        "all are chosen after 8 epochs; each repeats as many examples as it finds",
    )
for _table, _states, _published in (
    (
        "5",
        "Repeating the hard examples is better than doubling their losses, with SGD and with SAM.",
        {"doubled losses": "SGD 26.70±3.25, SAM 21.75±0.25", "USEFUL": "SGD 22.58±0.08, SAM 20.66±0.44"},
    ),
    (
        "6",
        "Clusters choose better examples to repeat than a quantile of the loss or misclassification.",
        {"quantile": "23.49±0.82", "misclassification": "23.86±0.70", "USEFUL": "22.58±0.08"},
    ),
):
    untestable(
        f"useful/table{_table}-cifar100",
        where=f"Table {_table}, CIFAR-100",
        states=_states,
        why="the data are not here",
        published=_published,
    )

VGG, VGG_SAM = arm("VGG-19", "vgg19", 6), arm("VGG-19 with SAM", "vgg19-sam", 11)
is_lower(
    "useful/fig4-vgg19",
    "Figure 4: VGG-19, SGD",
    "USEFUL lowers the test error of a VGG-19.",
    VGG,
    arm("VGG-19 with USEFUL", "vgg19-useful", 8),
    fidelity=VGG_FIDELITY,
)
is_lower(
    "useful/fig4-vgg19-sam",
    "Figure 4: VGG-19, SAM",
    "USEFUL lowers the test error of a VGG-19 that is trained by SAM.",
    VGG_SAM,
    arm("VGG-19 with SAM and USEFUL", "vgg19-sam-useful", 15),
    fidelity=VGG_FIDELITY,
)
for _network, _title, _minutes in (("densenet121", "DenseNet-121", 250), ("vit", "ViT-S", 150)):
    untestable(
        f"useful/fig4-{_network}",
        where=f"Figure 4: {_title}",
        states=f"USEFUL lowers the test error of a {_title}, trained by SGD and by SAM.",
        why=f"needs about {_minutes} minutes of a GPU: not run yet",
        published={"test errors": "drawn only"},
    )
