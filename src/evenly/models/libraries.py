"""Models of other libraries by name: "torchvision:resnet18", "timm:vit_small_patch16_224".

Built without weights and with a head of the right size; weights come from a local file (`evenly.models.weights`).
The library is imported when the network is built and is not needed for anything else.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import nn

from evenly.errors import EvenlyError, first_line, unknown


def _torchvision(name: str, shape: tuple[int, ...], classes: int, **options: Any) -> nn.Module:
    models = _imported("torchvision.models")
    if name not in (known := models.list_models(module=models)):
        raise unknown("model of torchvision", name, known)
    if shape[0] != 3:
        raise EvenlyError(
            f"torchvision:{name} takes 3 channels, got {shape[0]}; repeat the channel, or choose a model from timm"
        )
    network: nn.Module = models.get_model(name, weights=None, num_classes=classes, **options)
    return network


def _timm(name: str, shape: tuple[int, ...], classes: int, **options: Any) -> nn.Module:
    timm = _imported("timm")
    if not timm.is_model(name):
        raise unknown("model of timm", name, timm.list_models())
    network: nn.Module = timm.create_model(name, pretrained=False, num_classes=classes, in_chans=shape[0], **options)
    return network


LIBRARIES: dict[str, Callable[..., nn.Module]] = {"torchvision": _torchvision, "timm": _timm}


def _imported(module: str) -> Any:
    try:
        return import_module(module)
    except (ImportError, RuntimeError) as error:  # a torchvision built for another torch raises a RuntimeError
        library = module.partition(".")[0]
        raise EvenlyError(
            f"{library} cannot be imported ({first_line(error)}); pip install {library}, "
            "or choose a model from `evenly models`"
        ) from None


def from_library(full_name: str, shape: tuple[int, ...], classes: int, **options: Any) -> nn.Module:
    """Build "library:name" for images (C, H, W) and K classes; options go to the library's own constructor."""
    library, _, name = full_name.partition(":")
    if library not in LIBRARIES:
        raise EvenlyError(f"model {full_name!r} names an unknown library; give torchvision:NAME or timm:NAME")
    if len(shape) != 3:
        raise EvenlyError(f"{full_name} takes images (C, H, W), got inputs {shape}; use mlp")
    try:
        return LIBRARIES[library](name, shape, classes, **options)
    except (ValueError, RuntimeError, AssertionError) as error:
        raise EvenlyError(
            f"{full_name} cannot be built with options {options} ({first_line(error)}); see {library}'s documentation"
        ) from None
