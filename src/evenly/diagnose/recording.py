"""What a network has learned, along a run: in evenly's engine, in any training loop, over checkpoints.

>>> run = evenly.train(data, model=model, record={"probes": ["background"], "forgetting": True, "every": 5})
>>> run.history[4]["probe_background"], run.record.forgetting_scores

>>> recorder = Recorder(data, probes=["label", "background"], importance=0.05, every=5)
>>> for epoch in range(1, epochs + 1):
...     ...                                                # train
...     recorder(model, epoch)
>>> recorder.history[-1]["probe_background"], recorder.history[-1]["gini_phantom"]

>>> series = record_checkpoints(model, "checkpoints/", data, probes=["background"], forgetting=True)
>>> print(series.table())
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from evenly.analyses import MOST_STEPS
from evenly.data.contract import Split
from evenly.diagnose.forgetting import ForgettingTracker
from evenly.diagnose.importance import check_params, gini_if_any, importance_weights
from evenly.diagnose.norms import l1_norm
from evenly.diagnose.probing import probes, unprobeable
from evenly.diagnose.samples import check_real, part_of, split_of
from evenly.diagnose.spectrum import HessianSpectrum, hessian_spectrum
from evenly.diagnose.tracking import Tracker
from evenly.engine.evaluation import check_model, in_chunks, in_eval_mode, logits_of
from evenly.engine.losses import single
from evenly.errors import EvenlyError, SettingError
from evenly.models.weights import READERS, load_weights
from evenly.settings import Recording, checked, options_of, settings_of

SAMPLES = 1000
"""Training examples that a spectrum is computed over at most."""


class Recorder(Tracker):
    """Diagnoses at chosen epochs. Each row of `history` has the epoch and, where chosen:

    - ``probe_NAME``, ``probe_NAME_low``, ``probe_NAME_high``: the probing error and its interval (`evenly.probes`)
    - ``gini_real``, ``gini_phantom``: of the importance weights (`evenly.importance_weights`)
    - ``lambda_1``, ``lambda_2``, ...: eigenvalues of the Hessian, descending
    - ``forgotten``, ``never_right``: the mean forgetting score of the examples that were ever right, and the share of
      those that never were; the scores are in `forgetting`
    - ``l1_norm``

    Args:
        data: as in `evenly.probes`; the rest is measured on the training split of a Data.
        recording: what to measure, and when; or its fields by name, as `options`:

            - probes: attributes, a list or their names joined by commas; True for the label and every attribute.
            - importance: rho of the phantom weights, or options of `evenly.importance_weights` ("rho", "kind", ...).
            - spectrum: how many eigenvalues of the loss' Hessian, over `SAMPLES` examples at most, as many of each
              class as far as it has them; or a function of the network that gives its spectrum, with
              ``.eigenvalues``, e.g. ``lambda model: evenly.hessian_spectrum(model, "cross-entropy", some, top=5)``.
            - forgetting: evaluate every example at every call, also where no row is due.
            - l1: the l1 norm of the weights.
            - every: record at epochs that this divides.
            - epochs: record at these epochs instead.
    """

    unit = "epoch"

    def __init__(self, data: Any, recording: Recording | None = None, **options: Any) -> None:
        recording = recording or Recording(**checked("option of record", options, settings_of(Recording)))
        super().__init__(recording.every, recording.epochs)
        if isinstance(recording.spectrum, str):  # of a config file, where a function is its name
            raise SettingError("spectrum", recording.spectrum, "a whole number or a function")
        self.data, self.train = data, split_of(data)
        self.spectrum, self.l1 = recording.spectrum, recording.l1
        self.importance = _importance_options(recording.importance)
        self.probes = _probed_names(recording.probes, self.train)
        for reason in unprobeable(data, self.probes).values():
            raise EvenlyError(reason)
        self.forgetting = ForgettingTracker(self.train) if recording.forgetting else None

    def check(self, model: nn.Module) -> None:
        """Refuse what cannot be measured of a network, before it is trained."""
        size = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
        if isinstance(self.spectrum, int) and self.spectrum > min(size, MOST_STEPS):
            raise EvenlyError(
                f"spectrum {self.spectrum} is more eigenvalues than are searched for in {size} trainable parameters; "
                f"give {min(size, MOST_STEPS)} or fewer"
            )
        if self.spectrum or self.importance:
            check_real(model, [name for name, weight in model.named_parameters() if weight.requires_grad])

    def observe(self, model: nn.Module) -> None:
        if self.forgetting is not None:
            self.forgetting(model)

    def measure(self, model: nn.Module) -> dict[str, float]:
        row: dict[str, float] = {}
        if self.probes:
            for name, probe in probes(model, self.data, self.probes).items():
                row |= {f"probe_{name}": probe.error, f"probe_{name}_low": probe.low, f"probe_{name}_high": probe.high}
        if self.importance is not None:
            row["gini_real"] = gini_if_any(importance_weights(model, self.train))
            if self.importance.get("rho"):
                row["gini_phantom"] = gini_if_any(importance_weights(model, self.train, **self.importance))
        if self.spectrum is not None:
            spectrum = self.spectrum(model) if callable(self.spectrum) else _spectrum(model, self.train, self.spectrum)
            eigenvalues = torch.as_tensor(spectrum.eigenvalues).tolist()
            row |= {f"lambda_{i}": value for i, value in enumerate(eigenvalues, 1)}
        if self.forgetting is not None:
            row |= self.forgetting.summary()
        if self.l1:
            row["l1_norm"] = l1_norm(model)
        return row

    def state_dict(self) -> dict[str, Any]:
        tracked = {} if self.forgetting is None else {"forgetting": self.forgetting.state_dict()}
        return super().state_dict() | tracked

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        if self.forgetting is not None:
            self.forgetting.load_state_dict(state["forgetting"])


def record_checkpoints(
    model: nn.Module | Callable[[], nn.Module],
    checkpoints: str | Path | Iterable[str | Path],
    data: Any,
    **options: Any,
) -> Recorder:
    """Record over a series of checkpoints, in order: the recorder, with a row for each in its `history`.

    Of the weights only tensors are read; nothing in a file is executed. A checkpoint's row has its place in the series,
    from 1, as "epoch" and its file's name without the ending as "name".

    Args:
        model: the network that the weights are of, which is copied and left as it is; or a function that builds it.
        checkpoints: files of weights (safetensors, npz, or state dicts as .pt, .pth or .bin) in the order of training;
            or their folder, in the order of their names with numbers as numbers: epoch-2 before epoch-10.
        options: what to record, as in `Recorder`.
    """
    files = _files(checkpoints)
    recorder = Recorder(data, **options)
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
        several = list(checkpoints) if isinstance(checkpoints, Iterable) else [checkpoints]
        if strangers := [file for file in several if not isinstance(file, str | Path)]:
            raise EvenlyError(f"checkpoint {strangers[0]!r} is no file; give files of weights, or their folder")
        files = [Path(file) for file in several]
    elif (folder := Path(checkpoints)).is_dir():
        files = sorted((file for file in folder.iterdir() if file.suffix in READERS), key=_in_numbers)
    else:
        files = [folder]
    if not files:
        raise EvenlyError(f"{checkpoints} holds no file of weights ({', '.join(READERS)}); give the files themselves")
    return files


def _in_numbers(file: Path) -> list[Any]:
    """A key that sorts the numbers in a name as numbers."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", file.name)]


def _importance_options(importance: float | Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if importance is None:
        return None
    options = importance if isinstance(importance, Mapping) else {"rho": importance}
    values = checked("option of importance", options, options_of(importance_weights))
    check_params(values.get("kind", "sam"), values.get("params"))
    return values


def _probed_names(attributes: str | Sequence[str] | bool, split: Split) -> list[str]:
    if isinstance(attributes, bool):
        return ["label", *split.attributes] if attributes else []
    return [name.strip() for name in attributes.split(",")] if isinstance(attributes, str) else list(attributes)


def _spectrum(model: nn.Module, split: Split, top: int) -> HessianSpectrum:
    part = part_of(split, SAMPLES, 0, stratified=True)
    with in_eval_mode(model), torch.no_grad():
        first = logits_of(model, next(in_chunks(model, part, torch.arange(1))).x)
    return hessian_spectrum(model, "logistic" if single(first) else "cross-entropy", part, top=top)
