"""A network from a file of weights, with the scaling of images that it was trained behind."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from evenly.data.contract import Data
from evenly.data.texts import Texts
from evenly.errors import EvenlyError
from evenly.models import encoded, factory, load_weights
from evenly.models.standardised import Standardised, scaled
from evenly.models.weights import PREFIXES, read_weights

SCALINGS = {
    "none": "inputs not normalised",
    "mean": "inputs less the data's mean",
    "data": "inputs normalised by the data's mean and deviation",
    "imagenet": "inputs normalised as ImageNet's",
}


class SavedModel(NamedTuple):
    """A network with its weights, the data as it reads it, and what both are called."""

    network: nn.Module
    data: Data
    name: str


def load_model(path: Path, data: Data, model: str, normalise: str | None = None) -> SavedModel:
    """A model by name with the weights in a file.

    Args:
        normalise: how the file's images were scaled, a name in `SCALINGS`; without it as saved, else not at all.
    """
    texts = data.train.texts if isinstance(data.train.inputs, Texts) else None
    fresh, name = factory(model, data.train.example_shape, data.classes, 0, texts=texts)
    network, scaling = fresh(), SCALINGS["none"] if _are_images(data) else ""
    data = encoded(data, network)
    if (channels := _saved_scaling(path)) is not None:
        if normalise is not None:
            raise EvenlyError(f"{path} was saved with its scaling and brings it along; leave --normalise out")
        network, scaling = Standardised(network, [0.0] * channels, [1.0] * channels), "inputs normalised as saved"
    load_weights(network, path, replace_head=False)
    if normalise is not None:
        if normalise not in SCALINGS:
            raise EvenlyError(f"--normalise must be one of {', '.join(SCALINGS)}, got {normalise!r}")
        loaded = network
        network, scaling = scaled(lambda draw=0: loaded, normalise, data)(), SCALINGS[normalise]
    note = f", {scaling}" if scaling else ""
    return SavedModel(network, data, f"{name} ({path.name}{note})")


def _saved_scaling(path: Path) -> int | None:
    """The channels of the scaling that a network was saved behind (`evenly.models.standardised`); None if none."""
    weights = read_weights(path)
    for prefix in ("", *PREFIXES):
        rest = set(weights) - {f"{prefix}mean", f"{prefix}std"}
        if len(rest) == len(weights) - 2 and rest and all(name.startswith(f"{prefix}network.") for name in rest):
            return len(weights[f"{prefix}mean"]) if weights[f"{prefix}mean"].ndim else 1
    return None


def _are_images(data: Data) -> bool:
    inputs = data.train.inputs
    if not hasattr(inputs, "__getitem__") or data.train.texts is not None:
        return False
    first = inputs[0] if isinstance(inputs, torch.Tensor) else torch.as_tensor(inputs[0][0])
    return first.ndim == 3 and first.dtype == torch.uint8
