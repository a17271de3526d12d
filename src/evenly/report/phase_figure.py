"""A phase diagram as a figure: cells shaded by the share of runs that diverged, the theory's borders drawn over them.

`phase_figure` is inline SVG in the page's colours, for light and dark alike; `save_phase_figure` writes a file that
stands alone, light.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path

from evenly.errors import EvenlyError
from evenly.report.figures import FAINT, INK, RC, as_svg, page_style, sentinel

if TYPE_CHECKING:
    from evenly.theory.stability import PhaseDiagram

AXIS_NAMES = {
    "batch_size": "batch size B",
    "sigma": "coherence measure σ",
    "lr": "learning rate η",
    "ascent": "ascent ρ/α",
}
OPTIMIZER_NAMES = {"sgd": "SGD", "random_perturbation": "random perturbation", "sam": "SAM"}
MOST_TICKS = 11
FORMATS = (".svg", ".png")

_PAGE = {"ink": INK, "faint": FAINT, "cells": sentinel(2), "diverges": sentinel(4), "converges": sentinel(3)}
_PRINT = {"ink": "#1d2126", "faint": "#b8bec5", "cells": "#d55e00", "diverges": "#a8458a", "converges": "#009470"}
_SHADE = 0.62
"""Opacity of a cell all of whose runs diverged: the borders stay readable on it."""
_BORDERS: tuple[tuple[str, str, float, tuple[float, ...]], ...] = (
    ("ink", "Lyapunov exponent 0", 3.2, ()),
    ("diverges", "divergence theorem", 2.0, (4, 2)),
    ("converges", "convergence theorem", 2.0, (1.2, 1.4)),
)
"""Colour, name, width in points and dashes of each border; the widest first, so that all show where they meet."""


def phase_figure(diagram: PhaseDiagram, *, prefix: str, title: str | None = None) -> str:
    """The diagram as SVG text for an HTML page.

    Args:
        prefix: for the ids in the SVG, unique on its page.
        title: above the cells; left out, the optimizer and the settings that the axes do not show.
    """
    with page_style(prefix):
        return as_svg(_drawn(diagram, _PAGE, title), prefix, _label(diagram))


def save_phase_figure(diagram: PhaseDiagram, path: str | pathlib.Path, *, title: str | None = None) -> pathlib.Path:
    """Write the diagram to a file that ends in .svg or .png (200 dots per inch), in print colours on white."""
    path = pathlib.Path(path)
    if path.suffix.lower() not in FORMATS:
        raise EvenlyError(f"{path.name!r} ends in no format that can be written; let it end in {' or '.join(FORMATS)}")
    with page_style("phase"):
        colours = {INK: _PRINT["ink"], FAINT: _PRINT["faint"]}
        matplotlib.rcParams.update(cast(Any, {key: colours.get(value, value) for key, value in RC.items()}))
        metadata = cast(Any, {"Date": None} if path.suffix.lower() == ".svg" else {})
        _drawn(diagram, _PRINT, title).savefig(path, dpi=200, facecolor="white", metadata=metadata)
    return path


def _drawn(diagram: PhaseDiagram, colours: dict[str, str], title: str | None) -> Figure:
    figure = Figure(figsize=(5.6, 5.3))
    axes = figure.add_axes((0.125, 0.255, 0.855, 0.675))
    rows, columns = diagram.diverged.shape
    for share, cells in _shades(diagram.diverged).items():
        axes.add_patch(PathPatch(cells, color=colours["cells"], alpha=_SHADE * share, linewidth=0))
    masks = (diagram.sharp, diagram.theorems == "diverges", diagram.theorems == "converges")
    for order, (mask, (colour, _, width, dashes)) in enumerate(zip(masks, _BORDERS, strict=True)):
        style: Any = (0, dashes) if dashes else "solid"
        lines = LineCollection(_borders(mask), colors=colours[colour], linewidths=width, linestyles=[style])
        lines.set(zorder=3 + order, capstyle="butt" if dashes else "projecting")
        axes.add_collection(lines)
    axes.set_xlim(0, columns)
    axes.set_ylim(0, rows)
    _ticks(axes, "x", diagram.x_values)
    _ticks(axes, "y", diagram.y_values)
    axes.set_xlabel(AXIS_NAMES[diagram.x])
    axes.set_ylabel(AXIS_NAMES[diagram.y])
    axes.spines[["top", "right"]].set_visible(True)
    axes.tick_params(length=3, width=0.6)
    axes.set_title(_title(diagram) if title is None else title, fontsize=11, loc="left", pad=8)
    _key(figure, colours)
    return figure


def _key(figure: Figure, colours: dict[str, str]) -> None:
    """What the lines and the shades mean, below the cells, side by side."""
    shades = [
        Rectangle((0, 0), 1, 1, facecolor=colours["cells"], alpha=_SHADE * share, linewidth=0) for share in (0.5, 1.0)
    ]
    none = Rectangle((0, 0), 1, 1, facecolor="none", edgecolor=colours["faint"], linewidth=0.8)
    lines = [
        Line2D([], [], color=colours[colour], linewidth=width, linestyle=(0, dashes) if dashes else "solid")
        for colour, _, width, dashes in _BORDERS
    ]
    common: dict[str, Any] = {"frameon": False, "fontsize": 10, "borderaxespad": 0, "labelspacing": 0.35}
    names = [name for _, name, _, _ in _BORDERS]
    figure.legend(lines, names, loc="lower left", bbox_to_anchor=(0.11, 0.01), handlelength=2.6, **common)
    shares = ["no run diverged", "half of the runs", "all runs"]
    figure.legend([none, *shades], shares, loc="lower left", bbox_to_anchor=(0.6, 0.01), handlelength=1.4, **common)


def _ticks(axes: Axes, axis: str, values: Sequence[float]) -> None:
    """A label in the middle of its cell, every second, fifth ... one where there are many."""
    step = next(step for step in (1, 2, 5, 10, 20, 50, len(values)) if len(values) <= step * MOST_TICKS)
    labelled = range(step - 1 if step > 1 and values[0] == 1 else 0, len(values), step)
    setter = axes.set_xticks if axis == "x" else axes.set_yticks
    setter([index + 0.5 for index in labelled], [f"{values[index]:g}" for index in labelled])


def _title(diagram: PhaseDiagram) -> str:
    """The optimizer, and what the axes do not show."""
    settings = diagram.settings
    signs = {"batch_size": "B", "sigma": "σ", "lr": "η", "ascent": "ρ/α"}
    fixed = [f"{sign} {settings[name]:g}" for name, sign in signs.items() if settings.get(name)]
    return ", ".join([OPTIMIZER_NAMES[settings["optimizer"]], *fixed, f"n {settings['n']}"])


def _label(diagram: PhaseDiagram) -> str:
    """The text for a reader who cannot see it."""
    decided = diagram.theorems != "undecided"
    return (
        f"Phase diagram of {_title(diagram)} over {AXIS_NAMES[diagram.x]} and {AXIS_NAMES[diagram.y]}: "
        f"{int(diagram.majority.sum())} of {diagram.majority.size} cells diverged. The theorems decide "
        f"{int(decided.sum())} cells, {diagram.theorem_wrong} of them wrongly; the sign of the Lyapunov exponent is "
        f"right on {100 * diagram.sharp_right:.0f}%."
    )


def _shades(shares: np.ndarray[Any, Any]) -> dict[float, Path]:
    """For each share above 0 its cells as one outline, so that no seam shows between them."""
    corners: dict[float, list[tuple[int, int]]] = {}
    for row, cells in enumerate(shares.tolist()):
        left = 0
        for share, equal in groupby(cells):
            right = left + len(list(equal))
            if share > 0:
                box = [(left, row), (right, row), (right, row + 1), (left, row + 1), (left, row)]
                corners.setdefault(share, []).extend(box)
            left = right
    box_codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
    return {share: Path(points, box_codes * (len(points) // 5)) for share, points in corners.items()}


def _borders(mask: np.ndarray[Any, Any]) -> list[list[tuple[int, int]]]:
    """The edges between cells inside and outside the mask, joined to straight pieces as long as they go."""
    pieces = []
    for flipped in (False, True):
        grid = mask.T if flipped else mask
        for row in range(1, len(grid)):
            start = 0
            for differs, equal in groupby((grid[row] != grid[row - 1]).tolist()):
                stop = start + len(list(equal))
                if differs:
                    ends = [(start, row), (stop, row)]
                    pieces.append([(y, x) for x, y in ends] if flipped else ends)
                start = stop
    return pieces
