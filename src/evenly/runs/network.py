"""A trained network in a run's folder: its weights, and what it takes to rebuild it without the training data.

model.safetensors   weights and buffers in their own types; tied weights once, with a note of who shares them
vocabulary.json     of a bag of words: its words and how rare each is
network/            of a model of transformers: its configuration and its tokenizer, with checksums.json of these files
"""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import field, frozen
from safetensors.torch import save
from torch import Tensor, nn

from evenly.errors import EvenlyError, first_line
from evenly.files import AGAIN, CHECKSUM, atomic, make_folder, read_json, sealed, write_json
from evenly.models import factory
from evenly.models.standardised import Standardised
from evenly.models.texts import BagOfWords, SequenceClassifier, Vocabulary, rebuilt_classifier, save_classifier
from evenly.models.weights import checksum, read_safetensors
from evenly.randomness import isolated
from evenly.values import Value

WEIGHTS, VOCABULARY, NETWORK, CHECKSUMS = "model.safetensors", "vocabulary.json", "network", "checksums.json"
LEARNED_FROM_TEXTS = ("min_count", "max_words")
"""Options of a bag of words that decide its vocabulary, which is stored."""


def _without_weights(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "weights"}


@frozen
class NetworkSpec(Value):
    """What a network is rebuilt from, beside its files.

    Args:
        name: as `evenly.models.factory` returns it.
        options: of a model by name; `weights` is left out, since the network has its own.
        input_shape: of one example; () of texts.
        scaled: the channels of the `Standardised` that the network stands behind; None where there is none.
        own: whether it is a module of the user's, which only the user can build.
    """

    name: str
    options: Mapping[str, Any] = field(factory=dict, converter=_without_weights)
    input_shape: tuple[int, ...] = ()
    classes: int = 2
    scaled: int | None = None
    own: bool = False


def save_network(network: nn.Module, folder: Path) -> None:
    """Write the files named at the top; the folder is made where there is none."""
    make_folder(folder)
    inner = network.network if isinstance(network, Standardised) else network
    if isinstance(inner, BagOfWords):
        write_json(folder / VOCABULARY, sealed({"words": inner.vocabulary.words, "idf": inner.vocabulary.idf}))
    if isinstance(inner, SequenceClassifier):
        partial = folder / f".{NETWORK}.partial"
        for leftover in (partial, folder / NETWORK):  # of a kill while they were written
            shutil.rmtree(leftover, ignore_errors=True)
        save_classifier(inner, partial)
        write_json(partial / CHECKSUMS, sealed(_checksums(partial)))
        partial.rename(folder / NETWORK)
    write_weights(network, folder / WEIGHTS)


def write_weights(network: nn.Module, path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write a network's state dict as safetensors, on the CPU, each tensor once."""
    state, tied = _distinct(network)
    entries = {"format": "pt", **({"tied": json.dumps(tied)} if tied else {}), **(metadata or {})}
    content = memoryview(save(state))
    length = int.from_bytes(content[:8], "little")
    # the library writes metadata in an order that varies, and the same run has to leave the same bytes
    tensors = json.loads(bytes(content[8 : 8 + length]))
    entries[CHECKSUM] = checksum(state, entries)
    text = json.dumps({"__metadata__": entries, **tensors}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with atomic(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.write(content[8 + length :])


def _distinct(network: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a state dict, each once, and for every other name of one the name that it is under."""
    first: dict[Any, str] = {}
    tensors, tied = {}, {}
    for name, value in network.state_dict().items():
        if not isinstance(value, Tensor):
            raise EvenlyError(
                f"{name} in the state of {type(network).__name__} is a {type(value).__name__}; keep it in a buffer, or "
                "leave it out of the state dict"
            )
        place = (value.device, value.data_ptr(), value.shape, value.stride(), value.dtype)
        if value.numel() and place in first:
            tied[name] = first[place]
        else:
            first[place] = name
            tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
    return tensors, tied


def load_network(
    spec: NetworkSpec, folder: Path, model: nn.Module | Callable[[], nn.Module] | None = None
) -> nn.Module:
    """The network of `save_network`, from its folder alone; nothing is written there.

    Args:
        model: of a module of the user's own, one of the same architecture (it is copied), or a function that builds it.
    """
    if spec.own and model is None:
        raise EvenlyError(
            f"{folder} holds the weights of {spec.name}, a module of your own; "
            f"give it: evenly.load({str(folder)!r}, model=YOUR_MODULE)"
        )
    if not spec.own and model is not None:
        raise EvenlyError(f"{folder} holds {spec.name}, which is rebuilt by its name; leave `model` out")
    state = read_state(folder / WEIGHTS)
    with isolated(0):
        network = _rebuilt(spec, folder) if model is None else factory(model, spec.input_shape, spec.classes, 0)[0]()
    if spec.scaled is not None:
        network = Standardised(network, [0.0] * spec.scaled, [1.0] * spec.scaled)
    _add_biases(network, state)
    own = network.state_dict()
    for names, what in ((own.keys() - state.keys(), "lacks"), (state.keys() - own.keys(), "has beside those of it")):
        if names:
            raise _other_network(folder, spec, f"{what} {min(names)}")
    for name, value in state.items():
        if value.shape != own[name].shape:
            raise _other_network(
                folder, spec, f"has {name} of shape {tuple(value.shape)}, not {tuple(own[name].shape)}"
            )
    network.load_state_dict(state)
    return network


def _other_network(folder: Path, spec: NetworkSpec, difference: str) -> EvenlyError:
    way = "give the module that was trained" if spec.own else AGAIN
    return EvenlyError(f"{folder / WEIGHTS} is not of this {spec.name}: it {difference}; {way}")


def read_state(path: Path) -> dict[str, Tensor]:
    """The state dict that `write_weights` wrote, tied weights under each of their names."""
    try:
        state, metadata = read_safetensors(path)
        if CHECKSUM not in metadata:
            raise ValueError("its checksum is missing")
        tied = json.loads(metadata.get("tied", "{}"))
        return state | {name: state[other] for name, other in tied.items()}
    except FileNotFoundError:
        raise EvenlyError(f"{path.parent} holds no {path.name}; {AGAIN}") from None
    except Exception as error:  # a damaged file can raise anything in the reader
        raise EvenlyError(f"{path} is damaged ({first_line(error)}); {AGAIN}") from None


def _rebuilt(spec: NetworkSpec, folder: Path) -> nn.Module:
    """A model by name, in whatever initial state."""
    if spec.name.startswith("hf:"):
        if not (folder / NETWORK).is_dir():
            raise EvenlyError(f"{folder} holds no {NETWORK}/, the configuration and tokenizer of {spec.name}; {AGAIN}")
        if read_json(folder / NETWORK / CHECKSUMS, AGAIN) != _checksums(folder / NETWORK):
            raise EvenlyError(f"{folder / NETWORK} is damaged (its files are not those in {CHECKSUMS}); {AGAIN}")
        return rebuilt_classifier(folder / NETWORK, **spec.options)
    if spec.name == "bag_of_words":
        options = {name: value for name, value in spec.options.items() if name not in LEARNED_FROM_TEXTS}
        return BagOfWords(_vocabulary(folder / VOCABULARY), spec.classes, **options)
    return factory(spec.name, spec.input_shape, spec.classes, 0, **spec.options)[0]()


def _checksums(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != CHECKSUMS)
    return {path.name: f"{zlib.crc32(path.read_bytes()):08x}" for path in files}


def _vocabulary(path: Path) -> Vocabulary:
    try:
        stored = dict(read_json(path, AGAIN))
        if stored.keys() != {"words", "idf"}:
            raise ValueError
        return Vocabulary(tuple(map(str, stored["words"])), tuple(map(float, stored["idf"])))
    except (EvenlyError, TypeError, KeyError, ValueError):
        raise EvenlyError(f"{path}, the words of a bag of words, is missing or damaged; {AGAIN}") from None


def _add_biases(network: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Give a bias to the linear layers that were trained without one and saved with one, as by DFR."""
    layers, own = dict(network.named_modules()), network.state_dict()
    for name, value in state.items():
        layer = layers.get(name.rpartition(".")[0])
        if isinstance(layer, nn.Linear) and name.endswith("bias") and name not in own:
            layer.bias = nn.Parameter(torch.zeros_like(value))
