"""The page and the terminal output of an improvement, of values made by hand: one per verdict, and of every shape."""

from __future__ import annotations

import html
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from attrs import evolve
from PIL import Image

import evenly
from evenly.diagnose.audit_folder import save_audits
from evenly.engine.accuracy import intervals
from evenly.files import write_json
from evenly.report import write_report
from evenly.report.figures import Style
from evenly.report.improve_console import show_demo, show_improvement
from evenly.report.improve_figures import Gain, gains
from evenly.report.improve_words import short, size_reason, uncertain
from evenly.runs.arms import Arm
from evenly.runs.demonstration import read_demo
from evenly.runs.differences import Difference
from evenly.runs.improvement import (
    Changed,
    Choice,
    DataProfile,
    GiveAway,
    Improvement,
    NotTried,
    Tried,
    read_improvement,
)
from evenly.runs.improvement import Tested as OnTest  # pytest collects what begins with Test
from evenly.runs.results import DataSummary
from evenly.runs.summary import Metric, Summary

NASTY = "<script>alert(1)</script>"
LONG = "a group whose name has sixty characters, as columns may give"
ERM, SAM, USEFUL, DRO = Arm("erm", "sgd"), Arm("erm", "sam"), Arm("useful", "sgd"), Arm("group_dro", "sgd")
CONTROL, SAM_CONTROL = Arm("random_upsample", "sgd", control_of=USEFUL), Arm("erm", "sgd", control_of=SAM)
VERDICTS = {
    "raised": "The gain is clear",
    "raised-for-these": "clear for these models only",
    "not-confirmed": "the test set does not confirm it",
    "no-clear-gain": "no clear gain",
    "too-few": "too few examples to tell",
    "nothing-tried": "Nothing was tried besides plain training",
}


def summary(arm, level, cost=1.0, gain=None, seeds=3, groups=4, average=0.9, counts=(500, 120, 31, 8), width=0.02):
    """An arm over its seeds; `gain` is its difference from ERM in the worst group."""

    def metric(mean, difference):
        spread = 0.004
        values = tuple(mean + spread * (k - (seeds - 1) / 2) for k in range(seeds))
        if difference is None:
            return Metric(mean, spread, values)
        over_seeds = (difference - width, difference + width) if seeds > 2 else (None, None)
        interval = Difference(difference, *over_seeds, seeds, 0.01, difference - width, difference + width)
        return Metric(mean, spread, values, interval)

    shares = tuple(min(level + 0.1 * g, 1.0) for g in reversed(range(groups)))
    counts = counts[:groups]
    metrics = {
        "accuracy": metric(average - (gain is not None) * 0.011, None if gain is None else -0.011),
        "worst_class": metric(level + 0.1, None if gain is None else gain / 2),
    }
    if groups:
        metrics["worst_group"] = metric(level, gain)
    return Summary(
        arm, seeds, "worst-group", cost, metrics, groups=shares, group_counts=counts,
        group_intervals=intervals(shares, counts), seed_numbers=tuple(range(seeds)),
    )  # fmt: skip


def improvement(verdict="raised", grouping="given", seeds=3, kind="image", names=None, **changes) -> Improvement:
    """A whole job. On validation USEFUL is 9.9 points better than ERM, on the test set 7.3."""
    better = verdict in ("raised", "raised-for-these", "not-confirmed")
    groups = 0 if grouping == "none" else 4
    metric, goal = ("worst_group", "worst-group") if groups else ("worst_class", "worst-class")
    names = names or (("landbird on land", "waterbird on water", NASTY, LONG) if groups else ())
    data = DataSummary(
        "birds & co", "Birds before backgrounds.", {"train": 4000, "validation": 1200, "test": 659},
        ("landbird", NASTY), names, groups,
    )  # fmt: skip
    profile = DataProfile(
        data, {"train": (3000, 1000), "validation": (1100, 100), "test": (500, 159)}, grouping, names,
        {} if not groups else {"train": (2700, 900, 300, 100), "validation": (900, 200, 88, 12)},
        drawn=("test",), duplicates={"validation": 0, "test": 17},
        give_aways=(GiveAway("file_size", 0.93, 0.75),) if kind == "table" else (),
        slice="place = water" if grouping == "slice" else "",
    )  # fmt: skip

    def reached(arm, level, cost=1.0, gain=None, at=seeds, **shape):
        return summary(arm, level, cost, gain, at, groups, **shape)

    tried = [Tried(ERM, "the baseline", True, reached(ERM, 0.52))]
    if verdict != "nothing-tried":
        control = reached(CONTROL, 0.55, 1.3, 0.031)
        tried += [
            Tried(USEFUL, "one group is far below the average", True, reached(USEFUL, 0.62, 1.3, 0.099), control,
                  Difference(0.068, 0.05, 0.08, seeds, 0.01, 0.04, 0.09)),
            Tried(SAM, "it learns features more evenly", False, reached(SAM, 0.53, 2.0, 0.012, at=1)),
            Tried(DRO, "groups are known", False, reached(DRO, 0.49, 1.0, -0.03, at=1)),
        ]  # fmt: skip
    tested = [OnTest(ERM, reached(ERM, 0.5))]
    if better:
        width = 0.09 if verdict == "not-confirmed" else 0.02
        against_control = Difference(0.054, 0.03, 0.08, seeds, 0.01, 0.02, 0.09)
        tested.append(OnTest(USEFUL, reached(USEFUL, 0.573, 1.3, 0.073, width=width), against_control))
        tested.append(OnTest(CONTROL, reached(CONTROL, 0.519, 1.3, 0.019)))
    on_validation = tried[1].on_validation.difference(metric) if better else None
    choice = Choice(
        USEFUL if better else ERM, ERM, "validation decided by the goal", "a", {},
        CONTROL if better else None, on_validation,
    )  # fmt: skip
    gained, lost = (
        tuple(
            Changed(k, "landbird", *order, group=NASTY, place=f"{k}.png" if kind == "image" else "",
                    text={"text": f"a text with {NASTY}", "table": f"age=3, name={NASTY}"}.get(kind, ""))
            for k in indices
        )
        for indices, order in (((4, 7, 9), (NASTY, "landbird")), ((11,), ("landbird", NASTY)))
    )  # fmt: skip
    asked = Improvement(
        profile, goal, metric, "worst-group", "resnet18", tuple(range(seeds)), 0, 12.0, 84000.0, 4000.0,
        2000.0 if grouping == "inferred" else 0.0, 100.0, 754.0, tuple(tried),
        (NotTried(Arm("pde", "sgd"), "the budget has no room for it"),), choice, verdict, tuple(tested),
        gained if better else (), lost if better else (), 31 if better else 0, 1 if better else 0,
        ("One run was interrupted and resumed",), ("import evenly", 'run = evenly.load("best")'),
    )  # fmt: skip
    return evolve(asked, **changes)


def saved(job: Improvement, folder: Path, images: bool = False) -> Path:
    """The job in its folder, as `evenly improve` leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    job.save(folder / "improve.json")
    for each in (*job.gained, *job.lost) if images else ():
        (folder / "changed").mkdir(exist_ok=True)
        for name, shade in ((f"{each.index}.png", 40 * (each.index % 6)), (f"{each.index}-heat.png", 200)):
            Image.new("RGB", (32, 32), (shade, 90, 120)).save(folder / "changed" / name)
    return folder


@pytest.fixture
def page(tmp_path):
    """The page of a job, written from its folder: its HTML, after what holds for every page, and its words."""

    def make(job=None, images=False, **shape):
        folder = saved(
            improvement(**shape) if job is None else job, tmp_path / f"job{len(list(tmp_path.iterdir()))}", images
        )
        path = write_report(folder)
        assert path == folder / "improve.html"
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"https?://|@import|url\((?!#)", text)
        links = re.findall(r'(?:href|src|action)="([^"]*)"', text)
        assert all(link.startswith(("#", "data:image/png;base64,")) for link in links)
        ids = re.findall(r' id="([^"]+)"', text)
        assert not [name for name, count in Counter(ids).items() if count > 1]
        assert {link[1:] for link in links if link.startswith("#")} <= set(ids)
        assert NASTY not in text
        return SimpleNamespace(path=path, text=text, words=words_of(text))

    return make


def words_of(text: str) -> str:
    body = re.sub(r"<(style|script)\b.*?</\1>", " ", text, flags=re.S)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", body)))


def section(page, name: str) -> str:
    """The words under a heading."""
    found = re.search(rf'<section id="{name}".*?</section>', page.text, flags=re.S)
    return "" if found is None else words_of(found[0])


@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("grouping", ["given", "inferred", "none"])
def test_every_verdict_has_its_words(page, verdict, grouping):
    job = improvement(verdict, grouping)
    shown = page(job)
    assert VERDICTS[verdict] in section(shown, "short")
    others = [words for name, words in VERDICTS.items() if name != verdict]
    if verdict == "too-few":  # then, too, there is none
        others.remove(VERDICTS["no-clear-gain"])
    assert not [words for words in others if words in section(shown, "short")]
    for name in ("asked", "chosen", "uncertain", "use", "reading"):
        assert section(shown, name)
    assert bool(section(shown, "changed")) is job.is_better
    assert ("<script" in shown.text) is False


def test_before_and_after_are_those_of_the_test_set(page):
    shown = page()
    for name in ("short", "chosen"):
        assert "+7.3" in section(shown, name)
        assert "+9.9" not in section(shown, name)
    assert (
        "from 50.0% to 57.3% on average over 3 seeds, +7.3 points; over test examples [5.3, 9.3], over seeds [5.3, 9.3]"
        in section(shown, "short")
    )
    assert "+9.9" in section(shown, "tried")
    assert "+7.3" not in section(shown, "tried")
    assert "+9.9 points on validation and is +7.3 points on the test set" in section(shown, "uncertain")


def test_the_price_is_named_where_the_average_fell(page):
    price = "The price: average accuracy fell by 1.1 points on the test set, from 90.0% to 88.9%"
    assert price in page().words
    job = improvement()
    risen = evolve(job.tested[1].summary.metrics["accuracy"], difference=Difference(0.01, 0.0, 0.02, 3))
    after = evolve(job.tested[1].summary, metrics={**job.tested[1].summary.metrics, "accuracy": risen})
    job = evolve(job, tested=(job.tested[0], evolve(job.tested[1], summary=after), job.tested[2]))
    assert "The price" not in page(job).words


def test_whether_the_gain_is_the_methods_own(page):
    job = improvement()
    assert "Against random upsampling with sgd at the same cost (1.30x plain training)" in section(page(job), "chosen")
    for difference, words in (
        (Difference(0.054, 0.03, 0.08, 3, 0.01, 0.02, 0.09), "the gain comes from the method"),
        (Difference(0.004, -0.03, 0.04, 3, 0.01, -0.02, 0.03), "not clear whether the gain comes from the method"),
        (
            Difference(-0.054, -0.08, -0.03, 3, 0.01, -0.09, -0.02),
            "the same cost without the method's idea does better",
        ),
    ):
        tested = (job.tested[0], evolve(job.tested[1], against_control=difference), job.tested[2])
        assert words in section(page(evolve(job, tested=tested)), "chosen")
    alone = evolve(job, choice=evolve(job.choice, control=None), tested=job.tested[:2])
    assert "there was no room for a control of equal cost" in section(page(alone), "chosen")
    same = evolve(job, choice=evolve(job.choice, control=ERM), tested=job.tested[:2])
    assert "so plain training is its control of equal cost" in section(page(same), "chosen")


def test_too_few_examples_say_how_few():
    job = improvement("too-few")
    words = "With 12 validation examples in the smallest group, the 95% interval of an accuracy is about ±25 points."
    assert size_reason(job) == words
    small = evolve(job.profile.summary, sizes={"train": 40, "validation": 12, "test": 20})
    job = evolve(job, goal="average", metric="accuracy", profile=evolve(job.profile, summary=small))
    assert "With 12 validation examples, the 95% interval of an accuracy is about ±25 points." in " ".join(short(job))


def test_points_are_filled_on_all_seeds_and_hollow_on_one(page):
    def fills(*points):
        svg = gains(points, prefix="p", label="x")
        return re.findall(r"<use [^>]*style=\"fill: ([^;]+);[^>]*stroke-width: 1.6", svg)

    hollow, filled = (Gain("a+sgd", Style(2), 1.5, 0.05, 0.02, 0.08, final) for final in (False, True))
    assert fills(hollow) == ["var(--paper)"]
    assert fills(filled) == ["var(--arm-2)"]
    label = re.search(r'aria-label="(worst-group accuracy on validation[^"]*)"', page().text)[1]
    assert "useful+sgd +9.9 points at 1.30x, chosen, its control +3.1" in label
    assert "erm+sam +1.2 points at 2.00x, one seed only" in label
    assert label.count("chosen") == 1
    assert "one seed only" not in page(seeds=1).text


def test_names_in_the_picture_do_not_overlap():
    points = [Gain("erm+sgd", Style(), 1.0, 0.0)]
    points += [
        Gain(f"method{k}+sgd", Style(1 + k % 7), 1.0 + (k % 3) / 10, 0.01 * (k % 4), 0.0, 0.05) for k in range(9)
    ]
    svg = gains(points, prefix="p", label="x")
    number = r"(-?[\d.]+)"
    placed = re.findall(rf"<text[^>]*x=\"{number}\" y=\"{number}\"[^>]*>(\w+\+sgd)<", svg)
    assert len(placed) == len(points)
    boxes = [(float(x), float(y), 5.5 * len(name)) for x, y, name in placed]
    for k, (x, y, width) in enumerate(boxes):
        for other_x, other_y, other_width in boxes[:k]:
            assert abs(y - other_y) > 10 or x + width < other_x or other_x + other_width < x


def test_a_page_is_a_function_of_its_folder(page, tmp_path):
    job = improvement()
    shown = page(job, images=True)
    assert read_improvement(shown.path.parent) == job
    assert write_report(shown.path.parent).read_text() == shown.text
    again = write_report(evolve(read_improvement(shown.path.parent), out=shown.path.parent), tmp_path / "again.html")
    assert again.read_text() == shown.text


@pytest.mark.parametrize("kind", ["image", "text", "table"])
def test_examples_that_changed(page, kind):
    shown = page(improvement(kind=kind), images=kind == "image")
    words = section(shown, "changed")
    assert (
        "Of 1,200 validation examples, 31 were wrong before and right now. 1 was right before and wrong now." in words
    )
    assert "3 of 31" in words
    assert shown.text.count("<img ") == (8 if kind == "image" else 0)  # each beside Grad-CAM
    assert ("Grad-CAM" in words) is (kind == "image")
    assert (f"a text with {NASTY}" in words) is (kind == "text")
    assert (f"age=3, name={NASTY}" in words) is (kind == "table")
    assert ("The column 'file_size' alone gives the label of 93.0%" in shown.words) is (kind == "table")


def test_examples_without_image_and_text_are_a_table(page):
    shown = page(improvement(kind="vector"))
    assert "example label before now group" in section(shown, "changed")


def test_where_groups_are_from(page):
    assert "4, given in the data" in section(page(), "asked")
    inferred = page(grouping="inferred")
    assert "worst-inferred-group accuracy" in section(inferred, "short")
    assert "of which 0.50 to infer groups" in section(inferred, "asked")
    assert "they are a guess" in section(inferred, "uncertain")
    made = page(grouping="slice")
    assert "place = water" in section(made, "asked")
    assert "'place = water'" in section(made, "uncertain")
    none = page(grouping="none")
    assert "worst-class accuracy" in section(none, "short")
    assert "No groups are known" in section(none, "uncertain")
    assert "Groups in numbers" not in none.words


def test_only_what_the_numbers_support_is_uncertain():
    many, one = improvement(), improvement(seeds=1)
    assert "1 seed cannot show how much runs vary. That takes 3 or more." in uncertain(one)
    assert not [words for words in uncertain(many) if "cannot show how much" in words]
    assert f"With 8 test examples in {LONG!r}, the 95% interval of its accuracy is about ±28 points." in uncertain(many)
    assert not [words for words in uncertain(many) if "landbird on land" in words]
    assert "17 of 659 test inputs are in training as well: accuracy on test is optimistic." in short(many)
    large = evolve(many.profile, duplicates={}, drawn=())
    for words in ("in training as well", "drawn from"):
        without = evolve(many, profile=large)
        assert not [each for each in (*short(without), *uncertain(without)) if words in each]


def test_the_audit_beside_it_is_shown(page, tmp_path):
    folder = saved(improvement(), tmp_path / "audited")
    x = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
    data = evenly.Data(train=(x, (x[:, 0] > 0).long()), validation=(x, (x[:, 1] > 0).long()), name="birds & co")
    audit = evenly.audit(torch.nn.Linear(5, 2), data, split="validation")
    save_audits(folder / "audit", [audit], {})
    shown = words_of(write_report(folder).read_text())
    assert audit.findings().verdict[0] in shown
    assert "audit/examples.csv, beside this page" in shown
    assert (folder / "audit" / "audit.html").exists()


def test_what_was_left_out_and_how_to_use_it(page):
    shown = page()
    assert "pde+sgd The budget has no room for it." in section(shown, "tried")
    assert "evenly predict best NEW_DATA" in section(shown, "use")
    assert "<pre><code>import evenly\nrun = evenly.load(&#34;best&#34;)</code></pre>" in shown.text
    assert "One run was interrupted and resumed." in section(shown, "tried")


@pytest.mark.parametrize(("width", "scale"), [(500, 1.25), (1200, 1)])
def test_nothing_leaves_the_page(page, in_browser, width, scale):
    """On a wide page and at 400 pixels of the page's own, which a window of 500 shows enlarged."""
    shown = page(images=True)
    script = (
        "const wide = [...document.querySelectorAll('pre, table, svg, p')].filter(e => e.getBoundingClientRect().right"
        " > innerWidth + 1).length; document.body.dataset.found = JSON.stringify("
        "[document.documentElement.scrollWidth > innerWidth, wide])"
    )
    flags = (f"--window-size={width},900", f"--force-device-scale-factor={scale}")
    assert in_browser(shown.path, script, *flags) == [False, 0]


@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("seeds", [1, 3])
def test_the_terminal_has_it_in_80_columns(capsys, verdict, seeds):
    show_improvement(improvement(verdict, seeds=seeds), Path("runs/my job/improve.html"))
    text = capsys.readouterr().out
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    flat = re.sub(r"\s+", " ", text)
    assert VERDICTS[verdict] in flat
    assert "page: runs/my job/improve.html" in text
    assert "evenly predict 'runs/my job/best' NEW_DATA" in text
    assert "run = evenly.load" in text
    assert ("What was tried" in text) is (verdict != "nothing-tried")
    assert ("+7.3" in text) is (verdict in ("raised", "raised-for-these", "not-confirmed"))
    assert ("one group" in text) is False
    assert re.search(r"useful\+sgd .* chosen$", text, re.M) is not None or verdict in list(VERDICTS)[3:]


def test_wide_numbers_and_long_names_fit_the_terminal(capsys):
    job = improvement("raised-for-these", seeds=1)
    wide = Difference(-1.0, None, None, 1, None, -1.0, -0.9)
    tested = job.tested[1].summary
    metrics = {name: evolve(metric, mean=1.0, difference=wide) for name, metric in tested.metrics.items()}
    arm = Arm("a_plugin_of_a_very_long_name", "asam", {"alpha": 0.125, "batch_size": 1024})
    tried = (*job.tried, evolve(job.tried[1], arm=arm))
    tested = (job.tested[0], evolve(job.tested[1], summary=evolve(tested, metrics=metrics)))
    show_improvement(evolve(job, tried=tried, tested=tested), Path("x/improve.html"))
    text = capsys.readouterr().out
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    assert "examples [−100.0, −90.0]" in text


@pytest.fixture
def demo(build, tmp_path):
    """The folder of a demo, as `evenly demo` leaves it: an improvement and a comparison."""
    comparison = build.comparison(seeds=1)
    comparison.out = tmp_path / "demo" / "toys"
    for k, run in enumerate(comparison.runs.values()):
        build.save(run, comparison.out / "runs" / str(k))
    comparison.rows = tuple(evolve(row, folder=f"runs/{k}") for k, row in enumerate(comparison.rows))
    comparison.save(comparison.out / "results.json")
    saved(improvement(), tmp_path / "demo" / "digits", images=True)
    content = {"format": 2, "comparisons": ["toys"], "improvements": ["digits"], "seconds": 65.0}
    write_json(tmp_path / "demo" / "results.json", content)
    return read_demo(tmp_path / "demo", content)


def test_the_demo_has_one_page_of_the_improvement_and_the_comparison(demo):
    text = write_report(demo.out, runs=False).read_text(encoding="utf-8")
    links, ids = re.findall(r'(?:href|src)="([^"]*)"', text), re.findall(r' id="([^"]+)"', text)
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in links)
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids)
    words = words_of(text)
    parts = ("evenly demo", "The gain is clear", "On toys, plain training", "evenly predict digits/best NEW_DATA",
             "Features learned", "The test set was used once", "took 1 min 5 s")  # fmt: skip
    places = [words.index(part) for part in parts]
    assert places == sorted(places), dict(zip(parts, places, strict=True))
    assert not (demo.out / "digits" / "improve.html").exists()
    write_report(demo.out)
    assert (demo.out / "digits" / "improve.html").exists()
    assert len(list(demo.out.glob("toys/runs/*/report.html"))) == len(demo.comparisons[0].rows)


def test_the_terminal_has_the_demo_and_how_to_use_its_model(demo, capsys):
    show_demo(demo, demo.out / "report.html")
    said = capsys.readouterr().out
    parts = ("What was tried, on validation", "On the test set", "\ntoys", "page: ", "report.html", "new data: ")
    places = [said.index(part) for part in parts]
    assert places == sorted(places)
