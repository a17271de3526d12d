"""Every branch of the sentences, from summaries and results made by hand."""

from __future__ import annotations

import math

import pytest
from attrs import evolve

from evenly.engine.progress import duration
from evenly.methods.inferred import InferredGroups, Match, Minority
from evenly.report import sentences
from evenly.report.comparison_words import closing, inferences, opening, remarks, verdicts
from evenly.report.formats import number, percent, sentence, times
from evenly.report.run_words import inferred_groups, run_sentences, uncaptured, worst_group
from evenly.runs.arms import Arm
from evenly.runs.differences import Difference, signed
from evenly.runs.summary import Metric, Row, Summary

RISE, FALL, NEITHER = (
    Difference(0.023, 0.011, 0.035, 3), Difference(-0.02, -0.033, -0.007, 3), Difference(-0.004, -0.019, 0.011, 3),
)  # fmt: skip
FOR_THESE = Difference(0.267, None, None, 2, 0.05, 0.182, 0.345)
REFERENCE = {"accuracy": Metric(0.9, 0.01, (0.89, 0.9, 0.91)), "worst_group": Metric(0.6, 0.02, (0.58, 0.6, 0.62))}
METHODS = {"useful": "random_upsample"}


def summary(pair="useful+sgd", cost=1.12, swept=None, **differences):
    """An arm that has a control of the same cost."""
    method, optimizer = pair.split("+")
    arm = Arm(method, optimizer, swept or {})
    metrics = {name: Metric(0.8, 0.01, (0.79, 0.8, 0.81), difference) for name, difference in differences.items()}
    control = Arm(METHODS.get(method, "erm"), "sgd", swept or {}, control_of=arm)
    return Summary(arm, 3, "last", cost, metrics, control, cost, seed_numbers=(0, 1, 2))


def erm(swept=None, **changes):
    plain = Summary(Arm("erm", "sgd", swept or {}), 3, "last", 1.0, REFERENCE, seed_numbers=(0, 1, 2))
    return evolve(plain, **changes)


@pytest.fixture
def table(build):
    """A comparison with these summaries; its rows are of other runs unless they are given."""

    def make(*summaries, rule="last", judged="test", rows=None):
        comparison = build.of_rows(rows or [Row(Arm("erm", "sgd"), 0, build.result())], rule=rule, judged=judged)
        return evolve(comparison, summary=summaries)

    return make


@pytest.fixture
def verdict(table):
    def one(*summaries, rule="last"):
        (found,) = verdicts(table(*summaries, rule=rule))
        return found

    return one


@pytest.mark.parametrize(
    ("difference", "outcome", "text"),
    [
        (
            RISE,
            "raised",
            "raised accuracy by 2.3 points against random upsampling at the same cost (1.12x plain training)"
            ": over seeds [1.1, 3.5].",
        ),
        (FALL, "lowered", "lowered accuracy by 2.0 points against random upsampling at the same cost"),
        (NEITHER, "unclear", "no clear difference to accuracy against random upsampling"),
        (NEITHER, "unclear", ": −0.4 points; over seeds [−1.9, 1.1]."),
        (Difference(0.023, None, None, 1), "unknown", "+2.3 points; over seeds: 3 or more needed."),
        (
            Difference(0.0, None, None, 2, 0.0),
            "unclear",
            "no difference to accuracy: every seed equals random upsampling",
        ),
        (Difference(math.nan, None, None, 0), "unknown", "no seed in common"),
        (Difference(0.0003, 0.0001, 0.0005, 3), "raised", "by 0.03 points against"),
        (FOR_THESE, "raised-for-these", "raised accuracy by 26.7 points against random upsampling"),
        (
            FOR_THESE,
            "raised-for-these",
            ", clear for these models only: over test examples [18.2, 34.5], over seeds: 3 or more needed.",
        ),
        (
            evolve(RISE, examples_low=-0.01, examples_high=0.05),
            "unclear",
            "over test examples [−1.0, 5.0], over seeds [1.1",
        ),
    ],
)
def test_a_verdict_follows_the_interval(verdict, difference, outcome, text):
    found = verdict(erm(), summary(accuracy=difference))
    assert found.outcome == outcome
    assert found.sentence.startswith("useful with sgd ")
    assert text in found.sentence


def test_a_worst_group_that_moved_is_no_gain(verdict):
    moved = Difference(0.007, -0.07, 0.08, 3, 0.05, -0.036, 0.05)
    useful = evolve(summary(worst_group=moved, accuracy=NEITHER), groups=(0.7, 0.6, None))
    control = evolve(erm(groups=(0.59, 0.8, None)), arm=useful.control)
    found = verdict(erm(), useful, control, rule="worst-group")
    assert found.outcome == "unclear"
    assert "over test examples [−3.6, 5.0]" in found.sentence
    assert found.notes == (
        "A larger test set is needed: the interval over test examples includes 0.",
        "With it, another group is the worst.",
    )
    found = verdict(erm(), useful, evolve(control, groups=(0.8, 0.59, None)), rule="worst-group")
    assert found.notes[1:] == ()


def test_an_open_question_is_told_with_what_might_settle_it(verdict):
    assert verdict(erm(), summary(accuracy=evolve(NEITHER, sd=0.006))).notes == ("About 9 more seeds might settle it.",)
    corrected = evolve(RISE, sd=0.005, p=0.014, adjusted_p=0.07, family=5)
    assert verdict(erm(), summary(accuracy=corrected)).notes == (
        "Over seeds it is not clear among 5 methods: p = 0.014, 0.070 after Holm's correction.",
        "About 1 more seed might settle it.",
    )
    assert verdict(erm(), evolve(summary(accuracy=RISE), seeds=5)).notes == (
        "The difference is of 3 of 5 seeds: the others have no control.",
    )


def test_one_sentence_says_that_several_methods_are_corrected_for(table):
    several = [evolve(RISE, p=0.01, adjusted_p=0.02, family=2)] * 2
    arms = summary(accuracy=several[0]), summary("pde+sgd", 0.07, accuracy=several[1])
    said = "With 2 methods judged, clear over seeds means p < 0.05 after Holm's correction."
    assert said in closing(table(erm(), *arms))
    assert said not in closing(table(erm(), summary(accuracy=RISE)))


def test_a_control_that_cost_more_than_its_method_is_named(table):
    small = evolve(summary("pde+sgd", 0.1, accuracy=RISE), control_cost_multiple=0.141)
    said = "A control stops after the step that reaches its method's cost: that of pde with sgd cost 41% more."
    assert said in closing(table(erm(), small))
    assert said not in closing(table(erm(), evolve(small, control_cost_multiple=0.104)))


def test_the_rule_decides_the_headline(verdict):
    entry = summary(accuracy=FALL, worst_group=RISE)
    assert "raised worst-group accuracy by 2.3" in verdict(erm(), entry, rule="worst-group").sentence
    assert "lowered accuracy" in verdict(erm(), entry, rule="average").sentence
    assert "raised accuracy" in verdict(summary(accuracy=RISE), rule="worst-group").sentence  # there are no groups


def test_the_price_of_the_worst_group(verdict):
    found = verdict(erm(), summary(worst_group=RISE, train_weighted=FALL, accuracy=NEITHER), rule="worst-group")
    assert any("at the price of the average" in note and "−2.0 points [−3.3, −0.7]" in note for note in found.notes)
    free = verdict(erm(), summary(worst_group=RISE, train_weighted=NEITHER, accuracy=NEITHER), rule="worst-group")
    assert free.notes == ()
    found = verdict(erm(), summary(accuracy=NEITHER, worst_group=FALL, train_weighted=NEITHER))
    assert found.notes == ("Its worst group was lowered: −2.0 points [−3.3, −0.7].",)
    found = verdict(erm(), summary(accuracy=NEITHER, worst_group=RISE, train_weighted=FALL))
    assert "raised the worst group by 2.3 points [1.1, 3.5] at the price" in found.notes[0]


def test_a_cheap_method_is_also_compared_with_erm_in_full(verdict):
    cheap = summary("pde+sgd", 0.07, accuracy=Difference(0.4, 0.3, 0.5, 3))
    found = verdict(erm(), cheap)
    assert "against plain training with sgd stopped at the same cost (0.07x plain training)" in found.sentence
    assert found.notes == (
        "Against plain training with sgd in full (1.00x, 90.0%): −10.0 points; over seeds: all the same.",
    )
    found = verdict(erm(cost_multiple=0.5), cheap)
    assert found.notes == (
        "Against plain training with sgd as far as it ran (0.50x, 90.0%): −10.0 points; over seeds: all the same.",
    )
    (note,) = verdict(erm(seed_numbers=(2, 1, 0)), cheap).notes  # by seed, not by position
    assert note.endswith("(1.00x, 90.0%): −10.0 points; over seeds [−15.0, −5.0].")
    assert verdict(erm(seed_numbers=(3, 4, 5)), cheap).notes == ()


def test_erm_in_full_is_that_of_the_same_values(verdict):
    """Also where a name does not vary ERM; an ERM at other values is no reference."""
    better = erm({"lr": 0.2}, metrics={"accuracy": Metric(0.95, 0.01, (0.94, 0.95, 0.96))})
    notes = [
        verdict(better, erm({"lr": 0.1}), summary("pde+sgd", 0.07, swept, accuracy=RISE)).notes
        for swept in ({"lr": 0.1}, {"lr": 0.1, "pde.every": 3}, {"lr": 0.3})
    ]
    assert (
        notes[0]
        == notes[1]
        == (
            "Against plain training with sgd at lr 0.1 in full (1.00x, 90.0%): −10.0 points; over seeds: all the same.",
        )
    )
    assert notes[2] == ()


def test_the_control_is_named_with_both_costs(verdict):
    found = verdict(erm(), summary("erm+sam", 2.0, accuracy=NEITHER))
    assert "against plain training with sgd trained on to the same cost (2.00x plain training)" in found.sentence
    found = verdict(erm(), evolve(summary(accuracy=RISE), control_cost_multiple=1.5))
    assert "random upsampling (1.12x plain training; the control 1.50x)" in found.sentence
    swept = {"augment": "basic+trivial"}
    found = verdict(erm(swept), evolve(summary("group_dro+sgd", 1.0, swept, accuracy=RISE), control=erm(swept).arm))
    assert "against plain training with sgd at the same cost (1.00x plain training)" in found.sentence


def test_the_opening_says_where_erm_stands(table):
    reached = "reaches 90.0% test accuracy and 60.0% in its worst group (mean of 3 seeds)."
    assert opening(table(erm())) == f"On toys, plain training (ERM) with sgd {reached}"
    ungrouped = erm(seeds=1, metrics={"accuracy": REFERENCE["accuracy"], "worst_class": REFERENCE["worst_group"]})
    assert opening(table(ungrouped)).endswith("60.0% in its worst class (one seed).")
    assert "plain training (ERM) was not run" in opening(table(summary(accuracy=RISE)))
    for judged, name in (("validation", "validation"), ("train", "training")):
        assert f"90.0% {name} accuracy" in opening(table(erm(), judged=judged))


def test_the_cost_is_given(table):
    cheap = summary("pde+sgd", 0.07, accuracy=RISE)
    assert closing(table(erm(), summary(accuracy=RISE), cheap)) == [
        "Costs range from 0.07x what plain training costs (pde with sgd) to 1.12x (useful with sgd)."
    ]
    assert closing(table(erm())) == ["plain training with sgd cost 1.00x what plain training costs."]
    same = summary("group_dro+sgd", 1.0, accuracy=RISE)
    assert closing(table(erm(), same)) == ["Every method cost 1.00x what plain training costs."]
    shorter = closing(table(erm(cost_multiple=0.5), cheap))
    assert shorter[-1] == "1x is plain training for all the epochs set; plain training with sgd ran for fewer."


def test_the_cost_of_evaluation_is_separate(table):
    costly = evolve(summary(accuracy=RISE), evaluation_cost_multiple=3.1)
    assert "cost between 0.25x and 3.10x more" in closing(table(erm(evaluation_cost_multiple=0.25), costly))[1]
    assert "cost 0.25x more" in closing(table(erm(evaluation_cost_multiple=0.25)))[1]
    assert len(closing(table(erm()))) == 1


def test_missing_controls_are_named(table):
    bare = table(erm(), evolve(summary(accuracy=RISE), control=None))
    assert verdicts(bare) == []
    assert "No control of equal cost was run for useful with sgd" in closing(bare)[0]


def test_a_comparison_in_order_and_without_verdicts_on_controls(table):
    cheap = summary("pde+sgd", 0.07, accuracy=NEITHER)
    control = evolve(erm(cost_multiple=0.07), arm=cheap.control)
    starts = ["On toys", "useful with sgd raised", "pde with sgd made no clear difference", "Costs range from 0.07x"]
    said = sentences(table(erm(), summary(accuracy=RISE), cheap, control))
    assert [text[: len(start)] for text, start in zip(said, starts, strict=True)] == starts


def test_a_sweep_is_reported_with_its_values(table):
    low, high = ({"accuracy": Metric(mean, 0.01, (mean,) * 3)} for mean in (0.8, 0.9))
    at_32, at_64 = {"batch_size": 32}, {"batch_size": 64}
    said = sentences(table(erm(at_32, metrics=high), erm(at_64, metrics=low), summary(swept=at_64, accuracy=RISE)))
    assert "between 80.0% (at batch_size 64) and 90.0% (at batch_size 32) test accuracy (mean of 3 seeds)" in said[0]
    assert said[1].startswith("useful with sgd at batch_size 64 raised accuracy by 2.3 points")
    assert "(plain training with sgd at batch_size 32) to 1.12x (useful with sgd at batch_size 64)." in said[2]
    assert "reaches 90.0% (at batch_size 32) test accuracy" in opening(table(erm(at_32, metrics=high)))


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.53, "1.5 s"), (48.2, "48 s"), (125.0, "2 min 5 s"), (3780.0, "1 h 3 min")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_numbers_that_are_missing_or_small():
    assert percent(None) == number(math.nan) == times(None) == times(math.inf) == "–"
    assert times(0.0034) == "0.0034x"
    assert signed(-0.00001) == "0.0"
    assert sentence("a remark") == sentence("A remark.") == "A remark."


def test_why_steps_were_not_captured(build):
    plain = build.result(device="cuda", step="plain: a hook")
    other, captured = evolve(plain, step="plain: b"), evolve(plain, step="captured")
    assert uncaptured([plain]) == "steps were not captured: a hook"
    assert uncaptured([plain, plain, other, captured]) == "steps were not captured in 3 of 4 runs: a hook; b"
    assert uncaptured([captured]) == uncaptured([evolve(plain, device="cpu")]) == ""


def inferred(recall=0.67, seed=0, by="useful"):
    match = Match(recall / 2, (None, recall), Minority(1, 1.0, recall, 0.5))
    return InferredGroups(
        by, 2.0 + seed, 100.0 * (1 + seed), ("0, easy", "0, hard"), (1510.0 + 2 * seed, 4.0), (), match
    )


def test_inferred_groups_come_with_their_cost_and_how_they_match():
    text = inferred_groups(inferred())
    for part in ("by useful after 2 epochs, at the cost of 100 example-gradients", "0, easy 1,510; 0, hard 4 training",
                 "adjusted mutual information with the true groups is 0.34", "holds 67% of the smallest true group",
                 "makes up 50% of it"):  # fmt: skip
        assert part in text
    assert "after 1 epoch, at" in inferred_groups(evolve(inferred(), epoch=1.0))
    assert "true" not in inferred_groups(evolve(inferred(), match=None))


def test_a_comparison_has_the_means_of_what_was_inferred(build, table):
    rows = [
        Row(Arm(method, "sgd"), seed, build.result(method, seed=seed, inferred_groups=inferred(0.6 + 0.2 * seed, seed)))
        for seed in (0, 1)
        for method in ("erm", "pde")
    ]
    # what two methods of a seed share counts once, so that pde's second seed does not matter
    (said,) = inferences([*rows[:3], Row(Arm("lff", "sgd"), 0, build.result("lff"))])
    for part in (
        "plain training with sgd, pde with sgd: groups were inferred by useful after 2.5 epochs",
        "cost of 150 example",
        "0, easy 1,511; 0, hard 4",
        "means over 2 seeds",
        "groups is 0.35",
        "holds 70% of",
    ):
        assert part in said
    assert said in closing(table(erm(), rows=rows))
    other = Row(Arm("jtt", "sgd"), 0, build.result("jtt", inferred_groups=inferred(by="eiil")))
    assert "jtt with sgd: groups were inferred by eiil" in inferences([*rows, other])[1]
    assert "means" not in inferences(rows[:1])[0]
    control = evolve(rows[0], arm=Arm("erm", "sgd", control_of=Arm("pde", "sgd")))
    assert inferences([control]) == []


def test_what_a_method_remarks_is_said_of_its_runs(build, table):
    def row(seed, *said, **arm):
        return Row(Arm("jtt", "sgd", **arm), seed, build.result("jtt", seed=seed, remarks=said))

    both = [row(0, "nothing was repeated"), row(1, "nothing was repeated")]
    assert remarks(both) == ["jtt with sgd: nothing was repeated."]
    assert closing(table(erm(), rows=both))[-1] == "jtt with sgd: nothing was repeated."
    assert remarks([both[0], row(1)]) == ["jtt with sgd: nothing was repeated (in 1 of 2 seeds)."]
    assert remarks([row(0, "nothing was repeated", control_of=Arm("erm", "sgd")), row(1)]) == []
    assert "Nothing was repeated." in run_sentences(both[0].result)


def test_a_run_in_sentences(build):
    plain = build.result("pde", names=("a", "b", "c", "d"), selected_after_epochs=12.08, evaluation_cost=50.0)
    said = run_sentences(evolve(plain, cost=100.0, inferred_groups=inferred()))
    assert said[0].startswith("pde with sgd reaches 80.0% test accuracy and 70.0% in its worst group (a: 10 examples [")
    assert "Weights used: epoch 5 of 5, the last epoch. They cost as much as 12.1 epochs" in said[1]
    assert said[2] == "Training cost 0.50x what plain training costs and took 1.5 s."
    assert "cost 0.25x more" in said[3]
    assert said[4].startswith("Groups were inferred by useful")
    shorter = run_sentences(build.result("erm", cost=100.0, splits="train", groups=0))
    assert shorter[0] == "Plain training (ERM) with sgd reaches 80.0% training accuracy on toys."
    assert "0.50x what plain training costs for all the epochs set and" in shorter[2]


def test_the_worst_group_of_several_is_the_largest(build):
    tied = evolve(build.measured(0.8), worst_group=0.0, groups=(0.0, 1.0, 0.0, None), group_counts=(3, 9, 1000, 0))
    assert worst_group(tied, ["a", "b", "c", "d"]).startswith("c: 1,000 examples [")
    assert worst_group(tied, []).startswith("group 2: 1,000 examples [")
    assert worst_group(tied, ["a", "b", "c", "d"]).endswith("; 1 more equally low")
    one = evolve(tied, groups=(0.0, 1.0, 0.5, None), group_counts=(1, 9, 4, 0))
    assert worst_group(one, ["a"]).startswith("a: 1 example [")
