"""New examples for a trained network: what a user has, made into inputs such as the network was trained on.

    a table     a csv file, a DataFrame, a list of dicts: columns are found by name, others are left alone; an array or
                a list of rows: the columns of numbers in order, then those of texts
    texts       a list of strings; a csv file, a DataFrame or a list of dicts with the column of texts
    images      an image file; a folder, with a folder per class or not, or with a metadata.csv; a list of files, Pillow
                images or uint8 arrays, of any size; a uint8 array (N, C, H, W) or (N, H, W, C)
    arrays      an array or tensor (N, ...)

Images and arrays may come in an `.npz` file (x, perhaps y and groups). A str is a path. A `Split`, or a Dataset of
``(x, y)``, is taken as it is. Labels come along where there are any: in the column of labels, by folder, as y.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from evenly.data.arrays import read_arrays
from evenly.data.contract import Data, Split
from evenly.data.images.decoding import SUFFIXES, Fitted, Reading, Size, Squeezed, decode, pixels_of
from evenly.data.images.folders import images_in
from evenly.data.images.listing import inside
from evenly.data.metadata import METADATA, SPLIT_NAMES, metadata_in
from evenly.data.preprocessing import (
    ArrayPreprocessing,
    ImagePreprocessing,
    Preprocessing,
    TablePreprocessing,
    TextPreprocessing,
    number,
)
from evenly.data.rows import Rows, called, read_header, read_rows, rows_of
from evenly.data.texts import Texts
from evenly.errors import EvenlyError

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

CHANNELS = (1, 3, 4)


@attrs.frozen(eq=False)
class Examples:
    """New examples as a network takes them.

    Args:
        inputs: (N, ...) as a tensor, a Dataset of ``(x, y)`` that is read one by one, or `Texts`.
        labels: (N,) where they are known.
        groups: (N,), or boolean (N, G), where they are known.
        files: of image files, their names.
    """

    inputs: Tensor | Dataset[Any] | Texts
    labels: Tensor | None = None
    groups: Tensor | None = None
    files: tuple[str, ...] | None = None


def preprocessing_of(data: Data) -> Preprocessing:
    """The data's own preprocessing; where it has none, what its first input tells.

    Of texts that a network has encoded already, the length of their token ids is added.
    """
    known, split = data.preprocessing, data.train
    if split.texts is not None:
        known = known if isinstance(known, TextPreprocessing) else TextPreprocessing()
        return attrs.evolve(known, length=split.inputs.shape[1]) if isinstance(split.inputs, Tensor) else known
    if known is not None:
        return known
    x = split.inputs[0] if isinstance(split.inputs, Tensor) else torch.as_tensor(split.inputs[0][0])
    if x.dtype == torch.uint8 and x.ndim == 3 and len(x) in (1, 3):
        return ImagePreprocessing((x.shape[0], x.shape[1], x.shape[2]))
    return ArrayPreprocessing(tuple(x.shape), str(x.dtype).removeprefix("torch."))


def read_examples(preprocessing: Preprocessing, raw: Any, class_names: Sequence[str]) -> Examples:
    """New examples, of any kind that the top of this file names for such data; what is not is refused in a line."""
    raw = Path(raw) if isinstance(raw, str) else raw
    if isinstance(raw, Path) and not os.path.exists(raw):  # pathlib raises where a name is too long
        raise EvenlyError(f"there is no file or folder {str(raw)!r}; give {_accepted(preprocessing)}")
    if isinstance(raw, Texts):
        raw = raw.texts
    if isinstance(raw, Split | Dataset):
        split = raw if isinstance(raw, Split) else Split(raw, name="new")
        return _with_labels(split.inputs, split.labels, split.measured_groups, class_names, "the split given")
    if isinstance(preprocessing, TablePreprocessing):
        names = preprocessing.columns
        rows = _rows(
            preprocessing, raw, [preprocessing.label, *names], [preprocessing.label, *preprocessing.categories]
        )
        return _of_table(preprocessing, rows, class_names)
    if isinstance(preprocessing, TextPreprocessing):
        return _of_texts(preprocessing, raw, class_names)
    if isinstance(raw, Path) and raw.suffix == ".npz":
        columns = read_arrays(raw)
        inputs = read_examples(preprocessing, columns["x"], class_names).inputs
        return _with_labels(inputs, columns.get("y"), columns.get("groups"), class_names, str(raw))
    if isinstance(preprocessing, ImagePreprocessing):
        return _of_images(preprocessing, raw, class_names)
    return Examples(_array(preprocessing, raw))


def _accepted(preprocessing: Preprocessing) -> str:
    match preprocessing:
        case TablePreprocessing(columns=names):
            columns = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
            return f"a csv file, a DataFrame, a list of dicts or an array with the {len(names)} columns {columns}"
        case TextPreprocessing(text=text):
            return f"a list of strings, or a csv file or a DataFrame with the column {text!r}"
        case ImagePreprocessing():
            return (
                "an image file, a folder of images, a list of images, or uint8 arrays (N, C, H, W), also as x in .npz"
            )
        case ArrayPreprocessing(shape=shape):
            return f"an array of shape (N, {', '.join(map(str, shape))}), also as x in an .npz file"


def _refusal(preprocessing: Preprocessing, raw: Any) -> EvenlyError:
    name = f"{str(raw)!r}" if isinstance(raw, Path) else f"a value of type {type(raw).__name__}"
    return EvenlyError(f"{name} cannot be used as new examples; give {_accepted(preprocessing)}")


def _with_labels(inputs: Any, y: Any, groups: Any, class_names: Sequence[str], where: str) -> Examples:
    if y is None:
        return Examples(inputs)
    split = Split(inputs, y, groups, name="new")
    if bool((strange := (split.labels < 0) | (split.labels >= len(class_names))).any()):
        raise EvenlyError(
            f"a label in {where} is {int(split.labels[strange][0])} and the classes are 0..{len(class_names) - 1}; "
            "renumber the labels, or leave them out"
        )
    return Examples(split.inputs, split.labels, split.groups)


def _rows(
    preprocessing: TablePreprocessing | TextPreprocessing, raw: Any, wanted: Sequence[str], texts: Sequence[str]
) -> Rows:
    """The rows of a csv file, a DataFrame, a list of dicts or an array.

    Args:
        wanted: the columns that are read, as far as they are there.
        texts: those among them that are texts, though they hold numbers.
    """
    if isinstance(raw, Path):
        raw = (metadata_in(raw) or raw / METADATA[0]) if raw.is_dir() else raw
        if not raw.name.endswith((".csv", ".csv.gz", ".jsonl")):
            raise _refusal(preprocessing, raw)
        header = read_header(raw)
        there = set(filter(None, (called(name, header) for name in wanted)))
        rows = read_rows(raw, [called(name, header) or name for name in texts], set(header) - there, blank_rows=True)
        rows.header = [name for name in header if name]
        return rows
    if hasattr(raw, "columns") and callable(getattr(raw, "to_dict", None)):
        columns: Mapping[str, Any] = {str(name): raw[name] for name in raw.columns}
    else:
        columns = _by_column(preprocessing, raw)
    if not len(next(iter(columns.values()), ())):
        raise EvenlyError("there are no rows to predict; give at least one")
    return rows_of(columns, [called(name, columns) or name for name in texts])


def _by_column(preprocessing: TablePreprocessing | TextPreprocessing, raw: Any) -> Mapping[str, Any]:
    """The columns of a list of dicts, of a list of rows or of an array."""
    rows = raw if isinstance(raw, list | tuple) else getattr(raw, "tolist", lambda: None)()
    if not isinstance(rows, list | tuple):
        raise _refusal(preprocessing, raw)
    if all(isinstance(row, Mapping) for row in rows):
        return {
            str(name): [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)
        }
    names = preprocessing.columns if isinstance(preprocessing, TablePreprocessing) else ()
    if not all(isinstance(row, list | tuple) and len(row) == len(names) for row in rows):
        raise _refusal(preprocessing, raw)
    return dict(zip(names, zip(*rows, strict=True), strict=True))


def _of_table(preprocessing: TablePreprocessing, rows: Rows, class_names: Sequence[str]) -> Examples:
    there = dict.fromkeys(rows.names)
    found: dict[str, str] = {}
    for name in preprocessing.columns:
        if (column := called(name, there)) is None:
            listed = ", ".join(map(repr, there))
            raise EvenlyError(f"{rows.path} has no column {name!r}, which the network takes (found: {listed}); add it")
        found[name] = column
    numbers = {name: rows.numbers[:, j] for j, name in enumerate(rows.number_names)}
    x = np.empty((len(rows), len(preprocessing.features)))
    for j, name in enumerate(preprocessing.features):
        x[:, j] = numbers[found[name]] if found[name] in numbers else _numbers(rows, found[name])
    if preprocessing.missing == "refuse" and np.isnan(x).any():
        i, j = np.argwhere(np.isnan(x))[0]
        raise EvenlyError(
            f"line {rows.line(i)} of {rows.path} has no number in {preprocessing.features[j]!r}; fill it in, or train "
            "without missing=refuse, which takes the training median"
        )
    cells = {name: rows.columns[found[name]] for name in preprocessing.categories}
    inputs = torch.from_numpy(preprocessing.encoded(x, cells))
    return Examples(inputs, _labels(rows, preprocessing.label, class_names))


def _numbers(rows: Rows, name: str) -> list[float]:
    numbers = []
    for i, cell in enumerate(rows.columns[name]):
        try:
            numbers.append(number(cell))
        except ValueError:
            raise EvenlyError(
                f"{name!r} is {cell!r} in line {rows.line(i)} of {rows.path}, not a number; correct it"
            ) from None
    return numbers


def _labels(rows: Rows, label: str | None, class_names: Sequence[str]) -> Tensor | None:
    """(N,) the classes that a column names; None where there is no such column or nothing in it."""
    column = None if label is None else rows.called(label)
    if column is None or not any(rows.columns[column]):
        return None
    number_of = {str(name): k for k, name in enumerate(class_names)}
    for i, cell in enumerate(rows.columns[column]):
        if cell not in number_of:
            raise EvenlyError(
                f"{column} {cell!r} in line {rows.line(i)} of {rows.path} is none of the classes "
                f"{', '.join(number_of)}; correct it, or leave the column out to predict without labels"
            )
    return torch.tensor([number_of[cell] for cell in rows.columns[column]])


def _of_texts(preprocessing: TextPreprocessing, raw: Any, class_names: Sequence[str]) -> Examples:
    if isinstance(raw, Tensor) and raw.dtype == torch.int64 and raw.ndim == 2:
        return Examples(raw)  # token ids
    listed = raw.tolist() if not hasattr(raw, "columns") and callable(getattr(raw, "tolist", None)) else raw
    if isinstance(listed, list | tuple) and not any(isinstance(text, Mapping) for text in listed):
        if not listed:
            raise EvenlyError("there are no texts to predict; give at least one")
        return Examples(Texts(listed))
    label = [] if preprocessing.label is None else [preprocessing.label]
    rows = _rows(preprocessing, raw, [preprocessing.text, *label], [preprocessing.text, *label])
    labels = _labels(rows, preprocessing.label, class_names)
    return Examples(Texts(rows.take(preprocessing.text, "text")), labels)


def _of_images(preprocessing: ImagePreprocessing, raw: Any, class_names: Sequence[str]) -> Examples:
    channels, height, width = preprocessing.shape
    size = Fitted(height, width) if preprocessing.whole is None else Squeezed(height, preprocessing.whole)
    if isinstance(raw, Path):
        if raw.is_dir():
            return _of_files(preprocessing, size, *_listed(Path(os.path.realpath(raw)), class_names))
        if not raw.name.lower().endswith(SUFFIXES):
            raise _refusal(preprocessing, raw)
        return _of_files(preprocessing, size, raw.parent, [raw.name])
    if isinstance(raw, np.ndarray | Tensor):
        if raw.ndim != 4:
            raise _refusal(preprocessing, raw)
        if tuple(raw.shape[1:]) == preprocessing.shape and raw.dtype in (np.uint8, torch.uint8):
            return Examples(torch.as_tensor(raw))
    listed = list(raw) if isinstance(raw, list | tuple | np.ndarray | Tensor) else [raw]
    if not listed:
        raise EvenlyError("there are no images to predict; give at least one")
    if all(isinstance(item, str | Path) for item in listed):
        return _of_files(preprocessing, size, Path(), [str(item) for item in listed])
    images = []
    for i, item in enumerate(listed):
        if isinstance(item, np.ndarray | Tensor) and tuple(item.shape) == preprocessing.shape:
            images.append(_pixels(i, item))  # as the network takes it already
        else:
            images += pixels_of([_picture(preprocessing, i, item)], channels, size)
    return Examples(torch.from_numpy(np.stack(images)))


def _of_files(
    preprocessing: ImagePreprocessing, size: Size, root: Path, files: Sequence[str], labels: Tensor | None = None
) -> Examples:
    decoded = decode(root, files, Reading(size=size, channels=preprocessing.shape[0], skip_bad=True), cache=False)
    if decoded.bad:
        file, why = decoded.bad[0]
        more = f" and {len(decoded.bad) - 1} more" if len(decoded.bad) > 1 else ""
        raise EvenlyError(f"image {str(root / file)!r}{more} cannot be read ({why}); replace it or leave it out")
    every = np.arange(len(files))
    inputs = decoded.part(every, np.zeros_like(every) if labels is None else labels.numpy())
    return Examples(inputs, labels, files=tuple(files))


def _listed(root: Path, class_names: Sequence[str]) -> tuple[Path, list[str], Tensor | None]:
    """The images of a folder, and their labels where a metadata.csv or the folders they lie in name classes."""
    if (metadata := metadata_in(root)) is not None:
        rows = read_rows(metadata)
        labels, files = _labels(rows, "label", class_names), rows.take(rows.file_column or "file", "file")
        for i, file in enumerate(files):
            if "\0" in file or not inside(root, root / file):
                line = f"line {rows.line(i)} of {rows.path}"
                raise EvenlyError(f"file {file!r} in {line} lies outside {root}; leave it out")
        return root, files, labels
    files = [file.removeprefix("./") for file in images_in(root, ".")]
    if not files:
        raise EvenlyError(f"there are no images in {root} ({', '.join(SUFFIXES)}); give a folder that holds some")
    names = []
    for file in files:
        folders = file.split("/")[:-1]
        if folders and folders[0] not in class_names and folders[0].lower() in SPLIT_NAMES:
            folders = folders[1:]
        names.append(folders[0] if folders else "")
    strange = [name for name in names if name not in class_names]
    if len(strange) == len(names):
        return root, files, None
    if strange:
        where = f"folder {strange[0]!r}" if strange[0] else "no folder"
        raise EvenlyError(
            f"{len(strange)} of {len(files)} images in {root} lie in {where}, which is none of the classes "
            f"{', '.join(class_names)}; move them, or rename the folders of classes to predict without labels"
        )
    return root, files, torch.tensor([list(class_names).index(name) for name in names])


def _pixels(i: int, array: np.ndarray[Any, Any] | Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    pixels = np.asarray(array)
    if pixels.dtype != np.uint8:
        raise EvenlyError(f"the pixels of image {i} must be uint8 in 0..255, got {pixels.dtype}")
    return pixels


def _picture(preprocessing: ImagePreprocessing, i: int, item: Any) -> Picture:
    """A Pillow image as it is, or one of an array (H, W), (H, W, C) or (C, H, W)."""
    from PIL import Image

    if isinstance(item, Image.Image):
        return item
    if not isinstance(item, np.ndarray | Tensor):
        raise _refusal(preprocessing, item)
    pixels = _pixels(i, item)
    if pixels.ndim == 3 and pixels.shape[2] not in CHANNELS and pixels.shape[0] in CHANNELS:
        pixels = pixels.transpose(1, 2, 0)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] not in CHANNELS):
        raise EvenlyError(f"image {i} has shape {tuple(item.shape)}; give (H, W), (H, W, C) or (C, H, W)")
    return Image.fromarray(np.ascontiguousarray(pixels))


def _array(preprocessing: ArrayPreprocessing, raw: Any) -> Tensor:
    if isinstance(raw, Path):
        raise _refusal(preprocessing, raw)
    try:
        values = raw if isinstance(raw, Tensor) else np.asarray(raw)
        x = Split(values, np.zeros(len(values)), name="new").inputs
    except (TypeError, ValueError, RuntimeError):  # no length, or rows of several lengths
        raise _refusal(preprocessing, raw) from None
    assert isinstance(x, Tensor)
    if tuple(x.shape[1:]) != preprocessing.shape:
        raise EvenlyError(f"the new inputs have shape {tuple(x.shape)}; give {_accepted(preprocessing)}")
    dtype = getattr(torch, preprocessing.dtype)
    exact = x.is_floating_point() or dtype.is_floating_point or torch.equal(x.to(dtype).to(x.dtype), x)
    pixels = x.dtype == torch.uint8 and dtype.is_floating_point  # bytes are rarely on the scale of the numbers before
    if not torch.can_cast(x.dtype, dtype) or not exact or pixels:
        raise EvenlyError(f"the new inputs are {x.dtype} and the network was trained on {dtype}; convert them")
    return x.to(dtype)
