"""Pages as self-contained HTML: no network, light and dark, no script but the one that sorts tables, which the page's
policy admits by its digest. Names from the data are escaped, everywhere."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from pathlib import Path

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from evenly import __version__
from evenly.files import atomic
from evenly.report.blocks import Page, Table
from evenly.values import duration


def write_page(path: Path, page: Page) -> Path:
    """Write a page, whole or not at all."""
    html = render(page)
    with atomic(path) as file:
        file.write(html.encode("utf-8", errors="replace"))
    return path


def render(page: Page) -> str:
    """The page as HTML."""
    blocks = [block for section in page.sections for block in section.blocks]
    script = _part("sort.js") if any(isinstance(block, Table) and block.sortable for block in blocks) else ""
    digest = f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"
    html = _template().render(page=page, css=Markup(_part("page.css")), script=Markup(script), script_digest=digest)
    return html.strip() + "\n"


def footer(seconds: float | None = None) -> str:
    """The version, and how long it took."""
    return f"evenly {__version__}" + ("" if seconds is None else f" · took {duration(seconds)}")


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["kind"] = lambda block: type(block).__name__
    environment.filters["drawing"] = Markup  # SVG that evenly.report.figures wrote and escaped
    return environment.from_string(_part("page.html.jinja"))


def _part(name: str) -> str:
    return resources.files("evenly.report").joinpath(name).read_text(encoding="utf-8")
