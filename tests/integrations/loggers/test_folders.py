"""Which runs of a folder are logged, and what is refused in one line."""

import json
import shutil

import pytest

import evenly
from evenly.integrations.loggers import log_folder
from evenly.integrations.loggers.folders import folders_in, read_run


def compared(folder, kind="compare"):
    """A comparison, or an improvement, whose first run this is."""
    out = folder.parent / "compared"
    shutil.copytree(folder, out / "runs" / "a")
    (out / "config.json").write_text(json.dumps({kind: "toy"}))
    return out


def test_a_comparison_has_its_runs_and_those_of_its_search_in_one_group(folder):
    out = compared(folder)
    shutil.copytree(folder, out / "search/runs/b")
    (out / "runs/waiting").mkdir()
    assert folders_in(out) == [out / "search/runs/b", out / "runs/a"]
    assert {read_run(run).group for run in folders_in(out)} == {"compared"}
    assert folders_in(out.parent) == [folder, *folders_in(out)]
    assert read_run(folder).group == ""
    assert read_run(folder).id != read_run(out / "runs/a").id  # it is in the table of its comparison, too


def test_an_improvement_has_its_runs_and_the_model_that_it_hands_back(folder):
    out = compared(folder, "improve")
    shutil.copytree(folder, out / "best")
    assert folders_in(out) == [out / "runs/a", out / "best"]
    assert {read_run(run).group for run in folders_in(out)} == {"compared"}


def test_a_run_is_the_same_wherever_its_folder_lies(folder, tmp_path):
    id = read_run(folder).id
    folder.rename(tmp_path / "elsewhere")
    assert read_run(tmp_path / "elsewhere").id == id


def test_a_run_under_way_is_read_up_to_the_line_that_is_being_written(folder, cut):
    cut(folder, 5)
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b'{"stage": "final", "ep')
    run = read_run(folder)
    assert len(run.rows) == 5
    assert run.results is None


def test_a_run_without_metrics_has_no_rows(folder, cut):
    cut(folder, 0)
    assert read_run(folder).rows == ()
    (folder / "metrics.jsonl").unlink()
    assert read_run(folder).rows == ()


@pytest.mark.parametrize("line", [b"\0\0\n", b"[]\n", b'{"stage": "final", "epoch": 1}\n', b'{"a": 1'])
def test_damaged_metrics_are_refused_in_one_line(folder, line, refused_call):
    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_bytes(b"".join([*lines[:3], line, *lines[3:]]))
    refused_call(r"metrics\.jsonl is damaged \(line 4: .*\); copy the run's folder again", read_run, folder)
    (folder / "metrics.jsonl").write_bytes(b"".join([*lines, line]))  # nobody writes into a finished run
    refused_call(r"damaged \(line 9: ", read_run, folder)


def test_a_row_without_an_epoch_is_refused(folder, line_of, refused_call):
    (folder / "metrics.jsonl").write_bytes(line_of(stage="final"))
    refused_call(r"damaged \(line 1: 'epoch'\)", read_run, folder)


def test_folders_without_runs_are_refused_in_one_line(tmp_path, refused_call):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    refused_call("empty holds no run or comparison; give", folders_in, tmp_path / "empty")
    refused_call("file is a file; give", folders_in, tmp_path / "file")
    refused_call("nowhere does not exist; give", folders_in, tmp_path / "nowhere")
    refused_call("no logger is called 'tensorbord'; did you mean 'tensorboard'", log_folder, tmp_path, "tensorbord")


def test_a_log_needs_a_folder(toy_data, refused_call):
    for call in (evenly.train, evenly.compare):
        refused_call("log 'tensorboard' is made from .*; give a folder as out", call, toy_data, log="tensorboard")
        refused_call("log must be one of tensorboard, wandb, mlflow, got 'x'", call, toy_data, log="x", out="b")


def test_a_callback_gets_each_row_and_may_change_it(toy_data):
    rows = []

    def take(row):
        rows.append(dict(row))
        row.clear()

    run = evenly.train(toy_data, model="mlp", method="useful", epochs=3, device="cpu", callback=take)
    assert [(row["stage"], row["epoch"]) for row in rows[-3:]] == [("final", 1), ("final", 2), ("final", 3)]
    assert rows[0]["stage"] == "early"
    assert rows[-3:] == run.history


def test_a_callback_that_cannot_be_called_where_it_is_needed_is_refused(toy_data, refused_call):
    refused_call("callback must be a function of a row .*, got 3", evenly.train, toy_data, callback=3)
    for engine in ({"jobs": 2}, {"engine": "ray"}):
        words = "callback cannot be sent to the processes .*; give a function of a module"
        refused_call(words, evenly.compare, toy_data, callback=lambda row, plan: None, **engine)
