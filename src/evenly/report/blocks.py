"""What a page is made of, free of HTML: sentences, code, tables, panels, pictures. The template draws them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from evenly.report.figures import Style
from evenly.report.verdicts import Verdict


@dataclass(frozen=True)
class Prose:
    """Paragraphs."""

    paragraphs: Sequence[str]


@dataclass(frozen=True)
class Code:
    """Lines to type or to paste, after a sentence."""

    opening: str
    lines: Sequence[str]


@dataclass(frozen=True)
class Verdicts:
    """A data set in short: where ERM stands, a verdict per method, closing sentences."""

    opening: str
    verdicts: Sequence[Verdict]
    closing: Sequence[str]
    title: str = ""


@dataclass(frozen=True)
class Check:
    """A condition, whether it was met, and a note."""

    text: str
    met: bool
    note: str = ""


@dataclass(frozen=True)
class Checks:
    """A rule and its conditions."""

    opening: str
    checks: Sequence[Check]
    title: str = ""


@dataclass(frozen=True)
class Fact:
    """A name and its value; `help` says what the name means."""

    name: str
    value: str
    help: str = ""


@dataclass(frozen=True)
class Facts:
    """Names and values."""

    facts: Sequence[Fact]
    title: str = "What was run"


@dataclass(frozen=True)
class Whisker:
    """A difference drawn in a table's cell, in percent of the cell's width: its intervals over seeds and examples."""

    mean: float
    low: float | None = None
    high: float | None = None
    examples_low: float | None = None
    examples_high: float | None = None


@dataclass(frozen=True)
class Cell:
    """A number with its spread, or a whisker; `outcome` colours a difference, `value` is what a table is sorted by."""

    text: str = ""
    spread: str = ""
    outcome: str = ""
    whisker: Whisker | None = None
    value: float | None = None


@dataclass(frozen=True)
class Row:
    """A row's name and cells; a muted row is the control of the one above."""

    name: str
    cells: Sequence[Cell]
    muted: bool = False
    note: str = ""
    style: Style | None = None


@dataclass(frozen=True)
class Panel:
    """One drawing (an `svg` element) under its title."""

    title: str
    svg: str
    note: str = ""


@dataclass(frozen=True)
class Table:
    """Columns beyond the first hold numbers; a name may carry its unit after a comma.

    A column without a name holds whiskers; `zero` is where 0 is in it, in percent of its width. Where it is sortable, a
    column's name is a button that sorts by it. A panel is drawn beside the table where the page is wide enough.
    """

    columns: Sequence[str]
    rows: Sequence[Row]
    caption: str
    title: str = "Results"
    zero: float | None = None
    sortable: bool = False
    panel: Panel | None = None


@dataclass(frozen=True)
class Panels:
    """Drawings side by side with one legend and one caption."""

    title: str
    panels: Sequence[Panel]
    caption: str
    legend: Sequence[tuple[str, Style]] = ()


@dataclass(frozen=True)
class Picture:
    """One example: an image as a data URI in `source`, or a text; outlined where it is from a minority group.

    A second image, `beside` the first, makes both large.
    """

    caption: str
    description: str
    source: str = ""
    text: str = ""
    minority: bool = False
    beside: str = ""


@dataclass(frozen=True)
class Gallery:
    """Sets of examples beside each other."""

    title: str
    sets: Sequence[tuple[str, Sequence[Picture]]]
    caption: str


Block = Prose | Code | Verdicts | Checks | Facts | Table | Panels | Gallery


@dataclass(frozen=True)
class Section:
    """A heading and what is under it; `anchor` is its id on the page."""

    title: str
    anchor: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Page:
    """A whole page."""

    title: str
    lead: str
    sections: Sequence[Section]
    footer: str
    contents: bool = False


def present(blocks: Iterable[Block | None]) -> list[Block]:
    """The blocks that there is something to show in."""
    return [block for block in blocks if block is not None]
