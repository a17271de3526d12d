"""The torchmetrics metric is `evenly.group_accuracy`, batch by batch."""

from __future__ import annotations

import pytest
import torch

import evenly
from evenly.errors import EvenlyError

pytest.importorskip("torchmetrics", reason="needs torchmetrics: pip install 'evenly[torchmetrics]'")

from evenly.integrations.torchmetrics import WorstGroupAccuracy


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("outputs", ["logits", "one logit", "classes"])
def test_batches_give_what_the_function_gives_of_all(overlap, outputs):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(2, (50,), generator=generator)
    groups = torch.randint(4, (50,), generator=generator)
    groups[groups == 2] = 3  # a group without examples
    if overlap:
        groups = torch.stack([labels == 0, groups == 1, groups == 9], dim=1)
    given = {
        "logits": torch.randn(50, 2, generator=generator),
        "one logit": torch.randn(50, generator=generator),
        "classes": torch.randint(2, (50,), generator=generator),
    }[outputs]
    worst = WorstGroupAccuracy(groups.shape[1] if overlap else 5, train_groups=groups[:20])
    for _ in range(2):
        for part in torch.arange(50).split(7):
            worst.update(given[part], labels[part], groups[part])
        expected = evenly.group_accuracy(given, labels, groups, groups[:20])
        assert float(worst.compute()) == expected.worst
        size = len(expected.counts)
        assert worst.result.counts.tolist() == expected.counts.tolist() + [0] * (len(worst.result.counts) - size)
        assert torch.equal(worst.result.per_group[:size].nan_to_num(-1), expected.per_group.nan_to_num(-1))
        assert (worst.result.mean, worst.result.weighted) == (expected.mean, expected.weighted)
        assert worst.result.worst_group == expected.worst_group
        worst.reset()


def test_a_batch_has_its_own_value():
    worst = WorstGroupAccuracy(2)
    first = worst(torch.tensor([0, 1]), torch.tensor([0, 0]), torch.tensor([0, 0]))
    second = worst(torch.tensor([0, 0]), torch.tensor([0, 0]), torch.tensor([0, 1]))
    assert (float(first), float(second), float(worst.compute())) == (0.5, 1.0, 2 / 3)


@pytest.mark.filterwarnings("ignore:The ``compute`` method of metric WorstGroupAccuracy was called before")
def test_what_cannot_be_measured_is_refused():
    with pytest.raises(EvenlyError, match="num_groups must be at least 1, got 0"):
        WorstGroupAccuracy(0)
    with pytest.raises(EvenlyError, match="groups has 4 groups and num_groups is 2; give num_groups="):
        WorstGroupAccuracy(2).update(torch.tensor([0]), torch.tensor([0]), torch.tensor([3]))
    with pytest.raises(EvenlyError, match="has seen no examples; call update first"):
        WorstGroupAccuracy(2).compute()
