"""The phase diagram as a figure: themed SVG for pages, files that stand alone, borders where they belong."""

from __future__ import annotations

import dataclasses
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from evenly.errors import EvenlyError
from evenly.report import phase_figure as drawing
from evenly.report.phase_figure import phase_figure, save_phase_figure
from evenly.theory.stability import Axes, Runs, phase_diagram


@pytest.fixture(scope="module")
def diagram():
    return phase_diagram(lr=0.5, ascent=0.1)


def test_a_figure_is_one_svg_in_the_pages_colours(diagram):
    svg = phase_figure(diagram, prefix="a")
    root = ElementTree.fromstring(svg)
    assert root.tag == "svg"
    assert "currentColor" in svg
    assert all(f"var(--arm-{colour})" in svg for colour in (2, 3, 4))
    assert not re.search(r"#[0-9a-f]{6}", svg)
    texts = [element.text for element in root.iter("text")]
    assert {"batch size B", "coherence measure σ", "SAM, η 0.5, ρ/α 0.1, n 100", "27", "80"} <= set(texts)
    assert {"Lyapunov exponent 0", "divergence theorem", "convergence theorem", "no run diverged"} <= set(texts)


def test_a_reader_who_cannot_see_it_has_a_label(diagram):
    label = ElementTree.fromstring(phase_figure(diagram, prefix="a")).attrib["aria-label"]
    assert f"{diagram.majority.sum()} of 100 cells diverged" in label
    decided = (diagram.theorems != "undecided").sum()
    assert f"The theorems decide {decided} cells, 0 of them wrongly" in label
    assert f"right on {100 * diagram.sharp_right:.0f}%" in label


def test_the_same_diagram_gives_the_same_figure_under_ids_of_its_own(diagram):
    assert phase_figure(diagram, prefix="a") == phase_figure(diagram, prefix="a")
    ids = [set(re.findall(r' id="([^"]+)"', phase_figure(diagram, prefix=p))) for p in ("p1", "p2")]
    assert ids[0]
    assert not ids[0] & ids[1]


def test_a_title_stays_text(diagram):
    svg = phase_figure(diagram, prefix="a", title="<script>$x^")
    assert "<script" not in svg
    assert "&lt;script&gt;$x^" in svg


def test_borders_run_between_cells_inside_and_outside():
    mask = np.array([[True, True, False], [True, False, False], [False, False, False]])
    pieces = {tuple(map(tuple, piece)) for piece in drawing._borders(mask)}
    assert pieces == {((1, 1), (2, 1)), ((0, 2), (1, 2)), ((1, 1), (1, 2)), ((2, 0), (2, 1))}
    assert drawing._borders(np.ones((3, 3), bool)) == []


def test_cells_of_one_share_are_one_outline():
    shades = drawing._shades(np.array([[1.0, 1.0, 0.0], [0.5, 1.0, 1.0]]))
    assert set(shades) == {0.5, 1.0}
    assert shades[0.5].vertices.tolist() == [[0, 1], [1, 1], [1, 2], [0, 2], [0, 1]]
    assert shades[1.0].vertices[:5].tolist() == [[0, 0], [2, 0], [2, 1], [0, 1], [0, 0]]
    assert shades[1.0].vertices[5:8].tolist() == [[1, 1], [3, 1], [3, 2]]


def shading(svg):
    return sorted({float(found) for found in re.findall(r"opacity: ([\d.]+)", svg)})


def test_cells_are_shaded_by_their_share(diagram):
    """The key shows half and all; the cells add their own shares, and nothing where no run diverged."""
    quarter = dataclasses.replace(diagram, diverged=np.full((10, 10), 0.25))
    none = dataclasses.replace(diagram, diverged=np.zeros((10, 10)))
    full = drawing._SHADE
    assert shading(phase_figure(none, prefix="a")) == pytest.approx([full / 2, full])
    assert shading(phase_figure(quarter, prefix="a")) == pytest.approx([full / 4, full / 2, full])


@pytest.mark.parametrize(("x", "y", "count"), [("lr", "ascent", None), ("batch_size", "sigma", 40), ("sigma", "lr", 1)])
def test_other_axes_and_sizes(x, y, count):
    values = None if count is None else range(1, count + 1)
    diagram = phase_diagram(Axes(x, y, values), runs=Runs(steps=10, repeats=2))
    svg = phase_figure(diagram, prefix="a")
    texts = [element.text for element in ElementTree.fromstring(svg).iter("text")]
    assert drawing.AXIS_NAMES[x] in texts
    if count == 40:
        assert [text for text in texts if text in ("5", "10", "35")] == ["5", "10", "35"]
        assert "7" not in texts


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_a_file_stands_alone(diagram, tmp_path, suffix):
    path = save_phase_figure(diagram, tmp_path / f"phase.{suffix}")
    assert path.exists()
    again = save_phase_figure(diagram, str(tmp_path / f"again.{suffix}"))
    assert path.read_bytes() == again.read_bytes()
    if suffix == "svg":
        assert "var(" not in path.read_text()
        assert "#010203" not in path.read_text()
        ElementTree.parse(path)
    else:
        image = np.asarray(Image.open(path).convert("RGB"))
        assert image.shape[:2] == (1060, 1120)
        assert (image[2, 2] == 255).all()


def test_other_formats_are_refused(diagram, tmp_path):
    with pytest.raises(
        EvenlyError, match=r"'phase.pdf' ends in no format that can be written; let it end in .svg or .png"
    ):
        save_phase_figure(diagram, tmp_path / "phase.pdf")
    assert not list(tmp_path.iterdir())
