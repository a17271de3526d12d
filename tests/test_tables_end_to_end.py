"""A user's path: sixty images, texts or rows of numbers, one command, a report; then an audit of what came of it."""

from __future__ import annotations

import json
import os
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import evenly as package
from evenly.experiment import reopen

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
        rows.append(
            f"{40 + 20 * label + draw.gauss(0, 5)},{1000 + draw.gauss(0, 99)},{'ny'[label]},{('x', 'z')[place]}"
        )
    (folder / "people.csv").write_text("\n".join(rows) + "\n")
    return folder / "people.csv"


KINDS = {"photos": photos, "reviews": reviews, "people": people}


@pytest.mark.parametrize("kind", KINDS)
def test_one_command_leaves_a_report_and_an_audit_reads_it_back(evenly, tmp_path, kind):
    data = KINDS[kind](tmp_path)
    code, out, err = evenly("train", data, "--method", "pde", "--device", "cpu", "--out", "run", "--epochs", "12")
    assert (code, err) == (0, "")
    assert f"{kind}: pde with sgd" in out
    results = json.loads(Path("run/results.json").read_text())
    assert results["test"]["accuracy"] > 0.7
    assert len(results["test"]["groups"]) == 4
    assert sum(results[part]["group_counts"][0] for part in ("train", "validation", "test")) == 24
    config = json.loads(Path("run/config.json").read_text())
    names = {"photos": ["left", "right"], "reviews": ["bad", "good"], "people": ["n", "y"]}[kind]
    assert config["data"]["class_names"] == names
    assert config["data"]["groups"] == "label,place"
    page = Path("run/report.html").read_text()
    assert f"{names[0]}, place" in page
    assert "<script>" not in page
    code, out, err = evenly("audit", "run", "--out", "look", "--top", "1", "--device", "cpu")
    assert (code, err) == (0, "")
    looked = Path("look/audit.html").read_text()
    assert "<script>poor" not in looked
    if kind == "reviews":
        assert "hardest and easiest test texts" in looked
        assert "&lt;script&gt;" in looked
        words = json.loads(Path("run/vocabulary.json").read_text())
        run, its_data, _ = reopen("run")
        assert list(run.model.vocabulary.words) == words
        assert words[int(run.model.encode(["superb"])[0, 0]) - 1] == "superb"
        assert its_data.test.inputs.dtype == torch.int64
        assert len(its_data.test.texts) == len(its_data.test)
    # the same command again reads back what is there
    before = Path("run/results.json").read_bytes()
    assert evenly("train", data, "--method", "pde", "--device", "cpu", "--out", "run", "--epochs", "12")[0] == 0
    assert Path("run/results.json").read_bytes() == before


def test_groups_are_named_on_the_command_line_and_in_python(evenly, tmp_path):
    data = reviews(tmp_path)
    settings = ("--epochs", "2", "--device", "cpu")
    code, _, err = evenly("train", data, "--groups", "place", "--out", "run", *settings)
    assert (code, err) == (0, "")
    assert len(json.loads(Path("run/results.json").read_text())["test"]["groups"]) == 2
    run, its_data, _ = reopen("run")
    assert its_data.group_names == ["place shop", "place web"]
    again = package.train(data=str(data), groups="place", epochs=2, device="cpu")
    assert again.results["test"]["groups"] == run.results["test"]["groups"]
    table = package.compare(
        data=str(data), methods=["erm", "useful"], seeds=1, groups="label,place", epochs=2, device="cpu",
        controls=False, out=tmp_path / "compared",
    )  # fmt: skip
    assert len(table.rows[0]["test"]["groups"]) == 4
    page = (tmp_path / "compared" / "report.html").read_text()
    assert "&lt;script&gt;" in page
    assert "<script>great" not in page
    assert its_data.train.evaluation_groups is None
    code, out, err = evenly("train", data, "--groups", "none", "--out", "none", *settings)
    assert (code, err) == (0, "")
    assert "worst group" not in out
    assert reopen("none")[1].train.groups is None


def test_a_file_that_moved_is_given_again_and_another_is_refused(evenly, tmp_path):
    data = people(tmp_path)
    assert evenly("train", data, "--epochs", "1", "--device", "cpu", "--out", "run")[0] == 0
    moved = data.rename(tmp_path / "persons.csv")
    code, _, err = evenly("audit", "run", "--top", "0", "--out", "look")
    assert code == 2
    assert "give that data as well" in err
    assert evenly("audit", "run", "--data", moved, "--top", "0", "--out", "look")[0] == 0
    moved.write_text(moved.read_text().replace(",y,", ",n,", 1))
    code, _, err = evenly("audit", "run", "--data", moved, "--top", "0", "--out", "other")
    assert code == 2
    assert "is not what run was trained on" in err


REFUSED = {
    "a group that is not there": (["--groups", "palce"], "called 'palce' in .*; there are: label, place"),
    "one of several joined by a plus": (["--groups", "place+city"], "called 'city' in .*; there are: label, place"),
    "a plus between what is no yes and no": (
        ["--groups", "label+place"],
        "column 'label' holds '.*' and makes no overlapping groups; give 0 and 1, or join it by a comma",
    ),
    "a split too small": (["-d", "validation=0.001"], "leaves the validation split empty"),
    "a group that validation lacks": (
        ["--select", "worst-group", "-d", "validation=0.04"],
        "has no validation example.*use --select worst-class",
    ),
    "a model of images": (["--model", "resnet18"], "resnet18 cannot read texts; use bag_of_words"),
    "another text column": (["-d", "text=comment"], "has no column 'comment' .found: 'text', 'place'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_one_line_and_leaves_nothing(evenly, tmp_path, case):
    options, message = REFUSED[case]
    code, out, err = evenly("train", reviews(tmp_path), "--out", "run", "--epochs", "1", "--device", "cpu", *options)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert re.search(message, err), err
    assert not Path("run").exists()


@pytest.mark.skipif(
    MADLIBS is None or not MADLIBS.is_file(), reason="needs EVENLY_DATA with text/bias_madlibs_77k.csv.gz"
)
def test_template_sentences_are_told_apart(evenly):
    code, _, err = evenly("train", MADLIBS, "--epochs", "1", "--device", "cpu", "--out", "run")
    assert (code, err) == (0, "")
    results = json.loads(Path("run/results.json").read_text())
    assert len(results["test"]["groups"]) == 12
    assert sum(results[part]["group_counts"][0] for part in ("train", "validation", "test")) > 0
    assert results["test"]["accuracy"] > 0.99


def test_the_way_out_of_an_image_that_cannot_be_read_can_be_typed(evenly, tmp_path):
    (photos(tmp_path) / "img" / "7.png").write_bytes(b"none")
    command = ("train", "photos", "--epochs", "1", "--device", "cpu", "--out", "run")
    code, _, err = evenly(*command)
    assert code == 2
    assert err.endswith("leave them out with -d skip_bad=true\n")
    for written in ("skip_bad=true", "skip_bad=True"):
        assert evenly(*command, "-d", written)[0] == 0


def test_a_second_run_goes_on_after_what_was_refused_in_its_folder(evenly, tmp_path):
    """The way out of a rule that cannot select is the same command with another rule."""
    rows = people(tmp_path).read_text().splitlines()
    parts = ["split"] + ["validation" if i % 3 == 0 and i % 5 else "train" for i in range(60)]
    Path("mine.csv").write_text("\n".join(f"{row},{part}" for row, part in zip(rows, parts, strict=True)) + "\n")
    command = ("train", "mine.csv", "--method", "useful", "--groups", "label,place", "--epochs", "2", "--out", "run")
    code, _, err = evenly(*command, "--select", "worst-group")
    assert (code, Path("run").exists()) == (2, False)
    assert "use --select worst-class" in err
    assert evenly(*command, "--select", "worst-class")[0] == 0
    code, _, err = evenly(*command, "--select", "average")
    assert (code, err) == (
        2,
        "evenly: run holds another run (its select is 'worst-class', not 'average'); choose another out or remove it\n",
    )
    code, _, err = evenly(*command, "--select", "worst-class", "--groups", "place")
    assert "(its groups are 'label,place', not 'place')" in err


def test_groups_that_are_named_twice_must_be_the_same(evenly, tmp_path):
    people(tmp_path)
    command = ("train", "people.csv", "--groups", "label,place", "--epochs", "1", "--out", "run")
    code, out, err = evenly(*command, "-d", "groups=label")
    assert (code, out) == (2, "")
    assert err == "evenly: groups are 'label,place' and, of the data, 'label'; name the columns once\n"
    assert evenly(*command, "-d", "bogus=1")[2].startswith(
        "evenly: no option of a table is called 'bogus'; there are: attributes, groups, "
    )
    assert not Path("run").exists()
    assert evenly(*command, "-d", "groups=label,place")[0] == 0
