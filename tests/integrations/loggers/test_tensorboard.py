"""TensorBoard reads back every number of the metrics, however often and whenever a run was logged."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest

import evenly
from evenly.errors import EvenlyWarning
from evenly.experiment.request import Source
from evenly.experiment.work import RunWork
from evenly.integrations.loggers import log_folder
from evenly.parallel.graph import Began, Finished
from evenly.settings import Execution

pytest.importorskip("tensorboard")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.plugins.hparams import metadata

from evenly.integrations.loggers.tensorboard import FILE


def scalars(folder):
    """What TensorBoard reads: values by tag and step, none of them twice."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    found = {}
    for tag in events.Tags()["scalars"]:
        points = events.Scalars(tag)
        found[tag] = {point.step: point.value for point in points}
        assert len(found[tag]) == len(points), tag
    return found


def without_times(folder):
    events = list(LegacyEventFileLoader(str(folder / FILE)).Load())
    for event in events:
        event.ClearField("wall_time")
    return events


@pytest.fixture
def has_all(metrics, path_of):
    """Whether TensorBoard has every number of the metrics and, beside the results, no other."""

    def check(folder):
        found = {path_of(tag): steps for tag, steps in scalars(folder).items() if not tag.startswith("results/")}
        wanted = metrics(folder)
        assert found.keys() == wanted.keys()
        for path, steps in wanted.items():
            assert found[path] == {epoch: np.float32(value) for epoch, value in steps.items()}, path
        return sum(map(len, wanted.values()))

    return check


def test_every_number_is_there_and_a_second_call_adds_nothing(folder, has_all):
    (first,) = log_folder(folder, "tensorboard")
    count = has_all(folder)
    assert count > 80
    results = [steps for tag, steps in scalars(folder).items() if tag.startswith("results/")]
    assert first.added == count + len(results)
    before = (folder / FILE).read_bytes()
    assert log_folder(folder, "tensorboard")[0].added == 0
    assert (folder / FILE).read_bytes() == before


def test_a_live_log_is_the_log_made_afterwards(folder, toy_data, tmp_path, has_all):
    run = {"model": "mlp", "method": "useful", "epochs": 4, "device": "cpu", "record": {"l1": True, "every": 2}}
    evenly.train(toy_data, **run, out=tmp_path / "b", log="tensorboard", progress=lambda share, note: None)
    has_all(tmp_path / "b")
    before = (tmp_path / "b" / FILE).read_bytes()
    assert log_folder(tmp_path / "b", "tensorboard")[0].added == 0
    assert (tmp_path / "b" / FILE).read_bytes() == before
    log_folder(folder, "tensorboard")
    skipped = {"results/seconds"}
    mine, theirs = scalars(tmp_path / "b"), scalars(folder)
    assert {tag: mine[tag] for tag in mine.keys() - skipped} == {tag: theirs[tag] for tag in theirs.keys() - skipped}


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_a_run_that_went_on_adds_its_new_rows_only(folder, cut, rows, has_all):
    go_on = cut(folder, rows)
    log_folder(folder, "tensorboard")
    before = (folder / FILE).read_bytes()
    go_on()
    (logged,) = log_folder(folder, "tensorboard")
    assert logged.added > 0
    assert (folder / FILE).read_bytes().startswith(before)
    has_all(folder)


def test_an_interrupted_call_is_completed_by_the_next(folder, has_all):
    log_folder(folder, "tensorboard")
    whole, events = (folder / FILE).read_bytes(), without_times(folder)
    for size in (0, 5, len(whole) // 3, len(whole) // 2, len(whole) - 1):
        (folder / FILE).write_bytes(whole[:size])
        log_folder(folder, "tensorboard")
        assert without_times(folder) == events
    (folder / FILE).write_bytes(whole[:900] + b"\0" * 40 + whole[940:])
    log_folder(folder, "tensorboard")
    has_all(folder)
    assert without_times(folder) == events


def test_rows_that_were_computed_anew_take_the_place_of_the_old_ones(folder, line_of, has_all):
    rows = (folder / "metrics.jsonl").read_bytes()
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(line_of(stage="final", epoch=5, train_loss=9.0))
        file.write(line_of(stage="final", epoch=6, train_loss=9.0))
    log_folder(folder, "tensorboard")
    (folder / "metrics.jsonl").write_bytes(rows + line_of(stage="final", epoch=5, train_loss=8.0))
    log_folder(folder, "tensorboard")
    has_all(folder)
    assert scalars(folder)["final/train_loss"][5] == 8.0


def test_a_live_run_that_is_stopped_and_goes_on_has_each_row_once(folder, toy_data, tmp_path, has_all):
    def stop(row):
        if (row["stage"], row["epoch"]) == ("final", 2):
            raise KeyboardInterrupt

    run = {"model": "mlp", "method": "useful", "epochs": 4, "device": "cpu", "log": "tensorboard"}
    run |= {"record": {"l1": True, "every": 2}, "out": tmp_path / "b", "progress": lambda share, note: None}
    with pytest.raises(KeyboardInterrupt):
        evenly.train(toy_data, **run, callback=stop)
    assert scalars(tmp_path / "b")["final/train_loss"].keys() == {1, 2}
    (tmp_path / "b" / "checkpoint" / "final.pt").unlink()  # as if the row had run ahead of its checkpoint
    evenly.train(toy_data, **run)
    has_all(tmp_path / "b")
    log_folder(folder, "tensorboard")
    assert scalars(tmp_path / "b")["final/train_loss"] == scalars(folder)["final/train_loss"]


def test_a_run_under_way_may_be_logged_from_elsewhere_meanwhile(toy_data, tmp_path, has_all):
    added = []

    def also(row):
        added.append(log_folder(tmp_path / "b", "tensorboard")[0].added)
        with (tmp_path / "b" / FILE).open("ab") as file:
            file.write(b"another process is writing")

    evenly.train(
        toy_data, model="mlp", epochs=4, device="cpu", log="tensorboard", out=tmp_path / "b", callback=also,
        progress=lambda share, note: None,
    )  # fmt: skip
    assert len(added) == 4
    has_all(tmp_path / "b")
    assert log_folder(tmp_path / "b", "tensorboard")[0].added == 0


def test_the_settings_are_in_the_table_of_hyperparameters(folder):
    log_folder(folder, "tensorboard")
    events = EventAccumulator(str(folder))
    events.Reload()
    contents = events.PluginTagToContent("hparams")
    start = metadata.parse_session_start_info_plugin_data(contents[metadata.SESSION_START_INFO_TAG])
    assert start.hparams["method"].string_value == "useful"
    assert start.hparams["epochs"].number_value == 4
    assert "factor=2" in start.hparams["method_options"].string_value
    experiment = metadata.parse_experiment_plugin_data(contents[metadata.EXPERIMENT_TAG])
    columns = {info.name for info in experiment.hparam_infos}
    assert columns == start.hparams.keys() | {"budget", "control_of", "method_options", "model_options", "data_options"}
    assert {info.name.tag for info in experiment.metric_infos} - {"results/validation/worst_group"} <= set(
        events.Tags()["scalars"]
    ) | {"results/test/worst_group"}
    assert metadata.SESSION_END_INFO_TAG in contents


def test_large_numbers_do_not_stop_it(folder, cut, line_of):
    cut(folder, 0)
    (folder / "metrics.jsonl").write_bytes(line_of(stage="final", epoch=2**40, large=1e300, whole=2**62, small=1e-300))
    log_folder(folder, "tensorboard")
    assert log_folder(folder, "tensorboard")[0].added == 0
    found = {tag: next(iter(steps.items())) for tag, steps in scalars(folder).items()}
    assert found == {"final/large": (2**40, np.inf), "final/whole": (2**40, 2.0**62), "final/small": (2**40, 0)}


def test_a_comparison_logs_every_run_and_tells_its_callback_which(toy_data, tmp_path, has_all, monkeypatch):
    monkeypatch.setattr("evenly.report.pages.write_report", lambda *arguments, **options: None)
    received = []
    evenly.compare(
        toy_data, model="mlp", methods=["erm", "useful"], seeds=1, epochs=2, device="cpu", out=tmp_path / "c",
        log="tensorboard", callback=lambda row, plan: received.append((plan.folder_name, row["stage"], row["epoch"])),
    )  # fmt: skip
    runs = sorted((tmp_path / "c/runs").iterdir())
    assert len(runs) == 3
    rows = []
    for run in runs:
        assert has_all(run) > 10
        assert "results/test/accuracy" in scalars(run)
        points = scalars(run)
        rows += [(run.name, stage, epoch) for stage in ("early", "final")
                 for epoch in points.get(f"{stage}/train_loss", ())]  # fmt: skip
    assert sorted(received) == sorted(rows)
    assert [logged.added for logged in log_folder(tmp_path / "c", "tensorboard")] == [0, 0, 0]


def test_a_finished_run_of_a_comparison_whose_log_is_lost_is_logged_again(toy_data, tmp_path, monkeypatch):
    monkeypatch.setattr("evenly.report.pages.write_report", lambda folder, **_: (folder / "report.html").touch())
    run = {"model": "mlp", "methods": ["erm"], "seeds": 1, "epochs": 2, "device": "cpu", "out": tmp_path / "c"}
    evenly.compare(toy_data, **run)
    (folder,) = (tmp_path / "c/runs").iterdir()
    assert not (folder / FILE).exists()
    evenly.compare(toy_data, **run, log="tensorboard")
    assert scalars(folder)["final/train_loss"].keys() == {1, 2}


def test_a_run_on_ray_is_logged_where_it_was_asked_for_once_it_is_over(folder, has_all):
    out = folder.parent / "c"
    (out / "runs").mkdir(parents=True)
    folder.rename(out / "runs/a")
    work = RunWork(Source(None, {}), Execution(engine="ray", log="tensorboard"), out)
    node = SimpleNamespace(id="a", folder_name="a")
    work.log(Began("a"), node)
    assert not (out / "runs/a" / FILE).exists()
    work.log(Finished("a", None), node)
    has_all(out / "runs/a")


def test_a_log_that_cannot_be_written_does_not_stop_the_run(toy_data, tmp_path, monkeypatch):
    def fails(self, run):
        raise ConnectionError("the server is gone")

    monkeypatch.setattr("evenly.integrations.loggers.tensorboard.TensorBoardLogger.add", fails)
    run = {"model": "mlp", "epochs": 3, "device": "cpu", "out": tmp_path / "b", "progress": lambda share, note: None}
    with pytest.warns(EvenlyWarning, match="the server is gone.*goes on.*`evenly log .*b --to tensorboard`") as warned:
        evenly.train(toy_data, **run, log="tensorboard")
    assert len(warned) == 1
    assert (tmp_path / "b/results.json").exists()


def test_a_folder_of_runs_is_not_taken_for_more_by_its_logs(folder):
    log_folder(folder, "tensorboard")
    shutil.copytree(folder, folder.parent / "b")
    assert [logged.added for logged in log_folder(folder.parent, "tensorboard")] == [0, 0]
    assert evenly.load(folder).results.method == "useful"
