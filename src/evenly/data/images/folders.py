"""The user's own images in folders."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from evenly.data.images.decoding import MEMORY, SUFFIXES, Reading, largest_side
from evenly.data.images.listing import Listing, assembled, inside
from evenly.data.images.metadata import read_metadata
from evenly.data.images.parts import ImageData
from evenly.data.metadata import METADATA, SPLIT_NAMES, metadata_in, usual_groups
from evenly.errors import EvenlyError


def image_folder(
    path: str | Path,
    size: int | None = None,
    validation: float | None = None,
    groups: str | None = None,
    memory: float = MEMORY,
    skip_bad: bool = False,
    seed: int = 0,
    largest: int | None = None,
) -> ImageData:
    """The user's own images, uint8 (N, C, H, W), from a folder per class or a folder with a metadata.csv.

    Class folders lie in `path`, or in `path`/train, `path`/val (or valid, validation) and `path`/test. A metadata.csv
    (or metadata.jsonl) has columns file (or file_name) and label, and may have split and any attributes. Without splits
    60/20/20 are drawn from the seed, stratified by class (and group). Every class is in every split there is. Class k
    is the k-th name in order. Nothing outside `path` is read, also not through links. Images are decoded once and
    cached, see `evenly.data.images.cache`.

    Args:
        size: cut every image's middle square and bring it to `size` x `size`; needed where sizes differ.
        validation: the share held out for validation: of all images where splits are drawn (else 0.2), of the
            training images where the data has train and test only (else none).
        groups: columns of metadata.csv, as "place", "label,place" or "label,male+female" (`evenly.data.metadata`);
            without it label and attribute where there is one attribute of few values, and "none" for no groups.
        memory: GiB of pixels up to which images are held in memory; more stay on disk and are decoded on demand
            (then only their headers are checked in advance).
        skip_bad: leave out images that cannot be read, or have more pixels than Pillow's limit; `about` says how
            many. Otherwise they are refused.
        largest: without a size, bring images whose first is larger than this to `largest` x `largest`.
    """
    root = Path(os.path.realpath(path))
    if not root.is_dir():
        raise EvenlyError(f"there is no folder {str(path)!r}; give a folder of images, one folder per class")
    metadata = metadata_in(root)
    listing = _class_folders(root) if metadata is None else read_metadata(root, metadata)
    if size is None and largest is not None and largest_side(root / listing.files[0]) > largest:
        size = largest
    return assembled(
        listing,
        name=root.name,
        reading=Reading(size=size, memory=memory, skip_bad=skip_bad),
        validation=validation,
        groups=usual_groups(listing.attribute_names) if groups is None else None if groups == "none" else groups,
        seed=seed,
    )


def _class_folders(root: Path) -> Listing:
    """The images of a folder per class, with splits where the folders are called train, val, test.

    A class may bear such a name, so it takes train and another, or nothing but such names, to mean splits.
    """
    folders = folders_in(root, "")
    parts = {folder: SPLIT_NAMES[folder.lower()] for folder in folders if folder.lower() in SPLIT_NAMES}
    strangers = [folder for folder in folders if folder not in parts]
    if parts and not strangers:
        if "train" not in parts.values():
            raise EvenlyError(
                f"{root} has {' and '.join(parts)}, but no folder train; add it, or name the classes otherwise"
            )
        return split_folders(root, parts)
    if "train" in parts.values() and len(parts) > 1:
        raise EvenlyError(
            f"{root} has folders of splits ({', '.join(parts)}) and beside them {strangers[0]!r}; move that elsewhere, "
            f"or name the images to use in a {METADATA[0]}"
        )
    files = [(name, file) for name in folders for file in images_in(root, name)]
    _refuse_loose(root, "", bool(files))
    return _listing(root, [(name, file, "") for name, file in files], folders, drawn=True)


def split_folders(root: Path, parts: Mapping[str, str]) -> Listing:
    """The images in folders of splits, given by the folder's name, with a folder per class in each."""
    rows: list[tuple[str, str, str]] = []
    classes: set[str] = set()
    for part, split in parts.items():
        if len(same := [other for other in parts if parts[other] == split]) > 1:
            raise EvenlyError(f"{root} has {len(same)} {split} folders ({', '.join(same)}); keep one")
        names = folders_in(root, part)
        _refuse_loose(root, part, bool(names))
        classes |= set(names)
        rows += [(name, file, split) for name in names for file in images_in(root, f"{part}/{name}")]
    return _listing(root, rows, sorted(classes), drawn=False)


def _listing(root: Path, rows: Sequence[tuple[str, str, str]], classes: Sequence[str], *, drawn: bool) -> Listing:
    if not rows:
        raise EvenlyError(
            f"there are no images in {root} ({', '.join(SUFFIXES)}); give a folder that holds a folder per class"
        )
    number = {name: k for k, name in enumerate(classes)}
    labels = np.array([number[name] for name, _, _ in rows], dtype=np.int64)
    splits = None if drawn else np.array([split for _, _, split in rows])
    return Listing(root, [file for _, file, _ in rows], labels, classes, splits)


def _refuse_loose(root: Path, folder: str, others: bool) -> None:
    loose = [entry.name for entry in _entries(root, folder) if _is_image(entry.name)]
    if loose:
        where = "beside the class folders" if others else "in no class folder"
        images, lie = ("1 image", "lies") if len(loose) == 1 else (f"{len(loose)} images", "lie")
        raise EvenlyError(
            f"{images} in {root / folder} {lie} {where} (e.g. {loose[0]!r}); "
            f"put each in a folder named after its class, or add a {METADATA[0]} with columns file and label"
        )


def _is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def _entries(root: Path, folder: str) -> list[os.DirEntry[str]]:
    """What is in a folder, by name; hidden things and what macOS leaves in archives are passed over."""
    with os.scandir(root / folder) as entries:
        return sorted((e for e in entries if not e.name.startswith((".", "__MACOSX"))), key=lambda entry: entry.name)


def folders_in(root: Path, folder: str) -> list[str]:
    """The folders in a folder, by name; none may lead out of the root."""
    return [entry.name for entry in _entries(root, folder) if _is_folder(entry) and _checked(root, entry)]


def images_in(root: Path, folder: str, above: tuple[str, ...] = ()) -> Iterator[str]:
    """The image files in a folder and those below it, from the root, in order of name."""
    here = os.path.realpath(root / folder)
    if here in above:
        raise EvenlyError(f"{root / folder} is a link to a folder that contains it; remove the link")
    for entry in _entries(root, folder):
        if _is_folder(entry):
            _checked(root, entry)
            yield from images_in(root, f"{folder}/{entry.name}", (*above, here))
        elif _is_image(entry.name):
            _checked(root, entry)
            yield f"{folder}/{entry.name}"


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:  # a link to itself
        raise EvenlyError(f"{entry.path} cannot be followed ({error.strerror}); remove it") from None


def _checked(root: Path, entry: os.DirEntry[str]) -> bool:
    if entry.is_symlink() and not inside(root, Path(entry.path)):
        raise EvenlyError(f"{entry.path} is a link that leads outside {root}; copy what it points to, or remove it")
    return True
