"""The user's own images, as uint8 (N, C, H, W).

Files are decoded once and held in memory; folders too large for it are decoded on demand. Nothing in a file is
executed, and nothing outside a folder is read.
"""

from __future__ import annotations

from evenly.data.images.decoding import ImageFiles
from evenly.data.images.folders import image_folder
from evenly.data.images.parts import ImageData

__all__ = ["ImageData", "ImageFiles", "image_folder"]
