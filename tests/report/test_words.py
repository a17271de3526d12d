"""Every branch of the verdicts, from summaries made by hand."""

from __future__ import annotations

import math

import pytest

from evenly.comparison import Comparison
from evenly.report import sentences, words


def difference(mean, low, high):
    return {"mean": mean, "low": low, "high": high, "pairs": 1 if low is None else 3}


def arm(name="useful+sgd", cost=1.12, **metrics):
    """An arm that has a control of the same cost."""
    method, optimizer = name.split("+")
    other = "random_upsample" if method == "useful" else "erm"
    return {
        "arm": name,
        "method": method,
        "optimizer": optimizer,
        "seeds": 3,
        "control": f"{other}+sgd at the cost of {name}",
        "control_of": None,
        "cost_multiple": cost,
        "control_cost_multiple": cost,
        **{key: {"mean": 0.8, "sd": 0.01, "values": [0.79, 0.8, 0.81], "difference": d} for key, d in metrics.items()},
    }


def erm(**changes):
    return {
        "arm": "erm+sgd",
        "method": "erm",
        "optimizer": "sgd",
        "seeds": 3,
        "control": None,
        "control_of": None,
        "cost_multiple": 1.0,
        "control_cost_multiple": None,
        "accuracy": {"mean": 0.9, "sd": 0.01, "values": [0.89, 0.9, 0.91]},
        "worst_group": {"mean": 0.6, "sd": 0.02, "values": [0.58, 0.6, 0.62]},
        **changes,
    }


def table(*summary, rule="last", rows=()):
    return Comparison("toys", list(rows), list(summary), {"rule": rule, "seeds": [0, 1, 2]})


def verdict(*summary, rule="last"):
    (found,) = words.verdicts(table(*summary, rule=rule))
    return found


RISE, FALL, NEITHER = (
    difference(0.023, 0.011, 0.035),
    difference(-0.02, -0.033, -0.007),
    difference(-0.004, -0.019, 0.011),
)


def test_an_interval_above_zero_is_a_rise():
    found = verdict(erm(), arm(accuracy=RISE))
    assert found.outcome == "raised"
    assert found.sentence == (
        "useful with sgd raised accuracy by 2.3 points [1.1, 3.5] over random upsampling at the same cost (1.12x ERM)."
    )


def test_an_interval_below_zero_is_a_fall():
    found = verdict(erm(), arm(accuracy=FALL))
    assert found.outcome == "lowered"
    assert "lowered accuracy: −2.0 points [−3.3, −0.7] against random upsampling" in found.sentence


def test_an_interval_around_zero_is_no_clear_difference_below_zero_either():
    found = verdict(erm(), arm(accuracy=NEITHER))
    assert found.outcome == "unclear"
    assert "made no clear difference to accuracy: −0.4 points [−1.9, 1.1]" in found.sentence


def test_a_positive_mean_in_an_interval_around_zero_is_no_clear_difference():
    found = verdict(erm(), arm(accuracy=difference(0.01, -0.02, 0.04)))
    assert found.outcome == "unclear"
    assert "made no clear difference to accuracy: +1.0 points [−2.0, 4.0]" in found.sentence


def test_touching_zero_is_not_a_rise():
    assert words.outcome(difference(0.01, 0.0, 0.02)) == "unclear"
    assert words.outcome(difference(0.0, 0.0, 0.0)) == "unclear"


def test_one_seed_cannot_tell():
    found = verdict(erm(seeds=1), arm(accuracy=difference(0.023, None, None)))
    assert found.outcome == "untold"
    assert "+2.3 points" in found.sentence
    assert "one seed cannot tell" in found.sentence


def test_seeds_that_all_differ_by_the_same_cannot_tell():
    found = verdict(erm(), arm(accuracy={"mean": -0.393, "low": None, "high": None, "pairs": 2}))
    assert found.outcome == "untold"
    assert "shows −39.3 points of accuracy against random upsampling" in found.sentence
    assert found.sentence.endswith("but 2 seeds that all show the same cannot tell how far others would: run more.")


def test_seeds_that_are_all_as_their_control_made_no_difference():
    found = verdict(erm(), arm(accuracy={"mean": 0.0, "low": None, "high": None, "pairs": 2}))
    assert found.outcome == "unclear"
    assert found.sentence == (
        "useful with sgd made no difference to accuracy: every seed has the same as random upsampling at the same cost "
        "(1.12x ERM)."
    )
    assert words.outcome({"mean": 0.0, "low": None, "high": None, "pairs": 1}) == "untold"


def test_no_seed_in_common():
    found = verdict(erm(), arm(accuracy=difference(math.nan, None, None)))
    assert found.outcome == "untold"
    assert "nothing can be said" in found.sentence


def test_the_rule_decides_the_headline():
    entry = arm(accuracy=FALL, worst_group=RISE)
    assert "raised worst-group accuracy by 2.3" in verdict(erm(), entry, rule="worst-group").sentence
    assert "lowered accuracy" in verdict(erm(), entry, rule="average").sentence
    assert "raised accuracy" in verdict(arm(accuracy=RISE), rule="worst-group").sentence  # there are no groups


def test_the_price_of_the_worst_group():
    found = verdict(erm(), arm(worst_group=RISE, train_weighted=FALL, accuracy=NEITHER), rule="worst-group")
    assert any("at the price of the average" in note and "−2.0 points [−3.3, −0.7]" in note for note in found.notes)
    free = verdict(erm(), arm(worst_group=RISE, train_weighted=NEITHER, accuracy=NEITHER), rule="worst-group")
    assert free.notes == ()


def test_the_worst_group_is_told_where_it_is_not_the_headline():
    found = verdict(erm(), arm(accuracy=NEITHER, worst_group=FALL, train_weighted=NEITHER))
    assert found.notes == ("Its worst group was lowered: −2.0 points [−3.3, −0.7].",)
    found = verdict(erm(), arm(accuracy=NEITHER, worst_group=RISE, train_weighted=FALL))
    assert "raised the worst group by 2.3 points [1.1, 3.5] at the price" in found.notes[0]


def test_a_cheap_method_is_also_held_against_erm_in_full():
    found = verdict(erm(), arm("pde+sgd", 0.07, accuracy=difference(0.4, 0.3, 0.5)))
    assert "over ERM with sgd stopped at the same cost (0.07x ERM)" in found.sentence
    assert found.notes == ("Against ERM with sgd in full (1.00x, 90.0%): −10.0 points.",)


def test_longer_training_is_the_control_of_sam():
    found = verdict(erm(), arm("erm+sam", 2.0, accuracy=NEITHER))
    assert "against ERM with sgd trained on to the same cost (2.00x ERM)" in found.sentence


def test_costs_that_differ_are_both_told():
    entry = arm(accuracy=RISE) | {"control_cost_multiple": 1.5}
    assert "random upsampling (1.12x ERM; the control 1.50x)" in verdict(erm(), entry).sentence


def test_small_differences_keep_the_digits_they_need():
    sentence = verdict(erm(), arm(accuracy=difference(0.0003, 0.0001, 0.0005))).sentence
    assert "by 0.03 points [0.01, 0.05]" in sentence


def test_the_opening_tells_where_erm_stands():
    assert words.opening(table(erm())) == (
        "On toys, ERM with sgd reaches 90.0% test accuracy and 60.0% in its worst group (mean of 3 seeds)."
    )
    ungrouped = {key: value for key, value in erm(seeds=1).items() if key != "worst_group"}
    ungrouped["worst_class"] = ungrouped["accuracy"]
    assert words.opening(table(ungrouped)).endswith("90.0% in its worst class (one seed).")
    assert "ERM was not among the arms" in words.opening(table(arm(accuracy=RISE)))


@pytest.mark.parametrize(
    ("row", "split"),
    [({"test": {"accuracy": 1}}, "test"), ({"validation": {"accuracy": 1}}, "validation"), ({}, "training")],
)
def test_the_split_is_named(row, split):
    assert f"{split} accuracy" in words.opening(table(erm(), rows=[row]))


def test_the_cost_is_told():
    assert words.closing(table(erm(), arm(accuracy=RISE), arm("pde+sgd", 0.07, accuracy=RISE))) == [
        "Costs run from 0.07x what ERM costs (pde with sgd) to 1.12x (useful with sgd)."
    ]
    assert words.closing(table(erm())) == ["ERM with sgd cost 1.00x what ERM costs."]
    same = arm("group_dro+sgd", 1.0, accuracy=RISE)
    assert words.closing(table(erm(), same)) == ["Every arm cost 1.00x what ERM costs."]


def test_evaluation_is_told_apart_where_there_was_any():
    entries = [erm(evaluation_cost_multiple=0.25), arm(accuracy=RISE) | {"evaluation_cost_multiple": 3.1}]
    assert words.closing(table(*entries))[1] == (
        "Evaluation, counted apart, cost 0.25x what ERM costs (ERM with sgd) to 3.10x (useful with sgd)."
    )
    entries[1]["evaluation_cost_multiple"] = 0.25
    assert words.closing(table(*entries))[1] == "Evaluation, counted apart, cost 0.25x what ERM costs in every arm."
    assert words.evaluation(entries[:1]) == ["Evaluation, counted apart, cost 0.25x what ERM costs."]
    assert words.evaluation([erm(evaluation_cost_multiple=0.0), erm()]) == []


def test_missing_controls_are_told():
    bare = arm(accuracy=RISE) | {"control": None}
    assert words.verdicts(table(erm(), bare)) == []
    assert "No control of equal cost was run for useful with sgd" in words.closing(table(erm(), bare))[0]


def test_controls_get_no_verdict_and_sentences_are_in_order():
    control = erm(arm="erm+sgd at the cost of pde+sgd", control_of="pde+sgd", cost_multiple=0.07)
    told = sentences(table(erm(), arm(accuracy=RISE), arm("pde+sgd", 0.07, accuracy=NEITHER), control))
    assert len(told) == 4
    assert told[0].startswith("On toys")
    assert told[1].startswith("useful with sgd raised")
    assert told[2].startswith("pde with sgd made no clear difference")
    assert told[3].startswith("Costs run from 0.07x")


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.53, "1.5 s"), (48.2, "48 s"), (125.0, "2 min 5 s"), (3780.0, "1 h 3 min")]
)
def test_durations(seconds, text):
    assert words.duration(seconds) == text


def test_numbers_that_are_missing():
    assert words.percent(None) == words.number(math.nan) == words.times(None) == "–"
    assert words.times(0.0034) == "0.0034x"
    assert words.signed(-0.00001) == "0.0"


def at(entry, **sweep):
    """The entry at swept values."""
    tail = ", " + ", ".join(f"{name} {value}" for name, value in sweep.items())
    return {
        **entry,
        "arm": entry["arm"] + tail,
        "control": entry["control"] and entry["control"] + tail,
        "sweep": sweep,
    }


def test_a_sweep_is_told_with_its_values():
    low, high = (erm(accuracy={"mean": mean, "sd": 0.01, "values": [mean] * 3}) for mean in (0.8, 0.9))
    told = sentences(table(at(high, batch_size=32), at(low, batch_size=64), at(arm(accuracy=RISE), batch_size=64)))
    assert told == [
        "On toys, ERM with sgd reaches between 80.0% (at batch_size 64) and 90.0% (at batch_size 32) test accuracy "
        "(mean of 3 seeds).",
        "useful with sgd at batch_size 64 raised accuracy by 2.3 points [1.1, 3.5] over random upsampling at the same "
        "cost (1.12x ERM).",
        "Costs run from 1.00x what ERM costs (ERM with sgd at batch_size 32) to 1.12x (useful with sgd at batch_size "
        "64).",
    ]
    one = words.opening(table(at(high, batch_size=32)))
    assert one == "On toys, ERM with sgd reaches 90.0% (at batch_size 32) test accuracy (mean of 3 seeds)."


def test_a_control_named_with_swept_values_is_told_by_its_method():
    entry = at(arm("group_dro+sgd", 1.0, accuracy=RISE), augment="basic+trivial")
    entry["control"] = "erm+sgd, augment basic+trivial"
    assert (
        "over ERM with sgd at the same cost (1.00x ERM)" in verdict(at(erm(), augment="basic+trivial"), entry).sentence
    )


def test_erm_in_full_is_that_of_the_same_values():
    """Also where a name does not vary ERM; an ERM at other values is no reference."""
    cheap = arm("pde+sgd", 0.07, accuracy=difference(0.4, 0.3, 0.5))
    best = erm(accuracy={"mean": 0.95, "sd": 0.01, "values": [0.94, 0.95, 0.96]})
    notes = {
        name: verdict(at(best, lr=0.2), at(erm(), lr=0.1), at(cheap, **sweep)).notes
        for name, sweep in {"same": {"lr": 0.1}, "more": {"lr": 0.1, "pde.every": 3}, "other": {"lr": 0.3}}.items()
    }
    assert notes["same"] == notes["more"]
    assert notes["same"] == ("Against ERM with sgd at lr 0.1 in full (1.00x, 90.0%): −10.0 points.",)
    assert notes["other"] == ()


def test_arms_by_the_values_they_were_run_at():
    arms = [
        at(erm(), lr=1), at(arm(), lr=1, factor=2), at(arm(), lr=1, factor=3), at(erm(), lr=2),
        at(arm(), lr=2, factor=2),
        erm(arm="group_dro+sgd"), at(erm(control_of="useful+sgd"), lr=9),
    ]  # fmt: skip
    found = [(point, [entry["arm"] for entry in entries]) for point, entries in words.by_value(arms)]
    assert found == [
        ({"lr": 1, "factor": 2}, ["erm+sgd, lr 1", "useful+sgd, lr 1, factor 2", "group_dro+sgd"]),
        ({"lr": 1, "factor": 3}, ["erm+sgd, lr 1", "useful+sgd, lr 1, factor 3", "group_dro+sgd"]),
        ({"lr": 2, "factor": 2}, ["erm+sgd, lr 2", "useful+sgd, lr 2, factor 2", "group_dro+sgd"]),
    ]
    assert words.by_value([erm(), arm()]) == [({}, [erm(), arm()])]


def test_why_steps_were_not_captured():
    plain, quick = {"device": "cuda", "step": "plain: a hook"}, {"device": "cuda", "step": "captured"}
    assert words.uncaptured([plain]) == "steps were not captured: a hook"
    assert words.uncaptured([plain, plain, plain | {"step": "plain: b"}, quick]) == (
        "steps were not captured in 3 of 4 runs: a hook; b"
    )
    assert words.uncaptured([quick]) == words.uncaptured([plain | {"device": "cpu"}]) == words.uncaptured([{}]) == ""


def test_inferred_groups_are_told_with_what_they_cost_and_how_they_match():
    found = {"by": "useful", "epoch": 3, "cost": 1234.0, "names": ["cat, easy", "cat, hard"], "counts": [1500, 20]}
    made = (
        "groups inferred by useful after 3 epochs, at the cost of 1,234 example-gradients "
        "(cat, easy 1,500; cat, hard 20 training examples)"
    )
    assert words.inferred(found) == f"{made}."
    assert "by useful after 1 epoch, at" in words.inferred(found | {"epoch": 1})
    match = {"adjusted_mutual_information": 0.5, "minority": {"recall": 0.67, "precision": 0.1}}
    assert words.inferred(found | {"match": match}) == (
        f"{made}. Against the true ones: adjusted mutual information 0.50; one inferred group holds 67% of the "
        "smallest true group, which makes up 10% of it."
    )


def test_a_comparison_tells_what_was_inferred_as_means_over_seeds():
    def row(method, seed, recall, **more):
        match = {"adjusted_mutual_information": recall / 2, "minority": {"recall": recall, "precision": 0.5}}
        found = {"by": "useful", "epoch": 2 + seed, "cost": 100.0 * (1 + seed), "names": ["0, easy", "0, hard"],
                 "counts": [10 + 2 * seed, 4], "match": match | {"purity": [None, recall]}}  # fmt: skip
        return {"method": method, "optimizer": "sgd", "seed": seed, "inferred_groups": found | more}

    rows = [row(method, seed, 0.6 + 0.2 * seed) for seed in (0, 1) for method in ("erm", "pde")]
    expected = (
        "ERM with sgd, pde with sgd: groups inferred by useful after 2.5 epochs, at the cost of 150 example-gradients "
        "(0, easy 11; 0, hard 4 training examples), means over 2 seeds. Against the true ones: adjusted mutual "
        "information 0.35; one inferred group holds 70% of the smallest true group, which makes up 50% of it."
    )
    both = table(erm(), rows=[*rows, {"method": "lff", "optimizer": "sgd", "seed": 0}])
    assert words.inferences(both) == [expected]
    assert expected in sentences(both)
    other = row("jtt", 0, 0.1, by="eiil")
    assert [told.partition(" after")[0] for told in words.inferences(table(erm(), rows=[*rows, other]))] == [
        "ERM with sgd, pde with sgd: groups inferred by useful", "jtt with sgd: groups inferred by eiil",
    ]  # fmt: skip
    (one,) = words.inferences(table(erm(), rows=[rows[0]]))
    assert "means" not in one
    assert words.inferences(table(erm())) == []


def of_method(method, seed=0, chosen=None, **more):
    return {"method": method, "optimizer": "sgd", "seed": seed, "chosen": chosen, "rule": "last", **more}


RUN = {"data": "toys", "selected_epoch": 2, "epochs": 2, "cost_multiple": 1.0, "seconds": 1.0}


@pytest.mark.parametrize(
    ("method", "what"),
    [
        ("jtt", "nothing was repeated: the first model made no errors"),
        ("misclassification", "nothing was repeated: the early network made no errors"),
        ("quantile", "nothing was repeated: no early loss is above the quantile"),
        ("useful", "nothing was repeated: in each class"),
        ("upweight", "nothing was weighed up"),
        ("eiil", "no example is in a second environment"),
    ],
)
def test_that_nothing_was_singled_out_is_told(method, what):
    seeds = [of_method(method, 0, 0), of_method(method, 1, 0)]
    (told,) = words.remarks(table(erm(), rows=seeds))
    assert told.startswith(f"{method} with sgd: {what}")
    assert "seeds" not in told
    assert words.closing(table(erm(), rows=seeds))[-1] == told
    (told,) = words.remarks(table(erm(), rows=[seeds[0], of_method(method, 1, 7)]))
    assert told.endswith(" (in 1 of 2 seeds).")
    assert words.remarks(table(erm(), rows=[of_method(method, 0, 7), of_method("erm"), of_method("pde", 0, 0)])) == []
    control = of_method(method, 0, 0, control_of="another")
    assert words.remarks(table(erm(), rows=[control])) == []
    said = words.run_sentences(of_method(method, 0, 0, **RUN))[-1]
    assert said.lower().startswith(what)
    assert said != words.run_sentences(of_method(method, 0, 7, **RUN))[-1]


@pytest.mark.parametrize(("chosen", "of"), [(5, "training"), (0, "validation")])
def test_that_a_last_layer_was_fitted_anew_is_told_with_what_it_was_fitted_to(chosen, of):
    row = of_method("dfr", 0, chosen)
    fitted = f"after the epochs the last layer was fitted anew to group-balanced draws of {of} examples"
    (told,) = words.remarks(table(erm(), rows=[row]))
    assert told.startswith(f"dfr with sgd: {fitted}")
    assert ("accuracy on validation is no test of it" in told) is (of == "validation")
    assert words.run_sentences(row | RUN)[1].startswith(
        f"The weights are those of epoch 2 of 2: the last epoch; {fitted}"
    )


def test_one_is_erm_for_all_its_epochs_where_it_ran_for_fewer():
    short = erm(cost_multiple=0.5)
    told = words.closing(table(short, arm("pde+sgd", 0.07, accuracy=RISE)))
    assert told == [
        "Costs run from 0.07x what ERM costs (pde with sgd) to 0.50x (ERM with sgd).",
        "1x is ERM for all the epochs set; ERM with sgd ran for fewer.",
    ]
    found = verdict(short, arm("pde+sgd", 0.07, accuracy=RISE))
    assert found.notes == ("Against ERM with sgd as far as it ran (0.50x, 90.0%): −10.0 points.",)
    costs = [words.run_sentences(of_method(method, **RUN | {"cost_multiple": 0.5}))[2] for method in ("erm", "pde")]
    assert costs == [
        "Training cost 0.50x what ERM costs for all the epochs set and took 1.0 s.",
        "Training cost 0.50x what ERM costs and took 1.0 s.",
    ]
