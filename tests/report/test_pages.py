"""Pages: every section is there, nothing is fetched, names stay text, and every shape of result is taken."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from attrs import evolve

import evenly
from evenly.errors import EvenlyError
from evenly.files import write_json
from evenly.report import write_report
from evenly.report.results_table import scale_of
from evenly.report.run_words import last_epoch
from evenly.report.sweeps import MOST_POINTS, arm_styles, by_point, over_values
from evenly.runs.arms import Arm
from evenly.runs.examples import MOST_EXAMPLES
from evenly.runs.results import Usage
from evenly.runs.summary import Row
from evenly.settings import Settings

NASTY = "<script>alert(1)</script>"
GROUPS = ("a", "b", "c", "d")
VOID = {"meta", "img", "link", "br", "hr", "input"}


class Page(HTMLParser):
    """What the tests ask of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.headings = Counter(), [], []
        self.links, self.images, self.unlabelled, self.open, self.words = [], [], 0, [], []
        self.text = text
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags[tag] += 1
        if tag not in VOID and not self.get_starttag_text().endswith("/>"):
            self.open.append(tag)
        if "id" in attributes:
            self.ids.append(attributes["id"])
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))
        self.links += [attributes[key] for key in ("href", "src", "action", "data", "xlink:href") if key in attributes]
        if tag == "img":
            self.images.append(attributes)
        if tag == "svg" and attributes.get("aria-hidden") != "true" and not attributes.get("aria-label"):
            self.unlabelled += 1
        assert not any(key.startswith("on") for key in attributes)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)

    def handle_data(self, data):
        self.words.append(data)

    @property
    def said(self):
        return re.sub(r"\s+", " ", " ".join(self.words))


def checked(path: Path) -> Page:
    """The page, after everything that holds for every page."""
    page = Page(path.read_text(encoding="utf-8"))
    assert not page.open
    assert page.text.startswith("<!doctype html>")
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in page.links)
    assert not re.search(r"https?://|@import|url\((?!#)", page.text)
    assert page.tags["script"] == page.tags["link"] == page.tags["iframe"] == 0
    assert [name for name, count in Counter(page.ids).items() if count > 1] == []
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    assert page.headings[0] == 1
    assert page.headings.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(page.headings, page.headings[1:], strict=False))
    assert page.tags["caption"] == page.tags["table"]
    assert page.tags["figcaption"] == page.tags["figure"]
    assert page.unlabelled == 0
    assert all(image.get("alt") for image in page.images)
    assert f"evenly {evenly.__version__}" in page.said
    assert path.stat().st_size < 2_000_000
    assert [other.name for other in path.parent.iterdir() if other.name.endswith(".partial")] == []
    return page


@pytest.fixture
def folder(build, tmp_path):
    """A comparison in a folder, as `evenly compare` leaves it, with the examples of its runs."""

    def make(path="out", data=None, **shape):
        comparison = build.comparison(**shape)
        comparison.out = tmp_path / path
        for k, run in enumerate(comparison.runs.values()):
            build.save(run, comparison.out / "runs" / str(k), data or build.images(group_names=GROUPS))
        comparison.rows = tuple(evolve(row, folder=f"runs/{k}") for k, row in enumerate(comparison.rows))
        comparison.save(comparison.out / "results.json")
        return comparison.out

    return make


def test_a_folder_gives_every_section_of_a_comparison(folder):
    page = checked(write_report(folder(rule="worst-group", names=GROUPS)))
    for heading in ("evenly compare", "In short", "What was run", "Results", "Features learned",
                    "How training went", "Accuracy by group", "Examples selected", "How to read this"):  # fmt: skip
        assert heading in page.said
    assert "useful with sgd raised worst-group accuracy by 4.0 points against random upsampling" in page.said
    assert (
        "What to do next On toys, use pde with sgd: 78.3% worst-group accuracy. For new data, from the folder of "
        "this page: evenly predict runs/3 NEW_DATA" in page.said
    )
    assert "random_upsample+sgd control" in page.said
    assert "(rule: worst-group)" in page.said
    assert "training examples 40" in page.said
    assert "n = 500" in page.said
    assert "useful+sgd, seed 0, selected 3 of 40 training examples: the higher-loss cluster." in page.said
    assert "2 (66.7%) are from minority groups, which hold 20.0% of the training set" in page.said
    assert len(page.images) == 3 + MOST_EXAMPLES
    assert "easy feature" in page.said
    assert "difficult feature" in page.said
    assert page.tags["nav"] == 0


def test_a_folder_gives_the_pages_of_its_runs_too(folder):
    out = folder(seeds=1)
    assert write_report(out, runs=False) == out / "report.html"
    pages = list(out.glob("runs/*/report.html"))
    assert pages == []
    first = (out / "report.html").read_bytes()
    write_report(str(out))
    pages = sorted(out.glob("runs/*/report.html"))
    assert [len(checked(page).images) for page in pages] == [0, 19, 19, 19, 0]
    assert (out / "report.html").read_bytes() == first


def test_the_page_of_a_run_is_made_from_its_folder_alone(build, tmp_path):
    build.save(build.run("useful", names=GROUPS), tmp_path / "a", build.images(group_names=GROUPS))
    page = checked(write_report(tmp_path / "a"))
    for text in ("useful with sgd on toys", "80.0% test accuracy and 70.0% in its worst group (a: 10 examples",
                 "Weights used: epoch 5 of 5", "See what it relies on",
                 "What was run", "batch size full", "width = 32", "factor = 2", "Results",
                 "By group", "How training went", "Features learned", "Examples selected", "useful selected 3",
                 "of 40"):  # fmt: skip
        assert text in page.said
    assert 'title="examples per step' in page.text  # what a setting means
    assert len(page.images) == 3 + MOST_EXAMPLES


def test_several_comparisons_on_one_page_as_the_demo_leaves_them(folder):
    first = folder("demo/one", data=None, seeds=1)
    folder("demo/two", seeds=1, groups=0, features=False)
    write_json(first.parent / "results.json", {"format": 2, "comparisons": ["one", "two"], "seconds": 125.0})
    page = checked(write_report(first.parent))
    assert page.tags["nav"] == 1
    assert "evenly demo" in page.said
    assert "10 training runs on toys" in page.said
    assert "took 2 min 5 s" in page.said
    assert len(list(first.parent.glob("*/runs/*/report.html"))) == 10


def test_what_has_no_page_is_refused_in_a_line(build, tmp_path):
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "audit.json").write_text("{}")
    comparison = build.comparison(seeds=1, arms=[build.ERM])
    for target, path, message in (
        (tmp_path, None, "holds no run of evenly"),
        (tmp_path / "audit", None, "audit.json cannot be read (it lacks 'audits'); run `evenly audit` again"),
        (tmp_path, "x.html", "leave out path 'x.html'"),
        (comparison, None, "kept in memory; give a path"),
        (comparison, tmp_path, "is a folder; give a file to write"),
        (comparison, tmp_path / "no" / "x.html", "which does not exist"),
        ([], "x.html", "no page shows nothing"),
        ([comparison, build.run()], "x.html", "no page shows Comparison, Run"),
    ):
        with pytest.raises(EvenlyError, match=re.escape(message)):
            write_report(target, path)


def test_a_sweep_has_a_figure_and_a_table_for_each_value(build, tmp_path):
    table = build.sweep({"batch_size": [32, 64, 128]}, arms=[build.ERM, build.USEFUL, build.UPSAMPLED], features=False)
    page = checked(write_report(table, tmp_path / "report.html"))
    assert page.tags["table"] == 3
    for text in ("Over the swept values", "accuracy against batch size", "batch size, swept 32, 64, 128",
                 "Results at batch_size 32", "Results at batch_size 128", "How training went, batch_size 64",
                 "Accuracy by group, batch_size 64", "As above, at batch_size 128",
                 "useful+sgd, batch_size 32, seed 0, selected 3 of 40"):  # fmt: skip
        assert text in page.said
    assert "batch size 128" not in page.said  # which train would take where nothing is swept
    assert "level line" not in page.said
    # as a reader hears it, each panel ends with the value of the last batch size
    assert "erm+sgd 82.3%; useful+sgd 87.3%" in page.text


def test_lines_over_a_swept_value(build, monkeypatch):
    """Per seed the accuracies at each value, in the order of the values; level where the value varies nothing."""
    arms = [build.ERM, build.USEFUL, build.UPSAMPLED]
    table = build.sweep({"useful.factor": [3, 2], "lr": [0.1, 0.4]}, arms=arms, seeds=2)
    drawn = {}
    monkeypatch.setattr(
        "evenly.report.figures.curves", lambda lines, **how: drawn.update({how["label"]: (lines, how)}) or ""
    )
    block = over_values(table, arm_styles(table), "p")
    assert [panel.title for panel in block.panels] == [
        "accuracy against useful's factor, lr 0.1", "accuracy against useful's factor, lr 0.4",
        "accuracy against learning rate, useful.factor 3", "accuracy against learning rate, useful.factor 2",
    ]  # fmt: skip
    expected = {
        "useful's factor, lr 0.4": {"erm+sgd": ([2, 3], [0.81, 0.81]), "useful+sgd": ([2, 3], [0.87, 0.86])},
        "learning rate, useful.factor 2": {
            "erm+sgd": ([0.1, 0.4], [0.8, 0.81]), "useful+sgd": ([0.1, 0.4], [0.86, 0.87]),
        },
    }  # fmt: skip
    for label, lines in expected.items():
        found, how = drawn[f"Accuracy against {label}"]
        assert how["x_name"] == label.split(",")[0]
        assert {line.name for line in found} == set(lines)
        for line in found:
            x, y = lines[line.name]
            assert [list(seed[0]) for seed in line.seeds] == [x, x]
            assert [list(seed[1]) for seed in line.seeds] == [pytest.approx(y), pytest.approx([v + 0.003 for v in y])]
    assert "level line" in block.caption
    assert [name for name, _ in block.legend] == ["erm+sgd", "useful+sgd"]


def test_a_swept_line_has_the_seeds_that_every_value_has(build, monkeypatch):
    table, drawn = build.sweep({"lr": [0.1, 0.4]}, arms=[build.ERM], seeds=3), []
    monkeypatch.setattr("evenly.report.figures.curves", lambda lines, **how: drawn.extend(lines) or "")
    table = build.of_rows([row for row in table.rows if (row.arm.swept["lr"], row.seed) != (0.1, 0)],
                          sweep={"lr": (0.1, 0.4)})  # fmt: skip
    over_values(table, arm_styles(table), "p")
    assert [list(ys) for _, ys in drawn[0].seeds] == [pytest.approx([0.803, 0.813]), pytest.approx([0.806, 0.816])]


def test_a_method_with_fewer_seeds_has_their_number_beside_it(build, tmp_path):
    table = build.comparison(seeds=3)
    fewer = [row for row in table.rows if row.seed == 2 or row.arm.name[:3] != "pde"]
    fewer = [row for row in fewer if row.seed == 2 or row.arm != build.ERM_CUT]
    table = build.of_rows(fewer, table.runs)
    page = checked(write_report(table, tmp_path / "report.html"))
    assert "over 3 seeds, or as many as stand beside a method." in page.said
    assert re.search(r"pde\+sgd 1 seed .*erm\+sgd control, 1 seed ", page.said)
    assert "useful+sgd 1 seed" not in page.said
    assert "<td>pde+sgd, 1 seed</td>" in table._repr_html_()
    assert "\npde+sgd, 1 seed & " in table.to_latex()
    assert "over 3 seeds, or as many as stand beside a method." in table.to_latex()


def test_arms_by_the_values_they_were_run_at(build):
    swept = [("erm", {"lr": 1}), ("useful", {"lr": 1, "factor": 2}), ("useful", {"lr": 1, "factor": 3}),
             ("erm", {"lr": 2}), ("useful", {"lr": 2, "factor": 2}), ("group_dro", {})]  # fmt: skip
    rows = [Row(Arm(method, "sgd", values), 0, build.result(method)) for method, values in swept]
    control = Row(Arm("erm", "sgd", {"lr": 9}, control_of=Arm("useful", "sgd")), 0, build.result())
    found = [(point, [each.arm.name for each in arms]) for point, arms in by_point(build.of_rows([*rows, control]))]
    assert found == [
        (f"lr {lr}, factor {factor}", [f"erm+sgd, lr {lr}", f"useful+sgd, lr {lr}, factor {factor}", "group_dro+sgd"])
        for lr, factor in ((1, 2), (1, 3), (2, 2))
    ]


@pytest.mark.parametrize("values", [["a", "<b>"], [None, 8], [True, False]])
def test_values_that_are_no_numbers_have_tables_only(build, tmp_path, values):
    shape = {"arms": [build.ERM], "features": False, "groups": 0, "splits": "train test", "seeds": 1}
    page = checked(write_report(build.sweep({"model_options": values}, **shape), tmp_path / "report.html"))
    assert page.tags["table"] == 2
    assert "Over the swept values" not in page.said


def test_many_values_have_a_table_each_and_few_have_curves(build, tmp_path):
    shape = {"arms": [build.ERM], "features": False, "groups": 0, "splits": "train test", "seeds": 1}
    page = checked(write_report(build.sweep({"lr": list(range(1, 9))}, **shape), tmp_path / "report.html"))
    assert page.tags["table"] == 8
    assert page.said.count("How training went") == MOST_POINTS == 6


def test_settings_are_those_in_common_with_what_differs(build, tmp_path):
    table = build.comparison(seeds=2, features=False, groups=0)
    common = Settings(epochs=5, augment="basic+trivial", precision="bf16", normalise="data", patience=None)
    table.plan = evolve(table.plan, in_common=common, differs=("lr",))
    rows = list(table.rows)
    k = next(k for k, row in enumerate(rows) if row.arm == build.PDE)
    rows[k] = evolve(rows[k], result=evolve(rows[k].result, epochs=30))
    table.rows = tuple(rows)
    said = checked(write_report(table, tmp_path / "report.html")).said
    assert "epochs 5" in said
    assert "learning rate 0.05, not in every method" in said
    assert "augmentation basic+trivial normalisation data precision bf16" in said
    assert "patience, in epochs" not in said
    assert "groups inferred by" not in said
    assert "epochs where they differ pde+sgd 5/30" in said


def test_names_stay_text(build, folder, tmp_path):
    names = (NASTY, '"><img src=x onerror=alert(1)>', "c", "$d^")
    data = build.images(class_names=[NASTY, "b"], group_names=names)
    out = folder(data=data, names=names, seeds=1)
    write_report(out)
    for path in (out / "report.html", out / "runs" / "1" / "report.html"):
        page = checked(path)
        assert NASTY in page.said
        assert "&lt;script&gt;" in page.text
        assert len(page.images) == 3 + MOST_EXAMPLES
    page = checked(write_report(build.comparison(seeds=1, data=NASTY), tmp_path / "named.html"))
    assert NASTY in page.said


def test_differences_are_drawn_on_one_scale_with_zero_in_it(build):
    scale = scale_of(build.comparison())
    assert scale.place(scale.low) == 0 < scale.place(0.0) < scale.place(0.28) < 100 == scale.place(scale.high)
    same = build.comparison(seeds=1, arms=[build.ERM, build.USEFUL, build.UPSAMPLED])
    alike = [evolve(row, result=same.rows[0].result) for row in same.rows]
    assert scale_of(build.of_rows(alike)).place(0.0) == 50
    assert scale_of(build.comparison(arms=[build.ERM])) is None


SHAPES = {
    "no groups": {"groups": 0},
    "no validation": {"splits": "train test"},
    "no test": {"splits": "train validation"},
    "training only": {"splits": "train"},
    "one seed": {"seeds": 1},
    "one arm": {"arms": ["ERM"]},
    "no control": {"arms": ["USEFUL"]},
    "empty selection": {"picked": ()},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_comparison(build, tmp_path, shape):
    how = dict(SHAPES[shape])
    if "arms" in how:
        how["arms"] = [getattr(build, name) for name in how["arms"]]
    page = checked(write_report(build.comparison(features=False, **how), tmp_path / "report.html"))
    said = {
        "no groups": "in its worst class",
        "no test": "Measured on the validation set",
        "training only": "say nothing about new data",
        "one seed": "over seeds: 3 or more needed",
        "one arm": "no controls",
        "empty selection": "selected none of 40",
    }
    assert said.get(shape, "") in page.said
    assert ("Accuracy by group" in page.said) is (shape != "no groups")


@pytest.mark.parametrize("shape", [{"groups": 0}, {"splits": "train test"}, {"splits": "train", "groups": 0},
                                   {"picked": ()}])  # fmt: skip
def test_every_shape_of_run(build, tmp_path, shape):
    run = build.save(build.run("useful", **shape), tmp_path / "a", build.images(groups=shape.get("groups", 4) > 0))
    checked(write_report(run))


def test_pages_say_what_the_last_epoch_would_give_and_who_prefers_the_rule(build, tmp_path):
    """Runs are evaluated at epochs 1, 3 and 5."""
    run = build.run("pde", 0.8, rule="worst-group", selected_epoch=3, plan={"settings": Settings(select="worst-group")})
    said = checked(write_report(run, tmp_path / "report.html")).said
    last = (
        "he last epoch would give 78.0% accuracy and 68.0% in the worst group on validation, where these weights have "
    )
    assert f"T{last}76.7% accuracy and 66.7% in the worst group." in said
    assert "within one standard error of the best; pde prefers this rule" in said
    table = build.comparison(rule="worst-group", selected_epoch=3, arms=[build.ERM, build.PDE, build.ERM_CUT])
    said = checked(write_report(table, tmp_path / "report.html")).said
    assert "plain training with sgd: the last epoch would give 78.3% accuracy" in said  # the mean of three seeds
    assert "pde with sgd: the last epoch would give 86.3% accuracy" in said
    assert said.count("the last epoch would give") == 2
    assert "the last epoch would give" not in checked(write_report(build.comparison(), tmp_path / "report.html")).said
    run.history[2]["validation"] = {**run.history[4]["validation"], "loss": 0.4}
    assert last_epoch([run]) == (
        "the last epoch would give the same on validation, 78.0% accuracy and 68.0% in the worst group"
    )


def test_a_run_without_history_or_selection(build, tmp_path):
    run = build.run("erm", plan={"budget": 1000.0})
    run.history = []
    page = checked(write_report(run, tmp_path / "report.html"))
    assert "1,000 example-gradients" in page.said
    assert "Examples selected" not in page.said


def test_a_comparison_without_its_runs(build, tmp_path):
    table = build.comparison()
    table.runs = {}
    assert "How training went" not in checked(write_report(table, tmp_path / "report.html")).said


def test_many_groups_are_cut_to_the_worst(build, tmp_path):
    table = build.comparison(seeds=1, features=False, splits="train test", groups=30)
    said = checked(write_report(table, tmp_path / "report.html")).said
    assert "Of 30 groups, the 12 where erm+sgd does worst" in said


def test_a_page_is_replaced_whole_or_not_at_all(build, tmp_path):
    path = tmp_path / "report.html"
    path.write_text("before")
    table = build.comparison()
    table.summary = (evolve(table.summary[0], cost_multiple=None), *table.summary[1:])
    with pytest.raises(TypeError):
        write_report(table, path)
    assert path.read_text() == "before"


def test_remarks_are_on_both_pages(build, tmp_path):
    table = build.comparison(seeds=1, arms=[build.ERM, build.USEFUL], picked=(), remarks=("no example stood out",))
    assert "useful with sgd: no example stood out." in checked(write_report(table, tmp_path / "both.html")).said
    page = checked(write_report(table.runs[build.USEFUL, 0], tmp_path / "one.html"))
    assert "No example stood out." in page.said
    assert "useful selected none of 40 training examples: the higher-loss cluster" in page.said
    assert page.images == []  # there is nothing to show the others beside


DRAWN = """
const figures = Array.from(document.querySelectorAll(".panel svg"), figure => figure.getBoundingClientRect());
document.body.dataset.found = JSON.stringify({failures: window.failures, figures: figures.length,
  drawn: figures.every(box => box.width > 100 && box.height > 30),
  loaded: Array.from(document.images).every(image => image.complete && image.naturalWidth > 0)});
"""


def test_a_browser_draws_the_page(folder, in_browser):
    found = in_browser(write_report(folder()), DRAWN, "--window-size=800,800")
    assert found["failures"] == []
    assert found["figures"] > 8
    assert found["drawn"]
    assert found["loaded"]


LONG = ["x" * 299 + "1", "x" * 299 + "2", "words and words " * 18 + "& 3", "d"]
OVERFLOWS = """document.body.dataset.found = JSON.stringify([document.documentElement.scrollWidth > innerWidth,
Array.from(document.querySelectorAll(".scroll")).filter(box => box.scrollWidth > box.clientWidth).length]);"""


@pytest.fixture
def long_names(build, tmp_path):
    """The pages of a comparison and of a run, with groups whose names have 300 characters."""
    table, rows = build.comparison(rule="worst-group", names=tuple(LONG)), []
    for row in table.rows:
        train = evolve(row.result.splits["train"], group_counts=(100, 10, 5, 40))
        used = Usage(20, 55, (0, 10, 5, 5), (0, 40, 5, 10))
        result = evolve(row.result, splits={**row.result.splits, "train": train}, used=used)
        table.runs[row.arm, row.seed].results = result
        rows.append(evolve(row, result=result))
    table = build.of_rows(rows, table.runs)
    one = table.runs[build.PDE, 0]
    return [write_report(table, tmp_path / "both.html"), write_report(one, tmp_path / "one.html")]


def test_long_names_are_cut_in_the_middle_and_have_a_title(long_names):
    for path in long_names:
        page = checked(path)
        assert f'<span title="{LONG[0]}">{"x" * 40}…{"x" * 19}1</span>' in page.text
        assert f"{'x' * 40}…{'x' * 19}2" in page.said
        assert f'title="{LONG[2].replace("&", "&amp;")}"' in page.text
        for place in ("li", "p", "th") if path.stem == "both" else ("li", "th"):  # a legend, over a panel, in a table
            assert re.search(rf"<{place}\b[^>]*>(?:(?!</{place}>).)*…", page.text, re.S)


@pytest.mark.parametrize(("width", "scale"), [(500, 1.25), (1100, 1)])
def test_long_names_push_no_number_off_the_page(long_names, in_browser, width, scale):
    """On a wide page and at 400 pixels of the page's own, which a window of 500 shows enlarged."""
    flags = (f"--window-size={width},900", f"--force-device-scale-factor={scale}")
    for path in long_names:
        assert in_browser(path, OVERFLOWS, *flags) == [False, 0], path.stem
