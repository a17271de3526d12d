"""Self-contained HTML pages: no network, light and dark, no script but the one that sorts tables, where there are any
to sort; the page's policy admits that one by its digest. Names from the data are escaped, everywhere."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from evenly import __version__
from evenly.comparison import Comparison
from evenly.data.contract import Data
from evenly.errors import EvenlyError
from evenly.experiment import Run
from evenly.files import atomic
from evenly.report import comparisons, single_run
from evenly.report.blocks import Page, Prose, Section
from evenly.report.words import duration, spoken


def comparison_page(
    tables: Sequence[Comparison] | Comparison,
    path: Path,
    data: Sequence[Data | None] | None = None,
    title: str = "evenly compare",
    seconds: float | None = None,
) -> None:
    """Write the page of one comparison or of several.

    Args:
        tables: the comparisons, in the order of the page.
        path: the HTML file; it is replaced whole or not at all.
        data: for each comparison the data of one of its seeds (the first where the data does not say which): gives
            group names and the examples to look at.
        seconds: how long it all took.
    """
    tables = list(tables) if isinstance(tables, Sequence) else [tables]
    data = [None] * len(tables) if data is None else list(data)
    if len(data) != len(tables):
        raise EvenlyError(f"{len(data)} data sets for {len(tables)} comparisons; give one for each, or None")
    write_page(path, comparison_content(tables, data, title, seconds))


def run_page(run: Run, data: Data, config: dict[str, Any], path: Path) -> None:
    """Write the page of one run: its settings, results on each split, its course, the examples it singled out."""
    title = f"{spoken(run.results)} on {run.results['data']}"
    write_page(path, Page(title, "", single_run.sections(run, data, config), footer(None)))


def comparison_content(
    tables: Sequence[Comparison], data: Sequence[Data | None], title: str, seconds: float | None
) -> Page:
    """What the page of these comparisons holds."""
    several = len(tables) > 1
    short = Section("In short", "short", [comparisons.short(table, table.data if several else "") for table in tables])
    pairs = enumerate(zip(tables, data, strict=True), 1)
    details = [comparisons.section(table, its_data, number) for number, (table, its_data) in pairs]
    reading = Section("How to read this", "reading", [Prose(comparisons.HOW_TO_READ)])
    return Page(title, _lead(tables), [short, *details, reading], footer(seconds), contents=several)


def render(page: Page) -> str:
    """The page as HTML."""
    sorts = any(getattr(block, "sortable", False) for section in page.sections for block in section.blocks)
    script = _part("sort.js") if sorts else ""
    digest = f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"
    drawn = _template().render(page=page, style=Markup(_part("page.css")), script=Markup(script), script_digest=digest)
    return drawn.strip() + "\n"


def write_page(path: Path, page: Page) -> None:
    html = render(page)
    with atomic(Path(path)) as file:
        file.write(html.encode("utf-8", errors="replace"))


def _lead(tables: Sequence[Comparison]) -> str:
    runs = sum(len(table.rows) for table in tables)
    names = " and ".join(dict.fromkeys(table.data for table in tables))
    lead = f"{runs:,} training run{'' if runs == 1 else 's'} on {names}"
    controlled = any(entry.get("control") for table in tables for entry in table.summary)
    return lead + (", each method beside a control of equal cost." if controlled else ", without controls.")


def footer(seconds: float | None) -> str:
    return f"evenly {__version__}" + ("" if seconds is None else f" · took {duration(seconds)}")


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["drawing"] = Markup  # SVG that evenly.report.figures wrote and escaped
    return environment.from_string(_part("page.html.jinja"))


def _part(name: str) -> str:
    return resources.files("evenly.report").joinpath(name).read_text(encoding="utf-8")
