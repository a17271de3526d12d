"""Gain against cost: every method that was tried, as one picture."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import IdentityTransform

from evenly.report.figures import INK, PAPER, Style, as_svg, page_style, printable, sentinel, spans
from evenly.report.formats import times
from evenly.runs.differences import signed

APART = 13.0
"""Points (of a printer) between methods that cost the same, and between lines of labels."""
SIDEWAYS, SAME_COST = 7.0, 0.02
"""Points between methods whose costs differ by less than so many runs of ERM; all others stand at their cost."""
LETTERS = 10.0
"""The size of a label's letters, in points."""
FARTHEST = 8
"""Lines that a label may be away from its point."""

Box = tuple[float, float, float, float]
"""Left, bottom, right, top, in points."""


@dataclass(frozen=True)
class Gain:
    """A method in the picture: what it costs in multiples of ERM, and its difference from ERM as a share.

    Args:
        low, high: the interval; None where there is none.
        filled: ran on all seeds; the others are hollow.
        control: cost and difference of its control of equal cost.
    """

    name: str
    style: Style
    cost: float
    mean: float
    low: float | None = None
    high: float | None = None
    filled: bool = True
    chosen: bool = False
    control: tuple[float, float] | None = None

    def describe(self) -> str:
        """The point in words."""
        notes = [f"{signed(self.mean)} points at {times(self.cost)}", "" if self.filled else "one seed only"]
        notes += ["chosen"] if self.chosen else []
        notes += [] if self.control is None else [f"its control {signed(self.control[1])}"]
        return f"{self.name} {', '.join(filter(None, notes))}"


def gains(points: Sequence[Gain], *, prefix: str, label: str) -> str:
    """The picture as SVG: cost from left to right, gain upwards, a name beside each point."""
    with page_style(prefix):
        height = 3.3 + 0.11 * max(0, len(points) - 5)
        figure = Figure(figsize=(5.6, height), dpi=72)
        axes = figure.add_axes((0.09, 0.5 / height, 0.89, 1 - 0.62 / height))
        _scale(axes, points)
        places = _side_by_side(axes, points)
        axes.axhline(0, color=INK, linewidth=0.9, zorder=1.5)
        for (x, y), point in zip(places, points, strict=True):
            _draw(axes, point, x, y)
        _write_names(axes, points, places)
        axes.grid(True, axis="y")
        axes.tick_params(length=3, width=0.6)
        axes.set_xlabel("cost, in runs of ERM")
        return as_svg(figure, prefix, f"{label}: {'; '.join(point.describe() for point in points)}")


def _scale(axes: Axes, points: Sequence[Gain]) -> None:
    costs = [cost for each in points for cost in (each.cost, *(each.control or ())[:1])]
    ends = [0.0, *(100 * end for each in points for end in _ends(each))]
    room = 0.1 * (max(ends) - min(ends)) or 1.0
    axes.set_ylim(min(ends) - room, max(ends) + room)
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    if spans(costs, 8):
        axes.set_xscale("log")
        axes.set_xlim(min(costs) / 1.4, max(costs) * 1.6)
        axes.set_xticks([tick for tick in (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100) if _within(tick, axes.get_xlim())])
        axes.minorticks_off()
    else:
        axes.set_xlim(0, 1.18 * max(costs, default=1.0))
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:+g}".replace("-", "−") if value else "0")


def _within(value: float, limits: tuple[float, float]) -> bool:
    return limits[0] <= value <= limits[1]


def _ends(point: Gain) -> list[float]:
    values = (point.mean, point.low, point.high, None if point.control is None else point.control[1])
    return [value for value in values if value is not None and math.isfinite(value)]


def _side_by_side(axes: Axes, points: Sequence[Gain]) -> list[tuple[float, float]]:
    """Where the points are, in data coordinates; those of about the same cost are moved apart sideways."""
    pixels = {k: axes.transData.transform((each.cost, 100 * each.mean)) for k, each in enumerate(points)}
    order = sorted(pixels, key=lambda k: (pixels[k][0], k))
    crowds: list[list[int]] = []
    for k in order:
        if crowds and points[k].cost - points[crowds[-1][0]].cost < SAME_COST:
            crowds[-1].append(k)
        else:
            crowds.append([k])
    places: dict[int, tuple[float, float]] = {}
    for crowd in crowds:
        centre = sum(pixels[k][0] for k in crowd) / len(crowd)
        for rank, k in enumerate(crowd):
            x = centre + SIDEWAYS * (rank - (len(crowd) - 1) / 2) if len(crowd) > 1 else pixels[k][0]
            places[k] = tuple(axes.transData.inverted().transform((x, pixels[k][1])))
    return [places[k] for k in range(len(points))]


def _draw(axes: Axes, point: Gain, x: float, y: float) -> None:
    colour = sentinel(point.style.colour)
    if point.low is not None and point.high is not None:
        width = 2.2 if point.chosen else 1.2
        axes.plot([x, x], [100 * point.low, 100 * point.high], color=colour, linewidth=width, zorder=5)
    if point.control is not None and math.isfinite(point.control[1]):
        stroke: dict[str, Any] = {"marker": "_", "markersize": 15, "markeredgewidth": 2.2, "linestyle": "none"}
        axes.plot([x], [100 * point.control[1]], color=colour, zorder=6, **stroke)
    axes.plot(
        [x],
        [y],
        "o",
        markersize=10 if point.chosen else 7,
        markerfacecolor=colour if point.filled else PAPER,
        markeredgecolor=INK if point.chosen else colour,
        markeredgewidth=1.6,
        zorder=12 if point.chosen else 10,
    )


def _write_names(axes: Axes, points: Sequence[Gain], places: Sequence[tuple[float, float]]) -> None:
    """A name beside each point, where it covers no point and no other name; a thin line leads to one further away."""
    whole = axes.bbox
    pixels = [(float(x), float(y)) for x, y in map(axes.transData.transform, places)]
    marks, lines = _obstacles(axes, points, pixels)
    names: list[Box] = []
    for k in sorted(range(len(points)), key=lambda k: (not points[k].chosen, not points[k].filled, -points[k].mean)):
        point, (x, y), text = points[k], pixels[k], printable(points[k].name)
        width = _text_width(text) * (1.08 if point.chosen else 1.0)

        def badness(box: Box, x: float = x, y: float = y) -> float:
            outside = box[0] < whole.x0 or box[2] > whole.x1 + 8 or box[1] < whole.y0 or box[3] > whole.y1
            covered = sum(_meet(box, other) for other in (*marks, *names))
            crossed = sum(_meet(box, other) for other in lines)
            return float(1e6 * outside + 1e4 * covered + 25.0 * crossed + _distance(box, x, y))

        box = min(_candidates(x, y, width), key=badness)
        names.append(box)
        middle = (box[1] + box[3]) / 2
        style: dict[str, Any] = {"transform": IdentityTransform(), "zorder": 30}
        axes.text(box[0], middle, text, va="center", size=LETTERS, weight="bold" * point.chosen or "normal", **style)
        if _distance(box, x, y) > 1.6 * APART:
            end = min(max(x, box[0]), box[2])
            edge = middle if end in (box[0], box[2]) else box[1] if y < box[1] else box[3]
            axes.plot(
                [x, end], [y, edge], color=INK, alpha=0.45, linewidth=0.6, transform=IdentityTransform(), zorder=4
            )


def _obstacles(
    axes: Axes, points: Sequence[Gain], pixels: Sequence[tuple[float, float]]
) -> tuple[list[Box], list[Box]]:
    """What no name may cover: points, strokes of controls; and what it should not cross: intervals, the line at 0."""

    def height(share: float) -> float:
        return float(axes.transData.transform((1.0, 100 * share))[1])

    marks: list[Box] = []
    lines: list[Box] = [(axes.bbox.x0, height(0.0) - 1, axes.bbox.x1, height(0.0) + 1)]
    for point, (x, y) in zip(points, pixels, strict=True):
        marks.append((x - 6, y - 6, x + 6, y + 6))
        if point.control is not None and math.isfinite(point.control[1]):
            level = height(point.control[1])
            marks.append((x - 8, level - 2, x + 8, level + 2))
        if point.low is not None and point.high is not None:
            lines.append((x - 1.5, height(point.low), x + 1.5, height(point.high)))
    return marks, lines


def _candidates(x: float, y: float, width: float) -> list[Box]:
    """Boxes for a name around a point, from near to far."""
    half, gap, boxes = 0.5 * APART, 9.0, []
    for line in range(FARTHEST + 1):
        for middle in (y + line * APART, y - line * APART):
            aside = [x + gap, x - gap - width, x + 4 * gap, x - 4 * gap - width]
            lefts = [*aside, x - width / 2] if line else aside
            boxes += [(left, middle - half, left + width, middle + half) for left in lefts]
    return boxes


def _distance(box: Box, x: float, y: float) -> float:
    """From a point to the nearest point of a box."""
    return math.hypot(max(box[0] - x, 0.0, x - box[2]), max(box[1] - y, 0.0, y - box[3]))


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _text_width(text: str) -> float:
    """About as wide as a browser draws a text; rather more."""
    return LETTERS * sum(1.05 if unicodedata.east_asian_width(each) in "WF" else 0.6 for each in text)
