"""One plan to one run: what the folder holds, what a kill leaves, what does not go together is refused in a line."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset

import evenly
from evenly import Data, EvenlyError, train
from evenly.engine.trained import Selection
from evenly.experiment import execute as module
from evenly.experiment.execute import fingerprint, memory_explained
from evenly.files import read_json
from evenly.models import factory
from evenly.models.standardised import IMAGENET
from evenly.report import pages
from evenly.runs.folder import RunFolder
from evenly.runs.run import Recorded

QUICK = {"epochs": 2, "batch_size": 8, "device": "cpu"}
FILES = {"config.json", "metrics.jsonl", "model.safetensors", "predictions.npz", "report.html", "results.json"}


def stamps(folder):
    files = [p for p in folder.rglob("*") if p.is_file() and p.name != ".lock"]  # which says who is at it
    return {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in files}


def no_step(*arguments, **options):
    raise AssertionError("trained again")


def test_what_a_finished_run_leaves(data, tmp_path):
    options = {"separating_epoch": 1, "rho": 0.1, "record": {"forgetting": True}}
    run = train(data, model="mlp", method="useful", optimizer="sam", seed=3, out=tmp_path, **QUICK | options)
    assert {path.name for path in tmp_path.iterdir()} - {"examples"} == FILES | {"selection.npz", "record.npz"}
    config, results = (read_json(tmp_path / f"{name}.json") for name in ("config", "results"))
    plan = config["plan"]
    own = {"name": "toy", "options": {}, "place": None, "fingerprint": data.fingerprint(), "kind": "own", "seed": None}
    assert plan["data"] == own
    options = {"separating_epoch": 1, "factor": 2, "on": "probabilities"}  # defaults too
    assert plan["method"] == {"name": "useful", "options": options}
    assert (plan["optimizer"]["name"], plan["seed"], plan["model"]["name"]) == ("sam", 3, "mlp")
    assert (plan["settings"]["rho"], plan["settings"]["epochs"]) == (0.1, 2)
    assert (config["format"], config["evenly"]) == (2, evenly.__version__)
    assert results == json.loads(json.dumps({"format": 2, **run.results.to_dict()}))
    assert (results["rule"], results["selected_epoch"], results["epochs"]) == ("last", 2, 2)
    hard = results["chosen"]
    assert results["cost"] == pytest.approx(2 * 24 + 24 / 3 + 2 * 2 * (24 + hard))  # early, outputs, final; two passes
    measured = run.results.splits["test"]
    assert run.results.splits.keys() == {"train", "validation", "test"}
    shares = data.train.groups.bincount() / 24
    weighted = sum(s.item() * a for s, a in zip(shares, measured.groups, strict=True))
    assert measured.train_weighted == pytest.approx(weighted)
    with np.load(tmp_path / "predictions.npz", allow_pickle=False) as stored:
        outputs = {f"{s}_{what}" for s in ("validation", "test") for what in ("outputs", "labels")}
        assert set(stored.files) == outputs | {"judged_right", "judged_groups", "judged_examples"}
        assert np.array_equal(stored["test_outputs"], run.outputs(data.test).numpy())
        assert np.array_equal(stored["test_labels"], data.test.labels.numpy())
    right = run.outputs(data.test).argmax(1) == data.test.labels
    assert evenly.load(tmp_path).correct.right.tolist() == right.tolist()
    assert evenly.load(tmp_path).correct.groups.tolist() == data.test.groups.tolist()
    assert evenly.load(tmp_path).correct.identities is None  # the user divided the data
    with np.load(tmp_path / "selection.npz", allow_pickle=False) as chosen:
        assert chosen["indices"].tolist() == run.selection.indices.tolist()
        assert chosen["times"].tolist() == [2] * hard
    stages = [json.loads(line)["stage"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert stages == ["early", "final", "final"]
    assert "toy" in (tmp_path / "report.html").read_text()


def test_a_run_in_memory_leaves_nothing(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert train(data, model="mlp", **QUICK).folder is None
    assert not list(tmp_path.iterdir())


# The folder again


class Killed(BaseException):
    pass


LAST_WRITES = {
    "model": (module, "save_network"),
    "predictions": (module, "atomic"),
    "selection": (Selection, "save"),
    "examples": (module, "save_examples"),
    "record": (Recorded, "save"),
    "results": (RunFolder, "finish"),
    "page": (pages, "write_report"),
    "checkpoint": (RunFolder, "remove_checkpoint"),
}


@pytest.mark.parametrize("moment", LAST_WRITES)
def test_a_kill_between_any_two_of_the_last_writes_is_completed_by_the_next_call(data, tmp_path, monkeypatch, moment):
    asked = {"data": data, "model": "mlp", "method": "useful", "record": {"l1": True}} | QUICK
    whole = train(**asked, out=tmp_path / "whole")

    def kill(*arguments, **options):
        raise Killed

    with monkeypatch.context() as dying:
        dying.setattr(*LAST_WRITES[moment], kill)
        with pytest.raises(Killed):
            train(**asked, out=tmp_path / "run")
    finished = moment in ("page", "checkpoint")
    assert (tmp_path / "run/results.json").exists() == finished
    monkeypatch.setattr(torch.optim.SGD, "step", no_step)
    train(**asked, out=tmp_path / "run")
    names = [sorted(str(p.relative_to(out)) for p in out.rglob("*")) for out in (tmp_path / "run", tmp_path / "whole")]
    assert names[0] == names[1]
    again = evenly.load(tmp_path / "run")
    assert again.results.splits == whole.results.splits
    assert again.history == whole.history
    for name in ("model.safetensors", "config.json", "metrics.jsonl"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_finished_run_is_read_back_and_not_touched(data, tmp_path, monkeypatch, same_weights):
    def captured(loop):
        loop.how = "captured, as it were"

    monkeypatch.setattr("evenly.engine.loop.Loop._capture", captured)
    asked = {"data": data, "model": "mlp", "method": "useful", "out": tmp_path / "run"} | QUICK
    first = train(**asked)
    before = stamps(tmp_path / "run")
    monkeypatch.setattr(torch.optim.SGD, "step", no_step)
    monkeypatch.setattr(module, "outputs_of", no_step)  # what it reached is read, not measured again
    for path in (*before, tmp_path / "run"):
        path.chmod(0o555)
    try:
        again = train(**asked)
    finally:
        (tmp_path / "run").chmod(0o755)
    assert same_weights(first.model, again.model)
    assert again.results == first.results
    assert again.results.step == "captured, as it were"
    assert again.history == first.history
    assert again.selection.indices.equal(first.selection.indices)
    assert stamps(tmp_path / "run") == before
    content = bytearray((tmp_path / "run/model.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "run/model.safetensors").chmod(0o644)
    (tmp_path / "run/model.safetensors").write_bytes(content)
    with pytest.raises(EvenlyError, match=r"model\.safetensors is damaged \(.*; .* or remove it and train again"):
        train(**asked)


@pytest.mark.parametrize("epochs_done", [1, 3])
@pytest.mark.parametrize("method", ["erm", "useful", "dfr"])
def test_an_interrupted_run_goes_on_to_the_same_weights(data, tmp_path, same_weights, method, epochs_done):
    settings = {"epochs": 4, "batch_size": 8, "select": "worst-group", "schedule": "cosine", "device": "cpu"}
    asked = {"data": data, "model": "mlp", "method": method, "optimizer": "sam"} | settings
    whole = train(**asked, out=tmp_path / "whole")
    calls = []

    def interrupt(share, note):
        calls.append(note)
        if len(calls) == epochs_done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(**asked, out=tmp_path / "parts", progress=interrupt)
    with pytest.raises(EvenlyError, match="holds a run that is not finished; run the same command again"):
        evenly.load(tmp_path / "parts")
    parts = train(**asked, out=tmp_path / "parts")
    assert same_weights(parts.model, whole.model)
    assert parts.results.to_dict() | {"seconds": 0} == whole.results.to_dict() | {"seconds": 0}
    assert (tmp_path / "parts/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()


@pytest.mark.parametrize("content", [{"epoch": 1}, [1, 2]])
def test_a_checkpoint_of_something_else_changes_nothing(data, tmp_path, content):
    def interrupt(share, note):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(data, model="mlp", out=tmp_path, progress=interrupt, **QUICK)
    torch.save(content, tmp_path / "checkpoint/final.pt")
    before = stamps(tmp_path)
    with pytest.raises(EvenlyError, match=r"final\.pt is no checkpoint of a fit; remove the folder to start over"):
        train(data, model="mlp", out=tmp_path, **QUICK)
    assert stamps(tmp_path) == before


class Jittered(Dataset):
    def __init__(self, arrays):
        self.x, self.y = arrays[:2]

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i] + torch.rand(()), int(self.y[i])


def test_a_run_on_random_augmentation_resumes_exactly(arrays, tmp_path, same_weights):
    """The hard examples are found again from the early network's outputs, which augmentation moves."""

    def interrupt(share, note):
        if note.startswith("epoch 1 "):
            raise KeyboardInterrupt

    asked = {"data": Jittered(arrays()), "model": "mlp", "method": "useful", "separating_epoch": 2} | QUICK
    whole = train(**asked, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(**asked, out=tmp_path / "parts", progress=interrupt)
    torch.manual_seed(5)
    parts = train(**asked, out=tmp_path / "parts")
    assert parts.selection.indices.equal(whole.selection.indices)
    assert same_weights(parts.model, whole.model)
    for other in (parts, train(**asked, out=tmp_path / "whole")):
        assert other.results.to_dict() | {"seconds": 0} == whole.results.to_dict() | {"seconds": 0}


@pytest.mark.parametrize(
    "other",
    [
        {"lr": 0.01},
        {"method": "useful", "factor": 3},
        {"model": nn.Sequential(nn.Flatten(), nn.Linear(3, 2))},
        {"budget": 48},
        {"record": {"l1": True}},
        {"data": "another"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_another_plan_is_refused_and_nothing_is_touched(arrays, tmp_path, other):
    pictures = [(x[:, :, None, None], y, g) for x, y, g in (arrays(), arrays(40, seed=2))]
    asked = {"data": Data(train=pictures[0]), "model": "mlp"} | QUICK
    train(**asked, out=tmp_path / "run")
    before = stamps(tmp_path / "run")
    if other == {"data": "another"}:
        other = {"data": Data(train=pictures[1])}
    with pytest.raises(EvenlyError, match=r"holds another run \(its .*start from its weights model_options="):
        train(**asked | other, out=tmp_path / "run")
    assert stamps(tmp_path / "run") == before


def test_functions_of_the_users_own_are_the_same_run_if_they_do_the_same(data, tmp_path):
    def asked(weight=1.0, rate=0.1, scale=2):
        module = nn.Linear(3, 2)
        nn.init.constant_(module.weight, weight)
        nn.init.zeros_(module.bias)
        functions = {"optimizer": lambda params: torch.optim.RMSprop(params, lr=rate)}
        functions |= {"schedule": lambda progress: 1 - progress / scale, "model": module}
        return train(data, out=tmp_path, **QUICK, **functions).results

    first = asked()
    assert asked() == first
    for other, message in (
        ({"weight": 2.0}, "its model starts from other weights"),
        ({"rate": 0.2}, r'its optimizer is "RMSprop .*\'lr\', 0\.1'),
        ({"scale": 4}, r"its schedule is \[1\.0, 0\.75"),
    ):
        with pytest.raises(EvenlyError, match=rf"holds another run \({message}"):
            asked(**other)


def test_weights_of_a_finished_run_start_another(data, tmp_path):
    run = train(data, model="mlp", out=tmp_path / "a", **QUICK)
    weights = {"weights": str(tmp_path / "a/model.safetensors")}
    on = train(data, model="mlp", model_options=weights, lr=1e-30, weight_decay=0.0, out=tmp_path / "b", **QUICK)
    assert torch.equal(on.outputs(data.test), run.outputs(data.test))


@pytest.mark.parametrize("memory", [0, 4])
def test_a_run_does_not_go_on_with_other_images(tmp_path, memory):
    for k, name in enumerate(("cat", "dog")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(8):
            image = Image.new("RGB", (8, 8), (40 * k, 10 * i, 90))
            image.putpixel((i, 2), (255, 0, 0))
            image.save(tmp_path / "photos" / name / f"{i}.png")
    asked = {"data": tmp_path / "photos", "model": "mlp", "normalise": "none", "data_options": {"memory": memory}}
    train(**asked, out=tmp_path / "run", **QUICK)
    train(**asked, out=tmp_path / "run", **QUICK)
    Image.open(tmp_path / "photos/dog/3.png").rotate(90).save(tmp_path / "photos/dog/3.png")
    with pytest.raises(EvenlyError, match=r"holds another run \(its data differ"):
        train(**asked, out=tmp_path / "run", **QUICK)


def test_arrays_and_paths_among_options_are_kept_as_lists_and_names(data, tmp_path):
    run = train(data, model="mlp", model_options={"hidden": np.array([4])}, out=tmp_path / "array", **QUICK)
    assert evenly.load(tmp_path / "array").plan.model.options == run.plan.model.options == {"hidden": [4]}
    weights = {"weights": tmp_path / "array" / "model.safetensors", "hidden": [4]}
    evenly.compare(data, model="mlp", methods=["erm"], seeds=1, model_options=weights, out=tmp_path / "c", **QUICK)


# Networks and data that do not go together


class Picky(nn.Linear):
    def forward(self, x):
        raise AssertionError  # as a bare `assert` in a user's code: no message


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(5, 2), r"cannot take inputs of shape \(3,\)"),
        (nn.Linear(3, 7), r"returns \(2, 7\) for 2 examples of 2 classes; .* \(N,\) or \(N, 1\) or \(N, 2\)"),
        (Picky(3, 2), r"cannot take inputs of shape \(3,\)"),
        ("convnet", "convnet takes images"),
        ("cubic-cnn", "cubic-cnn takes patches"),
        (lambda: 3, "returned a int"),
        (nn.Identity(), "nothing to train"),
        (nn.Linear(3, 2).requires_grad_(False), "nothing to train"),
    ],
    ids=["shape", "classes", "assertion", "convnet", "cubic", "builds", "identity", "frozen"],
)
def test_a_network_that_does_not_go_with_the_data_is_refused_in_a_line(data, tmp_path, model, message):
    with pytest.raises(EvenlyError, match=message) as error:
        train(data, model=model, out=tmp_path / "run", **QUICK)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


class NotANumber(nn.Linear):
    def forward(self, x):
        return super().forward(x) * (1 if self.training or len(x) == 2 else torch.nan)


def test_nan_in_eval_mode_is_no_accuracy(arrays):
    with pytest.raises(EvenlyError, match="gives NaN on 6 validation examples in eval mode"):
        train(arrays(), model=NotANumber(3, 2), **QUICK)


def test_one_example_is_too_few_for_batch_normalisation(data):
    network = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    with pytest.raises(EvenlyError, match="at batch size 1, is too few for the model's batch normalisation; raise"):
        train(data, model=network, **QUICK | {"batch_size": 1})


def test_memory_that_does_not_suffice_is_one_line(monkeypatch):
    class Card:
        total_memory = 80 * 2**30

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Card)
    for size, words in ((64, "batch size 64"), (None, "batch size full")):
        message = rf"the GPU's 80 GiB do not suffice at {words} \(CUDA out of memory\); lower batch_size"
        with pytest.raises(EvenlyError, match=message) as refused, memory_explained(size):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.\nMore. And more")
        assert "\n" not in str(refused.value)
    for error in (RuntimeError("another"), ValueError("another")):
        with pytest.raises(type(error), match="another"), memory_explained(1):
            raise error


def test_groups_that_never_occurred_in_training(arrays, tmp_path):
    """A test set of other groups has no train-weighted average; everything else is measured."""
    x, y, _ = arrays()
    data = Data(train=(x, y, y), validation=(x, y, y + 2), test=(x, y, y + 2))
    measured = train(data, model="mlp", out=tmp_path, **QUICK).results.measured
    assert measured.train_weighted is None
    assert measured.groups[:2] == (None, None)
    assert measured.group_intervals[0] is None
    assert evenly.load(tmp_path).results.measured == measured


def test_a_loss_that_overflows_on_other_data_than_training_is_left_out(arrays, tmp_path):
    """JSON has no infinity; the accuracy still counts."""
    x, y, _ = arrays()
    far = torch.full((4, 3), 3e38) * torch.tensor([1, -1, 1, -1])[:, None]
    steep = nn.Linear(3, 2)
    nn.init.constant_(steep.weight, 2.0)
    data = Data(train=(x, y), validation=(far, y[:4]), test=(far, y[:4]))
    run = train(data, model=steep, out=tmp_path, **QUICK)
    assert run.results.measured.loss is None
    assert run.history[-1]["validation"]["loss"] is None


def test_weights_from_a_file_start_a_network_behind_imagenets_scale(images, tmp_path):
    network = factory("convnet_3", (3, 8, 8), 2, seed=9)[0]()
    torch.save(network.state_dict(), tmp_path / "weights.pt")
    options = {"weights": str(tmp_path / "weights.pt")}
    run = train(images(), model="convnet_3", lr=1e-9, model_options=options, **QUICK)
    assert run.model.mean.flatten().tolist() == pytest.approx(IMAGENET[0])
    assert run.model.std.flatten().tolist() == pytest.approx(IMAGENET[1])
    for ours, theirs in zip(run.model.parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
    with pytest.raises(EvenlyError, match="normalise 'imagenet' is for 3 channels and the images have 1; use 'data'"):
        train(images(channels=1), model="convnet_3", normalise="imagenet", **QUICK)


def test_a_fingerprint_knows_every_weight_and_buffer():
    network = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    prints = [fingerprint(network)]
    for change in (network[0].weight.data, network[1].running_mean):
        change[..., 0] += 1e-3
        prints.append(fingerprint(network))
    assert len(set(prints)) == 3
    assert fingerprint(network) == prints[-1]


@pytest.mark.filterwarnings("ignore:20000 training examples are in 5000 groups")
def test_thousands_of_groups_with_gaps_train_and_report_in_linear_time(tmp_path):
    """Seconds; where every example is held against every group, it takes the better part of a minute."""
    numbers = torch.arange(20_000) % 5_000
    x = torch.randn(20_000, 4, generator=torch.Generator().manual_seed(0))
    split = (x, (x[:, 0] > 0).long(), 2 * numbers)
    started = time.perf_counter()
    data, quick = Data(split, validation=split, test=split), {"epochs": 2, "batch_size": 1024, "device": "cpu"}
    run = train(data, method="pde", **quick, out=tmp_path / "run")
    assert time.perf_counter() - started < 15
    assert len(run.results.measured.groups) == 9_999
    page = (tmp_path / "run/report.html").read_text()
    assert "Of 9999 groups, the 40 where it does worst." in page
    assert page.count("<tr") < 100


def test_a_run_keeps_which_examples_it_was_judged_on_where_evenly_divided_them(arrays, tmp_path, monkeypatch):
    """The same example of two seeds has one identity, for all that evenly divides. Older folders have none."""
    monkeypatch.setattr(pages, "write_report", lambda *arguments, **options: None)
    inputs, labels, groups = arrays(60)
    np.savez(tmp_path / "own.npz", x=inputs, y=labels, groups=groups)
    rows = "".join(f"{x[0]},{x[1]},{y}\n" for x, y in zip(inputs.tolist(), labels.tolist(), strict=True))
    (tmp_path / "own.csv").write_text("a,b,label\n" + rows)
    for name, data in (
        ("npz", tmp_path / "own.npz"),
        ("csv", tmp_path / "own.csv"),
        ("memory", (inputs, labels, groups)),
    ):
        stored = set()
        for seed in (0, 1):
            run = train(data, model="mlp", seed=seed, out=tmp_path / f"{name}{seed}", **QUICK)
            correct = evenly.load(tmp_path / f"{name}{seed}").correct
            assert labels[correct.identities.astype(int)].tolist() == correct.labels.tolist()
            assert correct.identities.tolist() == run.correct.identities.tolist()
            stored.add(tuple(correct.identities.tolist()))
        assert len(stored) == 2
    file = tmp_path / "npz0" / "predictions.npz"
    with np.load(file) as arrays_there:
        older = {key: arrays_there[key] for key in arrays_there.files if key != "judged_identities"}
    np.savez(file, **older)
    assert evenly.load(tmp_path / "npz0").correct.identities is None


def test_a_method_that_returns_nothing_is_refused(monkeypatch, refused_call):
    """As one of another package may."""
    monkeypatch.setattr("evenly.methods.registry.Method.__call__", lambda *_, **__: None)
    data = (torch.randn(60, 3), torch.arange(60) % 2)
    refused_call("erm returned a NoneType; a method returns what fit", evenly.train, data, model="mlp", epochs=1)
