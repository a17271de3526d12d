"""Plans: a digest that knows everything but where the data lies, and a control completed by its arm."""

from __future__ import annotations

import json
import typing

import pytest
import torch
from attrs import evolve, fields
from torch import nn

from evenly.errors import EvenlyError
from evenly.runs.plan import DataSpec, MethodSpec, ModelSpec, OptimizerSpec, Plan
from evenly.settings import Recording, Settings, StoredSchedule, settings_of

NEEDS = {"patience": {"select": "average"}, "infer": {"groups": "infer"}}
"""Settings that others must go with."""


def another_value(option):
    """A value of a setting that is not its default, from what is declared."""
    if isinstance(option.default, str):
        literal = typing.get_origin(option.kind) is typing.Literal
        words = (
            typing.get_args(option.kind) if literal else option.constraints[0].words.removeprefix("one of ").split(", ")
        )
        return next(name for name in reversed(words) if name != option.default and " " not in name)
    candidates = (7, 0.7)
    return next(value for value in candidates if all(each.holds(value) for each in option.constraints))


def other_settings():
    return [NEEDS.get(name, {}) | {name: another_value(option)} for name, option in settings_of(Settings).items()]


OTHER_PARTS = {
    "data": [{"name": "toys"}, {"options": {"n": 4}}, {"fingerprint": "cd"}, {"kind": "file"}, {"seed": 3}],
    "model": [{"name": "convnet"}, {"options": {}}, {"own": True}],
    "method": [{"name": "pde"}, {"options": {"factor": 3}}],
    "optimizer": [{"name": "sam"}, {"defaults": "SGD lr 0.1"}],
    "settings": other_settings(),
}
OTHER_VALUES = {
    **{"record": Recording(l1=True), "seed": 1, "reference_epochs": 2},
    **{"budget": 48.0, "after": "0123456789abcdef", "full_cost": 48.0, "packages": {"method": "evenly-example 1.0"}},
}
NO_PART_OF_IT = [
    {"data": {"place": "/there"}},
    {"model": {"given": nn.Linear(3, 2)}},
    {"optimizer": {"given": torch.optim.SGD}},
]


def parts(plan: Plan, changes: dict) -> dict:
    return {name: evolve(getattr(plan, name), **change) for name, change in changes.items()}


def test_every_field_changes_the_digest_but_the_place_and_live_objects(plan):
    assert {*OTHER_PARTS, *OTHER_VALUES} == {each.name for each in fields(Plan)}
    for name, cls in (("data", DataSpec), ("model", ModelSpec), ("method", MethodSpec), ("optimizer", OptimizerSpec)):
        changed = {key for change in OTHER_PARTS[name] for key in change}
        assert changed | {"place", "given"} >= {each.name for each in fields(cls)}
    others = [plan(**{name: value}) for name, value in OTHER_VALUES.items()]
    others += [plan(**parts(plan(), {name: change})) for name, changes in OTHER_PARTS.items() for change in changes]
    assert len({each.digest for each in (plan(), *others)}) == 1 + len(others)
    for change in NO_PART_OF_IT:
        assert plan(**parts(plan(), change)).digest == plan().digest
    assert plan(settings=Settings(lr=1)).digest == plan(settings=Settings(lr=1.0)).digest
    assert len(plan().digest) == 16
    assert plan(seed=3).folder_name == f"erm-sgd-seed3-{plan(seed=3).digest[:8]}"


def test_a_plan_comes_back_from_json(plan):
    whole = plan(method=MethodSpec("pde", {"add": (1, 2)}), record=Recording(probes=["a"], epochs=[1, 5]), budget=48)
    again = Plan.from_dict(json.loads(json.dumps(whole.to_dict())))
    assert again.digest == whole.digest
    assert again.to_dict() == json.loads(json.dumps(whole.to_dict()))
    assert Plan.from_dict(plan().to_dict()) == plan()
    assert "given" not in plan(**parts(plan(), NO_PART_OF_IT[1])).to_dict()["model"]


def test_functions_of_the_users_own_are_known_by_what_they_do_or_are_called(plan):
    """They are part of the identity, and come back as what cannot be trained by."""

    def spectrum(model):
        return None

    halving = plan(settings=Settings(schedule=lambda progress: 1 - progress / 2), record=Recording(spectrum=spectrum))
    same = plan(settings=Settings(schedule=lambda step: 1 - step / 2), record=Recording(spectrum=spectrum))
    other = plan(settings=Settings(schedule=lambda progress: 1 - progress), record=Recording(spectrum=spectrum))
    assert halving.digest == same.digest != other.digest
    again = Plan.from_dict(json.loads(json.dumps(halving.to_dict())))
    assert again.digest == halving.digest
    assert again.settings.schedule == StoredSchedule(tuple(1 - epoch / 60 for epoch in range(30)))
    with pytest.raises(EvenlyError, match="the schedule was a function of the user's own"):
        again.settings.schedule(0.5)


@pytest.mark.parametrize("method", ["erm", "random_upsample"])
def test_a_control_is_completed_by_its_arm(plan, result, method):
    waiting = plan(method=MethodSpec(method, {"x": 1}), after="0123456789abcdef", full_cost=96.0)
    done = waiting.completed(result(cost=72.0, chosen=5, factor=3))
    assert (done.after, done.full_cost, done.budget) == (None, None, 72.0)
    assert done.method.options == {"x": 1} | ({} if method == "erm" else {"count": 5, "factor": 3})
    plain = waiting.completed(result(cost=96.0 * (1 + 1e-12), chosen=5))
    assert plain == plan(method=MethodSpec(method, {"x": 1}))
    never_plain = evolve(waiting, full_cost=None)
    assert never_plain.completed(result(cost=96.0)).budget == 96.0
