"""Where methods meet unusual input: double precision, layers that work in place, outputs without spread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import evenly
from evenly import EvenlyError, hard_examples


def test_group_dro_resumes_exactly_in_double_precision(tiny: Any, net: Any, tmp_path: Path) -> None:
    def once(out: str, observe: Any = None) -> Any:
        data = tiny(dtype=torch.float64, held_out=False, observe=observe)
        return evenly.train(
            data,
            model=lambda: net().double(),
            method="group_dro",
            epochs=4,
            batch_size=16,
            step_size=0.3,
            out=tmp_path / out,
        )

    seen: list[int] = []

    def interrupt_in_the_third(model: nn.Module) -> dict[str, float]:
        seen.append(1)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return {}

    whole = once("whole").model.state_dict()
    with pytest.raises(KeyboardInterrupt):
        once("broken", interrupt_in_the_third)
    broken = once("broken").model.state_dict()
    assert all(torch.equal(whole[key], broken[key]) for key in whole)


def test_an_option_that_is_refused_leaves_no_folder_behind(tiny: Any, tmp_path: Path) -> None:
    with pytest.raises(EvenlyError, match="warmup_epochs must be at most 4"):
        evenly.train(tiny(), model="mlp", method="pde", epochs=4, warmup_epochs=9, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("batch_size", [None, 16])
def test_a_network_that_works_in_place_does_not_change_the_data(tiny: Any, batch_size: int | None) -> None:
    data = tiny()
    kept = data.fingerprint()
    evenly.train(
        data, model=lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(5, 2)), epochs=2, batch_size=batch_size
    )
    assert data.fingerprint() == kept


def test_the_early_stage_is_not_evaluated(tiny: Any) -> None:
    run = evenly.train(tiny(), model="mlp", method="useful", epochs=4, separating_epoch=2)
    assert run.evaluation_cost == pytest.approx(4 * 24 / 3)


@pytest.mark.parametrize(
    ("logits", "labels", "features"),
    [
        (torch.zeros(4, 2), [-1, -1, 1, 1], None),
        (torch.zeros(4, 2), [0, 0, 2, 2], None),
        (torch.arange(6.0), [0, 0, 1, 1, 2, 2], None),
        (torch.zeros(0, 2), [], None),
        (torch.arange(4.0), [0, 0, 1, 1], np.zeros((3, 2))),
        (torch.arange(4.0), [0, 0, 1, 1], np.full((4, 2), np.nan)),
    ],
)
def test_hard_examples_refuses_in_a_line(logits: Any, labels: Any, features: Any) -> None:
    with pytest.raises(EvenlyError):
        hard_examples(logits, labels, features=features)


@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_a_class_that_is_learned_to_the_last_digit_has_no_hard_examples(scale: float) -> None:
    z = scale * torch.linspace(40, 60, 20, dtype=torch.float64)
    labels = torch.arange(20) % 2
    logits = torch.stack([torch.zeros(20), torch.where(labels == 1, z, -z)], 1)
    assert hard_examples(logits, labels).tolist() == []


def test_the_model_of_a_run_is_ready_to_be_used(tiny: Any, net: Any) -> None:
    assert not evenly.train(tiny(), model=net, epochs=1).model.training
