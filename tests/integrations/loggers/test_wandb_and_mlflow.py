"""W&B and MLflow: against stand-ins of the few calls that are used, and against the libraries where they are there."""

import importlib
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import evenly
from evenly.errors import EvenlyWarning
from evenly.integrations.loggers import log_folder
from evenly.integrations.loggers.folders import read_run


class MlflowError(Exception):
    """Stands for MlflowException."""


class Store:
    """A tracking store as MLflow's file store is: a metric that is logged twice is there twice."""

    def __init__(self):
        self.experiments, self.runs, self.history, self.requests = {}, {}, {}, []
        self.fails_after = None

    def get_experiment_by_name(self, name):
        return SimpleNamespace(experiment_id=self.experiments[name]) if name in self.experiments else None

    def create_experiment(self, name):
        self.experiments[name] = str(len(self.experiments))
        return self.experiments[name]

    def search_runs(self, experiments, filter_string, max_results):
        key, value = re.fullmatch(r"tags\.`([^`]+)` = '([^']+)'", filter_string).groups()
        return [run for run in self.runs.values() if run.data.tags.get(key) == value][:max_results]

    def create_run(self, experiment, tags, run_name):
        info = SimpleNamespace(run_id=f"run{len(self.runs)}", status="RUNNING", run_name=run_name)
        self.runs[info.run_id] = SimpleNamespace(info=info, data=SimpleNamespace(tags=tags, params={}, metrics={}))
        return self.runs[info.run_id]

    def log_batch(self, run_id, metrics=(), params=()):
        assert len(metrics) <= 1000
        assert len(params) <= 100
        if self.fails_after is not None and len(self.requests) >= self.fails_after:
            raise MlflowError("the server is gone\nand more")
        self.requests.append((len(metrics), len(params)))
        data = self.runs[run_id].data
        for param in params:
            assert param.key not in data.params
            assert isinstance(param.value, str)
            data.params[param.key] = param.value
        for metric in metrics:
            assert re.match(r"^[/\w.\- ]+$", metric.key)
            data.metrics[metric.key] = metric.value
            self.history.setdefault((run_id, metric.key), []).append(metric)

    def get_metric_history(self, run_id, key):
        return self.history[run_id, key]

    def set_terminated(self, run_id, status):
        assert self.runs[run_id].info.status == "RUNNING"
        self.runs[run_id].info.status = status

    def has(self, run_id):
        """Values by tag and step, none of them twice."""
        found = {(metric.key, metric.step): metric.value for (id, _), several in self.history.items() if id == run_id
                 for metric in several}  # fmt: skip
        assert len(found) == sum(len(several) for (id, _), several in self.history.items() if id == run_id)
        return found


def module(monkeypatch, name, **content):
    made = ModuleType(name)
    vars(made).update(content)
    monkeypatch.setitem(sys.modules, name, made)
    return made


def import_anew(monkeypatch, name):
    """Import the module of a logger with the stand-in, and forget it afterwards."""
    full = f"evenly.integrations.loggers.{name}"
    monkeypatch.delitem(sys.modules, full, raising=False)
    monkeypatch.setitem(sys.modules, full, importlib.import_module(full))


@pytest.fixture
def store(monkeypatch):
    store = Store()
    entity = lambda *names: lambda *values: SimpleNamespace(**dict(zip(names, values, strict=True)))  # noqa: E731
    module(monkeypatch, "mlflow", MlflowClient=lambda: store, get_tracking_uri=lambda: "file:store")
    entities = {"Metric": entity("key", "value", "timestamp", "step"), "Param": entity("key", "value")}
    module(monkeypatch, "mlflow.entities", **entities)
    module(monkeypatch, "mlflow.exceptions", MlflowException=MlflowError)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    import_anew(monkeypatch, "mlflow")
    return store


def wanted(folder):
    return {(point.tag, point.step): point.value for point in read_run(folder).points}


def test_mlflow_has_every_point_once(folder, store, cut):
    go_on = cut(folder, 5)
    (first,) = log_folder(folder, "mlflow")
    (run,) = store.runs.values()
    assert (run.info.status, run.info.run_name) == ("RUNNING", "a")
    assert store.has("run0") == wanted(folder)
    go_on()
    (second,) = log_folder(folder, "mlflow")
    assert store.has("run0") == wanted(folder)
    assert first.added + second.added == len(wanted(folder))
    assert run.info.status == "FINISHED"
    requests = len(store.requests)
    (third,) = log_folder(folder, "mlflow")
    assert (third.added, len(store.requests), len(store.runs)) == (0, requests, 1)
    assert run.data.params["method"] == "useful"
    assert run.data.params["method_options/factor"] == "2"


def test_an_interrupted_call_to_mlflow_is_completed_by_the_next(folder, store, monkeypatch, refused_call):
    monkeypatch.setattr("evenly.integrations.loggers.mlflow.METRICS", 7)
    store.fails_after = 5
    refused_call(r"could not be logged to mlflow \(MlflowError: the server is gone and more\); run the same command",
                 log_folder, folder, "mlflow")  # fmt: skip
    assert 0 < len(store.has("run0")) < len(wanted(folder))
    store.fails_after = None
    log_folder(folder, "mlflow")
    assert store.has("run0") == wanted(folder)


def test_a_live_run_in_mlflow_has_each_point_once(toy_data, tmp_path, store):
    def stop(row):
        if row["epoch"] == 3:
            raise KeyboardInterrupt

    run = {"model": "mlp", "epochs": 4, "device": "cpu", "out": tmp_path / "b", "progress": lambda share, note: None}
    with pytest.raises(KeyboardInterrupt):
        evenly.train(toy_data, **run, log="mlflow", callback=stop)
    assert store.runs["run0"].info.status == "RUNNING"
    evenly.train(toy_data, **run, log="mlflow")
    assert store.has("run0") == wanted(tmp_path / "b")
    assert store.runs["run0"].info.status == "FINISHED"


def test_a_store_that_cannot_be_used_is_refused_before_anything_is_trained(toy_data, store, tmp_path, refused_call):
    def fails(name):
        raise MlflowError("the file store is in maintenance mode. Please migrate")

    store.get_experiment_by_name = fails
    words = r"MLflow's store file:store cannot be used \(the file store is in maintenance mode\); set MLFLOW_TRACKING"
    refused_call(words, evenly.train, toy_data, model="mlp", log="mlflow", out=tmp_path / "b")
    assert not (tmp_path / "b").exists()


class Server:
    """Stands for wandb: the steps of each run; offline it writes folders and answers nothing."""

    Error = type("Error", (Exception,), {})
    Settings = SimpleNamespace

    def __init__(self, offline):
        self.offline, self.logged_in, self.runs, self.inits = offline, True, {}, []
        self.fails_at = None

    def setup(self):
        return SimpleNamespace(settings=SimpleNamespace(mode="offline" if self.offline else "online", project=None))

    def login(self):
        return self.logged_in

    def init(self, **arguments):
        assert (arguments["project"], arguments["resume"], arguments["reinit"]) == ("evenly", "allow", "create_new")
        self.inits.append(arguments)
        kind = "offline-run" if self.offline else "run"
        folder = Path(arguments["dir"]) / "wandb" / f"{kind}-2026_{len(self.inits)}-{arguments['id']}"
        (folder / "files").mkdir(parents=True)
        content = {"history": {}, "summary": {}, "config": {}}
        if not self.offline:
            content = self.runs.setdefault(arguments["id"], content)
        else:
            self.runs[folder.name] = content
        content["config"] |= arguments["config"]
        return WandbRun(self, folder, content)


class WandbRun:
    def __init__(self, server, folder, content):
        self.server, self.dir, self.content = server, str(folder / "files"), content
        self.summary = content["summary"]
        self.step = max(content["history"], default=-1) + 1
        self.axes = {}

    @property
    def url(self):
        assert not self.server.offline
        return "https://server/run"

    def define_metric(self, name, step_metric):
        assert name not in self.axes
        self.axes[name] = step_metric

    def log(self, values, step):
        if self.server.fails_at == step:
            raise self.server.Error("the server is gone")
        assert step >= self.step  # it would be dropped
        self.step = step
        self.content["history"][step] = values
        self.summary |= values

    def finish(self):
        self.content["finished"] = True


@pytest.fixture(params=["online", "offline"])
def server(request, monkeypatch):
    server = Server(request.param == "offline")
    names = ("Error", "Settings", "setup", "login", "init")
    module(monkeypatch, "wandb", **{name: getattr(server, name) for name in names})
    import_anew(monkeypatch, "wandb")
    return server


def sent(server, folder):
    """What W&B has of a run: in its one offline folder where it is offline."""
    if not server.offline:
        return server.runs[read_run(folder).id]
    (only,) = (folder / "wandb").glob("offline-run-*")
    return server.runs[only.name]


def check_sent(server, folder):
    content, run = sent(server, folder), read_run(folder)
    rows = [{point.tag: point.value for point in row.points} for row in run.rows]
    epochs = [{f"{row.stage}/epoch": row.epoch} for row in run.rows]
    assert content["history"] == {k: rows[k - 1] | epochs[k - 1] for k in range(1, len(rows) + 1)}
    results = {point.tag: point.value for point in run.results or ()}
    assert results.items() <= content["summary"].items()
    assert content["config"]["method_options"]["factor"] == 2


def test_wandb_has_every_row_once(folder, server, cut):
    go_on = cut(folder, 5)
    (first,) = log_folder(folder, "wandb")
    check_sent(server, folder)
    go_on()
    (second,) = log_folder(folder, "wandb")
    check_sent(server, folder)
    if not server.offline:
        assert first.added + second.added == len(wanted(folder))
    inits = len(server.inits)
    assert log_folder(folder, "wandb")[0].added == 0
    assert len(server.inits) == inits


def test_an_interrupted_call_to_wandb_is_completed_by_the_next(folder, server, refused_call):
    server.fails_at = 4
    refused_call("could not be logged to wandb .*the server is gone", log_folder, folder, "wandb")
    server.fails_at = None
    log_folder(folder, "wandb")
    check_sent(server, folder)
    assert sent(server, folder)["finished"]


def test_a_live_run_in_wandb_has_each_row_once_though_the_server_was_away(toy_data, tmp_path, server):
    def stop(row):
        server.fails_at = 3 if row["epoch"] < 3 else None
        if row["epoch"] == 4:
            raise KeyboardInterrupt

    run = {"model": "mlp", "method": "useful", "epochs": 5, "device": "cpu", "out": tmp_path / "b", "log": "wandb"}
    run["progress"] = lambda share, note: None
    with pytest.raises(KeyboardInterrupt), pytest.warns(EvenlyWarning, match="the server is gone"):
        evenly.train(toy_data, **run, callback=stop)
    server.fails_at = None
    evenly.train(toy_data, **run)
    check_sent(server, tmp_path / "b")


def test_offline_rows_that_were_uploaded_are_not_written_again(folder, server, cut):
    if not server.offline:
        pytest.skip("there is nothing to upload")
    go_on = cut(folder, 5)
    log_folder(folder, "wandb")
    (uploaded,) = (folder / "wandb").glob("offline-run-*")
    (uploaded / "run.wandb.synced").touch()
    go_on()
    log_folder(folder, "wandb")
    assert [sorted(run["history"]) for run in server.runs.values()] == [[1, 2, 3, 4, 5], [6, 7, 8]]
    assert log_folder(folder, "wandb")[0].added == 0


def test_wandb_without_a_login_is_refused_in_one_line(folder, server, refused_call):
    server.logged_in = server.offline
    if server.offline:
        log_folder(folder, "wandb")
    else:
        refused_call(
            r"Weights & Biases cannot be used \(no login\); run `wandb login`, or", log_folder, folder, "wandb"
        )


def test_the_runs_of_a_comparison_are_a_group(folder, server):
    out = folder.parent / "compared"
    (out / "runs").mkdir(parents=True)
    folder.rename(out / "runs" / "a")
    (out / "config.json").write_text('{"compare": "toy"}')
    log_folder(out, "wandb")
    assert [(each["group"], each["name"]) for each in server.inits] == [("compared", "a")]


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_library_is_named_before_anything_is_trained(name, toy_data, tmp_path, monkeypatch, refused_call):
    for each in [each for each in sys.modules if each.startswith((name, f"evenly.integrations.loggers.{name}"))]:
        monkeypatch.delitem(sys.modules, each)
    monkeypatch.setitem(sys.modules, name, None)
    for call in (evenly.train, evenly.compare, evenly.improve):
        words = rf"logging to {name} needs {name}.*, which is not installed; run: pip install 'evenly\[{name}\]'"
        refused_call(words, call, toy_data, model="mlp", log=name, out=tmp_path / "b")
    assert not (tmp_path / "b").exists()


@pytest.mark.skipif(find_spec("mlflow") is None, reason="MLflow is not installed")
@pytest.mark.filterwarnings("ignore")
def test_mlflow_itself_with_a_file_store(folder, monkeypatch, cut):
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (folder.parent / "store").as_uri())
    go_on = cut(folder, 5)
    log_folder(folder, "mlflow")
    go_on()
    log_folder(folder, "mlflow")
    assert log_folder(folder, "mlflow")[0].added == 0
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("evenly").experiment_id])
    assert run.info.status == "FINISHED"
    history = [each for tag in run.data.metrics for each in client.get_metric_history(run.info.run_id, tag)]
    assert len(history) == len(wanted(folder))
    assert {(each.key, each.step): each.value for each in history} == wanted(folder)


@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
@pytest.mark.filterwarnings("ignore")
def test_wandb_itself_offline(folder, monkeypatch, cut):
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    wandb.teardown()
    go_on = cut(folder, 5)
    log_folder(folder, "wandb")
    go_on()
    assert log_folder(folder, "wandb")[0].added > 0
    assert log_folder(folder, "wandb")[0].added == 0
    assert len(list((folder / "wandb").glob("offline-run-*"))) == 1
