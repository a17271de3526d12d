"""The recorder's rows are the diagnoses themselves, in any loop, in evenly's own runs and over checkpoints."""

from __future__ import annotations

import json
import math
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import evenly
from evenly import Data, Split
from evenly.diagnose.importance import gini, importance_weights
from evenly.diagnose.norms import l1_norm
from evenly.diagnose.probing import probes
from evenly.diagnose.recording import Recorder, record_checkpoints
from evenly.diagnose.spectrum import hessian_spectrum

EVERYTHING: dict[str, Any] = {"forgetting": True, "probes": ["a"], "importance": 0.1, "l1": True, "every": 2}
QUICK: dict[str, Any] = {"epochs": 6, "batch_size": 20, "lr": 1.0, "device": "cpu"}


def clouds(n: int, seed: int) -> Split:
    draw = torch.Generator().manual_seed(seed)
    y, a = (torch.randint(2, (n,), generator=draw) for _ in range(2))
    x = torch.stack([2.0 * y - 1, 2.0 * a - 1], 1) + 1.5 * torch.randn(n, 2, generator=draw)
    return Split(x, y, attributes={"a": a})


def data(**options: Any) -> Data:
    return Data(clouds(60, 0), clouds(60, 1), clouds(60, 2), **options)


def network(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))


class Spectrum:
    def __init__(self, model: nn.Module) -> None:
        self.eigenvalues = next(model.parameters()).detach().flatten()[:3].sort(descending=True).values


def step(model: nn.Module, split: Split) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(split.inputs), split.labels).backward()
    optimizer.step()


def test_rows_are_the_diagnoses() -> None:
    whole, model = data(), network()
    recorder = Recorder(
        whole,
        probes=["label", "a"],
        importance={"rho": 0.3, "kind": "lsam"},
        spectrum=Spectrum,
        forgetting=True,
        l1=True,
    )
    for epoch in range(3):
        returned = recorder(model, epoch)
        row = recorder.history[-1]
        assert row == {"epoch": epoch, **returned}
        for name, probe in probes(model, whole, ["label", "a"]).items():
            assert [row[f"probe_{name}{end}"] for end in ("", "_low", "_high")] == [probe.error, probe.low, probe.high]
        assert row["gini_real"] == gini(importance_weights(model, whole.train))
        assert row["gini_phantom"] == gini(importance_weights(model, whole.train, 0.3, kind="lsam"))
        assert [row[f"lambda_{i}"] for i in (1, 2, 3)] == Spectrum(model).eigenvalues.tolist()
        scores = recorder.forgetting.scores
        assert row["forgotten"] == float(scores[scores.isfinite()].mean())
        assert row["never_right"] == float(scores.isinf().double().mean())
        assert row["l1_norm"] == l1_norm(model)
        step(model, whole.train)
    assert recorder.history[0] != recorder.history[2]
    assert recorder.to_dict()["history"] == recorder.history
    lines = recorder.table().splitlines()
    assert lines[0].split() == list(recorder.history[0])
    assert float(lines[2].split()[-1]) == pytest.approx(recorder.history[1]["l1_norm"], rel=1e-5)
    assert Recorder(whole, l1=True).table().split() == ["epoch"]


class Sure(nn.Module):
    """As sure as float64 can say, of the sign of the first coordinate times its own."""

    def __init__(self, sign: float) -> None:
        super().__init__()
        self.sign = nn.Parameter(torch.tensor(sign, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return 1e4 * self.sign * x[:, 0].sign()


def test_what_is_not_finite_is_left_out_of_what_is_returned() -> None:
    samples = torch.tensor([[1.0], [-1.0]]).repeat(8, 1), torch.tensor([1, 0] * 8)
    recorder = Recorder(samples, importance=0.0, forgetting=True)
    assert recorder(Sure(1.0)) == {"forgotten": 0, "never_right": 0}  # every weight is 0 and has no share
    assert math.isnan(recorder.history[0]["gini_real"])
    assert recorder.to_dict()["history"][0]["gini_real"] is None
    assert Recorder(samples, forgetting=True)(Sure(-1.0)) == {"never_right": 1}


def test_everything_can_be_asked_for_in_plain_words() -> None:
    whole, model = data(), network()
    row = Recorder(whole, probes=True, spectrum=2)(model)
    found = probes(model, whole, ["label", "a"])
    assert {name: row[f"probe_{name}"] for name in found} == {name: each.error for name, each in found.items()}
    top = hessian_spectrum(model, "cross-entropy", whole.train, top=2).eigenvalues.tolist()
    assert [row["lambda_1"], row["lambda_2"]] == top
    single = nn.Linear(2, 1)
    one = Recorder(whole, spectrum=1)(single)
    assert one["lambda_1"] == float(hessian_spectrum(single, "logistic", whole.train, top=1).eigenvalues[0])
    for names, expected in (("a", ["a"]), ("a, label", ["a", "label"])):
        assert Recorder(whole, probes=names).probes == expected


def test_a_recorder_goes_on_from_its_state(refused: Any) -> None:
    split, model = clouds(40, 0), network()
    one, other = (Recorder(split, forgetting=True, l1=True, every=2) for _ in range(2))
    for _ in range(3):
        one(model)
        step(model, split)
    state = one.state_dict()
    other.load_state_dict(state)
    for _ in range(3):
        assert one(model) == other(model)
        step(model, split)
    assert one.history == other.history
    assert [row["epoch"] for row in other.history] == [2, 4, 6]
    assert torch.equal(one.forgetting.scores, other.forgetting.scores)
    assert len(state["history"]) == 1  # a copy: what came after is not in it
    refused("'forgetting' is in the state or in the Recorder", Recorder(split, l1=True).load_state_dict, state)
    refused("'calls' is in the state or in the Recorder", Recorder(split, l1=True).load_state_dict, {})


def test_epochs_that_are_due() -> None:
    model, split = network(), clouds(40, 0)
    counted, every, chosen = (Recorder(split, l1=True, **when) for when in ({}, {"every": 3}, {"epochs": [0, 4]}))
    for epoch in range(7):
        returned = [bool(each) for each in (counted(model), every(model, epoch), chosen(model, epoch))]
        assert returned == [True, epoch % 3 == 0, epoch in (0, 4)]
    epochs = [[row["epoch"] for row in each.history] for each in (counted, every, chosen)]
    assert epochs == [[1, 2, 3, 4, 5, 6, 7], [0, 3, 6], [0, 4]]
    late = Recorder(split, l1=True, every=5)
    for _ in range(3):
        late(model)
    assert late.table() == "nothing was recorded: every 5 did not occur in 3 epochs"


def test_forgetting_is_seen_between_records() -> None:
    recorder = Recorder((torch.tensor([[1.0], [-1.0]]), torch.tensor([1, 0])), forgetting=True, epochs=[5])
    for epoch, sign in enumerate((1.0, -1.0, 1.0, -1.0, 1.0), 1):
        recorder(Sure(sign), epoch)
    assert recorder.history == [{"epoch": 5, "forgotten": 2.0, "never_right": 0.0}]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "nothing to record; ask for probes, importance, spectrum, forgetting or l1"),
        ({"forgeting": True}, "no option of record is called 'forgeting'; did you mean 'forgetting'"),
        ({"l1": True, "every": 0}, r"every \(option of record\) must be at least 1, got 0"),
        ({"l1": True, "epochs": {1, "2"}}, r"epochs \(option of record\) must be a list, got"),
        ({"importance": {"roh": 1}}, "no option of importance is called 'roh'; did you mean 'rho'"),
        ({"importance": -1}, r"rho \(option of importance\) must be at least 0, got -1"),
        ({"importance": {"kind": "zz"}}, r"kind \(option of importance\) must be one of sam, lsam, got 'zz'"),
        (
            {"importance": {"params": [torch.ones(1)]}},
            "params are given, and SAM perturbs all|cannot be written to a file",
        ),
        ({"spectrum": "mine"}, "spectrum must be a whole number or a function, got 'mine'"),
        ({"spectrum": 100}, "spectrum 100 is more eigenvalues than are searched for in 42 trainable parameters"),
        ({"probes": 3}, r"probes \(option of record\) must be a name or a list or true or false, got 3"),
        ({"probes": ["a", "b"]}, "no attribute is called 'b'"),
    ],
)
def test_what_cannot_be_recorded_is_refused_before_a_run_starts(
    options: Any, message: str, tmp_path: Path, refused: Any
) -> None:
    if "100" not in message:  # which depends on the network
        refused(message, Recorder, data(), **options)
    refused(message, evenly.train, data(), model=network, record=options, out=tmp_path / "run", **QUICK)
    assert not (tmp_path / "run").exists()


def test_sets_too_small_to_probe_and_other_records_are_refused(tmp_path: Path, refused: Any) -> None:
    few = Split(torch.zeros(3, 2), [0, 1, 1], attributes={"a": [1, 0, 1]})
    refused("has 0 examples of label 0, a 0, .* needs 10 in each of 4 cells, 40 in all", Recorder, few, probes=True)
    for record in (True, "a", ["forgetting"], 3):
        refused("record is a .*; give what to record by name", evenly.train, data(), model=network, record=record)
    evenly.train(data(), model=network, record={"l1": True}, out=tmp_path / "run", **QUICK)
    for record, message in (({"forgetting": True}, r" \(its record's forgetting is False, not True\)"), (None, "")):
        refused(f"holds another run{message}", evenly.train, data(), model=network, record=record,
                out=tmp_path / "run", **QUICK)  # fmt: skip


# evenly's own runs


def by_hand(history: list[Tensor]) -> list[float]:
    scores = []
    for answers in torch.stack(history).T.tolist():
        times = sum(before and not after for before, after in pairwise(answers))
        scores.append(float(times) if any(answers) else float("inf"))
    return scores


def test_a_run_records_what_a_recorder_would_and_forgetting_as_counted_by_hand() -> None:
    whole = data()
    right: list[Tensor] = []
    alongside = Recorder(whole, **EVERYTHING)

    def observe(model: nn.Module) -> dict[str, float]:
        with torch.no_grad():
            right.append(model.eval()(whole.train.inputs).argmax(1) == whole.train.labels)
        model.train()
        alongside(model)
        return {}

    whole.observe = observe
    run = evenly.train(whole, model=network, record=EVERYTHING, **QUICK)
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
        return Spectrum(model)

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
    for run in (resumed, evenly.load(tmp_path / "cut")):
        assert torch.equal(run.record.forgetting_scores, whole.record.forgetting_scores)


def test_an_audit_of_a_run_shows_what_it_forgot(tmp_path: Path) -> None:
    evenly.train(data(), model=network, record={"forgetting": True}, out=tmp_path / "a", **QUICK)
    run = evenly.load(tmp_path / "a", model=network())
    scores = run.record.forgetting_scores
    found = evenly.audit(run.model, data(), forgetting=scores, top=0, samples=20)
    assert "Times forgotten" in evenly.write_report(found, tmp_path / "audit.html").read_text()
    assert found.to_dict()["forgetting"]["0"] == int((scores == 0).sum())


# A series of checkpoints


@pytest.fixture
def series(tmp_path: Path) -> Path:
    """Three checkpoints in as many formats, whose names do not sort as their numbers, and other files."""
    folder = tmp_path / "series"
    folder.mkdir()
    torch.save(network(2).state_dict(), folder / "epoch-2.pt")
    np.savez(folder / "epoch-10.npz", **{name: value.numpy() for name, value in network(10).state_dict().items()})
    torch.save({"model": network(9).state_dict(), "epoch": 9}, folder / "epoch-9.pth")
    (folder / "notes.txt").write_text("nothing to do with it")
    return folder


def test_a_series_has_a_named_row_for_each_checkpoint_in_the_order_of_numbers(series: Path) -> None:
    whole, model = data(), network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = record_checkpoints(model, series, whole, probes=["a"], forgetting=True, l1=True)
    assert [(row["epoch"], row["name"]) for row in found.history] == [(1, "epoch-2"), (2, "epoch-9"), (3, "epoch-10")]
    expected = Recorder(whole, probes=["a"], forgetting=True, l1=True)
    for seed in (2, 9, 10):
        expected(network(seed))
    assert [{k: v for k, v in row.items() if k != "name"} for row in found.history] == expected.history
    assert torch.equal(found.forgetting.scores, expected.forgetting.scores)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [line.split()[1] for line in found.table().splitlines()] == ["name", "epoch-2", "epoch-9", "epoch-10"]
    found.save(series / "record.json")
    assert json.loads((series / "record.json").read_text())["history"] == found.history


def test_a_series_can_be_files_in_any_order_and_a_function_that_builds(series: Path) -> None:
    files = [series / "epoch-10.npz", str(series / "epoch-2.pt")]
    found = record_checkpoints(network, iter(files), data(), l1=True, every=2)
    assert [row["name"] for row in found.history] == ["epoch-2"]
    assert found.history[0]["l1_norm"] == l1_norm(network(2))
    assert [row["name"] for row in record_checkpoints(network, files[0], data(), l1=True).history] == ["epoch-10"]


def test_a_series_that_is_none_is_refused(series: Path, tmp_path: Path, refused: Any) -> None:
    class Danger:
        def __reduce__(self) -> Any:
            return (print, ("run",))

    torch.save({"w": Danger()}, tmp_path / "danger.pt")
    (tmp_path / "text.pt").write_text("no weights")
    (tmp_path / "empty").mkdir()
    wider = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))
    for message, checkpoints, model, options in (
        ("holds no file of weights", tmp_path / "empty", network, {"l1": True}),
        ("holds no file of weights", [], network, {"l1": True}),
        ("there is no file", tmp_path / "nowhere.pt", network, {"l1": True}),
        ("checkpoint None is no file", None, network, {"l1": True}),
        ("checkpoint 3 is no file; give files of weights", [3], network, {"l1": True}),
        ("weights must be a file .safetensors", [series / "notes.txt"], network, {"l1": True}),
        ("text.pt .*could run code", [series / "epoch-2.pt", tmp_path / "text.pt"], network, {"l1": True}),
        ("danger.pt .*could run code", tmp_path / "danger.pt", network, {"l1": True}),
        ("in the model", series, wider, {"l1": True}),
        ("there is nothing to record", series, network, {"every": 3}),
        ("no option of record is called 'nope'; there are: epochs, every", series, network, {"nope": 1}),
        ("spectrum 99 is more eigenvalues", series, network, {"spectrum": 99}),
        ("model is a str; give an nn.Module, or a function", series, "mlp", {"l1": True}),
        ("model is a int; give an nn.Module", series, lambda: 3, {"l1": True}),
    ):
        refused(message, record_checkpoints, model, checkpoints, data(), **options)
