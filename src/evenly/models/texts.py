"""Networks for texts. Each has `encode`, which turns N strings into token ids, int64 (N, L), and reads those ids.

Training and diagnosis see the ids; `encoded` makes them for all splits of a data set. The texts cache them for networks
with an equal `encoding`, such as those of a comparison's arms.

    bag_of_words        which words occur, weighted by how rare they are; needs nothing but the training texts
    hf:FOLDER           a sequence classifier of transformers with its tokenizer, saved in a local folder
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evenly.data.contract import Count, Data, Split
from evenly.data.texts import Texts
from evenly.errors import EvenlyError, first_line
from evenly.settings import checks_options

WORD = re.compile(r"\w+")
TOKENIZERS = (
    "tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model",
    "tokenizer.model",
)  # fmt: skip
"""A folder with a tokenizer has at least one of these files."""

Build = Callable[[], nn.Module]


def words_of(text: str) -> list[str]:
    """The words of a text, in lower case."""
    return WORD.findall(text.lower())


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Words and how rare each is. The k-th word has the id k + 1; 0 is padding.

    Args:
        idf: log((1 + N) / (1 + N_w)) + 1, where N_w of the N training texts have the word, as in scikit-learn.
    """

    words: tuple[str, ...]
    idf: tuple[float, ...]

    @classmethod
    def of(cls, texts: Sequence[str], min_count: int = 2, max_words: int = 20_000) -> Vocabulary:
        """The `max_words` most frequent words among those that at least `min_count` texts have; cached by content."""
        key = (Texts(texts).fingerprint(), min_count, max_words)
        vocabulary = _VOCABULARIES.pop(key, None) or cls._fitted(texts, min_count, max_words)
        _VOCABULARIES[key] = vocabulary
        while len(_VOCABULARIES) > MOST_KEPT:
            del _VOCABULARIES[next(iter(_VOCABULARIES))]
        return vocabulary

    @classmethod
    def _fitted(cls, texts: Sequence[str], min_count: int, max_words: int) -> Vocabulary:
        from sklearn.feature_extraction.text import TfidfVectorizer

        try:
            tfidf = TfidfVectorizer(analyzer=words_of, binary=True, min_df=min_count, max_features=max_words).fit(texts)
        except ValueError as error:
            raise EvenlyError(
                f"no word is in {min_count} of the {len(texts)} training texts ({error}); lower min_count"
            ) from None
        return cls(tuple(tfidf.get_feature_names_out().tolist()), tuple(tfidf.idf_.tolist()))


_VOCABULARIES: dict[tuple[str, int, int], Vocabulary] = {}
MOST_KEPT = 4
"""Vocabularies in the cache: the arms of a comparison learn from the same texts."""


class BagOfWords(nn.Module):
    """Which words occur, weighted by idf, the weights of a text scaled to length 1; then hidden layers with ReLU.

    The first layer is a vector for each word: an MLP on the TF-IDF vector of each text (presence, not counts), which is
    never built. For a text without a known word the biases decide.

    Args:
        max_length: how many distinct words of a text are used, from its beginning.
        hidden: widths of the hidden layers; () is a linear classifier.
        dropout: share of each hidden layer's outputs that training zeroes, after the ReLU.
    """

    idf: Tensor
    pad = 0

    @checks_options
    def __init__(
        self,
        vocabulary: Vocabulary,
        classes: int,
        max_length: Count = 500,
        hidden: Sequence[int] = (64,),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if not all(width > 0 for width in hidden):
            raise EvenlyError(f"hidden must be a list of widths above 0, e.g. [64], or [] for none, got {hidden!r}")
        self.vocabulary, self.max_length = vocabulary, max_length
        self._ids = {word: k for k, word in enumerate(vocabulary.words, 1)}
        self.register_buffer("idf", torch.tensor([0.0, *vocabulary.idf]))
        widths = [*hidden, classes]
        self.words = nn.Embedding(len(vocabulary.words) + 1, widths[0])
        self.bias = nn.Parameter(torch.zeros(widths[0]))
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.ReLU(), *([nn.Dropout(dropout)] if dropout else []), nn.Linear(before, after)]
        self.layers = nn.Sequential(*layers)

    @property
    def encoding(self) -> Hashable:
        """Everything that `encode` depends on."""
        return self.vocabulary, self.max_length

    def encode(self, texts: Sequence[str]) -> Tensor:
        """(N, L): the ids of each text's known words, each once, and zeros; L is the largest number of them."""
        ids = []
        for text in texts:
            known = dict.fromkeys(self._ids[word] for word in words_of(text) if word in self._ids)
            ids.append(torch.tensor(list(known)[: self.max_length]).long())
        return nn.utils.rnn.pad_sequence([*ids, torch.zeros(1).long()], batch_first=True)[:-1]

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (N, K) of ids (N, L)."""
        weights = F.normalize(self.idf[ids], dim=1)
        outputs: Tensor = self.layers((weights[:, None] @ self.words(ids))[:, 0] + self.bias)
        return outputs


@checks_options
def bag_of_words(
    texts: Sequence[str], classes: int, min_count: Count = 2, max_words: Count = 20_000, **options: Any
) -> Build:
    """A function that builds a bag-of-words network on the words of the training texts."""
    vocabulary = Vocabulary.of(texts, min_count, max_words)
    return lambda: BagOfWords(vocabulary, classes, **options)


class SequenceClassifier(nn.Module):
    """A sequence classifier of transformers that takes token ids (N, L) alone and returns logits (N, K)."""

    def __init__(self, network: nn.Module, tokenizer: Any, max_length: int) -> None:
        super().__init__()
        self.network, self.tokenizer, self.max_length = network, tokenizer, max_length
        self.pad = int(tokenizer.pad_token_id)

    @property
    def encoding(self) -> Hashable:
        """Everything that `encode` depends on; None for a tokenizer that cannot be serialised."""
        rules = getattr(self.tokenizer, "backend_tokenizer", None)
        if rules is None:
            return None
        sides = (self.tokenizer.padding_side, self.tokenizer.truncation_side)
        return hashlib.sha256(rules.to_str().encode()).hexdigest(), sides, self.pad, self.max_length

    def encode(self, texts: Sequence[str]) -> Tensor:
        """(N, L) token ids as the tokenizer makes them, cut to `max_length`, padded to the longest."""
        ids: Tensor = self.tokenizer(
            list(texts), truncation=True, max_length=self.max_length, padding=True, return_tensors="pt"
        )["input_ids"]
        return ids

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (N, K) of ids (N, L); padding is masked."""
        outputs: Tensor = self.network(input_ids=ids, attention_mask=(ids != self.pad).long()).logits
        return outputs


def sequence_classifier(
    folder: str, classes: int, max_length: int = 128, attention: Literal["eager", "sdpa"] = "eager"
) -> Build:
    """A function that loads a sequence classifier and its tokenizer from a local folder; nothing in it is executed.

    A head for another number of classes is initialised from the global random state.

    Args:
        max_length: a text is truncated after so many tokens; the network may allow fewer.
        attention: "sdpa" is faster, "eager" has second derivatives, which an audit's curvature needs.
    """
    path = Path(folder)
    if not (path / "config.json").is_file():
        raise EvenlyError(f"{folder!r} holds no config.json; give a folder that a model's save_pretrained has written")
    if not any((path / file).is_file() for file in TOKENIZERS):
        raise EvenlyError(
            f"{folder!r} has a model but no tokenizer ({', '.join(TOKENIZERS[:3])}, ...); save it there too: "
            f"tokenizer.save_pretrained({folder!r})"
        )
    if not list(path.glob("*.safetensors")):
        raise EvenlyError(
            f"{folder!r} holds no weights as safetensors; save them as such: "
            f"model.save_pretrained({folder!r}, safe_serialization=True)"
        )
    transformers = _transformers(folder)
    with _refused(folder, "tokenizer"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    if tokenizer.pad_token_id is None:
        raise EvenlyError(
            f"the tokenizer in {folder!r} has no padding token; set tokenizer.pad_token and save it again"
        )

    def build() -> nn.Module:
        with _refused(folder, "sequence classifier"):
            network = transformers.AutoModelForSequenceClassification.from_pretrained(
                path, num_labels=classes, ignore_mismatched_sizes=True, local_files_only=True, use_safetensors=True,
                dtype=torch.float32, attn_implementation=attention, trust_remote_code=False,
            )  # fmt: skip
        return _classifier(network, tokenizer, max_length)

    return build


def _classifier(network: Any, tokenizer: Any, max_length: int) -> SequenceClassifier:
    network.config.pad_token_id = tokenizer.pad_token_id
    most = getattr(network.config, "max_position_embeddings", None) or max_length
    return SequenceClassifier(network, tokenizer, min(max_length, most, tokenizer.model_max_length))


def save_classifier(network: SequenceClassifier, folder: Path) -> None:
    """Save what a sequence classifier is rebuilt from but for its weights: its configuration and its tokenizer."""
    inner: Any = network.network
    inner.config.save_pretrained(folder)
    network.tokenizer.save_pretrained(folder)


def rebuilt_classifier(
    folder: Path, max_length: int = 128, attention: Literal["eager", "sdpa"] = "eager"
) -> SequenceClassifier:
    """The network of `save_classifier`, whose weights are yet to be loaded; the arguments are its own at training."""
    transformers = _transformers(str(folder))
    local = {"local_files_only": True, "trust_remote_code": False}
    with _refused(str(folder), "sequence classifier"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **local)
        config = transformers.AutoConfig.from_pretrained(folder, **local)
        network = transformers.AutoModelForSequenceClassification.from_config(
            config, dtype=torch.float32, attn_implementation=attention, trust_remote_code=False
        )
    return _classifier(network, tokenizer, max_length)


def _transformers(folder: str) -> Any:
    try:
        import transformers
    except ImportError as error:
        raise EvenlyError(
            f"a model from {folder!r} needs transformers ({error}); run: pip install 'evenly[transformers]', "
            "or use bag_of_words"
        ) from None
    return transformers


@contextmanager
def _refused(folder: str, what: str) -> Iterator[None]:
    """Any error of transformers as one line; its own log messages are suppressed."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    except Exception as error:  # a damaged file can raise anything
        raise EvenlyError(f"the {what} in {folder!r} cannot be loaded ({first_line(error)}); save it again") from None
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


TEXT_MODELS: dict[str, tuple[Callable[..., Build], str]] = {
    "bag_of_words": (bag_of_words, "for texts: the words that occur, weighted by TF-IDF, and a hidden layer of 64")
}

TEXT_RECIPES: dict[str, dict[str, Any]] = {
    "bag_of_words": {"epochs": 20, "batch_size": 64, "lr": 0.1, "momentum": 0.9, "weight_decay": 0.0},
    "hf": {"epochs": 3, "batch_size": 16, "lr": 0.005, "momentum": 0.9, "weight_decay": 0.01},
}
"""Settings of `evenly.train` that suit a network for texts, with SGD."""


def find_text_model(name: str) -> tuple[str, Callable[..., Build]] | None:
    """A text network's name as it is listed, and the function of (texts, classes, **options) that prepares it; None if
    the name is of no such network. "hf:FOLDER", and a folder with a config.json, are models of transformers."""
    if name.startswith("hf:") or ("/" in name and (Path(name) / "config.json").is_file()):
        folder = name.removeprefix("hf:")
        return f"hf:{folder}", lambda texts, classes, **options: sequence_classifier(folder, classes, **options)
    for known, (prepare, _) in TEXT_MODELS.items():
        if known.replace("-", "_") == name.replace("-", "_"):
            return known, prepare
    return None


def encoded(data: Data, network: nn.Module) -> Data:
    """The data as the network reads it: texts as its token ids, int64 (N, L), all splits padded to one length.

    Data without texts is returned as it is.
    """
    if not isinstance(data.train.inputs, Texts):
        return data
    ids = dict(zip(data.splits, token_ids(network, *(split.inputs for split in data.splits.values())), strict=True))
    longest = max(part.shape[1] for part in ids.values())
    parts: dict[str, Any] = {}
    for name, split in data.splits.items():
        parts[name] = Split(
            padded(network, ids[name], longest), split.labels, split.groups, split.attributes,
            name=name, evaluation_groups=split.evaluation_groups, texts=split.texts,
            places=split.places,
        )  # fmt: skip
    return dataclasses.replace(data, **parts)


def token_ids(network: nn.Module, *several: Any) -> list[Tensor]:
    """The token ids (N, L) that the network reads of each of several `Texts`."""
    encode = getattr(network, "encode", None)
    if not callable(encode):
        raise EvenlyError(
            f"{type(network).__name__} cannot read texts: it has no method encode(texts); add one that returns "
            "token ids (N, L), or use bag_of_words or hf:FOLDER"
        )
    encoding = getattr(network, "encoding", None)  # once, since a tokenizer notes how it was called last
    return [texts.ids(encode, encoding) for texts in several]


def padded(network: nn.Module, ids: Tensor, length: int) -> Tensor:
    """Token ids (N, L), padded to `length` where they are shorter."""
    return F.pad(ids, (0, max(0, length - ids.shape[1])), value=int(getattr(network, "pad", 0)))
