"""An audit: its numbers against numbers by hand, its words against its numbers, and what it refuses."""

from __future__ import annotations

import dataclasses
import html
import json
import math
import re

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from evenly.data import Data, Split
from evenly.diagnose import sizes
from evenly.diagnose.auditing import audit
from evenly.diagnose.findings import SHOWN
from evenly.diagnose.importance import importance_weights
from evenly.diagnose.probing import probes
from evenly.diagnose.samples import part_of
from evenly.report import write_report


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
    assert len(found.importance) == len(found.phantom) == found.spectrum.samples == 60
    assert found.spectrum is not None
    assert len(found.spectrum.eigenvalues) == 2


def test_the_verdict_follows_the_numbers():
    leaning = audit(Leaning(by=1), planted(n=1200), top=0)
    fair = audit(Leaning(by=0), planted(), top=0)
    assert re.match(r"It fails on group \d: .* points below its average[.;]", leaning.verdict()[1])
    assert leaning.worst.accuracy < 0.1
    assert "No group is clearly below the average" in fair.verdict()[1]
    assert "background can be read from the network's features" in leaning.verdict()[2]
    assert leaning.probes["background"].high < leaning.probes["label"].low
    assert "background is the easier one to read" in leaning.verdict()[2]
    assert "have half of the total importance weight" in leaning.verdict()[3]
    assert "largest eigenvalue" not in " ".join(leaning.verdict())
    assert leaning.missing["curvature"] == "it was left out"


@pytest.mark.parametrize("groups", [True, False])
@pytest.mark.parametrize("attributes", [True, False])
def test_attributes_and_clusters_stand_in_for_groups(groups, attributes):
    found = audit(Leaning(), planted(groups=groups, attributes=attributes), top=0, samples=50)
    by = "group" if groups else "label and background" if attributes else "cluster"
    assert found.by == by
    assert sum(share.n for share in found.groups) == 400
    assert bool(found.probes) == attributes
    if by == "cluster":  # its features tell the attribute, so the clusters do
        lowest = min((share for share in found.groups if share.n >= 20), key=lambda share: (share.accuracy, share.name))
        other = next(share for share in found.groups if share.label == lowest.label and share is not lowest)
        assert found.verdict()[1] == (
            f"By the model's own features, the examples of {found.data.class_names[lowest.label]} fall into two "
            f"clusters. It is right on {lowest.accuracy:.1%} of the smaller one, {lowest.n} of {lowest.n + other.n} "
            f"examples, and on {other.accuracy:.1%} of the other."
        )
    elif by != "group":
        worst, rest = found.worst, next(s for s in found.groups if s.label == found.worst.label and s != found.worst)
        assert found.verdict()[1].startswith(f"It fails on {worst.name}: {worst.accuracy:.1%} of {worst.n}")
        assert found.verdict()[1].endswith(
            f"{100 * (rest.accuracy - worst.accuracy):.1f} points below the other {rest.n} examples of "
            f"{found.data.class_names[worst.label]}. It relies on something that these examples lack."
        )


class Odd(nn.Module):
    """A linear network with something in its way."""

    def __init__(self, forward):
        super().__init__()
        self.layer, self.way = nn.Linear(6, 2), forward

    def forward(self, x):
        return self.way(self.layer(x))


def raising(_):
    raise KeyError("two\nlines")


FAR = torch.tensor([1e308, -1e308], dtype=torch.float64)


def test_what_cannot_be_audited_is_refused(refused):
    data, model = planted(), Leaning()
    first = int(data.test.labels.argmax())  # of the class that `far` is infinitely sure is the other
    broken, frozen = Leaning(), Leaning().requires_grad_(False)
    with torch.no_grad():
        broken.out.bias.fill_(math.nan)
    three = Data(train=(data.train.inputs, torch.arange(400) % 3))
    for message, network, given, options in (
        (r"data is a tuple; give an evenly\.Data", model, (data.train.inputs, data.train.labels), {}),
        ("split must be one of train, validation, test, got 'holdout'", model, data, {"split": "holdout"}),
        ("there is no test split; the data has train", model, three, {"split": "test"}),
        ("cannot take inputs of shape", nn.Linear(5, 2), data, {}),
        ("not finite", broken, data, {}),
        ("label 2 is not among the model's 2 classes", model, three, {}),
        (r"Odd gives dict for 256 examples; it must give logits \(N, K\)", Odd(lambda f: {"logits": f}), data, {}),
        (r"Odd cannot take inputs .*KeyError.*; give the data that it is made for", Odd(raising), data, {}),
        ("outputs of Odd have no gradient in its parameters; take detach", Odd(Tensor.detach), data, {"samples": 20}),
        (f"the loss of Odd on test example {first} is not finite", Odd(lambda f: f.double() * 0 + FAR), data, {}),
        ("no parameter that requires gradients, .*; set requires_grad, or give rho 0 and top 0", frozen, data, {}),
        ("top 15 exceeds the 14 trainable parameters of Linear", nn.Linear(6, 2), data, {"top": 15}),
        ("forgetting cannot be read as numbers", model, data, {"forgetting": "often"}),
        (r"forgetting has shape \(5,\) for 400 training examples; give one for each", model, data,
         {"forgetting": [0] * 5}),
        ("forgetting holds -1; give how often", model, data, {"forgetting": [-1] * 400}),
        ("forgetting holds 0.5; give how often", model, data, {"forgetting": [0.5] * 400}),
        ("forgetting holds 1e[+]12; give how often", model, data, {"forgetting": [1e12] * 400}),
    ):  # fmt: skip
        refused(message, audit, network, given, **options)
    found = audit(frozen, data, rho=0, top=0, samples=20)
    assert torch.equal(found.importance, found.phantom)


class Images(torch.utils.data.Dataset):
    """Pictures of one colour, of sizes that may differ."""

    def __init__(self, grows=0):
        self.grows = grows

    def __len__(self):
        return 40

    def __getitem__(self, i):
        return torch.full((3, 8, 8 + self.grows * i), float(i)), i % 2


def test_a_dataset_is_audited_as_its_tensors_are(tmp_path, refused):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    x, y = torch.stack([Images()[i][0] for i in range(40)]), torch.arange(40) % 2
    one, other = (audit(model, Data(train=each, test=each), samples=20, top=2) for each in (Images(), (x, y)))
    assert {**one.to_dict(), "seconds": 0} == {**other.to_dict(), "seconds": 0}
    assert all(torch.equal(heat, other.heat[i]) for i, heat in one.heat.items())
    assert len(one.heat) == 2 * SHOWN
    write_report(one, tmp_path / "audit.html")
    grown = Data(train=Images(grows=1))
    refused("train inputs cannot be put in a batch .*; let the Dataset give tensors of one shape", audit, model, grown)


def test_a_network_without_linear_layers_is_clustered_by_its_outputs(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    found = audit(model, Data(train=Images()), samples=20, top=2)
    assert found.by == "cluster"
    assert "no linear layer" in found.missing["features"]
    assert "its outputs are clustered instead" in found.missing["features"]
    assert "have half of the" in found.verdict()[1]  # no part has 20 examples
    write_report(found, tmp_path / "audit.html")


def test_a_network_that_is_sure_of_everything_has_no_importance_to_share(tmp_path):
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    x[:, 1] = x[:, 1].sign() * 9
    model = Leaning()
    with torch.no_grad():
        model.out.weight *= 1e6
        model.out.weight[0] = -model.out.weight[1]
    found = audit(model, Data(train=(x, (x[:, 1] > 0).long())), top=0)
    assert not found.importance.any()
    assert any("none of them changes it any more" in sentence for sentence in found.verdict())
    content = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert content["importance"]["gini"] is content["importance"]["half_of_the_weight"] is None
    write_report(found, tmp_path / "audit.html")
    text = re.sub(r"<script>.*?</script>", "", (tmp_path / "audit.html").read_text(), flags=re.DOTALL)
    assert "nan" not in text.lower()
    assert "Gini none and none" in text


def test_attributes_that_cannot_be_probed_are_told_and_the_others_probed_in_one_pass(monkeypatch):
    data = planted()
    for split in data.splits.values():
        split.attributes |= {"constant": torch.zeros(400, dtype=torch.long), "rare": (torch.arange(400) < 3).long()}
    passes = []

    class Counting(Leaning):
        def forward(self, x):
            passes.append(len(x))
            return super().forward(x)

    found = audit(Counting(), data, top=0, samples=20)
    assert list(found.probes) == ["label", "background"]
    assert "constant has one value, 0, throughout the validation set" in found.missing["probe of constant"]
    assert re.search("examples of rare 1, .* needs 5 in each of 4 cells, 20 in all", found.missing["probe of rare"])
    alone = {name: probes(Leaning(), data, [name])[name] for name in found.probes}
    assert {name: (p.error, p.n) for name, p in found.probes.items()} == {
        name: (p.error, p.n) for name, p in alone.items()
    }
    assert sum(passes) <= 400 + 2 * 400 + 4 * 20  # outputs; two splits probed once; importance, gradient, phantom


def test_small_and_one_sided_sets_are_not_called_failed():
    data = planted()
    few = [Split(s.inputs[:6], torch.arange(6) % 2, attributes={"k": torch.arange(6) // 2 % 2}) for s in [data.test]]
    right = Leaning(by=0)
    with torch.no_grad():
        few[0].inputs[:, 0] = 2.0 * few[0].labels - 1
    found = audit(right, Data(train=few[0]), top=0)
    assert found.overall.interval[1] == 1.0
    assert "No label and k is clearly below the rest of its class" in found.verdict()[1]
    alone = Data(train=data.train, test=Split(data.test.inputs[:1], data.test.labels[:1], data.test.groups[:1]))
    assert audit(Leaning(), alone, top=0, samples=20).overall.n == 1
    same = Odd(lambda f: f * 0 + torch.tensor([1.0, 0.0]))
    assert set(audit(same, data, top=0, samples=20).predicted.tolist()) == {0}


def test_groups_of_the_same_name_stay_apart_and_may_be_called_all(tmp_path):
    data = planted()
    named = Data(train=data.train, test=data.test, group_names=["all", "all", "<b>", "c"])
    found = audit(Leaning(), named, top=0, samples=20)
    assert [group.name for group in found.groups] == ["all (group 0)", "all (group 1)", "<b>", "c"]
    assert sum(group.n for group in found.groups) == 400
    found.groups[2] = dataclasses.replace(found.groups[2], name="all")
    write_report(found, tmp_path / "audit.html")
    text = (tmp_path / "audit.html").read_text()
    assert "400" in re.search(r"<table.*?<tbody>\s*<tr.*?</tr>", text, re.DOTALL)[0]


def test_a_thousand_classes_fit_on_a_page(tmp_path):
    data = Data(train=(torch.randn(2000, 6), torch.arange(2000) % 1000))
    found = audit(nn.Linear(6, 1000), data, top=0, samples=20)
    assert len(found.groups) == 1000
    write_report(found, tmp_path / "audit.html")
    assert (tmp_path / "audit.html").stat().st_size < 10 * 2**20


def test_an_attribute_called_label_is_not_taken_for_the_label():
    data = planted(groups=False)
    for split in data.splits.values():
        split.attributes = {"label": split.attributes["background"]}
    found = audit(Leaning(), data, top=0, samples=20)
    assert not found.probes
    assert "is called 'label', as the labels are; rename it" in found.missing["probe of label"]


def test_phantom_weights_are_those_of_each_batch_as_sam_has_them():
    data, model = planted(), Leaning()
    found = audit(model, data, top=0, samples=60, batch_size=7, rho=0.5)
    part = part_of(data.train, 60, 0)
    assert torch.equal(found.phantom, importance_weights(model, part, rho=0.5, batch_size=7))
    assert not torch.equal(found.phantom, importance_weights(model, part, rho=0.5))
    assert found.to_dict()["importance"]["batch_size"] == 7
    assert audit(model, data, top=0, samples=60).batch_size == 60  # 128 at most


def test_an_audit_that_would_take_long_uses_fewer_examples_and_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(sizes, "measure_pace", lambda *_: sizes.Pace(0.01, 0.01, 1, 2**30))
    found = audit(Leaning(), planted(), top=2, samples=400)
    assert (len(found.importance), found.spectrum.samples) == (400, 50)  # 400 * 0.5 s of 48, halved three times
    (sentence,) = found.shrunk
    assert sentence == (
        "Curvature on 400 training examples would take about 3 minutes. 50 of them are used to save time. "
        "For all of them: --within none"
    )
    assert found.to_dict()["shrunk"] == [sentence]
    assert sentence in html.unescape(write_report(found, tmp_path / "audit.html").read_text())
    assert audit(Leaning(), planted(), top=2, samples=400, within=None).spectrum.samples == 400
    monkeypatch.setattr(sizes, "measure_pace", lambda *_: sizes.Pace(1.0, 1.0, 2**30, 2**30))
    slow = audit(Leaning(), planted(), top=2, samples=400)
    assert slow.spectrum is None
    assert slow.missing["curvature"] == "it would take about 53 minutes on 32 examples; --within none waits for it"
    assert len(slow.importance) == 32


def test_the_pace_of_products_is_that_of_the_examples():
    pace = sizes.measure_pace(Leaning(), "cross-entropy", planted().train, 0)
    assert 0 < pace.product < 0.01
    assert pace.curvature(200, 5) == pytest.approx(2 * pace.curvature(100, 5))
    crowded = pace._replace(bytes=2**30, memory=2**30)
    assert crowded.curvature(200, 5) > 2 * crowded.curvature(1, 5)
