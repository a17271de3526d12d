"""The sentences of an audit, each only where its numbers support it. `docs/audit.md` says what is claimed when."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from evenly.data.preprocessing import TablePreprocessing
from evenly.diagnose.fisher import fisher
from evenly.diagnose.importance import gini_if_any
from evenly.diagnose.slices import Slice
from evenly.diagnose.spectrum import HessianSpectrum

if TYPE_CHECKING:
    from evenly.diagnose.findings import Audit, Share

FEWEST = 20
"""Examples that a part of a class must have before it is named."""
FLAT = 1e-3
"""An eigenvalue below this share of the largest is taken for 0."""


def verdict(audit: Audit) -> list[str]:
    """What the numbers say."""
    low, high = audit.overall.interval
    sentences = [
        f"{audit.name} is right on {audit.overall.accuracy:.1%} of {audit.overall.n:,} {audit.split.name} examples "
        f"(95% interval {low:.1%} to {high:.1%})."
    ]
    if len(audit.groups) > 1:
        by_kind = {"group": _on_groups, "class": _on_groups, "cluster": _on_clusters}
        sentences += by_kind.get(audit.by, _on_cells)(audit)
    sentences += [*_on_probes(audit), *_on_importance(audit), *_on_slices(audit), *_on_calibration(audit)]
    if audit.spectrum is not None:
        sentences.append(_on_curvature(audit.spectrum))
    if audit.forgetting is not None:
        sentences.append(_on_forgetting(audit.forgetting))
    return sentences


def next_steps(audit: Audit) -> list[str]:
    """What to do about it; DATA is what the model was trained on."""
    hardest = "Look at the hardest examples: some of them may be labelled wrong."
    if audit.losses is None:
        hardest = "Look at the examples that it gets wrong: some of them may be labelled wrong."
    if audit.by == "cluster":
        part = _lower_cluster(audit)
        if part is None or audit.slices.slices:
            return [*_raise_slice(audit), hardest]
        return [
            f"Look for what the examples of {part[0].name} have in common. If you can name it, add it to the data as a "
            "column and audit again: groups are then measured by it.",
            "To train without groups: evenly compare DATA --methods erm,useful",
        ]
    failed = [group for group in audit.groups if audit.is_below(group, len(audit.groups))]
    if len(audit.groups) < 2 or not failed or audit.by == "class":
        return [*_raise_slice(audit), hardest]
    groups = "" if audit.by == "group" else f" --groups label,{audit.by.removeprefix('label and ')}"
    return [
        f"To raise {worst_of(failed).name}, compare plain training (ERM) with methods that use groups: "
        f"evenly compare DATA{groups} --methods erm,pde,dfr,group_dro",
        hardest,
    ]


def _raise_slice(audit: Audit) -> list[str]:
    """How to train for the first failing slice, where its columns have names that `--groups` takes."""
    columns = next((each.columns for each in audit.slices.slices), ())
    table = audit.data.preprocessing
    known = {*audit.split.attributes, *(table.categories if isinstance(table, TablePreprocessing) else ())}
    if not columns or not known.issuperset(columns) or any(set(name) & set(",+ ") for name in columns):
        return []
    return [
        f"To raise {audit.slices.slices[0].name}, compare plain training (ERM) with methods that use groups: evenly "
        f"compare DATA --groups label,{','.join(columns)} --methods erm,pde,dfr,group_dro"
    ]


def compared(one: Audit, other: Audit, gained: int, lost: int, interval: tuple[float, float]) -> list[str]:
    """One model against another on the same examples: `gained` are right by the first only, `lost` by the second."""
    (low, high), n = interval, one.overall.n
    clear = "" if low > 0 or high < 0 else ": no clear difference"
    sentences = [
        f"{one.name} is right on {one.overall.accuracy:.1%} of {n:,} {one.split.name} examples, "
        f"{other.name} on {other.overall.accuracy:.1%}: {100 * (gained - lost) / n:+.1f} points (95% interval "
        f"{100 * low:+.1f} to {100 * high:+.1f}, paired: {_examples(gained)} right by the first only, "
        f"{_examples(lost)} by the second only){clear}."
    ]
    if len(one.groups) > 1 and len(other.groups) > 1 and "cluster" not in (one.by, other.by):
        sentences.append(f"The lowest {one.by} of the first is {one.worst}; of the second {other.worst}.")
    return sentences


def worst_of(groups: Sequence[Share]) -> Share:
    """The group with the lowest accuracy."""
    return min(groups, key=lambda group: (group.accuracy, group.name))


def half_of_the_weight(weights: Tensor) -> float:
    """The smallest share of examples that has half of the weight."""
    cumulative = weights.sort(descending=True).values.cumsum(0)
    if not float(cumulative[-1]):
        return math.nan
    return (int((cumulative < cumulative[-1] / 2).sum()) + 1) / len(weights)


def _on_groups(audit: Audit) -> list[str]:
    """Whether a group of the data is below the average; no cause, as the numbers show none."""
    failed = [group for group in audit.groups if audit.is_below(group, len(audit.groups))]
    if not failed:
        return [f"No {audit.by} is clearly below the average; the lowest is {audit.worst}."]
    worst = worst_of(failed)
    are = "is" if len(failed) == 2 else "are"
    kinds = "classes" if audit.by == "class" else "groups"
    others = f" {len(failed) - 1} more of {len(audit.groups)} {kinds} {are} clearly below it." if failed[1:] else ""
    return [f"It fails on {worst}, {_gap(audit, worst):.1f} points below its average.{others}"]


def _on_cells(audit: Audit) -> list[str]:
    """Of label by attribute: a cell worse than the rest of its own class, else a class that is weak as a whole."""
    for cell in sorted(audit.groups, key=lambda each: (each.accuracy, each.name)):
        rest = audit.whole_class(cell.label, leave_out=cell)
        if rest is None or not audit.is_below(cell, len(audit.groups)):
            continue
        # the worst of many is low by chance as well
        if fisher(cell.right, cell.n, rest.right, rest.n) < 0.025 / len(audit.groups):
            return [
                f"It fails on {cell}, {100 * (rest.accuracy - cell.accuracy):.1f} points below the other "
                f"{rest.n:,} examples of {rest.name}. It relies on something that these examples lack."
            ]
    labels = dict.fromkeys(group.label for group in audit.groups)
    classes = [whole for label in labels if (whole := audit.whole_class(label)) is not None]
    weakest = min(classes, key=lambda each: each.accuracy)
    if len(classes) > 1 and audit.is_below(weakest, len(classes)):
        attribute = audit.by.removeprefix("label and ")
        return [
            f"It is weak on {weakest}, {_gap(audit, weakest):.1f} points below its average. "
            f"No {attribute} of this class is clearly below the others."
        ]
    return [f"No {audit.by} is clearly below the rest of its class; the lowest is {audit.worst}."]


def _lower_cluster(audit: Audit) -> tuple[Share, Share] | None:
    """The cluster with the lowest accuracy that has enough examples, and the rest of its class; None where there is
    none."""
    parts = [
        (part, rest) for part in audit.groups if (rest := audit.whole_class(part.label, leave_out=part)) is not None
    ]
    lower = [(part, rest) for part, rest in parts if part.n >= FEWEST and part.accuracy < rest.accuracy]
    return min(lower, key=lambda pair: (pair[0].accuracy, pair[0].name)) if lower else None


def _on_clusters(audit: Audit) -> list[str]:
    """Where to look: a part of a class in the model's own features. It decides from these, so one part being right less
    often than the other proves nothing."""
    if (pair := _lower_cluster(audit)) is None:
        return []
    part, rest = pair
    which = "smaller" if part.n < rest.n else "larger" if part.n > rest.n else "first"
    where = "outputs" if "features" in audit.missing else "features"
    return [
        f"By the model's own {where}, the examples of {rest.name} fall into two clusters. It is right on "
        f"{part.accuracy:.1%} of the {which} one, {part.n:,} of {part.n + rest.n:,} examples, and on "
        f"{rest.accuracy:.1%} of the other."
    ]


def slice_in_words(slice: Slice) -> str:
    """How often it is right on a slice, and on the rest."""
    return (
        f"{slice.name}: {slice.accuracy:.1%} of {slice.n:,} (95% interval {slice.low:.1%} to {slice.high:.1%}), "
        f"{100 * (slice.rest - slice.accuracy):.1f} points below the other examples"
    )


def _on_slices(audit: Audit) -> list[str]:
    """The first failing slice; its evidence is corrected for all slices that were searched."""
    if not audit.slices.slices:
        return []
    first, *others = audit.slices.slices
    more = f" {_listed(len(others))} listed." if others else ""
    return [f"Of {audit.slices.searched:,} slices searched, the clearest failure is {slice_in_words(first)}.{more}"]


def _on_calibration(audit: Audit) -> list[str]:
    """Whether its mean confidence is outside the interval of its accuracy."""
    if (calibration := audit.calibration) is None:
        return []
    (low, high), mean = audit.overall.interval, calibration.confidence
    if low <= mean <= high:
        return []
    sure = "too sure of itself" if mean > high else "less sure of itself than it could be"
    return [
        f"It is {sure}: its predicted classes have a probability of {mean:.1%} on average, and it is right on "
        f"{audit.overall.accuracy:.1%} (expected calibration error {100 * calibration.error:.1f} points)."
    ]


def _listed(count: int) -> str:
    return f"{count} more {'is' if count == 1 else 'are'}"


def _on_importance(audit: Audit) -> list[str]:
    if audit.importance is None or audit.phantom is None:
        return []
    if not audit.importance.any():
        return ["It is so sure of the training examples used here that none of them changes it any more."]
    phantom = gini_if_any(audit.phantom)
    sam = f"; {phantom:.2f} at the weights where SAM with rho {audit.rho:g} takes its gradient"
    return [
        f"{half_of_the_weight(audit.importance):.1%} of the training examples used here have half of the total "
        f"importance weight (Gini {gini_if_any(audit.importance):.2f}"
        f"{'' if math.isnan(phantom) or not audit.rho else sam})."
    ]


def _on_probes(audit: Audit) -> list[str]:
    attributes = [probe for name, probe in audit.probes.items() if name != "label"]
    if not attributes:
        return []
    best, label = min(attributes, key=lambda probe: probe.error), audit.probes.get("label")
    only = ""
    if not set(audit.split.attributes) <= {best.attribute, *best.balanced_over}:
        only = f", on a set balanced over {_joined(best.balanced_over)} only"
    sentences = [
        f"{best.attribute} can be read from the network's features {1 - best.error:.1%} of the time (95% interval "
        f"{1 - best.high:.1%} to {1 - best.low:.1%}; guessing {1 - best.chance:.1%}){only}."
    ]
    if label is not None:
        balanced = f"where {best.attribute} does not give it away"
        if best.attribute not in label.balanced_over:
            balanced = f"balanced over {_joined(label.balanced_over)} only"
        easier = f" {best.attribute} is the easier one to read." if best.high < label.low else ""
        sentences.append(f"The label can be read {1 - label.error:.1%} of the time, on a set {balanced}.{easier}")
    return [" ".join(sentences)]


def _on_curvature(spectrum: HessianSpectrum) -> str:
    """The largest eigenvalue, and how many times the last one it is where both are known well enough to divide."""
    values, residuals, converged = spectrum.eigenvalues, spectrum.residuals, spectrum.converged
    text = f"The largest eigenvalue of the training loss's Hessian is {float(values[0]):.3g}"
    if not converged[0]:
        text += f", not converged (residual {float(residuals[0]):.1g})"
    elif len(values) > 1 and converged[-1] and values[-1] > max(FLAT * values[0], 10 * residuals[-1]):
        text += f", {float(values[0] / values[-1]):.1f} times the {_ordinal(len(values))} found"
    return f"{text}."


def _on_forgetting(scores: Tensor) -> str:
    never = int(torch.isinf(scores).sum())
    forgotten = int((scores[torch.isfinite(scores)] > 0).sum())
    known = int((~torch.isnan(scores)).sum())
    return (
        f"Of {known:,} training {'example' if known == 1 else 'examples'}, {_were(forgotten)} forgotten at least once "
        f"and {_were(never)} never right."
    )


def _gap(audit: Audit, share: Share) -> float:
    return 100 * (audit.overall.accuracy - share.accuracy)


def _examples(count: int) -> str:
    return f"{count:,} {'example' if count == 1 else 'examples'}"


def _were(count: int) -> str:
    return f"{count:,} {'was' if count == 1 else 'were'}"


def _ordinal(k: int) -> str:
    ending = "th" if k % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(k % 10, "th")
    return f"{k}{ending}"


def _joined(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + " and " * (len(names) > 1) + names[-1] if names else "its own values"
