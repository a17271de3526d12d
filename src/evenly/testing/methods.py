"""What every method owes its user, whatever it does: one seed, no traces, exact resumption, its whole cost."""

from __future__ import annotations

import inspect
import json
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import frozen
from torch import nn
from torch.utils.data import Dataset

from evenly.data import Data, Split
from evenly.engine import measure
from evenly.errors import EvenlyError
from evenly.experiment.comparing import compare
from evenly.experiment.request import SETTINGS
from evenly.experiment.training import train as train_by_name
from evenly.methods import METHODS, Method, find
from evenly.methods.registry import method_of
from evenly.optim.registry import passes
from evenly.runs.folder import Config
from evenly.runs.run import load
from evenly.settings import RULES, Execution, Option, settings_of
from evenly.testing.problem import (
    EveryEpoch,
    Stopping,
    bill,
    engine,
    equal,
    global_states,
    keep,
    network,
    network_of,
    tiny,
    train,
    watch,
    weights,
)

WRONG = ("nobody", 1.5, -1, 10**12, True, None, [None], {"nobody": 1})
"""At least one of these is no value of any option that says what it takes."""
DIFFICULT = {
    "a group without training examples": [0, 1, 3] * 14,
    "groups of one example": [0] * 20 + [2] * 20 + [1, 3],
    "every group of one example": [0, 1, 2, 3],
    "groups that are the classes": [1] * 17 + [2] * 5,
}
OTHER_OPTIMIZERS = ("adam", "asam", "lsam", "random_perturbation", "sam:adamw")


def check_method(method: str | Callable[..., Any], *, options: Mapping[str, Any] | None = None) -> None:
    """Hold a method to all that evenly's own keep, on a tiny problem of four epochs.

    Args:
        method: its name, or the function with `@method` on it.
        options: those that let it do what is special about it within four epochs; its defaults where not given.
    """
    entry = find(method) if isinstance(method, str) else method_of(method)
    for promise in PROMISES:
        promise(Case(entry, "sgd", options or {}))
    for promise in PROMISES_WITH_EACH_OPTIMIZER:
        for optimizer in ("sgd", "sam"):
            promise(Case(entry, optimizer, options or {}))
    for optimizer in OTHER_OPTIMIZERS:
        moves_every_weight(Case(entry, optimizer, options or {}))


@frozen
class Case:
    """A method with an optimizer and options of the method."""

    method: Method
    optimizer: str
    options: Mapping[str, Any]

    def train(self, data: Data, model: Any = network, **given: Any) -> Any:
        return train(self.method, data, self.optimizer, model, **{**self.options, **given})

    def keep(self, what: str, kept: bool, way: str) -> None:
        keep(f"{self.method.name} with {self.optimizer} {what}", kept, way)


def describes_itself(case: Case) -> None:
    """Its entry in the registry is whole, and its options can be typed, checked and written to a file."""
    entry = case.method
    case.keep("has a summary of one line", bool(entry.summary.strip()), "begin its docstring with one")
    case.keep(f"has a control, not {entry.control!r}", entry.control in METHODS, "name a method as control")
    case.keep(f"prefers a rule, not {entry.prefers!r}", entry.prefers in (None, *RULES), f"one of {', '.join(RULES)}")
    taken = {*SETTINGS, *settings_of(Execution), *inspect.signature(train_by_name).parameters}
    for name, option in entry.options.items():
        case.keep(f"has an option {name} that is no setting", name not in taken, "give the option another name")
        case.keep(f"has a default of {name} that it takes", _takes(option, option.default), "change one of the two")
        case.keep(f"has a default of {name} as JSON has it", _is_json(option.default), "use numbers, names and lists")


def refuses_wrong_options(case: Case) -> None:
    """In one line, before a network is built."""

    def never(draw: int = 0) -> nn.Module:
        raise AssertionError(f"broken promise: {case.method.name} refuses a wrong option before it builds a network")

    wrong: dict[str, Any] = {"no_such_option": 1}
    for name, option in case.method.options.items():
        values = [value for value in WRONG if not _takes(option, value)]
        case.keep(f"says what {name} may be", bool(values), "annotate it: Annotated[float, above(0)]")
        wrong[name] = values[0]
    for name, value in wrong.items():
        try:
            case.method(never, tiny(), engine(), **{name: value})
        except EvenlyError as error:
            case.keep(f"names {name} in its refusal, not: {error}", name in str(error), "raise SettingError(name, ...)")
        else:
            case.keep(f"refuses {name}={value!r}", False, "raise an EvenlyError")


def works_with_the_groups_that_it_needs(case: Case) -> None:
    """A method that needs groups refuses data without; any other does without, and with groups that overlap."""
    split = tiny().train
    for groups in ([], [nn.functional.one_hot(split.groups).bool()]):
        data = Data((split.inputs, split.labels, *groups))
        try:
            history = case.train(data, epochs=2, **_within(case, 2)).history
        except EvenlyError as error:
            case.keep(f"works without groups ({error})", case.method.needs_groups, "declare @method(needs_groups=True)")
        else:
            case.keep("needs the groups that it asks for", not case.method.needs_groups and bool(history), "drop it")


def one_seed_decides_every_bit(case: Case) -> None:
    first = case.train(tiny(), seed=1)
    torch.rand(3)
    again, other = case.train(tiny(), seed=1), case.train(tiny(), seed=2)
    same = equal(weights(first), weights(again)) and first.history == again.history
    case.keep("ends in the same weights for the same seed", same, "draw by evenly.randomness.generator(fit.seed, ...)")
    differs = not equal(weights(first), weights(other))
    case.keep("ends in other weights for another seed", differs, "start from model() and draw by fit.seed")


def leaves_no_trace(case: Case) -> None:
    """In random states, in the module that it starts from, in the data."""
    data, model = tiny(), network_of(3).train()
    before, start = data.fingerprint(), {key: value.clone() for key, value in model.state_dict().items()}
    states = global_states()
    run = case.train(data, model)
    way = "draw by evenly.randomness.generator(fit.seed, ...)"
    case.keep("leaves the global random states as they were", global_states() == states, way)
    unchanged = equal(dict(model.state_dict()), start) and model.training and run.model is not model
    case.keep("leaves the given module as it was", unchanged, "train what model() returns")
    case.keep("trains", not equal(weights(run), start), "call fit")
    case.keep(
        "leaves the data as it was", data.fingerprint() == before, "change a copy: dataclasses.replace(data, ...)"
    )


def resumes_to_the_same_bits(case: Case, **given: Any) -> int:
    """Stopped after every write: between a checkpoint and the line of its epoch, between two stages, between a stage
    and what is made of it. The number of stops."""
    given = {"select": "worst-group"} | given
    with tempfile.TemporaryDirectory() as folder:
        whole_folder, folder_of_parts = Path(folder, "whole"), Path(folder, "parts")
        whole = case.train(tiny(), checkpoints=EveryEpoch(whole_folder), **given)
        stopped: set[tuple[Any, ...]] = set()
        run = None
        while run is None:
            before = len(stopped)
            try:
                run = case.train(tiny(), checkpoints=Stopping(folder_of_parts, stopped), **given)
            except KeyboardInterrupt:
                case.keep("comes to an end", before < len(stopped) < 1000, "give stages fixed names")
        rows = [(each / "metrics.jsonl").read_text() for each in (whole_folder, folder_of_parts)]
    way = "make it a function of its arguments, and keep what it works out between stages by fit.load_or_compute"
    case.keep("ends in the same weights when it is interrupted", equal(weights(whole), weights(run)), way)
    case.keep("reports the same cost and selection when it is interrupted", bill(whole) == bill(run), way)
    case.keep("writes the same metrics when it is interrupted", rows[0] == rows[1], way)
    return len(stopped)


def reads_finished_stages_back(case: Case) -> None:
    def untrainable() -> nn.Module:
        model = network()
        model.register_forward_pre_hook(lambda *_: trained_again() if torch.is_grad_enabled() else None)
        return model

    def trained_again() -> None:
        case.keep("reads finished stages back", False, "give each call of fit another stage name")

    with tempfile.TemporaryDirectory() as folder:
        metrics = Path(folder, "metrics.jsonl")
        first = case.train(tiny(), checkpoints=EveryEpoch(Path(folder)))
        before = metrics.read_bytes() if metrics.exists() else b""
        again = case.train(tiny(), untrainable, checkpoints=EveryEpoch(Path(folder)))
        same = equal(weights(again), weights(first)) and again.history == first.history and bill(again) == bill(first)
        case.keep("is the same when it is read back", same, "make it a function of its arguments")
        unchanged = metrics.read_bytes() == before
        case.keep("adds nothing to the metrics when it is read back", unchanged, "give each stage another name")


def counts_its_cost(case: Case) -> None:
    """What it says that it cost is what its networks were shown."""
    run, seen, _ = watch(case.method, engine(case.optimizer), **case.options)
    computed = seen.gradients + seen.forwards / 3
    case.keep(
        f"reports its cost (computed {computed:g} example-gradients, reported {run.cost:g})",
        math.isclose(run.cost, computed, rel_tol=1e-12) and run.evaluation_cost == 0,
        "pass spent= to the last fit: the cost of earlier ones, and FORWARD for each example that is only evaluated",
    )
    examples = sum(row["examples"] for row in run.history) * passes(case.optimizer)
    case.keep("has a history of what it trained on", examples <= seen.gradients, "return what fit returned")


def selects_what_it_says(case: Case) -> None:
    """The examples of its selection are in the training set, and the last epoch has them as often as it says."""
    run, seen, data = watch(case.method, engine(), **case.options)
    if (selection := run.selection) is None:
        return
    chosen, times = selection.indices, selection.times
    whole = chosen.dtype == torch.int64 and chosen.device.type == "cpu" and chosen.shape == times.shape
    case.keep("selects by int64 indices (M,) on the CPU, with times (M,)", whole, "index the training set as given")
    known = bool(((chosen >= 0) & (chosen < len(data.train))).all()) and len(chosen.unique()) == len(chosen)
    case.keep("selects examples of the training set, each once", known, "put repeats into times")
    case.keep("says why it selects", bool(selection.why), "give Selection a reason")
    shown = {i: seen.epochs[-1][i] for i in chosen.tolist()}
    stated = dict(zip(chosen.tolist(), times.tolist(), strict=True))
    case.keep("shows in the last epoch what it selected, as often as it says", shown == stated, "correct times")
    with tempfile.TemporaryDirectory() as folder:
        selection.save(Path(folder, "selection.npz"))
        with np.load(Path(folder, "selection.npz"), allow_pickle=False) as saved:
            case.keep("has a selection that can be written", saved["indices"].tolist() == chosen.tolist(), "use arrays")


def moves_every_weight(case: Case) -> None:
    """To finite values.

    The steps of ERM are odd in number, so that steps of one length, as by the sign, do not lead back to the start.
    """
    model = network_of(3)
    run = case.train(tiny(held_out=False), model, lr=0.01, epochs=3, batch_size=20, **_within(case, 3))
    start = model.state_dict()
    for key, value in run.model.named_parameters():
        moved = bool(torch.isfinite(value).all()) and not torch.equal(value, start[key])
        case.keep(f"moves {key} to finite values", moved, "train all of the network by fit")


def works_with_difficult_groups(case: Case) -> None:
    for name, groups in DIFFICULT.items():
        data = tiny(groups)
        run = case.train(data)
        finite = all(math.isfinite(row["train_loss"]) for row in run.history)
        case.keep(f"trains on {name}", bool(run.history) and finite, "see which group is empty or small")
        measured = measure(run.outputs(data.train), data.train, data)
        counts = {g: n for g, n in enumerate(measured.group_counts) if n}
        case.keep(f"leaves the groups as they are: {name}", counts == Counter(groups), "change a copy of the data")


class Rows(Dataset[Any]):
    """A split's examples as a Dataset of single examples."""

    def __init__(self, split: Split) -> None:
        self.split = split

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        return self.split.inputs[i], int(self.split.labels[i])


def reads_a_dataset_as_tensors_in_memory(case: Case) -> None:
    held = tiny()
    splits: dict[str, Any] = {name: Split(Rows(split), groups=split.groups) for name, split in held.splits.items()}
    read = Data(**splits)
    first, second = case.train(held), case.train(read)
    same = equal(weights(first), weights(second)) and first.history == second.history
    same = same and torch.equal(first.outputs(held.test), second.outputs(read.test))
    case.keep("gives a Dataset the weights of tensors", same, "read inputs through fit and Trained.outputs only")


def leaves_a_run_that_can_be_read(case: Case) -> None:
    """By name, in a folder of its own, where a second call reads it back."""
    quiet: Any = lambda *_: None  # noqa: E731
    with tempfile.TemporaryDirectory() as folder:
        how: dict[str, Any] = {"model": "mlp", "method": case.method.name, "out": Path(folder, "run"), "device": "cpu"}
        asked = {**how, "epochs": 4, "batch_size": 16, **case.options}
        run = train_by_name(tiny(), progress=quiet, **asked)
        read, again = load(how["out"]), train_by_name(tiny(), progress=quiet, **asked)
        config = Config.from_dict(json.loads(json.dumps(read.config.to_dict())))
        same = run.results == read.results == again.results and equal(weights(run), weights(read))
        case.keep("leaves a folder that evenly.load reads", same, "use plain values as options and in details")
        case.keep("has a plan that a file brings back", config.plan.digest == run.plan.digest, "use plain options")
        case.keep("has a page", (how["out"] / "report.html").exists(), "see the run's folder")


def has_a_control_that_costs_the_same(case: Case) -> None:
    """But ERM, which is the control of others, and what trains on less than an epoch of the control."""
    settings: dict[str, Any] = {"epochs": 4, "batch_size": 16, "lr": 0.1, "seeds": 1, "device": "cpu"}
    options = {case.method.name: dict(case.options)} if case.options else {}
    table = compare(tiny(), model=network, methods=[case.method.name], options=options, **settings)
    rows = {row.arm: row for row in table.rows}
    row = next(row for arm, row in rows.items() if arm.control_of is None and arm.method == case.method.name)
    if row.control is None or case.method.name == "erm":
        return
    control = rows[row.control].result
    near = row.result.cost <= control.cost < row.result.cost + 17
    case.keep(f"has a control of its cost ({control.cost:g}, not {row.result.cost:g})", near, "pass spent= to fit")
    if control.method == "random_upsample" != case.method.name:
        chosen = control.chosen == row.result.chosen
        case.keep("selects as many examples as its control", chosen, "set trained.selection")


def _within(case: Case, epochs: int) -> dict[str, Any]:
    """Options that name a later epoch than there are, cut to the last."""
    return {
        name: min(value, epochs)
        for name, value in case.options.items()
        if name.endswith(("epoch", "epochs")) and isinstance(value, int)
    }


def _takes(option: Option, value: Any) -> bool:
    try:
        option.checked(value)
    except EvenlyError:
        return False
    return True


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True


Promise = Callable[[Case], Any]
PROMISES: tuple[Promise, ...] = (
    describes_itself,
    refuses_wrong_options,
    works_with_the_groups_that_it_needs,
    reads_finished_stages_back,
    selects_what_it_says,
    leaves_a_run_that_can_be_read,
    has_a_control_that_costs_the_same,
)
PROMISES_WITH_EACH_OPTIMIZER: tuple[Promise, ...] = (
    one_seed_decides_every_bit,
    leaves_no_trace,
    resumes_to_the_same_bits,
    counts_its_cost,
    works_with_difficult_groups,
    reads_a_dataset_as_tensors_in_memory,
)
