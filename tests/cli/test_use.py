"""`evenly predict`, `evenly export` and `evenly report`: what is done with a finished run, from its folder alone."""

import csv
import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import evenly as package
from evenly.runs.tables import BOOKTABS

TABLE = "age,income,label\n" + "".join(f"{40 + 20 * (i % 2)}.{i},{900 + i},{'ny'[i % 2]}\n" for i in range(40))


@pytest.fixture
def run(done, tmp_path):
    """A run on a table, moved elsewhere; the table is deleted."""
    (tmp_path / "people.csv").write_text(TABLE)
    done("train people.csv --epochs 8 --device cpu --out first")
    (tmp_path / "first").rename(tmp_path / "run")
    (tmp_path / "people.csv").unlink()
    return package.load(tmp_path / "run")


def test_predict_writes_a_row_for_each_example(run, done, tmp_path):
    (tmp_path / "new.csv").write_text("income,age\n905,41\n930,61\n")  # no labels, columns in another order
    out = done("predict run new.csv --out deep/new.csv")
    rows = list(csv.DictReader((tmp_path / "deep/new.csv").read_text().splitlines()))
    assert list(rows[0]) == ["prediction", "probability of n", "probability of y"]
    expected = run.predict([{"age": 41.0, "income": 905.0}, {"age": 61.0, "income": 930.0}])
    assert [row["prediction"] for row in rows] == list(expected.names)
    assert [float(row["probability of y"]) for row in rows] == expected.probabilities[:, 1].tolist()
    assert out.startswith("2 examples: ")
    assert "accuracy" not in out
    (tmp_path / "known.csv").write_text(TABLE)
    out = done("predict run known.csv")
    rows = list(csv.DictReader((tmp_path / "predictions.csv").read_text().splitlines()))
    share = np.mean([row["label"] == row["prediction"] for row in rows])
    assert f"{share:.1%}" in out
    assert json.loads(done("predict run known.csv --json"))["names"] == [row["prediction"] for row in rows]


def test_predict_takes_arrays_with_and_without_labels(done, npz, tmp_path):
    done(f"train {npz()} --epochs 2 --batch-size 8 --out run")
    x = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)
    np.savez(tmp_path / "new.npz", x=x)
    assert "5 examples" in done("predict run new.npz")
    groups = np.array([0, 0, 1, 1, 1])
    np.savez(tmp_path / "known.npz", x=x, y=np.array([0, 1, 0, 1, 0]), groups=groups)
    assert "worst group" in done("predict run known.npz")


def test_predict_refuses_in_a_line_and_writes_nothing(run, refused, snapshot, tmp_path):
    (tmp_path / "new.csv").write_text("income\n905\n")
    (tmp_path / "known.csv").write_text(TABLE)
    before = snapshot()
    for command, message in (
        ("run nowhere.csv", "there is no file or folder 'nowhere.csv'; give a csv file"),
        ("run new.csv", "age"),
        ("nowhere new.csv", "nowhere does not exist; give the folder"),
        ("new.csv run", "run is the run and new.csv the data; write evenly predict run new.csv$"),
        ("run known.csv --out known.csv", "known.csv is the data itself; give another file as --out"),
    ):
        refused(f"predict {command}", message)
    assert snapshot() == before


def test_export_writes_weights_or_a_whole_network(run, done, refused, tmp_path):
    assert done("export run") == "run.safetensors\n"
    weights = load_file(tmp_path / "run.safetensors")
    assert all(torch.equal(weights[name], value) for name, value in run.model.state_dict().items())
    refused("export nowhere --to onnx", "nowhere does not exist")
    refused("export run --to onnx --out x.safetensors", "would be onnx; give --to safetensors$")
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'evenly[onnx]'")
    assert done("export run --to onnx --out deep/model.onnx") == "deep/model.onnx\n"
    session = onnxruntime.InferenceSession(tmp_path / "deep/model.onnx")
    x = torch.randn(3, 2)
    (outputs,) = session.run(None, {"input": x.numpy()})
    assert np.abs(outputs - run.model(x).detach().numpy()).max() < 1e-5


def test_report_makes_equal_pages_again(done, refused, npz, tmp_path):
    done(f"train {npz()} --method useful --epochs 2 --batch-size 8 --out run")
    done(f"compare {npz()} --methods erm,pde --epochs 2 --batch-size 8 --seeds 2 --out table")
    (tmp_path / "mine.npz").unlink()
    before = {path: path.read_bytes() for path in tmp_path.rglob("report.html")}
    assert len(before) > 5
    for path in before:
        path.unlink()
    assert done("report run") == "page: run/report.html\n"
    assert done("report table") == "page: table/report.html\n"
    assert {path: path.read_bytes() for path in tmp_path.rglob("report.html")} == before
    refused("report nowhere", "nowhere does not exist")
    assert done("report table --csv t.csv --latex t.tex") == "t.csv\nt.tex\n"
    assert done("report table --csv -") == (tmp_path / "t.csv").read_text()
    assert done("report table --latex - --csv t.csv --per run").startswith(f"t.csv\n{BOOKTABS}\n")
    assert (tmp_path / "t.csv").read_text() == package.load_comparison(tmp_path / "table").to_csv()
    for command, message in (
        ("table --csv - --latex -", "--csv and --latex cannot both be printed; give one of them a file"),
        ("table --csv t.tex", "t.tex exists and holds no table of evenly; give another file"),
        ("table --latex table", "table exists and holds no table of evenly; give another file"),
        ("run --csv -", "run holds no finished comparison"),
    ):
        refused(f"report {command}", message)


def test_report_reads_a_folder_copied_elsewhere(run, done, tmp_path):
    shutil.copytree(tmp_path / "run", tmp_path / "elsewhere/run")
    done("report elsewhere/run")
    assert (tmp_path / "elsewhere/run/report.html").read_bytes() == (tmp_path / "run/report.html").read_bytes()


def test_damaged_results_are_told_in_one_wording_by_every_verb(done, refused, mine, tmp_path):
    quick = "--epochs 2 --batch-size 8"
    done(f"train {mine} --out run {quick}")
    done(f"compare {mine} --methods erm --seeds 1 --out table {quick}")
    for folder, way_out, commands in (
        ("run", "copy the run's folder again, or remove it and train again$",
         ("report run", "export run", f"predict run {mine}", f"train {mine} --out run {quick}")),
        ("table", "remove it and compare again, which reads the runs$",
         ("report table", "report table --csv -", f"compare {mine} --methods erm --seeds 1 --out table {quick}")),
    ):  # fmt: skip
        results = tmp_path / folder / "results.json"
        results.write_text(results.read_text().replace("erm", "era"))
        for command in commands:
            refused(command, rf"results.json is damaged \(its content does not match its checksum\); {way_out}")
