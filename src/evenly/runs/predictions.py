"""Classes and their probabilities for new examples."""

from __future__ import annotations

import copy
import csv
import html
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import frozen
from torch import Tensor, nn

from evenly.data.contract import Split
from evenly.data.examples import Examples, read_examples
from evenly.data.preprocessing import Preprocessing, TextPreprocessing
from evenly.data.texts import Texts
from evenly.engine.batches import Batches
from evenly.engine.evaluation import outputs_of
from evenly.engine.losses import predictions, probabilities
from evenly.engine.precision import Precision
from evenly.errors import EvenlyError, first_line, lack_of_memory
from evenly.files import atomic, make_folder
from evenly.models.texts import padded, token_ids

SHOWN = 10
"""Rows that a notebook shows."""

Array = np.ndarray[Any, Any]


@frozen(eq=False, repr=False)
class Predictions:
    """What a network says of N examples.

    Args:
        labels: (N,) the class predicted, an index into `class_names`.
        probabilities: (N, K) of each class.
        true_labels: (N,) where they are known.
        groups: (N,), or boolean (N, G), where they are known.
        files: of image files, their names.
    """

    labels: Array
    probabilities: Array
    class_names: tuple[str, ...]
    true_labels: Array | None = None
    groups: Array | None = None
    files: tuple[str, ...] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The class predicted, by name."""
        return tuple(self.class_names[label] for label in self.labels)

    @property
    def accuracy(self) -> float | None:
        """The share of examples whose true label is predicted; None where labels are not known."""
        return None if self.true_labels is None else float((self.labels == self.true_labels).mean())

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        counts = np.bincount(self.labels, minlength=len(self.class_names))
        classes = ", ".join(f"{name} {count}" for name, count in zip(self.class_names, counts, strict=True) if count)
        accuracy = "" if self.accuracy is None else f"; accuracy {self.accuracy:.1%}"
        return f"Predictions({len(self)} examples: {classes}{accuracy})"

    def _header(self) -> list[str]:
        given = [name for name, values in (("file", self.files), ("label", self.true_labels)) if values is not None]
        return [*given, "prediction", *(f"probability of {name}" for name in self.class_names)]

    def _rows(self) -> Iterator[list[Any]]:
        for i, name in enumerate(self.names):
            row: list[Any] = [] if self.files is None else [self.files[i]]
            row += [] if self.true_labels is None else [self.class_names[self.true_labels[i]]]
            yield [*row, name, *self.probabilities[i].tolist()]

    def to_pandas(self) -> Any:
        """A DataFrame: prediction and the probability of each class; file and label where they are known."""
        try:
            import pandas as pd
        except ImportError:
            raise EvenlyError("to_pandas needs pandas; run: pip install 'evenly[pandas]', or use save") from None
        return pd.DataFrame(list(self._rows()), columns=self._header())

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        arrays = {"labels": self.labels, "probabilities": self.probabilities}
        known = {"true_labels": self.true_labels, "groups": self.groups}
        arrays |= {name: array for name, array in known.items() if array is not None}
        files = {} if self.files is None else {"files": list(self.files)}
        return {
            "class_names": list(self.class_names),
            "names": list(self.names),
            **{name: array.tolist() for name, array in arrays.items()},
            **files,
        }

    def save(self, path: str | Path) -> None:
        """Write a csv file with the columns of `to_pandas`."""
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows([self._header(), *self._rows()])
        make_folder(Path(path).parent)
        with atomic(Path(path)) as file:
            file.write(text.getvalue().encode())

    def _repr_html_(self) -> str:
        def line(cells: Sequence[Any], tag: str) -> str:
            texts = (f"{cell:.3f}" if isinstance(cell, float) else html.escape(str(cell)) for cell in cells)
            return f"<tr>{''.join(f'<{tag}>{text}</{tag}>' for text in texts)}</tr>"

        rows = [line(row, "td") for row, _ in zip(self._rows(), range(SHOWN), strict=False)]
        return f"<p>{html.escape(repr(self))}</p><table>{line(self._header(), 'th')}{''.join(rows)}</table>"


def predict(
    network: nn.Module,
    preprocessing: Preprocessing,
    class_names: Sequence[str],
    x: Any,
    *,
    batch_size: int | None = None,
    device: str | torch.device = "cpu",
    precision: Precision = "auto",
) -> Predictions:
    """What a network says of new examples.

    Args:
        x: what the user has; `evenly.data.examples` lists what can be read.
        batch_size: how many examples the network is given at once, at least; without it as many as evaluation does.
        precision: as in `evenly.train`; that of the training run gives the outputs that it measured.
    """
    examples = read_examples(preprocessing, x, class_names)
    outputs = outputs_on_examples(network, preprocessing, examples, batch_size, torch.device(device), precision)
    return Predictions(
        predictions(outputs).numpy(),
        probabilities(outputs.double()).numpy(),
        tuple(class_names),
        None if examples.labels is None else examples.labels.numpy(),
        None if examples.groups is None else examples.groups.numpy(),
        examples.files,
    )


def outputs_on_examples(
    network: nn.Module,
    preprocessing: Preprocessing,
    examples: Examples,
    batch_size: int | None = None,
    device: torch.device | None = None,
    precision: Precision = "auto",
) -> Tensor:
    """The network's outputs (N, K), on the CPU; the network stays on its device."""
    device = device or torch.device("cpu")
    if any(weight.device.type != device.type for weight in network.parameters()):
        network = copy.deepcopy(network).to(device)
    inputs: Any = examples.inputs
    if isinstance(inputs, Texts):
        length = preprocessing.length if isinstance(preprocessing, TextPreprocessing) else None
        inputs = padded(network, token_ids(network, inputs)[0], length or 0)
    split = Split(inputs, examples.labels if examples.labels is not None else torch.zeros(len(inputs)), name="new")
    try:
        return outputs_of(network, Batches(split, batch_size, device, precision=precision)).cpu()
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        if lack_of_memory(error):
            raise
        raise EvenlyError(
            f"the network cannot take inputs of shape {split.example_shape} ({first_line(error)}); give such as it was "
            "trained on"
        ) from error
