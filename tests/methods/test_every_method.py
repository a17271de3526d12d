"""Every method keeps the contract of `evenly.testing`, and what is known of evenly's own beside it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

import evenly
from evenly import Split
from evenly.methods import METHODS
from evenly.optim.registry import OPTIMIZERS
from evenly.testing.methods import (
    OTHER_OPTIMIZERS,
    PROMISES,
    PROMISES_WITH_EACH_OPTIMIZER,
    Case,
    moves_every_weight,
    resumes_to_the_same_bits,
)

each_method = pytest.mark.parametrize("method", METHODS.own)
each_pair = pytest.mark.parametrize(
    ("method", "optimizer"),
    [(method, optimizer) for method in METHODS.own for optimizer in ("sgd", "sam")]
    + [("erm", optimizer) for optimizer in OPTIMIZERS if optimizer not in ("sgd", "sam")],
)


@pytest.fixture
def case(options: Any) -> Any:
    return lambda method, optimizer="sgd": Case(METHODS[method], optimizer, options.get(method, {}))


@each_method
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_keeps_the_promise(case: Any, method: str, promise: Any) -> None:
    promise(case(method))


@each_pair
@pytest.mark.parametrize(
    "promise",
    [promise for promise in PROMISES_WITH_EACH_OPTIMIZER if promise is not resumes_to_the_same_bits],
    ids=lambda promise: promise.__name__,
)
def test_keeps_the_promise_with(case: Any, method: str, optimizer: str, promise: Any) -> None:
    promise(case(method, optimizer))


@pytest.mark.parametrize("optimizer", OTHER_OPTIMIZERS)
@each_method
def test_combines_with_the_other_optimizers(case: Any, method: str, optimizer: str) -> None:
    moves_every_weight(case(method, optimizer))


INFERRED = [("pde", "useful"), ("group_dro", "eiil"), ("dfr", "useful"), ("jtt", "eiil")]


@pytest.mark.parametrize(
    ("method", "infer", "optimizer"),
    [(*pair, optimizer) for pair in [(m, None) for m in METHODS.own] + INFERRED for optimizer in ("sgd", "sam")]
    + [("erm", None, optimizer) for optimizer in ("asam", "lsam", "random_perturbation", "sam:adamw")],
)
def test_stopped_after_every_write_it_ends_in_the_same_bits(
    case: Any, method: str, infer: str | None, optimizer: str
) -> None:
    more = {} if infer is None else {"groups": "infer", "infer": infer}
    assert resumes_to_the_same_bits(case(method, optimizer), **more) >= 8


@each_method
def test_a_group_without_validation_examples_is_measured_as_absent(train: Any, tiny: Any, method: str) -> None:
    data = tiny()
    seen = data.validation.groups != 1
    data.validation = Split(*(part[seen] for part in (data.validation.inputs, data.validation.labels)),
                            data.validation.groups[seen], name="validation")  # fmt: skip
    run = train(data, method, select="worst-class")
    measured = run.history[run.selected_epoch - 1]["validation"]
    assert [value is None for value in measured["groups"]] == [False, True, False, False]
    assert measured["worst_group"] == min(value for value in measured["groups"] if value is not None)
    with pytest.raises(evenly.EvenlyError, match="has no validation example, so select 'worst-group' cannot"):
        train(data, method, select="worst-group")


@pytest.mark.parametrize("method", ["erm", "pde", "subsample", "group_dro", "reweight", "lff", "dfr"])
def test_group_counts_of_every_epoch_do_not_depend_on_the_order_of_storage(
    watch: Any, engine: Any, method: str
) -> None:
    counts = []
    for groups in ([0] * 30 + [1] * 6 + [2] * 8 + [3] * 16, [3, 0, 2, 0] * 8 + [3, 0, 1] * 6 + [3, 0] * 2 + [0] * 6):
        _, seen, data = watch(method, engine(), groups)
        by_group = [Counter(int(data.train.groups[i]) for i in epoch.elements()) for epoch in seen.epochs]
        counts.append(by_group)
    assert torch.equal(torch.bincount(torch.tensor(groups)), torch.tensor([30, 6, 8, 16]))
    assert counts[0] == counts[1]


@each_method
def test_an_epoch_has_the_selection_and_the_rest_as_often_as_the_method_says(
    watch: Any, engine: Any, method: str
) -> None:
    run, seen, data = watch(method, engine())
    if run.selection is None:
        assert method in ("erm", "group_dro", "reweight", "lff")
    elif method == "eiil":  # draws its groups equally often, the others as it comes
        assert len(run.selection.indices)
    else:
        times = dict(zip(run.selection.indices.tolist(), run.selection.times.tolist(), strict=True))
        whole = method not in ("pde", "subsample")  # the others show the rest as well, once
        everything = dict.fromkeys(range(len(data.train)), 1)
        assert seen.epochs[-1] == ({**everything, **times} if whole else times)


def test_each_has_a_control_that_costs_the_same(tiny: Any, net: Any, options: Any) -> None:
    settings = {"epochs": 4, "batch_size": 16, "lr": 0.1, "seeds": 1, "options": options}
    rows = {row.arm: row for row in evenly.compare(tiny(), model=net, methods=list(METHODS.own), **settings).rows}
    for arm, row in rows.items():
        if arm.control_of is None and arm.method not in ("erm", "subsample"):
            assert rows[row.control].arm.pair == f"{METHODS[arm.method].control}+sgd"
    by_pair = {arm.pair: row for arm, row in rows.items() if arm.control_of is None}
    assert by_pair["lff+sgd"].result.cost_multiple == 2
    assert by_pair["reweight+sgd"].control == by_pair["erm+sgd"].arm


@each_method
def test_the_registry_describes_it(method: str) -> None:
    assert METHODS[method].name == method
    assert not METHODS[method].summary.endswith(".")
