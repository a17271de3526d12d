"""Pictures of the same classes in several domains, one of which is left out of training: PACS (Li et al. 2017),
OfficeHome (Venkateswara et al. 2017) and VLCS (Fang et al. 2013), in the layout of DomainBed (Gulrajani and Lopez-Paz
2021), a folder for each domain with a folder for each class.

Training and validation are from the other domains, the test set is the target domain. A linear probe on a part of the
target measures which learned features serve there (Springer et al. 2024, App. F, eq. 46). The probe here is fitted and
measured on as many examples of each class, theirs on the domain's own shares:

>>> run = evenly.train(data="pacs", data_options={"target": "sketch"})
>>> fitted, measured = target_parts(evenly.data.load("pacs", target="sketch"))
>>> evenly.probe(run.model, fitted, "label", held_out=measured, against=())
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset

from evenly.data.benchmarks.atlases import decode_atlases
from evenly.data.benchmarks.places import Folder, find_layout
from evenly.data.contract import Data, Split
from evenly.data.images.decoding import MEMORY, Decoded, Reading, Squeezed
from evenly.data.images.folders import folders_in, images_in
from evenly.data.images.listing import Listing, assembled
from evenly.data.images.parts import GROUPED, ImageData, held_out, share_of
from evenly.errors import EvenlyError, unknown

PACS = ("art_painting", "cartoon", "photo", "sketch")
OFFICE_HOME = ("Art", "Clipart", "Product", "Real World")
VLCS = ("Caltech101", "LabelMe", "SUN09", "VOC2007")


def pacs(
    folder: Folder = None,
    target: str = "sketch",
    validation: float = 0.1,
    size: int = 128,
    memory: float = MEMORY,
    seed: int = 0,
) -> ImageData:
    """PACS, 7 classes in 4 domains, uint8 (N, 3, size, size), from `folder` or EVENLY_DATA/pacs (pacs128).

    Groups, and the attribute "domain", are the domains. The test set is the whole target domain.

    Args:
        folder: holds art_painting, cartoon, photo, sketch with a folder for each class, itself or in its PACS or
            kfold; or meta.json, and art_painting.webp ... (atlases) with art_painting_labels.npy ...
        target: the domain left out of training.
        validation: the share of the other domains' images held out, the same of each class in each domain, drawn
            from the seed; 10% as in Springer et al. (2024, App. F.2), while DomainBed has 20%.
        size: the whole image is brought to `size` x `size`; DomainBed has 224.
        memory: as in `image_folder`; atlases are always held in memory.
    """
    layouts = {
        "folders": ("PACS", PACS),
        "official": ("kfold", PACS),
        "atlases": ("", ("meta.json", *(f"{name}{end}" for name in PACS for end in (".webp", "_labels.npy")))),
    }
    layout, root = find_layout("pacs", folder, layouts, other="pacs128")
    listing, decoded = _atlases(root, size) if layout == "atlases" else (_folders(root, PACS), None)
    about = "PACS: photographs, paintings, cartoons and sketches of seven things."
    return _left_out("pacs", about, listing, PACS, target, validation, size, memory, seed, decoded)


def office_home(
    folder: Folder = None,
    target: str = "Clipart",
    validation: float = 0.1,
    size: int = 128,
    memory: float = MEMORY,
    seed: int = 0,
) -> ImageData:
    """OfficeHome, 65 classes in 4 domains, uint8 (N, 3, size, size), from `folder` or EVENLY_DATA/office-home.

    The arguments are those of `pacs`: the folder holds Art, Clipart, Product and Real World, itself or in its
    office_home.
    """
    _, root = find_layout("office-home", folder, {"folders": ("office_home", OFFICE_HOME)})
    listing = _folders(root, OFFICE_HOME)
    about = "OfficeHome: art, clip art, product pictures and photographs of 65 things of office and home."
    return _left_out("office-home", about, listing, OFFICE_HOME, target, validation, size, memory, seed)


def vlcs(
    folder: Folder = None,
    target: str = "VOC2007",
    validation: float = 0.1,
    size: int = 128,
    memory: float = MEMORY,
    seed: int = 0,
) -> ImageData:
    """VLCS, 5 classes in 4 domains, uint8 (N, 3, size, size), from `folder` or EVENLY_DATA/vlcs.

    The arguments are those of `pacs`: the folder holds Caltech101, LabelMe, SUN09 and VOC2007, itself or in its VLCS.
    """
    _, root = find_layout("vlcs", folder, {"folders": ("VLCS", VLCS)})
    listing = _folders(root, VLCS)
    about = "VLCS: photographs of birds, cars, chairs, dogs and persons from four collections."
    return _left_out("vlcs", about, listing, VLCS, target, validation, size, memory, seed)


RECIPES = {
    "balanced-paper": {
        "data_options": {"validation": 0.1},
        "sweep": {"lr": [0.005, 0.01, 0.02], "rho": [0.0, 0.03, 0.05, 0.1]},
    }
}
"""The grid of Springer et al. (2024, App. F.2), validated on 10% of the training domains. Its rho 0 is plain SGD."""


def target_parts(data: Data, share: float = 0.2, seed: int = 0) -> tuple[Split, Split]:
    """The test set in two, stratified by class: one to fit a probe on, and a `share` to measure it on."""
    if data.test is None:
        raise EvenlyError(f"{data.name} has no test set to divide; give data with one")
    late = held_out(data.test.labels.numpy(), share_of(share, "share"), seed)
    if not late.any():
        raise EvenlyError(f"share {share} of {len(late)} test images leaves none to measure; give a larger share")
    fitted, measured = (_part(data.test, torch.from_numpy(np.flatnonzero(late == part))) for part in (False, True))
    return fitted, measured


def _part(split: Split, index: Tensor) -> Split:
    """The examples of a split at `index` (M,)."""
    inputs = split.inputs[index] if isinstance(split.inputs, Tensor) else Subset(split.inputs, index.tolist())
    groups = None if split.groups is None else split.groups[index]
    attributes = {name: column[index] for name, column in split.attributes.items()}
    return Split(inputs, split.labels[index], groups, attributes, name=split.name)


def _left_out(
    name: str,
    about: str,
    listing: Listing,
    domains: Sequence[str],
    target: str,
    validation: float,
    size: int,
    memory: float,
    seed: int,
    decoded: Decoded | None = None,
) -> ImageData:
    if target not in domains:
        raise unknown(f"domain of {name}", target, domains)
    domain = listing.attributes["domain"]
    listing.splits = np.where(domain == domains.index(target), "test", "train")
    data = assembled(
        listing,
        name=name,
        about=f"{about} Tested on {target}, which is left out of training.",
        reading=Reading(size=Squeezed(size, size), channels=3, memory=memory),
        validation=validation,
        seed=seed,
        groups="domain",
        recipe=GROUPED | {"augment": "basic", "epochs": 20},
        decoded=decoded,
    )
    data.group_names = list(domains)
    return data


def _folders(root: Path, domains: Sequence[str]) -> Listing:
    """The images of all domains; class k is the k-th name of a folder in order."""
    rows = [
        (file, name, domain)
        for domain in domains
        for name in folders_in(root, domain)
        for file in images_in(root, f"{domain}/{name}")
    ]
    if not rows:
        raise EvenlyError(f"there are no images in {root}; unpack its archive again")
    classes = sorted({name for _, name, _ in rows})
    return Listing(
        root,
        [file for file, _, _ in rows],
        np.array([classes.index(name) for _, name, _ in rows], dtype=np.int64),
        classes,
        None,
        {"domain": np.array([domains.index(domain) for _, _, domain in rows], dtype=np.int64)},
        {"domain": domains},
    )


def _atlases(root: Path, size: int) -> tuple[Listing, Decoded]:
    """The images of PACS's four atlases, whose tile and number of images are in meta.json."""
    try:
        meta = json.loads((root / "meta.json").read_bytes())
        classes = [str(name) for name in meta["classes"]]
        sizes: Mapping[str, tuple[int, int]] = {
            str(atlas["file"]): (int(atlas["n"]), int(atlas["tile"])) for atlas in meta["atlases"]
        }
        counts = [sizes[f"{domain}.webp"] for domain in PACS]
        if min(map(min, counts)) < 1:
            raise ValueError(f"numbers and tiles {counts}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EvenlyError(f"{root / 'meta.json'} cannot be read ({error!r}); get it again") from None
    files = [f"{domain}.webp" for domain in PACS]
    decoded, labels = decode_atlases(root, files, counts, len(classes), Squeezed(size, size))
    domain = np.repeat(np.arange(len(PACS)), [n for n, _ in counts])
    return Listing(root, decoded.files, labels, classes, None, {"domain": domain}, {"domain": PACS}), decoded
