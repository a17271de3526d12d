"""Forgetting: how often an example that was right goes wrong (Toneva, Sordoni, Tachet des Combes et al. 2019).

An example is forgotten at t + 1 if it is right at t and wrong at t + 1. The score is how often that happened; one that
was never right has the score infinity, harder than any that was. Nguyen et al. (2024, App. C.2) evaluate every example
at the end of each epoch, so that copies of an example agree.

>>> tracker = ForgettingTracker(dataset)
>>> for epoch in range(epochs):
...     ...                                                # train
...     tracker(model, epoch)                              # or tracker.update(index, right) with every batch
>>> tracker.scores, tracker.histogram()
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from evenly.diagnose.samples import split_of, tensor_of
from evenly.diagnose.tracking import Tracker
from evenly.engine.batches import Batch
from evenly.engine.evaluation import evaluated, in_chunks, logits_of
from evenly.engine.losses import predictions
from evenly.errors import EvenlyError

COUNTS = ("forgotten", "last", "ever", "seen")
"""Of every example: how often it was forgotten; whether it was right the last time, ever right, ever evaluated."""


def forgetting_scores(history: Any) -> Tensor:
    """How often each example was forgotten, (N,) float64; infinite where it was never right.

    Args:
        history: whether each example was right at each time, (T, N) booleans or 0 and 1, or a list of T such rows.
    """
    try:
        rows = torch.stack([torch.as_tensor(row) for row in history]) if isinstance(history, list | tuple) else history
        rows = torch.as_tensor(rows).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        raise EvenlyError("history cannot be read as a table; give (T, N) booleans, a row for each epoch") from None
    if rows.ndim != 2 or not rows.numel():
        raise EvenlyError(f"history has shape {tuple(rows.shape)}; give (T, N), a row for each epoch")
    right = _booleans(rows, "history")
    forgotten = (right[:-1] & ~right[1:]).sum(0).double()
    return forgotten.masked_fill(~right.any(0), torch.inf)


class ForgettingTracker(Tracker):
    """Counts forgetting as a network trains. A row has the step, ``accuracy`` and what `summary` has.

    An example is compared with the last time that it was evaluated, in this call or one before.

    Args:
        data: the training set, as in `evenly.importance_weights`; or the number of its examples, where only `update` is
            called.
    """

    def __init__(self, data: Any) -> None:
        super().__init__()
        is_count = isinstance(data, Integral) and not isinstance(data, bool)
        self.split = None if is_count else split_of(data)
        total = int(data) if self.split is None else len(self.split)
        if total < 1:
            raise EvenlyError(f"data must be a training set or the number of its examples, got {data!r}")
        self.forgotten = torch.zeros(total, dtype=torch.int64)
        self.last, self.ever, self.seen = (torch.zeros(total, dtype=torch.bool) for _ in range(3))

    def measure(self, model: nn.Module) -> dict[str, float]:
        """Evaluate every example in eval mode, in the order of storage."""
        if self.split is None:
            raise EvenlyError(f"the tracker has {len(self.last)} examples and no data; give it data, or call update()")

        def is_right(batch: Batch) -> Tensor:
            return (predictions(logits_of(model, batch.x, batch.y)) == batch.y).cpu()

        right = evaluated(model, in_chunks(model, self.split), is_right)
        self.update(torch.arange(len(right)), right)
        return {"accuracy": float(right.double().mean()), **self.summary()}

    def update(self, index: Any, right: Any) -> None:
        """Note whether the examples at `index` (B,) were `right` (B,); copies of one count in their order."""
        index = tensor_of(index, "index", "integers (B,)").cpu()
        right = tensor_of(right, "right", "True or False for each index, (B,)").cpu()
        if index.ndim != 1 or right.shape != index.shape or index.is_floating_point() or index.dtype == torch.bool:
            raise EvenlyError(
                f"indices {tuple(index.shape)} of {index.dtype} do not go with answers {tuple(right.shape)}; "
                "give integers (B,) and whether each was right (B,)"
            )
        right = _booleans(right, "right")
        if len(index) and not 0 <= int(index.min()) <= int(index.max()) < len(self.last):
            raise EvenlyError(
                f"indices run from {int(index.min())} to {int(index.max())} and there are {len(self.last)} examples; "
                "give indices into the training set"
            )
        while len(index):
            order = torch.argsort(index, stable=True)
            first = torch.ones(len(index), dtype=torch.bool)
            first[order[1:]] = index[order[1:]] != index[order[:-1]]
            self._count(index[first], right[first])
            index, right = index[~first], right[~first]

    def _count(self, index: Tensor, right: Tensor) -> None:
        self.forgotten[index] += (self.last[index] & ~right).long()
        self.last[index] = right
        self.ever[index] |= right
        self.seen[index] = True

    @property
    def scores(self) -> Tensor:
        """As `forgetting_scores`, (N,) float64; NaN where an example was never evaluated."""
        scores = self.forgotten.double().masked_fill(~self.ever, torch.inf)
        return scores.masked_fill(~self.seen, torch.nan)

    def summary(self) -> dict[str, float]:
        """The mean score of the examples that were ever right, and the share of those that never were."""
        scores = self.scores
        forgotten, never_right = scores[scores.isfinite()].mean(), scores.isinf().double().mean()
        return {"forgotten": float(forgotten), "never_right": float(never_right)}

    def histogram(self) -> dict[str, int]:
        """How many examples were forgotten 0, 1, 2, ... times, and how many "never" were right."""
        counts = torch.bincount(self.forgotten[self.ever]).tolist()
        never = int((self.seen & ~self.ever).sum())
        return {str(times): count for times, count in enumerate(counts)} | {"never": never}

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {name: getattr(self, name).clone() for name in COUNTS}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        for name in COUNTS:
            own = getattr(self, name)
            if state[name].shape != own.shape:
                raise EvenlyError(f"the state is not of a tracker of {len(own)} examples; give its own state_dict()")
            setattr(self, name, state[name].detach().cpu().to(own.dtype, copy=True))


def _booleans(values: Tensor, name: str) -> Tensor:
    right = values.bool()
    if not bool((right == values).all()):
        wrong = values[right != values][0].item()
        raise EvenlyError(f"{name} holds {wrong}; give True or False, whether each example was right")
    return right
