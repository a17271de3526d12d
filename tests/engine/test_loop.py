"""The loop against training written out by hand, its cost, its budget, and what it must not disturb."""

from __future__ import annotations

import copy
import json
import random
from itertools import chain

import numpy as np
import pytest
import torch
from torch import nn

from evenly.data import Data, Everything, Upsample
from evenly.engine import Checkpoints, Objective
from evenly.errors import EvenlyError
from evenly.optim import SAM


def epochs_of(sampler, epochs, size):
    """Batches of indices per epoch, a last one of one example joining the one before, written out."""
    out = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        order = sampler.indices().tolist()
        cuts = [order[i : i + size] for i in range(0, len(order), size)]
        if len(cuts) > 1 and len(cuts[-1]) == 1:
            cuts = [*cuts[:-2], cuts[-2] + cuts[-1]]
        out.append([torch.tensor(cut) for cut in cuts])
    return out


def test_full_batch_sgd(fit, net, problem, by_hand, distance):
    data = problem()
    expected = by_hand(net, data, [[torch.arange(20)]] * 6)
    run = fit(epochs=6, batch_size=None)(net, data)
    assert distance(run.model, expected) < 1e-12
    assert run.cost == 6 * 20


@pytest.mark.parametrize("size", [6, 19, 20])
def test_mini_batch_sgd(fit, net, problem, by_hand, distance, size):
    data = problem()
    expected = by_hand(net, data, epochs_of(Everything(20, seed=5), 3, size))
    run = fit(batch_size=size, seed=5)(net, data)
    assert distance(run.model, expected) < 1e-12


def test_sampler_weights_and_schedule(fit, net, problem, by_hand, distance):
    data, weights = problem(), torch.linspace(0, 2, 20, dtype=torch.float64)
    batches = epochs_of(Upsample([2, 3, 11], 20, factor=3, seed=1), 4, 7)
    expected = by_hand(net, data, batches, rates=[0.3, 0.3, 0.03, 0.003], weights=weights)
    run = fit(epochs=4, batch_size=7, schedule="step")(
        net, data, sampler=Upsample([2, 3, 11], 20, factor=3, seed=1), objective=Objective(weights=weights)
    )
    assert distance(run.model, expected) < 1e-12
    assert [row["examples"] for row in run.history] == [26] * 4
    assert run.cost == 4 * 26


@pytest.mark.parametrize("size", [None, 6])
def test_sam(fit, net, problem, by_hand, distance, size):
    data = problem()
    batches = [[torch.arange(20)]] * 3 if size is None else epochs_of(Everything(20), 3, size)
    expected = by_hand(net, data, batches, rho=0.2)
    plain = fit().optimizer
    run = fit(batch_size=size, optimizer=lambda params: SAM(plain(params), rho=0.2))(net, data)
    assert distance(run.model, expected) < 1e-12
    assert run.cost == 2 * 3 * 20  # two passes a step


def test_the_training_loss_is_the_first_pass_before_the_weights_move(fit, net, problem):
    data = problem()
    with torch.no_grad():
        scores = net(data.train.inputs)
        before = torch.nn.functional.cross_entropy(scores, data.train.labels).item()
        right = (scores.argmax(1) == data.train.labels).double().mean().item()
    plain = fit().optimizer
    for optimizer in (plain, lambda params: SAM(plain(params), rho=0.5)):
        run = fit(epochs=1, batch_size=None, optimizer=optimizer)(copy.deepcopy(net), data)
        assert run.history[0]["train_loss"] == pytest.approx(before, rel=1e-12)
        assert run.history[0]["train_accuracy"] == pytest.approx(right)


def test_the_objective_sees_the_batch_and_keeps_a_state(fit, net, problem):
    data, seen = problem(), []
    plain = fit().optimizer

    def objective(losses, batch, state):
        assert torch.equal(batch.y, data.train.labels[batch.index])
        seen.append((batch.first, len(losses)))
        state["steps"] += batch.first
        return losses.sum() * 0 + losses.max()

    state = {"steps": torch.zeros(())}
    fit(epochs=2, batch_size=10, optimizer=lambda params: SAM(plain(params)))(
        net, data, objective=Objective(objective, state)
    )
    assert seen == [(True, 10), (False, 10)] * 4
    assert state["steps"] == 4


def test_running_statistics_move_once_per_step_under_sam(fit, problem):
    data = problem()
    model = nn.Sequential(nn.BatchNorm1d(4, momentum=0.5), nn.Linear(4, 3)).double()
    plain = fit().optimizer
    run = fit(epochs=2, batch_size=8, optimizer=lambda params: SAM(plain(params), rho=0.1))(model, data)
    norm, mean = run.model[0], torch.zeros(4, dtype=torch.float64)
    for index in chain.from_iterable(epochs_of(Everything(20), 2, 8)):
        mean = 0.5 * mean + 0.5 * data.train.inputs[index].mean(0)
    assert norm.num_batches_tracked == 6
    torch.testing.assert_close(norm.running_mean, mean, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("passes", "budget", "costs", "last"),
    [
        (1, 33, [20, 38], 18),
        (1, 40, [20, 40], 20),
        (1, 5, [6], 6),
        (1, 12, [12], 12),
        (2, 33, [36], 18),
        (2, 41, [40, 52], 6),
    ],
)
def test_a_budget_stops_at_the_step_that_reaches_it(fit, net, problem, passes, budget, costs, last):
    """20 examples in batches of 6, 6, 6, 2; `epochs` does not count."""
    plain = fit().optimizer
    optimizer = plain if passes == 1 else lambda params: SAM(plain(params))
    run = fit(epochs=1, batch_size=6, budget=budget, optimizer=optimizer)(net, problem())
    assert [row["cost"] for row in run.history] == costs
    assert run.cost == costs[-1]
    assert run.history[-1]["examples"] == last


def test_what_a_method_has_spent_counts_towards_cost_and_budget(fit, net, problem):
    assert fit(epochs=2)(net, problem(), spent=7.5).cost == 47.5
    assert len(fit(budget=60)(net, problem(), spent=30).history) == 2


def test_evaluation_is_counted_apart(fit, net, problem):
    run = fit(epochs=4, evaluate_every=3)(net, problem(validation=12))
    assert (run.cost, run.evaluation_cost) == (80, pytest.approx(2 * 12 / 3))
    assert [row["epoch"] for row in run.history if "validation" in row] == [3, 4]


def test_outputs_are_the_models_and_looking_costs_the_run_nothing(fit, net, problem):
    data = problem()
    run = fit(epochs=1)(net, data)
    with torch.no_grad():
        torch.testing.assert_close(run.outputs(data.train), run.model(data.train.inputs))
    assert run.cost == 20


def test_until_and_before_epoch(fit, net, problem):
    told = []
    run = fit(epochs=9)(
        net, problem(), stage="early",
        until=lambda history: len(history) == 4,
        before_epoch=lambda epoch, optimizer: told.append((epoch, type(optimizer).__name__)),
    )  # fmt: skip
    assert told == [(epoch, "SGD") for epoch in range(4)]
    assert [(row["stage"], row["epoch"]) for row in run.history] == [("early", e) for e in (1, 2, 3, 4)]


def test_what_the_data_observes_goes_into_the_history(fit, net, problem):
    data = problem()
    data.observe = lambda model: {"norm": model[0].weight.norm().item()}
    run = fit(epochs=2)(net, data)
    assert run.history[-1]["norm"] == run.model[0].weight.norm().item()


def dropout_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)).double()


def test_one_seed_decides_everything_and_the_global_state_is_left_alone(fit, problem):
    data, model = problem(validation=9), dropout_net()
    results = []
    for seed, disturbance in ((1, 0), (1, 99), (2, 0)):
        torch.manual_seed(disturbance)
        np.random.seed(disturbance)  # noqa: NPY002
        random.seed(disturbance)
        before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
        results.append(fit(seed=seed, batch_size=5)(copy.deepcopy(model), data))
        assert torch.equal(before[0], torch.get_rng_state())
        assert (before[1] == np.random.get_state()[1]).all()  # noqa: NPY002
        assert before[2] == random.getstate()
    assert results[0].history == results[1].history != results[2].history


def test_every_epoch_and_stage_draws_anew(fit, problem):
    """Weights that do not move, so that the losses differ by dropout alone."""
    still = fit(epochs=2, batch_size=None, optimizer=lambda params: torch.optim.SGD(params, lr=1e-300))
    runs = [still(dropout_net(), problem(), stage=stage) for stage in ("early", "final")]
    assert len({row["train_loss"] for run in runs for row in run.history}) == 4


@pytest.mark.parametrize("stop", [1, 2, 3])
@pytest.mark.parametrize("before", ["append", "save"])
def test_a_run_in_two_parts_ends_in_the_same_bits(fit, problem, tmp_path, monkeypatch, stop, before):
    """Dropout, momentum, a state, a schedule, the best weights so far: all of it has to survive.

    Stopped before the metrics of an epoch are written, or between them and the checkpoint, when they are ahead of it.
    """
    data, model = problem(validation=9), dropout_net()
    settings = {"epochs": 5, "batch_size": 6, "select": "average", "schedule": "cosine"}

    def objective(losses, batch, state):
        state["scale"] = state["scale"] * 0.9
        return losses.mean() * state["scale"]

    def go(name):
        return fit(**settings, checkpoints=Checkpoints(tmp_path / name))(
            copy.deepcopy(model), data, objective=Objective(objective, {"scale": torch.ones(1)})
        )

    whole = go("whole")
    write, calls = getattr(Checkpoints, before), []

    def interrupted(self, *arguments):
        calls.append(1)
        if len(calls) > stop:
            raise KeyboardInterrupt
        write(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, before, interrupted)
        with pytest.raises(KeyboardInterrupt):
            go("parts")
    parts = go("parts")
    assert parts.history == whole.history
    for name in ("cost", "evaluation_cost", "selected_epoch"):
        assert getattr(parts, name) == getattr(whole, name)
    assert all(torch.equal(p, q) for p, q in zip(parts.model.parameters(), whole.model.parameters(), strict=True))
    assert (tmp_path / "parts/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_epoch(fit, net, problem, tmp_path):
    data = problem()
    explode = {"schedule": lambda progress: 1.0 if progress < 0.5 else 1e200, "epochs": 6, "batch_size": None}
    for _ in range(2):  # resumed, it stops at the same place
        with pytest.raises(
            EvenlyError, match=r"NaN or infinite in epoch \d of stage 'final' .* lower the learning rate"
        ):
            fit(**explode, checkpoints=Checkpoints(tmp_path / "run"))(copy.deepcopy(net), data)
        rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
        saved = torch.load(tmp_path / "run/checkpoint/final.pt", weights_only=True)
        assert saved["epoch"] == len(rows) >= 3
        assert all(value.isfinite().all() for value in saved["model"].values())
    with pytest.raises(EvenlyError) as error:
        fit(**explode, checkpoints=Checkpoints(tmp_path / "run"))(copy.deepcopy(net), data)
    assert f"epoch {saved['epoch'] + 1} of" in str(error.value)
    assert str(error.value).endswith("lower the learning rate, or look for extreme values in the data")


@pytest.mark.parametrize("budget", [0, -1.0, float("nan")])
def test_a_budget_that_is_none_is_refused(fit, budget):
    with pytest.raises(EvenlyError, match=rf"^budget must be .*, got {budget}$"):
        fit(budget=budget)


def test_no_evaluations_on_validation(fit, net, problem):
    data = problem(validation=12)
    run = fit(epochs=2, evaluate_every=None)(net, data)
    assert run.evaluation_cost == 0
    assert not any("validation" in row for row in run.history)
    with pytest.raises(EvenlyError, match="needs evaluations on validation"):
        fit(evaluate_every=None, select="average")(net, data)


def test_progress_is_told_up_to_the_end_and_within_slow_epochs(net, problem, fit, monkeypatch):
    shares = []
    fit(epochs=4, progress=lambda share, note: note and shares.append(share))(net, problem())
    assert shares == [0.25, 0.5, 0.75, 1.0]
    monkeypatch.setattr("evenly.engine.loop.REPORT_SECONDS", -1.0)
    steps = []
    fit(epochs=1, batch_size=4, progress=lambda share, note: steps.append((share, note)))(net, problem())
    assert [note for _, note in steps[:-1]] == [""] * (len(steps) - 1)
    assert steps[0][0] == 0
    assert [share for share, _ in steps] == sorted(share for share, _ in steps)
    assert 0 < steps[1][0] < 1


def test_settings_are_replaced_for_one_fit_only(fit, net, problem):
    three = fit(epochs=3)
    assert len(three(copy.deepcopy(net), problem(), epochs=1).history) == 1
    run = three(copy.deepcopy(net), problem())
    assert len(run.history) == 3
    assert not run.model.training  # it comes back ready for use


def test_data_without_groups(fit, net):
    data = Data(train=(torch.randn(6, 4).double(), torch.arange(6) % 3))
    groups = []
    fit(epochs=1)(
        net, data, objective=Objective(lambda losses, batch, state: groups.append(batch.group) or losses.mean())
    )
    assert groups == [None]
