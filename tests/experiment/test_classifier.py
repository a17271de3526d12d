"""`evenly.Classifier` as scikit-learn and its users meet it."""

from __future__ import annotations

import copy
import os
import pickle
import random
import re
import subprocess
import sys
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from joblib.externals.loky import get_reusable_executor
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.metrics import make_scorer
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import evenly
from evenly.data import Data


@parametrize_with_checks([evenly.Classifier(), evenly.Classifier(method="useful", optimizer="sam", epochs=15)])
def test_it_passes_every_check_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def blobs():
    """200 rows of four columns in three classes."""
    return make_blobs(200, n_features=4, centers=3, cluster_std=2.0, random_state=0)


@pytest.fixture
def spurious():
    """400 rows in two classes; the second column is easier than the first and agrees with the label for 90%."""
    draw = np.random.default_rng(0)
    y = draw.integers(0, 2, 400)
    place = np.where(draw.random(400) < 0.9, y, 1 - y)
    X = np.stack([draw.normal(2 * y - 1, 1.5), draw.normal(2 * place - 1, 0.3), draw.normal(size=400)], 1)
    birds, places = np.array(["land bird", "water bird"])[y], np.array([" on land", " on water"])[place]
    return X, birds, np.char.add(birds, places)


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def pixels(dtype, count=20):
    values = np.random.default_rng(0).integers(0, 256, (count, 1, 8, 8), dtype=np.uint8)
    return values if dtype == np.uint8 else (values / 255).astype(dtype)


def test_it_trains_what_train_trains(blobs, same_weights):
    X, y = blobs
    scaled = (X - X.mean(0)) / X.std(0)
    run = evenly.train(Data(train=(scaled, y)), model="mlp", method="useful", seed=3, epochs=4, lr=0.02, factor=3)
    fitted = evenly.Classifier(method="useful", random_state=3, epochs=4, lr=0.02, factor=3).fit(X, y)
    assert same_weights(fitted.network_, run.model)
    assert torch.equal(fitted.run_.selection.indices, run.selection.indices)
    assert fitted.predict(X).tolist() == run.predict(scaled).labels.tolist()
    np.testing.assert_allclose(fitted.predict_proba(X), run.predict(scaled).probabilities, atol=1e-6)
    assert fitted.score(X, y) == pytest.approx(run.results.splits["train"].accuracy)


def test_one_seed_gives_one_network_and_leaves_the_global_random_state_alone(blobs, same_weights):
    states = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state())  # noqa: NPY002
    first, second = (evenly.Classifier(epochs=2, random_state=5).fit(*blobs) for _ in range(2))
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tolist() == states[1]  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), states[2])
    again = copy.deepcopy(first.network_)
    assert same_weights(first.network_, second.network_)
    assert same_weights(first.fit(*blobs).network_, again)
    assert not same_weights(evenly.Classifier(epochs=2, random_state=6).fit(*blobs).network_, again)


def test_a_random_state_of_numpy_gives_another_seed_each_time(blobs):
    seeds = [
        evenly.Classifier(epochs=1, random_state=state).fit(*blobs).run_.plan.seed
        for _ in range(2)
        for state in [np.random.RandomState(3)] * 2
    ]
    assert seeds[:2] == seeds[2:]
    assert seeds[0] != seeds[1]


def test_options_are_parameters(blobs):
    classifier = evenly.Classifier(method="useful", factor=3, model_options={"hidden": (8,)})
    assert repr(classifier) == "Classifier(factor=3, method='useful', model_options={'hidden': (8,)})"
    copied = clone(classifier).set_params(factor=4, momentum=0.8, epochs=2)
    assert copied.get_params()["factor"] == 4
    assert classifier.get_params()["factor"] == 3
    plan = copied.fit(*blobs).run_.plan
    assert (plan.method.options["factor"], plan.settings.momentum, plan.settings.epochs) == (4, 0.8, 2)
    assert copied.network_[1].out_features == 8
    assert copied.get_params() == clone(copied).get_params()
    assert evenly.Classifier(epochs=1, batch_size="full").fit(*blobs).run_.plan.settings.batch_size is None


@pytest.mark.parametrize("labels", [["b", "c", "a"], [7, -2, 30], [2.0, 0.0, 1.0], np.array(["b", "c", "a"], object)])
def test_labels_of_any_kind(blobs, labels):
    X, y = blobs
    named = np.asarray(labels)[y]
    fitted = evenly.Classifier(epochs=10).fit(X, named)
    assert fitted.classes_.tolist() == sorted(labels)
    assert fitted.predict(X).dtype == named.dtype
    assert (fitted.predict(X) == named).mean() > 0.8
    assert fitted.run_.config.class_names == tuple(map(str, sorted(labels)))


def test_a_frame_by_its_columns(blobs):
    frame = pd.DataFrame(blobs[0], columns=["a", "b", "label", "d"])
    frame["b"] = frame["b"].round().astype("int64")
    fitted = evenly.Classifier(epochs=3).fit(frame, pd.Series(blobs[1]))
    assert fitted.feature_names_in_.tolist() == ["a", "b", "label", "d"]
    assert fitted.run_.predict(frame).labels.tolist() == fitted.predict(frame).tolist()
    with pytest.raises(ValueError, match="feature names should match"):
        fitted.predict(frame[["b", "a", "label", "d"]])


def test_columns_are_standardised_by_the_training_rows(blobs, same_weights):
    X, y = blobs
    plain = evenly.Classifier(epochs=2).fit(X, y)
    moved = evenly.Classifier(epochs=2).fit(X * 1024 + 4096, y)  # powers of two, so that rounding is alike
    for a, b in zip(plain.network_.parameters(), moved.network_.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    constant = evenly.Classifier(epochs=2).fit(np.column_stack([X, np.full(200, 0.1)]), y)
    assert constant.predict(np.column_stack([X, np.full(200, 0.1)])).shape == (200,)
    held_out = evenly.Classifier(epochs=1, validation_fraction=0.5).fit(X, y)
    assert held_out.run_.preprocessing.mean != plain.run_.preprocessing.mean
    raw = evenly.Classifier(epochs=2, standardise=False).fit(X, y)
    assert same_weights(raw.network_, evenly.train(Data(train=(X, y)), model="mlp", epochs=2).model)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int64])
def test_numbers_of_any_width(blobs, dtype):
    X = (10 * blobs[0]).round().astype(dtype)
    probabilities = evenly.Classifier(epochs=2).fit(X, blobs[1]).predict_proba(X)
    assert probabilities.dtype == np.float64
    np.testing.assert_allclose(probabilities.sum(1), 1)


def test_the_probabilities_of_a_row_do_not_depend_on_the_rows_beside_it(blobs):
    fitted = evenly.Classifier(epochs=30).fit(*blobs)
    one_by_one = np.concatenate([fitted.predict_proba(row[None]) for row in blobs[0]])
    np.testing.assert_allclose(one_by_one, fitted.predict_proba(blobs[0]), rtol=1e-10)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_images(dtype):
    X, y = pixels(dtype), np.arange(20) % 2
    fitted = evenly.Classifier(model="convnet", epochs=2).fit(X, y)
    expected = evenly.train(Data(train=(X, y)), model="convnet", epochs=2).predict(X)
    np.testing.assert_array_equal(fitted.predict_proba(X), expected.probabilities)
    with pytest.raises(evenly.EvenlyError, match=r"shape \(20, 1, 4, 8\) and the network takes \(N, 1, 8, 8\)"):
        fitted.predict(X[:, :, :4])
    other = np.float64 if dtype == np.uint8 else np.uint8
    with pytest.raises(ValueError, match="convert it"):
        fitted.predict(pixels(other))


def test_a_network_of_ones_own(blobs):
    X, y = blobs
    module = nn.Linear(4, 3)
    before = copy.deepcopy(module.state_dict())
    fitted = evenly.Classifier(model=module, epochs=3).fit(X, y)
    assert fitted.predict_proba(X).shape == (200, 3)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert clone(fitted).fit(X, y).predict(X).tolist() == fitted.predict(X).tolist()
    with pytest.raises(evenly.EvenlyError, match="4 classes; it must return"):
        fitted.fit(X, np.arange(200) % 4)
    one_logit = evenly.Classifier(model=nn.Linear(4, 1), epochs=3).fit(X, y > 0)
    assert one_logit.predict_proba(X).shape == (200, 2)
    assert one_logit.predict(X).dtype == bool


def test_a_refit_may_have_other_classes_and_columns(blobs):
    X, y = blobs
    classifier = evenly.Classifier(epochs=1).fit(X[:, :2], y > 0)
    assert classifier.fit(X, np.arange(200) % 7).predict_proba(X).shape == (200, 7)
    assert classifier.n_features_in_ == 4


def test_copies_predict_alike_without_the_folder(blobs, tmp_path, without_pages):
    X, y = blobs
    fitted = evenly.Classifier(epochs=2, out=tmp_path / "run").fit(X, y)
    stored = pickle.dumps(fitted)
    joblib.dump(fitted, tmp_path / "fitted.joblib")
    assert evenly.load(tmp_path / "run").predict(X).labels.tolist() == fitted.predict(X).tolist()
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    for copied in (pickle.loads(stored), joblib.load(tmp_path / "fitted.joblib"), copy.deepcopy(fitted)):
        np.testing.assert_array_equal(copied.predict_proba(X), fitted.predict_proba(X))
    in_memory = evenly.Classifier(epochs=2).fit(X, y)
    copied = pickle.loads(pickle.dumps(in_memory))
    assert copied.run_.model is copied.network_
    assert copied.run_.results == in_memory.run_.results


def test_nothing_is_printed_logged_or_written(blobs, tmp_path, monkeypatch, capfd, caplog):
    monkeypatch.chdir(tmp_path)
    caplog.set_level("INFO", "evenly")
    evenly.Classifier(epochs=2).fit(*blobs).predict(blobs[0])
    assert capfd.readouterr() == ("", "")
    assert caplog.messages == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_network_trained_on_a_gpu_predicts_on_the_cpu(blobs):
    X, y = blobs
    fitted = evenly.Classifier(epochs=2, device="cuda").fit(X, y)
    on_gpu = fitted.predict_proba(X)
    assert b"cuda:0" not in pickle.dumps(fitted.network_)
    np.testing.assert_allclose(fitted.set_params(device="cpu").predict_proba(X), on_gpu, atol=1e-9)


class TestValidation:
    def test_a_share_is_held_out_by_class_and_group(self, spurious):
        X, y, groups = spurious
        fitted = evenly.Classifier(epochs=3, select="worst-group", validation_fraction=0.25).fit(X, y, groups)
        assert fitted.run_.results.rule == "worst-group"
        counts = fitted.run_.results.splits["validation"].group_counts
        names, totals = np.unique(groups, return_counts=True)
        assert fitted.run_.config.group_names == tuple(names)
        assert np.abs(np.array(counts) - totals / 4).max() <= 1
        assert fitted.run_.results.data.sizes["train"] == 400 - sum(counts)

    def test_a_set_of_ones_own(self, spurious):
        X, y, groups = spurious
        X2, y2, groups2 = X[:50], y[:50], groups[:50]
        fitted = evenly.Classifier(epochs=3, select="average").fit(X, y, groups, validation_data=(X2, y2, groups2))
        assert fitted.run_.results.splits["validation"].accuracy == fitted.score(X2, y2)
        seen = groups[50:] != "land bird on water"
        rest = (X[50:][seen], y[50:][seen], groups[50:][seen])
        unseen = evenly.Classifier(epochs=1).fit(*rest, validation_data=(X2, y2, groups2))
        assert "land bird on water" in unseen.run_.config.group_names

    @pytest.mark.parametrize(
        ("parameters", "data", "message"),
        [
            ({"select": "average"}, {}, "select 'average' needs validation examples.* give validation_fraction=0.2"),
            ({"validation_fraction": 1.0}, {}, "validation_fraction must be below 1, got 1.0"),
            ({"validation_fraction": 0.001}, {}, "leaves class 'land bird', of 179 examples, none for validation"),
            ({"validation_fraction": 0.2}, {"validation_data": ([[0, 0, 0]], ["land bird"])}, "give one of them"),
            ({}, {"validation_data": 3}, r"must be \(X, y\) or \(X, y, groups\), got 3"),
            ({}, {"validation_data": ([[0, 0, 0]], ["fish"])}, "label 'fish' of the validation data never occurs in y"),
            (
                {},
                {"groups": "given", "validation_data": ([[0, 0, 0]], ["land bird"])},
                "groups of training and of validation_data are not",
            ),
        ],
    )
    def test_what_cannot_be_is_refused(self, spurious, refused_call, parameters, data, message):
        X, y, groups = spurious
        data = {**data, "groups": groups} if "groups" in data else data
        refused_call(message, evenly.Classifier(**parameters).fit, X, y, **data)


class TestGroups:
    @pytest.mark.parametrize(
        "kind", [np.asarray, list, pd.Series, lambda groups: np.unique(groups, return_inverse=True)[1] * 10]
    )
    def test_groups_of_any_kind(self, spurious, kind):
        X, y, groups = spurious
        fitted = evenly.Classifier(method="group_dro", epochs=2).fit(X, y, kind(groups))
        assert len(fitted.run_.config.group_names) == 4
        totals = np.unique(groups, return_counts=True)[1]
        assert fitted.run_.results.splits["train"].group_counts == tuple(totals)
        predicted = fitted.predict(X)
        worst = evenly.worst_group_accuracy(y, predicted, groups=kind(groups))
        assert worst == min((predicted == y)[groups == group].mean() for group in np.unique(groups))
        assert worst == fitted.run_.results.splits["train"].worst_group

    def test_overlapping_groups_are_measured(self, spurious):
        X, y, groups = spurious
        columns = np.stack([np.char.endswith(groups, "water"), y == "water bird"], 1)
        fitted = evenly.Classifier(epochs=2).fit(X, y, columns)
        assert fitted.run_.results.splits["train"].group_counts == tuple(columns.sum(0))
        worst = evenly.worst_group_accuracy(y, fitted.predict(X), groups=columns)
        assert worst == fitted.run_.results.splits["train"].worst_group

    def test_groups_are_inferred_on_request(self, spurious):
        X, y, _ = spurious
        assert evenly.Classifier(method="pde", groups="infer", epochs=2).fit(X, y).run_.results.inferred_groups

    @pytest.mark.parametrize(
        ("groups", "message"),
        [
            (None, r"method='pde' needs groups and fit was given none; give fit\(X, y, groups=...\)"),
            ([None, "a"] * 200, "groups hold None at index 0"),
            (np.zeros((400, 2), int), r"groups have shape \(400, 2\)"),
        ],
    )
    def test_what_cannot_be_is_refused(self, spurious, refused_call, groups, message):
        X, y, _ = spurious
        refused_call(message, evenly.Classifier(method="pde").fit, X, y, groups)

    def test_a_metric_without_groups_is_refused(self, refused_call):
        refused_call("enable_metadata_routing=True", evenly.worst_group_accuracy, [0], [0])
        refused_call(r"y_true has shape \(2,\)", evenly.worst_group_accuracy, [0, 1], [0], groups=[0, 1])


class TestSearches:
    def test_a_grid_of_methods(self, spurious):
        X, y, _ = spurious
        grid = {"method": ["erm", "useful", "jtt"], "lr": [0.01, 0.05]}
        search = GridSearchCV(evenly.Classifier(epochs=3), grid, cv=2, error_score="raise").fit(X, y)
        assert len(search.cv_results_["params"]) == 6
        assert search.best_estimator_.run_.plan.method.name == search.best_params_["method"]
        assert search.best_score_ > 0.8

    def test_a_grid_over_options_of_a_method(self, blobs):
        grid = [{"method": ["erm"]}, {"method": ["useful"], "factor": [2, 5]}]
        search = GridSearchCV(evenly.Classifier(epochs=2), grid, cv=2, error_score="raise").fit(*blobs)
        assert len(search.cv_results_["params"]) == 3

    def test_the_worst_group_decides(self, spurious, routing):
        X, y, groups = spurious
        score = make_scorer(evenly.worst_group_accuracy).set_score_request(groups=True)
        pipeline = make_pipeline(MinMaxScaler(), evenly.Classifier(epochs=10))
        grid = {"classifier__method": ["erm", "pde"]}
        search = GridSearchCV(pipeline, grid, cv=2, scoring=score, error_score="raise").fit(X, y, groups=groups)
        assert search.best_params_ == {"classifier__method": "pde"}
        erm, pde = search.cv_results_["mean_test_score"]
        assert pde > erm + 0.2

    def test_probabilities_across_folds(self, blobs):
        probabilities = cross_val_predict(evenly.Classifier(epochs=10), *blobs, method="predict_proba", cv=3)
        assert (probabilities.argmax(1) == blobs[1]).mean() > 0.8

    @pytest.mark.parametrize("backend", ["loky", "threading"])
    def test_in_processes_and_threads(self, blobs, backend):
        """Threads share the global random state: without a lock, networks start from each other's draws."""
        grid = {"method": ["erm", "useful"], "random_state": [0, 1]}
        alone = GridSearchCV(evenly.Classifier(epochs=2), grid, cv=2).fit(*blobs)
        state = torch.get_rng_state()
        with joblib.parallel_config(backend):
            shared = GridSearchCV(evenly.Classifier(epochs=2), grid, cv=2, n_jobs=2).fit(*blobs)
        get_reusable_executor().shutdown()  # its idle processes would stay for the tests after this one
        scores = [search.cv_results_["mean_test_score"].tolist() for search in (alone, shared)]
        assert scores[0] == scores[1]
        assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"eppochs": 3}, "no setting or option of erm is called 'eppochs'; did you mean 'epochs'"),
        ({"method": "usefull"}, "no method is called 'usefull'; did you mean 'useful'"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"seed": 3}, "seed is called random_state here; give random_state=3"),
        ({"random_state": True}, "random_state must be a whole number, got True"),
        ({"standardise": "no"}, "standardise must be true or false, got 'no'"),
        ({"model": "convnet"}, r"convnet takes images \(C, H, W\), got inputs \(4,\); use mlp"),
    ],
)
def test_a_wrong_parameter_is_refused_in_fit(blobs, refused_call, parameters, message):
    refused_call(message, evenly.Classifier(**parameters).fit, *blobs)


def test_a_wrong_parameter_is_refused_when_set(refused_call):
    refused_call("no parameter of Classifier is called 'eppochs'", evenly.Classifier().set_params, eppochs=3)
    with pytest.raises(ValueError, match="did you mean 'epochs'"):
        evenly.Classifier().set_params(eppochs=3)


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        ([[0.0], [1.0]], ["a", "a"], "y has one class only, 'a'"),
        ([0.0, 1.0], [0, 1], "Expected 2D array"),
        ([[np.nan], [1.0]], [0, 1], "contains NaN"),
        ([[-1e300], [1e300]], [0, 1], "column 'x0' holds 1e\\+300, too much to standardise"),
        ([["a"], ["b"]], [0, 1], "numeric"),
    ],
)
def test_inputs_that_cannot_be_learned_from_are_value_errors(X, y, message):
    with pytest.raises(ValueError, match=message):
        evenly.Classifier().fit(X, y)


def test_two_examples(refused_call):
    X, y = [[0.0], [1.0]], ["cat", "dog"]
    assert evenly.Classifier(epochs=20).fit(X, y).predict(X).tolist() == y
    refused_call("class cat has one example", evenly.Classifier(method="useful").fit, X, y)


def test_the_name_is_there_before_anything_is_loaded():
    code = (
        "import sys, evenly; dir(evenly).index('Classifier'); print(*{'torch', 'numpy', 'sklearn'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_example_chooses_pde_by_the_worst_group():
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", str(root / "examples" / "sklearn_search.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=environment)
    assert re.search("^pde on test: worst group [67]", done.stdout, re.MULTILINE), done.stdout
