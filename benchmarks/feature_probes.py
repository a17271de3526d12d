"""Linear probes of what networks on real images have learned (Springer et al. 2024, eqs 1 and 46).

Each function takes a network, the name and options of its data and the seed, and returns errors by name.
`crossed_probes` makes more of few held-out images: each part of the test set is measured by a probe that is fitted on
the validation set and on the other parts.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from statistics import mean
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import evenly
from evenly.data import Data, Split, load
from evenly.data.benchmarks.domains import target_parts
from evenly.data.images.parts import ranks
from evenly.diagnose.features import features_at
from evenly.diagnose.probing import Probe

CLASSES = {"cifar-mnist": 2, "fashion-mnist-mnist": 5}
HAIR_AND_GENDER = {"label": "Male", "Male": "label"}
"""The features of CelebA, each with the one that its probe is balanced over."""
QUARTERS, DRAWS = 4, 4
"""Of CelebA's test images; and of the balanced sets, whose images other than the rarest group's are drawn anew."""


@functools.cache
def loaded(data: str, options: str, seed: int) -> Data:
    """The data of a seed, read once in each process; options are JSON."""
    return load(data, seed=seed, **json.loads(options))


def independent(data: str, options: dict[str, Any], seed: int) -> Data:
    """A composite's pictures and digits dealt out anew, so that neither tells the other."""
    return loaded(data, json.dumps({"correlation": 1 / CLASSES[data], **options}), seed)


def both_features(model: nn.Module, data: str, options: dict[str, Any], seed: int) -> dict[str, float]:
    """Where the two features are independent, as in eq. 1: fitted on validation images, measured on test images."""
    apart = independent(data, options, seed)
    return {
        "digit, probing error": evenly.probe(model, apart, "mnist", seed=seed).error,
        "picture, probing error": evenly.probe(model, apart, _picture(apart), against=["mnist"], seed=seed).error,
    }


def both_features_crossed(model: nn.Module, data: str, options: dict[str, Any], seed: int) -> dict[str, float]:
    """The same with more images to fit on: all of validation and one half of the test images, for the other half."""
    apart = independent(data, options, seed)
    # as many of each pair of values by construction, so that nothing has to be left out for balance
    probes = crossed_probes(model, apart, {"mnist": None, _picture(apart): None}, 2, 1, seed)
    return {
        "digit, probing error": mean(probe.error for probe in probes["mnist"]),
        "picture, probing error": mean(probe.error for probe in probes[_picture(apart)]),
    }


def _picture(data: Data) -> str:
    """The attribute that is not the digit."""
    assert data.test is not None
    return next(name for name in data.test.attributes if name != "mnist")


def hair_and_gender(model: nn.Module, data: str, options: dict[str, Any], seed: int) -> dict[str, float]:
    """CelebA's features on sets with as many images of each hair colour and gender, as in eq. 1."""
    faces = loaded(data, json.dumps(options), seed)
    probes = crossed_probes(model, faces, HAIR_AND_GENDER, QUARTERS, DRAWS, seed)
    return {
        "hair, probing error": mean(probe.error for probe in probes["label"]),
        "gender, probing error": mean(probe.error for probe in probes["Male"]),
    }


def on_target(model: nn.Module, data: str, options: dict[str, Any], seed: int) -> dict[str, float]:
    """Eq. 46: fitted on 80% of the target domain as it is, measured on the rest."""
    fitted, measured = target_parts(loaded(data, json.dumps(options), seed), seed=seed)
    probe = evenly.probe(model, fitted, "label", held_out=measured, balance=False, seed=seed)
    return {"probe on the target, error": probe.error}


def crossed_probes(
    model: nn.Module, data: Data, against: Mapping[str, str | None], parts: int, draws: int, seed: int
) -> dict[str, list[Probe]]:
    """Probes of each attribute, `draws` of them for each part of the test set, with one pass over the network.

    Args:
        against: for each attribute, what its sets are balanced over; None uses all images as they are.
        parts: of the test images, with the same share of each configuration. What is fitted on for one of them is
            the validation set and the other parts.
    """
    assert data.validation is not None
    assert data.test is not None
    validation, test = (_as_features(model, split) for split in (data.validation, data.test))
    part = torch.from_numpy(np.floor(parts * ranks(_configurations(test), seed, "parts of the test set")))
    # the input of the last linear layer is what is probed, so that of this one are the features
    reader = nn.Linear(validation.inputs.shape[1], 1)
    probes: dict[str, list[Probe]] = {name: [] for name in against}
    for k in range(parts):
        fitted, measured = _joined(validation, _rows(test, part != k)), _rows(test, part == k)
        for name, other in against.items():
            options = {"balance": False} if other is None else {"against": [other]}
            probes[name] += [
                evenly.probe(reader, fitted, name, held_out=measured, seed=draws * seed + draw, **options)
                for draw in range(draws)
            ]
    return probes


def _as_features(model: nn.Module, split: Split) -> Split:
    return Split(features_at(model, split).cpu(), split.labels, None, split.attributes, name=split.name)


def _configurations(split: Split) -> np.ndarray:
    """(N,) which combination of the label and all attributes an example has."""
    columns = torch.stack([split.labels, *split.attributes.values()], 1)
    configurations: np.ndarray = columns.unique(dim=0, return_inverse=True)[1].numpy()
    return configurations


def _rows(split: Split, where: Tensor) -> Split:
    attributes = {name: column[where] for name, column in split.attributes.items()}
    assert isinstance(split.inputs, Tensor)
    return Split(split.inputs[where], split.labels[where], None, attributes, name=split.name)


def _joined(one: Split, other: Split) -> Split:
    assert isinstance(one.inputs, Tensor)
    assert isinstance(other.inputs, Tensor)
    attributes = {name: torch.cat([column, other.attributes[name]]) for name, column in one.attributes.items()}
    inputs, labels = torch.cat([one.inputs, other.inputs]), torch.cat([one.labels, other.labels])
    return Split(inputs, labels, None, attributes, name="held-out")
