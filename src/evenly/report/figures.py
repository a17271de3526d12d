"""Figures as inline SVG: pure functions from numbers to text.

Nothing here touches pyplot. Colours are written as CSS variables (`--arm-0` ...) and `currentColor`, so that one figure
serves light and dark pages alike; text stays text. Each panel is about as wide as a phone: pages set them side by side.
"""

from __future__ import annotations

import base64
import io
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast
from xml.etree import ElementTree

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import blended_transform_factory

COLOURS = 8
"""How many colours the style sheet has for arms: --arm-0 (neutral, for ERM) to --arm-7."""
DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.5, 1.5), (6, 2, 1.5, 2))
"""Line styles in points, solid first."""
MOST_SEED_LINES = 8
"""Thin lines in a panel at most; with more, only the means are drawn."""
MOST_MARKS = 20
"""Upright lines in a panel at most; with more, strokes at the bottom."""

INK, FAINT, PAPER = "#010203", "#010204", "#010205"
_STEPS = [1, 2, 5, 10]
RC: dict[str, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a class called "$5^" is a name, not a formula
    "font.size": 11.0,
    "axes.axisbelow": True,
    "grid.linewidth": 0.6,
    "path.simplify_threshold": 0.25,
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), INK),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color", "grid.color"), FAINT),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
}


@dataclass(frozen=True)
class Style:
    """How an arm is drawn wherever it is drawn: a colour of the style sheet and a line style, both by number."""

    colour: int = 0
    dash: int = 0

    @property
    def dashes(self) -> tuple[float, ...]:
        """The line style in points; empty is solid."""
        return DASHES[self.dash % len(DASHES)]


@dataclass(frozen=True)
class Curve:
    """One line of a figure, or its dots alone: per seed (x, y), each two sequences of one length."""

    name: str
    style: Style
    seeds: Sequence[tuple[Sequence[float], Sequence[float]]]
    dots: bool = False

    def mean(self) -> tuple[np.ndarray, np.ndarray]:
        """x and y averaged over the seeds, point by point, as far as every seed goes."""
        length = min((len(x) for x, _ in self.seeds), default=0)
        if length == 0:
            return np.empty(0), np.empty(0)
        x, y = np.mean([(x[:length], y[:length]) for x, y in self.seeds], axis=0)
        return x, y


@dataclass(frozen=True)
class Bar:
    """One arm's value in [0, 1] with the seeds' values and, where it has a control, the control's value."""

    name: str
    style: Style
    value: float
    seeds: Sequence[float] = ()
    control: float | None = None


def styles(arms: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Style]:
    """A style for each (method, optimizer): colour by method, dashes by optimizer; ERM is neutral.

    Where there is one method only, colours distinguish the optimizers instead.
    """
    methods = list(dict.fromkeys(method for method, _ in arms))
    optimizers = list(dict.fromkeys(optimizer for _, optimizer in arms))
    if len(methods) == 1:
        return {(methods[0], optimizer): Style(_colour(k)) for k, optimizer in enumerate(optimizers)}
    coloured = [method for method in methods if method != "erm"]
    colours = {"erm": 0} | {method: _colour(k) for k, method in enumerate(coloured, 1)}
    return {(method, optimizer): Style(colours[method], optimizers.index(optimizer)) for method, optimizer in arms}


def curves(
    lines: Sequence[Curve],
    *,
    prefix: str,
    label: str,
    x_name: str = "epoch",
    shares: bool = False,
    log_x: bool = False,
    log_y: bool = False,
    y_range: tuple[float, float] | None = None,
    marks: Sequence[float] = (),
) -> str:
    """A panel of curves as SVG: the mean over seeds and, where they are few, a thin line per seed.

    Args:
        lines: the arms; the first is drawn lowest.
        prefix: for the ids in the SVG, unique on its page.
        label: the text for a reader who cannot see it; the last values are added.
        shares: y is a share of 1 and is printed as percent.
        marks: places on x that get an upright dotted line, or a stroke at the bottom where they are many.
    """
    with page_style(prefix):
        figure = Figure(figsize=(5.6, 3.1))
        axes = figure.add_axes((0.115, 0.165, 0.865, 0.795))
        for order, line in enumerate(lines):
            drawing: dict[str, Any] = {"color": sentinel(line.style.colour), "dashes": line.style.dashes}
            if len(line.seeds) > 1 and shows_seeds(lines):
                for x, y in line.seeds:
                    axes.plot(x, y, linewidth=0.7, alpha=0.35, zorder=2 + order, **drawing)
            x_mean, y_mean = line.mean()
            marker, width = "o" if line.dots or len(x_mean) == 1 else None, 0.0 if line.dots else 1.7
            axes.plot(x_mean, y_mean, linewidth=width, zorder=20 + order, marker=marker, markersize=4, **drawing)
        for mark in marks:
            top = 1.0 if len(marks) <= MOST_MARKS else 0.06
            axes.axvline(mark, 0, top, color=INK, alpha=0.55, linewidth=0.8, dashes=(1, 2), zorder=1.5)
        axes.grid(True, axis="y")
        axes.tick_params(length=3, width=0.6)
        axes.set_xlabel(x_name)
        axes.margins(x=0.015)
        _scale_x(axes, log_x, whole=x_name == "epoch")
        _scale_y(axes, log_y, shares, y_range)
        return as_svg(figure, prefix, f"{label}. {_last_values(lines, shares)}".strip())


def bars(rows: Sequence[Bar], *, prefix: str, label: str) -> str:
    """Horizontal bars from 0 to 100% as SVG: the bar is the mean, dots are seeds, a stroke is the control's mean."""
    with page_style(prefix):
        widest = max((len(row.name) for row in rows), default=1)
        left = min(0.16 + 0.092 * widest, 2.5) / 5.6
        height = 0.46 + 0.27 * len(rows)
        figure = Figure(figsize=(5.6, height))
        axes = figure.add_axes((left, 0.36 / height, 0.885 - left, 1 - 0.42 / height))
        end = blended_transform_factory(figure.transFigure, axes.transData)  # right of the bars, however long names are
        for y, row in enumerate(rows):
            axes.text(0.992, y, _percent(row.value), transform=end, ha="right", va="center_baseline")
            if not math.isfinite(row.value):
                continue
            axes.barh(y, row.value, height=0.62, color=sentinel(row.style.colour), alpha=0.85, linewidth=0, zorder=2)
            if len(row.seeds) > 1:
                dots: dict[str, Any] = {"markersize": 3.2, "markerfacecolor": "none", "markeredgecolor": INK}
                axes.plot(row.seeds, [y] * len(row.seeds), "o", markeredgewidth=0.9, zorder=4, clip_on=False, **dots)
            if row.control is not None and math.isfinite(row.control):
                axes.plot([row.control] * 2, [y - 0.42, y + 0.42], color=INK, linewidth=1.6, zorder=5, clip_on=False)
        axes.set_xlim(0, 1)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_yticks(range(len(rows)), [printable(row.name) for row in rows])
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100%"])
        axes.grid(True, axis="x")
        axes.tick_params(length=0)
        axes.spines[["left", "bottom"]].set_visible(False)
        values = "; ".join(f"{row.name} {_percent(row.value)}%" for row in rows)
        return as_svg(figure, prefix, f"{label}: {values}")


def shows_seeds(lines: Sequence[Curve]) -> bool:
    """Whether a panel of these curves has room for a line per seed."""
    return sum(len(line.seeds) for line in lines) <= MOST_SEED_LINES


def data_uri(png: bytes) -> str:
    """A PNG as the source of an inline image."""
    return "data:image/png;base64," + base64.b64encode(png).decode()


def spans(values: Sequence[float], factor: float) -> bool:
    """Whether positive values spread over more than a factor, so that a logarithmic axis shows them better."""
    positive = [value for value in values if value > 0 and math.isfinite(value)]
    return len(positive) == len(values) > 0 and max(positive) > factor * min(positive)


def _colour(k: int) -> int:
    """The k-th colour; those after the last start over behind the neutral one."""
    return k if k < COLOURS else 1 + (k - 1) % (COLOURS - 1)


def sentinel(colour: int) -> str:
    """The colour that stands for `--arm-k` until the SVG is written."""
    return f"#0103{colour:02x}"


@contextmanager
def page_style(prefix: str) -> Iterator[None]:
    """matplotlib's defaults with ours on top, whatever the user has set; all is put back afterwards."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # the browser has the font, not matplotlib
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(cast(Any, {**RC, "svg.hashsalt": prefix}))
        yield


def _scale_x(axes: Axes, log: bool, whole: bool) -> None:
    if log:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(10, subs=(1.0, 3.0), numticks=8))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=whole, steps=_STEPS))
    axes.xaxis.set_major_formatter("{x:g}")


def _scale_y(axes: Axes, log: bool, shares: bool, y_range: tuple[float, float] | None) -> None:
    if y_range is not None:
        axes.set_ylim(*y_range)
    if log:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(10, numticks=6))
        axes.yaxis.set_minor_locator(NullLocator())
    elif shares:
        low, high = max(axes.get_ylim()[0], -0.02), min(axes.get_ylim()[1], 1.02)
        axes.set_ylim(low, high)
        places = MaxNLocator(5, steps=_STEPS).tick_values(low, high)
        ticks = [tick for tick in places if max(low, 0) <= tick <= min(high, 1)]
        axes.set_yticks(ticks, [f"{100 * tick:g}%" for tick in ticks])
        return
    else:
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=_STEPS))
    axes.yaxis.set_major_formatter("{x:g}")


def _last_values(lines: Sequence[Curve], shares: bool) -> str:
    last = [(line.name, y[-1]) for line in lines if len(y := line.mean()[1]) and not line.dots]
    texts = [f"{name} {100 * y:.1f}%" if shares else f"{name} {y:.3g}" for name, y in last]
    return f"At the end: {'; '.join(texts)}." if texts else ""


def _percent(share: float) -> str:
    return f"{100 * share:.1f}" if math.isfinite(share) else "–"


def printable(name: str) -> str:
    """A name cut to what fits beside a bar, without characters that XML cannot hold."""
    name = "".join(character if character.isprintable() else " " for character in name)
    return name if len(name) <= 26 else name[:25] + "…"


def as_svg(figure: Figure, prefix: str, label: str) -> str:
    """The figure as an `svg` element for an HTML page: no namespaces, no styles that reach the page, ids of its own."""
    stream = io.BytesIO()
    figure.savefig(
        stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
    )
    root = ElementTree.fromstring(stream.getvalue())
    values = [value for element in root.iter() for value in element.attrib.values()]
    referenced = {name for value in values for name in re.findall(r"#([\w-]+)", value)}
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.rpartition("}")[2] in ("metadata", "style"):
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = _attributes(element.attrib, prefix, referenced)
        if element.tag != "text":
            element.text = None
        element.tail = None
    for parent in list(root.iter()):
        for child in [child for child in parent if child.tag in ("g", "defs") and len(child) == 0]:
            parent.remove(child)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.attrib |= {"role": "img", "aria-label": "".join(c if c.isprintable() else " " for c in label)}
    return ElementTree.tostring(root, encoding="unicode")


def _attributes(attributes: Mapping[str, str], prefix: str, referenced: set[str]) -> dict[str, str]:
    """The attributes without namespaces and without ids that nothing refers to."""
    named = {key.rpartition("}")[2]: value for key, value in attributes.items()}
    return {
        name: _attribute(name, value, prefix) for name, value in named.items() if name != "id" or value in referenced
    }


def _attribute(name: str, value: str, prefix: str) -> str:
    if name == "id":
        return f"{prefix}-{value}"
    if name in ("href", "clip-path"):
        return value.replace("#", f"#{prefix}-")
    if name == "style":
        return _coloured(value)
    return re.sub(r"-?\d+\.\d+", _rounded, value).replace("\n", " ").strip() if name == "d" else value


def _rounded(match: re.Match[str]) -> str:
    return f"{float(match[0]):.2f}".rstrip("0").rstrip(".")


def _coloured(style: str) -> str:
    style = style.replace(INK, "currentColor").replace(FAINT, "var(--faint)").replace(PAPER, "var(--paper)")
    return re.sub(r"#0103([0-9a-f]{2})", lambda match: f"var(--arm-{int(match[1], 16)})", style)
