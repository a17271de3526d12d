"""PDE: progressive data expansion (Deng, Yang, Mirzasoleiman, Gu 2023, Algorithm 1).

1. Warm-up: train on a group-balanced subset, every group cut down to the size of the smallest.
2. Expansion: every few epochs add a few of the remaining examples, drawn as evenly over the groups as what is left
   allows, and train on. The momentum gathered in the warm-up is kept.
3. Return the weights with the best worst-group accuracy on validation: the rule "worst-group" holds where no other is
   given; the paper's own is "worst-group-argmax". With a `patience`, training stops once the expansions have gone so
   many epochs without a better one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer

from evenly.data import Data, ProgressiveExpansion
from evenly.engine import Fit, Selection, Trained
from evenly.errors import SettingError
from evenly.methods.registry import Factory, method
from evenly.settings import Constraint, Settings, above, at_least, at_most

AT_LEAST_ONE = Constraint("at least 1, or all", lambda add: add == "all" or add >= 1)


Count = Annotated[int | None, at_least(1)]


def check(data: Data, settings: Settings, warmup_epochs: int | None, add: Any, **_: object) -> None:
    """Refuse a warm-up longer than the run, and expansions that add nothing."""
    check_expansions(settings.epochs, warmup_epochs, add)


def check_expansions(epochs: int, warmup_epochs: int | None, add: Any) -> None:
    """Refuse a warm-up longer than a run of so many epochs, and expansions that add nothing."""
    if warmup_epochs is not None and warmup_epochs > epochs:
        raise SettingError("warmup_epochs", warmup_epochs, f"at most {epochs}, the number of epochs")
    if add is not None and not isinstance(add, int | str) and (min(add, default=0) < 0 or not any(add)):
        raise SettingError("add", list(add), "numbers from 0, one of them above 0")


@method(needs_groups=True, check=check, prefers="worst-group")
def pde(
    model: Factory,
    data: Data,
    fit: Fit,
    *,
    warmup_epochs: Count = None,
    every: Count = None,
    add: Annotated[int | Sequence[int] | Literal["all"] | None, AT_LEAST_ONE] = None,
    cap: Count = None,
    draw: Literal["even", "random"] = "even",
    decay: Annotated[float, above(0), at_most(1)] = 1.0,
    reset_momentum: bool = False,
) -> Trained:
    """Train on a group-balanced subset first, then add the rest a little at a time.

    Where not given (the defaults are evenly's own; the paper sets them per data set), the warm-up takes two thirds of
    the epochs and the rest holds ten expansions, each a twentieth of the balanced set. `decay` multiplies the learning
    rate at the end of the warm-up; none was as good on validation (docs/groups.md). `add="all"` expands at once. `cap`
    is for many groups, some of them tiny, as in CivilComments: each gives at most so many to the balanced set,
    smaller ones all they have.
    """
    sampler = expansions(
        data.train.groups, fit.epochs, warmup_epochs=warmup_epochs, every=every, add=add, cap=cap, draw=draw,
        seed=fit.seed,
    )  # fmt: skip
    warmup_epochs = sampler.warmup_epochs

    def schedule(progress: float) -> float:
        return fit.schedule(progress) * (decay if progress >= warmup_epochs / fit.epochs else 1.0)

    def before_epoch(epoch: int, optimizer: Optimizer) -> None:
        if reset_momentum and epoch == warmup_epochs:
            forget_momentum(optimizer)

    trained = fit(
        model(), data, sampler=sampler, schedule=schedule, before_epoch=before_epoch, patient_from=warmup_epochs
    )
    trained.selection = examples_used(sampler, len(trained.history), trained.selected_epoch)
    return trained


def expansions(
    groups: Any,
    epochs: int,
    *,
    warmup_epochs: int | None = None,
    every: int | None = None,
    add: int | Sequence[int] | Literal["all"] | None = None,
    cap: int | None = None,
    draw: Literal["even", "random"] = "even",
    seed: int = 0,
) -> ProgressiveExpansion:
    """The training sets of a run of so many epochs, with `pde`'s defaults for what is None.

    Args:
        groups: (N,) the group of each training example.
    """
    warmup_epochs = max(1, 2 * epochs // 3) if warmup_epochs is None else warmup_epochs
    every = max(1, (epochs - warmup_epochs) // 10) if every is None else every
    if add is None:
        balanced = ProgressiveExpansion(groups, warmup_epochs, cap=cap)
        add = max(1, balanced.size(0) // 20)
    return ProgressiveExpansion(groups, warmup_epochs, every, add, cap, draw, seed)


def forget_momentum(optimizer: Optimizer) -> None:
    """Drop what an optimizer has gathered in its steps so far."""
    if type(getattr(optimizer, "base", optimizer)) not in (SGD, Adam, AdamW):
        optimizer.state.clear()
        return
    for state in optimizer.state.values():  # these begin at zeros, and a recorded step looks for them in place
        for value in state.values():
            if isinstance(value, torch.Tensor):
                value.zero_()


def examples_used(sampler: ProgressiveExpansion, epochs: int, selected_epoch: int) -> Selection:
    """The examples that were in the set up to the epoch whose weights are kept, of a run of so many epochs."""
    entered = sampler.entry_epochs(epochs)
    ever = (entered >= 0).nonzero().flatten()
    used = ever[entered[ever] < selected_epoch]
    why = "in the group-balanced warm-up set or added by an expansion up to the kept epoch"
    details = {"entered_at_epoch": entered[used], "ever_added": ever, "ever_added_at_epoch": entered[ever]}
    return Selection(used, torch.ones_like(used), why, details, chosen_by_the_end=len(ever))
