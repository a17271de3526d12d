"""Trackers: what measures a network as it trains, in any training loop or in evenly's engine. Coherence along a run.

>>> tracker = CoherenceTracker(nn.MSELoss(), (x, y), every=10)
>>> for step, batch in enumerate(batches):
...     ...                                     # any optimizer
...     tracker(model, step)
>>> tracker.history[-1]["sigma"], r_squared(tracker.history)

>>> data.observe = CoherenceTracker("cross-entropy", data.train)     # evenly.train then writes it to the metrics
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from typing import Annotated, Any

import torch
from torch import nn

from evenly.diagnose.losses import Loss, mean_loss
from evenly.diagnose.model_coherence import coherence
from evenly.diagnose.results import Result, plain
from evenly.diagnose.samples import samples_of
from evenly.errors import EvenlyError
from evenly.randomness import isolated
from evenly.settings import at_least, checks_options
from evenly.theory.arguments import NotNegative

COLUMNS = ("coherence", "sample_sharpness", "sharpness", "sigma", "loss")
"""lambda_max(S), max_i lambda_max(H_i), lambda_max(H), the measure sigma (the first over the second), the mean loss."""


class Tracker(Result):
    """Called as ``tracker(model, step)``; `history` has a row for every step that was due. One tracker serves one run.

    The network and the global random state are not changed.

    Args:
        every: measure at steps that this divides.
        steps: measure at these steps instead.
    """

    unit = "step"
    """What a row calls its step."""

    def __init__(self, every: int = 1, steps: Collection[int] | None = None) -> None:
        self.every, self.steps = every, None if steps is None else set(steps)
        self.history: list[dict[str, Any]] = []
        self._calls = 0

    def __call__(self, model: nn.Module, step: int | None = None, name: str | None = None) -> dict[str, float]:
        """Measure if the step is due. Calls count from 1 where no step is given. Returns the finite values.

        A `name`, as of a checkpoint, goes into the row.
        """
        self._calls += 1
        step = self._calls if step is None else step
        with isolated():
            self.observe(model)
            if step % self.every if self.steps is None else step not in self.steps:
                return {}
            row = self.measure(model)
        self.history.append({self.unit: step, **({} if name is None else {"name": name}), **row})
        return {key: value for key, value in row.items() if math.isfinite(value)}

    def observe(self, model: nn.Module) -> None:
        """What happens at every call, whether or not the step is due."""

    def measure(self, model: nn.Module) -> dict[str, float]:
        """The values of one row."""
        raise NotImplementedError

    def table(self) -> str:
        """The history as text, a line per row; or that no step was due."""
        if not self.history and self._calls:
            due = f"every {self.every}" if self.steps is None else f"{self.unit}s {sorted(self.steps)}"
            calls = f"{self._calls} {self.unit}{'s' * (self._calls > 1)}"
            return f"nothing was recorded: {due} did not occur in {calls}"
        columns = list(self.history[0]) if self.history else [self.unit]
        cells = [columns, *([_cell(row[column]) for column in columns] for row in self.history)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        return "\n".join("  ".join(map(str.rjust, line, widths)) for line in cells)

    def to_dict(self) -> dict[str, Any]:
        """The history as plain values, with None for what is not finite."""
        return {"every": self.every, "history": plain(self.history)}

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run goes on from: tensors and plain values."""
        return {"calls": self._calls, "history": deepcopy(self.history)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if strangers := state.keys() ^ self.state_dict().keys():
            raise EvenlyError(
                f"{min(strangers)!r} is in the state or in the {type(self).__name__}, not in both; "
                "give the state_dict() of one that measures the same"
            )
        self._calls, self.history = int(state["calls"]), deepcopy(list(state["history"]))


class CoherenceTracker(Tracker):
    """The coherence of a network on given samples as it trains. A row has the step and the `COLUMNS`.

    Args:
        loss, data: as in `evenly.coherence`; the data is read once. It need not be the training set, and a few hundred
            samples are enough: a row costs a gradient for each, and a matrix of n x n for n of them.
        every: measure at steps that this divides.
        ascent: c = rho / alpha for the quantities under SAM; 0 for the plain ones.
        options: further options of `evenly.coherence`, e.g. ``sketch``.
    """

    @checks_options
    def __init__(
        self,
        loss: str | Loss,
        data: Any,
        *,
        every: Annotated[int, at_least(1)] = 1,
        ascent: NotNegative = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(int(every))
        self.loss, self.options = loss, {"ascent": ascent, **options}
        self.x, self.y = samples_of(data)

    def measure(self, model: nn.Module) -> dict[str, float]:
        result = coherence(model, self.loss, (self.x, self.y), **self.options)
        values = (
            result.largest_eigenvalue,
            result.largest_sample_eigenvalue,
            result.largest_hessian_eigenvalue,
            result.measure,
            mean_loss(model, self.loss, self.x, self.y),
        )
        return dict(zip(COLUMNS, values, strict=True))

    @property
    def r_squared(self) -> float:
        """`r_squared` of the history."""
        return r_squared(self.history)


def r_squared(history: Sequence[Mapping[str, Any]], x: str = "sample_sharpness", y: str = "coherence") -> float:
    """The squared correlation of two columns, max_i lambda_max(H_i) and lambda_max(S) where not named (Fig. 4).

    Rows without both columns are left out, so the history of a run of evenly's engine works too.
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


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"
