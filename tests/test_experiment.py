"""`evenly.train`: what may be given, what it leaves behind, what it refuses, and what it never touches."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import evenly
from evenly import Data, EvenlyError, train
from evenly.data import load
from evenly.experiment import DEFAULTS, reopen, resolve
from evenly.methods import METHODS


def arrays(count: int = 24, seed: int = 0):
    """Two classes that the first feature tells apart; the group says whether the second one agrees."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 2
    agrees = torch.rand(count, generator=draw) < 0.7
    x = torch.randn(count, 3, generator=draw) + torch.stack([2 * y - 1, 2 * (y ^ ~agrees) - 1, 0 * y], 1)
    return x, y, 2 * y + (~agrees).long()


@pytest.fixture
def data() -> Data:
    return Data(train=arrays(), validation=arrays(seed=1), test=arrays(40, seed=2), name="toy")


def same_weights(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(v, w) for v, w in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


QUICK = {"epochs": 2, "batch_size": 8}


# What may be given


class Rows(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, i):
        x, y, _ = arrays()
        return x[i], int(y[i])


@pytest.mark.parametrize(
    "given",
    [arrays()[:2], tuple(a.numpy() for a in arrays()[:2]), Rows(), Data(train=arrays()[:2])],
    ids=["tensors", "arrays", "dataset", "Data"],
)
def test_own_data_in_any_form_is_the_same_data(given):
    run = train("mlp", given, **QUICK)
    reference = train("mlp", Data(train=arrays()[:2]), **QUICK)
    assert same_weights(run.model, reference.model)
    assert run.history == reference.history


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("optimizer", ["sgd", "sam", "adam", "adamw"])
def test_every_method_goes_with_every_optimizer(data, method, optimizer):
    run = train("mlp", data, method, optimizer, **QUICK)
    assert run.results["method"] == method
    assert run.results["test"]["accuracy"] == pytest.approx(
        (run.model(data.test.inputs).argmax(1) == data.test.labels).double().mean().item()
    )


@pytest.mark.parametrize("method", ["erm", "useful"])
def test_a_module_is_where_training_starts_and_is_never_changed(data, method):
    module = nn.Linear(3, 2)
    before = copy.deepcopy(module.state_dict())
    module.requires_grad_(True).eval()
    run = train(module, data, method, **QUICK)
    assert run.model is not module
    assert not same_weights(run.model, module)
    assert all(torch.equal(module.state_dict()[key], before[key]) for key in before)
    assert module.weight.grad is None
    assert not module.training
    assert run.results["model"] == "Linear as given"


def test_fine_tuning_takes_its_first_step_from_the_weights_given(data):
    module = nn.Linear(3, 2)
    run = train(module, data, epochs=1, batch_size=None, lr=0.1, momentum=0.0)
    start = copy.deepcopy(module)
    loss = nn.functional.cross_entropy(start(data.train.inputs), data.train.labels)
    loss.backward()
    expected = module.weight - 0.1 * start.weight.grad
    torch.testing.assert_close(run.model.weight, expected)
    for seed in (1, 2):  # whatever the seed
        assert torch.equal(train(module, data, epochs=1, batch_size=None, lr=0.1, momentum=0.0, seed=seed).model.weight,
                           run.model.weight)  # fmt: skip


def test_a_function_builds_the_network_and_the_seed_decides_its_weights(data):
    def small():
        return nn.Linear(3, 2)

    runs = [train(small, data, lr=1e-30, seed=seed, **QUICK) for seed in (0, 0, 1)]
    assert same_weights(runs[0].model, runs[1].model)
    assert not same_weights(runs[0].model, runs[2].model)
    assert "small" in runs[0].results["model"]


@pytest.mark.parametrize("width", [0, 1])
def test_a_single_logit_is_enough_for_two_classes(data, width):
    class One(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 1)

        def forward(self, x):
            return self.linear(x) if width else self.linear(x)[:, 0]

    run = train(One, data, "useful", epochs=20, batch_size=8)
    right = (run.model(data.test.inputs).flatten() > 0).long() == data.test.labels
    assert run.results["test"]["accuracy"] == pytest.approx(right.double().mean().item())
    assert run.results["test"]["accuracy"] > 0.7


def test_an_optimizer_may_be_a_function(data):
    run = train("mlp", data, optimizer=lambda params: torch.optim.RMSprop(params, lr=0.01), **QUICK)
    assert "lambda" in run.results["optimizer"]


# Where settings come from


def test_the_user_comes_before_the_recipe_and_the_recipe_before_the_defaults():
    """The recipe may suit each method, with options of its own and with settings of training."""
    of_pde = {"decay": 0.1, "every": 2, "lr": 0.75, "rho": 0.5}
    recipe = {"epochs": 7, "lr": 0.5, "options": {"pde": of_pde, "useful": {"factor": 5}}}
    data = Data(train=arrays(), recipe=recipe)
    plan, options = resolve(data, "pde", {"lr": 0.25, "every": 3})
    assert plan == DEFAULTS | {"epochs": 7, "lr": 0.25, "rho": 0.5}
    assert options == {"decay": 0.1, "every": 3}
    assert resolve(data, "erm", {}) == (DEFAULTS | {"epochs": 7, "lr": 0.5}, {})
    assert data.recipe["options"]["pde"] is of_pde  # read, not used up


def test_the_recipe_is_what_runs():
    data = Data(train=arrays(), recipe={"model": "mlp", "epochs": 3, "lr": 0.125, "model_options": {"hidden": [5]}})
    run = train(None, data, method="erm")
    assert [row["lr"] for row in run.history] == [0.125] * 3
    assert run.model[1].out_features == 5
    assert len(train(None, data, epochs=1).history) == 1


@pytest.mark.parametrize("name", ["shortcut-digits", "partial-digits", "patches"])
def test_a_name_draws_the_data_of_the_seed(name):
    run = train(None, name, epochs=1, seed=4, batch_size=256)
    assert run.results["data"] == name
    split = load(name, seed=4).test
    single = run.outputs(split)
    predicted = (single > 0).long() if single.ndim == 1 else single.argmax(1)
    assert run.results["test"]["accuracy"] == pytest.approx((predicted == split.labels).double().mean().item())


# What is left behind


def test_the_folder(data, tmp_path):
    run = train("mlp", data, "useful", "sam", seed=3, out=tmp_path / "run", separating_epoch=1, rho=0.1, **QUICK)
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["data"] == {"name": "toy", "fingerprint": data.fingerprint()}
    assert config["method"] == {"name": "useful", "options": {"separating_epoch": 1}}
    assert (config["optimizer"], config["seed"], config["model"]["name"]) == ("sam", 3, "mlp")
    assert (config["settings"]["rho"], config["settings"]["epochs"]) == (0.1, 2)

    results = json.loads((tmp_path / "run/results.json").read_text())
    assert results == run.results
    assert results["rule"] == "last"
    assert results["selected_epoch"] == results["epochs"] == 2
    hard = results["chosen"]
    assert results["cost"] == pytest.approx(2 * 24 + 24 / 3 + 2 * 2 * (24 + hard))  # early, outputs, final; two passes
    assert results["cost_multiple"] == pytest.approx(results["cost"] / (2 * 24))
    for split in ("train", "validation", "test"):
        assert set(results[split]) == {
            "accuracy", "loss", "worst_class", "worst_group", "train_weighted", "groups", "group_counts",
            "group_intervals",
        }  # fmt: skip
    shares = data.train.groups.bincount() / 24
    assert results["test"]["train_weighted"] == pytest.approx(
        sum(s.item() * a for s, a in zip(shares, results["test"]["groups"], strict=True))
    )

    with np.load(tmp_path / "run/selection.npz", allow_pickle=False) as chosen:
        assert chosen["indices"].tolist() == run.selection.indices.tolist()
        assert chosen["times"].tolist() == [2] * hard
        assert chosen["separating_epoch"] == 1
    stages = [json.loads(line)["stage"] for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert stages == ["early", "final", "final"]
    assert "toy" in (tmp_path / "run/report.html").read_text()
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "checkpoint", "config.json", "metrics.jsonl", "report.html", "results.json", "selection.npz",
    ]  # fmt: skip


def test_numbers_of_numpy_are_numbers(data, tmp_path):
    run = train("mlp", data, seed=np.int64(3), epochs=np.int64(2), lr=np.float32(0.125), out=tmp_path)
    assert same_weights(run.model, train("mlp", data, seed=3, epochs=2, lr=0.125).model)


def test_the_test_set_is_never_used_to_select(data):
    other = Data(train=data.train, validation=data.validation, test=arrays(40, seed=9))
    one, two = (train("mlp", d, select="average", epochs=4, batch_size=8) for d in (data, other))
    assert one.selected_epoch == two.selected_epoch
    assert same_weights(one.model, two.model)
    assert one.results["test"] != two.results["test"]


def test_the_model_carries_the_weights_of_the_epoch_named(data):
    for rule in ("average", "worst-group", "worst-class"):
        run = train("mlp", data, select=rule, epochs=6, batch_size=4, lr=0.3)
        metric = {"average": "accuracy", "worst-group": "worst_group", "worst-class": "worst_class"}[rule]
        curve = [row["validation"][metric] for row in run.history]
        assert run.results["selected_epoch"] == 1 + curve.index(max(curve))
        seen = run.history[run.results["selected_epoch"] - 1]["validation"]
        assert {key: run.results["validation"][key] for key in seen} == seen


# The folder again


def test_a_finished_run_is_read_back(data, tmp_path, monkeypatch):
    monkeypatch.setattr("evenly.engine.loop.Loop._capture", lambda loop: setattr(loop, "how", "captured, as it were"))
    first = train("mlp", data, "useful", out=tmp_path / "run", **QUICK)
    kept = [*(tmp_path / "run").rglob("*.pt"), tmp_path / "run/config.json", tmp_path / "run/results.json"]
    stamps = {p: p.stat().st_mtime_ns for p in kept}

    def no_step(*arguments, **options):
        raise AssertionError("trained again")

    monkeypatch.setattr(torch.optim.SGD, "step", no_step)
    again = train("mlp", data, "useful", out=tmp_path / "run", **QUICK)
    assert same_weights(first.model, again.model)
    assert again.results == first.results
    assert again.step == first.step == "captured, as it were"
    assert again.history == first.history
    assert again.selection.indices.equal(first.selection.indices)
    assert {p: p.stat().st_mtime_ns for p in stamps} == stamps


@pytest.mark.parametrize("epochs_done", [1, 3])
@pytest.mark.parametrize("method", sorted(METHODS))
def test_an_interrupted_run_goes_on_to_the_same_weights(data, tmp_path, method, epochs_done):
    settings = {"epochs": 4, "batch_size": 8, "select": "worst-group", "schedule": "cosine"}
    whole = train("mlp", data, method, "sam", out=tmp_path / "whole", **settings)
    told = []

    def interrupt(share, note):
        told.append(note)
        if len(told) == epochs_done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train("mlp", data, method, "sam", out=tmp_path / "parts", progress=interrupt, **settings)
    assert not (tmp_path / "parts/results.json").exists()
    parts = train("mlp", data, method, "sam", out=tmp_path / "parts", **settings)
    assert same_weights(parts.model, whole.model)
    assert parts.results | {"seconds": 0} == whole.results | {"seconds": 0}
    assert (tmp_path / "parts/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()


@pytest.mark.parametrize(
    "other",
    [
        {"lr": 0.01}, {"epochs": 3}, {"seed": 1}, {"method": "pde"}, {"optimizer": "sam"}, {"model": "convnet"},
        {"batch_size": None}, {"select": "average"}, {"schedule": "step"}, {"data": "another"}, {"budget": 48},
        {"model_options": {"hidden": [4]}}, {"method": "useful", "factor": 3},
    ],
    ids=str,
)  # fmt: skip
def test_other_settings_are_refused_and_nothing_is_touched(data, tmp_path, other):
    images = [(x[:, :, None, None], y, g) for x, y, g in (arrays(), arrays(40, seed=2))]
    data = Data(train=images[0], validation=images[0], test=images[1])
    asked = {"model": "mlp", "data": data, "method": "erm"} | QUICK
    train(**asked, out=tmp_path / "run")
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in (tmp_path / "run").rglob("*") if p.is_file()}
    if other == {"data": "another"}:
        other = {"data": Data(train=images[1])}
    with pytest.raises(EvenlyError, match="holds another run"):
        train(**asked | other, out=tmp_path / "run")
    assert {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in (tmp_path / "run").rglob("*") if p.is_file()} == before


def test_another_module_is_another_run(data, tmp_path):
    train(nn.Linear(3, 2), data, out=tmp_path, **QUICK)
    with pytest.raises(EvenlyError, match="holds another run"):
        train(nn.Linear(3, 2), data, out=tmp_path, **QUICK)


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0}, {"lr": 0.0}, {"method": "pde", "warmup_epochs": 9}, {"method": "useful", "factor": 0},
        {"method": "useful", "separating_epoch": 9}, {"momentum": -1.0}, {"weight_decay": -1.0}, {"schedule": "x"},
        {"optimizer": "sam", "rho": -1.0}, {"factor": 2}, {"device": "abacus"},
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_work_is_said_before_a_folder_is_made(data, tmp_path, wrong):
    """So that the command can be mended and given again with the same folder."""
    with pytest.raises(EvenlyError):
        train("mlp", data, **QUICK | {"out": tmp_path / "run"} | wrong)
    assert not (tmp_path / "run").exists()


# What is refused


class Picky(nn.Linear):
    def forward(self, x):
        raise AssertionError  # as a bare `assert` in a user's code: no message


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.Linear(5, 2), r"cannot take inputs of shape \(3,\)"),
        (
            nn.Linear(3, 7),
            r"returns \(2, 7\) for 2 examples of 2 classes; it must return \(N,\) or \(N, 1\) or \(N, 2\)",
        ),
        (Picky(3, 2), r"cannot take inputs of shape \(3,\)"),
        ("convnet", "convnet takes images"),
        ("cubic-cnn", "cubic-cnn takes patches"),
        ("mpl", "did you mean 'mlp'"),
        (lambda: 3, "returned a int"),
        (3, "not a int"),
        (nn.Identity(), "no (parameters|weights)|nothing to train|returns"),
        (nn.Linear(3, 2).requires_grad_(False), "no (parameters|weights)|nothing to train|requires"),
    ],
    ids=["shape", "classes", "assertion", "convnet", "cubic", "name", "builds", "kind", "identity", "frozen"],
)
def test_a_model_that_does_not_go_with_the_data_is_one_line(data, tmp_path, model, said):
    with pytest.raises(EvenlyError, match=said) as error:
        train(model, data, out=tmp_path / "run", **QUICK)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"data": None}, "there is no data"),
        ({"data": "shortcut-digit"}, "did you mean 'shortcut-digits'"),
        ({"method": "usefull"}, "did you mean 'useful'"),
        ({"optimizer": "smg"}, "did you mean 'sgd'"),
        ({"method": "pde", "warmup": 3}, "did you mean 'warmup_epochs'"),
        ({"learning_rate": 3}, "no setting or option of erm is called 'learning_rate'"),
        ({"method": "pde", "budget": 10}, "budget does not apply to pde; it is for erm and random_upsample"),
        ({"method": "pde", "data": arrays()[:2]}, "pde needs groups"),
        ({"select": "worst-group", "data": arrays()}, "needs a validation set"),
        ({"data": "patches", "data_options": {"m": 2}}, "no option of patches is called 'm'"),
    ],
    ids=str,
)
def test_wrong_arguments(data, arguments, said):
    with pytest.raises(EvenlyError, match=said) as error:
        train(**{"model": "mlp", "data": data} | QUICK | arguments)
    assert "\n" not in str(error.value)


def test_groups_that_never_occurred_in_training(tmp_path):
    """A test set of other groups has no train-weighted average; everything else is measured."""
    x, y, _ = arrays()
    run = train("mlp", Data(train=(x, y, y), validation=(x, y, y + 2), test=(x, y, y + 2)), out=tmp_path, **QUICK)
    assert run.results["test"]["train_weighted"] is None
    assert run.results["test"]["groups"][:2] == [None, None]


def test_a_loss_that_overflows_on_other_data_than_training_is_left_out(tmp_path):
    """JSON has no infinity; the accuracy still counts."""
    x, y, _ = arrays()
    far = torch.full((4, 3), 3e38) * torch.tensor([1, -1, 1, -1])[:, None]
    data = Data(train=(x, y), validation=(far, y[:4]), test=(far, y[:4]))
    steep = nn.Linear(3, 2)
    nn.init.constant_(steep.weight, 2.0)
    run = train(steep, data, out=tmp_path, **QUICK)
    assert run.results["test"]["loss"] is None
    assert run.history[-1]["validation"]["loss"] is None


# What it never touches


SOURCES = {"torch": lambda: torch.rand(()).item(), "numpy": np.random.rand, "python": random.random}


class Jittered(Dataset):
    """Augmentation by whatever source of randomness a user's Dataset has."""

    def __init__(self, source):
        self.source = source

    def __len__(self):
        return 24

    def __getitem__(self, i):
        x, y, _ = arrays()
        return x[i] + SOURCES[self.source](), int(y[i])


def random_states():
    return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002


@pytest.mark.parametrize("source", ["none", "torch", "numpy", "python"])
@pytest.mark.parametrize("method", ["erm", "useful"])
def test_one_seed_decides_everything_and_the_global_random_state_is_left_alone(source, method):
    data = Rows() if source == "none" else Jittered(source)
    runs = []
    for disturbance in (0, 1):
        torch.manual_seed(disturbance)
        np.random.seed(disturbance)  # noqa: NPY002
        random.seed(disturbance)
        before = random_states()
        runs.append(train(lambda: nn.Sequential(nn.Linear(3, 8), nn.Dropout(), nn.Linear(8, 2)), data, method, **QUICK))
        assert random_states() == before
    assert same_weights(runs[0].model, runs[1].model)
    assert runs[0].results | {"seconds": 0} == runs[1].results | {"seconds": 0}


def test_a_run_on_random_augmentation_resumes_exactly(tmp_path):
    """The hard examples are found again from the early network's outputs, which augmentation moves."""

    def interrupt(share, note):
        if note.startswith("final epoch 1"):
            raise KeyboardInterrupt

    settings = {"epochs": 3, "batch_size": 8, "separating_epoch": 2}
    whole = train("mlp", Jittered("torch"), "useful", out=tmp_path / "whole", **settings)
    with pytest.raises(KeyboardInterrupt):
        train("mlp", Jittered("torch"), "useful", out=tmp_path / "parts", progress=interrupt, **settings)
    torch.manual_seed(5)
    parts = train("mlp", Jittered("torch"), "useful", out=tmp_path / "parts", **settings)
    assert parts.selection.indices.equal(whole.selection.indices)
    assert same_weights(parts.model, whole.model)
    read_back = train("mlp", Jittered("torch"), "useful", out=tmp_path / "whole", **settings)
    for other in (parts, read_back):
        assert other.results | {"seconds": 0} == whole.results | {"seconds": 0}


def test_default_dtype_threads_and_gradient_mode_are_left_alone(data):
    before = torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled()
    train("mlp", data, "useful", "sam", **QUICK)
    assert (torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled()) == before


def test_progress_goes_to_the_caller_or_nowhere(data, capfd):
    told = []
    train("mlp", data, progress=lambda share, note: told.append(share), epochs=4)
    assert told == [0.25, 0.5, 0.75, 1.0]
    train("mlp", data, epochs=1)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("data", "method", "options"), [("patches", "useful", {"beta_d": 0.4}), ("shortcut-digits", "pde", {})]
)
def test_a_finished_run_is_read_back_from_its_folder(
    tmp_path: Path, data: str, method: str, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"n": 200} if data == "patches" else {}
    run = evenly.train(
        None, data, method, seed=3, epochs=4, out=tmp_path / "run", data_options={**options, **small}, select="average"
    )
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*.pt")}
    page = (tmp_path / "run" / "report.html").stat().st_mtime_ns
    monkeypatch.setattr("evenly.experiment.outputs_of", None)  # what it reached is read, not measured again
    again, its_data, config = reopen(tmp_path / "run")
    monkeypatch.undo()
    assert page == (tmp_path / "run" / "report.html").stat().st_mtime_ns
    for a, b in zip(run.model.state_dict().values(), again.model.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert again.results == run.results
    assert config["data"]["fingerprint"] == its_data.fingerprint()
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*.pt")}
    (tmp_path / "run" / "checkpoint" / "final.pt").unlink()
    with pytest.raises(EvenlyError, match="no finished checkpoint of the stage 'final'"):
        reopen(tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoint" / "final.pt").exists()


def test_a_cost_is_told_in_units_of_what_erm_would_have_cost() -> None:
    """PDE has 240 short epochs of its own on the digits, where ERM has 40."""
    recipe = evenly.data.load("shortcut-digits").recipe
    assert recipe["options"]["pde"]["epochs"] != recipe["epochs"]
    run = evenly.train(None, "shortcut-digits", "pde")
    assert run.results["cost_multiple"] == run.cost / (1000 * recipe["epochs"])
    run = evenly.train(None, "shortcut-digits", "pde", epochs=30)
    assert run.results["cost_multiple"] == run.cost / (1000 * 30)


def test_what_cannot_be_read_back_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EvenlyError, match="holds no finished run"):
        reopen(tmp_path)
    x, y = torch.randn(20, 3), torch.arange(20) % 2
    evenly.train("mlp", (x, y), epochs=1, out=tmp_path / "own")
    with pytest.raises(EvenlyError, match="give that data as well"):
        reopen(tmp_path / "own")
    assert reopen(tmp_path / "own", (x, y))[0].results["epochs"] == 1
    with pytest.raises(EvenlyError, match=r"is not what .* was trained on"):
        reopen(tmp_path / "own", (x + 1, y))
    for damaged in ("{}", "[]", '{"data": 3}'):
        (tmp_path / "own" / "config.json").write_text(damaged)
        with pytest.raises(EvenlyError, match=r"is damaged|holds no finished run"):
            reopen(tmp_path / "own", (x, y))
    evenly.train(lambda: torch.nn.Linear(3, 2), (x, y), epochs=1, out=tmp_path / "model")
    with pytest.raises(EvenlyError, match="of the user's own"):
        reopen(tmp_path / "model", (x, y))
