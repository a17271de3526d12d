"""What a network has learned, along a run: a callback for any training loop, for evenly's engine, for checkpoints.

>>> recorder = Recorder(data, probes=["label", "background"], importance=0.05, forgetting=True, every=5)
>>> for epoch in range(1, epochs + 1):
...     ...                                                # train
...     recorder(model, epoch)
>>> recorder.history[-1]["probe_background"], recorder.history[-1]["gini_phantom"]

>>> data.observe = Recorder(data, probes=["edge"])         # evenly.train then writes it to the metrics

>>> for epoch, file in checkpoints:                        # or after the run
...     model.load_state_dict(torch.load(file, weights_only=True))
...     recorder(model, epoch)
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from evenly.diagnose.forgetting import ForgettingTracker
from evenly.diagnose.importance import gini, importance_weights
from evenly.diagnose.norms import l1_norm
from evenly.diagnose.passes import split_of
from evenly.diagnose.probes import probes as probes_of
from evenly.errors import EvenlyError, unknown
from evenly.options import options_of
from evenly.randomness import isolated


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
        data: as in `evenly.probes`; importance and forgetting look at the training split of a Data.
        probes: attributes to probe.
        importance: rho of the phantom weights, or options of `evenly.importance_weights` ("rho", "kind", ...).
        spectrum: a function of the network that gives its spectrum, with ``.eigenvalues``; e.g.
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
        probes: Sequence[str] = (),
        importance: float | Mapping[str, Any] | None = None,
        spectrum: Callable[[nn.Module], Any] | None = None,
        forgetting: bool = False,
        l1: bool = False,
        every: int = 1,
        epochs: Collection[int] | None = None,
    ) -> None:
        if every != int(every) or every < 1:
            raise EvenlyError(f"every {every} never comes round; give a whole number from 1")
        if not (probes or importance is not None or spectrum or forgetting or l1):
            raise EvenlyError("there is nothing to record; ask for probes, importance, spectrum, forgetting or l1")
        if isinstance(probes, str):
            probes = [probes]
        importance = {"rho": importance} if isinstance(importance, int | float) else importance
        for name in importance or ():
            if name not in options_of(importance_weights):
                raise unknown("option of importance", name, options_of(importance_weights))
        self.data, self.probes, self.importance, self.spectrum, self.l1 = data, list(probes), importance, spectrum, l1
        self.every, self.epochs = int(every), None if epochs is None else set(epochs)
        self.train = split_of(data)
        self.forgetting = ForgettingTracker(len(self.train)) if forgetting else None
        self.history: list[dict[str, float]] = []
        self._calls = 0

    def __call__(self, model: nn.Module, epoch: int | None = None) -> dict[str, float]:
        """Record if the epoch is due; calls count from 1 where none is given. Returns what is finite."""
        self._calls += 1
        epoch = self._calls if epoch is None else epoch
        with isolated():
            if self.forgetting is not None:
                self.forgetting.look(model, self.train)
            if epoch % self.every if self.epochs is None else epoch not in self.epochs:
                return {}
            row = self._measured(model)
        self.history.append({"epoch": epoch, **row})
        return {name: value for name, value in row.items() if math.isfinite(value)}

    def _measured(self, model: nn.Module) -> dict[str, float]:
        row: dict[str, float] = {}
        if self.probes:
            for name, found in probes_of(model, self.data, self.probes).items():
                row |= {f"probe_{name}": found.error, f"probe_{name}_low": found.low, f"probe_{name}_high": found.high}
        if self.importance is not None:
            row["gini_real"] = _gini(importance_weights(model, self.train))
            if self.importance.get("rho"):
                row["gini_phantom"] = _gini(importance_weights(model, self.train, **self.importance))
        if self.spectrum is not None:
            eigenvalues = torch.as_tensor(self.spectrum(model).eigenvalues).tolist()
            row |= {f"lambda_{i}": value for i, value in enumerate(eigenvalues, 1)}
        if self.forgetting is not None:
            scores = self.forgetting.scores
            row["forgotten"] = float(scores[scores.isfinite()].mean())
            row["never_right"] = float(scores.isinf().double().mean())
        if self.l1:
            row["l1_norm"] = l1_norm(model)
        return row

    def table(self) -> str:
        """The history as text, a line per record."""
        names = list(self.history[0])[1:] if self.history else []
        lines = [" ".join(["   epoch", *(f"{name:>16}" for name in names)])]
        for row in self.history:
            lines.append(
                " ".join([f"{row['epoch']:8.0f}", *(f"{row[name]:{max(16, len(name))}.6g}" for name in names)])
            )
        return "\n".join(lines)

    def to_json(self) -> str:
        """The history as JSON, with null for what is not a number."""
        rows = [{k: v if math.isfinite(v) else None for k, v in row.items()} for row in self.history]
        return json.dumps({"history": rows})


def _gini(weights: torch.Tensor) -> float:
    """NaN where no example has any weight, which a run that has fitted everything comes to."""
    return gini(weights) if bool(weights.any()) else math.nan
