"""A run: the trained network with its results, its history and what its method selected. It is read from its folder
alone, without the training data, and nothing is written there.

run = evenly.load("runs/a")
run.model, run.results, run.history, run.selection
run.predict("new.csv")
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import define, field, frozen
from torch import Tensor, nn

from evenly.data.contract import Split
from evenly.data.preprocessing import Preprocessing, preprocessing_from_dict
from evenly.engine.evaluation import outputs_on
from evenly.engine.precision import Precision
from evenly.engine.trained import Selection
from evenly.errors import EvenlyError, first_line
from evenly.files import AGAIN, as_path, atomic, unsealed
from evenly.models import MODELS
from evenly.plugins import missing
from evenly.runs.example_intervals import CORRECT, Correct
from evenly.runs.folder import Config, read_config, read_results
from evenly.runs.network import load_network
from evenly.runs.plan import Plan
from evenly.runs.predictions import Predictions, predict
from evenly.runs.results import RunResult

HistoryRow = Mapping[str, Any]
History = Sequence[HistoryRow]


@frozen
class Recorded:
    """What was recorded in training: a row per recorded epoch, and each training example's forgetting score."""

    history: History
    forgetting_scores: Tensor | None = None

    def save(self, path: Path) -> None:
        arrays: dict[str, Any] = {}
        if self.forgetting_scores is not None:
            arrays["forgetting_scores"] = self.forgetting_scores.numpy()
        with atomic(path) as file:
            np.savez(file, history=np.array(json.dumps(list(self.history))), **arrays)


@frozen
class InMemory:
    """What a run that has just ended, or was loaded, has at hand; the rest is read from its folder."""

    history: History
    selection: Selection | None = None
    record: Recorded | None = None
    model: nn.Module | None = None
    correct: Correct | None = None


@define(slots=False)
class Run:
    """A finished run. `folder` is None for one that was kept in memory only.

    What the folder holds is read on first use, and is not sent along to another process.
    """

    config: Config
    results: RunResult
    folder: Path | None = None
    _memory: InMemory | None = field(default=None, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return Run, (self.config, self.results, self.folder, self._memory if self.folder is None else None)

    @property
    def plan(self) -> Plan:
        return self.config.plan

    @cached_property
    def history(self) -> History:
        """A row per epoch of the last stage."""
        return self._parts.history

    @cached_property
    def selection(self) -> Selection | None:
        """Which examples the method selected; None where it selects none by design."""
        return self._parts.selection

    @cached_property
    def record(self) -> Recorded | None:
        """What was recorded; None where nothing was asked for."""
        return self._parts.record

    @cached_property
    def _parts(self) -> InMemory:
        return _in_memory(self._path) if self._memory is None else self._memory

    @property
    def _path(self) -> Path:
        assert self.folder is not None
        return self.folder

    @cached_property
    def model(self) -> nn.Module:
        """The network in eval mode, with the weights that the selection rule chose."""
        if self._memory is not None and self._memory.model is not None:
            return self._memory.model
        spec = self.config.network
        if (package := self.plan.packages.get("model")) is not None and MODELS.package(spec.name) is None:
            raise missing("model", spec.name, package)
        return load_network(spec, self._path, self.plan.model.given).eval()

    @property
    def correct(self) -> Correct | None:
        """Which examples of the split that it is judged on the run got right; None in folders of older versions, as
        the examples' identities are."""
        return self._parts.correct if self.folder is None else read_correct(self.folder, self.results.judged)

    @property
    def preprocessing(self) -> Preprocessing:
        """What turns raw rows, texts or images into the network's inputs."""
        return preprocessing_from_dict(self.config.preprocessing)

    def predict(self, x: Any) -> Predictions:
        """Classes and their probabilities for new data, as the user has it: rows, texts, images, files, arrays."""
        device = next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))
        names, precision = self.config.class_names, self._precision
        return predict(self.model, self.preprocessing, names, x, device=device, precision=precision)

    def outputs(self, split: Split) -> Tensor:
        """The network's outputs on a split, in order, in eval mode, on the CPU."""
        return outputs_on(self.model, split, self.plan.seed, self._precision)

    @property
    def _precision(self) -> Precision:
        return self.plan.settings.precision

    def __repr__(self) -> str:
        result = self.results
        where = "in memory" if self.folder is None else str(self.folder)
        return (
            f"Run({result.method} with {result.optimizer} on {result.data.name}, seed {result.seed}: "
            f"{result.judged} accuracy {result.measured.accuracy:.1%}; {where})"
        )

    def __str__(self) -> str:
        return f"{self.results}\n{'in memory' if self.folder is None else self.folder}"

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self))}</p>{self.results._repr_html_()}"


def load(folder: str | Path, model: nn.Module | None = None) -> Run:
    """A finished run from its folder alone. Nothing is locked or written, and nothing in a file is executed.

    Args:
        model: where the run trained a module of the user's own, a module of the same architecture; it is copied.
    """
    path = as_path(folder, "folder")
    config = read_config(path)
    results = read_results(path)
    network = None if model is None else load_network(config.network, path, model).eval()
    return Run(config, results, path, _in_memory(path, network))


def _in_memory(folder: Path, model: nn.Module | None = None) -> InMemory:
    return InMemory(read_history(folder), read_selection(folder), read_record(folder), model)


def read_history(folder: Path) -> History:
    """The rows of the last stage in `metrics.jsonl`."""
    path = folder / "metrics.jsonl"
    try:
        rows = [unsealed(line) for line in path.read_bytes().splitlines()]
        return [row for row in rows if row["stage"] == rows[-1]["stage"]]
    except OSError as error:
        raise EvenlyError(f"{path} cannot be read ({error.strerror}); {AGAIN}") from None
    except (ValueError, KeyError, RecursionError) as error:
        raise EvenlyError(f"{path} is damaged ({first_line(error)}); {AGAIN}") from None


def read_selection(folder: Path) -> Selection | None:
    """Which examples the method selected; None where it selects none by design."""
    arrays = read_arrays(folder / "selection.npz")
    if arrays is None:
        return None
    details = {name: value if value.ndim else value.item() for name, value in arrays.items()}
    if missing := [name for name in ("indices", "times", "why") if name not in details]:
        raise EvenlyError(f"{folder / 'selection.npz'} is damaged (it lacks {missing[0]}); {AGAIN}")
    indices, times, why = (details.pop(name) for name in ("indices", "times", "why"))
    return Selection(torch.from_numpy(indices), torch.from_numpy(times), str(why), details)


def read_record(folder: Path) -> Recorded | None:
    """What was recorded; None where nothing was asked for."""
    arrays = read_arrays(folder / "record.npz")
    if arrays is None:
        return None
    scores = arrays.get("forgetting_scores")
    try:
        history = json.loads(arrays["history"].item())
    except (ValueError, KeyError) as error:
        raise EvenlyError(f"{folder / 'record.npz'} is damaged ({first_line(error)}); {AGAIN}") from None
    return Recorded(history, None if scores is None else torch.from_numpy(scores))


def read_correct(folder: Path, judged: str) -> Correct | None:
    """Which examples of a split a run got right; the outputs beside it are not read."""
    arrays = read_arrays(folder / "predictions.npz", f"{judged}_labels", *CORRECT) or {}
    labels, right, examples, groups, identities = (arrays.get(name) for name in (f"{judged}_labels", *CORRECT))
    if labels is None or right is None or examples is None:
        return None
    return Correct(np.unpackbits(right, count=len(labels)).astype(bool), labels, groups, str(examples), identities)


def validation_outputs(run: Run) -> Tensor:
    """The outputs (N, K) on validation that a run left in its folder."""
    assert run.folder is not None
    arrays = read_arrays(run.folder / "predictions.npz", "validation_outputs") or {}
    return torch.from_numpy(arrays["validation_outputs"])


def read_arrays(path: Path, *names: str) -> dict[str, np.ndarray[Any, Any]] | None:
    """The arrays in a file, or those of these names that are there."""
    if not path.exists():
        return None
    try:
        with path.open("rb") as opened, np.lib.npyio.NpzFile(opened) as file:  # nothing in it is executed
            return {name: file[name] for name in file.files if not names or name in names}
    except Exception as error:  # a damaged file can raise anything in the reader
        raise EvenlyError(f"{path} is damaged ({first_line(error)}); {AGAIN}") from None
