"""Records of evenly's own runs, interrupted or not, and of a series of checkpoints."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import evenly
from evenly import Data, EvenlyError, Split
from evenly.diagnose.recording import Recorder, record_checkpoints

EVERYTHING: dict[str, Any] = {"forgetting": True, "probes": ["a"], "importance": 0.1, "l1": True, "every": 2}
QUICK: dict[str, Any] = {"epochs": 6, "batch_size": 20, "lr": 1.0, "device": "cpu"}


def clouds(n: int, seed: int) -> Split:
    draw = torch.Generator().manual_seed(seed)
    y, a = (torch.randint(2, (n,), generator=draw) for _ in range(2))
    x = torch.stack([2.0 * y - 1, 2.0 * a - 1], 1) + 1.5 * torch.randn(n, 2, generator=draw)
    return Split(x, y, attributes={"a": a})


def data(**options: Any) -> Data:
    return Data(clouds(60, 0), clouds(60, 1), clouds(60, 2), **options)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))


def by_hand(history: list[Tensor]) -> list[float]:
    scores = []
    for answers in torch.stack(history).T.tolist():
        times = sum(before and not after for before, after in pairwise(answers))
        scores.append(float(times) if any(answers) else float("inf"))
    return scores


def test_a_run_records_what_a_recorder_would_and_forgetting_as_counted_by_hand() -> None:
    all_ = data()
    right: list[Tensor] = []
    alongside = Recorder(all_, **EVERYTHING)

    def look(model: nn.Module) -> dict[str, float]:
        modes = [(module, module.training) for module in model.modules()]
        with torch.no_grad():
            right.append(model.eval()(all_.train.inputs).argmax(1) == all_.train.labels)
        for module, training in modes:
            module.training = training
        alongside(model)
        return {}

    all_.observe = look
    run = evenly.train(all_, model=network, record=EVERYTHING, **QUICK)
    assert len(right) == 6
    assert run.record.forgetting_scores.tolist() == by_hand(right)
    assert 0 < sum(score > 0 for score in by_hand(right)) < 60
    assert run.record.history == alongside.history
    assert [row["epoch"] for row in run.record.history] == [2, 4, 6]
    for metrics in run.history:
        row = {key: value for key, value in metrics.items() if key.startswith(("probe", "gini", "forgot", "l1"))}
        assert bool(row) == (metrics["epoch"] % 2 == 0)
        assert all(row.items() <= each.items() for each in run.record.history if each["epoch"] == metrics["epoch"])


def test_recording_changes_nothing_else_in_a_run() -> None:
    def slow(model: nn.Module) -> Any:
        torch.rand(3)
        time.sleep(0.5)
        return type("Spectrum", (), {"eigenvalues": torch.ones(1)})

    plain = evenly.train(data(), model=network, **QUICK)
    watched = evenly.train(data(), model=network, record={**EVERYTHING, "spectrum": slow, "epochs": [1, 5]}, **QUICK)
    assert all(map(torch.equal, plain.model.state_dict().values(), watched.model.state_dict().values()))
    assert plain.results.cost == watched.results.cost
    assert plain.results.evaluation_cost == watched.results.evaluation_cost
    assert watched.results.seconds < 0.5  # nor does recording count as training
    assert plain.record is None
    for one, other in zip(plain.history, watched.history, strict=True):
        assert one.items() <= other.items()
    assert ["lambda_1" in row for row in watched.history] == [True, False, False, False, True, False]


@pytest.fixture
def every_epoch_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenly.engine.checkpoints.CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr("evenly.engine.checkpoints.CHECKPOINT_SHARE", 1e9)


@pytest.mark.usefixtures("every_epoch_kept")
@pytest.mark.parametrize(("method", "stops"), [("erm", (3, 2)), ("useful", (1,)), ("useful", (5,))])
def test_a_resumed_run_has_the_records_of_one_that_was_not_stopped(
    tmp_path: Path, method: str, stops: tuple[int, ...]
) -> None:
    options = {"method": method, "record": {"forgetting": True, "importance": 0.1, "every": 2}, **QUICK}
    options |= {"separating_epoch": 2} if method == "useful" else {}
    whole = evenly.train(data(), model=network, out=tmp_path / "whole", **options)

    def stopping_after(count: int) -> Any:
        left = iter(range(count))

        def observe(_: nn.Module) -> dict[str, float]:
            if next(left, None) is None:
                raise KeyboardInterrupt
            return {}

        return observe

    for stop in stops:
        with pytest.raises(KeyboardInterrupt):
            evenly.train(data(observe=stopping_after(stop)), model=network, out=tmp_path / "cut", **options)
    resumed = evenly.train(data(), model=network, out=tmp_path / "cut", **options)
    metrics = [(tmp_path / each / "metrics.jsonl").read_text() for each in ("whole", "cut")]
    assert metrics[0] == metrics[1]
    assert metrics[0].count("gini_real") == (4 if method == "useful" else 3)  # each stage has its own
    assert resumed.record.history == whole.record.history
    assert len(whole.record.history) == 3
    assert torch.equal(resumed.record.forgetting_scores, whole.record.forgetting_scores)
    read_back = evenly.train(data(), model=network, out=tmp_path / "cut", **options)
    assert torch.equal(read_back.record.forgetting_scores, whole.record.forgetting_scores)


def test_what_a_run_cannot_record_is_refused_before_it_starts(tmp_path: Path) -> None:
    def refused(match: str, record: Any, **options: Any) -> None:
        with pytest.raises(EvenlyError, match=match) as error:
            evenly.train(data(), model=network, record=record, **{"out": tmp_path / "run", **QUICK, **options})
        assert "\n" not in str(error.value)

    refused("no option of record is called 'forgeting'; did you mean 'forgetting'", {"forgeting": True})
    refused("there is nothing to record", {})
    refused(r"forgetting \(option of record\) must be true or false, got 3", {"forgetting": 3})
    refused("no attribute is called 'b'", {"probes": ["b"]})
    refused("every.* must be at least 1, got 0", {"l1": True, "every": 0})
    refused(r"cannot be kept with the run \(.*\); give numbers and names", {"importance": {"params": [torch.ones(1)]}})
    refused(r"epochs \(option of record\) must be a list, got", {"l1": True, "epochs": {1, "2"}})
    assert not (tmp_path / "run").exists()
    evenly.train(data(), model=network, record={"l1": True}, out=tmp_path / "run", **QUICK)
    refused(r"holds another run \(its record's forgetting is False, not True\)", {"forgetting": True})
    with pytest.raises(EvenlyError, match="holds another run"):
        evenly.train(data(), model=network, out=tmp_path / "run", **QUICK)


def test_an_audit_of_a_run_shows_what_it_forgot(tmp_path: Path) -> None:
    small = {"epochs": 2, "device": "cpu"}
    run = evenly.train("shortcut-digits", model="mlp", record={"forgetting": True}, out=tmp_path / "a", **small)
    evenly.train("shortcut-digits", model="mlp", record={"l1": True}, out=tmp_path / "b", **small)
    assert evenly.load(tmp_path / "b").record.forgetting_scores is None
    read_back = evenly.load(tmp_path / "a")
    assert torch.equal(read_back.record.forgetting_scores, run.record.forgetting_scores)
    scores = read_back.record.forgetting_scores
    found = evenly.audit(read_back.model, evenly.data.load("shortcut-digits"), forgetting=scores, top=0, samples=20)
    evenly.write_report(found, tmp_path / "audit.html")
    assert "Times forgotten" in (tmp_path / "audit.html").read_text()
    assert found.to_dict()["forgetting"]["0"] == int((run.record.forgetting_scores == 0).sum())

    def own(model: nn.Module) -> Any:
        return type("Spectrum", (), {"eigenvalues": torch.ones(1)})

    evenly.train("shortcut-digits", model="mlp", record={"spectrum": own}, out=tmp_path / "c", **small)
    assert evenly.load(tmp_path / "c").record.history[0]["lambda_1"] == 1


# A series of checkpoints


def weights(seed: int) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    return network().state_dict()


@pytest.fixture
def series(tmp_path: Path) -> Path:
    """Three checkpoints in as many formats, whose names do not sort as their numbers, and other files."""
    folder = tmp_path / "series"
    folder.mkdir()
    torch.save(weights(2), folder / "epoch-2.pt")
    np.savez(folder / "epoch-10.npz", **{name: value.numpy() for name, value in weights(10).items()})
    torch.save({"model": weights(9), "epoch": 9}, folder / "epoch-9.pth")
    (folder / "notes.txt").write_text("nothing to do with it")
    return folder


def test_a_series_has_a_named_row_for_each_checkpoint_in_the_order_of_numbers(series: Path) -> None:
    all_, model = data(), network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = record_checkpoints(model, series, all_, probes=["a"], forgetting=True, l1=True)
    assert [(row["epoch"], row["name"]) for row in found.history] == [(1, "epoch-2"), (2, "epoch-9"), (3, "epoch-10")]
    expected = Recorder(all_, probes=["a"], forgetting=True, l1=True)
    fresh = network()
    for seed in (2, 9, 10):
        fresh.load_state_dict(weights(seed))
        expected(fresh)
    assert [{k: v for k, v in row.items() if k != "name"} for row in found.history] == expected.history
    assert torch.equal(found.forgetting.scores, expected.forgetting.scores)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [line.split()[1] for line in found.table().splitlines()] == ["name", "epoch-2", "epoch-9", "epoch-10"]
    assert json.loads(json.dumps(found.to_dict()))["history"] == found.history


def test_a_series_can_be_files_in_any_order_and_a_function_that_builds(series: Path) -> None:
    files = [series / "epoch-10.npz", str(series / "epoch-2.pt")]
    found = record_checkpoints(network, iter(files), data(), l1=True, every=2)
    assert [row["name"] for row in found.history] == ["epoch-2"]
    assert found.history[0]["l1_norm"] == pytest.approx(sum(float(w.double().abs().sum()) for w in weights(2).values()))
    assert [row["name"] for row in record_checkpoints(network, files[0], data(), l1=True).history] == ["epoch-10"]


def test_a_series_that_is_none_is_refused(series: Path, tmp_path: Path) -> None:
    class Danger:
        def __reduce__(self) -> Any:
            return (print, ("run",))

    def refused(match: str, checkpoints: Any, model: Any = network, **what: Any) -> None:
        with pytest.raises(EvenlyError, match=match) as error:
            record_checkpoints(model, checkpoints, data(), **(what or {"l1": True}))
        assert "\n" not in str(error.value)

    torch.save({"w": Danger()}, tmp_path / "danger.pt")
    (tmp_path / "text.pt").write_text("no weights")
    (tmp_path / "empty").mkdir()
    refused("holds no file of weights", tmp_path / "empty")
    refused("holds no file of weights", [])
    refused("there is no file", tmp_path / "nowhere.pt")
    refused("weights must be a file .*notes.txt", [series / "notes.txt"])
    refused("text.pt .*could run code", [series / "epoch-2.pt", tmp_path / "text.pt"])
    refused("danger.pt .*could run code", tmp_path / "danger.pt")
    refused("in the model", series, nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2)))
    refused("there is nothing to record", series, every=3)
