"""An audit: its numbers against numbers by hand, its words against its numbers, and what it refuses."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from evenly.data import Data, Split
from evenly.diagnose.audit import SHOWN, Share, audit
from evenly.errors import EvenlyError


def planted(n=400, groups=True, attributes=True, seed=0, images=False):
    """Labels that one coordinate tells, and an attribute that another does and that goes with the label in training."""
    draw = np.random.default_rng(seed)
    parts = {}
    for name, follows in (("train", 0.95), ("validation", 0.5), ("test", 0.5)):
        y = draw.integers(0, 2, n)
        a = np.where(draw.random(n) < follows, y, 1 - y)
        x = draw.normal(size=(n, 6)).astype(np.float32)
        x[:, 0] += 2.0 * (2 * y - 1)
        x[:, 1] += 4.0 * (2 * a - 1)
        if images:
            x = np.clip(40 * x + 128, 0, 255).astype(np.uint8).reshape(n, 1, 2, 3).repeat(4, 2).repeat(3, 3)
        parts[name] = Split(x, y, 2 * y + a if groups else None, {"background": a} if attributes else None, name=name)
    return Data(**parts, name="planted", class_names=["no", "<script>alert(1)</script>"])


class Leaning(nn.Module):
    """Goes by the attribute: right on the groups where it goes with the label, wrong on the others."""

    def __init__(self, by=1):
        super().__init__()
        self.hidden = nn.Linear(6, 6)
        self.out = nn.Linear(6, 2)
        with torch.no_grad():
            self.hidden.weight.copy_(torch.eye(6))
            self.hidden.bias.zero_()
            self.out.weight.zero_()
            self.out.weight[1, by] = 1.0
            self.out.bias.zero_()

    def forward(self, x):
        return self.out(torch.tanh(self.hidden(x.flatten(1))))


def test_groups_losses_and_examples_are_those_counted_by_hand():
    data, model = planted(), Leaning()
    found = audit(model, data, top=2, samples=60)
    logits = model(data.test.inputs).detach().double()
    right = logits.argmax(1) == data.test.labels
    assert found.overall.right == int(right.sum())
    assert found.by == "group"
    for g, share in enumerate(found.groups):
        member = data.test.groups == g
        assert (share.name, share.n, share.right) == (f"group {g}", int(member.sum()), int(right[member].sum()))
        each = nn.functional.cross_entropy(logits, data.test.labels, reduction="none")
        assert share.loss == pytest.approx(float(each[member].mean()))
    order = each.argsort(descending=True)
    assert found.hardest.tolist() == order[:SHOWN].tolist()
    assert found.losses[found.easiest].max() <= found.losses[found.hardest].min()
    assert len(found.importance) == len(found.phantom) == found.looked_at["training examples"] == 60
    assert found.spectrum is not None
    assert len(found.spectrum.eigenvalues) == 2


def test_the_verdict_follows_the_numbers():
    leaning = audit(Leaning(by=1), planted(), top=0)
    fair = audit(Leaning(by=0), planted(), top=0)
    assert "It fails by group on group" in leaning.verdict()[1]
    assert "points below its average" in leaning.verdict()[1]
    assert leaning.worst.accuracy < 0.1
    assert "No group is clearly below the average" in fair.verdict()[1]
    assert "tell background with an error of" in leaning.verdict()[2]
    assert leaning.probes["background"].high < leaning.probes["label"].low
    assert "the attribute is the easier one to read" in leaning.verdict()[2]
    assert "Half of the weight" in leaning.verdict()[3]
    assert "The training loss bends" not in " ".join(leaning.verdict())
    assert leaning.missing["curvature"] == "it was left out"


def test_the_lowest_of_many_groups_is_not_failed_by_chance_alone():
    """Forty groups of fair coins: the lowest 95% interval often lies below the average, the widened one hardly."""
    said = []
    for seed in range(20):
        draw = np.random.default_rng(seed)
        y = draw.integers(0, 2, 1200)
        x = np.stack([np.where(draw.random(1200) < 0.7, y, 1 - y) * 2.0 - 1] * 6, 1).astype(np.float32)
        groups = draw.integers(0, 40, 1200)
        data = Data(train=(x, y, groups), test=(x, y, groups))
        found = audit(Leaning(by=0), data, top=0, samples=20)
        said.append("It fails by group" in found.verdict()[1])
        unwidened = found.worst.interval[1] < found.overall.accuracy
        assert unwidened or not said[-1]
    assert sum(said) <= 3


def test_forgetting_scores_are_told():
    data = planted()
    scores = torch.zeros(400)
    scores[:7], scores[7:10] = 3, torch.inf
    found = audit(Leaning(), data, top=0, forgetting=scores)
    assert "Of 400 training examples 7 were forgotten at least once and 3 were never right." in found.verdict()
    assert found.to_dict()["forgetting"] == {"0": 390, "1": 0, "2": 0, "3": 7, "never right": 3}
    with pytest.raises(EvenlyError, match="one for each"):
        audit(Leaning(), data, top=0, forgetting=scores[:5])


@pytest.mark.parametrize("groups", [True, False])
@pytest.mark.parametrize("attributes", [True, False])
def test_attributes_and_clusters_stand_in_for_groups(groups, attributes):
    found = audit(Leaning(), planted(groups=groups, attributes=attributes), top=0, samples=50)
    by = "group" if groups else "label and background" if attributes else "cluster"
    assert found.by == by
    assert sum(share.n for share in found.groups) == 400
    assert bool(found.probes) == attributes
    if by == "cluster":  # its features tell the attribute, so the clusters do, and so it fails on one
        assert "It fails by cluster on" in found.verdict()[1]
        assert "they stand apart in its own features" in found.verdict()[1]


def test_everything_is_json_and_the_model_is_left_as_it_was():
    model = Leaning().train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    state = torch.get_rng_state()
    found = audit(model, planted(), samples=40)
    assert model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in model.parameters())
    content = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert content["overall"]["accuracy"] == found.overall.accuracy
    again = audit(model, planted(), samples=40).to_dict()
    assert {**again, "seconds": 0} == {**found.to_dict(), "seconds": 0}


def test_a_share_has_wilsons_interval():
    low, high = Share("g", 8, 10, 0.0).interval
    assert (low, high) == (pytest.approx(0.4901625, abs=1e-6), pytest.approx(0.9433178, abs=1e-6))


def test_what_cannot_be_audited_is_said_in_a_line():
    data = planted()
    with pytest.raises(EvenlyError, match=r"data is a tuple; give an evenly\.Data"):
        audit(Leaning(), (data.train.inputs, data.train.labels))
    with pytest.raises(EvenlyError, match="there is no holdout split; the data has train, validation, test"):
        audit(Leaning(), data, split="holdout")
    with pytest.raises(EvenlyError, match="cannot take inputs of shape"):
        audit(nn.Linear(5, 2), data)
    broken = Leaning()
    with torch.no_grad():
        broken.out.bias.fill_(math.nan)
    with pytest.raises(EvenlyError, match="not finite"):
        audit(broken, data)
