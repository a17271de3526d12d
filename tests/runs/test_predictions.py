"""Predictions of new examples: the outputs of training, bit for bit, and what is made of them."""

from __future__ import annotations

import csv
import json
import sys

import numpy as np
import pytest
import torch
from torch import nn

from evenly.data import Data, Split, Texts, load
from evenly.data.examples import preprocessing_of, read_examples
from evenly.data.preprocessing import ArrayPreprocessing, ImagePreprocessing
from evenly.engine.batches import Batches
from evenly.engine.evaluation import outputs_of
from evenly.errors import EvenlyError
from evenly.models import encoded, factory
from evenly.runs.predictions import Predictions, outputs_on_examples, predict

CPU = torch.device("cpu")


def measured(network, split):
    """The outputs that a training run measures."""
    return outputs_of(network, Batches(split, None, CPU))


def test_a_table_gives_the_outputs_of_training(tmp_path):
    random = np.random.default_rng(0)
    rows = [f"{random.normal()},{random.normal()},{'ab'[i % 2]},{'test' if i > 30 else 'train'}" for i in range(50)]
    (tmp_path / "own.csv").write_text("\n".join(["x,y,label,split", *rows]))
    (tmp_path / "new.csv").write_text("\n".join(["x,y,label,split", *rows[31:]]))
    data = load(tmp_path / "own.csv")
    network = factory("mlp", (2,), 2, 0)[0]()
    examples = read_examples(data.preprocessing, tmp_path / "new.csv", data.class_names)
    assert torch.equal(outputs_on_examples(network, data.preprocessing, examples), measured(network, data.test))
    said = predict(network, data.preprocessing, data.class_names, tmp_path / "new.csv")
    assert said.names == tuple("ab"[k] for k in measured(network, data.test).argmax(1))
    assert said.accuracy == float((measured(network, data.test).argmax(1) == data.test.labels).double().mean())
    assert network.training


def test_texts_are_padded_as_in_training():
    """A product over a longer axis adds up in another order."""
    random = np.random.default_rng(0)
    words = [f"w{i}" for i in range(200)]
    texts = [" ".join(random.choice(words, size)) for size in random.integers(3, 90, 60)]
    parts = {"train": Split(Texts(texts[:50]), [0, 1] * 25), "test": Split(Texts(texts[50:]), [0, 1] * 5)}
    fresh, _ = factory("bag_of_words", (), 2, 0, texts=texts[:50], min_count=1)
    network = fresh()
    read = encoded(Data(**parts), network)
    preprocessing = preprocessing_of(read)
    assert preprocessing.length == read.test.inputs.shape[1]
    examples = read_examples(preprocessing, texts[50:], ["0", "1"])
    assert torch.equal(outputs_on_examples(network, preprocessing, examples), measured(network, read.test))
    ids = predict(network, preprocessing, ["0", "1"], read.test.inputs)
    assert np.array_equal(ids.probabilities, predict(network, preprocessing, ["0", "1"], texts[50:]).probabilities)
    shown = []
    network.register_forward_pre_hook(lambda module, inputs: shown.append(inputs[0].shape[1]))
    predict(network, preprocessing, ["0", "1"], ["w1 w2"])
    assert shown == [preprocessing.length]


def test_bytes_are_put_before_the_network_as_in_training(tmp_path):
    pixels = torch.randint(0, 256, (6, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    network = factory("convnet", (3, 8, 8), 3, 0)[0]()
    split = Split(pixels, [0, 1, 2, 0, 1, 2])
    examples = read_examples(ImagePreprocessing((3, 8, 8)), pixels.numpy(), "abc")
    outputs = outputs_on_examples(network, ImagePreprocessing((3, 8, 8)), examples)
    assert torch.equal(outputs, measured(network, split))
    with torch.no_grad():
        torch.testing.assert_close(outputs, network(pixels.float() / 255))


def test_one_output_is_the_second_class():
    network = nn.Linear(1, 1, bias=False)
    network.weight.data.fill_(2.0)
    said = predict(network, ArrayPreprocessing((1,)), ("no", "yes"), [[-1.0], [0.5]])
    assert said.names == ("no", "yes")
    expected = 1 / (1 + np.exp([2.0, -1.0]))
    np.testing.assert_allclose(said.probabilities, np.stack([1 - expected, expected], 1))


def predictions(**known):
    probabilities = np.array([[0.9, 0.1], [0.25, 0.75], [0.6, 0.4]])
    return Predictions(np.array([0, 1, 0]), probabilities, ("<cat>", "dog, wet"), **known)


def test_they_can_be_saved_and_shown(tmp_path):
    plain = predictions()
    assert repr(plain) == "Predictions(3 examples: <cat> 2, dog, wet 1)"
    assert len(plain) == 3
    assert plain.accuracy is None
    known = predictions(true_labels=np.array([0, 0, 0]), files=("a.png", "b.png", "c.png"), groups=np.array([0, 1, 1]))
    assert known.accuracy == pytest.approx(2 / 3)
    known.save(tmp_path / "new" / "said.csv")
    with (tmp_path / "new" / "said.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["file", "label", "prediction", "probability of <cat>", "probability of dog, wet"]
    assert rows[2] == ["b.png", "<cat>", "dog, wet", "0.25", "0.75"]
    stored = json.loads(json.dumps(known.to_dict()))
    assert stored["labels"] == [0, 1, 0]
    assert stored["names"][1] == "dog, wet"
    assert stored["true_labels"] == [0, 0, 0]
    assert stored["groups"] == [0, 1, 1]
    page = known._repr_html_()
    assert "&lt;cat&gt;" in page
    assert "<cat>" not in page
    assert "0.250" in page


def test_a_frame_has_the_columns_of_the_file(monkeypatch):
    pytest.importorskip("pandas", reason="needs pandas: pip install 'evenly[pandas]'")
    frame = predictions(true_labels=np.array([0, 0, 1])).to_pandas()
    assert list(frame.columns) == ["label", "prediction", "probability of <cat>", "probability of dog, wet"]
    assert frame["label"].tolist() == ["<cat>", "<cat>", "dog, wet"]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(EvenlyError, match=r"to_pandas needs pandas; run: pip install 'evenly\[pandas\]'"):
        predictions().to_pandas()


def test_inputs_that_the_network_cannot_take_are_refused_in_a_line():
    with pytest.raises(
        EvenlyError, match=r"the network cannot take inputs of shape \(3,\) \(.*\); give such"
    ) as refusal:
        predict(nn.Linear(4, 2), ArrayPreprocessing((3,)), "ab", torch.zeros(2, 3))
    assert "\n" not in str(refusal.value)
    with pytest.raises(EvenlyError, match="Linear cannot read texts"):
        predict(nn.Linear(4, 2), preprocessing_of(Data((Texts(["a", "b"]), [0, 1]))), "ab", ["a"])
