"""New examples are made into the very inputs that the reader made of the same rows, texts, images and arrays."""

from __future__ import annotations

import json
import sys

import attrs
import numpy as np
import pytest
import torch
from PIL import Image

from evenly.data import Data, Split, Texts, load
from evenly.data.examples import preprocessing_of, read_examples
from evenly.data.images.decoding import ImageFiles
from evenly.data.preprocessing import (
    ArrayPreprocessing,
    ImagePreprocessing,
    TablePreprocessing,
    TextPreprocessing,
    preprocessing_from_dict,
)
from evenly.errors import EvenlyError

CLASSES = ("no", "yes")


def write_table(path, rows, header="a,b,label,split"):
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


@pytest.fixture
def table(tmp_path):
    random = np.random.default_rng(0)
    splits = ["train"] * 8 + ["test"] * 4
    rows = [f"{random.normal() * 3:.3f},{random.normal():.4f},{CLASSES[i % 2]},{part}" for i, part in enumerate(splits)]
    rows[3] = f",0.5,yes,{splits[3]}"
    return write_table(tmp_path / "own.csv", rows)


def held_out(path, columns=(0, 1, 2)):
    lines = [line.split(",") for line in path.read_text().splitlines()]
    return [dict(zip((lines[0][c] for c in columns), (line[c] for c in columns), strict=True)) for line in lines[-4:]]


def test_rows_become_the_readers_inputs_whatever_holds_them(table, tmp_path):
    pd = pytest.importorskip("pandas", reason="needs pandas: pip install 'evenly[pandas]'")
    data = load(table, missing="mean")
    again = preprocessing_from_dict(json.loads(json.dumps(data.preprocessing.to_dict())))
    assert again == data.preprocessing
    rows = held_out(table)
    new = write_table(
        tmp_path / "new.csv", [f"{row['label']},{row['b']},x,{row['a']}" for row in rows], "label,b,more,a"
    )
    numbers = [{"a": float(row["a"]), "b": float(row["b"]), "label": row["label"]} for row in rows]
    for raw in (new, str(new), rows, numbers, pd.DataFrame(numbers)):
        examples = read_examples(again, raw, CLASSES)
        assert torch.equal(examples.inputs, data.test.inputs)
        assert torch.equal(examples.labels, data.test.labels)
    in_order = [[row["a"], row["b"]] for row in numbers]
    for raw in (in_order, np.array(in_order), torch.tensor(in_order, dtype=torch.float64)):
        assert torch.equal(read_examples(again, raw, CLASSES).inputs, data.test.inputs)


def test_a_missing_number_is_the_training_mean_or_refused(table):
    rows = [{"a": 1.0, "b": float("nan")}, {"a": None, "b": 0.5}]
    data = load(table, missing="mean")
    examples = read_examples(data.preprocessing, rows, CLASSES)
    assert examples.labels is None
    assert examples.inputs[0, 1] == examples.inputs[1, 0] == 0
    strict = attrs.evolve(data.preprocessing, missing="refuse")
    with pytest.raises(EvenlyError, match=r"^line 1 of the rows given has no number in 'b'; fill it in"):
        read_examples(strict, rows, CLASSES)


REFUSED_ROWS = {
    "no column": ([{"a": 1.0, "c": 2.0}], "has no column 'b', which the network takes (found: 'a', 'c'); add it"),
    "no number": ([{"a": "high", "b": 2.0}], "'a' is 'high' in line 1 of the rows given, not a number; correct it"),
    "no class": (
        [{"a": 1, "b": 2, "label": "maybe"}],
        "label 'maybe' in line 1 of the rows given is none of the classes",
    ),
    "no rows": ([], "there are no rows to predict"),
    "three columns": (
        np.zeros((2, 3)),
        "a value of type ndarray cannot be used as new examples; give a csv file, a DataFrame, a list of dicts or an "
        "array with the 2 columns a, b",
    ),
    "no file": ("elsewhere.csv", "there is no file or folder 'elsewhere.csv'; give a csv file"),
}


@pytest.mark.parametrize("case", REFUSED_ROWS)
def test_rows_that_cannot_be_used_are_refused_in_a_line(case):
    raw, message = REFUSED_ROWS[case]
    with pytest.raises(EvenlyError) as refusal:
        read_examples(TablePreprocessing(("a", "b"), (0.0, 0.0), (1.0, 1.0)), raw, CLASSES)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_rows_need_no_pandas(table, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    data = load(table, missing="mean")
    assert torch.equal(read_examples(data.preprocessing, held_out(table), CLASSES).inputs, data.test.inputs)


def test_texts_come_from_a_list_a_column_or_a_frame(tmp_path):
    pd = pytest.importorskip("pandas", reason="needs pandas: pip install 'evenly[pandas]'")
    rows = [f"{word} film,{CLASSES[i % 2]},train" for i, word in enumerate(["bad", "good"] * 4)]
    path = write_table(tmp_path / "texts.csv", [*rows, "good bad,no,test", "a film,yes,test"], "review,label,split")
    data = load(path, text="review")
    assert data.preprocessing == preprocessing_of(data) == TextPreprocessing("review")
    new = write_table(tmp_path / "new.csv", ["no,good bad", "yes,a film"], "label,review")
    frame = pd.read_csv(new)
    for raw in (data.test.inputs, data.test.texts, new, frame, frame["review"], frame["review"].to_numpy()):
        examples = read_examples(data.preprocessing, raw, CLASSES)
        assert examples.inputs.texts == data.test.texts
    assert read_examples(data.preprocessing, new, CLASSES).labels.tolist() == [0, 1]
    with pytest.raises(EvenlyError, match="has no column 'review'"):
        read_examples(data.preprocessing, table_of_numbers(tmp_path), CLASSES)
    with pytest.raises(EvenlyError, match=r"is a float|got a float"):
        read_examples(data.preprocessing, ["good", 1.5], CLASSES)


def table_of_numbers(folder):
    return write_table(folder / "numbers.csv", ["1,2,no,test"])


def test_encoded_texts_keep_the_length_of_their_ids():
    split = Split(torch.zeros(4, 7, dtype=torch.int64), [0, 1, 0, 1], texts=["a", "b", "c", "d"])
    assert preprocessing_of(Data(split)) == TextPreprocessing(length=7)
    assert preprocessing_of(Data((Texts(["a", "b"]), [0, 1]))) == TextPreprocessing()


@pytest.fixture
def folder(tmp_path):
    """Class folders in splits; sizes differ, one image is gray and one lies on its side."""
    random = np.random.default_rng(1)
    for part, count in (("train", 4), ("test", 3)):
        for name in CLASSES:
            (tmp_path / "own" / part / name).mkdir(parents=True)
            for i in range(count):
                shape = (9 + i, 12) if i == 1 else (9 + i, 12, 3)
                image = Image.fromarray(random.integers(0, 256, shape, dtype=np.uint8))
                exif = image.getexif()
                exif[0x0112] = 6 if i == 2 else 1
                image.save(tmp_path / "own" / part / name / f"{i}.png", exif=exif)
    return tmp_path / "own"


def test_images_become_the_readers_inputs_whatever_holds_them(folder):
    data = load(folder, size=8)
    preprocessing = preprocessing_from_dict(json.loads(json.dumps(data.preprocessing.to_dict())))
    assert preprocessing == ImagePreprocessing((3, 8, 8))
    test = folder / "test"
    files = [test / name / f"{i}.png" for name in CLASSES for i in range(3)]
    opened = [Image.open(file) for file in files]
    for raw in (test, str(test), files, opened, data.test.inputs, data.test.inputs.numpy(), data.test):
        examples = read_examples(preprocessing, raw, data.class_names)
        assert torch.equal(examples.inputs, data.test.inputs)
        known = isinstance(raw, str | Split) or raw is test
        assert examples.labels.tolist() == [0, 0, 0, 1, 1, 1] if known else examples.labels is None
    assert read_examples(preprocessing, test, data.class_names).files[0] == "no/0.png"
    whole = read_examples(preprocessing, folder, data.class_names)
    assert len(whole.labels) == 14
    assert torch.equal(read_examples(preprocessing, files[4], CLASSES).inputs[0], data.test.inputs[4])
    assert torch.equal(read_examples(preprocessing, opened[4], CLASSES).inputs[0], data.test.inputs[4])


def test_arrays_of_any_size_and_order_of_axes_are_brought_to_size(folder):
    data = load(folder, size=8)
    file = folder / "test" / "yes" / "0.png"
    expected = read_examples(data.preprocessing, file, CLASSES).inputs
    pixels = np.asarray(Image.open(file))
    for raw in ([pixels], [pixels.transpose(2, 0, 1)], pixels[None], torch.from_numpy(pixels[None].copy())):
        assert torch.equal(read_examples(data.preprocessing, raw, CLASSES).inputs, expected)


def test_images_resized_whole_and_cut_are_so_again(folder, tmp_path):
    from evenly.data.images.decoding import Reading, Squeezed, decode

    files = [f"test/{name}/0.png" for name in CLASSES]
    read = decode(folder, files, Reading(size=Squeezed(6, 8), channels=3)).pixels
    examples = read_examples(ImagePreprocessing((3, 6, 6), whole=8), [folder / file for file in files], CLASSES)
    assert torch.equal(examples.inputs, read)
    unsized = read_examples(ImagePreprocessing((3, 6, 6)), [folder / file for file in files], CLASSES)
    assert not torch.equal(unsized.inputs, read)


def test_the_folder_that_is_read_is_left_as_it_was(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("EVENLY_CACHE", str(tmp_path / "cache"))
    before = sorted(tmp_path.rglob("*"))
    read_examples(ImagePreprocessing((3, 6, 6)), folder, CLASSES)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_of_loose_images_has_no_labels_and_a_table_may_name_them(folder):
    loose = folder / "test" / "no"
    preprocessing = ImagePreprocessing((1, 8, 8))
    examples = read_examples(preprocessing, loose, CLASSES)
    assert examples.inputs.shape == (3, 1, 8, 8)
    assert examples.labels is None
    (loose / "metadata.csv").write_text("file,label\n2.png,yes\n0.png,no\n")
    named = read_examples(preprocessing, loose, CLASSES)
    assert torch.equal(named.inputs, examples.inputs[[2, 0]])
    assert named.labels.tolist() == [1, 0]
    (loose / "metadata.csv").write_text("file\n../yes/0.png\n")
    with pytest.raises(EvenlyError, match=r"line 2 of .* lies outside"):
        read_examples(preprocessing, loose, CLASSES)


def test_images_too_many_for_memory_are_read_one_by_one(folder, monkeypatch):
    from evenly.data.images import cache

    preprocessing = ImagePreprocessing((3, 8, 6))
    held = read_examples(preprocessing, folder / "test", CLASSES)
    monkeypatch.setattr(cache, "GIB", 1)
    read = read_examples(preprocessing, folder / "test", CLASSES)
    assert isinstance(read.inputs, ImageFiles)
    assert torch.equal(torch.stack([x for x, _ in read.inputs]), held.inputs)


def test_images_that_cannot_be_used_are_refused_in_a_line(folder):
    preprocessing = ImagePreprocessing((3, 8, 8))
    (folder / "test" / "no" / "1.png").write_bytes(b"no image")
    (folder / "test" / "other").mkdir()
    Image.new("RGB", (4, 4)).save(folder / "test" / "other" / "a.png")
    refused = [
        (folder / "test" / "no", r"image '.*1.png' cannot be read \(not an image"),
        (folder / "test", "lie in folder 'other', which is none of the classes no, yes; move them"),
        ([np.zeros((4, 4, 3))], r"the pixels of image 0 must be uint8 in 0..255, got float64"),
        ([np.zeros((5, 5, 7), np.uint8)], r"image 0 has shape \(5, 5, 7\); give"),
        (np.zeros((4, 4, 3), np.uint8), "a value of type ndarray cannot be used as new examples; give an image file"),
        ([{"a": 1}], "a value of type dict cannot be used as new examples; give an image file"),
        ([], "there are no images to predict"),
        ([Image.new("F", (4, 4))], "image 0 cannot be read .its pixels are floats"),
    ]
    for raw, message in refused:
        with pytest.raises(EvenlyError, match=message) as refusal:
            read_examples(preprocessing, raw, CLASSES)
        assert "\n" not in str(refusal.value)


def test_arrays_are_taken_as_they_are(tmp_path):
    x = np.random.default_rng(0).normal(size=(12, 4))
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(12) % 2, split=["train"] * 6 + ["test"] * 6)
    data = load(tmp_path / "own.npz")
    preprocessing = preprocessing_of(data)
    assert preprocessing == ArrayPreprocessing((4,), "float32")
    np.savez(tmp_path / "new.npz", x=x[6:], y=np.arange(6) % 2, groups=np.arange(6) % 3)
    for raw in (x[6:], torch.from_numpy(x[6:]), x[6:].tolist(), tmp_path / "new.npz", data.test):
        assert torch.equal(read_examples(preprocessing, raw, ["0", "1"]).inputs, data.test.inputs)
    named = read_examples(preprocessing, tmp_path / "new.npz", ["0", "1"])
    assert named.labels.tolist() == [0, 1, 0, 1, 0, 1]
    assert named.groups.tolist() == [0, 1, 2, 0, 1, 2]


def test_images_may_lie_in_an_npz(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (4, 3, 5, 5), dtype=np.uint8)
    np.savez(tmp_path / "new.npz", x=x, y=[0, 1, 1, 0])
    preprocessing = preprocessing_of(Data((x, [0, 1, 1, 0])))
    assert preprocessing == ImagePreprocessing((3, 5, 5))
    examples = read_examples(preprocessing, tmp_path / "new.npz", CLASSES)
    assert torch.equal(examples.inputs, torch.from_numpy(x))
    assert examples.labels.tolist() == [0, 1, 1, 0]


REFUSED_ARRAYS = {
    "shape": (np.zeros((2, 3)), r"the new inputs have shape \(2, 3\); give an array of shape \(N, 4\)"),
    "ragged": ([[1.0], [1.0, 2.0]], "a value of type list cannot be used as new examples; give an array"),
    "nan": (np.full((2, 4), np.nan), "2 of 2 new inputs hold NaN or infinity"),
    "empty": (np.zeros((0, 4)), "the new set is empty"),
    "a number": (3, "a value of type int cannot be used as new examples"),
}


@pytest.mark.parametrize("case", REFUSED_ARRAYS)
def test_arrays_that_cannot_be_used_are_refused_in_a_line(case):
    raw, message = REFUSED_ARRAYS[case]
    with pytest.raises(EvenlyError, match=message):
        read_examples(ArrayPreprocessing((4,)), raw, CLASSES)


def test_whole_numbers_are_not_made_of_others():
    with pytest.raises(EvenlyError, match=r"are torch.float32 and the network was trained on torch.int64; convert"):
        read_examples(ArrayPreprocessing((4,), "int64"), np.zeros((2, 4)), CLASSES)
    with pytest.raises(EvenlyError, match=r"are torch.int64 and the network was trained on torch.uint8; convert them"):
        read_examples(ArrayPreprocessing((4,), "uint8"), np.full((2, 4), 300), CLASSES)
    assert read_examples(ArrayPreprocessing((4,), "uint8"), np.full((2, 4), 200), CLASSES).inputs.dtype == torch.uint8


def test_labels_that_are_no_classes_are_refused(tmp_path):
    np.savez(tmp_path / "new.npz", x=np.zeros((2, 4)), y=[0, 7])
    with pytest.raises(EvenlyError, match=r"a label in .*new.npz is 7 and the classes are 0..1; renumber"):
        read_examples(ArrayPreprocessing((4,)), tmp_path / "new.npz", CLASSES)


def test_a_damaged_preprocessing_is_refused_in_a_line():
    with pytest.raises(EvenlyError, match="is of no known kind"):
        preprocessing_from_dict({"kind": "sounds"})
    with pytest.raises(EvenlyError, match="lacks 'mean'"):
        preprocessing_from_dict({"kind": "table", "features": ["a"]})
