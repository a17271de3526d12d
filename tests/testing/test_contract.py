"""The contract can fail: a method, data set or optimizer that breaks a promise: the error names it and the way out."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Annotated, Any

import pytest
import torch
from attrs import evolve
from torch.optim import SGD

from evenly.data import DATASETS, Data, Upsample, benchmarks, patches
from evenly.engine import Selection
from evenly.errors import EvenlyError
from evenly.methods import METHODS
from evenly.methods.registry import Method, method
from evenly.optim.registry import BASES, OPTIMIZERS, REGISTRY, Base
from evenly.settings import above, at_least
from evenly.testing import check_dataset, check_method, check_optimizer
from evenly.testing import methods as promises


def a_method(run: Callable[..., Any], **entry: Any) -> promises.Case:
    return promises.Case(evolve(Method("mine", run, "Train", False, "erm"), **entry), "sgd", {})


def draws_globally(model: Any, data: Any, fit: Any) -> Any:
    return fit(model(), data, sampler=Upsample(torch.randperm(60)[:9], len(data.train), 2, fit.seed))


def draws_from_python(model: Any, data: Any, fit: Any) -> Any:
    random.random()
    return fit(model(), data)


def ignores_the_seed(model: Any, data: Any, fit: Any) -> Any:
    torch.manual_seed(0)
    return evolve(fit, seed=0)(promises.network(), data)


def changes_the_labels(model: Any, data: Any, fit: Any) -> Any:
    data.train.labels[0] = 1 - data.train.labels[0]
    return fit(model(), data)


def forgets_its_first_stage(model: Any, data: Any, fit: Any) -> Any:
    fit(model(), data, stage="early")
    return fit(model(), data)


def remembers_elsewhere(model: Any, data: Any, fit: Any, calls: list[int] = []) -> Any:  # noqa: B006
    calls.append(1)
    return fit(model(), data, sampler=Upsample(torch.arange(len(calls) % 30), len(data.train), 2, fit.seed))


def forgets_its_stages(model: Any, data: Any, fit: Any) -> Any:
    return evolve(fit, checkpoints=None)(model(), data)


def selects_beyond(model: Any, data: Any, fit: Any) -> Any:
    trained = fit(model(), data)
    trained.selection = Selection(torch.tensor([60]), torch.tensor([1]), "one more")
    return trained


def selects_otherwise(model: Any, data: Any, fit: Any) -> Any:
    trained = fit(model(), data)
    trained.selection = Selection(torch.tensor([3]), torch.tensor([2]), "twice, it says")
    return trained


def returns_the_first_network(model: Any, data: Any, fit: Any) -> Any:
    trained = fit(model(), data)
    trained.model = model()
    return trained


def takes_anything(model: Any, data: Any, fit: Any, *, strength=1.0) -> Any:  # type: ignore[no-untyped-def]
    return fit(model(), data)


def has_a_setting(model: Any, data: Any, fit: Any, *, lr: Annotated[float, above(0)] = 1.0) -> Any:
    return fit(model(), data)


def refuses_its_default(model: Any, data: Any, fit: Any, *, count: Annotated[int, at_least(1)] = 0) -> Any:
    return fit(model(), data)


def needs_groups_and_does_not_say_so(model: Any, data: Any, fit: Any) -> Any:
    if data.train.groups is None:
        raise EvenlyError("no groups")
    return fit(model(), data)


@pytest.mark.parametrize(
    ("run", "promise", "message"),
    [
        (draws_globally, promises.one_seed_decides_every_bit, "same weights for the same seed; draw by"),
        (ignores_the_seed, promises.one_seed_decides_every_bit, "other weights for another seed"),
        (draws_from_python, promises.leaves_no_trace, "global random states as they were"),
        (changes_the_labels, promises.leaves_no_trace, "leaves the data as it was; change a copy"),
        (returns_the_first_network, promises.leaves_no_trace, "trains; call fit"),
        (returns_the_first_network, promises.moves_every_weight, "moves 0.weight to finite values"),
        (forgets_its_first_stage, promises.counts_its_cost, "computed 480 example-gradients, reported 240.*spent="),
        (remembers_elsewhere, promises.resumes_to_the_same_bits, "when it is interrupted; make it a function"),
        (forgets_its_stages, promises.reads_finished_stages_back, "reads finished stages back"),
        (selects_beyond, promises.selects_what_it_says, "examples of the training set"),
        (selects_otherwise, promises.selects_what_it_says, "last epoch what it selected"),
        (takes_anything, promises.refuses_wrong_options, r"says what strength may be; annotate it"),
        (has_a_setting, promises.describes_itself, "an option lr that is no setting"),
        (refuses_its_default, promises.describes_itself, "a default of count that it takes"),
        (needs_groups_and_does_not_say_so, promises.works_with_the_groups_that_it_needs, "needs_groups=True"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_method_that_breaks_a_promise(run: Any, promise: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message) as broken:
        promise(a_method(run))
    assert str(broken.value).startswith("broken promise: mine with sgd ")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"control": "nothing"}, "has a control, not 'nothing'"),
        ({"prefers": "best"}, "prefers a rule, not 'best'"),
        ({"summary": ""}, "has a summary"),
    ],
)
def test_an_entry_that_is_not_whole(entry: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        promises.describes_itself(a_method(draws_globally, **entry))


def test_a_function_is_checked_before_it_is_in_a_package_and_its_name_is_not_evenlys(monkeypatch: Any) -> None:
    def quarter(model: Any, data: Any, fit: Any) -> Any:
        """Show a quarter of the examples twice."""
        chosen = torch.arange(len(data.train) // 4)
        trained = fit(model(), data, sampler=Upsample(chosen, len(data.train), 2, fit.seed))
        trained.selection = Selection(chosen, torch.full_like(chosen, 2), "the first ones")
        return trained

    monkeypatch.setattr(METHODS, "local", {})
    assert method(control="random_upsample")(quarter) is quarter
    check_method(quarter)
    assert METHODS.package("quarter") is None
    quarter.__name__ = "erm"
    with pytest.raises(EvenlyError, match=r"a method of evenly is called 'erm'; give the function in .* another"):
        method()(quarter)
    with pytest.raises(EvenlyError, match=r"it is no function with @evenly.methods.registry.method"):
        check_method(len)


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if not name.startswith("local")])
def test_evenlys_own_optimizers(name: str) -> None:
    check_optimizer(name)


class Forgetful(SGD):
    """SGD whose momentum is in no state dict."""

    def state_dict(self) -> Any:
        return {**super().state_dict(), "state": {}}


def halves(params: Any, lr: float, momentum: float, weight_decay: float) -> Any:
    return SGD(params, lr=0.1, momentum=momentum)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (halves, "has its learning rate in its parameter groups"),
        (lambda params, lr, momentum, weight_decay: Forgetful(params, lr, momentum), "goes on from its state dict"),
    ],
)
def test_an_optimizer_that_breaks_a_promise(monkeypatch: Any, make: Any, message: str) -> None:
    monkeypatch.setitem(REGISTRY.local, "mine", Base(make, "mine"))
    with pytest.raises(AssertionError, match=f"broken promise: mine {message}"):
        check_optimizer("mine")


def test_a_base_of_this_process_can_be_wrapped_and_a_wrapper_cannot(monkeypatch: Any) -> None:
    monkeypatch.setitem(REGISTRY.local, "mine", BASES["sgd"])
    check_optimizer("sam:mine")
    with pytest.raises(EvenlyError, match="no optimizer is called 'mine:sam'"):
        check_optimizer("mine:sam")


@pytest.mark.parametrize("name", [name for name in DATASETS.own if name not in benchmarks.READERS])
def test_evenlys_own_data_sets(name: str) -> None:
    check_dataset(name)


def test_a_data_set_that_breaks_a_promise(monkeypatch: Any) -> None:
    def mine(seed: int = 0, **options: Any) -> Data:
        """Patches."""
        data = patches.patches(seed=seed)
        data.name = "mine"
        return data

    def changed(**values: Any) -> Any:
        def make(seed: int = 0) -> Data:
            """Patches."""
            data = mine(seed)
            for name, value in values.items():
                setattr(data, name, value)
            return data

        return make

    def draws(seed: int = 0) -> Data:
        """Patches."""
        torch.rand(1)
        return mine(seed)

    def unseeded(seed: int = 0) -> Data:
        """Patches."""
        return mine(next(seeds))

    seeds = iter(range(100))
    for make, message in (
        (draws, "leaves the global random states"),
        (lambda seed=0: mine(seed), "has a summary of one line"),
        (unseeded, "is the same for the same seed"),
        (changed(name="other"), "is called so, not 'other'"),
        (changed(recipe={"model": "convnet"}), "goes with the model and settings of its recipe"),
        (changed(about=""), "says what it is"),
        (changed(group_names=None), "names its groups"),
    ):
        monkeypatch.setitem(DATASETS.local, "mine", make)
        with pytest.raises(AssertionError, match=f"broken promise: mine {message}"):
            check_dataset("mine")
