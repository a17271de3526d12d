"""The page of the demo: what `evenly improve` did on one data set, then what `evenly compare` found on another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from evenly.report import comparison_pages
from evenly.report.blocks import Block, Page, Prose, Section, Verdicts
from evenly.report.comparison_words import closing, next_steps, opening, verdicts
from evenly.report.improve_pages import ACCURACY_INTERVALS, CHOSEN_ON_VALIDATION, improve_sections
from evenly.report.improve_words import short
from evenly.report.rendering import footer
from evenly.runs.demonstration import Demo
from evenly.runs.improvement import Improvement


def demo_page(demo: Demo) -> Page:
    """What the page holds; a demo of an earlier version has comparisons only."""
    if not demo.improvements:
        return comparison_pages.comparison_page(demo.comparisons, "evenly demo", demo.seconds)
    compared = [
        Verdicts(opening(each), verdicts(each), closing(each), f"evenly compare on {each.data}")
        for each in demo.comparisons
    ]
    steps = [step for each in demo.comparisons for step in next_steps(each, demo.out)]
    improved = [section for k, each in enumerate(demo.improvements, 1) for section in _sections(each, k)]
    blocks: list[Block] = [*(_in_short(each) for each in demo.improvements), *compared]
    sections = [
        Section("In short", "short", blocks),
        *improved,
        *(comparison_pages.section(each, k) for k, each in enumerate(demo.comparisons, 1)),
        *([Section("What to do next", "next", [Prose(steps)])] if steps else []),
        Section("How to read this", "reading", [Prose(_how_to_read())]),
    ]
    return Page("evenly demo", _lead(demo), sections, footer(demo.seconds), contents=True)


def _in_short(improvement: Improvement) -> Verdicts:
    first, *others = short(improvement)
    return Verdicts(first, [], others, f"evenly improve on {improvement.profile.summary.name}")


def _sections(improvement: Improvement, k: int) -> list[Section]:
    """The sections of an improvement, each under the name of its data."""
    name, folder = improvement.profile.summary.name, improvement.out
    sections = improve_sections(improvement, folder, "" if folder is None else f"{folder.name}/")
    return [
        replace(each, title=f"{name}: {each.title[0].lower()}{each.title[1:]}", anchor=f"improved-{k}-{each.anchor}")
        for each in sections
    ]


def _how_to_read() -> Sequence[str]:
    return [CHOSEN_ON_VALIDATION, *comparison_pages.HOW_TO_READ, ACCURACY_INTERVALS]


def _lead(demo: Demo) -> str:
    improved = " and ".join(each.profile.summary.name for each in demo.improvements)
    compared = " and ".join(each.data for each in demo.comparisons)
    return f"evenly improve on {improved}" + (f", and evenly compare on {compared}." if compared else ".")
