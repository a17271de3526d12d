"""Audits of predictions alone: the same numbers as with the network, what is left out, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import evenly
from evenly.data import Data, Split
from evenly.data.contract import Places
from evenly.diagnose.audit_values import Findings
from evenly.diagnose.auditing import NEEDS_NETWORK
from evenly.diagnose.given_predictions import read_predictions
from evenly.report import write_report


def data_of(n: int = 300, classes: int = 2, attributes: bool = True, groups: bool = False, places: Any = None) -> Data:
    random = np.random.default_rng(0)
    parts = {}
    for name in ("train", "test"):
        y, a = np.arange(n) % classes, random.integers(0, 2, n)
        x = (random.normal(size=(n, 3)) + y[:, None]).astype(np.float32)
        own = places if name == "test" else None
        parts[name] = Split(x, y, a if groups else None, {"a": a} if attributes else None, name=name, places=own)
    return Data(**parts, class_names=["cat", "dog", "eel"][:classes])


@pytest.fixture(scope="module")
def linear() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 2))


def test_probabilities_alone_give_the_numbers_that_the_network_gives(linear: Any) -> None:
    data = data_of()
    with torch.no_grad():
        shares = linear(data.test.inputs).double().softmax(1)
    whole = evenly.audit(linear, data, top=0, samples=20, name="it").findings()
    alone = evenly.audit(predictions=shares, data=data, name="it").findings()
    for name in ("by", "slices", "confusion", "rates"):
        assert getattr(alone, name) == getattr(whole, name)
    assert alone.overall.loss == pytest.approx(whole.overall.loss)
    assert alone.calibration.error == pytest.approx(whole.calibration.error)
    assert [each.index for each in alone.hardest] == [each.index for each in whole.hardest]
    assert alone.importance is None
    assert set(NEEDS_NETWORK) <= alone.missing.keys()
    assert all("predictions only" in alone.missing[name] for name in NEEDS_NETWORK)
    assert Findings.from_dict(alone.to_dict()).to_dict() == alone.to_dict()


@pytest.mark.parametrize("form", [
    lambda p: p, lambda p: p.tolist(), torch.tensor, lambda p: p[:, 1], lambda p: p[:, 1:],
    lambda p: p.astype(np.float32),
])  # fmt: skip
def test_forms_of_probabilities(form: Any) -> None:
    p = np.random.default_rng(1).dirichlet([1, 1], 300)
    found = evenly.audit(predictions=form(p), data=data_of())
    assert found.predicted.tolist() == p.argmax(1).tolist()
    assert found.probabilities.numpy() == pytest.approx(p, abs=1e-6)


@pytest.mark.parametrize("form", [
    lambda y: y, lambda y: y.tolist(), torch.tensor, lambda y: y.astype(float), lambda y: y[:, None],
    lambda y: np.array(["cat", "dog"])[y], lambda y: [("cat", "dog")[k] for k in y],
])  # fmt: skip
def test_predicted_classes_alone_have_neither_loss_nor_calibration(form: Any, tmp_path: Any) -> None:
    predicted = np.arange(300) // 2 % 2
    found = evenly.audit(predictions=form(predicted), data=data_of(attributes=False))
    assert found.predicted.tolist() == predicted.tolist()
    assert found.losses is found.probabilities is found.calibration is None
    assert {"loss", "calibration"} <= found.missing.keys()
    assert (found.by, [group.name for group in found.groups]) == ("class", ["cat", "dog"])
    assert (predicted != np.arange(300) % 2)[found.hardest].all()
    assert found.header() == ["example", "label", "prediction"]
    text = write_report(found, tmp_path / "audit.html").read_text()
    assert "gets wrong" in text
    assert "Lorenz" not in text
    assert 'id="calibration"' not in text


def test_groups_are_the_given_ones_then_label_and_attribute_then_classes() -> None:
    p = np.full((300, 2), 0.5)
    assert evenly.audit(predictions=p, data=data_of(groups=True)).by == "group"
    assert evenly.audit(predictions=p, data=data_of()).by == "label and a"
    assert evenly.audit(predictions=p, data=data_of(attributes=False)).by == "class"


def test_a_probability_of_0_has_a_finite_loss() -> None:
    found = evenly.audit(predictions=np.eye(2)[np.arange(300) // 2 % 2], data=data_of())
    assert float(found.losses.max()) == pytest.approx(-np.log(1e-7))


def test_what_is_refused(refused: Any, linear: Any) -> None:
    data, p = data_of(), np.full((300, 2), 0.5)

    def check(match: str, predictions: Any, data: Any = data, **settings: Any) -> None:
        refused(match, evenly.audit, predictions=predictions, data=data, **settings)

    check("there are 299 predictions for 300 test examples", p[1:])
    check("not between 0 and 1; give probabilities, e.g. torch.softmax", 3 * p)
    check("nan, which is not between", np.where(np.arange(300)[:, None] == 7, np.nan, p))
    check("prediction 0 sum to 0.8", 0.8 * p)
    check("prediction 0 is 'bird', which is no class of the data; there are: cat, dog", ["bird"] * 300)
    check("prediction 2 is no class", np.full(300, 2))
    check("shape .* for 2 classes", np.full((300, 3), 1 / 3))
    check("shape", np.full((300, 2, 2), 0.5))
    check("for two classes, and there are 3", np.full(300, 0.5), data_of(classes=3))
    check("there is no validation split", p, split="validation")
    check("top 3 needs the network", p, top=3)
    check("forgetting is of a model's training", p, forgetting=[0] * 300)
    check("data is a NoneType", p, None)
    refused("both a model and predictions", evenly.audit, linear, data, predictions=p)
    refused("give an nn.Module, or what it said as predictions=", evenly.audit, data=data)


def written(path: Any, rows: list[str]) -> Any:
    path.write_text("\n".join(rows))
    return path


def test_a_csv_of_predictions_is_matched_by_its_files(tmp_path: Any) -> None:
    names = [f"{k}.png" for k in range(300)]
    data = data_of(places=Places(names))
    order = np.random.default_rng(0).permutation(300)
    rows = [f"{k}.png,{'cat' if k % 3 else 'dog'}" for k in order]
    path = written(tmp_path / "p.csv", ["file,prediction", "other.png,cat", *rows])
    assert read_predictions(path, data.test, data).predicted.tolist() == [0 if k % 3 else 1 for k in range(300)]


def test_a_csv_of_a_whole_table_is_cut_to_the_split(tmp_path: Any) -> None:
    data = data_of(places=Places(np.arange(0, 600, 2), "row"))
    path = written(tmp_path / "p.csv", ["prediction", *("cat" if k % 4 else "dog" for k in range(600))])
    assert read_predictions(path, data.test, data).predicted.tolist() == [k % 2 == 0 for k in range(300)]


def test_csv_files_that_are_refused(tmp_path: Any, refused: Any) -> None:
    data = data_of()
    classes = ["cat", "dog"] * 150

    def check(match: str, rows: list[str], data: Data = data) -> None:
        refused(match, read_predictions, written(tmp_path / "p.csv", rows), data.test, data)

    check("no column 'prediction' .found: guess", ["guess", *classes])
    check("there are 299 predictions", ["prediction", *classes[1:]])
    check("no column 'probability of dog'", ["prediction,probability of cat", *(f"{name},1" for name in classes)])
    both = "prediction,probability of cat,probability of dog"
    check("is no number", [both, *(f"{name},high,0" for name in classes)])
    check("sum to 1.5", [both, *(f"{name},1,0.5" for name in classes)])
    swapped = ["label,prediction", *["dog,dog", "cat,cat"] * 150]
    check("has label 'dog' for test example 0, the data 'cat' .300 differ", swapped)
    files = data_of(places=Places([f"{k}.png" for k in range(300)]))
    check("no row for file '0.png'", ["file,prediction", *(f"{k + 1}.png,cat" for k in range(300))], files)
