"""A bag of words against scikit-learn's TF-IDF; what reads texts and what does not."""

import sys

import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from torch import nn

import evenly
from evenly.data import Data, Split, Texts
from evenly.models import BagOfWords, encoded, factory
from evenly.models.texts import Vocabulary, bag_of_words, words_of

TEXTS = [
    "The film was good, very good!", "a bad book", "Very, very, very, very bad", "the book I read was good",
    "good film; bad end",
    "nothing", "été was GOOD", "I read a film",
]  # fmt: skip
UNSEEN = ["good good film", "unheard-of syllables", "the book was bad and the film was bad"]


def data(labels=(1, 0, 0, 1, 1, 0, 1, 0)):
    return Data(
        train=Split(Texts(TEXTS), list(labels)), test=Split(Texts(UNSEEN), [1, 0, 0]), class_names=["bad", "good"]
    )


def test_words_are_in_lower_case_and_of_any_alphabet():
    assert words_of("Don't: I read 2 ÉTÉS, snake_case") == ["don", "t", "i", "read", "2", "étés", "snake_case"]


@pytest.mark.parametrize(("min_count", "max_words"), [(1, 100), (2, 100), (1, 4)])
@pytest.mark.parametrize("hidden", [(), (5,), (5, 3)])
def test_it_is_a_perceptron_on_the_tf_idf_vectors_of_scikit_learn(min_count, max_words, hidden):
    network = factory(
        "bag-of-words", (), 3, 0, texts=TEXTS, min_count=min_count, max_words=max_words, hidden=hidden
    )[0]().double()  # fmt: skip
    network.bias.data.normal_(generator=torch.Generator().manual_seed(0))
    oracle = TfidfVectorizer(
        token_pattern=r"(?u)\b\w+\b", binary=True, min_df=min_count, max_features=max_words
    ).fit(TEXTS)  # fmt: skip
    assert list(network.vocabulary.words) == oracle.get_feature_names_out().tolist()
    for texts in (TEXTS, UNSEEN):
        x = torch.from_numpy(oracle.transform(texts).toarray())
        x = x @ network.words.weight[1:] + network.bias
        for layer in network.layers:
            x = layer(x)
        assert x.shape == (len(texts), 3)
        torch.testing.assert_close(network(network.encode(texts)), x, rtol=0, atol=1e-6)  # idf is kept in float32


@pytest.fixture
def counted(monkeypatch):
    """How many texts each call of a bag of words' encoder was given."""
    calls, encode = [], BagOfWords.encode
    monkeypatch.setattr(BagOfWords, "encode", lambda self, texts: calls.append(len(texts)) or encode(self, texts))
    return calls


def test_the_arms_of_a_comparison_encode_once(counted, monkeypatch):
    fits, fitted = [], Vocabulary._fitted.__func__
    monkeypatch.setattr(Vocabulary, "_fitted", classmethod(lambda *given: fits.append(1) or fitted(*given)))
    monkeypatch.setattr("evenly.models.texts._VOCABULARIES", {})
    table = evenly.compare(
        data(), model="bag_of_words", methods=["erm", "lff"], optimizers=["sgd", "sam"], seeds=2, epochs=1
    )
    assert len(table.rows) >= 8
    assert counted == [8, 3]  # the training texts and those of the test
    assert fits == [1]


def test_what_encodes_otherwise_encodes_anew(counted):
    given, networks = data(), [bag_of_words(TEXTS, 2, min_count=n, max_length=m)() for n, m in ((1, 9), (2, 9), (1, 2))]
    for network in (*networks, networks[0]):
        expected = network.encode(TEXTS)
        counted.clear()
        first, again = (encoded(given, network).train.inputs for _ in range(2))
        assert torch.equal(first[:, : expected.shape[1]], expected)
        first.fill_(-1)  # what one run does to its ids is no other's concern
        assert torch.equal(again, encoded(given, network).train.inputs)
        assert counted == [8, 3]
    counted.clear()
    given.train.inputs.texts[0] = "bad bad end"
    assert torch.equal(encoded(given, networks[0]).train.inputs[0, :2], networks[0].encode(["bad bad end"])[0])
    assert counted[:1] == [8]


def test_an_encoder_that_does_not_say_what_it_depends_on_is_asked_every_time():
    class Lengths(nn.Module):
        calls = 0

        def encode(self, texts):
            Lengths.calls += 1
            return torch.tensor([[len(text) + Lengths.calls] for text in texts])

    given = data()
    first, second = (encoded(given, Lengths()).train.inputs for _ in range(2))
    assert not torch.equal(first, second)


def test_few_vocabularies_are_kept():
    from evenly.models.texts import _VOCABULARIES, MOST_KEPT

    for n in range(MOST_KEPT + 3):
        Vocabulary.of([*TEXTS, f"word{n}"], min_count=1)
    assert len(_VOCABULARIES) == MOST_KEPT
    assert f"word{n}" in Vocabulary.of([*TEXTS, f"word{n}"], min_count=1).words
    assert "nothing" not in Vocabulary.of([*TEXTS, f"word{n}"], min_count=2).words


def test_ids_name_each_known_word_once_and_zeros_follow():
    network = BagOfWords(Vocabulary(("bad", "film", "good"), (1.0, 2.0, 3.0)), 2)
    assert network.encode(UNSEEN).tolist() == [[3, 2], [0, 0], [1, 2]]
    assert network.encode(["what"]).tolist() == [[0]]
    short = BagOfWords(network.vocabulary, 2, max_length=1)
    assert short.encode(UNSEEN).tolist() == [[3], [0], [1]]
    padded = torch.nn.functional.pad(network.encode(UNSEEN), (0, 5))
    torch.testing.assert_close(network(padded), network(network.encode(UNSEEN)))
    outputs = network(network.encode(UNSEEN))
    torch.testing.assert_close(outputs[1], network.layers(network.bias[None])[0])
    outputs.sum().backward()
    assert not network.words.weight.grad[0].any()  # padding learns nothing


def test_the_vocabulary_is_of_the_training_texts_and_splits_have_one_length():
    fresh = factory("bag_of_words", (), 2, 0, texts=TEXTS)[0]
    network = fresh()
    assert "syllables" not in network.vocabulary.words
    read = encoded(data(), network)
    assert read.train.inputs.shape == (8, 6)
    assert read.test.inputs.shape == (3, 6)
    assert read.train.texts == TEXTS
    assert read.class_names == ["bad", "good"]
    assert all(
        torch.equal(a, b) for a, b in zip(network.state_dict().values(), fresh().state_dict().values(), strict=True)
    )
    plain = Data((torch.randn(4, 2), [0, 1, 0, 1]))
    assert encoded(plain, nn.Linear(2, 2)) is plain


def test_it_learns_and_a_resumed_run_ends_in_the_same_weights(tmp_path):
    whole = evenly.train(data(), epochs=30, batch_size=4, out=tmp_path / "a", device="cpu", model="bag_of_words")
    assert whole.results.splits["train"].accuracy == 1.0
    assert whole.results.model == "bag_of_words"

    class StopError(Exception):
        pass

    def stop(share, note):
        if share > 0.5:
            raise StopError

    settings = {"epochs": 30, "batch_size": 4, "out": tmp_path / "b", "device": "cpu"}
    with pytest.raises(StopError):
        evenly.train(data(), model="bag_of_words", progress=stop, **settings)
    resumed = evenly.train(data(), model="bag_of_words", **settings)
    pairs = zip(whole.model.state_dict().values(), resumed.model.state_dict().values(), strict=True)
    assert all(torch.equal(mine, theirs) for mine, theirs in pairs)


def test_a_network_of_the_users_own_reads_texts_by_its_encode():
    class Lengths(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(1, 2)

        def encode(self, texts):
            return torch.tensor([[len(text)] for text in texts])

        def forward(self, ids):
            return self.head(ids.float() / 10)

    run = evenly.train(data(), model=Lengths, epochs=1, device="cpu")
    expected = run.model(torch.tensor([[len(text)] for text in UNSEEN]))
    assert run.results.splits["test"].accuracy == float((expected.argmax(1) == torch.tensor([1, 0, 0])).double().mean())


NUMBERS = (torch.randn(4, 3), [0, 1, 0, 1])
REFUSED = [
    ("mlp", None, {}, "mlp cannot read texts; use bag_of_words, or hf:FOLDER for a model of transformers"),
    ("convnet", None, {}, "convnet cannot read texts"),
    (nn.Linear(3, 2), None, {}, r"Linear cannot read texts: it has no method encode\(texts\); add one that"),
    ("bag_of_words", NUMBERS, {}, r"reads texts, got numbers of shape \(3,\)"),
    ("bag_of_words", None, {"min_count": 9}, "no word is in 9 of the 8 training texts .*; lower min_count"),
    ("bag_of_words", None, {"min_cuont": 9}, "bag_of_words cannot be built with options .*min_cuont"),
    ("bag_of_words", None, {"hidden": -5}, "hidden must be a list, got -5"),
    ("bag_of_words", None, {"hidden": [4, 0]}, r"hidden must be .*, got \[4, 0\]"),
    ("bag_of_wodrs", None, {}, "no model is called 'bag_of_wodrs'; did you mean 'bag_of_words'"),
    (
        "hf:nowhere",
        None,
        {},
        "'nowhere' holds no config.json; give a folder that a model's save_pretrained",
    ),
]


@pytest.mark.parametrize(("model", "numbers", "options", "message"), REFUSED)
def test_refusals(model, numbers, options, message, refused):
    settings = {"data": numbers or data(), "model": model, "model_options": options}
    refused(message, evenly.train, **settings, epochs=1, device="cpu")


def test_transformers_are_asked_for_where_they_are_not_installed(tmp_path, monkeypatch, refused):
    for file in ("config.json", "tokenizer.json", "model.safetensors"):
        (tmp_path / file).write_text("{}")
    monkeypatch.setitem(sys.modules, "transformers", None)
    message = r"needs transformers .*; run: pip install 'evenly\[transformers\]', or use bag"
    refused(message, evenly.train, data=data(), model=f"hf:{tmp_path}", epochs=1)
