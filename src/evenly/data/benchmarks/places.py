"""Where the files of a published data set are searched for."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from evenly.errors import EvenlyError

Folder = str | Path | None
VARIABLE = "EVENLY_DATA"  # a folder that holds one folder for each data set

PUBLISHERS = {
    "waterbirds": "waterbird_complete95_forest2water2.tar.gz, github.com/kohpangwei/group_DRO",
    "celeba": "list_attr_celeba.txt, list_eval_partition.txt, img_align_celeba.zip, "
    "mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
    "pacs": "PACS.zip, github.com/facebookresearch/DomainBed (domainbed/scripts/download.py)",
    "office-home": "office_home.zip, github.com/facebookresearch/DomainBed (domainbed/scripts/download.py)",
    "vlcs": "VLCS.tar.gz, github.com/facebookresearch/DomainBed (domainbed/scripts/download.py)",
    "civilcomments": "all_data_with_identities.csv, wilds.stanford.edu",
}
"""For data sets that evenly does not download: which files are needed, and where they are described."""


def place_of(name: str, folder: Folder) -> Path:
    """The given folder, or the one of this name in the folder that EVENLY_DATA names."""
    if folder is not None:
        return Path(folder)
    if not (shared := os.environ.get(VARIABLE)):
        raise EvenlyError(
            f"{name} needs a folder and {VARIABLE} is not set; give folder=... (-d folder=...), or set "
            f"{VARIABLE} to a folder that holds {name}/, or {_how_to_download(name, 'FOLDER')}"
        )
    return Path(shared) / name


def find_layout(
    name: str, folder: Folder, layouts: Mapping[str, tuple[str, Sequence[str]]], other: str | None = None
) -> tuple[str, Path]:
    """Which layout a data set has, and in which folder, links followed.

    Args:
        name: of the data set, and of its folder in EVENLY_DATA.
        layouts: for each layout, the folder in the official archive (searched inside `folder`, and as `folder` itself)
            and the files that must be there.
        other: a second name for the folder in EVENLY_DATA, used if there is none of the first.
    """
    place = place_of(name, folder)
    if folder is None and other is not None and not place.exists() and (place.parent / other).is_dir():
        place = place.parent / other
    for layout, (inner, files) in layouts.items():
        for candidate in (place, place / inner):
            if all((candidate / file).exists() for file in files):
                return layout, Path(os.path.realpath(candidate))
    for inner, files in layouts.values():
        for candidate in (place, place / inner):
            present = [file for file in files if (candidate / file).exists()]
            if present:
                missing = next(file for file in files if file not in present)
                raise EvenlyError(f"{name} in {str(candidate)!r} lacks {missing}; unpack its archive again")
    expected = " or ".join(dict.fromkeys(files[0] for _, files in layouts.values()))
    inners = " and ".join(dict.fromkeys(inner for inner, _ in layouts.values() if inner))
    raise EvenlyError(
        f"{name} was not found: searched for {expected} in {str(place)!r}{f' and its {inners}' if inners else ''}; "
        f"give folder=..., or {_how_to_download(name, str(place))}"
    )


def _how_to_download(name: str, folder: str) -> str:
    if name in PUBLISHERS:
        return f"get it: {PUBLISHERS[name]}"
    call = f"download('{name}', {folder!r})"
    return f'download it: python -c "from evenly.data.benchmarks import download; {call}"'
