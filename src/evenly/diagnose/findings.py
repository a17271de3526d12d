"""An audit in plain sentences, computed from its numbers; what may be claimed of groups is in `docs/audit.md`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from evenly.diagnose.auditing import Audit, Share, fisher, half_of_the_weight, paired
from evenly.diagnose.spectrum import HessianSpectrum
from evenly.diagnose.importance import gini_if_any

FEWEST = 20
"""Examples that a part of a class must have before it is pointed at."""
FLAT = 1e-3
"""An eigenvalue below this share of the largest is not told from 0."""


def verdict(audit: Audit) -> list[str]:
    """What the numbers say, in words."""
    low, high = audit.overall.interval
    said = [
        f"{audit.name} is right on {audit.overall.accuracy:.1%} of {audit.overall.n:,} {audit.split.name} examples "
        f"(95% interval {low:.1%} to {high:.1%})."
    ]
    if len(audit.groups) > 1:
        said += {"group": _of_groups, "cluster": _of_parts}.get(audit.by, _of_cells)(audit)
    said += _of_probes(audit)
    said.append(_of_importance(audit))
    if audit.spectrum is not None:
        said.append(_of_curvature(audit.spectrum))
    if audit.forgetting is not None:
        never = int(torch.isinf(audit.forgetting).sum())
        often = int((audit.forgetting[torch.isfinite(audit.forgetting)] > 0).sum())
        looked = int((~torch.isnan(audit.forgetting)).sum())
        said.append(
            f"Of {looked:,} training {'example' if looked == 1 else 'examples'} {_were(often)} forgotten at least "
            f"once and {_were(never)} never right."
        )
    return said


def compared(audit: Audit, other: Audit) -> list[str]:
    """One model against another on the same examples, in words."""
    mine, its = (each.predicted == each.labels for each in (audit, other))
    gained, lost = int((mine & ~its).sum()), int((~mine & its).sum())
    low, high = paired(gained, lost, len(mine))
    difference = 100 * (gained - lost) / len(mine)
    sure = "" if low > 0 or high < 0 else ": no clear difference"
    said = [
        f"{audit.name} is right on {audit.overall.accuracy:.1%} of {len(mine):,} {audit.split.name} examples, "
        f"{other.name} on {other.overall.accuracy:.1%}: {difference:+.1f} points (95% interval {100 * low:+.1f} to "
        f"{100 * high:+.1f}, paired: {_only(gained)} right by the first only, {_only(lost)} by the second only)"
        f"{sure}."
    ]
    if len(audit.groups) > 1 and len(other.groups) > 1 and "cluster" not in (audit.by, other.by):
        said.append(f"The lowest {audit.by} of the first is {_told(audit.worst)}; of the second {_told(other.worst)}.")
    return said


def _of_groups(audit: Audit) -> list[str]:
    """Whether a group of the data is below the average; no cause, as the numbers show none."""
    failed = [group for group in audit.groups if audit.below(group, len(audit.groups))]
    if not failed:
        return [f"No group is clearly below the average; the lowest is {_told(audit.worst)}."]
    worst = min(failed, key=lambda group: (group.accuracy, group.name))
    are = "is" if len(failed) == 2 else "are"
    others = f"; {len(failed) - 1} more of {len(audit.groups)} groups {are} below it" if len(failed) > 1 else ""
    return [f"It fails on {_told(worst)}, {_gap(audit, worst):.1f} points below its average{others}."]


def _of_cells(audit: Audit) -> list[str]:
    """Of label by attribute: a cell worse than the rest of its own class, else a class that is weak as a whole."""
    for cell in sorted(audit.groups, key=lambda each: (each.accuracy, each.name)):
        rest = audit.whole_class(cell.label, leave_out=cell)
        if rest is None or not audit.below(cell, len(audit.groups)):
            continue
        # the worst of many is low by chance as well
        if fisher(cell.right, cell.n, rest.right, rest.n) < 0.025 / len(audit.groups):
            return [
                f"It fails on {_told(cell)}, {100 * (rest.accuracy - cell.accuracy):.1f} points below the other "
                f"{rest.n:,} examples of {rest.name}: it leans on something that these examples lack."
            ]
    labels = dict.fromkeys(group.label for group in audit.groups)
    classes = [whole for label in labels if (whole := audit.whole_class(label)) is not None]
    weakest = min(classes, key=lambda each: each.accuracy)
    if len(classes) > 1 and audit.below(weakest, len(classes)):
        attribute = audit.by.removeprefix("label and ")
        return [
            f"It is weak on {_told(weakest)}, {_gap(audit, weakest):.1f} points below its average, "
            f"and on no {attribute} in it clearly more than on the rest of it."
        ]
    return [f"No {audit.by} is clearly below the rest of its class; the lowest is {_told(audit.worst)}."]


def _of_parts(audit: Audit) -> list[str]:
    """Where to look: a part of a class in the model's own features. These line up with its decisions, so that one
    part is right less often than the other proves nothing."""
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


def _of_importance(audit: Audit) -> str:
    if not audit.importance.any():
        return "It is so sure of the training examples looked at that none of them moves it any more."
    there = gini_if_any(audit.phantom)
    sam = (
        ""
        if math.isnan(there) or not audit.rho
        else f"; {there:.2f} where SAM with rho {audit.rho:g} would take its gradient"
    )
    return (
        f"Half of the total importance weight is that of {half_of_the_weight(audit.importance):.1%} of the training "
        f"examples looked at (Gini {gini_if_any(audit.importance):.2f}{sam})."
    )


def _of_probes(audit: Audit) -> list[str]:
    told = [found for name, found in audit.probes.items() if name != "label"]
    if not told:
        return []
    best, label = min(told, key=lambda found: found.error), audit.probes.get("label")
    said = (
        f"Its features tell {best.attribute} with an error of {best.error:.1%} (95% interval {best.low:.1%} to "
        f"{best.high:.1%}; guessing {best.chance:.1%})"
    )
    if not set(audit.split.attributes) <= {best.attribute, *best.balanced_over}:
        said += f" on a set balanced over {_listed(best.balanced_over)} only"
    if label is not None:
        clearly = best.high < label.low
        apart = f"where {best.attribute} does not give it away"
        if best.attribute not in label.balanced_over:
            apart = f"balanced over {_listed(label.balanced_over)} only"
        said += f", the label with {label.error:.1%} on a set {apart}"
        said += ": the attribute is the easier one to read." if clearly else "."
    else:
        said += "."
    return [said]


def _gap(audit: Audit, share: Share) -> float:
    return 100 * (audit.overall.accuracy - share.accuracy)


def _told(share: Share) -> str:
    low, high = share.interval
    return f"{share.name}: {share.accuracy:.1%} of {share.n:,} (95% interval {low:.1%} to {high:.1%})"


def _only(count: int) -> str:
    return f"{count:,} {'example' if count == 1 else 'examples'}"


def _were(count: int) -> str:
    return f"{count:,} {'was' if count == 1 else 'were'}"


def _ordinal(k: int) -> str:
    ending = "th" if k % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(k % 10, "th")
    return f"{k}{ending}"


def _of_curvature(spectrum: HessianSpectrum) -> str:
    """The largest eigenvalue, and how many times the last one it is where both are known well enough to divide."""
    values, residuals, sure = spectrum.eigenvalues, spectrum.residuals, spectrum.converged
    said = f"The largest eigenvalue of the training loss's Hessian is {float(values[0]):.3g}"
    if not sure[0]:
        said += f", not converged (residual {float(residuals[0]):.1g})"
    elif len(values) > 1 and sure[-1] and values[-1] > max(FLAT * values[0], 10 * residuals[-1]):
        said += f", {float(values[0] / values[-1]):.1f} times the {_ordinal(len(values))} found"
    return said + "."


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + " and " * (len(names) > 1) + names[-1] if names else "its own values"
