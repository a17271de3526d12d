"""An audit in plain sentences, computed from its numbers; `docs/audit.md` says what may be claimed of groups."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from evenly.diagnose.audit import Audit, Share, fisher, half_of_the_weight, paired
from evenly.diagnose.hessian_spectrum import HessianSpectrum
from evenly.diagnose.importance import gini_if_any
from evenly.report.formats import counted

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
        sentences += {"group": _on_groups, "cluster": _on_clusters}.get(audit.by, _on_cells)(audit)
    sentences += [*_on_probes(audit), _on_importance(audit)]
    if audit.spectrum is not None:
        sentences.append(_on_curvature(audit.spectrum))
    if (scores := audit.forgetting) is not None:
        never = int(torch.isinf(scores).sum())
        forgotten = int((scores[torch.isfinite(scores)] > 0).sum())
        known = int((~torch.isnan(scores)).sum())
        sentences.append(
            f"Of {known:,} training {'example' if known == 1 else 'examples'} {_were(forgotten)} forgotten at least "
            f"once and {_were(never)} never right."
        )
    return sentences


def compared(audit: Audit, other: Audit) -> list[str]:
    """One model against another on the same examples."""
    ours, theirs = (each.predicted == each.labels for each in (audit, other))
    gained, lost = int((ours & ~theirs).sum()), int((~ours & theirs).sum())
    low, high = paired(gained, lost, len(ours))
    difference = 100 * (gained - lost) / len(ours)
    clear = "" if low > 0 or high < 0 else ": no clear difference"
    sentences = [
        f"{audit.name} is right on {audit.overall.accuracy:.1%} of {len(ours):,} {audit.split.name} examples, "
        f"{other.name} on {other.overall.accuracy:.1%}: {difference:+.1f} points (95% interval {100 * low:+.1f} to "
        f"{100 * high:+.1f}, paired: {counted(gained, 'example')} right by the first only, "
        f"{counted(lost, 'example')} by the second only){clear}."
    ]
    if len(audit.groups) > 1 and len(other.groups) > 1 and "cluster" not in (audit.by, other.by):
        worst = f"The lowest {audit.by} of the first is {_share(audit.worst)}; of the second {_share(other.worst)}."
        sentences.append(worst)
    return sentences


def _on_groups(audit: Audit) -> list[str]:
    """Whether a group of the data is below the average; no cause, as the numbers show none."""
    failed = [group for group in audit.groups if audit.below(group, len(audit.groups))]
    if not failed:
        return [f"No group is clearly below the average; the lowest is {_share(audit.worst)}."]
    worst = min(failed, key=lambda group: (group.accuracy, group.name))
    are = "is" if len(failed) == 2 else "are"
    others = f"; {len(failed) - 1} more of {len(audit.groups)} groups {are} below it" if len(failed) > 1 else ""
    return [f"It fails on {_share(worst)}, {_gap(audit, worst):.1f} points below its average{others}."]


def _on_cells(audit: Audit) -> list[str]:
    """Of label by attribute: a cell worse than the rest of its own class, else a class that is weak as a whole."""
    for cell in sorted(audit.groups, key=lambda each: (each.accuracy, each.name)):
        rest = audit.whole_class(cell.label, leave_out=cell)
        if rest is None or not audit.below(cell, len(audit.groups)):
            continue
        # the worst of many is low by chance as well
        if fisher(cell.right, cell.n, rest.right, rest.n) < 0.025 / len(audit.groups):
            return [
                f"It fails on {_share(cell)}, {100 * (rest.accuracy - cell.accuracy):.1f} points below the other "
                f"{rest.n:,} examples of {rest.name}: it leans on something that these examples lack."
            ]
    labels = dict.fromkeys(group.label for group in audit.groups)
    classes = [whole for label in labels if (whole := audit.whole_class(label)) is not None]
    weakest = min(classes, key=lambda each: each.accuracy)
    if len(classes) > 1 and audit.below(weakest, len(classes)):
        attribute = audit.by.removeprefix("label and ")
        return [
            f"It is weak on {_share(weakest)}, {_gap(audit, weakest):.1f} points below its average, "
            f"and on no {attribute} in it clearly more than on the rest of it."
        ]
    return [f"No {audit.by} is clearly below the rest of its class; the lowest is {_share(audit.worst)}."]


def _on_clusters(audit: Audit) -> list[str]:
    """Where to look: a part of a class in the model's own features. It decides from these, so one part being right less
    often than the other proves nothing."""
    parts = [
        (part, rest) for part in audit.groups if (rest := audit.whole_class(part.label, leave_out=part)) is not None
    ]
    lower = [(part, rest) for part, rest in parts if part.n >= FEWEST and part.accuracy < rest.accuracy]
    if not lower:
        return []
    part, rest = min(lower, key=lambda pair: (pair[0].accuracy, pair[0].name))
    which = "smaller" if part.n < rest.n else "larger" if part.n > rest.n else "one"
    where = "outputs" if "features" in audit.missing else "features"
    return [
        f"Within {rest.name}, its {where} fall in two parts; the {which}, {part.n:,} of {part.n + rest.n:,}, is "
        f"right on {part.accuracy:.1%}, the other on {rest.accuracy:.1%}: look at those."
    ]


def _on_importance(audit: Audit) -> str:
    if not audit.importance.any():
        return "It is so sure of the training examples used here that none of them moves it any more."
    phantom = gini_if_any(audit.phantom)
    sam = f"; {phantom:.2f} where SAM with rho {audit.rho:g} would take its gradient"
    return (
        f"Half of the total importance weight is that of {half_of_the_weight(audit.importance):.1%} of the training "
        f"examples used here (Gini {gini_if_any(audit.importance):.2f}"
        f"{'' if math.isnan(phantom) or not audit.rho else sam})."
    )


def _on_probes(audit: Audit) -> list[str]:
    attributes = [probe for name, probe in audit.probes.items() if name != "label"]
    if not attributes:
        return []
    best, label = min(attributes, key=lambda probe: probe.error), audit.probes.get("label")
    text = (
        f"Its features tell {best.attribute} with an error of {best.error:.1%} (95% interval {best.low:.1%} to "
        f"{best.high:.1%}; guessing {best.chance:.1%})"
    )
    if not set(audit.split.attributes) <= {best.attribute, *best.balanced_over}:
        text += f" on a set balanced over {_joined(best.balanced_over)} only"
    if label is None:
        return [f"{text}."]
    balanced = f"where {best.attribute} does not give it away"
    if best.attribute not in label.balanced_over:
        balanced = f"balanced over {_joined(label.balanced_over)} only"
    easier = ": the attribute is the easier one to read" if best.high < label.low else ""
    return [f"{text}, the label with {label.error:.1%} on a set {balanced}{easier}."]


def _gap(audit: Audit, share: Share) -> float:
    return 100 * (audit.overall.accuracy - share.accuracy)


def _share(share: Share) -> str:
    low, high = share.interval
    return f"{share.name}: {share.accuracy:.1%} of {share.n:,} (95% interval {low:.1%} to {high:.1%})"


def _were(count: int) -> str:
    return f"{count:,} {'was' if count == 1 else 'were'}"


def _ordinal(k: int) -> str:
    ending = "th" if k % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(k % 10, "th")
    return f"{k}{ending}"


def _on_curvature(spectrum: HessianSpectrum) -> str:
    """The largest eigenvalue, and how many times the last one it is where both are known well enough to divide."""
    values, residuals, converged = spectrum.eigenvalues, spectrum.residuals, spectrum.converged
    text = f"The largest eigenvalue of the training loss's Hessian is {float(values[0]):.3g}"
    if not converged[0]:
        text += f", not converged (residual {float(residuals[0]):.1g})"
    elif len(values) > 1 and converged[-1] and values[-1] > max(FLAT * values[0], 10 * residuals[-1]):
        text += f", {float(values[0] / values[-1]):.1f} times the {_ordinal(len(values))} found"
    return f"{text}."


def _joined(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + " and " * (len(names) > 1) + names[-1] if names else "its own values"
