"""Decoding to one uint8 array: modes, orientation, sizes, bad files, the cache, and images that stay on disk."""

import json
import os
import pickle
import struct
import time
import zlib

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from evenly import EvenlyError
from evenly.data.images import decoding, image_folder
from evenly.data.images.decoding import decode

COLOURS = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)


def saved(folder, *images, **options):
    folder.mkdir(exist_ok=True)
    for i, image in enumerate(images):
        image.save(folder / f"{i}.png", **options)
    return [f"{i}.png" for i in range(len(images))]


def only(folder, name, **options):
    pixels = decode(folder, [name], **options).pixels
    assert pixels is not None
    assert pixels.dtype == torch.uint8
    return pixels[0].numpy()


def test_colour_images_keep_their_pixels_and_gray_ones_stay_gray(tmp_path):
    files = saved(tmp_path, Image.fromarray(COLOURS), Image.fromarray(COLOURS[::-1].copy()))
    decoded = decode(tmp_path, files)
    assert torch.equal(
        decoded.pixels, torch.from_numpy(np.stack([COLOURS, COLOURS[::-1]]).transpose(0, 3, 1, 2).copy())
    )
    gray = saved(tmp_path / "gray", Image.fromarray(COLOURS[..., 0].copy()))
    assert np.array_equal(only(tmp_path / "gray", *gray), COLOURS[None, ..., 0])
    assert np.array_equal(only(tmp_path / "gray", *gray, channels=3), np.stack([COLOURS[..., 0]] * 3))


def test_gray_among_colours_becomes_rgb(tmp_path):
    files = saved(tmp_path, Image.fromarray(COLOURS[..., 0].copy()), Image.fromarray(COLOURS))
    pixels = decode(tmp_path, files).pixels
    assert np.array_equal(pixels[0].numpy(), np.stack([COLOURS[..., 0]] * 3))


def palette():
    return Image.fromarray(COLOURS).quantize(16)


ALPHA = np.dstack([COLOURS, np.arange(48, dtype=np.uint8).reshape(6, 8)])
DEEP = (COLOURS[..., 0].astype(np.uint16) << 8) + COLOURS[..., 1]
MODES = {
    "transparency is dropped": (lambda: Image.fromarray(ALPHA), lambda: COLOURS.transpose(2, 0, 1)),
    "gray with transparency": (lambda: Image.fromarray(ALPHA[..., [0, 3]].copy(), "LA"), lambda: COLOURS[None, ..., 0]),
    "a palette": (palette, lambda: np.asarray(palette().convert("RGB")).transpose(2, 0, 1)),
    "black and white": (
        lambda: Image.fromarray(COLOURS[..., 0] > 99),
        lambda: (255 * (COLOURS[None, ..., 0] > 99)).astype(np.uint8),
    ),
    "sixteen bits": (lambda: Image.fromarray(DEEP), lambda: COLOURS[None, ..., 0]),
}


@pytest.mark.parametrize("case", MODES)
@pytest.mark.filterwarnings("ignore:'mode' parameter is deprecated")
def test_other_modes_are_converted(tmp_path, case):
    image, expected = MODES[case]
    assert np.array_equal(only(tmp_path, *saved(tmp_path, image())), expected())


def test_a_palette_with_transparent_colours_is_read_without_a_warning(tmp_path):
    files = saved(tmp_path, palette(), transparency=bytes(range(16)))
    assert np.array_equal(only(tmp_path, *files), np.asarray(palette().convert("RGB")).transpose(2, 0, 1))


UPRIGHT = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.T,
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a[::-1, ::-1].T,
    8: np.rot90,
}


@pytest.mark.parametrize("orientation", UPRIGHT)
def test_the_exif_orientation_is_applied(tmp_path, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    files = saved(tmp_path, Image.fromarray(COLOURS[..., 0].copy()), exif=exif)
    assert np.array_equal(only(tmp_path, *files)[0], UPRIGHT[orientation](COLOURS[..., 0]))


def test_size_takes_the_middle_square(tmp_path):
    wide = np.zeros((4, 12), np.uint8)
    wide[:, 4:8] = 200
    tall = wide.T.copy()
    files = saved(tmp_path, Image.fromarray(wide), Image.fromarray(tall), Image.fromarray(wide[:, 4:8].copy()))
    pixels = decode(tmp_path, files, size=4).pixels
    assert torch.equal(pixels, torch.full((3, 1, 4, 4), 200, dtype=torch.uint8))
    oracle = np.asarray(Image.fromarray(COLOURS).resize((3, 3), Image.Resampling.BICUBIC, box=(1, 0, 7, 6)))
    assert np.array_equal(
        only(tmp_path / "c", *saved(tmp_path / "c", Image.fromarray(COLOURS)), size=3), oracle.transpose(2, 0, 1)
    )


def bomb(width, height):
    """A PNG that claims to be huge."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 99)) + chunk(b"IEND", b"")
    )


def with_bad_files(folder):
    files = saved(folder, *(Image.fromarray(COLOURS + i) for i in range(7)))
    whole = (folder / "1.png").read_bytes()
    (folder / "1.png").write_bytes(whole[: len(whole) // 2])
    (folder / "3.png").write_bytes(b"no image at all")
    (folder / "4.png").write_bytes(bomb(10_000, 10_000))  # Pillow only warns
    (folder / "5.png").write_bytes(bomb(60_000, 60_000))  # Pillow raises
    return files


def test_bad_images_are_named_and_counted(tmp_path):
    files = with_bad_files(tmp_path)
    for _ in range(2):  # the second time from the cache
        with pytest.raises(EvenlyError) as refusal:
            decode(tmp_path, files)
        message = str(refusal.value)
        assert f"4 of 7 images in {tmp_path} cannot be read: '1.png' (" in message
        assert "'3.png' (not an image of a kind that is read), '4.png' (more than Pillow's limit of 89478485" in message
        assert "and 1 more; mend or remove them, or leave them out with skip_bad=True" in message
        assert "\n" not in message


def test_bad_images_are_left_out_on_request(tmp_path):
    files = with_bad_files(tmp_path)
    for _ in range(2):
        decoded = decode(tmp_path, files, skip_bad=True)
        assert decoded.kept.tolist() == [0, 2, 6]
        expected = np.stack([COLOURS, COLOURS + 2, COLOURS + 6]).transpose(0, 3, 1, 2).copy()
        assert torch.equal(decoded.pixels, torch.from_numpy(expected))
        assert [name for name, _ in decoded.bad] == ["1.png", "3.png", "4.png", "5.png"]


def test_only_bad_images_are_refused_also_on_request(tmp_path):
    files = with_bad_files(tmp_path)
    for some in (["1.png"], ["3.png", "5.png"]):
        with pytest.raises(EvenlyError, match=f"none of the {len(some)} images"):
            decode(tmp_path, some, skip_bad=True)
    assert len(decode(tmp_path, files, skip_bad=True).kept) == 3


def test_a_folder_tells_how_many_were_left_out(tmp_path):
    for name in "ab":
        saved(tmp_path / name, *(Image.fromarray(COLOURS) for _ in range(5)))
    (tmp_path / "a" / "9.png").write_bytes(b"")
    with pytest.raises(EvenlyError, match="1 of 11 images"):
        image_folder(tmp_path)
    data = image_folder(tmp_path, skip_bad=True)
    assert "1 of 11 images could not be read" in data.about
    assert data.options["skipped"] == 1
    assert torch.cat([split.labels for split in data.splits.values()]).bincount().tolist() == [5, 5]


def test_a_class_of_which_nothing_is_left_is_refused(tmp_path):
    for name in "ab":
        saved(tmp_path / name, *(Image.fromarray(COLOURS) for _ in range(5)))
    (tmp_path / "c").mkdir()
    for i in range(2):
        (tmp_path / "c" / f"{i}.png").write_bytes(b"no image at all")
    message = r"class 'c' has no image in .* \(none of its 2 can be read\); add some, or remove the class"
    with pytest.raises(EvenlyError, match=message) as refusal:
        image_folder(tmp_path, skip_bad=True)
    assert "\n" not in str(refusal.value)


def test_floats_and_programs_are_not_read(tmp_path):
    Image.fromarray(np.zeros((2, 2), np.float32)).save(tmp_path / "floats.tif")
    (tmp_path / "script.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 2 2\n")
    with pytest.raises(EvenlyError, match=r"floats, whose range is not known.*'script.png' \(not an image of a kind"):
        decode(tmp_path, ["floats.tif", "script.png"])


# the cache


@pytest.fixture
def count_decoded(monkeypatch):
    seen = []
    original = decoding._decode

    def counted(path, channels, size):
        seen.append(path)
        return original(path, channels, size)

    monkeypatch.setattr(decoding, "_decode", counted)
    return seen


def cache_files(folder):
    return {path.suffix: path for path in (folder / ".evenly-cache").iterdir()}


def test_files_are_decoded_once(tmp_path, count_decoded):
    files = saved(tmp_path, Image.fromarray(COLOURS), Image.fromarray(COLOURS + 1))
    first = decode(tmp_path, files).pixels
    assert len(count_decoded) == 2
    again = decode(tmp_path, files).pixels
    assert len(count_decoded) == 2
    assert torch.equal(first, again)
    manifest = json.loads(cache_files(tmp_path)[".json"].read_text())
    assert [name for name, _, _ in manifest["files"]] == files
    assert {path.suffix for path in (tmp_path / ".evenly-cache").iterdir()} == {".json", ".npy"}, "nothing is left over"
    again += 1  # does not reach the file
    assert torch.equal(decode(tmp_path, files).pixels, first)
    decode(tmp_path, files, size=2)
    assert len(count_decoded) == 4, "another size is another array"
    decode(tmp_path, files)
    assert len(count_decoded) == 4, "and leaves the first"


def changed(folder):
    path = folder / "1.png"
    Image.fromarray(COLOURS + 9).save(path)
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


def older(folder):
    os.utime(folder / "1.png", ns=(0, 0))


def flipped(folder):
    path = cache_files(folder)[".npy"]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def cut(suffix):
    def damage(folder):
        path = cache_files(folder)[suffix]
        path.write_bytes(path.read_bytes()[:-5])

    return damage


def rewritten(**changes):
    def damage(folder):
        path = cache_files(folder)[".json"]
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return damage


class Creates:
    def __reduce__(self):
        return os.mkdir, ("made-by-a-pickle",)


def pickled(folder):
    cache_files(folder)[".npy"].write_bytes(pickle.dumps(Creates()))


STALE = {
    "a file was changed": changed,
    "a file has another time": older,
    "a bit of the array flipped": flipped,
    "the array was cut short": cut(".npy"),
    "the manifest was cut short": cut(".json"),
    "the array is gone": lambda folder: cache_files(folder)[".npy"].unlink(),
    "the manifest is gone": lambda folder: cache_files(folder)[".json"].unlink(),
    "the array is a pickle": pickled,
    "another version wrote it": rewritten(version=0),
    "another shape": rewritten(shape=[3, 8, 6]),
    "another kind of manifest": lambda folder: cache_files(folder)[".json"].write_text("[]"),
    "a bad file that is none": rewritten(bad=[[0, "no reason"]]),
    "a manifest of nonsense": rewritten(bad=7),
}


@pytest.mark.parametrize("case", STALE)
def test_a_stale_or_damaged_cache_is_rebuilt(tmp_path, count_decoded, case):
    files = saved(tmp_path, Image.fromarray(COLOURS), Image.fromarray(COLOURS + 1))
    decode(tmp_path, files)
    STALE[case](tmp_path)
    pixels = decode(tmp_path, files).pixels
    assert len(count_decoded) == 4
    expected = np.stack([np.asarray(Image.open(tmp_path / name)) for name in files]).transpose(0, 3, 1, 2).copy()
    assert torch.equal(pixels, torch.from_numpy(expected))
    decode(tmp_path, files)
    assert len(count_decoded) == 4, "what was rebuilt is used"


def test_other_files_are_another_array(tmp_path, count_decoded):
    files = saved(tmp_path, Image.fromarray(COLOURS), Image.fromarray(COLOURS + 1))
    decode(tmp_path, files)
    reverse = decode(tmp_path, files[::-1]).pixels
    assert np.array_equal(reverse[1].numpy(), COLOURS.transpose(2, 0, 1))
    assert len(count_decoded) == 4


def test_where_the_folder_cannot_be_written_the_users_cache_is_used(tmp_path, count_decoded, monkeypatch):
    files = saved(tmp_path / "a", Image.fromarray(COLOURS))
    others = saved(tmp_path / "b", Image.fromarray(COLOURS + 1))
    for folder in (tmp_path / "a", tmp_path / "b"):
        (folder / ".evenly-cache").write_text("in the way")
    for _ in range(2):
        assert np.array_equal(only(tmp_path / "a", *files), COLOURS.transpose(2, 0, 1))
        assert np.array_equal(only(tmp_path / "b", *others), (COLOURS + 1).transpose(2, 0, 1))
    assert len(count_decoded) == 2
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    for _ in range(2):
        assert np.array_equal(only(tmp_path / "a", *files), COLOURS.transpose(2, 0, 1))
    assert len(count_decoded) == 4, "without a cache it decodes every time"


def test_the_cache_is_not_written_through_a_link(tmp_path):
    files = saved(tmp_path / "a", Image.fromarray(COLOURS))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "a" / ".evenly-cache").symlink_to(tmp_path / "elsewhere")
    only(tmp_path / "a", *files)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_full_disk_leaves_no_half_written_cache(tmp_path, monkeypatch):
    files = saved(tmp_path, Image.fromarray(COLOURS))

    def full(file, *_, **__):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array", full)
    assert np.array_equal(only(tmp_path, *files), COLOURS.transpose(2, 0, 1))
    assert list((tmp_path / ".evenly-cache").iterdir()) == []


def test_what_a_killed_process_left_is_swept_up_after_a_day(tmp_path):
    files = saved(tmp_path, Image.fromarray(COLOURS))
    (cache := tmp_path / ".evenly-cache").mkdir()
    for name, age in ((".old.partial", 90000), (".young.partial", 60)):
        (cache / name).write_text("")
        os.utime(cache / name, (time.time() - age,) * 2)
    decode(tmp_path, files)
    assert [path.name for path in cache.glob(".*")] == [".young.partial"]


# images that stay on disk


def test_images_beyond_the_memory_budget_are_decoded_on_demand(tmp_path, count_decoded):
    for number, name in enumerate("ab"):
        saved(tmp_path / name, *(Image.fromarray(COLOURS + 10 * number + i) for i in range(10)))
    held = image_folder(tmp_path)
    bytes_needed = 20 * COLOURS.size
    assert isinstance(image_folder(tmp_path, memory=bytes_needed / 2**30).train.inputs, torch.Tensor)
    before = len(count_decoded)
    data = image_folder(tmp_path, memory=(bytes_needed - 1) / 2**30)
    assert len(count_decoded) <= before + 6, "only what is asked for: an image or two of each split, for its shape"
    assert not isinstance(data.train.inputs, torch.Tensor)
    assert list(data.splits) == list(held.splits)
    for name, split in data.splits.items():
        assert torch.equal(split.labels, held.splits[name].labels)
        for workers in (0, 2) if name == "test" else (0,):
            loader = DataLoader(split.inputs, batch_size=3, num_workers=workers)
            x, y = (torch.cat(parts) for parts in zip(*loader, strict=True))
            assert x.dtype == torch.uint8
            assert torch.equal(x, held.splits[name].inputs)
            assert torch.equal(y, split.labels)


def test_headers_are_read_once_and_bad_ones_known_in_advance(tmp_path, monkeypatch):
    files = with_bad_files(tmp_path)
    first = decode(tmp_path, files, memory=0, skip_bad=True)
    assert first.pixels is None
    assert first.kept.tolist() == [0, 1, 2, 6], "that 1 is cut short shows when it is decoded"
    monkeypatch.setattr(decoding, "_header", None)
    again = decode(tmp_path, files, memory=0, skip_bad=True)
    assert again.kept.tolist() == [0, 1, 2, 6]
    dataset = again.part(np.arange(4), np.zeros(4, np.int64))
    assert np.array_equal(dataset[2][0].numpy(), (COLOURS + 2).transpose(2, 0, 1))
    assert np.array_equal(dataset[3][0].numpy(), (COLOURS + 6).transpose(2, 0, 1))
    with pytest.raises(EvenlyError, match=r"1.png cannot be read"):
        dataset[1]
    Image.fromarray(COLOURS[:3]).save(tmp_path / "2.png")
    with pytest.raises(EvenlyError, match=r"2.png cannot be read \(now \(3, 3, 8\), was \(3, 6, 8\)\)"):
        dataset[2]
    monkeypatch.undo()
    with pytest.raises(EvenlyError, match="differ in size"):
        decode(tmp_path, files, memory=0, skip_bad=True)


def test_a_cache_of_headers_gives_way_to_one_of_pixels(tmp_path):
    files = saved(tmp_path, Image.fromarray(COLOURS))
    less, enough = (COLOURS.size - 1) / 2**30, COLOURS.size / 2**30
    assert decode(tmp_path, files, memory=less).pixels is None
    assert decode(tmp_path, files, memory=enough).pixels is not None
    assert decode(tmp_path, files, memory=less).pixels is None
