"""`evenly.train`: what may be given, what it refuses, what it never touches; a plan run again, and a run's data."""

from __future__ import annotations

import copy
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset

import evenly
from evenly import Data, EvenlyError, train
from evenly.data import from_arrays, load
from evenly.experiment.training import data_of, run_again
from evenly.optim import ASAM

QUICK = {"epochs": 2, "batch_size": 8, "device": "cpu"}


SOURCES = {"none": lambda: 0, "torch": lambda: torch.rand(()), "numpy": np.random.rand, "python": random.random}


class Rows(Dataset):
    """A user's Dataset, perhaps with augmentation by whatever source of randomness it has."""

    def __init__(self, arrays, source="none"):
        self.x, self.y = arrays[:2]
        self.source = source

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i] + SOURCES[self.source](), int(self.y[i])


# What may be given


@pytest.mark.parametrize("form", ["tensors", "arrays", "dataset"])
def test_own_data_in_any_form_is_the_same_data(arrays, same_weights, form):
    x, y, _ = arrays()
    given = {"tensors": (x, y), "arrays": (x.numpy(), y.numpy()), "dataset": Rows(arrays())}[form]
    whole = Data(train=(x, y)) if form == "dataset" else from_arrays(x, y)
    run, reference = (train(each, model="mlp", **QUICK) for each in (given, whole))
    assert list(run.results.splits) == (["train"] if form == "dataset" else ["train", "validation", "test"])
    assert same_weights(run.model, reference.model)
    assert run.history == reference.history


@pytest.mark.parametrize("method", ["erm", "useful"])
def test_a_module_is_where_training_starts_and_is_never_changed(data, same_weights, method):
    module = nn.Linear(3, 2).eval()
    before = copy.deepcopy(module)
    run = train(data, model=module, method=method, **QUICK)
    assert run.model is not module
    assert not same_weights(run.model, module)
    assert same_weights(module, before)
    assert module.weight.grad is None
    assert not module.training
    assert run.results.model == "Linear as given"


def test_fine_tuning_takes_its_first_step_from_the_weights_given(data):
    module = nn.Linear(3, 2)
    start = copy.deepcopy(module)
    nn.functional.cross_entropy(start(data.train.inputs), data.train.labels).backward()
    expected = module.weight - 0.1 * start.weight.grad
    for seed in (0, 1):  # whatever the seed
        run = train(data, model=module, epochs=1, batch_size=None, lr=0.1, momentum=0.0, seed=seed, device="cpu")
        torch.testing.assert_close(run.model.weight, expected)


def test_a_function_builds_the_network_and_the_seed_decides_its_weights(data, same_weights):
    runs = [train(data, model=lambda: nn.Linear(3, 2), lr=1e-30, seed=seed, **QUICK) for seed in (0, 0, 1)]
    assert same_weights(runs[0].model, runs[1].model)
    assert not same_weights(runs[0].model, runs[2].model)
    assert "lambda" in runs[0].results.model


@pytest.mark.parametrize("width", [0, 1])
def test_a_single_logit_is_enough_for_two_classes(data, width):
    class One(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 1)

        def forward(self, x):
            return self.linear(x) if width else self.linear(x)[:, 0]

    run = train(data, model=One, method="useful", epochs=20, batch_size=8, device="cpu")
    right = (run.model(data.test.inputs).flatten() > 0).long() == data.test.labels
    assert run.results.measured.accuracy == pytest.approx(right.double().mean().item())
    assert run.results.measured.accuracy > 0.7


def test_asam_by_name_is_trained_at_its_radius(data, same_weights):
    def by_hand(rho):
        return lambda params: ASAM(torch.optim.SGD(params, lr=0.05, momentum=0.9), rho=rho)

    for rho, given in ((0.5, {}), (0.05, {"rho": 0.05})):
        named = train(data, model="mlp", optimizer="asam", **QUICK, **given)
        assert same_weights(named.model, train(data, model="mlp", optimizer=by_hand(rho), **QUICK).model)


def test_the_recipe_is_what_runs(arrays):
    data = Data(train=arrays(), recipe={"model": "mlp", "epochs": 3, "lr": 0.125, "model_options": {"hidden": [5]}})
    run = train(data, device="cpu")
    assert [row["lr"] for row in run.history] == [0.125] * 3
    assert run.model[1].out_features == 5
    assert len(train(data, epochs=1, device="cpu").history) == 1


@pytest.mark.parametrize("name", ["shortcut-digits", "partial-digits", "patches"])
def test_a_name_draws_the_data_of_the_seed(name):
    run = train(name, epochs=1, seed=4, batch_size=256, device="cpu")
    split = load(name, seed=4).test
    outputs = run.outputs(split)
    predicted = (outputs > 0).long() if outputs.ndim == 1 else outputs.argmax(1)
    assert run.results.data.name == name
    assert run.results.measured.accuracy == pytest.approx((predicted == split.labels).double().mean().item())


def test_numbers_of_numpy_are_numbers(data, tmp_path, same_weights):
    kinds = {"seed": np.int64(3), "epochs": np.int64(2), "lr": np.float64(0.125), "budget": None}
    run = train(data, model="mlp", out=tmp_path, **kinds)
    assert same_weights(run.model, train(data, model="mlp", seed=3, epochs=2, lr=0.125).model)


def test_a_cost_is_in_units_of_what_erm_would_have_cost():
    """PDE has 240 short epochs of its own on the digits, where ERM has 40."""
    run = train("shortcut-digits", method="pde", device="cpu", epochs=4, warmup_epochs=1)
    assert (run.results.unit, run.plan.reference_epochs) == (1000 * 4, 4)
    assert run.results.cost_multiple == run.results.cost / 4000
    assert run.results.evaluation_cost_multiple == run.results.evaluation_cost / 4000


def test_a_budget_cuts_a_control(data):
    run = train(data, model="mlp", budget=36, **QUICK)
    assert 36 <= run.results.cost < 36 + 9
    assert run.plan.budget == 36.0
    for given, message in (
        ({"method": "pde", "budget": 10}, "budget does not apply to pde; it is for erm and random_upsample"),
        ({"budget": 0}, "budget must be above 0, got 0"),
        ({"budget": float("nan")}, "budget must be .* got nan"),
    ):
        with pytest.raises(EvenlyError, match=message):
            train(data, model="mlp", **QUICK | given)


# Selection


def test_the_test_set_is_never_used_to_select(data, arrays, same_weights):
    other = Data(train=data.train, validation=data.validation, test=arrays(40, seed=9))
    one, two = (train(d, model="mlp", select="average", epochs=4, batch_size=8, device="cpu") for d in (data, other))
    assert one.results.selected_epoch == two.results.selected_epoch
    assert same_weights(one.model, two.model)
    assert one.results.splits["test"] != two.results.splits["test"]


@pytest.mark.parametrize("rule", ["average", "worst-group", "worst-class"])
def test_the_model_carries_the_weights_of_the_epoch_named(data, rule):
    run = train(data, model="mlp", select=rule, epochs=6, batch_size=4, lr=0.3, device="cpu")
    metric = {"average": "accuracy"}.get(rule, rule.replace("-", "_"))
    curve = [row["validation"][metric] for row in run.history]
    assert run.results.rule == rule
    assert run.results.selected_epoch == 1 + curve.index(max(curve))
    seen = run.history[run.results.selected_epoch - 1]["validation"]
    measured = run.results.splits["validation"].to_dict()
    assert {key: measured[key] for key in seen} == seen


# What is refused


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"data": None}, "there is no data"),
        ({"data": "shortcut-digit"}, "did you mean 'shortcut-digits'"),
        ({"data": "patches", "data_options": {"m": 2}}, "no option of patches is called 'm'"),
        ({"optimizer": "smg"}, "did you mean 'sgd'"),
        ({"method": "pde", "groups": "infer", "select": "nonsense"}, "select must be one of last, average"),
        ({"method": "pde", "data": "two"}, "pde needs groups"),
        ({"select": "worst-group", "data": "three"}, "needs a validation set"),
        ({"method": "pde", "warmup_epochs": 9}, "warmup_epochs must be at most 2"),
        ({"method": "useful", "separating_epoch": 9}, "separating_epoch"),
        ({"groups": "infer"}, "groups 'infer' would not be used by erm"),
        ({"device": "abacus"}, "device 'abacus' cannot be used"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_in_a_line_before_a_folder_is_made(data, arrays, tmp_path, given, message):
    """So that the call can be mended and made again with the same folder."""
    own = {"two": Data(train=arrays()[:2]), "three": Data(train=arrays())}
    given = {"data": data, "model": "mlp", "out": tmp_path / "run"} | QUICK | given
    given["data"] = own.get(given["data"], given["data"]) if isinstance(given["data"], str) else given["data"]
    with pytest.raises(EvenlyError, match=message) as error:
        train(**given)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_the_old_order_of_arguments_is_pointed_out(data):
    with pytest.raises(EvenlyError, match=r"train takes the data first .*; write evenly.train\('patches', model='mlp'"):
        train("mlp", "patches")
    with pytest.raises(EvenlyError, match=r"write evenly.train\(data, model=model, ...\)"):
        train(nn.Linear(3, 2), data)


# What it never touches


def with_dropout():
    return nn.Sequential(nn.Linear(3, 8), nn.Dropout(), nn.Linear(8, 2))


def global_state():
    modes = torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled()
    return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate(), modes  # noqa: NPY002


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("method", ["erm", "useful"])
def test_one_seed_decides_everything_and_the_global_state_is_left_alone(arrays, same_weights, source, method):
    runs = []
    for disturbance in (0, 1):
        torch.manual_seed(disturbance)
        np.random.seed(disturbance)  # noqa: NPY002
        random.seed(disturbance)
        before = global_state()
        runs.append(train(Rows(arrays(), source), model=with_dropout, method=method, **QUICK))
        assert global_state() == before
    assert same_weights(runs[0].model, runs[1].model)
    assert runs[0].results.splits == runs[1].results.splits


def test_progress_goes_to_the_caller_or_nowhere(data, capfd):
    shares = []
    train(data, model="mlp", progress=lambda share, note: note and shares.append(share), epochs=4)
    assert shares == [0.25, 0.5, 0.75, 1.0]
    train(data, model="mlp", epochs=1)
    assert capfd.readouterr() == ("", "")


# A plan run again, and the data of a run


@pytest.mark.parametrize(
    ("data", "settings"),
    [
        ("patches", {"method": "useful", "data_options": {"n": 60, "beta_d": 0.4}, "optimizer": "asam"}),
        ("shortcut-digits", {"method": "pde", "select": "average", "warmup_epochs": 1}),
        ("shortcut-digits", {"budget": 1500, "record": {"l1": True}, "schedule": "cosine"}),
    ],
)
def test_the_plan_of_a_runs_config_gives_the_same_weights_in_another_folder(tmp_path, same_weights, data, settings):
    first = train(data, seed=3, epochs=2, device="cpu", out=tmp_path / "a", **settings)
    config = evenly.load(tmp_path / "a").config
    again = run_again(config, out=tmp_path / "b", device="cpu")
    assert same_weights(first.model, again.model)
    assert again.results.splits == first.results.splits
    assert first.plan.digest == again.plan.digest == evenly.load(tmp_path / "b").plan.digest
    if "budget" not in settings:
        other = run_again(config, seed=4, epochs=1, device="cpu")
        assert (other.plan.seed, len(other.history), other.results.unit) == (4, 1, first.results.unit / 2)


def test_what_a_file_cannot_bring_back_is_refused(data, tmp_path):
    cases = {
        "model": {"model": lambda: nn.Linear(3, 2)},
        "optimizer": {"optimizer": lambda params: torch.optim.SGD(params, lr=0.1)},
        "schedule": {"schedule": lambda progress: 1.0},
        "record": {"record": {"spectrum": lambda model: None, "epochs": [9]}},
    }
    for name, given in cases.items():
        train(data, out=tmp_path / name, **QUICK | {"model": "mlp"} | given)
        with pytest.raises(EvenlyError, match="of the user's own, which a file cannot bring back; call"):
            run_again(evenly.load(tmp_path / name).config, data=data)
    config = evenly.load(tmp_path / "schedule").config
    assert len(run_again(config, data=data, schedule="constant").history) == 2
    with pytest.raises(EvenlyError, match="factor is set by the run's config; leave it out"):
        run_again(config, data=data, schedule="constant", factor=3)
    with pytest.raises(EvenlyError, match="the run was trained on 'toy', which its folder cannot name; give the data"):
        run_again(config, schedule="constant")
    with pytest.raises(EvenlyError, match="groups 'infer' would not be used by erm"):
        run_again(config, data=data, schedule="constant", groups="infer")


def test_a_config_never_brings_other_data(data, tmp_path, monkeypatch):
    """Not a built-in set of the same name, nor a file that has changed since."""
    train(replace(data, name="patches"), out=tmp_path / "own", **QUICK)
    with pytest.raises(EvenlyError, match="trained on 'patches', which its folder cannot name"):
        run_again(evenly.load(tmp_path / "own").config, out=tmp_path / "again")
    x, y = np.arange(60.0).reshape(20, 3), np.arange(20) % 2
    np.savez(tmp_path / "file.npz", x=x, y=y)
    train(tmp_path / "file.npz", out=tmp_path / "filed", **QUICK)
    np.savez(tmp_path / "file.npz", x=x + 1, y=y)
    config = evenly.load(tmp_path / "filed").config
    with pytest.raises(EvenlyError, match=r"file\.npz has changed since the run; give the data"):
        run_again(config, out=tmp_path / "again")
    assert run_again(config, data=tmp_path / "file.npz", out=tmp_path / "again").results.cost > 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seed": "x"}, "seed must be a whole number, got 'x'"),
        ({"seed": 1.5}, "seed must be a whole number, got 1.5"),
        ({"seed": None}, "seed must be a whole number, got None"),
        ({"budget": "x"}, "budget must be a number, got 'x'"),
        ({"lr": 10**400}, "lr must be a finite number, got 10+"),
        ({"out": 3}, "out must be a path, got 3"),
        ({"data": {"x": 1}}, "the train inputs are a dict; give a tensor"),
        ({"data": nn.Linear(3, 2)}, "the train inputs are a Linear; give a tensor"),
        ({"model": nn.Linear}, r"model is the class Linear, which cannot be built .*; give a module or a function"),
        ({"model": nn.Linear(3, 2).to_empty(device="meta")}, "values of weight in the model are on the meta device"),
        ({"optimizer": lambda parameters: None}, "optimizer returned a NoneType; it must return a torch optimizer"),
        ({"progress": 3}, "progress must be a function of the share that is done and a note, got 3"),
        ({"model_options": {"seed": 3}}, "model option 'seed' follows from the data and the seed; leave it out"),
        ({"record": {1: True}}, "no option of record is called 1"),
        ({"precision": "none"}, "precision must be one of auto, bf16, float32, got 'none'"),
        ({"infer": "eiil"}, "infer 'eiil' is how groups are inferred; give groups='infer' as well"),
    ],
)
def test_values_of_other_kinds_are_refused_in_a_line(data, given, message):
    with pytest.raises(EvenlyError, match=message) as refused:
        train(**{"data": data} | QUICK | given)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("memory", [0, 4])
def test_the_data_of_a_run_is_found_where_it_lies_or_where_it_was_moved(tmp_path, memory):
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(8):
            shade = 40 * (name == "dog") + 5 * i
            Image.new("RGB", (10 + i, 12), (shade, shade, 90)).save(tmp_path / "photos" / name / f"{i}.png")
    options = {"size": 8, "validation": 0.25, "memory": memory}
    run = train(tmp_path / "photos", model="mlp", data_options=options, out=tmp_path / "run", **QUICK)
    again = evenly.load(tmp_path / "run")
    for moved in (False, True):
        if moved:
            (tmp_path / "photos").rename(tmp_path / "moved")
        found = data_of(again, tmp_path / "moved" if moved else None)
        assert torch.equal(again.outputs(found.test), run.outputs(found.test))
    with pytest.raises(EvenlyError, match=r"was trained on .*photos, which is not there; give where it is now"):
        data_of(again)
    Image.new("RGB", (10, 12)).save(tmp_path / "moved/cat/0.png")
    with pytest.raises(EvenlyError, match=r"the data given is not what .*run was trained on \(photos\); give that"):
        data_of(again, tmp_path / "moved")


def test_the_data_of_a_run_on_texts_is_encoded_as_its_network_reads_it(tmp_path):
    rows = [f"{'good' if i % 2 else 'bad'} film {i % 7},{'pos' if i % 2 else 'neg'}" for i in range(30)]
    (tmp_path / "own.csv").write_text("\n".join(["text,label", *rows]))
    run = train(tmp_path / "own.csv", data_options={"text": "text"}, out=tmp_path / "run", **QUICK)
    found = data_of(evenly.load(tmp_path / "run"))
    assert found.test.inputs.dtype == torch.int64
    assert run.results.measured.accuracy == pytest.approx(
        (run.outputs(found.test).argmax(1) == found.test.labels).double().mean().item()
    )
