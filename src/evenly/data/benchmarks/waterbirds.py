"""Waterbirds (Sagawa, Koh, Hashimoto and Liang 2020): birds cut out of photographs and put before land or water.

95% of the training birds are shown before the background they live on; in validation and test half of them are.
"""

from __future__ import annotations

from evenly.data.benchmarks.places import Folder, find_layout
from evenly.data.benchmarks.rows import SPLITS, YES_OR_NO, files_in, translated
from evenly.data.images.decoding import MEMORY, Reading, Squeezed
from evenly.data.images.listing import Listing, assembled
from evenly.data.images.parts import GROUPED, ImageData
from evenly.data.rows import read_rows

CLASSES = ("landbird", "waterbird")
PLACES = ("land", "water")
_LAYOUTS = {
    "official": ("waterbird_complete95_forest2water2", ("metadata.csv",)),
    "wilds": ("waterbirds_v1.0", ("metadata.csv",)),
}

RECIPES = {
    "pde-paper": {
        "model": "resnet50",
        "lr": 1e-2,
        "weight_decay": 1e-2,
        "batch_size": 64,
        "epochs": 300,
        "options": {"pde": {"warmup_epochs": 140, "every": 10, "add": 10, "decay": 1e-2, "draw": "random"}},
    },
    "group-dro-paper": {"model": "resnet50", "lr": 1e-5, "weight_decay": 1.0, "batch_size": 128, "epochs": 300},
    "balanced-paper": {
        "model": "resnet18",
        "data_options": {"size": 96},
        "augment": "resized:scale=0.7-1",
        "batch_size": 128,
        "epochs": 100,
        "schedule": "cosine",
        "weight_decay": 1e-4,
        "sweep": {"lr": [5e-4, 1e-3, 5e-3, 1e-2], "rho": [0.0, 0.01, 0.02, 0.05, 0.07]},
    },
}
"""Settings of papers: PDE's (Deng et al. 2023, Tables 5 and 8; 300 epochs are 16 expansions, after which the authors'
run has used 384 images), Group DRO's (Table 3 there), and those of Springer et al. (2024, App. B). All of them start
from ImageNet's weights: give these as `model_options={"weights": FILE}`."""


def waterbirds(folder: Folder = None, size: int = 224, memory: float = MEMORY, seed: int = 0) -> ImageData:
    """Waterbirds, uint8 (N, 3, size, size), four groups (bird, background), from `folder` or EVENLY_DATA/waterbirds.

    Images are resized to 256/224 of `size` and their middle is cut out, as is customary. The splits are the official
    ones; nothing depends on the seed. The attribute is "place".

    Args:
        folder: holds metadata.csv and the images, itself or in its waterbird_complete95_forest2water2 or, from WILDS,
            waterbirds_v1.0.
        size: the side of the images; 224 is customary, Springer et al. (2024) use 96.
        memory: as in `image_folder`.
    """
    _, root = find_layout("waterbirds", folder, _LAYOUTS)
    table = read_rows(root / "metadata.csv")
    listing = Listing(
        root,
        files_in(table, "img_filename", root),
        translated(table, "y", YES_OR_NO),
        CLASSES,
        translated(table, "split", SPLITS),
        {"place": translated(table, "place", YES_OR_NO)},
        {"place": PLACES},
    )
    about = (
        "Waterbirds: birds of land and water before land or water; in training the background agrees with 95% of them."
    )
    data = assembled(
        listing,
        name="waterbirds",
        about=about,
        reading=Reading(size=Squeezed(size, round(size * 256 / 224)), channels=3, memory=memory),
        seed=seed,
        groups="label,place",
        recipe=GROUPED | {"augment": "basic", "epochs": 100, "select": "worst-group-argmax"},
    )
    data.group_names = [f"{bird} on {where}" for bird in CLASSES for where in PLACES]
    return data
