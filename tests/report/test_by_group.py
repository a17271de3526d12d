"""What a page tells of groups: numbers by hand, and what is left out where it cannot be told."""

from __future__ import annotations

import re

import pytest

from evenly.comparison import summarise
from evenly.cost_to_reach import cost_to_reach
from evenly.engine.accuracy import wilson
from evenly.errors import EvenlyError
from evenly.report import by_group, comparison_page, run_page, words

NAMES = ["a", "b", "<i>c</i>", "d"]
CONFIG = {
    "model": {"name": "mlp", "options": {}},
    "method": {"name": "pde", "options": {}},
    "optimizer": "sgd",
    "settings": {"epochs": 5, "batch_size": 16, "select": "last"},
    "budget": None,
    "seed": 0,
}


def with_worst_groups(run, values, cost=100.0, sizes=None):
    """The run with these worst groups on validation, epoch by epoch (None: no look), at a cost of so much an epoch."""
    run.history = [
        {"stage": "final", "epoch": e, "cost": cost * e, "examples": 60 if sizes is None else sizes[e - 1], "lr": 0.1,
         "train_loss": 0.5, "train_accuracy": 0.5}
        | ({} if v is None else {"validation": {"accuracy": v, "worst_group": v, "groups": [v, 1.0, None, 0.9]}})
        for e, v in enumerate(values, 1)
    ]  # fmt: skip
    run.cost = run.history[-1]["cost"]
    return run


@pytest.fixture
def table(make_table):
    """ERM, whose best is 0.5 and 0.4, and PDE, two seeds; an epoch of ERM costs 200 and one of PDE 10."""
    table = make_table(seeds=2, arms=["erm+sgd", "pde+sgd"], features=False)
    for (arm, seed), run in table.runs.items():
        if arm == "erm+sgd":
            with_worst_groups(run, [0.1, 0.5 - 0.1 * seed, 0.3], cost=200)
        else:
            with_worst_groups(run, [0.2, None, 0.55, 0.61 - 0.1 * seed], cost=10, sizes=[8, 8, 12, 16])
    for row in table.rows:
        row |= {"cost": 600.0, "cost_multiple": 1.0, "control": None}
        row["train"] |= {"group_counts": [100, 10, 0, 40]}
        pde = row["method"] == "pde"
        row["used"] = {"groups": [5, 10, 0, 5] if pde else [100, 10, 0, 40],
                       "groups_shown": [10, 40, 0, 10] if pde else [300, 30, 0, 120]}  # fmt: skip
        row["selected_after_epochs"] = 1.5 + row["seed"]
    table.summary[:] = summarise(table.rows, table.runs)
    return table


def texts(block):
    return {row.name: [f"{cell.text} {cell.spread}".strip() for cell in row.cells] for row in block.rows}


@pytest.mark.parametrize(
    ("level", "cost"), [(0.0, 20), (0.3, 20), (0.31, 40), (0.6, 40), (0.75, 60), (0.76, None), (1, None)]
)
def test_cost_to_reach_by_hand(level, cost):
    looks = {2: 0.3, 3: 0.25, 4: 0.6, 5: 0.1, 6: 0.15 + 0.6}  # 0.1 + 0.2 is not 0.3 either
    history = [{"epoch": e, "cost": 10.0 * e} | ({"validation": {"worst_group": looks[e]}} if e in looks else {})
               for e in range(1, 7)]  # fmt: skip
    assert cost_to_reach(history, level) == cost
    assert cost_to_reach([{"cost": 1.0, "validation": {"accuracy": 1.0}}], level) is None  # there are no groups


@pytest.mark.parametrize("level", [75, -0.1, float("nan")])
def test_a_level_that_is_no_share(level):
    with pytest.raises(EvenlyError, match=r"worst_group .* is not a share; give a number in \[0, 1\]"):
        cost_to_reach([], level)


def test_the_cost_of_coming_above_erm(table):
    block = by_group.reaching(table)
    assert block.columns == ["arm", "ERM's best", "+5 points", "+10 points", "+15 points"]
    found = texts(block)
    # ERM's bests are 0.5 and 0.4. Seed 0 comes to 0.55 in its third epoch and to 0.61 in its fourth, seed 1 to 0.55
    both = "2 of 2 seeds"
    assert found["pde+sgd"] == [f"30 0.05×, {both}", f"30 0.05×, {both}", f"35 0.06×, {both}", "never 1 of 2 seeds"]
    assert found["erm+sgd"] == [f"400 0.67×, {both}", *["never 0 of 2 seeds"] * 3]
    assert "Left out" not in block.caption
    (told,) = words.reached(table)
    assert told == (
        "Median cost up to ERM's best worst group on validation plus 10 points, 1x being all of ERM's: "
        "pde with sgd 0.06x (2 of 2 seeds)."
    )
    assert told in words.closing(table)


@pytest.mark.parametrize(
    ("costs", "median", "came"),
    [
        ((10, 20, 90), 20, 3),
        ((10, None, 90), 90, 2),  # of those that arrived it would be 50
        ((None, None, 10), None, 1),
        ((10, None), None, 1),
        ((None,), None, 0),
    ],
)
def test_a_seed_that_never_comes_so_far_is_the_dearest(make_table, costs, median, came):
    table = make_table(seeds=len(costs), arms=["erm+sgd", "pde+sgd"], features=False)
    for (arm, seed), run in table.runs.items():
        reached = 0.5 if arm == "erm+sgd" or costs[seed] is not None else 0.4
        with_worst_groups(run, [reached], cost=100 if arm == "erm+sgd" else costs[seed] or 100)
    for row in table.rows:
        row |= {"cost": 100.0, "cost_multiple": 1.0, "control": None}
    table.summary[:] = summarise(table.rows, table.runs)
    level = table.summary[1]["cost_to_reach"][0]
    assert (level["costs"], level["seeds"], level["seeds_reached"]) == (list(costs), len(costs), came)
    assert level["median_cost"] == median
    assert level["median_cost_multiple"] == (None if median is None else median / 100)
    (told,) = words.reached(table) or [""]
    price = "never" if median is None else f"{median / 100:.2f}x"
    several = f" ({came} of {len(costs)} seeds)" if len(costs) > 1 else ""
    assert told.endswith(f"pde with sgd {price}{several}.") if came else not told
    assert told.startswith("Median cost" if len(costs) > 1 else "Cost") or not told


def test_arms_whose_weights_are_of_no_epoch_are_left_out(table):
    for key in (("pde+sgd", 0), ("pde+sgd", 1)):
        table.runs[key].cost += 50  # as DFR, which fits a layer after its epochs
    table.summary[:] = summarise(table.rows, table.runs)
    assert "cost_to_reach" not in table.summary[1]
    assert by_group.reaching(table) is None
    why = "its weights were changed after the last epoch"
    assert table.summary[1]["cost_to_reach_untold"] == why
    assert words.reached(table) == [f"Cost to reach a worst group: not told of pde with sgd, as {why}."]
    assert words.reached(table)[0] in words.closing(table)


def test_left_out_arms_are_named_with_the_reason(table):
    table.summary.append({**table.summary[1], "arm": "dfr+sgd", "method": "dfr", "cost_to_reach_untold": "a reason"})
    del table.summary[-1]["cost_to_reach"]
    assert by_group.reaching(table).caption.endswith(" Not told of dfr with sgd, as a reason.")
    (told,) = words.reached(table)
    assert told.endswith("pde with sgd 0.06x (2 of 2 seeds); not told of dfr with sgd, as a reason.")


@pytest.mark.parametrize("who", ["erm+sgd", "pde+sgd"])
def test_where_validation_tells_of_inferred_groups_that_is_the_reason(table, who):
    for (arm, _), run in table.runs.items():
        for row in run.history if arm == who else ():
            row["validation"] = {"accuracy": 0.9, "worst_inferred_group": 0.5, "inferred_groups": [0.5, 0.75]}
    table.summary[:] = summarise(table.rows, table.runs)
    assert words.reached(table) == [
        "Cost to reach a worst group: not told of pde with sgd, as validation was looked at by inferred groups."
    ]


@pytest.mark.parametrize("what", ["no erm", "no validation", "no runs"])
def test_nothing_to_hold_the_cost_against(table, what):
    rows, runs = table.rows, table.runs
    if what == "no erm":
        rows = [row for row in rows if row["method"] != "erm"]
    elif what == "no runs":
        runs = {}
    else:
        for run in runs.values():
            for row in run.history:
                row.pop("validation", None)
    table.summary[:] = summarise(rows, runs)
    assert by_group.reaching(table) is None
    assert words.reached(table) == []


def test_where_the_examples_came_from(table, make_images):
    data = make_images(group_names=NAMES)
    block = by_group.origins(table, data)
    assert texts(block) == {
        "a": ["100", "100 × 3.0", "5 × 2.0"],
        "b": ["10", "10 × 3.0", "10 × 4.0"],
        "<i>c</i>": ["0", "0", "0"],
        "d": ["40", "40 × 3.0", "5 × 2.0"],
    }
    assert block.caption.endswith("pde+sgd used 5 of 100 training examples of 'a'.")
    table.summary.pop(1)
    assert by_group.origins(table, data) is None  # ERM alone uses everything


def test_where_a_runs_examples_came_from(make_run, make_images):
    data, run = make_images(group_names=NAMES), make_run("pde", 0.8, 0)
    assert by_group.origins_of_run(run, data) is None  # a run from before this was counted
    run.results["train"]["group_counts"] = [100, 10, 0, 40]
    run.results["used"] = {"groups": [5, 10, 0, 5], "groups_shown": [10, 40, 0, 10]}
    block = by_group.origins_of_run(run, data)
    assert texts(block) == {
        "a": ["100", "5", "5.0", "2.0"],
        "b": ["10", "10", "100.0", "4.0"],
        "<i>c</i>": ["0", "0", "–", "–"],
        "d": ["40", "5", "12.5", "2.0"],
    }
    assert block.caption.endswith("pde with sgd used 5 of 100 training examples of 'a'.")
    run.results["used"] = {"groups": [100, 10, 0, 40], "groups_shown": [300, 30, 0, 120]}
    assert by_group.origins_of_run(run, data) is None
    run.results["used"]["groups_shown"][1] = 60  # all of them, but some more often
    assert texts(by_group.origins_of_run(run, data))["b"] == ["10", "10", "100.0", "6.0"]


def test_groups_in_numbers(table, make_images):
    found = texts(by_group.accuracies(table, make_images(group_names=NAMES)))
    low, high = wilson(7, 10)  # 0.70 and 0.703 in two seeds, of ten each
    assert found["a"][:2] == ["10", f"70.2 [{100 * low:.1f}, {100 * high:.1f}]"]
    assert found["d"] == ["0", "–", "–"]


def test_growth_is_marked_where_it_happened(table, make_run):
    assert by_group.growth(table.runs["pde+sgd", 0]) == [(2, 12), (3, 16)]
    assert by_group.growth(table.runs["erm+sgd", 0]) == []
    shorter = with_worst_groups(make_run("erm", 0.8, 0), [0.5, 0.5], sizes=[60, 20])  # a budget that ended
    assert by_group.growth(shorter) == []
    block = by_group.over_epochs({"erm": [table.runs["erm+sgd", 0]], "pde": [table.runs["pde+sgd", 0]]}, NAMES, "x")
    erm, pde = (panel.svg for panel in block.panels)
    assert (dotted(erm), dotted(pde)) == (0, 2)
    assert "pde: the training set grew at the dotted lines, from 8 to 16 examples." in block.caption
    assert [name for name, _ in block.legend] == NAMES
    assert "a 61.0%; b 100.0%; d 90.0%" in pde  # a group that validation lacks has no line


def dotted(svg):
    return len(re.findall(r"stroke-dasharray: 0?\.8", svg))


def test_inferred_groups_go_by_their_own_names(table, make_run):
    run = with_worst_groups(make_run("pde", 0.8, 0), [0.5, 0.6])
    for row in run.history:
        row["validation"] = {"accuracy": 0.9, "worst_inferred_group": 0.5, "inferred_groups": [0.5, 0.75]}
    run.results["inferred_groups"] = {"names": ["easy", "hard"]}
    block = by_group.over_epochs({"erm": [table.runs["erm+sgd", 0]], "pde": [run]}, NAMES, "x")
    assert [name for name, _ in block.legend] == [*NAMES, "easy", "hard"]
    assert len({look for _, look in block.legend}) == 6
    assert "easy 50.0%; hard 75.0%" in block.panels[1].svg
    assert " The groups of pde are inferred ones: easy / hard." in block.caption


def test_the_worst_of_many_groups_are_drawn(make_run):
    run = make_run("erm", 0.5, 0, groups=30)
    block = by_group.over_epochs({"erm": [run]}, [f"g{k}" for k in range(30)], "x")
    assert [name for name, _ in block.legend] == [f"g{k}" for k in range(by_group.MOST_LINES)]
    assert "Of 30 groups, the 7 where erm does worst." in block.caption


def test_levels_that_one_run_reached(make_run):
    run = with_worst_groups(make_run("pde", 0.8, 0, cost=400.0, cost_multiple=0.5), [0.05, None, 0.3, 0.2, 0.7, 0.69])
    assert texts(by_group.reaching_of_run(run)) == {"30%": ["3", "300", "0.38"], "70%": ["5", "500", "0.62"]}
    run.cost += 1
    assert by_group.reaching_of_run(run) is None


def test_pages_hold_it_all_and_names_stay_text(table, make_images, tmp_path):
    data = make_images(group_names=NAMES)
    table.plan["rule"] = "worst-group"
    comparison_page(table, tmp_path / "both.html", [data])
    run_page(table.runs["pde+sgd", 0], data, CONFIG, tmp_path / "one.html")
    for name in ("both", "one"):
        html = (tmp_path / f"{name}.html").read_text()
        assert "<i>c" not in html
        for title in ("Groups over epochs", "Cost to reach a worst group"):
            assert f"<h3>{title}</h3>" in html
    html = (tmp_path / "both.html").read_text()
    for title in ("Groups in numbers", "Where the examples came from"):
        assert f"<h3>{title}</h3>" in html
    assert "kept after" in html
    assert "<td>2.0</td>" in html  # the mean of 1.5 and 2.5 full epochs
    assert "Wilson" in (tmp_path / "one.html").read_text()


def test_what_a_run_kept_is_told_in_full_epochs(make_run):
    run = make_run("pde", 0.8, 0, selected_after_epochs=12.08)
    kept = words.run_sentences(run.results)[1]
    assert kept.startswith("The weights are those of epoch 5 of 5, after the cost of 12.1 epochs of the full training")
