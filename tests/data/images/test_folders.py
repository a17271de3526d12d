"""The user's folder per class: what is read in which order, and what is refused."""

import os

import pytest
import torch
from PIL import Image

from evenly.data.images import image_folder


def picture(path, value, size=(4, 3), mode="RGB"):
    """An image whose upper left pixel is its own number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new(mode, size)
    image.putpixel((0, 0), value if mode == "L" else (value, 0, 0))
    image.save(path)


def numbers(split):
    return split.inputs[:, 0, 0, 0].tolist()


def per_class(root, counts, start=0):
    for name, count in counts.items():
        for i in range(count):
            picture(root / name / f"{i:02}.png", start)
            start += 1
    return root


def test_a_folder_per_class_is_split_60_20_20_within_every_class(tmp_path):
    data = image_folder(per_class(tmp_path, {"dog": 10, "ant": 20}), seed=1)
    assert list(data.class_names) == ["ant", "dog"]
    assert data.train.inputs.dtype == torch.uint8
    assert data.train.example_shape == (3, 3, 4)
    for name, share in (("train", 0.6), ("validation", 0.2), ("test", 0.2)):
        split = data.splits[name]
        assert split.labels.bincount().tolist() == [20 * share, 10 * share]
        assert all((number < 10) == bool(label) for number, label in zip(numbers(split), split.labels, strict=True))
    assert sorted(number for split in data.splits.values() for number in numbers(split)) == list(range(30))
    for number, place in zip(numbers(data.test), data.test.places, strict=True):
        assert place == (f"dog/{number:02}.png" if number < 10 else f"ant/{number - 10:02}.png")
    assert numbers(image_folder(tmp_path, seed=1).test) == numbers(data.test)
    assert numbers(image_folder(tmp_path, seed=2).test) != numbers(data.test)
    assert image_folder(tmp_path, validation=0.4).validation.labels.bincount().tolist() == [8, 4]
    assert set(image_folder(tmp_path, validation=0.0).splits) == {"train", "test"}


@pytest.mark.parametrize("validation", ["val", "valid", "validation", "Val"])
def test_folders_of_splits_are_followed_in_order_of_name(tmp_path, validation, refused):
    for start, part in ((0, "train"), (20, validation), (40, "test")):
        per_class(tmp_path / part, {"a": 2, "b": 3}, start)
    data = image_folder(tmp_path)
    assert {name: numbers(split) for name, split in data.splits.items()} == {
        "train": [0, 1, 2, 3, 4],
        "validation": [20, 21, 22, 23, 24],
        "test": [40, 41, 42, 43, 44],
    }
    assert data.test.labels.tolist() == [0, 0, 1, 1, 1]
    refused(r"validation 0.5 is asked for, but the data has a validation split", image_folder, tmp_path, validation=0.5)


def test_a_share_of_given_training_images_is_held_out_on_request_only(tmp_path):
    per_class(tmp_path / "train", {"a": 10, "b": 20})
    per_class(tmp_path / "test", {"a": 1, "b": 1}, 100)
    assert set(image_folder(tmp_path).splits) == {"train", "test"}
    data = image_folder(tmp_path, validation=0.2)
    assert data.validation.labels.tolist() == [0] * 2 + [1] * 4
    assert sorted(numbers(data.train) + numbers(data.validation)) == list(range(30))
    assert numbers(data.test) == [100, 101]


def test_a_share_that_leaves_a_class_out_says_to_hold_out_another(tmp_path, refused):
    per_class(tmp_path / "train", {"a": 2, "b": 20})
    per_class(tmp_path / "test", {"a": 1, "b": 1}, 100)
    message = r"class 'a' has no example in the validation split .* \(train 2, validation 0, test 1\); hold out another"
    refused(message, image_folder, tmp_path, validation=0.1)


def test_a_class_may_be_called_train(tmp_path):
    assert list(image_folder(per_class(tmp_path, {"train": 5, "car": 5})).class_names) == ["car", "train"]


def test_other_files_and_hidden_folders_are_passed_over_and_deeper_folders_read(tmp_path):
    per_class(tmp_path, {"a": 5, "b/deep": 3, "b/deeper/still": 3})
    picture(tmp_path / ".hidden" / "x.png", 99)
    picture(tmp_path / "__MACOSX" / "x.png", 99)
    picture(tmp_path / "a" / "._00.png", 99)
    (tmp_path / "a" / "notes.txt").write_text("no image")
    (tmp_path / "README.md").write_text("no image")
    picture(tmp_path / "a" / "CAPITALS.JPEG", 7)
    data = image_folder(tmp_path)
    assert sum(len(split) for split in data.splits.values()) == 12
    assert list(data.class_names) == ["a", "b"]


def write(root, *paths):
    """Images at these paths, "b/3" being three in b; other files hold a text; a path without a suffix is a folder."""
    for path in paths:
        folder, _, count = path.rpartition("/")
        if count.isdigit():
            per_class(root / folder, {"": int(count)})
        elif path.endswith(".png"):
            picture(root / path, 0, (9, 8))
        elif "." in path:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text("no image")
        else:
            (root / path).mkdir()


BOTH = ("a/5", "b/5")
TRAIN = ("train/a/2", "train/b/2")
REFUSED = [
    ((), r"there are no images in .*\.png"),
    (("a/notes.txt",), "there are no images in"),
    (("one.png", "two.png"), r"2 images in .* lie in no class folder \(e.g. 'one.png'\)"),
    ((*BOTH, "stray.png"), r"1 image in .* lies beside the class folders \(e.g. 'stray.png'\); put"),
    ((*TRAIN, "test/stray.png"), "1 image in .*test lies in no class folder"),
    (
        (*TRAIN, "val/a/2", "test/a/1", "test/b/1"),
        r"class 'b' has no example in the validation split of .* \(train 2, validation 0, test 1\); "
        "add some, or remove the class from all splits",
    ),
    ((*TRAIN, "test/a/2", "test/b/2", "test/c/1"), "class 'c' has no example in the train split"),
    ((*TRAIN, "test/a/2", "test/b/photo.heic"), r"'b' has no example in the test split .* \(train 2, test 0\); add"),
    ((*BOTH, "c"), r"class 'c' has no image in .* \(searched for \.png, .*\); add some, or remove the class"),
    (("a/5", "b/2"), r"'b' has no example in the test split of .* \(train 1, validation 1, test 0\); add some, re"),
    (
        ("val/a/4", "val/b/4", "test/a/4", "test/b/4"),
        "has test and val, but no folder train; add it, or name the classes",
    ),
    ((*TRAIN, "test/a/4", "masks/a/4"), r"folders of splits \(test, train\) and beside them 'masks'; move"),
    (("a/9",), "one class only"),
    (
        (*BOTH, "b/odd.png"),
        "differ in size: a/00.png is 4 x 3, b/odd.png 9 x 8; bring all to one size with e.g. size=64",
    ),
    ((*TRAIN, "val/a/2", "valid/a/2"), r"has 2 validation folders \(val, valid\); keep one"),
]


@pytest.mark.parametrize(("paths", "message"), REFUSED)
def test_refusals(tmp_path, refused, paths, message):
    write(tmp_path, *paths)
    refused(message, image_folder, tmp_path)


def test_refuses_what_is_no_folder_and_options_that_cannot_be(tmp_path, refused):
    refused("there is no folder", image_folder, tmp_path / "nowhere")
    per_class(tmp_path, {"a": 5, "b": 5})
    for options, message in (
        ({"size": 0}, "size must be at least 1, the side of the images in pixels, got 0"),
        ({"validation": 1.0}, "validation 1.0"),
        ({"validation": 0.9}, "validation 0.9 and test 0.2 leave nothing"),
        ({"groups": "colour"}, "no attribute to group by is called 'colour'; there are: label"),
    ):
        refused(message, image_folder, tmp_path, **options)


@pytest.mark.parametrize("kind", ["file", "folder", "class"])
def test_links_may_not_leave_the_folder(tmp_path, kind, refused):
    root, outside = tmp_path / "root", tmp_path / "outside"
    per_class(root, {"a": 5, "b": 5})
    picture(outside / "secret.png", 1)
    link = {"file": root / "a" / "x.png", "folder": root / "a" / "deep", "class": root / "c"}[kind]
    link.symlink_to(outside / "secret.png" if kind == "file" else outside)
    refused(f"{link} is a link that leads outside", image_folder, root)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes have no name here")
def test_a_pipe_among_the_images_is_named_instead_of_waited_for(tmp_path, refused):
    root = per_class(tmp_path / "root", {"a": 5, "b": 5})
    os.mkfifo(root / "a" / "x.png")
    refused(r"1 of 11 images in .*'a/x.png' \(a pipe, a socket or a device", image_folder, root)
    assert sum(len(split) for split in image_folder(root, skip_bad=True).splits.values()) == 10


def test_links_inside_the_folder_and_to_it_are_followed_but_not_in_circles(tmp_path, refused):
    root = per_class(tmp_path / "root", {"a": 5, "b": 5})
    (root / "b" / "again.png").symlink_to(root / "b" / "00.png")
    (tmp_path / "alias").symlink_to(root)
    data = image_folder(tmp_path / "alias")
    assert sum(len(split) for split in data.splits.values()) == 11
    (root / "b" / "loop").symlink_to(root / "b")
    refused("is a link to a folder that contains it", image_folder, root)
    (root / "b" / "loop").unlink()
    (root / "b" / "loop").symlink_to("loop")
    refused(r"b/loop cannot be followed \(Too many levels of symbolic links\); remove it", image_folder, root)
