"""Forgetting: how often an example that was right goes wrong (Toneva, Sordoni, Tachet des Combes et al. 2019).

An example is forgotten at t + 1 if it is right at t and wrong at t + 1. The score is how often that happened; one that
was never right has the score infinity, harder than any that was. Nguyen et al. (2024, App. C.2) look at every example
at the end of each epoch, so that copies of an example agree: `ForgettingTracker.look`.

>>> tracker = ForgettingTracker(len(dataset))
>>> for epoch in range(epochs):
...     ...                                                # train
...     tracker.look(model, dataset)                       # or tracker(index, right) with every batch
>>> tracker.scores, tracker.histogram()
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from evenly.diagnose.samples import split_of, tensor_of
from evenly.engine.batches import Batch
from evenly.engine.evaluation import evaluated, in_chunks, logits_of
from evenly.engine.losses import predictions
from evenly.errors import EvenlyError
from evenly.settings import checks_options


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


class ForgettingTracker:
    """Counts forgetting as a network trains, in any order and over any part of the examples; one serves one run.

    An example is compared with the last time that it was looked at, in this call or one before.

    Args:
        total: how many examples there are; indices are below it.
    """

    @checks_options
    def __init__(self, total: int) -> None:
        if total < 1:
            raise EvenlyError(f"total {total} is no number of examples; give the length of the training set")
        self.forgotten = torch.zeros(total, dtype=torch.int64)
        self.last = torch.zeros(total, dtype=torch.bool)
        self.ever = torch.zeros(total, dtype=torch.bool)
        self.seen = torch.zeros(total, dtype=torch.bool)

    def __call__(self, index: Any, right: Any) -> None:
        """Note whether the examples at `index` (B,) were `right` (B,); copies of one count in the order they stand."""
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
                "give indices into the training set, and its length as total"
            )
        while len(index):
            order = torch.argsort(index, stable=True)
            first = torch.ones(len(index), dtype=torch.bool)
            first[order[1:]] = index[order[1:]] != index[order[:-1]]
            self._note(index[first], right[first])
            index, right = index[~first], right[~first]

    def _note(self, index: Tensor, right: Tensor) -> None:
        self.forgotten[index] += (self.last[index] & ~right).long()
        self.last[index] = right
        self.ever[index] |= right
        self.seen[index] = True

    def look(self, model: nn.Module, data: Any) -> float:
        """Note every example of the data by the model's answers in eval mode, in the order of storage; the accuracy.

        For the end of an epoch, or a series of checkpoints; `data` as in `evenly.importance_weights`.
        """
        split = split_of(data)
        if len(split) != len(self.last):
            raise EvenlyError(
                f"the data has {len(split)} examples and the tracker is for {len(self.last)}; give the training set"
            )

        def is_right(batch: Batch) -> Tensor:
            return (predictions(logits_of(model, batch.x, batch.y)) == batch.y).cpu()

        right = evaluated(model, in_chunks(model, split), is_right)
        self(torch.arange(len(split)), right)
        return float(right.double().mean())

    @property
    def scores(self) -> Tensor:
        """As `forgetting_scores`, (N,) float64; NaN where an example was never looked at."""
        scores = self.forgotten.double().masked_fill(~self.ever, torch.inf)
        return scores.masked_fill(~self.seen, torch.nan)

    def histogram(self) -> dict[str, int]:
        """How many examples were forgotten 0, 1, 2, ... times, and how many "never" were right."""
        counts = torch.bincount(self.forgotten[self.ever]).tolist()
        return {str(times): count for times, count in enumerate(counts)} | {
            "never": int((self.seen & ~self.ever).sum())
        }

    def state_dict(self) -> dict[str, Tensor]:
        """What a resumed run goes on from."""
        return {name: getattr(self, name).clone() for name in ("forgotten", "last", "ever", "seen")}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        for name, mine in self.state_dict().items():
            if name not in state or state[name].shape != mine.shape:
                raise EvenlyError(f"the state is not of a tracker of {len(mine)} examples; give its own state_dict()")
            setattr(self, name, state[name].detach().cpu().to(mine.dtype, copy=True))


def _booleans(values: Tensor, name: str) -> Tensor:
    right = values.bool()
    if not bool((right == values).all()):
        wrong = values[right != values][0].item()
        raise EvenlyError(f"{name} holds {wrong}; give True or False, whether each example was right")
    return right
