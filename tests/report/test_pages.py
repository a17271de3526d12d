"""Pages: every section is there, nothing is fetched, names stay text, and every shape of data is taken."""

from __future__ import annotations

import re
import shutil
import subprocess
import warnings
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

import evenly
from evenly.comparison import summarise
from evenly.data import Data
from evenly.engine.trained import Selection
from evenly.errors import EvenlyError
from evenly.report import comparison_page, run_page, words
from evenly.report.comparisons import MOST_POINTS, arm_looks, hard_examples, over_values
from evenly.report.examples import SHOWN, minorities, minority_shares

NASTY = "<script>alert(1)</script>"
ARMS = ["erm+sgd", "useful+sgd", "random_upsample+sgd at the cost of useful+sgd"]
VOID = {"meta", "img", "link", "br", "hr", "input"}


class Page(HTMLParser):
    """What the tests ask of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.headings, self.captions = Counter(), [], [], 0
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


def test_a_comparison_holds_every_section(make_table, make_images, tmp_path):
    data = make_images(group_names=["a", "b", "c", "d"])
    comparison_page(make_table(rule="worst-group"), tmp_path / "report.html", [data], title="A title", seconds=125)
    page = checked(tmp_path / "report.html")
    for heading in ("A title", "In short", "What was run", "Results", "What the networks learned", "How training went",
                    "Accuracy by group", "What USEFUL picked as hard", "How to read this"):  # fmt: skip
        assert heading in page.said
    assert "useful with sgd raised worst-group accuracy by 4.0 points [4.0, 4.0]" in page.said
    assert "random_upsample+sgd control, same cost" in page.said
    assert "(rule: worst-group)" in page.said
    assert "took 2 min 5 s" in page.said
    assert "40 training examples" in page.said.replace("training examples 40", "40 training examples")
    assert "n = 500" in page.said
    assert "useful+sgd, seed 0, picked 3 of 40 training examples" in page.said
    assert len(page.images) == 3 + SHOWN
    assert "easy feature" in page.said
    assert "difficult feature" in page.said


def test_a_comparison_alone_as_compare_writes_it(make_table, tmp_path):
    comparison_page(make_table(), tmp_path / "report.html")
    page = checked(tmp_path / "report.html")
    assert "group 0" in page.said
    assert "What USEFUL picked" not in page.said
    assert page.tags["nav"] == 0


def test_several_comparisons_on_one_page(make_table, make_images, tmp_path):
    tables = [make_table(name="one"), make_table(name="two", seeds=1, groups=0, features=False)]
    comparison_page(tables, tmp_path / "report.html", [make_images(), None], title="evenly demo")
    page = checked(tmp_path / "report.html")
    assert page.tags["nav"] == 1
    assert page.tags["table"] == 3  # of the one with groups also what they reached in numbers
    assert "20 training runs on one and two" in page.said


def test_a_sweep_has_a_figure_and_a_table_for_each_value(make_sweep, make_images, tmp_path):
    table = make_sweep({"batch_size": [32, 64, 128]}, arms=ARMS, features=False)
    comparison_page(table, tmp_path / "report.html", [make_images()])
    page = checked(tmp_path / "report.html")
    assert page.tags["table"] == 3
    for text in ("Over the swept values", "accuracy against batch size", "batch size, swept 32, 64, 128",
                 "Results at batch_size 32", "Results at batch_size 128", "How training went, batch_size 64",
                 "Accuracy by group, batch_size 64", "As above, at batch_size 128",
                 "useful+sgd, batch_size 32, seed 0, picked 3 of 40"):  # fmt: skip
        assert text in page.said
    assert "batch size 128" not in page.said  # which train would take where nothing is swept
    assert "level line" not in page.said
    # as a reader hears it, each panel ends with the value of the last batch size
    assert "erm+sgd 82.3%; useful+sgd 87.3%" in page.text


def test_lines_over_a_swept_value(make_sweep):
    """Per seed the accuracies at each value, in the order of the values; level where the value varies nothing."""
    table = make_sweep({"useful.factor": [3, 2], "lr": [0.1, 0.4]}, arms=ARMS, seeds=2)
    with pytest.MonkeyPatch.context() as patch:
        drawn = {}
        patch.setattr(
            "evenly.report.figures.curves", lambda lines, **how: drawn.update({how["label"]: (lines, how)}) or ""
        )
        block = over_values(table, arm_looks(table), "p")
    assert [panel.title for panel in block.panels] == [
        "accuracy against useful's factor, lr 0.1", "accuracy against useful's factor, lr 0.4",
        "accuracy against learning rate, useful.factor 3", "accuracy against learning rate, useful.factor 2",
    ]  # fmt: skip
    expected = {
        "useful's factor, lr 0.1": {"erm+sgd": ([2, 3], [0.8, 0.8]), "useful+sgd": ([2, 3], [0.86, 0.85])},
        "useful's factor, lr 0.4": {"erm+sgd": ([2, 3], [0.81, 0.81]), "useful+sgd": ([2, 3], [0.87, 0.86])},
        "learning rate, useful.factor 3": {
            "erm+sgd": ([0.1, 0.4], [0.8, 0.81]), "useful+sgd": ([0.1, 0.4], [0.85, 0.86]),
        },
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


@pytest.mark.parametrize("values", [["a", "<b>"], [None, 8], [True, False]])
def test_values_that_are_no_numbers_have_tables_only(make_sweep, tmp_path, values):
    table = make_sweep({"model_options": values}, arms=["erm+sgd"], features=False, groups=0, validation=False, seeds=1)
    comparison_page(table, tmp_path / "report.html")
    page = checked(tmp_path / "report.html")
    assert page.tags["table"] == 2
    assert "Over the swept values" not in page.said


def test_many_values_have_a_table_each_and_few_have_curves(make_sweep, tmp_path):
    shape = {"features": False, "groups": 0, "validation": False, "seeds": 1}
    comparison_page(make_sweep({"lr": list(range(1, 9))}, arms=["erm+sgd"], **shape), tmp_path / "report.html")
    page = checked(tmp_path / "report.html")
    assert page.tags["table"] == 8
    assert page.said.count("How training went") == MOST_POINTS == 6


def test_settings_are_those_that_compare_had(make_table, tmp_path):
    table = make_table(arms=["erm+sgd"], features=False, groups=0, validation=False)
    table.plan["in_common"] = {"epochs": 7, "augment": "basic+trivial", "precision": "bf16", "normalise": "data"}
    comparison_page(table, tmp_path / "report.html")
    said = checked(tmp_path / "report.html").said
    assert "epochs 7" in said
    assert "augmentation basic+trivial normalisation data precision bf16" in said


def test_names_stay_text(make_table, make_run, make_images, tmp_path):
    data = make_images(
        class_names=[NASTY, "b"], group_names=[NASTY, '"><img src=x onerror=alert(1)>', "c", "$d^"], name=NASTY
    )
    comparison_page(make_table(name=NASTY), tmp_path / "compare.html", [data], title=NASTY)
    run = make_run("useful", 0.8, 0, data=NASTY)
    run_page(run, data, CONFIG, tmp_path / "run.html")
    for name in ("compare.html", "run.html"):
        page = checked(tmp_path / name)
        assert NASTY in page.said
        assert "&lt;script&gt;" in page.text
        assert len(page.images) == 3 + SHOWN


SHAPES = {
    "no groups": {"groups": 0},
    "no validation": {"validation": False},
    "no test": {"test": False},
    "training only": {"test": False, "validation": False},
    "one seed": {"seeds": 1},
    "one arm": {"arms": ["erm+sgd"]},
    "no control": {"arms": ["useful+sgd"]},
    "empty selection": {"picked": ()},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_comparison(make_table, make_images, tmp_path, shape):
    table = make_table(features=False, **SHAPES[shape])
    data = make_images(groups="no groups" not in shape, validation="no validation" not in shape)
    comparison_page(table, tmp_path / "report.html", [data])
    page = checked(tmp_path / "report.html")
    said = {
        "no groups": "in its worst class",
        "no test": "Measured on the validation set",
        "training only": "say nothing about new data",
        "one seed": "one seed cannot tell",
        "one arm": "without controls",
        "empty selection": "picked none of 40",
    }
    assert said.get(shape, "") in page.said
    assert ("Accuracy by group" in page.said) is (shape not in ("no groups", "training only"))


def test_a_table_read_back_without_its_runs(make_table, tmp_path):
    table = make_table()
    table.runs = {}
    comparison_page(table, tmp_path / "report.html")
    assert "How training went" not in checked(tmp_path / "report.html").said


def test_inputs_that_are_no_images(make_table, tmp_path):
    x, y = torch.randn(40, 5), torch.arange(40) % 2
    comparison_page(make_table(groups=0), tmp_path / "report.html", [Data(train=(x, y), test=(x, y))])
    page = checked(tmp_path / "report.html")
    assert page.images == []
    assert "picked 3 of 40 training examples" in page.said


def test_arms_of_other_lengths_are_named(make_table, tmp_path):
    table = make_table(seeds=2)
    next(row for row in table.rows if row["arm"] == "pde+sgd")["epochs"] = 30
    comparison_page(table, tmp_path / "report.html")
    assert "epochs where they differ pde+sgd 5/30" in checked(tmp_path / "report.html").said


def test_many_groups_are_cut_to_the_worst(make_table, tmp_path):
    comparison_page(make_table(seeds=1, features=False, validation=False, groups=30), tmp_path / "report.html")
    assert "Of 30 groups, the 12 where erm+sgd does worst" in checked(tmp_path / "report.html").said


def test_data_of_another_size_shows_no_examples(make_table, make_images):
    assert hard_examples(make_table(picked=(0, 39)), make_images(count=20)) is None
    assert hard_examples(make_table(picked=(0, 19)), make_images(count=20)) is not None


def test_one_data_set_for_each_table(make_table, make_images, tmp_path):
    with pytest.raises(EvenlyError, match="1 data sets for 2 comparisons"):
        comparison_page([make_table(), make_table()], tmp_path / "report.html", [make_images()])
    assert list(tmp_path.iterdir()) == []


CONFIG = {
    "data": {"name": "toys"},
    "model": {"name": "mlp", "options": {"width": 32}},
    "method": {"name": "useful", "options": {"factor": 2}},
    "optimizer": "sgd",
    "settings": {"epochs": 5, "batch_size": None, "lr": 0.1, "select": "last"},
    "budget": None,
    "seed": 0,
}


def test_a_run_holds_every_section(make_run, make_images, tmp_path):
    data = make_images(group_names=["a", "b", "c", "d"])
    run_page(make_run("useful", 0.8, 0), data, CONFIG, tmp_path / "report.html")
    page = checked(tmp_path / "report.html")
    for text in ("useful with sgd on toys", "80.0% test accuracy and 70.0% in its worst group",
                 "The weights are those of epoch 5",
                 "What was run", "full batch", "width = 32", "Results", "By group", "How training went",
                 "What the network learned", "Examples singled out", "picked 3 of 40"):  # fmt: skip
        assert text in page.said


@pytest.mark.parametrize(
    "shape", [{"groups": 0}, {"validation": False}, {"validation": False, "test": False, "groups": 0}, {"picked": ()}]
)
def test_every_shape_of_run(make_run, make_images, tmp_path, shape):
    data = make_images(groups=shape.get("groups", 4) > 0, validation=shape.get("validation", True))
    run_page(make_run("useful", 0.8, 0, **shape), data, CONFIG, tmp_path / "report.html")
    checked(tmp_path / "report.html")


def test_a_run_without_history_or_selection(make_run, make_images, tmp_path):
    run = make_run("erm", 0.8, 0)
    run.history = []
    run_page(run, make_images(), {**CONFIG, "budget": 1000.0}, tmp_path / "report.html")
    page = checked(tmp_path / "report.html")
    assert "1,000 example-gradients" in page.said
    assert "Examples singled out" not in page.said


def test_a_page_is_replaced_whole_or_not_at_all(make_table, tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("before")
    table = make_table()
    del table.summary[0]["cost_multiple"]
    with pytest.raises(KeyError):
        comparison_page(table, path)
    assert path.read_text() == "before"


def test_minorities():
    groups = torch.tensor([0] * 20 + [1] * 18 + [2] * 2)
    assert minorities(groups).tolist() == [False] * 38 + [True] * 2
    overlapping = torch.tensor([[True, False]] * 9 + [[True, True]])
    assert minorities(overlapping).tolist() == [False] * 9 + [True]


def test_minorities_by_attribute_where_there_are_no_groups():
    x, y = torch.randn(40, 5), torch.arange(40) % 2
    strange = (torch.arange(40) >= 36).long()
    data = Data(train=evenly.Split(x, y, attributes={"strange": strange}))
    selection = Selection(torch.tensor([0, 36, 37]), torch.tensor([2, 2, 2]), "by hand")
    (share,) = minority_shares(data, selection)
    assert (share.by, share.picked_minority, share.total_minority) == ("label and strange", 2, 4)


def test_what_compare_leaves_behind(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evenly.compare(
            data="shortcut-digits", methods=["erm", "useful"], seeds=1, epochs=2, batch_size=128, out=tmp_path / "out"
        )
    page = checked(tmp_path / "out" / "report.html")
    assert "batch size 128" in page.said
    runs = sorted((tmp_path / "out" / "runs").glob("*/report.html"))
    assert len(runs) == 3
    assert checked(runs[0]).images == []


@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no chromium to look at the page with")
def test_a_browser_draws_the_page(make_table, make_images, tmp_path):
    comparison_page(make_table(), tmp_path / "report.html", [make_images()])
    subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}",
         "--window-size=800,800", f"--screenshot={tmp_path / 'page.png'}", f"file://{tmp_path / 'report.html'}"],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    assert (tmp_path / "page.png").stat().st_size > 10_000


def test_evaluation_is_told_in_short_and_the_worst_group_has_its_name(make_table, make_images, tmp_path):
    table = make_table(seeds=1, arms=["erm+sgd"])
    table.summary[0]["evaluation_cost_multiple"] = 0.26
    comparison_page(table, tmp_path / "both.html", [make_images()])
    assert "Evaluation, counted apart, cost 0.26x what ERM costs." in checked(tmp_path / "both.html").said
    row = table.rows[0] | {"group_names": ["a", "b", "c", "d"], "evaluation_cost_multiple": 0.26}
    said = words.run_sentences(row)
    assert "70.0% in its worst group (a: 10 examples [" in said[0]
    assert "Evaluation, counted apart, cost 0.26x what ERM costs." in said


def test_pages_tell_of_a_last_layer_fitted_anew_and_of_nothing_picked(make_table, make_run, make_images, tmp_path):
    table = make_table(seeds=1, arms=["erm+sgd", "pde+sgd"])
    table.rows[1] |= {"method": "dfr", "arm": "dfr+sgd", "chosen": 0}
    comparison_page(table, tmp_path / "both.html", [make_images()])
    fitted = "after the epochs the last layer was fitted anew to group-balanced draws of validation examples"
    page = checked(tmp_path / "both.html")
    assert f"dfr with sgd: {fitted}" in page.said  # in short
    assert f"dfr+sgd: {fitted}" in page.said  # under the results
    run = make_run("useful", 0.8, 0, picked=())
    run_page(run, make_images(), CONFIG, tmp_path / "one.html")
    page = checked(tmp_path / "one.html")
    assert "Nothing was repeated: in each class" in page.said
    assert "useful picked none of 40 training examples: the costlier" in page.said
    assert page.images == []  # there is nothing to hold the others beside
    run.results["method"] = "dfr"
    run_page(run, make_images(), CONFIG, tmp_path / "one.html")
    page = checked(tmp_path / "one.html")
    assert page.said.count(fitted) == 2  # in short, and under the results


LONG = ["x" * 299 + "1", "x" * 299 + "2", "words and words " * 18 + "& 3", "d"]
OVERFLOWS = """<script>document.body.dataset.wide = JSON.stringify([document.documentElement.scrollWidth > innerWidth,
Array.from(document.querySelectorAll(".scroll")).filter(box => box.scrollWidth > box.clientWidth).length]);</script>"""


@pytest.fixture
def long_names(make_table, make_images, tmp_path):
    """The pages of a comparison and of a run, with groups whose names have 300 characters."""
    table = make_table(rule="worst-group")
    for row in table.rows:
        row["train"] |= {"group_counts": [100, 10, 5, 40]}
        row["used"] = {"groups": [0, 10, 5, 5], "groups_shown": [0, 40, 5, 10]}
    table.summary[:] = summarise(table.rows, table.runs)
    data = make_images(group_names=LONG)
    comparison_page(table, tmp_path / "both.html", [data])
    run_page(table.runs["pde+sgd", 0], data, CONFIG, tmp_path / "one.html")
    return [tmp_path / "both.html", tmp_path / "one.html"]


def test_long_names_are_cut_in_the_middle_and_have_a_title(long_names):
    for path in long_names:
        page = checked(path)
        assert f'<span title="{LONG[0]}">{"x" * 40}…{"x" * 19}1</span>' in page.text
        assert f"{'x' * 40}…{'x' * 19}2" in page.said
        assert f'title="{LONG[2].replace("&", "&amp;")}"' in page.text
        for place in ("li", "p", "th") if path.stem == "both" else ("li", "th"):  # a legend, over a panel, in a table
            assert re.search(rf"<{place}\b[^>]*>(?:(?!</{place}>).)*…", page.text, re.S)


@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no chromium to look at the page with")
def test_long_names_push_no_number_off_the_page(long_names, tmp_path):
    for path in long_names:
        text = re.sub(r"<meta http-equiv=\"Content-Security-Policy\"[^>]*>", "", path.read_text())
        (tmp_path / "watched.html").write_text(text.replace("</body>", f"{OVERFLOWS}</body>"))
        done = subprocess.run(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync",
             f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1100,900", "--dump-dom",
             f"file://{tmp_path / 'watched.html'}"],
            check=True, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert 'data-wide="[false,0]"' in done.stdout, path.stem
