"""Decoding to one uint8 array: modes, orientation, sizes, bad files, the cache, and images that stay on disk."""

import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

import evenly
from evenly.data import load
from evenly.data.images import decoding, image_folder
from evenly.data.images.decoding import Reading, decode
from evenly.data.mapped import MappedRows

COLOURS = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)


def saved(folder, *images, **options):
    folder.mkdir(exist_ok=True)
    for i, image in enumerate(images):
        image.save(folder / f"{i}.png", **options)
    return [f"{i}.png" for i in range(len(images))]


def only(folder, name, **options):
    pixels = decode(folder, [name], Reading(**options)).pixels
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

    files = saved(tmp_path / "both", Image.fromarray(COLOURS[..., 0].copy()), Image.fromarray(COLOURS))
    mixed = decode(tmp_path / "both", files).pixels
    assert np.array_equal(mixed[0].numpy(), np.stack([COLOURS[..., 0]] * 3)), "gray among colours becomes RGB"


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
    pixels = decode(tmp_path, files, Reading(size=4)).pixels
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


def test_bad_images_are_named_and_counted_or_left_out_on_request(tmp_path, refused):
    files = with_bad_files(tmp_path)
    for _ in range(2):  # the second time from the cache
        reasons = (
            r"'1.png' \(.*\), '3.png' \(not an image of a kind .*\), '4.png' \(more than Pillow's limit of .*\) and 1"
        )
        message = f"4 of 7 images in {tmp_path} cannot be read: {reasons} more; .* leave them out with skip_bad=True"
        refused(message, decode, tmp_path, files)
        decoded = decode(tmp_path, files, Reading(skip_bad=True))
        assert decoded.readable.tolist() == [0, 2, 6]
        expected = np.stack([COLOURS, COLOURS + 2, COLOURS + 6]).transpose(0, 3, 1, 2).copy()
        assert torch.equal(decoded.pixels, torch.from_numpy(expected))
        assert [name for name, _ in decoded.bad] == ["1.png", "3.png", "4.png", "5.png"]
    for some in (["1.png"], ["3.png", "5.png"]):
        refused(f"none of the {len(some)} images", decode, tmp_path, some, Reading(skip_bad=True))


def test_a_folder_says_how_many_were_left_out_and_loses_no_class(tmp_path, refused):
    for name in "ab":
        saved(tmp_path / name, *(Image.fromarray(COLOURS) for _ in range(5)))
    (tmp_path / "a" / "9.png").write_bytes(b"")
    refused("1 of 11 images", image_folder, tmp_path)
    data = image_folder(tmp_path, skip_bad=True)
    assert "1 of 11 images could not be read" in data.about
    assert data.options["skipped"] == 1
    assert torch.cat([split.labels for split in data.splits.values()]).bincount().tolist() == [5, 5]
    (tmp_path / "c").mkdir()
    for i in range(2):
        (tmp_path / "c" / f"{i}.png").write_bytes(b"no image at all")
    message = r"class 'c' has no image in .* \(none of its 2 can be read\); add some, or remove the class"
    refused(message, image_folder, tmp_path, skip_bad=True)


def test_floats_and_programs_are_not_read(tmp_path, refused):
    Image.fromarray(np.zeros((2, 2), np.float32)).save(tmp_path / "floats.tif")
    (tmp_path / "script.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 2 2\n")
    message = r"floats, whose range is not known.*'script.png' \(not an image of a kind"
    refused(message, decode, tmp_path, ["floats.tif", "script.png"])


# images that stay on disk


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of workers, from Python 3.12 on
@pytest.mark.parametrize(("side", "per_class"), [(8, 10), (256, 8)])
def test_images_beyond_the_memory_budget_come_in_the_same_batches(tmp_path, monkeypatch, side, per_class):
    root, size = noise(tmp_path, side, per_class), 2 * per_class * 3 * side**2
    held, seen, original = load(root, memory=size / 2**30), [], decoding._decode
    assert isinstance(held.train.inputs, torch.Tensor)
    monkeypatch.setattr(decoding, "_decode", lambda path, *rest: seen.append(path) or original(path, *rest))
    data = load(root, memory=(size - 1) / 2**30)
    assert not seen, "the cache holds them"
    assert isinstance(data.train.inputs, MappedRows)
    assert list(data.splits) == list(held.splits)
    for name, split in data.splits.items():
        assert torch.equal(split.labels, held.splits[name].labels)
        order = torch.randperm(len(split), generator=torch.Generator().manual_seed(1))
        expected = list(zip(held.splits[name].inputs[order].split(3), split.labels[order].split(3), strict=True))
        for workers in (0, 1, 2) if name == "train" else (0,):
            batches = [part.tolist() for part in order.split(3)]
            for (x, y), (wanted, labels) in zip(
                DataLoader(split.inputs, batch_sampler=batches, num_workers=workers), expected, strict=True
            ):
                assert x.dtype == torch.uint8
                assert torch.equal(x, wanted)
                assert torch.equal(y, labels)


def noise(root, side, per_class):
    """A folder of noise, brighter in one class than in the other, so that there is something to learn."""
    random = np.random.default_rng(0)
    for label, name in enumerate(("dark", "bright")):
        (root / name).mkdir(parents=True)
        for i in range(per_class):
            pixels = random.integers(60 * label, 196 + 60 * label, (side, side, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i:03}.png", compress_level=0)
    return root


def trained(folder, memory, workers=0, optimizer="sgd"):
    settings = {"device": "cpu", "seed": 3, "epochs": 2, "batch_size": 5, "lr": 0.1, "progress": lambda *_: None}
    options = {"data_options": {"memory": memory}, "workers": workers, "optimizer": optimizer}
    return evenly.train(str(folder), model="mlp", **options, **settings)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("optimizer", ["sgd", "sam"])
@pytest.mark.parametrize("workers", [0, 2])
def test_training_from_disk_ends_in_the_same_weights_bit_for_bit(tmp_path, workers, optimizer):
    folder = noise(tmp_path / "images", 7, 20)
    held, streamed = trained(folder, 1.0, 0, optimizer), trained(folder, 0.0, workers, optimizer)
    ours, theirs = held.model.state_dict(), streamed.model.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert [epoch | {"seconds": 0} for epoch in held.history] == [epoch | {"seconds": 0} for epoch in streamed.history]
    assert len(held.history) == 2
    assert held.results.splits == streamed.results.splits
    assert list(held.results.splits) == ["train", "validation", "test"]


def test_the_weights_depend_on_the_images(tmp_path):
    """Else the test above could not fail."""
    folder = noise(tmp_path / "images", 7, 20)
    before = trained(folder, 0.0).model.state_dict()
    for path in sorted((folder / "dark").iterdir()):
        pixels = np.asarray(Image.open(path)).copy()
        pixels[0, 0] ^= 1
        Image.fromarray(pixels).save(path, compress_level=0)
    after = trained(folder, 0.0).model.state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_bad_files_are_left_out_of_an_array_in_a_file(tmp_path):
    files = with_bad_files(tmp_path)
    for turn in range(2):  # decoded, then from the cache
        decoded = decode(tmp_path, files, Reading(memory=0, skip_bad=True))
        assert decoded.readable.tolist() == [0, 2, 6], turn
        assert np.array_equal(decoded.pixels, np.stack([COLOURS + i for i in (0, 2, 6)]).transpose(0, 3, 1, 2))


def test_without_a_cache_headers_are_read_and_bad_ones_known_in_advance(tmp_path, refused):
    files = with_bad_files(tmp_path)
    again = decode(tmp_path, files, Reading(memory=0, skip_bad=True), cache=False)
    assert again.pixels is None
    assert again.readable.tolist() == [0, 1, 2, 6], "that 1 is cut short shows when it is decoded"
    dataset = again.part(np.arange(4), np.zeros(4, np.int64))
    assert np.array_equal(dataset[2][0].numpy(), (COLOURS + 2).transpose(2, 0, 1))
    assert np.array_equal(dataset[3][0].numpy(), (COLOURS + 6).transpose(2, 0, 1))
    refused("1.png cannot be read", dataset.__getitem__, 1)
    Image.fromarray(COLOURS[:3]).save(tmp_path / "2.png")
    refused(r"2.png cannot be read \(now \(3, 3, 8\), was \(3, 6, 8\)\)", dataset.__getitem__, 2)
    refused("differ in size", decode, tmp_path, files, Reading(memory=0, skip_bad=True))
