"""Probing errors against closed forms of Gaussian clouds; what a probe is fitted on and measured on never meet."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from torch import Tensor, nn

from evenly import Data, EvenlyError, Split
from evenly.diagnose import probing
from evenly.diagnose.probing import Probe, probe, probes
from evenly.diagnose.probing_sets import MOST
from evenly.engine.accuracy import wilson
from evenly.randomness import derive


class Reading(nn.Module):
    """Shows its inputs as its features, and notes how many examples it is given."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.last = nn.Linear(features, 2)
        self.given: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.given.append(x.clone())
        return self.last(x)


def clouds(n: int, seed: int, agree: float = 0.95, easy: float = 1.5, hard: float = 0.4) -> Split:
    """x = (±easy, ±hard) + N(0, 1): the easy sign is the label, the hard one agrees with it at a rate."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (n,), generator=draw)
    a = torch.where(torch.rand(n, generator=draw) < agree, y, 1 - y)
    means = torch.stack([easy * (2.0 * y - 1), hard * (2.0 * a - 1)], 1)
    return Split(means + torch.randn(n, 2, generator=draw), y, 2 * y + a, {"hard": a})


def test_two_planted_features_have_their_closed_form_errors() -> None:
    """The error of two unit Gaussians 2 mu apart is Phi(-mu), though the hard attribute follows the label at 90%.

    Of 16 intervals of 95%, 14 or more hold it with probability .96; pooled over the draws, the errors are within the
    interval of all their examples.
    """
    inside, pooled = 0, {"label": [0.0, 0], "hard": [0.0, 0]}
    for seed in range(8):
        found = probes(Reading(2), clouds(8000, seed, agree=0.9), seed=seed)
        assert list(found) == ["label", "hard"]
        for name, mu in (("label", 1.5), ("hard", 0.4)):
            one = found[name]
            inside += one.low < norm.cdf(-mu) < one.high
            assert one.low < one.error < one.high < one.low + 0.09
            assert one.chance == 0.5
            pooled[name][0] += one.error * one.n
            pooled[name][1] += one.n
    assert inside >= 14
    for name, mu in (("label", 1.5), ("hard", 0.4)):
        wrong, n = pooled[name]
        low, high = wilson(round(wrong), n)
        assert low < norm.cdf(-mu) < high


def test_correlated_noise_has_the_error_of_the_linear_discriminant() -> None:
    """Phi(-sqrt(mu' S^-1 mu)) for classes at ±mu with covariance S: .063 where single features have .16 and .31."""
    draw = torch.Generator().manual_seed(5)
    y, a = (torch.randint(2, (12_000,), generator=draw) for _ in range(2))
    mu, S = torch.tensor([1.0, -0.5]), torch.tensor([[1.0, 0.5], [0.5, 1.0]])
    noise = torch.randn(12_000, 2, generator=draw) @ torch.linalg.cholesky(S).T
    found = probe(Reading(2), (noise + (2.0 * a - 1)[:, None] * mu, y), a)
    bayes = norm.cdf(-(float(mu @ torch.linalg.solve(S, mu)) ** 0.5))
    assert found.low < bayes < found.high
    assert found.high < 0.5 * norm.cdf(-1)


def test_three_values_on_a_line_have_their_closed_form_error() -> None:
    """Centres 2 delta apart: the ends are wrong with Phi(-delta), the middle with twice that."""
    draw = torch.Generator().manual_seed(6)
    y, a = torch.randint(2, (12_000,), generator=draw), torch.randint(3, (12_000,), generator=draw)
    found = probe(Reading(1), (2.4 * (a - 1.0)[:, None] + torch.randn(12_000, 1, generator=draw), y), a + 7)
    assert found.values == (7, 8, 9)
    assert found.chance == pytest.approx(2 / 3)
    assert found.low < 4 / 3 * norm.cdf(-1.2) < found.high
    assert found.logits(torch.tensor([[-3.0], [0.0], [3.0]])).argmax(1).tolist() == [0, 1, 2]


def noise(n: int = 400, d: int = 300, seed: int = 0) -> Split:
    """Features that have nothing to do with any attribute, and enough of them to learn every example by heart."""
    draw = torch.Generator().manual_seed(seed)
    columns = {name: torch.randint(2, (n,), generator=draw) for name in ("a", "b")}
    return Split(torch.randn(n, d, generator=draw), torch.randint(2, (n,), generator=draw), attributes=columns)


def test_random_features_tell_nothing_of_held_out_examples() -> None:
    wrong = n = 0
    for seed in range(6):
        split = noise(seed=seed)
        found = probe(Reading(300), split, "a")
        told = (found.logits(split.inputs) > 0).long() == split.attributes["a"]
        wrong, n = wrong + round(found.error * found.n), n + found.n
        assert float(told[found.fitted].double().mean()) > 0.85  # it knows by heart what it was fitted on
        assert float(told[found.held_out].double().mean()) == pytest.approx(1 - found.error)
    low, high = wilson(wrong, n)
    assert low < 0.5 < high < low + 0.07


def test_the_two_parts_never_overlap_and_are_balanced() -> None:
    split = clouds(3000, 3)
    for name, found in probes(Reading(2), split).items():
        assert not set(found.fitted.tolist()) & set(found.held_out.tolist())
        for part in (found.fitted, found.held_out):
            assert part.tolist() == sorted(set(part.tolist()))
            cells = torch.bincount(2 * split.labels[part] + split.attributes["hard"][part], minlength=4)
            assert cells.unique().tolist() == [len(part) // 4], name
        rarest = int(torch.bincount(split.groups).min())
        assert len(found.fitted) == 4 * (rarest // 2)
        assert found.n == len(found.held_out) == 4 * (rarest - rarest // 2)


def test_held_out_examples_have_no_part_in_the_fit() -> None:
    split = clouds(2000, 4)
    before = probe(Reading(2), split, "hard")
    split.inputs[before.held_out] = torch.randn(before.n, 2) * 50
    after = probe(Reading(2), split, "hard")
    assert torch.equal(before.weights, after.weights)
    assert torch.equal(before.bias, after.bias)
    assert before.C == after.C
    assert before.error != after.error


def test_the_penalty_is_cross_validated() -> None:
    """As scikit-learn's own search over the same folds; noise asks for a strong penalty, a signal for a weak one."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(200, 12)) * draw.uniform(0.1, 30, 12) + draw.normal(size=12)
    chosen = []
    for answers in ((x[:, 0] > x[:, 0].mean()).astype(int), draw.integers(3, size=200)):
        C, weights, bias = probing._fitted(x, answers, 7)
        scaled = (x - x.mean(0)) / x.std(0)
        search = GridSearchCV(
            LogisticRegression(max_iter=1000),
            {"C": probing.STRENGTHS},
            scoring="neg_log_loss",
            cv=StratifiedKFold(5, shuffle=True, random_state=7),
        ).fit(scaled, answers)
        expected = search.best_estimator_.decision_function(scaled).reshape(200, -1)
        assert search.best_params_["C"] == C
        np.testing.assert_allclose(x @ weights.T + bias, expected, rtol=1e-8, atol=1e-8)
        chosen.append(C)
    assert chosen[0] > 1 > chosen[1]


def test_a_feature_that_does_not_vary_is_left_out() -> None:
    split = clouds(1000, 5, agree=0.5, hard=2.0)
    split.inputs = torch.cat([split.inputs, torch.full((1000, 1), 1e6)], 1)
    found = probe(Reading(3), split, "hard")
    assert found.weights[0, 2] == 0
    assert found.error < 0.1


def test_several_attributes_take_one_pass_over_what_they_need() -> None:
    split, model = noise(2000, 3), Reading(3)
    split.attributes["rare"] = (torch.arange(2000) < 60).long()
    found = probes(model, split, ["rare"])
    assert sum(map(len, model.given)) == len(found["rare"].fitted) + found["rare"].n <= 120
    model.given.clear()
    found = probes(model, split, ["a", "b", "rare"])
    seen = torch.cat(model.given)
    union = torch.cat([torch.cat([each.fitted, each.held_out]) for each in found.values()]).unique()
    assert torch.equal(seen, split.inputs[union])


def test_a_probe_is_fitted_on_a_small_set_and_measured_on_all_the_rest() -> None:
    split = clouds(9000, 12, agree=0.5)
    found = probe(Reading(2), split, "hard")
    rarest = int(torch.bincount(split.groups).min())
    assert len(found.fitted) == MOST
    assert found.n == 4 * rarest - MOST
    apart = probe(Reading(2), split, "hard", held_out=clouds(400, 13, agree=0.5))
    assert len(apart.fitted) == MOST


def test_a_data_is_fitted_on_validation_and_measured_on_test() -> None:
    parts = {name: clouds(800, i, agree=0.9) for i, name in enumerate(("train", "validation", "test"))}
    model = Reading(2)
    found = probe(model, Data(**parts), "hard")
    fitted, measured = parts["validation"].inputs[found.fitted], parts["test"].inputs[found.held_out]
    assert torch.equal(torch.cat(model.given), torch.cat([fitted, measured]))
    assert torch.bincount(parts["test"].groups[found.held_out]).unique().tolist() == [found.n // 4]
    told = (found.logits(measured) > 0).long()
    assert found.error == float((told != parts["test"].attributes["hard"][found.held_out]).double().mean())
    other = probe(model, parts["validation"], "hard", held_out=parts["test"])
    assert torch.equal(other.weights, found.weights)
    assert (other.error, other.n) == (found.error, found.n)
    for kept in ("validation", "test", "train"):
        model.given.clear()
        one = {"train": parts["train"]} | {name: parts[name] for name in (kept,)}
        found = probe(model, Data(**one), "hard")
        both = torch.cat([found.fitted, found.held_out]).sort().values
        assert torch.equal(torch.cat(model.given), parts[kept].inputs[both])


def shares_of(column: Tensor) -> list[float]:
    return (torch.bincount(column) / len(column)).tolist()


@pytest.mark.parametrize("values", [2, 3])
def test_without_balance_all_examples_count_in_their_own_shares(values: int) -> None:
    """As scikit-learn's search over all examples of the one set, measured on all of the other; more than `MOST`."""
    draw = torch.Generator().manual_seed(values)

    def drawn(n: int, *rare: float) -> Split:
        a = torch.multinomial(torch.tensor(rare), n, replacement=True, generator=draw)
        x = torch.randn(n, 3, generator=draw) + torch.eye(3)[a] * 1.5
        return Split(x, torch.randint(2, (n,), generator=draw), attributes={"a": a})

    first, second = (drawn(n, *(0.8, 0.15, 0.05)[:values]) for n in (2400, 900))
    found = probe(Reading(3), first, "a", held_out=second, balance=False, seed=4)
    assert found.fitted.tolist() == list(range(2400))
    assert found.held_out.tolist() == list(range(900))
    x, a = first.inputs.double().numpy(), first.attributes["a"].numpy()
    scaled, state = (x - x.mean(0)) / x.std(0), derive(4, "folds", "a") % 2**32
    search = GridSearchCV(
        LogisticRegression(max_iter=1000),
        {"C": probing.STRENGTHS},
        scoring="neg_log_loss",
        cv=StratifiedKFold(5, shuffle=True, random_state=state),
    ).fit(scaled, a)
    other = (second.inputs.double().numpy() - x.mean(0)) / x.std(0)
    expected = search.best_estimator_.decision_function(other)
    np.testing.assert_allclose(found.logits(second.inputs).numpy(), expected, rtol=1e-6, atol=1e-6)
    asked = second.attributes["a"].numpy()
    assert found.error == pytest.approx(1 - search.best_estimator_.score(other, asked), abs=1e-12)
    assert search.best_params_["C"] == found.C
    assert found.chance == pytest.approx(float((asked != 0).mean()))
    assert (found.n, found.balanced, found.balanced_over) == (900, False, ())


def test_without_balance_one_set_is_cut_into_halves_of_equal_shares() -> None:
    split = clouds(5000, 14)
    split.attributes["hard"][:] = (torch.arange(5000) % 10 == 0).long()
    found = probe(Reading(2), split, "hard", balance=False)
    assert torch.cat([found.fitted, found.held_out]).sort().values.tolist() == list(range(5000))
    for part in (found.fitted, found.held_out):
        assert shares_of(split.attributes["hard"][part]) == pytest.approx([0.9, 0.1])
    assert found.fitted.tolist() != list(range(2500))
    even = probe(Reading(2), split, "hard", against=())
    assert (even.balanced, even.chance, found.chance) == (True, 0.5, pytest.approx(0.1))


def test_without_balance_each_value_needs_examples_to_fit_on_only() -> None:
    """One example of a value is enough to measure; there is no cell of two attributes that could be empty."""
    split, other = clouds(400, 15, agree=1.0), clouds(30, 16, agree=1.0)
    other.attributes["hard"][:] = (torch.arange(30) == 3).long()
    assert probe(Reading(2), split, "hard", held_out=other, balance=False).n == 30
    refused("needs 5 in each of 4 cells", split, held_out=other)
    split.attributes["hard"][:] = (torch.arange(400) < 4).long()
    refused("has 4 examples of hard 1, and a probe of hard needs 5 in each", split, held_out=other, balance=False)
    refused("against 'label' says what to balance over, and balance is false", split, against="label", balance=False)


def test_what_a_set_is_balanced_over() -> None:
    split = clouds(4000, 6, agree=0.9)

    def shares(found: Probe, *columns: Tensor) -> list[int]:
        rows = torch.stack([column[found.fitted] for column in columns], 1)
        return rows.unique(dim=0, return_counts=True)[1].tolist()

    model, hard, y = Reading(2), split.attributes["hard"], split.labels
    alone = probe(model, split, "hard", against=())
    assert len(set(shares(alone, hard))) == 1
    assert len(set(shares(alone, hard, y))) > 1
    assert alone.error < 0.2  # read off the label's feature
    assert len(shares(probe(model, split, "group"), split.groups)) == 4
    assert probe(model, split, "group").chance == 0.75
    bare = Split(split.inputs, y, attributes={"hard": hard})
    domains = Split(split.inputs, y, hard)
    for set_ in (split, bare, domains):
        found = probe(model, set_, "label")
        assert shares(found, y, hard) == [len(found.fitted) // 4] * 4
    plain = probe(model, (split.inputs, y), "label")
    assert shares(plain, y) == [len(plain.fitted) // 2] * 2
    text = probe(model, split, "hard", against="label")
    assert torch.equal(text.fitted, probe(model, split, "hard").fitted)


def pair(n: int, follows: float, seed: int = 0, groups: str = "") -> Split:
    """x = (±.8 by the label, ±4 by a) + N(0, 1); a follows the label at a rate, b follows a at 95% and is not in x."""
    draw = torch.Generator().manual_seed(seed)

    def follow(column: Tensor, rate: float) -> Tensor:
        return torch.where(torch.rand(n, generator=draw) < rate, column, 1 - column)

    y = torch.randint(2, (n,), generator=draw)
    a = follow(y, follows)
    b, domain = follow(a, 0.95), torch.randint(3, (n,), generator=draw)
    x = torch.stack([0.8 * (2.0 * y - 1), 4 * (2.0 * a - 1)], 1) + torch.randn(n, 2, generator=draw)
    return Split(x, y, {"": None, "label": y, "domain": domain, "2y+a": 2 * y + a}[groups], {"a": a, "b": b})


@pytest.mark.parametrize("groups", ["", "label", "domain", "2y+a"])
def test_the_label_is_balanced_over_the_attributes_whatever_the_groups(groups: str) -> None:
    """Phi(-.8) = .21 is what its own feature allows; balanced over a domain it would be read off a at .05."""
    split = pair(6000, 0.9, groups=groups)
    del split.attributes["b"]
    found = probe(Reading(2), split, "label")
    assert found.balanced_over == ("a",)
    for part in (found.fitted, found.held_out):
        assert float((split.labels[part] == split.attributes["a"][part]).double().mean()) == 0.5
    assert found.low < norm.cdf(-0.8) < found.high


def test_an_attribute_is_balanced_over_the_label_and_the_other_attributes() -> None:
    """b can only be read through a, which gives it away at 95% where the set is balanced over the label alone."""
    split = pair(6000, 0.5)
    found = probes(Reading(2), split)
    assert {name: one.balanced_over for name, one in found.items()} == {
        "label": ("a", "b"), "a": ("label", "b"), "b": ("label", "a"),
    }  # fmt: skip
    for one in found.values():
        columns = [split.labels, split.attributes["a"], split.attributes["b"]]
        for part in (one.fitted, one.held_out):
            cells = (4 * columns[0] + 2 * columns[1] + columns[2])[part]
            assert torch.bincount(cells, minlength=8).unique().tolist() == [len(part) // 8]
    assert found["b"].low < 0.5 < found["b"].high
    alone = probe(Reading(2), split, "b", against="label")
    assert alone.balanced_over == ("label",)
    assert alone.low < 0.05 < alone.high
    columns = {"a": split.attributes["a"], "b": split.attributes["b"]}
    given = probes(Reading(2), (split.inputs, split.labels), columns)
    assert {name: one.balanced_over for name, one in given.items()} == {"a": ("label", "b"), "b": ("label", "a")}


def test_where_a_configuration_is_too_rare_it_is_balanced_over_less_and_says_so() -> None:
    split = pair(3000, 0.5, groups="domain")
    a, b = split.attributes["a"], split.attributes["b"]
    rarest = ((split.labels == 1) & (a == 1) & (b == 0)).nonzero()[:, 0]
    for kept, over, label in ((10, ("label", "a"), ("a", "b")), (9, ("label",), ("group",))):
        rows = torch.ones(3000, dtype=torch.bool)
        rows[rarest[kept:]] = False
        less = Split(split.inputs[rows], split.labels[rows], split.groups[rows], {"a": a[rows], "b": b[rows]})
        assert probe(Reading(2), less, "b").balanced_over == over
        assert probe(Reading(2), less, "label").balanced_over == label
        bare = Split(less.inputs, less.labels, attributes=less.attributes)
        if kept == 9:
            refused(
                "the set has 9 examples of label 1, a 1, b 0, and a probe of label needs 10 in each of 8", bare, "label"
            )
    other = pair(3000, 0.5, seed=1)
    assert probe(Reading(2), split, "b", held_out=other).balanced_over == ("label", "a")
    del other.attributes["a"]
    assert probe(Reading(2), split, "b", held_out=other).balanced_over == ("label",)
    assert (
        probe(Reading(2), split, "group").balanced_over == probe(Reading(2), split, "b", against=()).balanced_over == ()
    )


def test_contributions_are_positive_where_the_probe_tells_the_label() -> None:
    split = clouds(2000, 7, agree=0.9, hard=1.0)
    found = probe(Reading(2), split, "hard")
    signed = found.contribution(split.inputs, split.labels)
    told = (found.logits(split.inputs) > 0).long()
    assert torch.equal(signed > 0, told == split.labels)
    assert torch.allclose(signed.abs(), (split.inputs.double() @ found.weights[0] + found.bias).abs())
    three = probe(Reading(2), (split.inputs, split.labels), torch.arange(2000) % 3)
    with pytest.raises(EvenlyError, match="attribute has 3 values and labels are"):
        three.contribution(split.inputs, split.labels)
    with pytest.raises(EvenlyError, match=r"labels are \[-1, 1\]"):
        found.contribution(split.inputs, 2 * split.labels - 1)


def test_a_named_layer_is_probed_by_its_output() -> None:
    torch.manual_seed(0)
    split = clouds(1000, 8, agree=0.5, hard=2.0)
    model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    with torch.no_grad():
        model[2].weight.zero_()  # the answer is lost on the way to the outputs
    assert probe(model, split, "hard").error < 0.2
    assert probe(model, split, "hard", layer="0").weights.shape == (1, 8)
    blind = probe(model, split, "hard", layer="2")
    assert blind.weights.shape == (1, 2)
    assert blind.low < 0.5 < blind.high


def test_one_seed_decides() -> None:
    one, same, other = (probe(Reading(2), clouds(1000, 9), "hard", seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.weights, same.weights)
    assert not torch.equal(one.fitted, other.fitted)


def refused(match: str, data: Any, attribute: Any = "hard", model: nn.Module | None = None, **options: Any) -> None:
    with pytest.raises(EvenlyError, match=match) as error:
        probe(model or Reading(2), data, attribute, **options)
    assert "\n" not in str(error.value)


def test_what_cannot_be_probed_is_refused() -> None:
    split = clouds(1000, 10)
    x, y, a = split.inputs, split.labels, split.attributes["hard"]
    refused("no attribute is called 'hart'; did you mean 'hard'", split, "hart")
    refused("no attribute is called 'c'", split, against=["c"])
    refused("attribute has one value, 1, throughout the set; give a set in which it varies", (x, y), torch.ones(1000))
    few = torch.cat([(y == k).nonzero()[:9, 0] for k in (0, 1)])
    refused(
        "the set has 9 examples of label 0, and a probe of label needs 10 in each of 2 cells, 20 in all",
        (x[few], y[few]),
        "label",
    )
    refused(
        r"the set has 0 examples of attribute 0, label 1, and a probe of attribute needs 10 in each of 4 cells, 40 in "
        r"all; add examples, or balance over less, e.g. against=\(\)",
        (x, y),
        y,
    )
    many = Split(x, y, attributes={str(i): torch.randint(2, (1000,)) for i in range(41)})
    refused("in each of 4398046511104 cells", many, "label")
    refused("attribute 'attribute' have shape", (x, y), a[:10])
    refused("given for one of two sets", split, a, held_out=clouds(1000, 1))
    refused("the same set", split, held_out=split)
    refused("the same set", split, held_out=Split(x, y, attributes={"hard": a}))


def test_sets_that_do_not_go_together_are_refused() -> None:
    split, other = clouds(1000, 10), clouds(1000, 11)
    refused("the train set has no attribute 'hard'", split, held_out=(other.inputs, other.labels))
    odd = Split(other.inputs, other.labels, attributes={"hard": 2 * other.attributes["hard"]})
    refused("hard has the value 1 in one of the two sets only", split, held_out=odd)
    small = Split(other.inputs[:40], other.labels[:40], attributes={"hard": other.attributes["hard"][:40]})
    refused("the train set has . examples of hard .*needs 5 in each of 4 cells, 20 in all", split, held_out=small)
    uneven = Split(split.inputs, split.labels, split.groups.clamp(max=2))
    refused("some groups in the set lack some labels", uneven, "label")
    mixed = Split(split.inputs, split.labels, torch.where(split.groups == 2, 1, split.groups))
    refused("some groups in the set lack some labels", mixed, "label")
    with pytest.raises(EvenlyError, match="no attribute to probe"):
        probes(Reading(2), split, [])
    refused("cannot take inputs of shape", (torch.randn(1000, 2), split.labels), "label", nn.Linear(3, 2))
    endless = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    with torch.no_grad():
        endless[0].weight.fill_(torch.inf)
    refused("features that are not finite", split, "hard", endless)
