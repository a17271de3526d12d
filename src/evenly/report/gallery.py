"""The examples that a method selected, beside others."""

from __future__ import annotations

from collections.abc import Sequence

from evenly.report.blocks import Gallery, Picture
from evenly.report.figures import data_uri
from evenly.report.formats import percent
from evenly.runs.examples import Example, Examples, read_examples
from evenly.runs.run import Run


def gallery(run: Run, label: str) -> Gallery | None:
    """What a run's method selected and why, with the examples in its folder; None where it selects none by design."""
    if run.selection is None:
        return None
    examples = (None if run.folder is None else read_examples(run.folder)) or Examples()
    total, count = run.results.data.sizes["train"], len(run.selection.indices)
    caption = f"{label} selected {f'{count:,}' if count else 'none'} of {total:,} training examples"
    said = [f"{caption}: {run.selection.why}."]
    for share in examples.shares:
        if share.selected and share.total_minority:
            grouping = "" if share.grouping == "group" else f" (by {share.grouping})"
            within, overall = share.selected_minority / share.selected, share.total_minority / share.total
            said.append(
                f"Of these, {share.selected_minority:,} ({percent(within)}) are from minority groups{grouping}, "
                f"which hold {percent(overall)} of the training set."
            )
    if any(example.minority for example in (*examples.selected, *examples.others)):
        said.append("Outlined: from a group with less than half as many examples as the average group.")
    kinds = (("selected", count, examples.selected), ("others", total - count, examples.others))
    sets = [
        (f"{kind}: {len(pictures)} of {of_kind:,}, drawn at random", pictures)
        for kind, of_kind, drawn in kinds
        if (pictures := _pictures(drawn))
    ]
    return Gallery("Examples selected", sets, " ".join(said))


def _pictures(examples: Sequence[Example]) -> list[Picture]:
    return [
        Picture(
            each.group or each.label,
            each.description,
            "" if each.png is None else data_uri(each.png),
            each.text,
            each.minority,
        )
        for each in examples
        if each.text or each.png is not None
    ]
