"""An audit: its numbers against numbers by hand, its words against its numbers, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
import math
import re

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from evenly.data import Data, Split
from evenly.diagnose.auditing import audit
from evenly.diagnose.findings import SHOWN, Share, _ordinal, fisher, paired
from evenly.diagnose.probing import probes
from evenly.errors import EvenlyError
from evenly.report.audit_pages import groups as group_table


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
    leaning = audit(Leaning(by=1), planted(n=1200), top=0)
    fair = audit(Leaning(by=0), planted(), top=0)
    assert re.match(r"It fails on group \d: .* points below its average[.;]", leaning.verdict()[1])
    assert leaning.worst.accuracy < 0.1
    assert "No group is clearly below the average" in fair.verdict()[1]
    assert "tell background with an error of" in leaning.verdict()[2]
    assert leaning.probes["background"].high < leaning.probes["label"].low
    assert "the attribute is the easier one to read" in leaning.verdict()[2]
    assert "Half of the total importance weight is that of" in leaning.verdict()[3]
    assert "largest eigenvalue" not in " ".join(leaning.verdict())
    assert leaning.missing["curvature"] == "it was left out"


@pytest.mark.parametrize(("groups", "size", "accuracy"), [(40, 30, 0.7), (20, 50, 0.99), (200, 50, 0.95)])
def test_groups_that_are_alike_are_not_failed_by_chance(groups, size, accuracy):
    """Wilson's interval, widened alike, would fail a group in a quarter of the draws near 100%."""
    draw, failed = np.random.default_rng(0), 0
    template = audit(Leaning(), planted(), top=0, samples=20)
    for _ in range(200):
        right = draw.binomial(size, accuracy, groups)
        shares = [Share(f"g{k}", int(r), size, 0.0) for k, r in enumerate(right)]
        overall = Share("all", int(right.sum()), groups * size, 0.0)
        found = dataclasses.replace(template, groups=shares, overall=overall, by="group")
        failed += found.verdict()[1].startswith("It fails on")
    assert failed <= 11  # 2.5% of 200 is 5; more than 11 once in a hundred times


def test_a_small_unlucky_group_does_not_hide_a_large_one_that_fails():
    found = audit(Leaning(), planted(), top=0, samples=20)
    shares = [Share("a", 2000, 2000, 0.0), Share("b", 600, 1000, 0.0), Share("c", 1, 2, 0.0)]
    found = dataclasses.replace(found, groups=shares, overall=Share("all", 2601, 3002, 0.0), by="group")
    assert found.verdict()[1].startswith("It fails on b: 60.0% of 1,000")
    marked = [row.cells[1].outcome for row in group_table([found]).rows]
    assert marked == ["", "", "lowered", ""]


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
    if by == "cluster":  # its features tell the attribute, so the clusters do
        lowest = min((share for share in found.groups if share.n >= 20), key=lambda share: (share.accuracy, share.name))
        other = next(share for share in found.groups if share.label == lowest.label and share is not lowest)
        assert found.verdict()[1] == (
            f"Within {found.data.class_names[lowest.label]}, its features fall in two parts; the smaller, {lowest.n} "
            f"of {lowest.n + other.n}, is right on {lowest.accuracy:.1%}, the other on {other.accuracy:.1%}: "
            "look at those."
        )
    elif by != "group":
        worst, rest = found.worst, next(s for s in found.groups if s.label == found.worst.label and s != found.worst)
        assert found.verdict()[1].startswith(f"It fails on {worst.name}: {worst.accuracy:.1%} of {worst.n}")
        assert found.verdict()[1].endswith(
            f"{100 * (rest.accuracy - worst.accuracy):.1f} points below the other {rest.n} examples of "
            f"{found.data.class_names[worst.label]}: it leans on something that these examples lack."
        )


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
    for n in range(1, 100):  # no rounding at the ends: all right is not below all right
        assert (Share("g", n, n, 0.0).interval[1], Share("g", 0, n, 0.0).interval[0]) == (1.0, 0.0)


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


def refused(match, *arguments, **options):
    with pytest.raises(EvenlyError, match=match) as error:
        audit(*arguments, **options)
    assert "\n" not in str(error.value)


class Odd(nn.Module):
    """A linear network with something in its way."""

    def __init__(self, forward):
        super().__init__()
        self.layer, self.way = nn.Linear(6, 2), forward

    def forward(self, x):
        return self.way(self.layer(x))


def raising(_):
    raise KeyError("two\nlines")


def test_networks_that_cannot_be_audited_are_said_in_a_line():
    data = planted()
    refused("model is a str; give an nn.Module", "mlp", data)
    three = Data(train=(data.train.inputs, torch.arange(400) % 3))
    refused("label 2 is not among the model's 2 classes", Leaning(), three)
    refused(r"Odd gives dict for 256 examples; it must give logits \(N, K\)", Odd(lambda f: {"logits": f}), data)
    refused(r"Odd cannot take inputs .*KeyError.*; give the data that it is made for", Odd(raising), data)
    refused("outputs of Odd have no gradient in its parameters; take detach", Odd(Tensor.detach), data, samples=20)
    first = int(data.test.labels.argmax())  # of the class that it is infinitely sure is the other
    refused(f"the loss of far on test example {first} is not finite", Odd(lambda f: f.double() * 0 + FAR), data,
            name="far")  # fmt: skip
    frozen = Leaning().requires_grad_(False)
    refused("no parameter that requires gradients, .*; set requires_grad, or give rho 0 and top 0", frozen, data)
    found = audit(frozen, data, rho=0, top=0, samples=20)
    assert torch.equal(found.importance, found.phantom)


FAR = torch.tensor([1e308, -1e308], dtype=torch.float64)


def test_settings_that_leave_nothing_to_look_at_are_said_in_a_line():
    data, model = planted(), Leaning()
    refused("samples 0 leaves no example to look at", model, data, samples=0)
    refused("samples 2.5 leaves no example", model, data, samples=2.5)
    refused("rho must be a number, got nan", model, data, rho=math.nan)
    refused("top -1 is no number of eigenvalues", model, data, top=-1, samples=20)
    refused("seed 'a' is no whole number; give e.g. 0", model, data, seed="a")
    refused("seed True is no whole number", model, data, seed=True)
    refused("name 3 is no text; give what to call the model", model, data, name=3)
    refused("forgetting cannot be read as numbers", model, data, forgetting="often")
    refused("forgetting holds -1; give how often", model, data, forgetting=[-1] * 400)
    refused("forgetting holds 0.5; give how often", model, data, forgetting=[0.5] * 400)
    refused("forgetting holds 1e[+]12; give how often", model, data, forgetting=[1e12] * 400)


class Images(torch.utils.data.Dataset):
    """Pictures of one colour, of sizes that may differ."""

    def __init__(self, grows=0):
        self.grows = grows

    def __len__(self):
        return 40

    def __getitem__(self, i):
        return torch.full((3, 8, 8 + self.grows * i), float(i)), i % 2


def test_a_dataset_is_audited_as_its_tensors_are(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    x, y = torch.stack([Images()[i][0] for i in range(40)]), torch.arange(40) % 2
    one, other = (audit(model, Data(train=each, test=each), samples=20, top=2) for each in (Images(), (x, y)))
    assert {**one.to_dict(), "seconds": 0} == {**other.to_dict(), "seconds": 0}
    assert torch.equal(one.heat, other.heat)
    one.report(tmp_path / "audit.html")
    refused("train inputs cannot be put in a batch .*; let the Dataset give tensors of one shape", model,
            Data(train=Images(grows=1)))  # fmt: skip


def test_a_network_without_linear_layers_is_clustered_by_its_outputs(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    found = audit(model, Data(train=Images()), samples=20, top=2)
    assert found.by == "cluster"
    assert "no linear layer" in found.missing["features"]
    assert "its outputs are clustered instead" in found.missing["features"]
    assert "Half of the" in found.verdict()[1]  # no part has 20 examples
    found.report(tmp_path / "audit.html")


def test_a_network_that_is_sure_of_everything_has_no_importance_to_share(tmp_path):
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    x[:, 1] = x[:, 1].sign() * 9
    model = Leaning()
    with torch.no_grad():
        model.out.weight *= 1e6
        model.out.weight[0] = -model.out.weight[1]
    found = audit(model, Data(train=(x, (x[:, 1] > 0).long())), top=0)
    assert not found.importance.any()
    assert any("none of them moves it any more" in sentence for sentence in found.verdict())
    content = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert content["importance"]["gini"] is content["importance"]["half_of_the_weight"] is None
    found.report(tmp_path / "audit.html")
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
    found.report(tmp_path / "audit.html")
    text = (tmp_path / "audit.html").read_text()
    assert "400" in re.search(r"<table.*?<tbody>\s*<tr.*?</tr>", text, re.DOTALL)[0]


def test_a_thousand_classes_fit_on_a_page(tmp_path):
    data = Data(train=(torch.randn(2000, 6), torch.arange(2000) % 1000))
    found = audit(nn.Linear(6, 1000), data, top=0, samples=20)
    assert len(found.groups) == 1000
    found.report(tmp_path / "audit.html")
    assert (tmp_path / "audit.html").stat().st_size < 10 * 2**20


def test_scores_of_examples_that_were_never_looked_at_or_never_right():
    data = planted()
    scores = torch.full((400,), math.inf)
    assert audit(Leaning(), data, top=0, samples=20, forgetting=scores).to_dict()["forgetting"] == {"never right": 400}
    scores[:100], scores[100:300] = math.nan, 2
    found = audit(Leaning(), data, top=0, samples=20, forgetting=scores)
    assert found.to_dict()["forgetting"] == {"0": 0, "1": 0, "2": 200, "never right": 100}
    assert "Of 300 training examples 200 were forgotten at least once and 100 were never right." in found.verdict()


class Constant(nn.Module):
    """Says the same class of everything."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def forward(self, x):
        return self.layer(x) * 0 + torch.tensor([1.0, 0.0])


def shifted():
    """An untrained network that prefers one class."""
    model = nn.Linear(5, 2)
    model.bias.data[0] += 1.5
    return model


@pytest.mark.parametrize("build", [Constant, shifted])
def test_a_class_that_is_weak_on_noise_is_called_weak_and_no_cause_is_named(build):
    for seed in range(12):
        torch.manual_seed(seed)
        x, y, bg = torch.randn(400, 5), torch.randint(2, (400,)), torch.randint(2, (400,))
        found = audit(build(), Data(train=Split(x, y, attributes={"bg": bg})), top=0, samples=20)
        whole = (found.predicted[y == 1] == 1).double()
        assert not any("leans" in sentence or "fails" in sentence for sentence in found.verdict())
        assert f"It is weak on class 1: {float(whole.mean()):.1%} of {len(whole)} " in found.verdict()[1]
        assert "on no bg in it clearly more than on the rest" in found.verdict()[1]


def test_clusters_on_noise_are_where_to_look_and_no_failure():
    pointed = 0
    for seed in range(12):
        torch.manual_seed(seed)
        found = audit(nn.Linear(5, 2), Data(train=(torch.randn(400, 5), torch.randint(2, (400,)))), top=0, samples=20)
        said = " ".join(found.verdict())
        assert not re.search("fail|leans|below", said)
        pointed += "fall in two parts" in said
    assert pointed > 6
    small = Data(train=(torch.randn(30, 5), torch.arange(30) % 2))  # no part can have 20 of 15
    assert "two parts" not in " ".join(audit(nn.Linear(5, 2), small, top=0).verdict())


def cells(*counts):
    """An audit with these cells (class, right, n), of label by an attribute."""
    x, y, a, right = (torch.cat(each) for each in zip(*(
        (torch.zeros(n, 1), torch.full((n,), k), torch.full((n,), i), torch.arange(n) < r)
        for i, (k, r, n) in enumerate(counts)), strict=True))  # fmt: skip
    told = torch.where(right, y, 1 - y)
    found = audit(shows(), Data(train=Split(2.0 * told[:, None] - 1 + x, y, attributes={"bg": a})), top=0, samples=20)
    assert [(g.label, g.right, g.n) for g in found.groups] == sorted(counts, key=lambda each: each[0])
    return found.verdict()[1]


def shows():
    model = nn.Linear(1, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-1.0], [1.0]]))
        model.bias.zero_()
    return model


def test_a_cell_is_judged_within_its_class_by_an_interval_widened_for_the_number_of_cells():
    assert "It fails on class 1, bg 2: 50.0% of 100" in cells((0, 100, 100), (1, 100, 100), (1, 50, 100))
    # below the average and below the rest of its class, but not by more than chance among four cells
    assert "No label and bg is clearly below" in cells((0, 95, 100), (0, 94, 100), (1, 93, 100), (1, 90, 100))
    # clear of the rest of its class for one cell, not for the lowest of five: Fisher's p is .0087
    assert "fails" not in cells((0, 100, 100), (1, 28, 40), (1, 36, 40), (1, 35, 40), (1, 35, 40))
    # 99% against 100% of its class is clear, and yet above the average
    assert "class 0" not in cells((0, 9900, 10000), (0, 10000, 10000), (1, 300, 1000))
    # a single cell of a class has no rest to be held against
    assert cells((0, 100, 100), (1, 20, 100)).startswith("It is weak on class 1: 20.0% of 100")


@pytest.mark.parametrize("counts", [(5, 10, 9, 10), (0, 30, 4, 40), (30, 30, 20, 40), (7, 9, 1000, 1100)])
def test_fishers_test_counts_the_ways_to_deal_out_what_is_right(counts):
    right, n, other, m = counts
    total = right + other
    ways = sum(math.comb(n, k) * math.comb(m, total - k) for k in range(max(0, total - m), right + 1))
    assert fisher(*counts) == pytest.approx(ways / math.comb(n + m, total), rel=1e-9)


def test_cells_that_are_alike_are_hardly_ever_said_to_lack_something():
    """Twenty small cells of two classes near 100%, a thousand draws: one-sided at .025 over all cells."""
    draw = np.random.default_rng(0)
    false = [
        any(fisher(int(k), 15, int(each.sum() - k), 135) < 0.025 / 20 for each in counts for k in each)
        for counts in draw.binomial(15, 0.95, (1000, 2, 10))
    ]
    assert np.mean(false) <= 0.025 + 0.01


def test_the_paired_interval_holds_what_it_says():
    """Covers a known difference in about 95% of draws; differs from nothing where no answer differs."""
    draw = np.random.default_rng(0)
    for gain, loss, n in ((0.1, 0.1, 100), (0.2, 0.05, 200), (0.02, 0.0, 400)):
        counts = draw.multinomial(n, [gain, loss, 1 - gain - loss], size=4000)
        covered = [low <= gain - loss <= high for low, high in (paired(int(b), int(c), n) for b, c, _ in counts)]
        assert 0.93 < np.mean(covered) < 0.985
    low, high = paired(0, 0, 100)
    assert low == -high < 0
    assert paired(3, 1, 10) == tuple(-value for value in reversed(paired(1, 3, 10)))


def test_two_models_are_compared_on_the_same_examples():
    data = planted()
    one, other = (audit(Leaning(by), data, name=name, top=0, samples=20) for by, name in ((0, "fair"), (1, "leaning")))
    right = [each.predicted == data.test.labels for each in (one, other)]
    gained, lost = int((right[0] & ~right[1]).sum()), int((~right[0] & right[1]).sum())
    first, second = one.compared(other)
    assert f"{100 * (gained - lost) / 400:+.1f} points" in first
    assert f"{gained} examples right by the first only, {lost} examples by the second only" in first
    assert "no clear difference" not in first
    assert f"The lowest group of the first is {one.worst.name}" in second
    assert f"of the second {other.worst.name}: {other.worst.accuracy:.1%}" in second
    assert "+0.0 points" in one.compared(one)[0]
    assert "no clear difference" in one.compared(one)[0]
    with pytest.raises(EvenlyError, match=r"of different data; give two models on the same data"):
        one.compared(audit(Leaning(), planted(seed=1), top=0, samples=20))


def test_numbers_are_told_as_people_do():
    data = planted()
    scores = torch.zeros(400)
    scores[0], scores[1] = 1, math.inf
    found = audit(Leaning(), data, top=2, rho=0, forgetting=scores)
    said = " ".join(found.verdict())
    assert "Of 400 training examples 1 was forgotten at least once and 1 was never right." in said
    assert "SAM" not in said
    values = found.spectrum.eigenvalues
    if values[1] > 0.01 * values[0]:
        assert "times the 2nd" in said
    flat = dataclasses.replace(found.spectrum, eigenvalues=torch.tensor([3.28, 3e-9], dtype=torch.float64))
    assert "times" not in " ".join(dataclasses.replace(found, spectrum=flat).verdict()[-2:])
    assert " ".join(map(_ordinal, (1, 2, 3, 4, 11, 12, 13, 21, 22, 111))) == (
        "1st 2nd 3rd 4th 11th 12th 13th 21st 22nd 111th"
    )


def test_an_attribute_called_label_is_not_taken_for_the_label():
    data = planted(groups=False)
    for split in data.splits.values():
        split.attributes = {"label": split.attributes["background"]}
    found = audit(Leaning(), data, top=0, samples=20)
    assert not found.probes
    assert "is called 'label', as the labels are; rename it" in found.missing["probe of label"]


def test_reports_go_to_files_and_beside_audits(tmp_path):
    found = audit(Leaning(), planted(), top=0, samples=20)
    for path, said in ((tmp_path, "is a folder"), (tmp_path / "no" / "a.html", "no, which is not there")):
        with pytest.raises(EvenlyError, match=f"{said}; give a file to write"):
            found.report(path)
    with pytest.raises(EvenlyError, match="against is a str; give another audit"):
        found.report(tmp_path / "a.html", against="x")
    assert not list(tmp_path.iterdir())


def test_settings_are_refused_before_a_network_is_asked():
    class Never(nn.Linear):
        def forward(self, x):
            raise AssertionError("asked")

    refused("rho must be a number, got 'a'", Never(6, 2), planted(), rho="a")
    refused("top 201 is more than an audit looks for; give 200", Never(6, 2), planted(), top=201)
    refused("top 15 exceeds the 14 trainable parameters of Never", Never(6, 2), planted(), top=15)
    refused("top 2.5 is no number", Never(6, 2), planted(), top=2.5)
