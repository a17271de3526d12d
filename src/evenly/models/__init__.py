"""The papers' networks. A model is a name, a function that builds a fresh network, or a module as it stands."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

from torch import nn

from evenly.errors import EvenlyError, unknown
from evenly.models.cubic import CubicCNN
from evenly.models.small import MLP, ConvNet
from evenly.randomness import derive, isolated

__all__ = ["MLP", "MODELS", "ConvNet", "CubicCNN", "factory"]

Shape = tuple[int, ...]


def _cubic(shape: Shape, classes: int, **options: Any) -> nn.Module:
    if classes != 2 or len(shape) != 2:
        raise EvenlyError(
            f"cubic-cnn takes patches (P, d) and 2 classes, not inputs {shape} and {classes} classes; use mlp"
        )
    return CubicCNN(shape[-1], **options)


def _cubic_bias(shape: Shape, classes: int, **options: Any) -> nn.Module:
    return _cubic(shape, classes, bias=True, init="uniform", **options)


def _mlp(shape: Shape, classes: int, **options: Any) -> nn.Module:
    return MLP(math.prod(shape), classes, **options)


def _convnet(shape: Shape, classes: int, **options: Any) -> nn.Module:
    if len(shape) != 3:
        raise EvenlyError(f"convnet takes images (C, H, W), not inputs {shape}; use mlp")
    return ConvNet(shape[0], classes, **options)


MODELS: dict[str, tuple[Callable[..., nn.Module], str]] = {
    "cubic-cnn": (
        _cubic,
        "two-layer cubic CNN on patches, no bias, normal initialisation (Nguyen et al. 2024)",
    ),
    "cubic-cnn-bias": (
        _cubic_bias,
        "the same with a bias, uniform initialisation x 0.1 (code of Deng et al. 2023)",
    ),
    "mlp": (_mlp, "multilayer perceptron, 64-64, ReLU"),
    "convnet": (_convnet, "two convolutions and a hidden layer, for small images"),
}


def factory(
    model: str | nn.Module | Callable[[], nn.Module], shape: Shape, classes: int, seed: int, **options: Any
) -> tuple[Callable[[], nn.Module], str]:
    """A function that builds the network in its initial state, the same at every call, and the network's name.

    The initial weights depend on the seed alone; a module given as it stands is its own initial state, copied.
    """
    if options and not isinstance(model, str):
        raise EvenlyError(
            f"model option {next(iter(options))!r} is for a model by name; set it where the model is built"
        )
    if isinstance(model, nn.Module):
        given = model
        return lambda: copy.deepcopy(given), f"{type(model).__name__} as given"
    if isinstance(model, str):
        if model not in MODELS:
            raise unknown("model", model, MODELS)
        name, make = model, MODELS[model][0]

        def build() -> nn.Module:
            try:
                return make(shape, classes, **options)
            except TypeError as error:
                raise EvenlyError(
                    f"{name} cannot be built with options {options} ({error}); see its docstring"
                ) from None
    elif callable(model):
        build, name = model, getattr(model, "__qualname__", type(model).__name__)
    else:
        raise EvenlyError(f"a model is a name, a function that builds one, or a module, not a {type(model).__name__}")

    def fresh() -> nn.Module:
        with isolated(derive(seed, "model")):
            network = build()
        if not isinstance(network, nn.Module):
            raise EvenlyError(f"{name}() returned a {type(network).__name__}; it must build a torch.nn.Module")
        return network

    return fresh, name
