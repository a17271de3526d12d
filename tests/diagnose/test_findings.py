"""The sentences of an audit against its numbers; what they claim of groups holds with the chance that they state."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import evenly
from evenly.data import Data, Split
from evenly.diagnose.audit_words import _ordinal
from evenly.diagnose.auditing import audit
from evenly.diagnose.findings import Audit, Share, paired
from evenly.diagnose.fisher import fisher
from evenly.diagnose.spectrum import HessianSpectrum
from evenly.report.audit_pages import groups as group_table

SHOWN = "on a set where a does not give it away"


class Showing(nn.Module):
    """Shows its inputs as its features."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x)


def confounded(groups: str = "", also_b: float = 0.0, n: int = 2000) -> Data:
    """The label at ±.8 and a at ±4, which follows it at 90%; b follows a at a rate and is nowhere in the features."""
    draw, parts = np.random.default_rng(0), {}
    for name in ("train", "validation", "test"):
        y = draw.integers(0, 2, n)
        a = np.where(draw.random(n) < 0.9, y, 1 - y)
        b = np.where(draw.random(n) < also_b, a, 1 - a)
        x = draw.normal(size=(n, 3)).astype(np.float32)
        x[:, 0] += 0.8 * (2 * y - 1)
        x[:, 1] += 4 * (2 * a - 1)
        g = {"": None, "domain": draw.integers(0, 3, n), "2y+a": 2 * y + a}[groups]
        parts[name] = Split(x, y, g, {"a": a, "b": b} if also_b else {"a": a}, name=name)
    return Data(**parts, name="confounded")


@pytest.fixture(scope="module")
def template() -> Audit:
    return audit(Showing(), confounded(n=200), top=3, samples=50)


def with_groups(template: Audit, groups: list[Share], by: str = "group") -> Audit:
    overall = Share("all", sum(group.right for group in groups), sum(group.n for group in groups), 0.0)
    return dataclasses.replace(template, groups=groups, overall=overall, by=by)


@pytest.mark.parametrize(("groups", "size", "accuracy"), [(40, 30, 0.7), (20, 50, 0.99), (200, 50, 0.95)])
def test_groups_that_are_alike_are_not_failed_by_chance(
    template: Audit, groups: int, size: int, accuracy: float
) -> None:
    """Wilson's interval, widened alike, would fail a group in a quarter of the draws near 100%."""
    draw, failed = np.random.default_rng(0), 0
    for _ in range(200):
        shares = [Share(f"g{k}", int(r), size, 0.0) for k, r in enumerate(draw.binomial(size, accuracy, groups))]
        failed += with_groups(template, shares).verdict()[1].startswith("It fails on")
    assert failed <= 11  # 2.5% of 200 is 5; more than 11 once in a hundred times


def test_a_small_unlucky_group_does_not_hide_a_large_one_that_fails(template: Audit) -> None:
    shares = [Share("a", 2000, 2000, 0.0), Share("b", 600, 1000, 0.0), Share("c", 1, 2, 0.0)]
    found = with_groups(template, shares)
    assert found.verdict()[1].startswith("It fails on b: 60.0% of 1,000")
    rows = group_table([found.findings()]).rows
    assert [(row.name, row.cells[1].outcome) for row in rows] == [("all", ""), ("c", ""), ("b", "lowered"), ("a", "")]


@pytest.mark.parametrize(
    ("counts", "sentence", "holds"),
    [
        ([(0, 100, 100), (1, 100, 100), (1, 50, 100)], "It fails on class 1, bg 2: 50.0% of 100", True),
        # below the average and below the rest of its class, but not by more than chance among four cells
        ([(0, 95, 100), (0, 94, 100), (1, 93, 100), (1, 90, 100)], "No label and bg is clearly below", True),
        # clear of the rest of its class for one cell, not for the lowest of five: Fisher's p is .0087
        ([(0, 100, 100), (1, 28, 40), (1, 36, 40), (1, 35, 40), (1, 35, 40)], "fails", False),
        # 99% against 100% of its class is clear, and yet above the average
        ([(0, 9900, 10000), (0, 10000, 10000), (1, 300, 1000)], "class 0", False),
        # a single cell of a class has no rest to be compared with
        ([(0, 100, 100), (1, 20, 100)], "It is weak on class 1: 20.0% of 100", True),
    ],
)
def test_a_cell_is_judged_within_its_class_by_an_interval_widened_for_the_number_of_cells(
    template: Audit, counts: list[tuple[int, int, int]], sentence: str, holds: bool
) -> None:
    """Cells of (class, right, n), of label by an attribute."""
    shares = [Share(f"class {k}, bg {i}", right, n, 0.0, k) for i, (k, right, n) in enumerate(counts)]
    assert (sentence in with_groups(template, shares, "label and bg").verdict()[1]) == holds


class Constant(nn.Module):
    """Predicts the same class of everything."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * 0 + torch.tensor([1.0, 0.0])


def shifted() -> nn.Module:
    """An untrained network that prefers one class."""
    model = nn.Linear(5, 2)
    model.bias.data[0] += 1.5
    return model


@pytest.mark.parametrize("build", [Constant, shifted])
def test_a_class_that_is_weak_on_noise_is_called_weak_and_no_cause_is_named(build: Any) -> None:
    for seed in range(12):
        torch.manual_seed(seed)
        x, y, bg = torch.randn(400, 5), torch.randint(2, (400,)), torch.randint(2, (400,))
        found = audit(build(), Data(train=Split(x, y, attributes={"bg": bg})), top=0, samples=20)
        right = (found.predicted[y == 1] == 1).double()
        assert not any("relies" in sentence or "fails" in sentence for sentence in found.verdict())
        assert f"It is weak on class 1: {float(right.mean()):.1%} of {len(right)} " in found.verdict()[1]
        assert "No bg of this class is clearly below the others" in found.verdict()[1]


def test_clusters_on_noise_are_where_to_look_and_no_failure() -> None:
    named = 0
    for seed in range(12):
        torch.manual_seed(seed)
        found = audit(nn.Linear(5, 2), Data(train=(torch.randn(400, 5), torch.randint(2, (400,)))), top=0, samples=20)
        text = " ".join(found.verdict())
        assert not re.search("fail|relies|below", text)
        named += "fall into two clusters" in text
    assert named > 6
    small = Data(train=(torch.randn(30, 5), torch.arange(30) % 2))  # no part can have 20 of 15
    assert "two clusters" not in " ".join(audit(nn.Linear(5, 2), small, top=0).verdict())


@pytest.mark.parametrize("counts", [(5, 10, 9, 10), (0, 30, 4, 40), (30, 30, 20, 40), (7, 9, 1000, 1100)])
def test_fishers_test_counts_the_ways_to_deal_out_what_is_right(counts: tuple[int, int, int, int]) -> None:
    right, n, other, m = counts
    total = right + other
    ways = sum(math.comb(n, k) * math.comb(m, total - k) for k in range(max(0, total - m), right + 1))
    assert fisher(*counts) == pytest.approx(ways / math.comb(n + m, total), rel=1e-9)


def test_cells_that_are_alike_are_hardly_ever_said_to_lack_something() -> None:
    """Twenty small cells of two classes near 100%, a thousand draws: one-sided at .025 over all cells."""
    draw = np.random.default_rng(0)
    false = [
        any(fisher(int(k), 15, int(each.sum() - k), 135) < 0.025 / 20 for each in counts for k in each)
        for counts in draw.binomial(15, 0.95, (1000, 2, 10))
    ]
    assert np.mean(false) <= 0.025 + 0.01


def test_the_paired_interval_covers_what_it_says() -> None:
    """Covers a known difference in about 95% of draws; differs from nothing where no answer differs."""
    draw = np.random.default_rng(0)
    for gain, loss, n in ((0.1, 0.1, 100), (0.2, 0.05, 200), (0.02, 0.0, 400)):
        counts = draw.multinomial(n, [gain, loss, 1 - gain - loss], size=4000)
        covered = [low <= gain - loss <= high for low, high in (paired(int(b), int(c), n) for b, c, _ in counts)]
        assert 0.93 < np.mean(covered) < 0.985
    low, high = paired(0, 0, 100)
    assert low == -high < 0
    assert paired(3, 1, 10) == tuple(-value for value in reversed(paired(1, 3, 10)))


def test_two_models_are_compared_on_the_same_examples(template: Audit, refused: Any) -> None:
    other = dataclasses.replace(template, name="other", predicted=1 - template.predicted)
    right = template.predicted == template.labels
    gained, lost = int(right.sum()), int((~right).sum())
    other = dataclasses.replace(other, overall=Share("all", lost, gained + lost, 0.0), by="group")
    one = dataclasses.replace(template, by="group")
    first, second = one.compared(other)
    assert f"{100 * (gained - lost) / 200:+.1f} points" in first
    assert f"{gained} examples right by the first only, {lost} examples by the second only" in first
    assert second.startswith(f"The lowest group of the first is {one.worst.name}: {one.worst.accuracy:.1%}")
    assert "+0.0 points" in one.compared(one)[0]
    assert "no clear difference" in one.compared(one)[0]
    elsewhere = audit(Showing(), confounded(n=201), top=0, samples=20)
    refused("of different data; give two models on the same data", one.compared, elsewhere)


def probe_sentence(found: Audit) -> str:
    (sentence,) = (line for line in found.verdict() if "can be read from the network's features" in line)
    return sentence


def test_the_label_is_not_given_away_where_that_is_said() -> None:
    data = confounded("2y+a")
    found = audit(Showing(), data, top=0, samples=50)
    assert SHOWN in probe_sentence(found)
    assert " only" not in probe_sentence(found)
    assert "a is the easier one to read" in probe_sentence(found)
    held = found.probes["label"].held_out
    assert float((data.test.labels[held] == data.test.attributes["a"][held]).double().mean()) == 0.5
    assert found.probes["label"].low > 0.15  # Phi(-.8) = .21; read off a it would be .1
    assert found.to_dict()["probes"]["label"]["balanced_over"] == ["a"]


def test_what_a_set_is_not_balanced_over_is_said(tmp_path: Any) -> None:
    many = audit(Showing(), confounded("domain", also_b=0.9), top=0, samples=50)
    assert many.probes["label"].balanced_over == ("a", "b")
    assert SHOWN in probe_sentence(many)
    rare = audit(Showing(), confounded("domain", also_b=1.0), top=0, samples=50)
    assert rare.probes["a"].balanced_over == rare.probes["b"].balanced_over == ("label",)
    assert re.search(
        r"[ab] can be read from .*; guessing 50.0%\), on a set balanced over label only. "
        r"The label can be read .*% of the time, on a set balanced over group only",
        probe_sentence(rare),
    )
    page = evenly.write_report(rare, tmp_path / "one.html").read_text()
    rows = dict(re.findall(r'<th scope="row"[^>]*>(label|a|b) <span class="note">balanced over ([a-z, ]+)<', page))
    assert rows == {"label": "group", "a": "label", "b": "label"}
    assert "An eigenvalue that occurs several times is listed once" not in page  # there are none


@pytest.mark.parametrize(
    ("values", "residuals", "converged", "sentence"),
    [
        ([8.0, 4.0, 2.0], [1e-5] * 3, [True] * 3, "is 8, 4.0 times the 3rd found."),
        ([8.0, 2.0], [1e-5] * 2, [True] * 2, "is 8, 4.0 times the 2nd found."),
        ([8.0, 4.0, 2.0], [1e-5, 1e-5, 0.1], [True, True, False], "is 8."),
        ([8.0, 4.0, 2.0], [0.5, 1e-5, 1e-5], [False, True, True], "is 8, not converged (residual 0.5)."),
        ([8.0, 0.05], [1e-5, 8e-3], [True] * 2, "is 8."),  # by 16% either way
        ([8.0, 1e-6], [1e-5, 1e-9], [True] * 2, "is 8."),
        ([8.0, -1.0], [1e-5] * 2, [True] * 2, "is 8."),
        ([-0.1, -1.0], [1e-5] * 2, [True] * 2, "is -0.1."),
        ([0.88], [1e-5], [True], "is 0.88."),
    ],
)
def test_the_largest_eigenvalue_is_compared_only_with_what_is_known(
    template: Audit, values: list[float], residuals: list[float], converged: list[bool], sentence: str
) -> None:
    numbers = torch.tensor(values).double(), torch.tensor(residuals).double(), torch.tensor(converged)
    spectrum = HessianSpectrum(*numbers, template.spectrum.density, 9, 9.0, 1, 50, {})
    found = dataclasses.replace(template, spectrum=spectrum)
    assert f"The largest eigenvalue of the training loss's Hessian {sentence}" in found.verdict()


@pytest.mark.parametrize(
    ("scores", "histogram", "sentence"),
    [
        ([0] * 390 + [3] * 7 + [math.inf] * 3, {"0": 390, "1": 0, "2": 0, "3": 7, "never right": 3},
         "Of 400 training examples, 7 were forgotten at least once and 3 were never right."),
        ([math.inf] * 4, {"never right": 4},
         "Of 4 training examples, 0 were forgotten at least once and 4 were never right."),
        ([1, math.inf], {"0": 0, "1": 1, "never right": 1},
         "Of 2 training examples, 1 was forgotten at least once and 1 was never right."),
        ([math.nan, 2, 2, math.inf], {"0": 0, "1": 0, "2": 2, "never right": 1},
         "Of 3 training examples, 2 were forgotten at least once and 1 was never right."),
    ],
)  # fmt: skip
def test_forgetting_scores_in_words(template: Audit, scores: Any, histogram: dict[str, int], sentence: str) -> None:
    found = dataclasses.replace(template, forgetting=torch.tensor(scores).double())
    assert found.verdict()[-1] == sentence
    assert found.to_dict()["forgetting"] == histogram


def test_sam_is_named_where_there_is_a_radius_and_numbers_have_endings(template: Audit) -> None:
    assert "at the weights where SAM with rho 0.05 takes its gradient" in " ".join(template.verdict())
    assert "SAM" not in " ".join(dataclasses.replace(template, rho=0.0).verdict())
    assert " ".join(map(_ordinal, (1, 2, 3, 4, 11, 12, 13, 21, 22, 111))) == (
        "1st 2nd 3rd 4th 11th 12th 13th 21st 22nd 111th"
    )


def test_a_share_has_wilsons_interval() -> None:
    low, high = Share("g", 8, 10, 0.0).interval
    assert (low, high) == (pytest.approx(0.4901625, abs=1e-6), pytest.approx(0.9433178, abs=1e-6))
    for n in range(1, 100):  # no rounding at the ends: all right is not below all right
        assert (Share("g", n, n, 0.0).interval[1], Share("g", 0, n, 0.0).interval[0]) == (1.0, 0.0)
