"""Stopping early: after so many epochs without a better worst group, never before PDE's expansions or a budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from evenly.methods import METHODS

PLAN = {"epochs": 30, "select": "worst-group"}
DEFAULTS = {"pde": {"warmup_epochs": None, "every": None, "add": None, "decay": 1.0, "reset_momentum": False}}


def expected_stop(run: Any, patience: int, start: int, epochs: int) -> int:
    """Where the whole run's validation curve says to stop, one epoch after the other."""
    best, at = None, 0
    for row in run.history:
        value = (row["validation"]["worst_group"], row["validation"]["accuracy"])
        if best is None or value > best:
            best, at = value, row["epoch"]
        if row["epoch"] - max(at, start) >= patience:
            return row["epoch"]
    return epochs


@pytest.mark.parametrize(("method", "patience"), [("erm", 1), ("pde", 2), ("lff", 4), ("useful", 4)])
def test_stops_where_the_whole_curve_says(train: Any, tiny: Any, method: str, patience: int) -> None:
    whole = train(tiny(), method, **PLAN, **DEFAULTS.get(method, {}))
    short = train(tiny(), method, patience=patience, **PLAN, **DEFAULTS.get(method, {}))
    stop = expected_stop(whole, patience, 20 if method == "pde" else 0, 30)
    assert stop < 30
    assert len(short.history) == stop
    assert short.history == whole.history[:stop]
    assert short.selected_epoch <= stop
    assert short.cost == short.history[-1]["cost"] < whole.cost
    if method == "pde":
        assert stop >= 20 + patience
        assert int(short.selection.details["ever_added_at_epoch"].max()) < stop
        assert len(short.selection.details["ever_added"]) == short.history[-1]["examples"]


def test_a_budget_is_used_up_whatever_the_patience(tiny: Any, engine: Any, net: Any) -> None:
    run = METHODS["erm"](net, tiny(), engine(select="average", patience=1, budget=600))
    assert run.cost >= 600


def test_resumes_and_stops_at_the_same_epoch(train: Any, tiny: Any, tmp_path: Path) -> None:
    whole = train(tiny(), "pde", patience=3, **PLAN, **DEFAULTS["pde"])
    seen: list[int] = []

    def interrupt_late(model: Any) -> dict[str, float]:
        seen.append(1)
        if len(seen) == len(whole.history):
            raise KeyboardInterrupt
        return {}

    with pytest.raises(KeyboardInterrupt):
        train(tiny(observe=interrupt_late), "pde", patience=3, out=tmp_path, **PLAN, **DEFAULTS["pde"])
    resumed = train(tiny(), "pde", patience=3, out=tmp_path, **PLAN, **DEFAULTS["pde"])
    assert len(resumed.history) == len(whole.history)
    assert torch.equal(resumed.model[0].weight, whole.model[0].weight)
