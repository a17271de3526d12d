"""What every method owes its user, whatever it does: one seed, no traces, exact resumption, an honest bill."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import evenly
from evenly import Data, Split
from evenly.engine import Checkpoints, measure
from evenly.methods import METHODS
from evenly.optim.registry import OPTIMIZERS, passes

each_method = pytest.mark.parametrize("method", METHODS)
each_pair = pytest.mark.parametrize(
    ("method", "optimizer"),
    [(method, optimizer) for method in METHODS for optimizer in ("sgd", "sam")]
    + [("erm", optimizer) for optimizer in OPTIMIZERS if optimizer not in ("sgd", "sam")],
)


def weights(run: Any) -> dict[str, Tensor]:
    return dict(run.model.state_dict())


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


def bill(run: Any) -> tuple[Any, ...]:
    """What it cost, and what it says of its weights and of the examples it chose."""
    chosen = None if run.selection is None else (run.selection.indices.tolist(), run.selection.times.tolist())
    return run.cost, run.evaluation_cost, run.selected_epoch, run.remarks, run.seen_counts.tolist(), chosen


def global_states() -> tuple[Any, ...]:
    numpy = np.random.get_state()  # noqa: NPY002
    return torch.random.get_rng_state().tolist(), numpy[1].tolist(), numpy[2:], random.getstate()


@each_pair
def test_one_seed_decides_every_bit(train: Any, tiny: Any, method: str, optimizer: str) -> None:
    first = train(tiny(), method, optimizer, seed=1)
    torch.rand(3)
    again, other = train(tiny(), method, optimizer, seed=1), train(tiny(), method, optimizer, seed=2)
    assert equal(weights(first), weights(again))
    assert first.history == again.history
    assert not equal(weights(first), weights(other))


@each_pair
def test_leaves_no_trace_in_random_states_module_or_data(
    train: Any, tiny: Any, net: Any, method: str, optimizer: str
) -> None:
    data, model = tiny(), net().train()
    kept_data, kept_model = data.fingerprint(), {key: value.clone() for key, value in model.state_dict().items()}
    states = global_states()
    run = train(data, method, optimizer, model=model)
    assert global_states() == states
    assert equal(dict(model.state_dict()), kept_model)
    assert model.training
    assert run.model is not model
    assert not equal(weights(run), kept_model)
    assert data.fingerprint() == kept_data


INFERRED = [("pde", "useful"), ("group_dro", "eiil"), ("dfr", "useful"), ("jtt", "eiil")]


@pytest.mark.parametrize(
    ("method", "infer", "optimizer"),
    [(*pair, optimizer) for pair in [(m, None) for m in METHODS] + INFERRED for optimizer in ("sgd", "sam")]
    + [("erm", None, optimizer) for optimizer in ("asam", "lsam", "random_perturbation", "sam:adamw")],
)
def test_stopped_after_every_write_it_ends_in_the_same_bits(
    train: Any, tiny: Any, tmp_path: Path, monkeypatch: Any, method: str, infer: str | None, optimizer: str
) -> None:
    """Between a checkpoint and the line of its epoch, between two stages, between a stage and what is made of it."""
    more = {"select": "worst-group"} | ({} if infer is None else {"groups": "infer", "infer": infer})
    whole = train(tiny(), method, optimizer, out=tmp_path / "whole", **more)
    written: set[tuple[Any, ...]] = set()

    def stops(write: Callable[..., None]) -> Callable[..., None]:
        def call(self: Any, *what: Any) -> None:
            write(self, *what)
            place = (write.__name__, str(what[0]), len(self.rows()))
            if place not in written:
                written.add(place)
                raise KeyboardInterrupt

        return call

    for name in ("save", "append"):
        monkeypatch.setattr(Checkpoints, name, stops(getattr(Checkpoints, name)))
    for _ in range(100):
        try:
            broken = train(tiny(), method, optimizer, out=tmp_path / "broken", **more)
            break
        except KeyboardInterrupt:
            continue
    assert len(written) >= 8
    assert equal(weights(whole), weights(broken))
    assert bill(whole) == bill(broken)
    rows = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("whole", "broken")]
    assert rows[0] == rows[1]


@each_method
def test_finished_fits_are_read_back_without_training(
    train: Any, tiny: Any, net: Any, tmp_path: Path, method: str
) -> None:
    first = train(tiny(), method, out=tmp_path)
    metrics = (tmp_path / "metrics.jsonl").read_bytes()

    def untrainable() -> nn.Module:
        model = net()
        model.register_forward_pre_hook(lambda *_: pytest.fail("trained again") if torch.is_grad_enabled() else None)
        return model

    again = train(tiny(), method, model=untrainable, out=tmp_path)
    assert again.history == first.history
    assert bill(again) == bill(first)
    assert equal(weights(again), weights(first))
    assert (tmp_path / "metrics.jsonl").read_bytes() == metrics


@each_pair
def test_the_cost_is_what_was_computed(watch: Any, engine: Any, method: str, optimizer: str) -> None:
    run, seen, _ = watch(method, engine(optimizer))
    assert run.cost == pytest.approx(seen.gradients + seen.forwards / 3, rel=1e-12)
    assert run.evaluation_cost == 0
    shown = sum(sum(epoch.values()) for epoch in seen.epochs)
    assert shown == seen.gradients
    assert sum(row["examples"] for row in run.history) * passes(optimizer) <= shown


@pytest.mark.parametrize("optimizer", ["adam", "asam", "lsam", "random_perturbation", "sam:adamw"])
@each_method
def test_combines_with_the_other_optimizers(train: Any, tiny: Any, net: Any, method: str, optimizer: str) -> None:
    model = net()
    run = train(tiny(held_out=False), method, optimizer, model=model, lr=0.01, epochs=2)
    start = model.state_dict()
    for key, value in run.model.named_parameters():
        assert bool(torch.isfinite(value).all())
        assert key == "0.bias" or not torch.equal(value, start[key])  # batch normalisation takes that bias out again


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


DIFFICULT = {
    "a group without training examples": [0, 1, 3] * 14,
    "groups of one example": [0] * 20 + [2] * 20 + [1, 3],
    "every group of one example": [0, 1, 2, 3],
    "groups that are the classes": [1] * 17 + [2] * 5,
}


@each_pair
@pytest.mark.parametrize("case", DIFFICULT)
def test_works_with(train: Any, tiny: Any, case: str, method: str, optimizer: str) -> None:
    data = tiny(DIFFICULT[case])
    run = train(data, method, optimizer)
    assert len(run.history) == 4
    assert all(np.isfinite(row["train_loss"]) for row in run.history)
    measured = measure(run.outputs(data.train), data.train, data)
    assert {g: n for g, n in enumerate(measured.group_counts) if n} == Counter(DIFFICULT[case])
    assert [accuracy is None for accuracy in measured.groups] == [count == 0 for count in measured.group_counts]


class Rows(Dataset):
    """A split's examples as a Dataset of single examples."""

    def __init__(self, split: Split) -> None:
        self.split = split

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.split.inputs[i], int(self.split.labels[i])


@each_pair
def test_a_dataset_gives_the_bits_of_tensors_in_memory(train: Any, tiny: Any, method: str, optimizer: str) -> None:
    held = tiny()
    read = Data(**{name: Split(Rows(split), groups=split.groups) for name, split in held.splits.items()})
    first, second = train(held, method, optimizer), train(read, method, optimizer)
    assert equal(weights(first), weights(second))
    assert first.history == second.history
    assert torch.equal(first.outputs(held.test), second.outputs(read.test))


@each_method
def test_the_selection_says_which_examples_and_how_often(watch: Any, engine: Any, tmp_path: Path, method: str) -> None:
    run, seen, data = watch(method, engine())
    if run.selection is None:
        assert method in ("erm", "group_dro", "reweight", "lff")
        return
    run.selection.save(tmp_path / "selection.npz")
    with np.load(tmp_path / "selection.npz", allow_pickle=False) as saved:
        times = dict(zip(saved["indices"].tolist(), saved["times"].tolist(), strict=True))
        assert str(saved["why"])
    everything = dict.fromkeys(range(len(data.train)), 1)
    if method == "eiil":  # draws its groups equally often, the others as it comes
        assert times
        assert {i: seen.epochs[-1][i] for i in times} == times
        return
    whole = method not in ("pde", "subsample")  # the others show the rest as well, once
    assert seen.epochs[-1] == ({**everything, **times} if whole else times)


def test_each_has_a_control_that_costs_the_same(tiny: Any, net: Any, options: Any) -> None:
    settings = {"epochs": 4, "batch_size": 16, "lr": 0.1, "seeds": 1, "options": options}
    rows = {row.arm: row for row in evenly.compare(tiny(), model=net, methods=list(METHODS), **settings).rows}
    for arm, row in rows.items():
        if arm.control_of is not None or arm.method in ("erm", "subsample"):
            continue
        control = rows[row.control]
        assert control.arm.pair == f"{METHODS[arm.method].control}+sgd"
        assert row.result.cost <= control.result.cost < row.result.cost + 17
        if control.arm.method == "random_upsample" and arm.method != "random_upsample":
            assert control.result.chosen == row.result.chosen > 0
    by_pair = {arm.pair: row for arm, row in rows.items() if arm.control_of is None}
    assert by_pair["lff+sgd"].result.cost_multiple == 2
    assert by_pair["reweight+sgd"].control == by_pair["erm+sgd"].arm


@each_method
def test_the_registry_describes_it(method: str) -> None:
    entry = METHODS[method]
    assert entry.name == method
    assert entry.summary
    assert not entry.summary.endswith(".")
    assert entry.control in METHODS
