"""Figures as text: well-formed, themed by the page, with ids of their own."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import matplotlib
import pytest

from evenly.report import figures
from evenly.report.figures import Bar, Curve, Style

NASTY = "<script>alert(1)</script>"


def curve(name="erm+sgd", seeds=2, style=None, length=5):
    xs = list(range(1, length + 1))
    return Curve(name, style or Style(), [(xs, [0.1 * x + 0.05 * seed for x in xs]) for seed in range(seeds)])


def test_a_figure_is_one_svg_in_the_pages_colours():
    svg = figures.curves([curve(), curve("useful+sam", style=Style(2, 1))], prefix="a", label="Loss")
    root = ElementTree.fromstring(svg)
    assert root.tag == "svg"
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"] == "Loss. At the end: erm+sgd 0.525; useful+sam 0.525."
    assert "currentColor" in svg
    assert "var(--arm-0)" in svg
    assert "var(--arm-2)" in svg
    assert not re.search(r"#[0-9a-f]{6}", svg)  # no colour that one of the themes could not read
    assert "<style" not in svg
    assert "http" not in svg
    assert ">epoch</text>" in svg


def test_ids_do_not_meet_and_references_hold():
    first, second = (figures.bars([Bar("a", Style(), 0.5, [0.4, 0.6], 0.3)], prefix=p, label="x") for p in ("p1", "p2"))
    ids = [set(re.findall(r' id="([^"]+)"', svg)) for svg in (first, second)]
    assert not ids[0] & ids[1]
    for svg, own in zip((first, second), ids, strict=True):
        assert set(re.findall(r'(?:href="|url\()#([\w-]+)', svg)) <= own


def test_the_same_numbers_give_the_same_figure():
    assert figures.curves([curve()], prefix="a", label="x") == figures.curves([curve()], prefix="a", label="x")


def test_names_stay_text():
    svg = figures.bars([Bar(NASTY, Style(), 0.5), Bar("$x^ & 数\x00", Style(), 0.25)], prefix="a", label=f"{NASTY}\x00")
    assert "<script" not in svg
    assert "&lt;script&gt;" in svg
    assert "$x^ &amp; 数" in svg
    ElementTree.fromstring(svg)


def test_the_users_matplotlib_is_left_alone():
    with matplotlib.rc_context({"axes.edgecolor": "red", "font.size": 33.0}):
        before = dict(matplotlib.rcParams)
        svg = figures.curves([curve()], prefix="a", label="x")
        assert dict(matplotlib.rcParams) == before
    assert "33px" not in svg


def test_seeds_are_drawn_where_there_is_room():
    few, many = [curve(seeds=3)], [curve(str(k), seeds=3) for k in range(5)]
    assert figures.shows_seeds(few)
    assert not figures.shows_seeds(many)
    assert "opacity: 0.35" in figures.curves(few, prefix="a", label="x")
    assert "opacity: 0.35" not in figures.curves(many, prefix="a", label="x")


@pytest.mark.parametrize(
    "options", [{"log_x": True}, {"log_y": True}, {"shares": True}, {"y_range": (0.0, 3.0)}, {"x_name": "cost"}]
)
def test_axes(options):
    svg = figures.curves([curve(seeds=1)], prefix="a", label="x", **options)
    assert "mathdefault" not in svg
    ElementTree.fromstring(svg)


def test_a_single_point_and_a_missing_value_are_drawn():
    ElementTree.fromstring(figures.curves([curve(length=1)], prefix="a", label="x"))
    svg = figures.bars([Bar("a", Style(), float("nan")), Bar("b", Style(), 0.5)], prefix="a", label="x")
    assert "a –%" in svg


def test_seeds_of_different_length_are_averaged_as_far_as_all_go():
    x, y = Curve("a", Style(), [([1, 2, 3], [0, 1, 2]), ([1, 2], [2, 3])]).mean()
    assert x.tolist() == [1, 2]
    assert y.tolist() == [1, 2]


def test_methods_differ_by_colour_and_optimizers_by_line():
    arms = [("erm", "sgd"), ("useful", "sgd"), ("erm", "sam"), ("useful", "sam")]
    styles = figures.styles(arms)
    assert styles["erm", "sgd"] == Style(0, 0)
    assert styles["erm", "sam"] == Style(0, 1)
    assert styles["useful", "sam"].colour == styles["useful", "sgd"].colour == 1
    one_method = figures.styles([("erm", "sgd"), ("erm", "sam")])
    assert one_method["erm", "sam"] == Style(1, 0)
    many = figures.styles([(f"method{k}", "sgd") for k in range(20)])
    assert {style.colour for style in many.values()} <= set(range(figures.COLOURS))
