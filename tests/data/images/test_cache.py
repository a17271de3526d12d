"""Decoded images are cached; a cache that is damaged, stale or of other files is noticed and made again."""

import json
import multiprocessing
import os
import pickle
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from evenly.data import mapped
from evenly.data.images import decoding
from evenly.data.images.cache import cache_folder, cached_arrays
from evenly.data.images.decoding import Reading, decode
from evenly.errors import EvenlyWarning

COLOURS = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
FILES = ["0.png", "1.png"]


def written(folder, start=0):
    folder.mkdir(parents=True, exist_ok=True)
    for i, name in enumerate(FILES):
        Image.fromarray(COLOURS + start + i).save(folder / name)
    return folder


def is_as_written(folder):
    """Whether decoding gives what Pillow reads from the files as they are now."""
    expected = np.stack([np.asarray(Image.open(folder / name)) for name in FILES]).transpose(0, 3, 1, 2).copy()
    return torch.equal(decode(folder, FILES).pixels, torch.from_numpy(expected))


@pytest.fixture
def decoded(monkeypatch):
    """The files that were decoded."""
    seen, original = [], decoding._decode
    monkeypatch.setattr(decoding, "_decode", lambda path, *rest: seen.append(path) or original(path, *rest))
    return seen


def cache():
    return Path(os.environ["EVENLY_CACHE"]) / "images"


def cached(folder, suffix):
    """The file of this kind in the cache; there is one."""
    (path,) = cache().glob(f"*{suffix}")
    return path


def test_files_are_decoded_once(tmp_path, decoded):
    folder = written(tmp_path)
    for _ in range(3):
        assert is_as_written(folder)
        decode(folder, FILES).pixels.zero_()  # does not reach the file
    assert len(decoded) == 2
    assert [name for name, _, _ in json.loads(cached(folder, ".json").read_text())["files"]] == FILES
    assert {path.suffix for path in cache().iterdir()} == {".json", ".npy"}, "nothing is left over"
    assert sorted(path.name for path in folder.iterdir()) == FILES, "nor anything beside the images"
    decode(folder, FILES, Reading(size=2))
    assert len(decoded) == 4, "another size is another array"
    assert is_as_written(folder)
    assert len(decoded) == 4, "and leaves the first"
    assert np.array_equal(decode(folder, FILES[::-1]).pixels[1].numpy(), COLOURS.transpose(2, 0, 1))
    assert len(decoded) == 6, "other files are another array"


def changed(folder):
    path = folder / "1.png"
    Image.fromarray(COLOURS + 9).save(path)
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


def flipped(at):
    def damage(folder):
        content = bytearray(cached(folder, ".npy").read_bytes())
        content[at] ^= 1
        cached(folder, ".npy").write_bytes(content)

    return damage


def cut(suffix):
    return lambda folder: cached(folder, suffix).write_bytes(cached(folder, suffix).read_bytes()[:-5])


def rewritten(**changes):
    def damage(folder):
        path = cached(folder, ".json")
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return damage


class Creates:
    def __reduce__(self):
        return os.mkdir, ("made-by-a-pickle",)


def another_size(folder):
    """The array of another size in the place of this one."""
    place, content = cached(folder, ".npy"), cached(folder, ".npy").read_bytes()
    decode(folder, FILES, Reading(size=2))
    (other,) = (path for path in place.parent.glob("*.npy") if path != place)
    place.write_bytes(other.read_bytes())
    assert place.read_bytes() != content


STALE = {
    "a file was changed": changed,
    "a file has another time": lambda folder: os.utime(folder / "1.png", ns=(0, 0)),
    "a bit of the array flipped": flipped(-1),
    "a bit of the array's header flipped": flipped(30),
    "the array was cut short": cut(".npy"),
    "the manifest was cut short": cut(".json"),
    "the array is gone": lambda folder: cached(folder, ".npy").unlink(),
    "the manifest is gone": lambda folder: cached(folder, ".json").unlink(),
    "the array is a pickle": lambda folder: cached(folder, ".npy").write_bytes(pickle.dumps(Creates())),
    "the array is of another size": another_size,
    "another version wrote it": rewritten(version=0),
    "it was decoded otherwise": rewritten(how={"size": 9, "channels": None}),
    "another shape": rewritten(shape=[3, 8, 6]),
    "another shape of as many": rewritten(shape=[2, 3, 8, 6]),
    "another kind of manifest": lambda folder: cached(folder, ".json").write_text("[]"),
    "a manifest that is no JSON": lambda folder: cached(folder, ".json").write_bytes(b"\xff{"),
    "a bad file that is none": rewritten(bad=[[0, "no reason"]]),
    "a manifest of nonsense": rewritten(bad=7),
    "it was cleared": lambda folder: cached_arrays(clear=True),
}


@pytest.mark.parametrize("case", STALE)
def test_a_stale_or_damaged_cache_is_made_again(tmp_path, decoded, case):
    folder = written(tmp_path)
    decode(folder, FILES)
    STALE[case](folder)
    before = len(decoded)
    for _ in range(2):
        assert is_as_written(folder)
        assert len(decoded) == before + 2, "what was made again is used"


def test_a_cache_of_another_folder_or_of_files_since_put_back_is_noticed(tmp_path):
    """The last as left by two processes that wrote at once, before and after the files were changed and put back."""
    ours, theirs = written(tmp_path / "ours"), written(tmp_path / "theirs", 100)
    assert is_as_written(ours)
    manifest, array = cached(ours, ".json"), cached(ours, ".npy")
    assert is_as_written(theirs)
    for place in (manifest, array):
        (other,) = (path for path in cache().glob(f"*{place.suffix}") if path != place)
        shutil.copy(other, place)
    assert is_as_written(ours)
    before, times, content = manifest.read_bytes(), (ours / "1.png").stat(), (ours / "1.png").read_bytes()
    Image.fromarray(COLOURS + 77).save(ours / "1.png")
    assert is_as_written(ours)
    manifest.write_bytes(before)
    (ours / "1.png").write_bytes(content)
    os.utime(ours / "1.png", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert is_as_written(ours)


def test_a_folder_is_left_as_it_is_and_known_by_any_path(tmp_path, decoded):
    folder = written(tmp_path / "images")
    (tmp_path / "alias").symlink_to(folder)
    for path in (folder, folder, tmp_path / "alias"):
        assert is_as_written(path)
    assert len(decoded) == 2
    assert sorted(path.name for path in folder.iterdir()) == FILES


@pytest.mark.parametrize("cause", ["read-only", "a file in its place"])
def test_without_a_cache_images_are_decoded_every_time_and_a_line_says_so(tmp_path, decoded, monkeypatch, cause):
    place = tmp_path / "cache"
    monkeypatch.setenv("EVENLY_CACHE", str(place))
    place.mkdir(mode=0o555) if cause == "read-only" else place.write_text("")
    for times in (1, 2):
        with pytest.warns(EvenlyWarning, match=r"cannot be kept in .*cache/images \(.*; free space, or .*EVENLY_CACHE"):
            assert is_as_written(written(tmp_path / "images"))
        assert len(decoded) == 2 * times
    place.chmod(0o755)


def test_a_full_disk_leaves_no_half_written_cache(tmp_path, monkeypatch):
    def full(file, *_, **__):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array", full)
    with pytest.warns(EvenlyWarning, match="No space left on device"):
        assert is_as_written(written(tmp_path))
    assert list(cache().iterdir()) == []


@pytest.mark.parametrize(
    ("system", "variables", "place"),
    [
        ("linux", {}, "/home/me/.cache/evenly"),
        ("linux", {"XDG_CACHE_HOME": "/fast"}, "/fast/evenly"),
        ("darwin", {"XDG_CACHE_HOME": "/fast"}, "/home/me/Library/Caches/evenly"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/evenly/Cache"),
        ("linux", {"XDG_CACHE_HOME": "/fast", "EVENLY_CACHE": "/mine"}, "/mine"),
    ],
)
def test_where_it_lies(monkeypatch, system, variables, place):
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA", "EVENLY_CACHE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/me", **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.platform", system)
    assert cache_folder().as_posix() == place


def test_it_can_be_listed_and_cleared(tmp_path):
    assert cached_arrays() == []
    folder = written(tmp_path / "images")
    decode(folder, FILES)
    (cache() / "damaged.json").write_text("[]")
    (array,) = cached_arrays()
    assert array.data == str(folder)
    assert array.size == cached(folder, ".npy").stat().st_size + next(cache().glob("?" * 16 + ".json")).stat().st_size
    assert abs(array.written - time.time()) < 60
    assert cached_arrays(clear=True) == [array]
    assert cached_arrays() == []
    assert not cache().exists()


def test_what_a_killed_process_left_is_swept_up_after_a_day(tmp_path):
    cache().mkdir()
    for name, age in ((".old.partial", 90000), (".young.partial", 60)):
        (cache() / name).write_text("")
        os.utime(cache() / name, (time.time() - age,) * 2)
    decode(written(tmp_path), FILES)
    assert [path.name for path in cache().glob(".*")] == [".young.partial"]


def test_what_memory_does_not_hold_stays_in_the_file(tmp_path, decoded, monkeypatch):
    less, enough = (2 * COLOURS.size - 1) / 2**30, 2 * COLOURS.size / 2**30
    folder = written(tmp_path)
    for memory in (less, enough, less):
        pixels = decode(folder, FILES, Reading(memory=memory)).pixels
        assert isinstance(pixels, np.memmap) == (memory == less)
    assert len(decoded) == 2, "the one cache serves both"
    assert np.array_equal(pixels, decode(folder, FILES, Reading(memory=enough)).pixels)
    assert {path.suffix for path in cache().iterdir()} == {".json", ".npy"}, "nothing is left over"
    monkeypatch.setattr(mapped, "_free_memory", lambda: 2 * COLOURS.size / mapped.HOST_SHARE - 1)
    assert isinstance(decode(folder, FILES).pixels, np.memmap), "nor does what is more than a share of free memory"


def test_images_for_which_no_disk_has_room_are_decoded_as_they_are_asked_for(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("evenly.data.images.cache.reserve", full)
    with pytest.warns(EvenlyWarning, match="No space left on device"):
        assert decode(written(tmp_path), FILES, Reading(memory=0)).pixels is None
    assert list(cache().iterdir()) == []


def _load_often(job):
    """Load several times; the first of the processes destroys what it finds between its turns."""
    folder, number = job
    torch.set_num_threads(1)
    fine = True
    for turn in range(6):
        fine = fine and is_as_written(folder)
        if number == 0:
            for path in cache().glob("*.npy" if turn % 2 else "*.json"):
                path.unlink(missing_ok=True)
    return fine


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_several_processes_at_once_all_read_the_right_images(tmp_path):
    folder = written(tmp_path)
    with multiprocessing.get_context("fork").Pool(3) as pool:
        right = pool.map_async(_load_often, [(folder, number) for number in range(3)], chunksize=1)
        assert right.get(timeout=60) == [True] * 3
    assert not list(cache().glob(".*.partial"))
    assert is_as_written(folder)


def test_a_file_that_could_not_be_read_for_a_while_is_read_again(tmp_path, monkeypatch):
    """Only what is no image stays bad; a file that was locked does not."""
    folder, decode_one = written(tmp_path), decoding._decode

    def locked(path, *rest):
        if path.name == "1.png":
            raise PermissionError(13, "Permission denied")
        return decode_one(path, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(decoding, "_decode", locked)
        assert [name for name, _ in decode(folder, FILES, Reading(skip_bad=True)).bad] == ["1.png"]
    assert decode(folder, FILES).bad == []
