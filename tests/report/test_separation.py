"""The panel on when the examples were separated: what it draws, and what set the epoch."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from evenly.methods.early import Early
from evenly.report import run_pages, write_report

RULE = (
    "the first epoch at which the training loss has fallen by 10% and its last drop is under 25% of the largest so far"
)
SHRINKING = [1.0, 0.9, 0.5, 0.25, 0.2]


def selection(losses, decided="rule"):
    """As a method with an early stage leaves it."""
    data = SimpleNamespace(train=SimpleNamespace(labels=torch.tensor([0, 1])), classes=2)
    trained = SimpleNamespace(history=[{"train_loss": loss} for loss in losses])
    return Early(trained, data, decided, 0.0).selection(torch.tensor([0]), 2, "by hand")


@pytest.fixture
def drawn(monkeypatch):
    """What the figures are asked to draw: per panel, the points of each curve by name."""
    panels = {}

    def keep(lines, *, prefix, label):
        panels[prefix] = {line.name: tuple(map(list, line.seeds[0])) for line in lines}
        return f"<svg aria-label='{label}'></svg>"

    monkeypatch.setattr(run_pages.figures, "curves", keep)
    return panels


def test_draws_the_loss_its_drops_the_threshold_and_the_epoch(drawn):
    block = run_pages.separation(selection(SHRINKING))
    loss, drop = drawn["separation1"], drawn["separation2"]
    assert loss == {"early stage": ([1, 2, 3, 4, 5], SHRINKING), "separating epoch": ([5], [0.2])}
    assert drop["early stage"] == ([2, 3, 4, 5], pytest.approx([0.1, 0.4, 0.25, 0.05]))
    assert drop["threshold of the rule"] == ([2, 3, 4, 5], pytest.approx([0.025, 0.1, 0.1, 0.1]))
    assert drop["separating epoch"] == ([5], pytest.approx([0.05]))
    assert [name for name, _ in block.legend] == ["early stage", "separating epoch", "threshold of the rule"]
    assert block.caption.startswith(f"The examples were separated at epoch 5, {RULE}.")


@pytest.mark.parametrize(
    ("losses", "decided", "text"),
    [
        (SHRINKING[:3], "given", f"was set to 3. The rule would have waited for {RULE}."),
        ([*SHRINKING, 0.19], "given", f"was set to 6. The rule would have taken epoch 5, {RULE}."),
        (
            SHRINKING[:4],
            "end",
            f"waits for {RULE}. There was none, so the examples were separated at the end, epoch 4.",
        ),
    ],
)
def test_says_what_set_the_epoch(drawn, losses, decided, text):
    assert text in run_pages.separation(selection(losses, decided)).caption


def test_a_single_epoch_has_no_drop_to_draw(drawn):
    block = run_pages.separation(selection([0.7], "given"))
    assert list(drawn) == ["separation1"]
    assert [panel.title for panel in block.panels] == ["training loss"]


def test_the_page_of_a_run_has_it_before_the_examples_where_there_was_an_early_stage(build, tmp_path):
    run = build.run("useful")
    assert "When the examples" not in write_report(run, tmp_path / "run.html").read_text()
    run.selection = selection(SHRINKING)
    page = write_report(run, tmp_path / "run.html").read_text()
    assert page.index("When the examples were separated") < page.index("Examples selected")
