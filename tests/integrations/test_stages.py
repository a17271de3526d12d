"""The stages of USEFUL and PDE without a host: `evenly.train`'s orders, rules and defaults."""

from __future__ import annotations

import pytest
import torch

import evenly
from evenly.data.samplers import Everything
from evenly.errors import EvenlyError
from evenly.integrations.stages import PDESampler, UsefulSampler, validation_row
from evenly.methods.early import drop_has_shrunk

LOGITS = torch.tensor([[3.0, 0.0], [0.0, 3.0], [2.9, 0.0], [-1.0, 2.0], [1.0, 0.5], [0.1, 3.0]])
LABELS = torch.tensor([0, 1, 0, 0, 1, 1])
FALLING = [1.0, 0.5, 0.4, 0.39]


def after(losses, **options):
    """A sampler after early epochs with these training losses, and what it said after each."""
    sampler = UsefulSampler(6, **{"epochs": 4, "seed": 7} | options)
    over = []
    for loss in losses:
        sampler.observe(torch.tensor(loss + 0.1, dtype=torch.float64), 4)
        sampler.observe(loss - 0.2, 2)
        over.append(sampler.end_epoch())
    return sampler, over


@pytest.mark.parametrize(
    ("options", "losses", "decided"),
    [
        ({}, FALLING[:3], "rule"),
        ({"separating_epoch": 2}, FALLING[:2], "given"),
        ({"epochs": 3}, [1.0, 0.9, 0.8], "end"),
    ],
)
def test_the_early_stage_ends_by_the_rule_the_setting_or_the_run(options, losses, decided):
    sampler, over = after(losses, **options)
    assert sampler.losses == pytest.approx(losses)
    assert over == [False] * (len(losses) - 1) + [True]
    if decided == "rule":
        assert [drop_has_shrunk(losses[: n + 1]) for n in range(len(losses))] == over
    sampler.separate(LOGITS, LABELS)
    assert sampler.selection.details["decided"] == decided
    assert sampler.separated_at == len(losses)
    assert sampler.last_epoch == len(losses) + sampler.epochs


def test_the_orders_are_those_of_the_methods_own_samplers():
    sampler, _ = after(FALLING[:2], separating_epoch=2, factor=3)
    hard = sampler.separate(LOGITS, LABELS)
    assert hard.tolist() == evenly.hard_examples(LOGITS, LABELS, seed=7).tolist() == [3, 4]
    everything, upsampled = Everything(6, seed=7), evenly.Upsample(hard, 6, 3, seed=7)
    for epoch in (0, 1, 2, 5):
        sampler.set_epoch(epoch)
        expected = everything if epoch < 2 else upsampled
        expected.set_epoch(epoch if epoch < 2 else epoch - 2)
        assert sampler.early == (epoch < 2)
        assert list(sampler) == expected.indices().tolist()
        assert sampler.epoch == epoch + 1


def test_the_state_continues_in_either_stage():
    for losses in (FALLING[:1], FALLING[:2]):
        sampler, over = after(losses, separating_epoch=2)
        if over[-1]:
            sampler.separate(LOGITS, LABELS)
        else:
            sampler.observe(0.3, 5)
        sampler.set_epoch(len(losses))
        again = UsefulSampler(6, epochs=4, separating_epoch=2)
        again.load_state_dict(sampler.state_dict())
        assert torch.equal(again.indices(), sampler.indices())
        assert (again.losses, again.separated_at) == (sampler.losses, sampler.separated_at)
        if not over[-1]:
            assert again.end_epoch()
            assert again.losses[-1] == pytest.approx(0.3)


def test_pde_has_the_methods_defaults():
    groups = torch.tensor([0] * 100 + [1] * 40 + [2] * 60)
    sampler = PDESampler(groups, epochs=60, seed=3)
    assert (sampler.warmup_epochs, sampler.expansion.every, sampler.expansion.add) == (40, 2, 6)
    expected = evenly.ProgressiveExpansion(groups, 40, 2, 6, seed=3)
    for epoch in (0, 39, 40, 59):
        sampler.set_epoch(epoch)
        expected.set_epoch(epoch)
        assert torch.equal(sampler.indices(), expected.indices())
    again = PDESampler(groups)
    again.load_state_dict(sampler.state_dict())
    again.begin(90)  # a run that goes on keeps its sets
    assert torch.equal(again.indices(), sampler.indices())


def test_what_a_stage_cannot_do_is_refused():
    with pytest.raises(EvenlyError, match=r"call begin\(epochs\) first, or give epochs="):
        UsefulSampler(6).end_epoch()
    with pytest.raises(EvenlyError, match="no training loss was observed in this epoch"):
        UsefulSampler(6, epochs=2).end_epoch()
    with pytest.raises(EvenlyError, match="separating_epoch must be at most 2, the number of epochs, got 3"):
        UsefulSampler(6, epochs=2, separating_epoch=3)
    sampler, _ = after(FALLING[:2], separating_epoch=2)
    with pytest.raises(EvenlyError, match="there are outputs of 5 examples; give those of all 6 in order"):
        sampler.separate(LOGITS[:5], LABELS[:5])
    with pytest.raises(EvenlyError, match="PDE's sets depend on the number of epochs"):
        len(PDESampler([0, 1]))


def test_a_row_of_validation_is_what_the_selector_reads():
    accuracy = evenly.group_accuracy(LOGITS, LABELS, torch.tensor([0, 0, 1, 1, 2, 2]))
    row = validation_row(accuracy)
    assert row == {"accuracy": 4 / 6, "worst_group": 0.5, "groups": [1.0, 0.5, 0.5], "group_counts": [2, 2, 2]}
