"""CIFAR-10 from atlases is decoded once; a cache that is damaged, stale or another's is noticed and made again."""

import json
import multiprocessing
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from evenly import EvenlyError
from evenly.data.benchmarks import atlases
from evenly.data.benchmarks.cifar import cifar10

FILES = (*(f"train_{i}.webp" for i in range(5)), "test.webp")
COLUMNS, ROWS = 5, 2


def tiles(number):
    """The ten images (10, 3, 32, 32) of one file."""
    return np.random.default_rng(number).integers(0, 256, (COLUMNS * ROWS, 3, 32, 32), dtype=np.uint8)


def save(path, number):
    atlas = np.zeros((ROWS * 32, COLUMNS * 32, 3), np.uint8)
    for i, image in enumerate(tiles(number)):
        row, column = divmod(i, COLUMNS)
        atlas[32 * row : 32 * row + 32, 32 * column : 32 * column + 32] = image.transpose(1, 2, 0)
    Image.fromarray(atlas).save(path, lossless=True, quality=0, method=0)


def written(folder, start=0):
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(FILES):
        save(folder / name, start + number)
    np.save(folder / "train_labels.npy", np.arange(50, dtype=np.uint8) % 10)
    np.save(folder / "test_labels.npy", np.arange(10, dtype=np.uint8))
    return folder


def expected(start=0):
    train = np.concatenate([tiles(start + number) for number in range(5)])
    return torch.from_numpy(train), torch.from_numpy(tiles(start + 5))


def is_as_written(folder, start=0):
    data, (train, test) = cifar10(folder), expected(start)
    labels = data.train.labels.tolist() == [i % 10 for i in range(50)] and data.test.labels.tolist() == list(range(10))
    return torch.equal(data.train.inputs, train) and torch.equal(data.test.inputs, test) and labels


@pytest.fixture
def decoded(monkeypatch):
    """The names of the atlases that were decoded."""
    seen = []
    original = atlases.read_atlas

    def counted(path):
        seen.append(path.name)
        return original(path)

    monkeypatch.setattr(atlases, "read_atlas", counted)
    return seen


def test_atlases_are_decoded_once(tmp_path, decoded):
    folder = written(tmp_path / "cifar10")
    assert is_as_written(folder)
    assert sorted(decoded) == sorted(FILES)
    for _ in range(2):
        data = cifar10(folder)
        data.train.inputs.zero_()  # does not reach the file
        assert is_as_written(folder)
    assert len(decoded) == len(FILES)
    kept = sorted(path.suffix for path in (folder / ".evenly-cache").iterdir())
    assert kept == [".json", ".json", ".npy", ".npy"], "nothing else is left behind"


def test_splits_and_subsets_are_the_same_from_the_cache(tmp_path):
    folder = written(tmp_path)
    first, again = (cifar10(folder, validation=0.25, n=40, seed=4) for _ in range(2))
    assert first.fingerprint() == again.fingerprint()
    assert (len(again.train), len(again.validation), len(again.test)) == (30, 10, 10)


def manifest_of(folder, file):
    """The manifest that lists a file."""
    paths = (folder / ".evenly-cache").glob("*.json")
    return next(path for path in paths if file in [name for name, *_ in json.loads(path.read_text())["files"]])


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def swap_arrays(folder):
    train, test = (manifest_of(folder, name).with_suffix(".npy") for name in ("train_0.webp", "test.webp"))
    spare = train.with_suffix(".spare")
    train.rename(spare)
    test.rename(train)
    spare.rename(test)


def rewrite(folder, **changes):
    path = manifest_of(folder, "train_0.webp")
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def touch(folder):
    path = folder / "train_3.webp"
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


DAMAGED = {
    "a pixel of the training images": (lambda f: flip(manifest_of(f, "train_0.webp").with_suffix(".npy"), -9), 5),
    "a pixel of the test images": (lambda f: flip(manifest_of(f, "test.webp").with_suffix(".npy"), -9), 1),
    "the array's header": (lambda f: flip(manifest_of(f, "test.webp").with_suffix(".npy"), 30), 1),
    "one array in the place of the other": (swap_arrays, 6),
    "the manifest is no JSON": (lambda f: manifest_of(f, "train_0.webp").write_bytes(b"\xff{"), 5),
    "the array is gone": (lambda f: manifest_of(f, "test.webp").with_suffix(".npy").unlink(), 1),
    "a file has another time": (touch, 5),
    "another version": (lambda f: rewrite(f, version=1), 5),
    "another tile": (lambda f: rewrite(f, how={"atlases": "train", "tile": 16}), 5),
    "another shape of as many": (lambda f: rewrite(f, shape=[50, 3, 16, 64]), 5),
    "files called bad that are not": (lambda f: rewrite(f, bad=[[0, "no reason"]]), 5),
    "the cache is a file": (lambda f: (shutil.rmtree(f / ".evenly-cache"), (f / ".evenly-cache").write_text("")), 6),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_cache_is_made_again(tmp_path, decoded, case):
    damage, again = DAMAGED[case]
    folder = written(tmp_path)
    cifar10(folder)
    damage(folder)
    assert is_as_written(folder)
    assert len(decoded) == len(FILES) + again
    assert is_as_written(folder)
    assert len(decoded) == len(FILES) + again, "what was made again is used"


def test_a_stale_cache_and_one_of_another_folder_are_noticed(tmp_path):
    ours, theirs = written(tmp_path / "ours"), written(tmp_path / "theirs", 100)
    assert is_as_written(ours)
    assert is_as_written(theirs, 100)
    shutil.rmtree(ours / ".evenly-cache")
    shutil.copytree(theirs / ".evenly-cache", ours / ".evenly-cache")
    assert is_as_written(ours)
    times = (ours / "test.webp").stat()
    written(ours, 200)
    os.utime(ours / "test.webp", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert is_as_written(ours, 200)


def test_a_manifest_never_vouches_for_the_array_of_other_files(tmp_path):
    """As left by two processes that wrote at once, before and after the files were changed and put back."""
    folder = written(tmp_path / "cifar10")
    cifar10(folder)
    manifest = manifest_of(folder, "test.webp")
    said = manifest.read_bytes()
    before = folder / "test.webp"
    kept, stat = before.read_bytes(), before.stat()
    save(before, 77)
    assert torch.equal(cifar10(folder).test.inputs, torch.from_numpy(tiles(77)))
    manifest.write_bytes(said)
    before.write_bytes(kept)
    os.utime(before, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert is_as_written(folder)


def test_a_folder_marked_read_only_is_left_as_it_is_also_by_root(tmp_path, decoded):
    folder = written(tmp_path / "cifar10")
    folder.chmod(0o555)
    try:
        for _ in range(2):
            assert is_as_written(folder)
        assert len(decoded) == len(FILES), "the user's own cache is used"
        assert sorted(path.name for path in folder.iterdir()) == sorted((*FILES, "train_labels.npy", "test_labels.npy"))
        kept = Path(os.environ["XDG_CACHE_HOME"]) / "evenly" / "images"
        assert sorted(path.suffix for path in kept.iterdir()) == [".json", ".json", ".npy", ".npy"]
        (tmp_path / "alias").symlink_to(folder)
        assert is_as_written(tmp_path / "alias")
        assert len(decoded) == len(FILES), "a folder is the same by another path"
        Path(os.environ["XDG_CACHE_HOME"]).chmod(0o555)
        shutil.rmtree(Path(os.environ["XDG_CACHE_HOME"]) / "evenly")
        for times in (2, 3):
            assert is_as_written(folder)
            assert len(decoded) == times * len(FILES), "without a cache they are decoded every time"
    finally:
        folder.chmod(0o755)
        Path(os.environ["XDG_CACHE_HOME"]).chmod(0o755)


def test_a_cache_in_a_folder_since_marked_read_only_is_read(tmp_path, decoded):
    folder = written(tmp_path / "cifar10")
    cifar10(folder)
    folder.chmod(0o555)
    try:
        assert is_as_written(folder)
        assert len(decoded) == len(FILES)
    finally:
        folder.chmod(0o755)


def test_the_labels_are_read_every_time(tmp_path):
    folder = written(tmp_path)
    cifar10(folder)
    np.save(folder / "test_labels.npy", np.arange(10, dtype=np.uint8)[::-1].copy())
    assert cifar10(folder).test.labels.tolist() == list(reversed(range(10)))
    np.save(folder / "test_labels.npy", np.arange(9, dtype=np.uint8))
    with pytest.raises(EvenlyError, match=r"test_labels.npy is not 10 labels in 0..9, one for each tile; get it again"):
        cifar10(folder)


def _load_often(job):
    """Load several times; the first of the processes destroys what it finds between its turns."""
    folder, number = job
    torch.set_num_threads(1)
    fine = True
    for turn in range(6):
        fine = fine and is_as_written(folder)
        if number == 0:
            for path in (folder / ".evenly-cache").glob("*.npy" if turn % 2 else "*.json"):
                path.unlink(missing_ok=True)
    return fine


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_several_processes_at_once_all_read_the_right_images(tmp_path):
    folder = written(tmp_path)
    with multiprocessing.get_context("fork").Pool(3) as pool:
        right = pool.map_async(_load_often, [(folder, number) for number in range(3)], chunksize=1)
        assert right.get(timeout=60) == [True] * 3
    assert not list((folder / ".evenly-cache").glob(".*.partial"))
    assert is_as_written(folder)
