"""Inferred groups: by the rule, on training and validation; true ones measured by and kept from everything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import adjusted_mutual_info_score
from torch import nn

import evenly
from evenly import Data, EvenlyError, hard_examples
from evenly.engine import Fit
from evenly.errors import EvenlyWarning
from evenly.methods import METHODS, infer_groups
from evenly.methods.inferred import Inferred, Minority, hard_in_each, match
from evenly.models import factory
from evenly.optim.registry import builder
from evenly.settings import Settings

NEED_GROUPS = [name for name, method in METHODS.items() if method.needs_groups]
PLAN = {"epochs": 4, "batch_size": 16, "lr": 0.1}


def without_groups(data: Data) -> Data:
    return Data(**{name: (split.inputs, split.labels) for name, split in data.splits.items()})


@pytest.mark.parametrize("by", ["useful", "eiil"])
def test_groups_are_class_and_what_the_early_network_sets_apart(tiny: Any, engine: Any, linear: Any, by: Any) -> None:
    data, fit = tiny(dtype=torch.float64), engine(epochs=20, batch_size=None, momentum=0.0)
    found = infer_groups(linear, data, fit, by)
    early = fit(linear(), data, stage="groups", until=lambda history: len(history) == found.epoch).model
    logits, labels = early(data.train.inputs).detach(), data.train.labels
    if by == "useful":
        apart = hard_examples(logits, labels, seed=fit.seed)
    else:
        apart = (logits.argmax(1) != labels).nonzero().flatten()
    expected = 2 * labels
    expected[apart] += 1
    assert found.data.train.groups.tolist() == expected.tolist()
    assert 0 < len(apart) < 60
    assert found.cost == pytest.approx(found.epoch * 60 + (60 + 24) / 3, rel=1e-12)
    assert found.data.group_names == [
        f"class {k}, {kind}"
        for k in (0, 1)
        for kind in (("easy", "hard") if by == "useful" else ("first environment", "second environment"))
    ]
    assert found.data.test is None
    assert torch.equal(found.known, data.train.groups)
    own = early(data.validation.inputs).detach()
    if by == "eiil":
        other = (own.argmax(1) != data.validation.labels).long()
    else:  # the nearer of the two clusters' means in the class, one example at a time
        p, q = logits.softmax(1), own.softmax(1)
        mean = {
            (k, h): p[[i for i in range(60) if labels[i] == k and (i in apart) == bool(h)]].mean(0)
            for k in (0, 1)
            for h in (0, 1)
        }
        other = torch.tensor(
            [int((q[i] - mean[int(k), 1]).norm() < (q[i] - mean[int(k), 0]).norm())
             for i, k in enumerate(data.validation.labels)]
        )  # fmt: skip
    assert found.data.validation.groups.tolist() == (2 * data.validation.labels + other).tolist()


def test_groups_for_evaluation_are_left_to_it(tiny: Any, net: Any) -> None:
    data = tiny()
    for split in data.splits.values():
        split.evaluation_groups = torch.stack([split.groups >= 1, split.groups == 3], 1)
    run = evenly.train(data, model=net, method="subsample", groups="infer", select="worst-group", **PLAN)
    assert len(run.history[0]["validation"]["inferred_groups"]) == 4
    assert len(run.results.splits["test"].groups) == 2
    assert all(split.evaluation_groups is not None for split in data.splits.values())


def test_training_examples_are_nearest_to_the_mean_of_their_own_cluster() -> None:
    draw = torch.Generator().manual_seed(0)
    outputs = torch.randn(80, 3, generator=draw, dtype=torch.float64) * 3
    labels = torch.arange(80) % 3
    twice = hard_in_each({"train": outputs, "validation": outputs}, {"train": labels, "validation": labels}, 0)
    assert 0 < int(twice["train"].sum()) < 80
    assert torch.equal(twice["train"], twice["validation"])


def test_a_class_that_is_all_alike_is_one_group() -> None:
    labels = torch.arange(20) % 2
    outputs = torch.where(labels[:, None] == 1, 0.0, torch.randn(20, 2, generator=torch.Generator().manual_seed(1)))
    new = (torch.randn(8, 2, generator=torch.Generator().manual_seed(2)), torch.arange(8) % 2)
    found = hard_in_each({"train": outputs, "validation": new[0]}, {"train": labels, "validation": new[1]}, 0)
    assert found["train"][labels == 1].sum() == 0 < found["train"].sum()
    assert found["validation"][new[1] == 1].sum() == 0


@pytest.mark.parametrize("by", ["useful", "eiil"])
@pytest.mark.parametrize("method", NEED_GROUPS)
def test_methods_that_need_groups_run_on_data_without(tiny: Any, net: Any, method: str, by: str) -> None:
    data = without_groups(tiny())
    run = evenly.train(data, model=net, method=method, groups="infer", infer=by, select="worst-group", **PLAN)
    assert run.results.rule == "worst-inferred-group"
    assert run.results.inferred_groups.by == by
    assert sum(run.results.inferred_groups.counts) == 60
    assert run.results.inferred_groups.match is None
    best = max((row["validation"]["worst_inferred_group"], row["validation"]["accuracy"]) for row in run.history)
    chosen = run.history[run.results.selected_epoch - 1]["validation"]
    assert (chosen["worst_inferred_group"], chosen["accuracy"]) == best
    assert "worst_group" not in chosen
    assert run.history[0]["cost"] > run.results.inferred_groups.cost > 60


@pytest.mark.parametrize("method", [*NEED_GROUPS, "erm"])
def test_true_groups_change_nothing_but_what_is_measured(tiny: Any, net: Any, engine: Any, method: str) -> None:
    data = tiny()
    blind, known = (
        evenly.train(d, model=net, method=method, groups="infer", select="worst-group", **PLAN)
        for d in (without_groups(data), data)
    )
    for key, value in blind.model.state_dict().items():
        assert torch.equal(value, known.model.state_dict()[key])
    assert blind.history == known.history
    assert known.results.splits["test"].group_counts == (6,) * 4
    assert blind.results.splits["test"].groups == ()
    inferred = infer_groups_of(data, net, engine)
    assert known.results.inferred_groups.match.purity == match(inferred, data.train.groups).purity


def infer_groups_of(data: Data, net: Any, engine: Any) -> torch.Tensor:
    """The groups that the run inferred, made again from the same seed."""
    from evenly.models import factory

    fresh, _ = factory(net, (5,), 2, 0)
    return infer_groups(fresh, data, engine(seed=0)).data.train.groups


def test_groups_that_nothing_would_use_are_not_inferred(tiny: Any, net: Any, tmp_path: Path) -> None:
    said = "groups 'infer' would not be used by erm; give select='worst-group', or a method .*: dfr, group_dro, pde"
    with pytest.raises(EvenlyError, match=said):
        evenly.train(tiny(), model=net, method="erm", groups="infer", out=tmp_path / "a", **PLAN)
    with pytest.raises(EvenlyError, match="would not be used by erm, useful; "):
        evenly.compare(tiny(), model=net, methods=["erm", "useful"], groups="infer", out=tmp_path / "b", **PLAN)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("method", "options"), [("pde", {}), ("dfr", {}), ("dfr", {"on": "validation"}), ("useful", {})]
)
def test_inferring_is_billed_to_a_method_that_needs_groups_and_else_to_evaluation(
    tiny: Any, net: Any, method: str, options: dict[str, Any]
) -> None:
    run = evenly.train(tiny(), model=net, method=method, groups="infer", select="worst-group", **options, **PLAN)
    shown, inferring = sum(row["examples"] for row in run.history), run.results.inferred_groups.cost
    later = (60 + 24 + 1) / 3 if method == "dfr" else 0.0
    looks = 4 * 24 / 3
    if method == "useful":
        early = len(run.selection.details["early_losses"]) * 60 + 60 / 3
        assert run.results.cost == pytest.approx(early + shown, rel=1e-12)
        assert run.results.evaluation_cost == pytest.approx(looks + inferring, rel=1e-12)
    else:
        assert run.results.cost == pytest.approx(inferring + shown + later, rel=1e-12)
        assert run.results.evaluation_cost == pytest.approx(looks, rel=1e-12)


def test_a_last_layer_fitted_to_validation_needs_a_test_set_whatever_the_groups(tiny: Any, net: Any) -> None:
    whole = tiny()
    data = Data(whole.train, whole.validation)
    with pytest.raises(EvenlyError, match="nothing is left to measure it on; give a test set"):
        evenly.train(data, model=net, method="dfr", on="validation", groups="infer", **PLAN)


def test_a_match_by_hand() -> None:
    true = torch.tensor([0] * 6 + [1] * 2 + [3] * 4)
    inferred = torch.tensor([0] * 5 + [1] + [1, 1] + [2, 2, 2, 1])
    found = match(inferred, true)
    assert found.purity == (5 / 6, 1.0, None, 3 / 4)
    assert found.minority == Minority(group=1, inferred=1, recall=1.0, precision=2 / 4)
    expected = adjusted_mutual_info_score(true, inferred)
    assert found.adjusted_mutual_information == pytest.approx(expected)
    assert match(true, true).adjusted_mutual_information == pytest.approx(1)
    overlapping = torch.stack([true >= 1, true >= 3], 1)
    assert match(inferred, overlapping).purity == (5 / 6, 1.0, 3 / 4)


def test_controls_train_for_the_whole_cost_and_are_selected_by_the_same_groups(tiny: Any, net: Any) -> None:
    settings = {"groups": "infer", "select": "worst-group", "seeds": 1, **PLAN}
    table = evenly.compare(tiny(), model=net, methods=["pde", "group_dro", "dfr"], **settings)
    rows = {row.arm: row for row in table.rows}
    arms = [row for row in rows.values() if row.arm.control_of is None]
    assert len(arms) == 3
    for row in arms:
        control = rows[row.control]
        assert control.arm.method == "erm"
        assert row.result.cost <= control.result.cost < row.result.cost + 17
        assert control.result.inferred_groups == row.result.inferred_groups
    assert table.plan.rule == "worst-inferred-group"


def test_a_budget_does_not_cut_the_inference_short(tiny: Any, net: Any) -> None:
    settings = {"groups": "infer", "select": "worst-group", "schedule": "step", **PLAN}
    free, bound = (evenly.train(tiny(), model=net, budget=budget, **settings) for budget in (None, 30.0))
    assert free.results.inferred_groups == bound.results.inferred_groups
    assert len(bound.history) == 1 < len(free.history)


def test_a_class_of_one_example_cannot_be_parted_by_clusters(tiny: Any) -> None:
    data = without_groups(tiny([0] * 9 + [3]))
    with pytest.raises(EvenlyError, match="class 1 has one example and cannot be split"):
        evenly.train(data, model="mlp", method="pde", groups="infer", epochs=2)
    alone = "no class fell in two by infer 'eiil', so groups are the classes; try infer='useful'"
    with pytest.warns(EvenlyWarning, match=alone):
        assert evenly.train(data, model="mlp", method="pde", groups="infer", infer="eiil", epochs=2).history


def test_inferred_groups_that_validation_lacks_are_told_of_where_the_rule_goes_by_them(
    tiny: Any, tmp_path: Path
) -> None:
    def inferred(validation: list[int]) -> Inferred:
        train, held = (torch.tensor(g) for g in ([0, 0, 1, 2, 2, 3], validation))
        parts = [(torch.randn(len(g), 5), g // 2, g) for g in (train, held)]
        data = Data(*parts, group_names=["a, easy", "a, hard", "b, easy", "b, hard"])
        return Inferred(data, "useful", 1, 1.0, None, nn.Identity(), lambda split: split.labels)

    one, two, none = inferred([0, 1, 2]), inferred([0, 2]), inferred([3, 2, 1, 0])
    assert one.doubts("worst-group") == [
        "1 of 4 inferred groups ('b, hard') has no validation example, so select 'worst-group' cannot see it; hold out "
        "more examples, or use select='worst-class'"
    ]
    assert two.doubts("worst-group")[0].startswith(
        "2 of 4 inferred groups ('a, hard', 'b, hard') have no validation example"
    )
    assert two.doubts("last") == none.doubts("average") == []
    (small,) = none.doubts("worst-group")
    assert small.startswith("select 'worst-group' goes by groups of validation, where 'a, easy' has 1 example")
    assert two.summary().without_validation == ("a, hard", "b, hard")
    assert none.summary().without_validation == ()
    train, held = (getattr(tiny(), name) for name in ("train", "validation"))
    few = Data((train.inputs, train.labels), (held.inputs[:2], torch.tensor([0, 1])))
    with pytest.warns(EvenlyWarning, match=r"2 of 4 inferred groups \(.*\) have no validation example"):
        run = evenly.train(few, model="mlp", method="erm", select="worst-group", groups="infer", **PLAN)
    assert len(run.results.inferred_groups.without_validation) == 2
    of_one = Data((train.inputs, train.labels), (held.inputs[:2], torch.tensor([0, 0])))
    with pytest.warns(EvenlyWarning, match=r"[23] of 4 inferred groups \(.*\) have no validation example"):
        evenly.train(of_one, model="mlp", method="pde", select="worst-group", groups="infer", **PLAN)


@pytest.mark.parametrize("rule", ["useful", "eiil"])
def test_another_split_is_divided_as_validation_was(tiny: Any, rule: str) -> None:
    """The same network and the same rule: validation given as another split falls into the groups that it has."""
    data = tiny()
    fit = Fit(Settings(epochs=3, batch_size=8), builder("sgd", lr=0.1))
    inferred = infer_groups(factory("mlp", data.train.example_shape, data.classes, 0)[0], data, fit, rule)
    assert torch.equal(inferred.assign(data.validation), inferred.data.validation.groups)
