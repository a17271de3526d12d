"""Readers of published data sets in their official layouts, from a folder given or from EVENLY_DATA/NAME.

Nothing in a file is executed, and nothing outside a folder is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from evenly.data.benchmarks import (
    celeba,
    cifar,
    cinic,
    civilcomments,
    coloured,
    composites,
    domains,
    idx,
    stl,
    tiny_imagenet,
    waterbirds,
)
from evenly.data.benchmarks.sources import download
from evenly.data.contract import Data

__all__ = ["READERS", "RECIPES", "download"]

READERS: dict[str, Callable[..., Data]] = {
    "cifar10": cifar.cifar10,
    "cifar100": cifar.cifar100,
    "stl10": stl.stl10,
    "cinic10": cinic.cinic10,
    "tiny-imagenet": tiny_imagenet.tiny_imagenet,
    "mnist": idx.mnist,
    "fashion-mnist": idx.fashion_mnist,
    "cifar-mnist": composites.cifar_mnist,
    "fashion-mnist-mnist": composites.fashion_mnist_mnist,
    "coloured-mnist": coloured.coloured_mnist,
    "waterbirds": waterbirds.waterbirds,
    "celeba": celeba.celeba,
    "pacs": domains.pacs,
    "office-home": domains.office_home,
    "vlcs": domains.vlcs,
    "civilcomments": civilcomments.civilcomments,
}
"""In the order in which `evenly datasets` lists them."""

RECIPES: dict[str, Mapping[str, Mapping[str, Any]]] = {
    "waterbirds": waterbirds.RECIPES,
    "celeba": celeba.RECIPES,
    "civilcomments": civilcomments.RECIPES,
    **dict.fromkeys(("pacs", "office-home", "vlcs"), domains.RECIPES),
}
"""Settings of papers by name, for each data set. Beside settings, a recipe may have `model`, `data_options`, `options`
of methods, and a `sweep`."""
