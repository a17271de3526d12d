"""The papers' networks. A model is a name, a function that builds a fresh network, or a module."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn

from evenly.data.contract import check_dense
from evenly.errors import EvenlyError, first_line, unknown
from evenly.models import densenet, vgg
from evenly.models.cubic import CubicCNN
from evenly.models.densenet import DenseNet
from evenly.models.libraries import from_library
from evenly.models.mobilenet import MobileNetV2
from evenly.models.preact_resnet import PreActResNet
from evenly.models.resnet import Bottleneck, ResNet
from evenly.models.small import MLP, ConvNet, ThreeConvNet
from evenly.models.texts import TEXT_MODELS, BagOfWords, Build, encoded, find_text_model
from evenly.models.vgg import VGG
from evenly.models.vit import ViT
from evenly.models.weights import Loaded, load_weights
from evenly.plugins import Registry, first_line_of
from evenly.randomness import derive, isolated

__all__ = [
    "MLP", "MODELS", "RECIPES", "TEXT_MODELS", "VGG", "BagOfWords", "ConvNet", "CubicCNN", "DenseNet", "Factory",
    "Loaded", "MobileNetV2", "PreActResNet", "ResNet", "ThreeConvNet", "ViT", "encoded", "factory", "load_weights",
]  # fmt: skip

Shape = tuple[int, ...]


def _cubic(shape: Shape, classes: int, **options: Any) -> nn.Module:
    if classes != 2 or len(shape) != 2:
        raise EvenlyError(
            f"cubic-cnn takes patches (P, d) and 2 classes, got inputs {shape} and {classes} classes; use mlp"
        )
    return CubicCNN(shape[-1], **options)


def _cubic_bias(shape: Shape, classes: int, **options: Any) -> nn.Module:
    return _cubic(shape, classes, bias=True, init="uniform", **options)


def _mlp(shape: Shape, classes: int, **options: Any) -> nn.Module:
    return MLP(math.prod(shape), classes, **options)


def _mlp_512(shape: Shape, classes: int, **options: Any) -> nn.Module:
    settings: dict[str, Any] = {"hidden": (512, 512), "dropout": 0.1} | options
    return MLP(math.prod(shape), classes, **settings)


def _channels(name: str, shape: Shape, least: int = 1) -> int:
    """The number of channels of images (C, H, W); inputs of another shape or too small for the network are refused."""
    if len(shape) != 3:
        raise EvenlyError(f"{name} takes images (C, H, W), got inputs {shape}; use mlp")
    if min(shape[1:]) < least:
        raise EvenlyError(
            f"{name} takes images of {least}x{least} or more, got {shape[1]}x{shape[2]}; enlarge them or use convnet"
        )
    return shape[0]


def _for_images(
    name: str, network: Callable[..., nn.Module], *arguments: Any, least: int = 1, one_size: bool = False
) -> Callable[..., nn.Module]:
    """A function of (shape, classes, **options) that builds a network for images.

    Args:
        arguments: of the network, after the channels and classes; options cannot change them.
        least: the smallest side of an image.
        one_size: the network is built for one size and takes the shape in place of the channels.
    """

    def make(shape: Shape, classes: int, **options: Any) -> nn.Module:
        channels = _channels(name, shape, least)
        return network(shape if one_size else channels, classes, *arguments, **options)

    return make


_convnet = _for_images("convnet", ConvNet)
_convnet_3 = _for_images("convnet_3", ThreeConvNet, one_size=True)
_preact_resnet18 = _for_images("preact_resnet18", PreActResNet, (2, 2, 2, 2))
_preact_resnet34 = _for_images("preact_resnet34", PreActResNet, (3, 4, 6, 3))
_vgg19 = _for_images("vgg19", VGG, least=vgg.LEAST_SIDE)
_vit_s = _for_images("vit_s", ViT, one_size=True)
_resnet18 = _for_images("resnet18", ResNet)
_resnet50 = _for_images("resnet50", ResNet, Bottleneck, (3, 4, 6, 3))
_mobilenet_v2 = _for_images("mobilenet_v2", MobileNetV2)


def _densenet121(shape: Shape, classes: int, **options: Any) -> nn.Module:
    least = densenet.LEAST_SIDE.get(options.get("stem", "cifar"), 1)
    return DenseNet(_channels("densenet121", shape, least), classes, **options)


_OWN: dict[str, tuple[Callable[..., nn.Module], str]] = {
    "cubic-cnn": (_cubic, "two-layer cubic CNN on patches, no bias, normal initialisation (Nguyen et al. 2024)"),
    "cubic-cnn-bias": (_cubic_bias, "the same with a bias, uniform initialisation x 0.1 (code of Deng et al. 2023)"),
    "mlp": (_mlp, "multilayer perceptron, 64-64, ReLU"),
    "mlp_512": (_mlp_512, "3-layer perceptron, 512-512, ReLU, dropout 0.1 (Nguyen et al. 2024)"),
    "convnet": (_convnet, "two convolutions and a hidden layer, for small images"),
    "convnet_3": (_convnet_3, "three convolutions of stride 2 and a linear layer (Springer et al. 2024)"),
    "preact_resnet18": (_preact_resnet18, "pre-activation ResNet-18 for small images, 11M weights (He et al. 2016b)"),
    "preact_resnet34": (_preact_resnet34, "pre-activation ResNet-34 for small images, 21M weights (He et al. 2016b)"),
    "vgg19": (_vgg19, "VGG-19 with BatchNorm and a linear head, 20M weights, images of 32x32 or more"),
    "densenet121": (_densenet121, "DenseNet-121, growth 32, 7M weights; stem cifar (default) or imagenet"),
    "vit_s": (_vit_s, "vision transformer, 768 wide, depth 8, patches of 4, 41M weights (Nguyen et al. 2024)"),
    "resnet18": (_resnet18, "ResNet-18 as in torchvision, 11M weights, for fine-tuning on larger images"),
    "resnet50": (_resnet50, "ResNet-50 as in torchvision, 24M weights, for fine-tuning on larger images"),
    "mobilenet_v2": (_mobilenet_v2, "MobileNetV2 as in torchvision, 2M weights, for fine-tuning on larger images"),
}


def _accepted(name: str, make: Any) -> tuple[Callable[..., nn.Module], str]:
    """A model of another package: a function of (shape, classes, **options) that builds a network."""
    if not callable(make):
        raise EvenlyError(f"it is a {type(make).__name__}, not a function of (shape, classes, **options)")
    if name.replace("-", "_") in {each.replace("-", "_") for each in (*_OWN, *TEXT_MODELS)}:
        raise EvenlyError("evenly has one of this name")
    return make, first_line_of(make)


MODELS = Registry[tuple[Callable[..., nn.Module], str]]("model", _OWN, _accepted)
"""What builds each model, and what it is."""

_NGUYEN = {
    "epochs": 200, "batch_size": 128, "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "schedule": "step", "rho": 0.1,
}  # fmt: skip

RECIPES: dict[str, dict[str, Any]] = {
    "preact_resnet18": _NGUYEN,
    "preact_resnet34": _NGUYEN,
    "vgg19": _NGUYEN,
    "densenet121": _NGUYEN,
    "mlp_512": _NGUYEN | {"rho": 0.01},
    "vit_s": _NGUYEN | {"lr": 0.01, "rho": 0.01},
    "convnet_3": {"epochs": 20, "batch_size": 100, "momentum": 0.9, "weight_decay": 0.0, "schedule": "cosine"},
}
"""Settings of `evenly.train` that a model's paper gives for it (Nguyen et al. 2024, App. C; Springer et al. 2024,
App. B, who sweep lr and rho)."""


def find(name: str) -> tuple[str, Callable[..., nn.Module]]:
    """A model's name as it is listed and the function of (shape, classes, **options) that builds it.

    Hyphens and underscores are the same; "torchvision:NAME" and "timm:NAME" are models of those libraries.
    """
    if ":" in name:
        return name, partial(from_library, name)
    for known in MODELS:
        if known.replace("-", "_") == name.replace("-", "_"):
            return known, MODELS[known][0]
    raise unknown("model", name, [*MODELS, *TEXT_MODELS])


class Factory(Protocol):
    """Builds a network in its initial state; `draw` numbers others of the same seed."""

    def __call__(self, draw: int = 0) -> nn.Module: ...


def factory(
    model: str | nn.Module | Callable[[], nn.Module],
    shape: Shape,
    classes: int,
    seed: int,
    *,
    texts: Sequence[str] | None = None,
    **options: Any,
) -> tuple[Factory, str]:
    """A function that builds the network in its initial state, the same at every call, and the network's name.

    The initial weights depend on the seed and the draw alone. A module is its own initial state and is copied, whatever
    the draw.

    Args:
        texts: the training texts, where the inputs are texts; a model by name has to be one for texts then.
        options: of a model by name: those of its constructor, and `weights`, a file to start from instead
            (`load_weights`); a head for another number of classes stays as the seed made it.
    """
    if options and not isinstance(model, str):
        raise EvenlyError(
            f"model option {next(iter(options))!r} is for a model by name; set it where the model is built"
        )
    if isinstance(model, nn.Module):
        module = _checked(model)
        return lambda draw=0: copy.deepcopy(module), f"{type(model).__name__} as given"
    if isinstance(model, str):
        weights = options.get("weights")
        own = {key: value for key, value in options.items() if key != "weights"}
        name, make = _maker(model, shape, classes, texts, own)

        def build() -> nn.Module:
            with _explained(name, own):
                network = make()
            if own and (empty := [path for path, weight in network.named_parameters() if not weight.numel()]):
                raise EvenlyError(
                    f"{name} has no weights in {empty[0]} with options {own}; give widths from 1, see its docstring"
                )
            if weights is not None:
                load_weights(network, weights)
            return network
    elif callable(model):
        build, name = model, getattr(model, "__qualname__", type(model).__name__)
    else:
        raise EvenlyError(
            f"a model must be a name, a function that builds one, or a module, got a {type(model).__name__}"
        )

    def fresh(draw: int = 0) -> nn.Module:
        with isolated(derive(seed, "model", draw) if draw else derive(seed, "model")):
            try:
                network = build()
            except TypeError as error:
                if not isinstance(model, type):
                    raise
                raise EvenlyError(
                    f"model is the class {name}, which cannot be built without arguments ({error}); give a module or a "
                    f"function, e.g. lambda: {name}(...)"
                ) from None
        if not isinstance(network, nn.Module):
            raise EvenlyError(f"{name}() returned a {type(network).__name__}; it must build a torch.nn.Module")
        return _checked(network)

    return fresh, name


def _checked(network: nn.Module) -> nn.Module:
    for name, value in (*network.named_parameters(), *network.named_buffers()):
        check_dense(value, f"values of {name} in the model")
    return network


def _maker(
    model: str, shape: Shape, classes: int, texts: Sequence[str] | None, options: dict[str, Any]
) -> tuple[str, Build]:
    """A model's name as it is listed and what builds it; a vocabulary is made once."""
    text_model = find_text_model(model)
    if text_model is None:
        name, make = find(model)
        if texts is not None:
            raise EvenlyError(f"{name} cannot read texts; use bag_of_words, or hf:FOLDER for a model of transformers")
        return name, lambda: make(shape, classes, **options)
    name, prepare = text_model
    if texts is None:
        raise EvenlyError(f"{name} reads texts, got numbers of shape {shape}; use mlp, or for images convnet")
    with _explained(name, options):
        return name, prepare(texts, classes, **options)


@contextmanager
def _explained(name: str, options: dict[str, Any]) -> Iterator[None]:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Initializing zero-element tensors")  # refused with what made them
            yield
    except torch.OutOfMemoryError:
        raise
    except (TypeError, ValueError, RuntimeError, IndexError, ArithmeticError) as error:
        if not options and not isinstance(error, TypeError):
            raise
        raise EvenlyError(
            f"{name} cannot be built with options {options} ({first_line(error)}); see its docstring"
        ) from None
