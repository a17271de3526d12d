"""CelebA from small files of the official layouts, and from the archive of its first images."""

import io
import json
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from evenly.data import load
from evenly.data.benchmarks.celeba import celeba
from evenly.data.images import decoding

NAMES = ["Bald", "Blond_Hair", "Male", "Smiling", "Young"]
COUNT = 30
ZIP = "images_89x109_jpg.zip"


def values(i):
    """The attributes of image i, 0 or 1, all combinations of hair and gender in every split."""
    return [i % 5 == 0, i % 2, (i // 2) % 2, i % 3 == 0, 1]


def pixels(i):
    return np.random.default_rng(i).integers(0, 256, (12, 9, 3), dtype=np.uint8)


def encoded(image):
    content = io.BytesIO()
    Image.fromarray(image).save(content, "PNG")
    return content.getvalue()


def png(i):
    return encoded(pixels(i))


def split(i):
    return (i // 4) % 3


def official(root, kind, nested=False):
    images = root / "img_align_celeba" / ("img_align_celeba" if nested else "")
    images.mkdir(parents=True)
    signed = [[str(2 * value - 1) for value in map(int, values(i))] for i in range(COUNT)]
    for i in range(COUNT):
        (images / f"{i + 1:06d}.jpg").write_bytes(png(i))
    order = list(reversed(range(COUNT)))  # the partition may be listed in another order
    if kind == "txt":
        lines = [str(COUNT), " ".join(NAMES), *(f"{i + 1:06d}.jpg  {' '.join(row)}" for i, row in enumerate(signed))]
        (root / "list_attr_celeba.txt").write_text("\n".join(lines) + "\n")
        (root / "list_eval_partition.txt").write_text("".join(f"{i + 1:06d}.jpg {split(i)}\n" for i in order))
    else:
        table = [",".join(["image_id", *NAMES]), *(f"{i + 1:06d}.jpg,{','.join(row)}" for i, row in enumerate(signed))]
        (root / "list_attr_celeba.csv").write_text("\n".join(table))
        lines = ["image_id,partition", *(f"{i + 1:06d}.jpg,{split(i)}" for i in order)]
        (root / "list_eval_partition.csv").write_text("\n".join(lines))
    return root


def first(root, count=200):
    root.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(root / ZIP, "w") as archive:
        for i in reversed(range(count)):
            archive.writestr(f"{i + 1:06d}.jpg", png(i))
    bits = np.array([values(i) for i in range(count)], dtype=np.uint8)
    np.save(root / "attributes.npy", np.packbits(bits, axis=1))
    (root / "attribute_names.json").write_text(json.dumps(NAMES))
    return root


def squeezed(i, size):
    return np.asarray(Image.fromarray(pixels(i)).resize((size, size), Image.Resampling.BILINEAR)).transpose(2, 0, 1)


@pytest.mark.parametrize(("kind", "nested"), [("txt", False), ("csv", False), ("csv", True)])
@pytest.mark.parametrize("memory", [4.0, 0.0])
def test_the_official_files_in_their_splits_and_order(tmp_path, kind, nested, memory):
    data = celeba(official(tmp_path, kind, nested), size=8, memory=memory)
    for number, part in enumerate(data.splits.values()):
        here = [i for i in range(COUNT) if split(i) == number]
        assert part.labels.tolist() == [values(i)[1] for i in here]
        assert part.attributes["Male"].tolist() == [values(i)[2] for i in here]
        assert part.groups.tolist() == [2 * values(i)[1] + values(i)[2] for i in here]
        for j, i in enumerate(here):
            image = part.inputs[j] if memory else part.inputs[j][0]
            assert np.array_equal(image.numpy(), squeezed(i, 8)), "the whole image, not its middle"
    assert data.class_names == ["not blond hair", "blond hair"]
    assert data.group_names == [
        "not blond hair, not male", "not blond hair, male", "blond hair, not male", "blond hair, male",
    ]  # fmt: skip
    assert data.fingerprint() == celeba(tmp_path, size=8, memory=memory, seed=1).fingerprint()


def test_any_other_pair_and_size(tmp_path):
    data = celeba(official(tmp_path, "txt"), label="Male", attribute="Smiling", size=None)
    here = [i for i in range(COUNT) if split(i) == 0]
    assert data.train.labels.tolist() == [values(i)[2] for i in here]
    assert data.train.attributes["Smiling"].tolist() == [int(values(i)[3]) for i in here]
    assert data.group_names[1] == "not male, smiling"
    assert torch.equal(data.train.inputs[3], torch.from_numpy(pixels(here[3]).transpose(2, 0, 1).copy()))


def test_the_first_images_are_split_within_every_group_by_the_seed(tmp_path):
    folder = first(tmp_path)
    data = celeba(folder, size=8, seed=4)
    known = {squeezed(i, 8).tobytes(): i for i in range(200)}
    found = []
    for share, part in zip((0.5, 0.1, 0.4), data.splits.values(), strict=True):
        places = [known[image.numpy().tobytes()] for image in part.inputs]
        assert places == sorted(places), "in the order of storage"
        assert part.labels.tolist() == [values(i)[1] for i in places]
        assert part.attributes["Male"].tolist() == [values(i)[2] for i in places]
        assert part.groups.bincount().tolist() == [50 * share] * 4
        found += places
    assert sorted(found) == list(range(200))
    again, other = (celeba(folder, size=8, seed=seed) for seed in (4, 5))
    assert data.fingerprint() == again.fingerprint() != other.fingerprint()
    assert celeba(folder, size=None).train.example_shape == (3, 12, 9)


def test_the_archive_is_decoded_once_and_again_when_it_changes(tmp_path, monkeypatch):
    folder, seen, original = first(tmp_path), [], decoding._decode
    monkeypatch.setattr(decoding, "_decode", lambda *given: seen.append(given) or original(*given))
    for size, times in ((8, 200), (8, 200), (6, 400), (8, 400)):
        celeba(folder, size=size)
        assert len(seen) == times
    with zipfile.ZipFile(folder / ZIP, "a") as archive:
        archive.writestr("more.txt", "changed")
    celeba(folder, size=8)
    assert len(seen) == 600


def test_what_is_there_is_chosen_the_official_files_first(tmp_path, monkeypatch, refused):
    monkeypatch.setenv("EVENLY_DATA", str(tmp_path))
    refused(r"celeba was not found: .*get it: list_attr_celeba.txt, .*mmlab", load, "celeba")
    first(tmp_path / "celeba10k")
    data = load("celeba")
    assert (len(data.train), data.train.example_shape, data.name) == (100, (3, 64, 64), "celeba")
    assert data.recipe["model"] == "resnet18"
    assert (data.recipe["epochs"], data.recipe["augment"], data.recipe["select"]) == (20, "none", "worst-group-argmax")
    official(tmp_path / "celeba", "txt")
    assert sum(map(len, load("celeba").splits.values())) == COUNT


@pytest.mark.parametrize("make", [lambda root: official(root, "txt"), lambda root: official(root, "csv"), first])
def test_refused_options(tmp_path, make, refused):
    make(tmp_path)
    for name in ("label", "attribute"):
        message = "no attribute of celeba is called 'Blond_Hare'; did you mean 'Blond_Hair'"
        refused(message, celeba, tmp_path, **{name: "Blond_Hare"})
    refused("label and attribute must differ, got 'Male' for both", celeba, tmp_path, label="Male")
    refused("size must be at least 1", celeba, tmp_path, size=0)


PARTITION, ATTRIBUTES = "list_eval_partition.txt", "list_attr_celeba.txt"
DAMAGED_LISTS = [
    (PARTITION, b"000003.jpg 0\n", b"", "partition.txt has no row for '000003.jpg'; unpack"),
    (PARTITION, b"000003.jpg 0", b"000003.jpg 7", "partition '7' in line 28 of .* is none of 0, 1"),
    (ATTRIBUTES, b"000002.jpg  -1 1", b"000002.jpg  -1 0", "Hair '0' in line 4 of .* is none of -1, 1"),
    (ATTRIBUTES, b"000002.jpg  -1", b"000002.jpg ", "line 4 of .* has 5 cells for 6 columns; unpack"),
    (ATTRIBUTES, b"000002.jpg", b"../../x.jpg", "line 4 of .* names .* which lies outside"),
    (ATTRIBUTES, b"30\n", b"\xff\xfe\xff", "list_attr_celeba.txt cannot be read as a table"),
]


@pytest.mark.parametrize(("file", "before", "after", "message"), DAMAGED_LISTS)
def test_a_damaged_list_is_refused_with_its_line(tmp_path, file, before, after, message, refused):
    path = official(tmp_path, "txt") / file
    assert before in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(before, after, 1))
    refused(message, celeba, tmp_path)


def test_an_empty_or_missing_list_is_refused(tmp_path, refused):
    path = official(tmp_path, "txt") / ATTRIBUTES
    path.write_text(f"0\n{' '.join(NAMES)}\n")
    refused("list_attr_celeba.txt has no rows; unpack its archive again", celeba, tmp_path)
    path.unlink()
    refused("celeba in .* lacks list_attr_celeba.txt; unpack its archive again", celeba, tmp_path)


def seventh(content):
    """The archive anew, with other bytes for its seventh image, or without it."""

    def damage(folder):
        (folder / ZIP).unlink()
        with zipfile.ZipFile(folder / ZIP, "w") as archive:
            for i in range(200):
                raw = content if i == 6 else png(i)
                if raw is not None:
                    archive.writestr(f"{i + 1:06d}.jpg", raw)

    return damage


BAD = "1 of 200 images in .* cannot be read: '000007.jpg'"
SMALL = encoded(np.zeros((5, 4, 3), np.uint8))
UNREADABLE = "attributes in .* cannot be read"
DAMAGED = [
    (lambda f: (f / ZIP).write_bytes(b"no"), "cannot be read as a zip archive"),
    (seventh(None), rf"{BAD} \(no such file\); get it again"),
    (seventh(b"GIF89a"), BAD),
    (seventh(SMALL), r"differ in size: 000001.jpg is \(12, 9\), 000007.jpg \(5, 4\); bring all to one size"),
    (lambda f: (f / "attribute_names.json").write_text("3"), UNREADABLE),
    (lambda f: (f / "attribute_names.json").write_text(json.dumps([*NAMES, *"abcd"])), "8 bits for 9 names"),
    (lambda f: np.save(f / "attributes.npy", np.zeros((200, 1))), UNREADABLE),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGED)
def test_a_damaged_archive_is_refused(tmp_path, damage, message, refused):
    damage(first(tmp_path))
    refused(message, celeba, tmp_path, size=None)


def test_an_image_that_unpacks_to_too_much_is_not_unpacked(tmp_path, monkeypatch, refused):
    monkeypatch.setattr(decoding, "MOST_BYTES", 10)
    refused(r"200 of 200 images in .* cannot be read: '000001.jpg' \(\d+ bytes\)", celeba, first(tmp_path), size=None)
