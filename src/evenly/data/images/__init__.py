"""Images: benchmarks in their official layouts and the user's own folders, as uint8 (N, C, H, W).

Files are decoded once and held in memory; folders too large for it are decoded on demand. Nothing in a file is
executed, and nothing outside a folder is read. Where no folder is given a benchmark is looked for in EVENLY_DATA.
"""

from __future__ import annotations

from evenly.data.images.celeba import celeba
from evenly.data.images.cifar import cifar10, cifar100
from evenly.data.images.coloured import coloured_mnist
from evenly.data.images.composites import cifar_mnist, fashion_mnist_mnist
from evenly.data.images.decoding import ImageFiles
from evenly.data.images.domains import office_home, pacs, target_parts, vlcs
from evenly.data.images.download import download
from evenly.data.images.folders import cinic10, image_folder, tiny_imagenet
from evenly.data.images.idx import fashion_mnist, mnist
from evenly.data.images.parts import ImageData
from evenly.data.images.stl import stl10
from evenly.data.images.waterbirds import waterbirds

__all__ = [
    "ImageData",
    "ImageFiles",
    "celeba",
    "cifar10",
    "cifar100",
    "cifar_mnist",
    "cinic10",
    "coloured_mnist",
    "download",
    "fashion_mnist",
    "fashion_mnist_mnist",
    "image_folder",
    "mnist",
    "office_home",
    "pacs",
    "stl10",
    "target_parts",
    "tiny_imagenet",
    "vlcs",
    "waterbirds",
]
