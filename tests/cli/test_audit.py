"""`evenly audit`: runs and files of weights, one or two, and what it refuses before anything is written."""

import csv
import json
import re

import numpy as np
import pytest
import torch

from evenly.data import load
from evenly.files import read_json, sealed, write_json
from evenly.models import factory

QUICK = "--top 0 --samples 50 --device cpu"


@pytest.fixture
def runs(done, npz):
    """Runs one and pde on the same file, two on another."""
    for name, file, options in (("one", npz(), ""), ("pde", npz(), "--method pde -o warmup_epochs=1"),
                                ("two", npz("other.npz", y=np.arange(40) // 2 % 2), "")):  # fmt: skip
        done(f"train {file} --epochs 2 --batch-size 8 --device cpu --out {name} {options}")


def test_it_leaves_a_page_and_prints_what_it_found(done, refused, runs, tmp_path):
    out = done("audit one --top 2 --samples 50 --device cpu")
    assert "one (mlp by erm with sgd) is right on" in " ".join(out.split())
    assert "page: audits/one/audit.html" in out
    content = json.loads((tmp_path / "audits/one/audit.json").read_text())
    assert len(content["audits"][0]["spectrum"]["eigenvalues"]) == 2
    assert done("audit one --top 2 --samples 50 --device cpu") == out
    for option, was in (
        ("--top 0", "top is 2, not 0"), ("--rho 0.1", "rho is 0.05, not 0.1"), ("--seed 1", "seed is 0, not 1"),
        ("--samples 20", "samples is 50, not 20"), ("--split train", "split is None, not 'train'"),
    ):  # fmt: skip
        refused(
            f"audit one --top 2 --samples 50 --device cpu {option}",
            re.escape(f"holds the audit of something else (its {was}"),
        )


def remade(done, folder):
    """`evenly report` makes the page of an audit again, byte for byte, without model and data."""
    page = folder / "audit.html"
    first = page.read_bytes()
    page.unlink()
    assert "audit.html" in done(f"report {folder}")
    assert page.read_bytes() == first


def test_the_page_is_made_again_from_the_folder_alone(done, refused, npz, tmp_path):
    draw = np.random.default_rng(0)
    y = np.arange(120) % 2
    images = draw.integers(0, 120, (120, 3, 8, 8), dtype=np.uint8) + (60 * y[:, None, None, None]).astype(np.uint8)
    npz("images.npz", x=images, y=y, groups=np.arange(120) // 2 % 2)
    for name, rate in (("a", 0.01), ("b", 0.1)):
        settings = f"--model convnet --epochs 1 --lr {rate} --record forgetting=true --device cpu"
        done(f"train images.npz {settings} --out {name}")
    done("audit a --against b --top 2 --samples 40 --device cpu --out both")
    (tmp_path / "images.npz").unlink()
    for run in ("a", "b"):
        (tmp_path / run / "model.safetensors").unlink()
    remade(done, tmp_path / "both")
    page = (tmp_path / "both/audit.html").read_text()
    assert page.count("where the model looks") == 48
    assert "Times forgotten" in page
    content = read_json(tmp_path / "both/audit.json")
    del content["audits"][0]["overall"]
    write_json(tmp_path / "both/audit.json", sealed(content))
    refused("report both", "audit.json cannot be read .*lacks 'overall'.*; run `evenly audit` again")
    text = (tmp_path / "both/audit.json").read_text()
    (tmp_path / "both/audit.json").write_text(text.replace('"top": 2', '"top": 3'))
    for command in ("report both", "audit a --against b --top 3 --samples 40 --device cpu --out both"):
        refused(command, r"audit.json is damaged \(its content does not match its checksum\); remove it")


def test_every_example_is_listed_by_its_loss_with_the_row_it_is_from(done, runs, npz, tmp_path):
    done(f"audit one {QUICK}")
    with (tmp_path / "audits/one/examples.csv").open() as file:
        rows = list(csv.DictReader(file))
    (audit,) = json.loads((tmp_path / "audits/one/audit.json").read_text())["audits"]
    losses = [float(row["loss"]) for row in rows]
    assert len(rows) == audit["overall"]["n"]
    assert losses == sorted(losses, reverse=True)
    with np.load(tmp_path / "mine.npz") as file:
        arrays = dict(file)
    for row in rows:
        k = int(row["place"].removeprefix("row "))
        assert row["label"] == f"class {arrays['y'][k]}"
        probabilities = [float(row[f"probability of class {c}"]) for c in (0, 1)]
        assert sum(probabilities) == pytest.approx(1, abs=1e-4)
        assert -np.log(probabilities[arrays["y"][k]]) == pytest.approx(float(row["loss"]), rel=1e-3)
        assert row["prediction"] == f"class {int(np.argmax(probabilities))}"
        assert row["group"] == f"group {arrays['groups'][k]}"
    assert [each["place"] for each in audit["hardest"]] == [row["place"] for row in rows[:12]]
    assert rows[0]["place"] in (tmp_path / "audits/one/audit.html").read_text()


def test_two_models_are_compared(done, refused, runs, npz, tmp_path):
    answer = json.loads(done(f"audit one --against pde {QUICK} --out both --json"))
    assert [audit["name"].split()[0] for audit in answer["audits"]] == ["one", "pde"]
    assert "paired" in answer["compared"][0]
    assert (tmp_path / "both/audit.html").exists()
    refused(f"audit pde {QUICK} --out both", "holds the audit of something else")
    out = done(f"audit pde --against one/model.safetensors --model mlp {QUICK} --out mixed")  # on the run's data
    assert "pde (mlp by pde with sgd)" in out
    assert "mlp (model.safetensors)" in " ".join(out.split())


def test_a_file_of_weights_needs_its_model_and_data(done, refused, mine, tmp_path):
    data = load(tmp_path / mine)
    network = factory("mlp", data.train.example_shape, data.classes, 3)[0]()
    torch.save(network.state_dict(), tmp_path / "weights.pt")
    assert "mlp (weights.pt)" in done(f"audit weights.pt --model mlp --data {mine} {QUICK}")
    refused(f"audit weights.pt {QUICK} --out b", "give --model NAME and --data DATA")

    class Danger:
        def __reduce__(self):
            return (print, ("run",))

    (tmp_path / "text.pt").write_text("no weights")
    torch.save({"w": Danger()}, tmp_path / "danger.pt")
    for name in ("text.pt", "danger.pt"):
        refused(f"audit {name} --model mlp --data {mine} --out b", name)
    assert not (tmp_path / "b").exists()


def test_refusals(done, refused, runs, npz, tmp_path):
    file = "one/model.safetensors --model mlp --data"
    for command, message in (
        ("one --against one", "--against one is the same model"),
        ("one --against two", "the two models are of different data, mine and other"),
        ("one --split holdout", "--split must be one of train, validation, test, got 'holdout'"),
        ("one --samples 0", "samples"),
        ("one --rho -1", "rho"),
        ("one --top -2", "top"),
        ("one --top 100000000", "top"),
        ("one --model mlp", "--model is for a file of weights"),
        ("one --normalise data", "--normalise is for a file of weights"),
        ("one -d n=5", "-d is for a file of weights, and one is a run"),
        ("one --data other.npz", "the data given is not what one was trained on"),
        (f"{file} {npz('wide.npz', x=np.ones((40, 6)))}", "in the model"),
        (f"{file} {npz('more.npz', y=np.arange(40) % 3, groups=None)}", "in the model"),
        (f"mine.npz --model mlp --data {npz()}", "holds no weight of this"),
        ("nowhere", "there is no 'nowhere'; give a run's folder or a file of weights"),
        (".", "holds no run of evenly; give the folder"),
    ):
        refused(f"audit {command} --device cpu --out page", message)
        assert not (tmp_path / "page").exists()
    refused(["audit", "", "--out", "page"], "there is no ''; give a run's folder")
    refused(f"audit one {QUICK} --out two", "is not empty and holds no audit.json")


def test_data_that_moved_is_named(done, refused, runs, tmp_path):
    (tmp_path / "mine.npz").rename(tmp_path / "elsewhere.npz")
    refused(f"audit one {QUICK}", "trained on .*mine.npz, which is not there; give where it is now")
    done(f"audit one --data elsewhere.npz {QUICK}")


def test_predictions_alone_are_audited(done, refused, tmp_path):
    draw = np.random.default_rng(0)
    place, y = draw.integers(0, 2, 1000), np.arange(1000) % 2
    wrong = draw.random(1000) < np.where(place == 1, 0.5, 0.1)
    labels, names = np.array(["no", "yes"])[y], np.array(["no", "yes"])[np.where(wrong, 1 - y, y)]
    cells = [f"{label},{x:.3f},{p}" for label, x, p in zip(labels, draw.normal(size=1000), place, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["label,x,place", *cells]))
    (tmp_path / "p.csv").write_text("\n".join(["prediction", *names]))
    out = " ".join(done("audit p.csv --data t.csv -d attributes=place").split())
    assert "slices searched, the clearest failure is place 1:" in out
    assert "To raise" in out
    page = (tmp_path / "audits/p/audit.html").read_text()
    assert all(f'id="{anchor}"' in page for anchor in ("groups", "slices", "confusion", "rates"))
    assert 'id="curvature"' not in page
    remade(done, tmp_path / "audits/p")
    (audit,) = json.loads((tmp_path / "audits/p/audit.json").read_text())["audits"]
    assert audit["slices"]["slices"][0]["columns"] == ["place"]
    assert audit["importance"] is None

    (tmp_path / "short.csv").write_text("prediction\nyes\n")
    (tmp_path / "odd.csv").write_text("\n".join(["prediction", *["maybe"] * 1000]))
    for command, message in (
        ("p.csv", "p.csv has predictions; give the data that they are of with --data DATA"),
        ("t.csv --data t.csv", "no column 'prediction'"),
        ("short.csv --data t.csv", "there are 1 predictions for 200 test examples"),
        ("odd.csv --data t.csv", "'maybe', which is no class of the data; there are: no, yes"),
        ("p.csv --data t.csv --model mlp", "--model is for a file of weights"),
        ("p.csv --data t.csv --top 3", "top 3 needs the network"),
    ):
        refused(f"audit {command} --out page", message)
        assert not (tmp_path / "page").exists()


def test_an_audit_of_an_earlier_version_is_read(done, runs, tmp_path):
    done(f"audit one {QUICK}")
    content = read_json(tmp_path / "audits/one/audit.json")
    for name in ("slices", "clusters", "confusion", "calibration", "rates"):
        del content["audits"][0][name]
    write_json(tmp_path / "audits/one/audit.json", sealed(content))
    done("report audits/one")
    assert 'id="groups"' in (tmp_path / "audits/one/audit.html").read_text()
    assert 'id="slices"' not in (tmp_path / "audits/one/audit.html").read_text()
