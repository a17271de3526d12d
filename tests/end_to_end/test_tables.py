"""A user's path: sixty images, texts or rows of numbers, one command, a page; then an audit and predictions."""

import json
import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import evenly as package
from evenly.experiment.training import data_of

DATA = os.environ.get("EVENLY_DATA")
MADLIBS = None if DATA is None else Path(DATA) / "text" / "bias_madlibs_77k.csv.gz"
WORDS = {"bad": ("awful", "poor", "dull", "weak"), "good": ("lovely", "great", "superb", "fine")}


def sixty():
    """Sixty times a label and a place; the place gives four of five labels away."""
    for i in range(60):
        label = i % 2
        yield i, label, label if i % 5 else 1 - label


def photos(folder: Path) -> Path:
    draw = np.random.default_rng(0)
    (folder / "photos" / "img").mkdir(parents=True)
    rows = ["file,label,place"]
    for i, label, place in sixty():
        pixels = draw.integers(0, 60, (8, 8, 3), dtype=np.uint8)
        pixels[2:6, 4 * label : 4 * label + 4, place] += 180
        Image.fromarray(pixels).save(folder / "photos" / "img" / f"{i}.png")
        rows.append(f"img/{i}.png,{('left', 'right')[label]},{('sea', 'wood')[place]}")
    (folder / "photos" / "metadata.csv").write_text("\n".join(rows) + "\n")
    return folder / "photos"


def reviews(folder: Path) -> Path:
    draw = random.Random(0)
    rows = ["text,label,place"]
    for _, label, place in sixty():
        name = ("bad", "good")[label]
        first, second = draw.sample(WORDS[name], 2)
        shop = ("shop", "web")[place]
        rows.append(f'"from the {shop}: <script>{first}</script> and {second}",{name},{shop}')
    (folder / "reviews.csv").write_text("\n".join(rows) + "\n")
    return folder / "reviews.csv"


def people(folder: Path) -> Path:
    draw = random.Random(0)
    rows = ["age,income,label,place"]
    for _, label, place in sixty():
        age, income = 40 + 20 * label + draw.gauss(0, 5), 1000 + draw.gauss(0, 99)
        rows.append(f"{age},{income},{'ny'[label]},{'xz'[place]}")
    (folder / "people.csv").write_text("\n".join(rows) + "\n")
    return folder / "people.csv"


@pytest.mark.parametrize(
    ("make", "classes"), [(photos, ("left", "right")), (reviews, ("bad", "good")), (people, ("n", "y"))]
)
def test_one_command_leaves_a_model_and_a_page_that_others_read(done, tmp_path, make, classes):
    data = make(tmp_path)
    command = f"train {data} --method pde --out run --epochs 12 --device cpu"
    assert f"{data.stem}: pde with sgd" in done(command)
    run = package.load("run")
    test = run.results.splits["test"]
    assert test.accuracy > 0.7
    assert len(test.groups) == 4
    assert sum(split.group_counts[0] for split in run.results.splits.values()) == 24
    assert run.config.class_names == classes
    assert run.plan.data.options.get("groups", "label,place") == "label,place"
    page = Path("run/report.html").read_text()
    assert f"{classes[0]}, place" in page
    assert "<script>" not in page
    done("audit run --out audit --top 1 --device cpu")
    audit = Path("audit/audit.html").read_text()
    assert "<script>poor" not in audit
    if make is reviews:
        assert "hardest and easiest test texts" in audit
        assert "&lt;script&gt;" in audit
        words = json.loads(Path("run/vocabulary.json").read_text())["words"]
        assert words[int(run.model.encode(["superb"])[0, 0]) - 1] == "superb"
        assert data_of(run).test.inputs.dtype == torch.int64
    before = Path("run/results.json").read_bytes()
    done(command)  # again, which reads back what is there
    assert Path("run/results.json").read_bytes() == before
    done(f"predict run {data} --out all.csv")
    assert len(Path("all.csv").read_text().splitlines()) == 61


def census(folder: Path) -> Path:
    """As pandas writes it: an index, blanks, texts of few values."""
    draw = random.Random(0)
    rows = [",age,work,income,sex"]
    for i, label, place in sixty():
        age = "" if i % 9 == 4 else f"{40 + 20 * label + draw.gauss(0, 5)}"
        rows.append(f"{i},{age},{('', 'state', 'own')[i % 3]},{('low', 'high')[label]},{'fm'[place]}")
    (folder / "census.csv").write_text("\n".join(rows) + "\n")
    return folder / "census.csv"


def test_a_census_table_is_trained_on_and_new_rows_with_gaps_are_predicted(done, tmp_path, caplog):
    data = census(tmp_path)
    with caplog.at_level("INFO", "evenly"):
        run = package.train(data, data_options={"label": "income"}, epochs=12, device="cpu", out="run")
    assert "categories: work (3 values), sex (2 values)" in caplog.messages
    assert any(message.startswith("no groups: they can be made of work, sex, e.g.") for message in caplog.messages)
    assert run.results.splits["test"].accuracy > 0.7
    new = [{"age": None, "work": "navy", "sex": ""}, {"age": 61, "work": "own", "sex": "f"}]
    expected = run.predict(new).probabilities
    again = package.load("run")
    assert np.array_equal(again.predict(new).probabilities, expected)
    assert np.array_equal(again.predict([[None, "navy", ""], [61, "own", "f"]]).probabilities, expected)
    (tmp_path / "new.csv").write_text("sex,more,age,work\n,,,navy\nf,,61,own\n")
    assert np.array_equal(again.predict("new.csv").probabilities, expected)
    done(f"predict run {data} --out all.csv")
    assert len(Path("all.csv").read_text().splitlines()) == 61


def test_groups_are_named_on_the_command_line_and_in_python(done, tmp_path):
    data = reviews(tmp_path)
    done(f"train {data} --groups place --out run --epochs 2 --device cpu")
    run = package.load("run")
    assert data_of(run).group_names == ["place shop", "place web"]
    again = package.train(str(data), groups="place", epochs=2, device="cpu")
    assert len(again.results.splits["test"].groups) == 2
    assert again.results.splits == run.results.splits
    table = package.compare(
        data, methods=["erm", "useful"], seeds=1, groups="label,place", epochs=2, device="cpu", controls=False,
        out=tmp_path / "compared",
    )  # fmt: skip
    assert len(table.rows[0].result.splits["test"].groups) == 4
    page = (tmp_path / "compared" / "report.html").read_text()
    assert "&lt;script&gt;" in page
    assert "<script>great" not in page
    assert "worst group" not in done(f"train {data} --groups none --out none --epochs 2 --device cpu")
    assert data_of(package.load("none")).train.groups is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--groups palce", "called 'palce' in .*; there are: label, place"),
        ("--groups place+city", "called 'city' in .*; there are: label, place"),
        (
            "--groups label+place",
            "column 'label' holds '.*' and makes no overlapping groups; give 0 and 1, or join it by",
        ),
        ("--groups label,place -d groups=label", "name the columns once"),
        ("-d bogus=1", "no option of a table is called 'bogus'; there are: attributes, "),
        ("-d validation=0.001", "leaves the validation split empty"),
        ("--select worst-group -d validation=0.04", "has no validation example.*use --select worst-class"),
        ("--model resnet18", "resnet18 cannot read texts; use bag_of_words"),
        ("-d text=comment", "has no column 'comment' .found: 'text', 'place'"),
        ("-d seed=5", "options of the data must be names and values without a seed, got .*; give --seed|give seed="),
        ("-d label=lable", "has no column 'lable' .*; name the right one, e.g. -d label=place"),
    ],
)
def test_what_is_wrong_is_one_line_and_leaves_nothing(refused, tmp_path, options, message):
    refused(f"train {reviews(tmp_path)} --out run --epochs 1 --device cpu {options}", message)
    assert not Path("run").exists()


def test_the_way_out_of_an_image_that_cannot_be_read_can_be_typed(done, refused, tmp_path):
    (photos(tmp_path) / "img" / "7.png").write_bytes(b"none")
    command = "train photos --epochs 1 --out run --device cpu"
    refused(command, "leave them out with -d skip_bad=true$")
    for typed in ("skip_bad=true", "skip_bad=True"):
        done(f"{command} -d {typed}")


def test_what_was_refused_is_mended_in_the_same_folder_and_another_run_is_not_written_over(done, refused, tmp_path):
    rows = people(tmp_path).read_text().splitlines()
    parts = ["split"] + ["validation" if i % 3 == 0 and i % 5 else "train" for i in range(60)]
    (tmp_path / "mine.csv").write_text("\n".join(map(",".join, zip(rows, parts, strict=True))) + "\n")
    command = "train mine.csv --method useful --epochs 2 --out run --groups label,place"
    refused(f"{command} --select worst-group", "use --select worst-class")
    assert not Path("run").exists()
    done(f"{command} --select worst-class")
    refused(
        f"{command} --select average",
        r"run holds another run \(its select is 'worst-class', not 'average'\); give --out run-2",
    )
    refused(f"{command[:-6]} --select worst-class", r"\(its groups are 'label,place', not 'label'\)")


@pytest.mark.skipif(
    MADLIBS is None or not MADLIBS.is_file(), reason="needs EVENLY_DATA with text/bias_madlibs_77k.csv.gz"
)
def test_template_sentences_are_told_apart(done):
    done(f"train {MADLIBS} --epochs 1 --out run --device cpu")
    splits = package.load("run").results.splits
    assert len(splits["test"].groups) == 12
    assert sum(split.group_counts[0] for split in splits.values()) > 0
    assert splits["test"].accuracy > 0.99
