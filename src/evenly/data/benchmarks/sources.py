"""Download a published data set, checked against its checksum before anything is unpacked."""

from __future__ import annotations

import hashlib
import http.client
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
from dataclasses import dataclass
from pathlib import Path

from evenly.data.benchmarks.places import Folder, place_of
from evenly.data.images.cache import whole_file
from evenly.errors import EvenlyError, unknown

CHUNK = 1 << 20
TIMEOUT = 60  # seconds without a byte


@dataclass(frozen=True)
class Source:
    """A file to download: its address, and its checksum (32 hex digits: md5, 64: sha256)."""

    url: str
    checksum: str


_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
SOURCES: dict[str, tuple[Source, ...]] = {
    "cifar10": (Source("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),),
    "cifar100": (
        Source("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),
    ),
    "stl10": (Source("http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz", "91f7769df0f17e558f3565bffb0c7dfb"),),
    "cinic10": (
        Source(
            "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz", "6ee4d0c996905fe93221de577967a372"
        ),
    ),
    "tiny-imagenet": (Source("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"),),
    "mnist": (
        Source(f"{_MNIST}/train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        Source(f"{_MNIST}/train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432"),
        Source(f"{_MNIST}/t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3"),
        Source(f"{_MNIST}/t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c"),
    ),
    "fashion-mnist": (
        Source(f"{_FASHION}/train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        Source(f"{_FASHION}/train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
        Source(f"{_FASHION}/t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
        Source(f"{_FASHION}/t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
    ),
}


def download(name: str, folder: Folder = None) -> Path:
    """Download a data set and unpack it into `folder` (or EVENLY_DATA/name), which appears only when it is complete.

    Args:
        name: one of `SOURCES`.
        folder: a folder that does not exist or is empty.
    """
    if name not in SOURCES:
        raise unknown("data set to download", name, SOURCES)
    place = place_of(name, folder)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise EvenlyError(f"{str(place)!r} exists already; remove it to download {name} again, or give another folder")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{place.name}.", suffix=".partial") as partial:
            inside = Path(partial) / "files"
            inside.mkdir()
            for source in SOURCES[name]:
                file = Path(partial) / source.url.rsplit("/", 1)[1]
                fetch(source.url, file, source.checksum)
                _unpack(file, inside)
            if place.exists():
                place.rmdir()
            inside.replace(place)
    except OSError as error:
        raise EvenlyError(f"{name} cannot be stored in {str(place)!r} ({error}); give another folder") from None
    return place


def fetch(url: str, path: Path, checksum: str) -> None:
    """Download one file; it is there under its name only if its checksum (md5 or sha256, in hex) is right."""
    if not url.startswith(("http://", "https://")):
        raise EvenlyError(f"{url!r} is not an http address; give http:// or https://")
    kinds = {32: "md5", 64: "sha256"}
    if len(checksum) not in kinds:
        raise EvenlyError(f"checksum {checksum!r} is neither md5 (32 hex digits) nor sha256 (64); give one of them")
    digest = hashlib.new(kinds[len(checksum)], usedforsecurity=False)
    with whole_file(path) as file:
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
                while chunk := answer.read(CHUNK):
                    digest.update(chunk)
                    file.write(chunk)
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            reason = getattr(error, "reason", None) or error
            raise EvenlyError(
                f"{url} cannot be downloaded ({reason}); check the network, or fetch it on another machine"
            ) from None
        if digest.hexdigest() != checksum.lower():
            raise EvenlyError(
                f"{url} has the {digest.name} {digest.hexdigest()}, not the published {checksum}; nothing was stored: "
                "try again, or get it elsewhere"
            )


def _unpack(file: Path, folder: Path) -> None:
    """Unpack an archive and remove it; any other file (idx files are read packed) is moved as it is."""
    try:
        if file.name.endswith(".tar.gz"):
            with tarfile.open(file, "r:gz") as archive:
                archive.extractall(folder, filter="data")  # nothing outside the folder, no devices, no links out
        elif file.suffix == ".zip":
            with zipfile.ZipFile(file) as packed:
                packed.extractall(folder)
        else:
            shutil.move(file, folder / file.name)
            return
    except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        raise EvenlyError(f"{file.name} cannot be unpacked ({error}); get it elsewhere") from None
    file.unlink()
