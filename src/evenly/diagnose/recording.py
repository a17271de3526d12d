"""What a network has learned, along a run: in evenly's engine, in any training loop, over checkpoints.

>>> run = evenly.train(model, data, record={"probes": ["background"], "forgetting": True, "every": 5})
>>> run.history[4]["probe_background"], run.record.forgetting.scores

>>> recorder = Recorder(data, probes=["label", "background"], importance=0.05, every=5)
>>> for epoch in range(1, epochs + 1):
...     ...                                                # train
...     recorder(model, epoch)
>>> recorder.history[-1]["probe_background"], recorder.history[-1]["gini_phantom"]

>>> series = record_checkpoints(model, "checkpoints/", data, probes=["background"], forgetting=True)
>>> print(series.table())
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from evenly.diagnose.forgetting import ForgettingTracker
from evenly.diagnose.spectrum import MOST_STEPS, hessian_spectrum
from evenly.diagnose.importance import check_options, gini_if_any, importance_weights
from evenly.diagnose.norms import l1_norm
from evenly.diagnose.probing import probes as probes_of
from evenly.diagnose.probing import unprobeable
from evenly.diagnose.samples import check_real, part_of, split_of
from evenly.engine.evaluation import check_model, in_chunks, in_eval_mode, logits_of
from evenly.engine.losses import single
from evenly.errors import EvenlyError
from evenly.models.weights import READERS, load_weights
from evenly.randomness import isolated
from evenly.settings import Recording, checked, options_of, settings_of

SAMPLES = 1000
"""Training examples that a spectrum is taken over at most."""


class Recorder:
    """Records diagnoses at chosen epochs; the network is left as it was found. One recorder serves one run.

    Each row of `history` has the epoch and, of what was asked for:

    - ``probe_NAME``, ``probe_NAME_low``, ``probe_NAME_high``: the probing error and its interval (`evenly.probes`)
    - ``gini_real``, ``gini_phantom``: of the importance weights (`evenly.importance_weights`)
    - ``lambda_1``, ``lambda_2``, ...: eigenvalues of the Hessian, descending
    - ``forgotten``, ``never_right``: the mean forgetting score of the examples that were ever right, and the share of
      those that never were; the scores are in `forgetting`
    - ``l1_norm``

    Args:
        data: as in `evenly.probes`; the rest looks at the training split of a Data.
        probes: attributes to probe, a list or their names joined by commas; True for the label and every attribute.
        importance: rho of the phantom weights, or options of `evenly.importance_weights` ("rho", "kind", ...).
        spectrum: how many eigenvalues of the loss' Hessian, over `SAMPLES` examples at most; or a function of the
            network that gives its spectrum, with ``.eigenvalues``; e.g.
            ``lambda model: evenly.hessian_spectrum(model, "cross-entropy", some, top=5)``.
        forgetting: look at every example at every call, also where no record is due.
        l1: the l1 norm of the weights.
        every: record only at epochs that this divides.
        epochs: record at these epochs instead.
    """

    def __init__(
        self,
        data: Any,
        *,
        probes: str | Sequence[str] | bool = (),
        importance: float | Mapping[str, Any] | None = None,
        spectrum: int | Callable[[nn.Module], Any] | None = None,
        forgetting: bool = False,
        l1: bool = False,
        every: int = 1,
        epochs: Collection[int] | None = None,
    ) -> None:
        if not isinstance(every, int) or every < 1:
            raise EvenlyError(f"every {every} never comes round; give a whole number from 1")
        if epochs is not None and not _are_numbers(epochs):
            raise EvenlyError(f"epochs {epochs} are no whole numbers; give those to record at, e.g. [1, 10]")
        if not (probes or importance is not None or spectrum or forgetting or l1):
            raise EvenlyError("there is nothing to record; ask for probes, importance, spectrum, forgetting or l1")
        importance = {"rho": importance} if isinstance(importance, int | float) else importance
        if not isinstance(importance, Mapping | None):
            raise EvenlyError(f"importance {importance!r} is no length; give rho, e.g. 0.05, or options by name")
        options = options_of(importance_weights)
        importance = None if importance is None else checked("option of importance", importance, options)
        check_options(**importance or {})
        if spectrum is not None and not callable(spectrum) and (not isinstance(spectrum, int) or spectrum < 1):
            raise EvenlyError(f"spectrum {spectrum} is no number of eigenvalues; give 1 or more, or a function")
        self.train = split_of(data)
        if isinstance(probes, bool):
            probes = ["label", *self.train.attributes] if probes else []
        if not isinstance(probes, str | Collection):
            raise EvenlyError(f"probes {probes!r} are no names; give attributes, e.g. ['label', 'background'], or True")
        probes = [name.strip() for name in probes.split(",")] if isinstance(probes, str) else list(probes)
        for reason in unprobeable(data, probes).values():
            raise EvenlyError(reason)
        self.data, self.probes, self.importance, self.spectrum, self.l1 = data, probes, importance, spectrum, l1
        self.every, self.epochs = int(every), None if epochs is None else set(epochs)
        self.forgetting = ForgettingTracker(len(self.train)) if forgetting else None
        self.history: list[dict[str, Any]] = []
        self._calls = 0

    def check(self, model: nn.Module) -> None:
        """Refuse what a network cannot be asked for, before it is trained."""
        size = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
        if isinstance(self.spectrum, int) and self.spectrum > min(size, MOST_STEPS):
            raise EvenlyError(
                f"spectrum {self.spectrum} is more eigenvalues than are looked for in {size} trainable parameters; "
                f"give {min(size, MOST_STEPS)} or fewer"
            )
        if self.spectrum or self.importance:
            check_real(model, [name for name, weight in model.named_parameters() if weight.requires_grad])

    def __call__(self, model: nn.Module, epoch: int | None = None, name: str | None = None) -> dict[str, float]:
        """Record if the epoch is due; calls count from 1 where none is given. Returns what is finite.

        With a `name`, of a checkpoint, the row has it as "name".
        """
        self._calls += 1
        epoch = self._calls if epoch is None else epoch
        with isolated():
            if self.forgetting is not None:
                self.forgetting.look(model, self.train)
            if epoch % self.every if self.epochs is None else epoch not in self.epochs:
                return {}
            row = self._measured(model)
        self.history.append({"epoch": epoch, **({} if name is None else {"name": name}), **row})
        return {key: value for key, value in row.items() if math.isfinite(value)}

    def _measured(self, model: nn.Module) -> dict[str, float]:
        row: dict[str, float] = {}
        if self.probes:
            for name, probed in probes_of(model, self.data, self.probes).items():
                row[f"probe_{name}"] = probed.error
                row |= {f"probe_{name}_low": probed.low, f"probe_{name}_high": probed.high}
        if self.importance is not None:
            row["gini_real"] = gini_if_any(importance_weights(model, self.train))
            if self.importance.get("rho"):
                row["gini_phantom"] = gini_if_any(importance_weights(model, self.train, **self.importance))
        if self.spectrum is not None:
            found = self.spectrum(model) if callable(self.spectrum) else _spectrum(model, self.train, self.spectrum)
            eigenvalues = torch.as_tensor(found.eigenvalues).tolist()
            row |= {f"lambda_{i}": value for i, value in enumerate(eigenvalues, 1)}
        if self.forgetting is not None:
            scores = self.forgetting.scores
            row["forgotten"] = float(scores[scores.isfinite()].mean())
            row["never_right"] = float(scores.isinf().double().mean())
        if self.l1:
            row["l1_norm"] = l1_norm(model)
        return row

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run goes on from: tensors and plain values."""
        tracked = {} if self.forgetting is None else {"forgetting": self.forgetting.state_dict()}
        return {"calls": self._calls, "history": deepcopy(self.history), **tracked}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if "calls" not in state or "history" not in state or ("forgetting" in state) != (self.forgetting is not None):
            raise EvenlyError("the state is not of a recorder of the same things; give its own state_dict()")
        if self.forgetting is not None:
            self.forgetting.load_state_dict(state["forgetting"])
        self._calls, self.history = int(state["calls"]), deepcopy(list(state["history"]))

    def table(self) -> str:
        """The history as text, a line per record; or that none was due."""
        if not self.history and self._calls:
            due = f"every {self.every}" if self.epochs is None else f"epochs {sorted(self.epochs)}"
            return f"nothing was recorded: {due} did not come round in {self._calls} epoch{'s' * (self._calls > 1)}"
        columns = list(self.history[0]) if self.history else ["epoch"]
        cells = [columns, *([_cell(row[column]) for column in columns] for row in self.history)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        return "\n".join("  ".join(map(str.rjust, line, widths)) for line in cells)

    def to_json(self) -> str:
        """The history as JSON, with null for what is not a number."""

        def plain(value: Any) -> Any:
            return value if isinstance(value, str) or math.isfinite(value) else None

        rows = [{key: plain(value) for key, value in row.items()} for row in self.history]
        return json.dumps({"history": rows})


def record_checkpoints(
    model: nn.Module | Callable[[], nn.Module],
    checkpoints: str | Path | Iterable[str | Path],
    data: Any,
    **what: Any,
) -> Recorder:
    """Record over a series of checkpoints, in order: the recorder, with a row for each in its `history`.

    Of the weights only tensors are read; nothing in a file is executed. A checkpoint's row has its place in the series,
    from 1, as "epoch" and its file's name without the ending as "name".

    Args:
        model: the network that the weights are of, which is copied and left as it is; or a function that builds it.
        checkpoints: files of weights (safetensors, npz, or state dicts as .pt, .pth or .bin) in the order of training;
            or their folder, in the order of their names with numbers as numbers: epoch-2 before epoch-10.
        what: what to record, as in `Recorder`.
    """
    files = _files(checkpoints)
    recorder = Recorder(data, **checked("option of record", what, settings_of(Recording)))
    if not callable(model):
        raise EvenlyError(f"model is a {type(model).__name__}; give an nn.Module, or a function that builds one")
    network = deepcopy(model) if isinstance(model, nn.Module) else model()
    check_model(network)
    recorder.check(network)
    for place, file in enumerate(files, 1):
        load_weights(network, file, replace_head=False)
        recorder(network, place, file.stem)
    return recorder


def _files(checkpoints: str | Path | Iterable[str | Path]) -> list[Path]:
    if not isinstance(checkpoints, str | Path):
        given = list(checkpoints) if isinstance(checkpoints, Iterable) else [checkpoints]
        if strange := [file for file in given if not isinstance(file, str | Path)]:
            raise EvenlyError(f"checkpoint {strange[0]!r} is no file; give files of weights, or their folder")
        files = [Path(file) for file in given]
    elif (folder := Path(checkpoints)).is_dir():
        files = sorted((file for file in folder.iterdir() if file.suffix in READERS), key=_in_numbers)
    else:
        files = [folder]
    if not files:
        raise EvenlyError(f"{checkpoints} holds no file of weights ({', '.join(READERS)}); give the files themselves")
    return files


def _are_numbers(given: Any) -> bool:
    return isinstance(given, Collection) and all(isinstance(each, int) for each in given)


def _in_numbers(file: Path) -> list[Any]:
    """A key that sorts the numbers in a name as numbers."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", file.name)]


def _spectrum(model: nn.Module, split: Any, top: int) -> Any:
    part = part_of(split, SAMPLES, 0)
    with in_eval_mode(model), torch.no_grad():
        first = logits_of(model, next(in_chunks(model, part, torch.arange(1))).x)
    return hessian_spectrum(model, "logistic" if single(first) else "cross-entropy", part, top=top)


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"
