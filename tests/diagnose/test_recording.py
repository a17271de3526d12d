"""The recorder's rows are the diagnoses themselves, at the epochs asked for, in any loop."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import evenly
from evenly import Data, EvenlyError, Split
from evenly.diagnose.importance import gini, importance_weights
from evenly.diagnose.norms import l1_norm
from evenly.diagnose.probing import probes
from evenly.diagnose.recording import Recorder
from evenly.diagnose.spectrum import hessian_spectrum


def clouds(n: int, seed: int) -> Split:
    draw = torch.Generator().manual_seed(seed)
    y, a = (torch.randint(2, (n,), generator=draw) for _ in range(2))
    x = torch.stack([2.0 * y - 1, 2.0 * a - 1], 1) + 0.7 * torch.randn(n, 2, generator=draw)
    return Split(x, y, attributes={"a": a})


def data() -> Data:
    return Data(clouds(60, 0), clouds(60, 1), clouds(60, 2))


def network() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
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
    all_, model = data(), network()
    recorder = Recorder(
        all_,
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
        for name, found in probes(model, all_, ["label", "a"]).items():
            assert row[f"probe_{name}"] == found.error
            assert (row[f"probe_{name}_low"], row[f"probe_{name}_high"]) == (found.low, found.high)
        assert row["gini_real"] == gini(importance_weights(model, all_.train))
        assert row["gini_phantom"] == gini(importance_weights(model, all_.train, 0.3, kind="lsam"))
        assert [row[f"lambda_{i}"] for i in (1, 2, 3)] == Spectrum(model).eigenvalues.tolist()
        scores = recorder.forgetting.scores
        assert row["forgotten"] == float(scores[scores.isfinite()].mean())
        assert row["never_right"] == float(scores.isinf().double().mean())
        assert row["l1_norm"] == l1_norm(model)
        step(model, all_.train)
    assert recorder.history[0] != recorder.history[2]
    assert json.loads(recorder.to_json())["history"] == recorder.history
    lines = recorder.table().splitlines()
    assert len(lines) == 4
    assert lines[0].split() == list(recorder.history[0])
    assert float(lines[2].split()[-1]) == pytest.approx(recorder.history[1]["l1_norm"], rel=1e-5)
    assert Recorder(all_, l1=True).table().split() == ["epoch"]


class Sure(nn.Module):
    """As sure as float64 can say, of the sign of the first coordinate times its own."""

    def __init__(self, sign: float) -> None:
        super().__init__()
        self.sign = nn.Parameter(torch.tensor(sign, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return 1e4 * self.sign * x[:, 0].sign()


def test_what_is_not_finite_is_left_out_of_what_is_returned() -> None:
    x = torch.tensor([[1.0], [-1.0]]).repeat(8, 1)
    recorder = Recorder((x, torch.tensor([1, 0] * 8)), importance=0.0, forgetting=True)
    assert recorder(Sure(1.0)) == {"forgotten": 0, "never_right": 0}  # every weight is 0 and has no share
    assert math.isnan(recorder.history[0]["gini_real"])
    assert json.loads(recorder.to_json())["history"][0]["gini_real"] is None
    other = Recorder((x, torch.tensor([1, 0] * 8)), forgetting=True)
    assert other(Sure(-1.0)) == {"never_right": 1}


def test_everything_can_be_asked_for_in_plain_words() -> None:
    all_, model = data(), network()
    recorder = Recorder(all_, probes=True, spectrum=2)
    row = recorder(model)
    found = probes(model, all_, ["label", "a"])
    assert {name: row[f"probe_{name}"] for name in found} == {name: each.error for name, each in found.items()}
    top = hessian_spectrum(model, "cross-entropy", all_.train, top=2).eigenvalues.tolist()
    assert [row["lambda_1"], row["lambda_2"]] == top
    single = nn.Linear(2, 1)
    one = Recorder(all_, spectrum=1)(single)
    assert one["lambda_1"] == float(hessian_spectrum(single, "logistic", all_.train, top=1).eigenvalues[0])


def test_a_recorder_goes_on_from_its_state() -> None:
    split, model = clouds(40, 0), network()
    one, other = (Recorder(split, forgetting=True, l1=True, every=2) for _ in range(2))
    for _ in range(3):
        one(model)
        step(model, split)
    kept = one.state_dict()
    other.load_state_dict(kept)
    for _ in range(3):
        assert one(model) == other(model)
        step(model, split)
    assert one.history == other.history
    assert [row["epoch"] for row in other.history] == [2, 4, 6]
    assert torch.equal(one.forgetting.scores, other.forgetting.scores)
    assert len(kept["history"]) == 1  # a copy: what came after is not in it


def test_epochs_that_are_due() -> None:
    model, split = network(), clouds(40, 0)
    counted, every, chosen = (Recorder(split, l1=True, **how) for how in ({}, {"every": 3}, {"epochs": [0, 4]}))
    for epoch in range(7):
        returned = [bool(each) for each in (counted(model), every(model, epoch), chosen(model, epoch))]
        assert returned == [True, epoch % 3 == 0, epoch in (0, 4)]
    assert [row["epoch"] for row in counted.history] == [1, 2, 3, 4, 5, 6, 7]
    assert [row["epoch"] for row in every.history] == [0, 3, 6]
    assert [row["epoch"] for row in chosen.history] == [0, 4]


def test_forgetting_is_seen_between_records() -> None:
    x = torch.tensor([[1.0], [-1.0]])
    recorder = Recorder((x, torch.tensor([1, 0])), forgetting=True, epochs=[5])
    for epoch, sign in enumerate((1.0, -1.0, 1.0, -1.0, 1.0), 1):
        recorder(Sure(sign), epoch)
    assert recorder.history == [{"epoch": 5, "forgotten": 2.0, "never_right": 0.0}]


def test_recording_changes_nothing_in_a_run() -> None:
    def weights(recorder: Recorder | None) -> Tensor:
        model, split = network(), clouds(40, 0)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            random.seed(5)
            for epoch in range(3):
                step(model, split)
                if recorder is not None:
                    recorder(model, epoch)
            return torch.cat([w.detach().flatten() for w in model.parameters()])

    def draw(model: nn.Module) -> Spectrum:
        torch.rand(3)
        return Spectrum(model)

    everything: dict[str, Any] = {"probes": ["a"], "importance": 0.1, "forgetting": True, "l1": True, "spectrum": draw}
    assert torch.equal(weights(None), weights(Recorder(clouds(60, 1), **everything)))


def test_what_cannot_be_recorded_is_refused() -> None:
    split = clouds(60, 0)
    for options, match in (
        ({}, "nothing to record; ask for probes, importance, spectrum, forgetting or l1"),
        ({"l1": True, "every": 0}, "every.* must be at least 1, got 0"),
        ({"l1": True, "every": 1.5}, "every must be a whole number, got 1.5"),
        ({"importance": {"roh": 1}}, "no option of importance is called 'roh'; did you mean 'rho'"),
        ({"spectrum": 0.5}, "spectrum must be a whole number or .*, got 0.5"),
        ({"spectrum": -1}, "spectrum must be at least 1, got -1"),
        ({"probes": "b"}, "no attribute is called 'b'"),
        ({"probes": ["a", "b"]}, "no attribute is called 'b'"),
    ):
        with pytest.raises(EvenlyError, match=match):
            Recorder(split, **options)
    with pytest.raises(EvenlyError, match=r"has 0 examples of label 0, a 0, .* needs 10 in each of 4 cells, 40 in all"):
        Recorder(Split(split.inputs[:3], [0, 1, 1], attributes={"a": [1, 0, 1]}), probes=True)
    state = Recorder(split, l1=True).state_dict()
    for other in (Recorder(split, forgetting=True), Recorder(split, l1=True, forgetting=True)):
        with pytest.raises(EvenlyError, match="the state is not of a recorder of the same things"):
            other.load_state_dict(state)
    with pytest.raises(EvenlyError, match="the state is not of a recorder"):
        Recorder(split, l1=True).load_state_dict({})
    with pytest.raises(EvenlyError, match="data is a NoneType"):
        Recorder(None, l1=True)


@pytest.mark.parametrize("record", [True, "a", ["forgetting"], 3])
def test_record_that_is_no_mapping_is_refused(record):
    x, y = torch.randn(40, 3), torch.arange(40) % 2
    with pytest.raises(EvenlyError, match=r"record is a .*; give what to record by name"):
        evenly.train(evenly.Data(train=(x, y)), model=nn.Linear(3, 2), epochs=1, record=record)


@pytest.mark.parametrize("record", [{"importance": -1}, {"spectrum": 9}, {"importance": {"kind": "zz"}}])
def test_a_record_that_is_refused_leaves_no_folder(record, tmp_path):
    x, y = torch.randn(40, 3), torch.arange(40) % 2
    with pytest.raises(EvenlyError):
        evenly.train((x, y), model=nn.Linear(3, 2), epochs=4, record={**record, "every": 3}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert (
        evenly.train((x, y), model=nn.Linear(3, 2), epochs=1, record={"spectrum": 8}).history[0]["lambda_8"] is not None
    )


def test_attributes_to_probe_may_be_joined_by_commas():
    y, edge = torch.arange(80) % 2, torch.arange(80) // 2 % 2
    split = Split(torch.randn(80, 3), y, attributes={"edge": edge})
    for given, names in (("edge", ["edge"]), ("edge, label", ["edge", "label"])):
        assert evenly.Recorder(split, probes=given).probes == names
    run = evenly.train(evenly.Data(train=split), model=nn.Linear(3, 2), epochs=1, record={"probes": "edge,label"})
    assert {"probe_edge", "probe_label"} <= set(run.history[0])


def test_probes_that_are_no_names_are_refused():
    with pytest.raises(EvenlyError, match="probes must be a name or a list or true or false, got 3"):
        evenly.Recorder((torch.randn(8, 3), torch.arange(8) % 2), probes=3)


def test_a_table_says_that_nothing_was_due():
    recorder = evenly.Recorder((torch.randn(8, 3), torch.arange(8) % 2), l1=True, every=5)
    for _ in range(3):
        recorder(nn.Linear(3, 2))
    assert recorder.table() == "nothing was recorded: every 5 did not come round in 3 epochs"


@pytest.mark.parametrize(
    ("model", "files", "options", "said"),
    [
        ("mlp", "w.pt", {"l1": True}, "model is a str; give an nn.Module, or a function"),
        (lambda: 3, "w.pt", {"l1": True}, "model is a int; give an nn.Module"),
        (nn.Linear(3, 2), None, {"l1": True}, "checkpoint None is no file"),
        (nn.Linear(3, 2), 3, {"l1": True}, "checkpoint 3 is no file"),
        (nn.Linear(3, 2), [3], {"l1": True}, "checkpoint 3 is no file; give files of weights"),
        (nn.Linear(3, 2), "w.pt", {"nope": 1}, "no option of record is called 'nope'; there are: epochs, every"),
        (nn.Linear(3, 2), "w.pt", {"spectrum": 9}, "spectrum 9 is more eigenvalues"),
    ],
)
def test_checkpoints_that_cannot_be_recorded_are_refused(model, files, options, said):
    with pytest.raises(EvenlyError, match=said):
        evenly.record_checkpoints(model, files, (torch.randn(8, 3), torch.arange(8) % 2), **options)
