"""Coherence along a run: a callback for any training loop, or what evenly's engine observes after every epoch.

>>> tracker = CoherenceTracker(nn.MSELoss(), (x, y), every=10)
>>> for step, batch in enumerate(batches):
...     ...                                     # any optimizer
...     tracker(model, step)
>>> tracker.history[-1]["sigma"], r_squared(tracker.history)

>>> data.observe = CoherenceTracker("cross-entropy", data.train)     # evenly.train then writes it to the metrics
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from evenly.diagnose.model_coherence import coherence
from evenly.diagnose.losses import mean_loss
from evenly.diagnose.samples import samples_of
from evenly.errors import EvenlyError
from evenly.randomness import isolated
from evenly.settings import checks_options

COLUMNS = ("coherence", "sample_sharpness", "sharpness", "sigma", "loss")
"""lambda_max(S), max_i lambda_max(H_i), lambda_max(H), the measure sigma (the first over the second), the mean loss."""


class CoherenceTracker:
    """Records the coherence of a network on given samples as it trains; the network is left as it was found.

    Each row of `history` has the step and the `COLUMNS`. One tracker serves one run.

    Args:
        loss, data: as in `evenly.coherence`; the data is read once. It need not be what is trained on, and a few
            hundred samples do: a record costs a gradient for each, and a matrix of n x n for n of them.
        every: record only at steps that this divides.
        ascent: c = rho / alpha for the quantities under SAM; 0 for the plain ones.
        options: further options of `evenly.coherence`, e.g. ``sketch``.
    """

    @checks_options
    def __init__(self, loss: Any, data: Any, *, every: int = 1, ascent: float = 0.0, **options: Any) -> None:
        if every < 1:
            raise EvenlyError(f"every {every} never comes round; give a whole number from 1")
        self.loss, self.every, self.ascent, self.options = loss, int(every), ascent, options
        self.x, self.y = samples_of(data)
        self.history: list[dict[str, float]] = []
        self._calls = 0

    def __call__(self, model: nn.Module, step: int | None = None) -> dict[str, float]:
        """Record if the step is due; calls count from 1 where none is given. Returns what is finite."""
        self._calls += 1
        step = self._calls if step is None else step
        if step % self.every:
            return {}
        row = self._measured(model)
        self.history.append({"step": step, **row})
        return {name: value for name, value in row.items() if math.isfinite(value)}

    def _measured(self, model: nn.Module) -> dict[str, float]:
        with isolated():
            found = coherence(model, self.loss, (self.x, self.y), ascent=self.ascent, **self.options)
            loss = mean_loss(model, self.loss, self.x, self.y)
        values = (
            found.largest_eigenvalue,
            found.largest_sample_eigenvalue,
            found.largest_hessian_eigenvalue,
            found.measure,
            loss,
        )
        return dict(zip(COLUMNS, values, strict=True))

    @property
    def r_squared(self) -> float:
        """`r_squared` of the history."""
        return r_squared(self.history)

    def table(self) -> str:
        """The history as text, a line per record."""
        lines = [" ".join(["    step", *(f"{name:>16}" for name in COLUMNS)])]
        for row in self.history:
            lines.append(" ".join([f"{row['step']:8.0f}", *(f"{row[name]:16.6g}" for name in COLUMNS)]))
        return "\n".join(lines)

    def to_json(self) -> str:
        """The history as JSON, with null for what is not a number."""
        rows = [{k: v if math.isfinite(v) else None for k, v in row.items()} for row in self.history]
        return json.dumps({"ascent": self.ascent, "every": self.every, "history": rows})


def r_squared(history: Sequence[Mapping[str, Any]], x: str = "sample_sharpness", y: str = "coherence") -> float:
    """The squared correlation of two columns, max_i lambda_max(H_i) and lambda_max(S) where not named (Fig. 4).

    Rows without both columns are passed over, so that the history of a run of evenly's engine will do.
    """
    rows = [(float(row[x]), float(row[y])) for row in history if x in row and y in row]
    pairs = torch.tensor(rows, dtype=torch.float64).reshape(-1, 2)
    if len(pairs) < 3:
        raise EvenlyError(f"{len(pairs)} records of {x} and {y} always lie on a line; track at least 3 steps")
    if not bool(pairs.isfinite().all()):
        raise EvenlyError(
            f"{x} or {y} is not finite in record {int((~pairs.isfinite()).any(1).nonzero()[0])}; leave it out"
        )
    if bool((pairs == pairs[0]).all(0).any()):
        raise EvenlyError(f"{x} or {y} is the same in all {len(pairs)} records, and nothing can vary with it; train on")
    a, b = (pairs - pairs.mean(0)).T
    return float((a @ b) ** 2 / ((a @ a) * (b @ b)))
