"""A sequence classifier of transformers from a local folder, trained and looked at by evenly."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import evenly
from evenly.data import Data, Split, Texts
from evenly.data.examples import preprocessing_of, read_examples
from evenly.engine.batches import Batches
from evenly.engine.evaluation import outputs_of
from evenly.errors import EvenlyError
from evenly.models import encoded, factory
from evenly.models.texts import SequenceClassifier
from evenly.runs.network import NetworkSpec, load_network, save_network
from evenly.runs.predictions import outputs_on_examples

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'evenly[transformers]'")

from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast  # noqa: E402

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", "book", "very", "the", "a", "was", "##ly"]
TEXTS = ["the film was good", "a bad book", "very good", "the book was very very bad", "good film", "bad"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A tiny BERT with a head of three classes and its tokenizer, as save_pretrained leaves them."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=12, num_labels=3,
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(folder)
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join(WORDS), encoding="utf-8")
    BertTokenizerFast(vocab=str(vocabulary)).save_pretrained(folder)
    return folder


@pytest.fixture
def copy(saved, tmp_path):
    return Path(shutil.copytree(saved, tmp_path / "tiny"))


def data():
    labels = [1 if "good" in text else 0 for text in TEXTS]
    return Data(train=Split(Texts(TEXTS), labels), test=Split(Texts(["a good book", "bad film"]), [1, 0]))


def test_logits_are_those_of_transformers_itself(saved):
    network = factory(f"hf:{saved}", (), 3, seed=0, texts=TEXTS)[0]().eval()
    assert isinstance(network, SequenceClassifier)
    ids = network.encode(TEXTS)
    assert ids.dtype == torch.int64
    assert ids.shape == (6, 8)  # the longest has six words, [CLS] and [SEP]
    own = BertForSequenceClassification.from_pretrained(saved).eval()
    with torch.no_grad():
        for text, row in zip(TEXTS, network(ids), strict=True):
            alone = [WORDS.index(word) for word in ("[CLS]", *text.split(), "[SEP]")]
            torch.testing.assert_close(row, own(input_ids=torch.tensor([alone])).logits[0], rtol=0, atol=1e-6)


def test_texts_are_cut_at_what_the_network_can_take(saved):
    long = "very " * 50
    at_most = factory(f"hf:{saved}", (), 2, seed=0, texts=TEXTS, max_length=400)[0]()
    assert at_most.encode([long]).shape == (1, 12)
    assert factory(str(saved), (), 2, seed=0, texts=TEXTS, max_length=5)[0]().encode([long]).shape == (1, 5)


def test_a_new_head_comes_from_the_seed_and_the_rest_from_the_folder(saved):
    first, same, other = (factory(str(saved), (), 2, seed, texts=TEXTS)[0]().state_dict() for seed in (1, 1, 2))
    assert first["network.classifier.weight"].shape == (2, 16)
    assert all(torch.equal(first[key], same[key]) for key in first)
    assert [key for key in first if not torch.equal(first[key], other[key])] == ["network.classifier.weight"]


def test_all_splits_are_padded_to_one_length(saved):
    network = factory(f"hf:{saved}", (), 2, seed=0, texts=TEXTS)[0]()
    read = encoded(data(), network)
    assert read.train.inputs.shape == (6, 8)
    assert read.test.inputs.shape == (2, 8)
    assert read.test.inputs[1].tolist() == [2, 6, 7, 3, 0, 0, 0, 0]
    assert read.test.texts == ["a good book", "bad film"]


def test_it_trains_and_is_loaded_and_audited_without_the_folder_it_came_from(copy, tmp_path):
    settings = {"epochs": 30, "batch_size": 6, "lr": 0.01, "out": tmp_path / "run", "device": "cpu"}
    run = evenly.train(data(), model=f"hf:{copy}", optimizer="adamw", **settings)
    assert run.results.splits["train"].accuracy == 1.0
    assert json.loads((tmp_path / "run/config.json").read_text())["network"]["name"] == f"hf:{copy}"
    shutil.rmtree(copy)
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    loaded = evenly.load(tmp_path / "elsewhere")
    read = encoded(data(), loaded.model)
    outputs = run.outputs(read.test)
    assert torch.equal(loaded.outputs(read.test), outputs)
    assert loaded.predict(["a good book", "bad film"]).labels.tolist() == outputs.argmax(1).tolist()
    evenly.write_report(evenly.audit(loaded.model, read, top=1), tmp_path / "audit.html")
    page = (tmp_path / "audit.html").read_text()
    assert "hardest and easiest test texts" in page
    assert "bad film" in page


REFUSED = {
    "no tokenizer": (
        ["tokenizer.json", "tokenizer_config.json", "vocab.txt"],
        r"has a model but no tokenizer .*; save it there too: tokenizer.save_pretrained",
    ),
    "no weights": (["model.safetensors"], "holds no weights as safetensors; save them as such"),
    "no model": (["config.json"], "holds no config.json; give a folder that a model's save_pretrained has written"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_folder_that_lacks_something_is_refused_in_a_line(copy, case):
    files, message = REFUSED[case]
    for file in files:
        (copy / file).unlink(missing_ok=True)
    with pytest.raises(EvenlyError, match=message) as refusal:
        evenly.train(data(), model=f"hf:{copy}", epochs=1)
    assert "\n" not in str(refusal.value)


def test_pickled_weights_are_not_opened(copy):
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    with pytest.raises(EvenlyError, match="holds no weights as safetensors"):
        evenly.train(data(), model=str(copy), epochs=1)


def test_damaged_weights_are_refused_in_a_line(copy):
    (copy / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(
        EvenlyError, match=r"the sequence classifier in .* cannot be loaded .*; save it again"
    ) as refusal:
        evenly.train(data(), model=str(copy), epochs=1)
    assert "\n" not in str(refusal.value)


@pytest.mark.filterwarnings("ignore:no class fell in two:evenly.errors.EvenlyWarning")  # of twelve texts, and rightly
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("dfr", {"draws": 2}),
        ("dfr", {"draws": 2, "on": "validation"}),
        ("useful", {"on": "features", "separating_epoch": 1}),
        ("eiil", {"separating_epoch": 1}),
        ("lff", {}),
        ("pde", {"groups": "infer"}),
        ("group_dro", {"groups": "infer", "infer": "eiil"}),
        ("dfr", {"draws": 2, "groups": "infer", "infer": "eiil"}),
    ],
)
def test_methods_that_look_into_the_network_take_it(saved, method, options):
    texts = [f"{a} {b} was {c}" for a in ("the", "a") for b in ("film", "book", "very film") for c in ("good", "bad")]
    labels, groups = ([int(word in text) for text in texts] for word in ("good", "film"))
    groups = torch.tensor(groups) + 2 * torch.tensor(labels)
    parts = {name: Split(Texts(texts), labels, groups) for name in ("train", "validation", "test")}
    first, again = (
        evenly.train(Data(**parts), model=f"hf:{saved}", method=method, epochs=2, batch_size=4, lr=0.1, **options)
        for _ in range(2)
    )
    assert len(first.history) == 2
    state, same = first.model.state_dict(), again.model.state_dict()
    assert all(torch.equal(state[name], same[name]) for name in state)
    if method == "dfr":
        assert torch.isfinite(state["network.classifier.weight"]).all()
        assert first.selection.details["C"] > 0


def test_a_network_that_ends_in_another_way_has_no_last_layer_to_fit(tmp_path, copy):
    """GPT-2 scores every token and picks one of the scores."""
    from transformers import GPT2Config, GPT2ForSequenceClassification

    config = GPT2Config(vocab_size=len(WORDS), n_embd=8, n_layer=1, n_head=1, n_positions=12, pad_token_id=0,
                        bos_token_id=2, eos_token_id=3, num_labels=2)  # fmt: skip
    GPT2ForSequenceClassification(config).save_pretrained(copy)
    part = Split(Texts(TEXTS), [1, 0, 1, 0, 1, 0], [0, 1, 0, 1, 0, 1])
    with pytest.raises(EvenlyError, match="does not end in a linear layer that could be fitted anew"):
        evenly.train(Data(part), model=f"hf:{copy}", method="dfr", epochs=1)
    assert evenly.train(Data(part), model=f"hf:{copy}", method="useful", epochs=1, on="features").history


def test_what_its_tokenizer_makes_is_kept_for_networks_with_the_same(saved, copy, monkeypatch):
    calls, encode = [], SequenceClassifier.encode
    monkeypatch.setattr(SequenceClassifier, "encode", lambda self, texts: calls.append(1) or encode(self, texts))
    given = data()
    for folder, length in ((saved, 8), (copy, 8)):
        encoded(given, factory(f"hf:{folder}", (), 2, 0, texts=TEXTS, max_length=length)[0]())
        assert len(calls) == 2
    encoded(given, factory(f"hf:{saved}", (), 2, 0, texts=TEXTS, max_length=5)[0]())
    assert len(calls) == 4
    other = factory(f"hf:{saved}", (), 2, 0, texts=TEXTS, max_length=5)[0]()
    other.tokenizer.add_tokens(["film was"])
    assert torch.equal(encoded(given, other).train.inputs, encode(other, TEXTS))
    assert len(calls) == 6


def test_it_reads_texts_only(saved):
    with pytest.raises(EvenlyError, match=r"hf:.* reads texts, got numbers of shape \(4,\); use mlp"):
        evenly.train((torch.randn(8, 4), torch.arange(8) % 2), model=f"hf:{saved}", epochs=1)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_it_is_rebuilt_without_the_folder_it_came_from(copy, tmp_path, attention):
    options = {"max_length": 7, "attention": attention}
    fresh, name = factory(f"hf:{copy}", (), 2, 1, texts=TEXTS, **options)
    network = fresh()
    read = encoded(data(), network)
    spec = NetworkSpec.from_dict(json.loads(json.dumps(NetworkSpec(name, options).to_dict())))
    for _ in range(2):  # the second time over what a kill may have left
        save_network(network, tmp_path / "run")
    shutil.rmtree(copy)
    before = sorted((tmp_path / "run").rglob("*"))
    again = load_network(spec, tmp_path / "run")
    assert again.encoding == network.encoding
    assert again.network.config._attn_implementation == attention
    examples = read_examples(preprocessing_of(read), ["a good book", "bad film"], ["0", "1"])
    outputs = outputs_on_examples(again, preprocessing_of(read), examples)
    assert torch.equal(outputs, outputs_of(network, Batches(read.test, None, torch.device("cpu"))))
    assert sorted((tmp_path / "run").rglob("*")) == before
    (tmp_path / "run/network/config.json").write_text("{}")
    with pytest.raises(EvenlyError, match=r"network is damaged \(its files are not those in") as refusal:
        load_network(spec, tmp_path / "run")
    assert "\n" not in str(refusal.value)
    shutil.rmtree(tmp_path / "run/network")
    with pytest.raises(EvenlyError, match="holds no network/, the configuration and tokenizer of hf:"):
        load_network(spec, tmp_path / "run")
