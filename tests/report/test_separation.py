"""The panel that tells when the examples were separated: what it draws, and what set the epoch, in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import evenly
from evenly.engine.trained import Selection
from evenly.report import single_run
from evenly.report.blocks import Panels
from evenly.report.figures import Curve

RULE = (
    "the first epoch at which the training loss has fallen by 10% and its last drop is under 25% of the largest so far"
)
SHRINKING = [1.0, 0.9, 0.5, 0.25, 0.2]


def selection(losses: list[float] | None, decided: str = "rule") -> Selection:
    details = {} if losses is None else {"early_losses": losses, "decided": decided, "separating_epoch": len(losses)}
    return Selection(torch.tensor([0]), torch.tensor([2]), "by hand", details)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, tuple[list[float], list[float]]]]:
    """What the figures are asked to draw: per panel, the points of each curve by name."""
    asked: dict[str, Any] = {}

    def keep(lines: list[Curve], *, prefix: str, label: str) -> str:
        asked[prefix] = {line.name: tuple(map(list, line.seeds[0])) for line in lines}
        return f"<svg aria-label='{label}'></svg>"

    monkeypatch.setattr(single_run.figures, "curves", keep)
    return asked


def test_draws_the_loss_its_drops_the_threshold_and_the_epoch(drawn: Any) -> None:
    block = single_run.separation(selection(SHRINKING))
    assert isinstance(block, Panels)
    assert block.title == "When the examples were separated"
    loss, drop = drawn["separation1"], drawn["separation2"]
    assert loss == {"early stage": ([1, 2, 3, 4, 5], SHRINKING), "separating epoch": ([5], [0.2])}
    assert drop["early stage"] == ([2, 3, 4, 5], pytest.approx([0.1, 0.4, 0.25, 0.05]))
    assert drop["25% of the largest drop so far"] == ([2, 3, 4, 5], pytest.approx([0.025, 0.1, 0.1, 0.1]))
    assert drop["separating epoch"] == ([5], pytest.approx([0.05]))
    assert [name for name, _ in block.legend] == [
        "early stage", "separating epoch", "25% of the largest drop so far",
    ]  # fmt: skip
    assert block.caption.startswith(f"The examples were separated at epoch 5, {RULE}.")


@pytest.mark.parametrize(
    ("losses", "decided", "said"),
    [
        (SHRINKING[:3], "given", f"was given: 3. The rule would have waited for {RULE}."),
        ([*SHRINKING, 0.19], "given", f"was given: 6. The rule would have taken epoch 5, {RULE}."),
        (SHRINKING[:4], "end", f"The rule waits for {RULE}; there was none, so the end of the run was taken, epoch 4."),
    ],
)
def test_says_what_set_the_epoch(drawn: Any, losses: list[float], decided: str, said: str) -> None:
    block = single_run.separation(selection(losses, decided))
    assert block is not None
    assert said in block.caption


def test_a_single_epoch_has_no_drop_to_draw(drawn: Any) -> None:
    block = single_run.separation(selection([0.7], "given"))
    assert block is not None
    assert list(drawn) == ["separation1"]
    assert [panel.title for panel in block.panels] == ["training loss"]


def test_methods_without_an_early_stage_have_no_such_panel() -> None:
    assert single_run.separation(selection(None)) is None


@pytest.mark.parametrize("method", ["useful", "upweight"])
def test_the_page_of_a_run_has_it_before_the_examples(tmp_path: Path, method: str) -> None:
    evenly.train(data="partial-digits", method=method, epochs=2, separating_epoch=2, out=tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "The separating epoch was given: 2." in page
    assert page.index("When the examples were separated") < page.index("Examples singled out")


def test_the_page_of_a_run_without_an_early_stage_does_without(tmp_path: Path) -> None:
    evenly.train(data="partial-digits", method="random_upsample", epochs=1, out=tmp_path / "run")
    assert "When the examples" not in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
