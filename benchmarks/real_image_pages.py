"""Pages of what `benchmarks/real_images.py` measured: docs/results/NAME.md beside NAME.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from attrs import field, frozen

from evenly.engine.accuracy import wilson
from evenly.runs.arms import Arm
from evenly.runs.differences import paired
from evenly.runs.results import Measured
from evenly.values import Value

GROUPS = ("dark-haired women", "dark-haired men", "blond women", "blond men")
NOTES = {
    "groups": (
        "ERM's learning rate is chosen in the same way as every other method's. ERM is therefore the control of every "
        "method that costs as much or less. DFR trains a network with ERM's settings again and fits its last layer. "
        "Two runs of one seed differ on a GPU, so DFR's networks were selected at other epochs than ERM's. DFR-Val "
        "fits the last layer to four times as many images as validation has blond men. The same blond men had chosen "
        "the epoch before. Weight decay is the same for all methods. Deng et al. (2023) use 0.1, and a learning rate "
        "of 0.00001 for GroupDRO.",
    ),
}
ONE_RATE_NOTE = "SAM and the longer SGD run at the learning rate chosen for SGD. The paper tries all combinations."
TITLES = {
    "cifar-mnist": "CIFAR-MNIST: an airplane or automobile below a digit that gives the label away",
    "fashion-mnist-mnist": "Fashion-MNIST-MNIST: one of five clothes below a digit that gives the label away",
    "celeba": "CelebA, the first 10,000 images: blond hair or not, in men and women",
    "celeba-tuned": "CelebA, the first 10,000 images: blond hair or not, in men and women, fine-tuned",
    "celeba-tuned-rivals": "CelebA, the first 10,000 images: EIIL, JTT and LfF, fine-tuned",
    "celeba-features": "CelebA, the first 10,000 images: SGD and SAM, and how well hair and gender can be read off",
    "cifar-mnist-4": "CIFAR-MNIST with four seeds and a larger probing set",
    "fashion-mnist-mnist-4": "Fashion-MNIST-MNIST with four seeds and a larger probing set",
    "pacs-art": "PACS: paintings left out of training",
    "pacs-photo": "PACS: photographs left out of training",
    "pacs-cartoon": "PACS: cartoons left out of training",
    "pacs-sketch": "PACS: sketches left out of training",
}
PUBLISHED = {
    "cifar-mnist": "Springer et al. (2024), SGD -> SAM, error %: test 0.1 -> 0.0, digit 0.1 -> 0.1, picture 12.7 -> "
    "10.2.",
    "fashion-mnist-mnist": "Springer et al. (2024), SGD -> SAM, error %: test 0.5 -> 0.0, digit 5.8 -> 0.3, picture "
    "11.6 -> 10.5.",
    "celeba": "Deng et al. (2023), all of CelebA (162,770 images to train on), a ResNet-50 from ImageNet's weights, "
    "worst group / average accuracy %: ERM 45.0 / 94.8, Subsample 86.1 / 91.3, GroupDRO 86.3 / 92.9, DFR-Tr "
    "80.7 / 90.6, DFR-Val 88.3 / 91.3, PDE 91.0 / 92.0.",
    "celeba-tuned-rivals": "Deng et al. (2023), all of CelebA (162,770 images to train on), a ResNet-50 from "
    "ImageNet's weights, worst group / average accuracy %: ERM 45.0 / 94.8, LfF 77.2 / 85.1, EIIL 81.7 / 85.7, JTT "
    "81.1 / 88.0, DFR-Tr 80.7 / 90.6, DFR-Val 88.3 / 91.3, PDE 91.0 / 92.0.",
    "celeba-features": "Springer et al. (2024), all of CelebA and a ResNet-18, SGD -> SAM, error %: test 4.7 -> 4.3, "
    "hair 10.9 -> 8.7, gender 20.9 -> 15.1.",
    "pacs-cartoon": "Springer et al. (2024), error % of the probe, SGD -> SAM: 10.3 -> 7.9.",
    "pacs-photo": "Springer et al. (2024), error % of the probe, SGD -> SAM: 4.5 -> 3.6.",
}  # fmt: skip


@frozen
class Row(Value):
    """One run.

    Args:
        label: what the page calls its arm.
        chosen: whether validation chose its settings.
        cost_multiple: its cost, in multiples of ERM's for the epochs that the page states.
    """

    arm: Arm
    label: str
    seed: int
    cost_multiple: float
    rule: str
    model: str
    step: str
    splits: Mapping[str, Measured]
    chosen: bool = False
    evaluation_cost_multiple: float | None = None
    selected_after_epochs: float | None = None
    probes: Mapping[str, float] = field(factory=dict)

    @property
    def settings(self) -> dict[str, float]:
        """What was swept over a grid."""
        return {name: value for name, value in self.arm.swept.items() if name in ("lr", "rho")}

    @property
    def test(self) -> Measured:
        return self.splits["test"]


@frozen
class Diverged(Value):
    """An arm at one value of its grid where the loss became infinite on one seed at least."""

    label: str
    settings: Mapping[str, float]


def known(value: float | None) -> float:
    assert value is not None
    return value


def write_page(file: Path) -> str:
    """Write the page beside a file of what was measured."""
    measured = json.loads(file.read_text())
    name, rows = file.stem, [Row.from_dict(row) for row in measured["rows"]]
    seeds = ", ".join(str(seed) for seed in dict.fromkeys(row.seed for row in rows))
    methods = {row.arm.method for row in rows}
    options = {method: own for method, own in measured["options"].items() if method in methods}
    lines = [
        f"# {TITLES.get(name, name)}", "",
        f"{rows[0].model} from {'the weights of ImageNet' if measured['weights'] else 'random weights'}, images of "
        f"{' x '.join(map(str, measured['shape'][1:]))}; {_sentence(measured['in_common'])}; seeds {seeds}. "
        + "".join(f"{method} alone has {_sentence(own)}. " for method, own in options.items())
        + "Validation chooses learning rates and radii, averaged over the seeds, by "
        f"{'the worst group' if measured['verb'] == 'groups' else 'accuracy, then loss'}. The test set chooses "
        f"nothing. {measured['machine']}, torch {measured['torch']}, commit `{measured['commit'][:12]}`. Mean ± "
        "standard deviation over seeds, then every seed.", "",
    ]  # fmt: skip
    rates = {label: {row.settings.get("lr") for row in rows if row.label == label} for label in ("SGD", "SAM")}
    one_rate = measured["verb"] == "domains" and len(rates["SAM"]) < len(rates["SGD"])
    for note in (*NOTES.get(measured["verb"], ()), *([ONE_RATE_NOTE] if one_rate else []), *measured["notes"]):
        lines += [note, ""]
    if measured["verb"] == "groups":
        lines += [*_group_table(rows), "", *_seed_table(rows), "", *_differences(rows)]
    else:
        diverged = [Diverged.from_dict(each) for each in measured["diverged"]]
        lines += [*_chosen_table(rows), "", *_differences(rows), "", *_grid_table(rows, diverged)]
    if published := PUBLISHED.get(name.removesuffix("-tuned").removesuffix("-4")):
        lines += ["", f"Published: {published}"]
    lines += [
        "",
        f"Made by `benchmarks/real_images.py {measured['verb']}`; every run is in `{file.name}` beside this page.",
    ]
    text = "\n".join(lines) + "\n"
    file.with_suffix(".md").write_text(text)
    return text


def by_label(rows: list[Row]) -> dict[str, list[Row]]:
    """The chosen rows of each arm, by seed."""
    arms: dict[str, list[Row]] = {}
    for row in rows:
        if row.chosen:
            arms.setdefault(row.label, []).append(row)
    return {label: sorted(each, key=lambda row: row.seed) for label, each in arms.items()}


def _chosen_table(rows: list[Row]) -> list[str]:
    probes = list(next(row.probes for row in rows if row.chosen))
    arms = by_label(rows)
    # shown where it is another number, as with CelebA's groups
    weighted = any(abs((row.test.train_weighted or row.test.accuracy) - row.test.accuracy) > 1e-9 for row in rows)
    columns = ["arm", "chosen", "cost", "validation error, %", "test error, %"]
    columns += ["weighted as in training, %"] if weighted else []
    columns += [f"{probe}, %" for probe in probes]
    lines = _header(columns)
    for label, chosen in arms.items():
        values = len({row.arm for row in rows if row.label == label})
        settings = f"{_settings(chosen[0])}, of {values}" if values > 1 else _settings(chosen[0])
        cells = [label, settings, f"{mean(row.cost_multiple for row in chosen):.2f}x"]
        cells += [_spread([1 - row.splits[split].accuracy for row in chosen]) for split in ("validation", "test")]
        cells += [_spread([1 - known(row.test.train_weighted) for row in chosen])] if weighted else []
        lines.append(_line(cells + [_spread([row.probes[probe] for row in chosen]) for probe in probes]))
    return lines


def _grid_table(rows: list[Row], diverged: list[Diverged]) -> list[str]:
    """The last probe of every arm at every value, learning rates across; the validation error where some have none."""
    probe = list(rows[0].probes)[-1] if all(row.probes for row in rows) else None

    def error(row: Row) -> float:
        return 1 - row.splits["validation"].accuracy if probe is None else row.probes[probe]

    shown = probe or "validation error"
    rates = sorted({row.settings["lr"] for row in rows})
    lines = [f"{shown[0].upper()}{shown[1:]}, %, mean over seeds, at every value:", ""]
    lines += _header(["arm", *(f"lr {rate:g}" for rate in rates)])
    for label, rho in dict.fromkeys((row.label, row.settings.get("rho")) for row in rows):
        cells = []
        for rate in rates:
            settings = {"lr": rate} | ({} if rho is None else {"rho": rho})
            runs = [row for row in rows if row.label == label and row.settings == settings]
            value = f"{100 * mean(map(error, runs)):.1f}" if runs else ""
            value = "diverged" if Diverged(label, settings) in diverged else value
            cells.append(f"**{value}**" if runs and runs[0].chosen else value)
        lines.append(_line([label if rho is None else f"{label}, rho {rho:g}", *cells]))
    return [*lines, "", "Bold: what validation chose. Diverged: on one seed at least."]


def _group_table(rows: list[Row]) -> list[str]:
    known = all(row.evaluation_cost_multiple is not None for row in rows)
    lines = _header([
        "arm", "chosen", "cost", *(["evaluation"] if known else []), "selected after, epochs of the full set",
        "average, %", "worst group, %",
    ])  # fmt: skip
    for label, chosen in by_label(rows).items():
        cells = [label, _settings(chosen[0]), f"{mean(row.cost_multiple for row in chosen):.2f}x"]
        cells += [f"{mean(row.evaluation_cost_multiple or 0 for row in chosen):.2f}x"] if known else []
        after = [row.selected_after_epochs for row in chosen if row.selected_after_epochs is not None]
        cells += [f"{mean(after):.1f}" if len(after) == len(chosen) else ""]
        cells += [_spread([row.test.accuracy for row in chosen]), _spread([_worst(row) for row in chosen])]
        lines.append(_line(cells))
    return lines


def _worst(row: Row) -> float:
    return known(row.test.worst_group)


def _seed_table(rows: list[Row]) -> list[str]:
    """The worst group of each seed's test set, with Wilson's interval."""
    arms = by_label(rows)
    first = next(iter(arms.values()))
    few = min(first[0].splits["validation"].group_counts)
    lines = [
        "The worst group of each seed and how many of its images are classified correctly, with 95% Wilson intervals. "
        "The test sets of the seeds share images, so the counts must not be added up. "
        f"Validation has {few} blond men. Most often they decide the epoch and the learning rate.",
        "", *_header(["arm", *(f"seed {row.seed}" for row in first)]),
    ]  # fmt: skip
    for label, chosen in arms.items():
        cells = []
        for test in (row.test for row in chosen):
            worst = min(range(len(GROUPS)), key=lambda g: known(test.groups[g]))
            n = test.group_counts[worst]
            right = round(known(test.groups[worst]) * n)
            low, high = wilson(right, n)
            cells.append(f"{right:,} of {n:,} {GROUPS[worst]} [{100 * low:.0f}, {100 * high:.0f}]%")
        lines.append(_line([label, *cells]))
    return lines


def _differences(rows: list[Row]) -> list[str]:
    """Of SAM from SGD, or of every method from ERM and from its control of equal cost, paired by seed."""
    arms = by_label(rows)
    lines = ["Differences, paired by seed, with 95% t-intervals, in points:", ""]
    for label, chosen in arms.items():
        for other, others in arms.items():
            if not _is_compared(chosen[0], others[0]):
                continue
            pairs = [(_quantities(mine), _quantities(theirs)) for mine, theirs in zip(chosen, others, strict=True)]
            gains = [
                f"{what} {_interval([mine[what] - theirs[what] for mine, theirs in pairs])}" for what in pairs[0][0]
            ]
            lines.append(f"- {label} against {other}: {', '.join(gains)}")
    return lines


def _is_compared(row: Row, other: Row) -> bool:
    """Whether a page gives the difference of one arm from another."""
    if row.probes:
        return row.arm.optimizer == "sam" and other.arm.optimizer == "sgd"
    if row.arm.control_of is not None or row.label == other.label:
        return False
    return other.label == "erm" or other.arm.control_of == row.arm


def _quantities(row: Row) -> dict[str, float]:
    """What arms are compared by."""
    if row.probes:
        return {"test error": 1 - row.test.accuracy, **row.probes}
    return {"average": row.test.accuracy, "worst group": _worst(row)}


def _sentence(settings: dict[str, Any]) -> str:
    plain = {"precision": {"auto": "bf16 on a GPU"}}
    return ", ".join(
        f"{name.replace('_', ' ')} {plain.get(name, {}).get(value, value) if isinstance(value, str) else value}"
        for name, value in settings.items()
    )


def _settings(row: Row) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in row.settings.items()) or "-"


def _header(columns: Sequence[str]) -> list[str]:
    return [_line(columns), f"|{'---|' * len(columns)}"]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _spread(values: list[float]) -> str:
    each = ", ".join(f"{100 * value:.1f}" for value in values)
    return f"{100 * mean(values):.2f} ± {100 * stdev(values) if len(values) > 1 else 0:.2f} ({each})"


def _interval(differences: list[float]) -> str:
    gain = paired(differences)
    if gain.low is None or gain.high is None:
        return f"{100 * gain.mean:+.2f}"
    return f"{100 * gain.mean:+.2f} [{100 * gain.low:.2f}, {100 * gain.high:.2f}]"
