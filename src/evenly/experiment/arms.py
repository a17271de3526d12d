"""The arms of a comparison and their controls: what was asked for becomes a plan of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import evolve, field, frozen

from evenly.data import Data
from evenly.errors import EvenlyError
from evenly.experiment.execute import check_method
from evenly.experiment.request import (
    SETTINGS,
    Request,
    Source,
    check_inference,
    erm_settings,
    plan_for,
    without_unused_groups,
)
from evenly.experiment.spaces import checked_spaces
from evenly.experiment.sweep import Pair, checked_sweep, points, settings_and_options, values_for_all, values_of
from evenly.methods import find
from evenly.optim.registry import base_of, builder, known_name, passes, rho_factor
from evenly.runs.arms import Arm, varies
from evenly.runs.comparison import ComparisonPlan
from evenly.runs.folder import FORMAT
from evenly.runs.plan import DataSpec, Model, Plan
from evenly.runs.search import Space
from evenly.runs.summary import Row
from evenly.settings import Recording, Searching, Settings, checked, schedule_name, settings_of
from evenly.values import name_of, plain

SAMPLED = 100
"""Points of training at which a schedule of the user's own is compared with that of an earlier call."""
COUNTED_IN_EPOCHS = ("epochs", "evaluate_every", "patience")
"""Settings of one method that its control does not take over: an epoch of a small set is short, one of the control is
not, and evaluated after as many of them it would be selected from fewer evaluations."""


@frozen
class ArmPlan:
    """An arm with the plan of its first seed, and the plan of its control, which has no budget until the arm has run.

    `reference` are the settings that ERM has beside it; `passes` are those of a plain control over each example, where
    such a control may serve uncut.
    """

    arm: Arm
    plan: Plan
    reference: Settings
    control_arm: Arm | None = None
    control: Plan | None = None
    passes: int | None = None

    def without_unused_groups(self) -> ArmPlan:
        """Without inferred groups where nothing would go by them, so that equal runs have equal plans."""
        control = None if self.control is None else without_unused_groups(self.control)
        return evolve(self, plan=without_unused_groups(self.plan), control=control)


@frozen
class Asked:
    """What a comparison was asked for.

    Args:
        values: what a search has chosen for single arms and controls.
        searched_apart: controls whose values are not those of ERM, which then cannot serve for them.
    """

    source: Source
    model: Model | None
    methods: tuple[str, ...]
    optimizers: tuple[str, ...]
    seeds: tuple[int, ...]
    settings: Mapping[str, Any]
    options: Mapping[str, Mapping[str, Any]]
    sweep: Mapping[str, tuple[Any, ...]]
    record: Recording | None
    controls: bool
    spaces: tuple[Space, ...] = ()
    searching: Searching = field(factory=Searching)
    values: Mapping[Arm, Mapping[str, Any]] = field(factory=dict)
    searched_apart: frozenset[Arm] = frozenset()

    @property
    def pairs(self) -> list[Pair]:
        """The method and the optimizer of every arm, none twice, ordered by optimizer."""
        pairs = [
            (name.split("+")[0], known_name(optimizer))
            for name in self.methods
            for optimizer in (name.split("+")[1:] if "+" in name else self.optimizers)
        ]
        order = list(dict.fromkeys(optimizer for _, optimizer in pairs))
        return sorted(dict.fromkeys(pairs), key=lambda pair: order.index(pair[1]))

    @property
    def prefers(self) -> str | None:
        """The selection rule that a method prefers; all have it then, so that they are compared by one."""
        return next((rule for method, _ in self.pairs if (rule := find(method).prefers) is not None), None)

    def checked(self, sweep: Mapping[str, Iterable[Any]], search: Mapping[str, Any]) -> Asked:
        """Refuse what cannot work; with plain numbers."""
        for method in [*(method for method, _ in self.pairs), *self.options]:
            find(method)
        controls = {control[0] for pair in self.pairs if self.controls and (control := control_of(*pair))}
        for method in self.options:
            if method not in {*dict(self.pairs), *controls}:
                raise EvenlyError(f"{method} has options and is not compared; add it to methods, or leave them out")
        if not self.pairs or not self.seeds:
            raise EvenlyError("there is nothing to compare; give at least one method, one optimizer and one seed")
        if len(set(self.seeds)) != len(self.seeds):
            raise EvenlyError(f"a seed stands twice in {list(self.seeds)}; a run repeated is no second observation")
        if own := [method for method, given in self.options.items() if "select" in given]:
            raise EvenlyError(f"{own[0]}.select is of one method, one table has one selection rule; give select=...")
        settings = checked("setting", self.settings, SETTINGS)
        options = {
            method: checked(f"option of {method}", given, settings_and_options(method))
            for method, given in self.options.items()
        }
        fixed = settings | ({} if self.model is None else {"model": name_of(self.model)})
        swept = checked_sweep(sweep, self.pairs, options, fixed)
        spaces = checked_spaces(search, self.pairs, options, fixed, swept)
        return evolve(self, settings=settings, options=options, sweep=swept, spaces=spaces)

    def request(self, pair: Pair, values: Mapping[str, Any]) -> Request:
        """A request for an arm; a swept model takes the place of the comparison's."""
        model = values.get("model", self.model)
        rest = {name: value for name, value in values.items() if name != "model"}
        return Request(*pair, model, rest, self.record, self.prefers)

    def in_common(self, first: Data) -> dict[str, Any]:
        """What every call in one folder has in common.

        Args:
            first: the data of the first seed.
        """
        settings = dict(self.settings)
        if "schedule" in settings:
            settings["schedule"] = schedule_name(settings["schedule"], SAMPLED)
        return {
            "format": FORMAT,
            "compare": first.name,
            "fingerprints": {"data": self.source.fingerprint(first, self.seeds[0])},
            "model": plain(self.model),
            "data_options": plain(self.source.options),
            "options": plain(self.options),
            "settings": plain(settings),
            **({"search": self.searching.to_dict() | {"spaces": plain(self.spaces)}} if self.spaces else {}),
        }

    def comparison_plan(self, arms: Sequence[ArmPlan], rows: Sequence[Row], data: Data) -> ComparisonPlan:
        """What was run, for pages: the settings that ERM has, and which of them differ between arms."""
        first, *others = [each.reference for each in arms]
        differs = {
            name
            for name in settings_of(Settings)
            if any(getattr(other, name) != getattr(first, name) for other in others)
        }
        if "rho" not in self.settings and any(rho_factor(name) != 1 for name in self.optimizers):
            differs.add("rho")  # ASAM has a radius of its own where none was given
        return ComparisonPlan(
            methods=self.methods,
            optimizers=self.optimizers,
            seeds=self.seeds,
            model=", ".join(dict.fromkeys(row.result.model for row in rows)),
            rule=rows[0].result.rule,
            judged=rows[0].result.judged,
            in_common=first,
            differs=tuple(sorted(differs)),
            model_options=arms[0].plan.model.options,
            options=self._own_options(data),
            sweep={name: tuple(plain(values)) for name, values in self.sweep.items()},
            data_options=plain(self.source.options),
        )

    def _own_options(self, data: Data) -> dict[str, dict[str, Any]]:
        """What each method has of its own, from the data's recipe and from the user, but what is swept or searched."""
        recipe = data.recipe.get("options", {})
        varied = {*self.sweep, *(space.name for space in self.spaces)}
        merged = {
            method: {
                name: value
                for name, value in recipe.get(method, {}).items()
                if name not in self.settings and not {name, f"{method}.{name}"} & varied
            }
            | dict(self.options.get(method, {}))
            for method in dict.fromkeys(method for method, _ in self.pairs)
        }
        return {method: plain(options) for method, options in merged.items() if options}


def arms_and_controls(asked: Asked, data: Data) -> tuple[ArmPlan, ...]:
    """The plan of every arm, and of its control, on the data of the first seed; refused where one cannot work."""
    spec = asked.source.spec(data)
    arms = [arm_plan(asked, pair, swept, data, spec) for pair, swept in points(asked.sweep, asked.pairs)]
    check_plans([each.plan for each in arms], data)
    check_inference([each.plan for each in arms])
    return tuple(each.without_unused_groups() for each in arms)


def arm_plan(asked: Asked, pair: Pair, swept: Mapping[str, Any], data: Data, spec: DataSpec) -> ArmPlan:
    """The plan of one arm, and of its control."""
    seed, arm, control_pair = asked.seeds[0], Arm(*pair, plain(swept)), control_of(*pair)
    common = {**asked.settings, **values_for_all(swept)}
    own = {**asked.options.get(pair[0], {}), **values_of(swept, pair[0])}
    reference = erm_settings(asked.request(pair, common), data)
    plan = plan_for(
        asked.request(pair, common | own | dict(asked.values.get(arm, {}))), data, spec, seed, reference.epochs
    )
    if not asked.controls or control_pair is None:
        return ArmPlan(arm, plan, reference)
    # what the user set for this method alone, its control gets too; a recipe's settings suit the method only
    shared = {name: value for name, value in own.items() if name in SETTINGS and name not in COUNTED_IN_EPOCHS}
    its_swept = {name: value for name, value in values_for_all(swept).items() if varies(name, *control_pair)}
    beside = {**asked.settings, **its_swept}
    control = Arm(*control_pair, arm.swept, control_of=arm)
    values = {**beside, **asked.options.get(control_pair[0], {}), **shared, **asked.values.get(control, {})}
    erm = reference if beside == common else erm_settings(asked.request(control_pair, beside), data)
    its_plan = plan_for(asked.request(control_pair, values), data, spec, seed, erm.epochs)
    may_be_uncut = control_pair[0] == "erm" and not shared and control not in asked.searched_apart
    uncut = passes(control_pair[1]) if may_be_uncut else None
    return ArmPlan(arm, plan, reference, Arm(*control_pair, plain(its_swept)), its_plan, uncut)


def control_of(method: str, optimizer: str) -> Pair | None:
    """The method and the optimizer of the control: plain ERM for SAM with ERM; other methods keep their optimizer."""
    if method != "erm":
        return find(method).control, optimizer
    base = base_of(optimizer)
    return None if base is None else ("erm", base)


def check_plans(plans: Sequence[Plan], data: Data) -> None:
    """Refuse, before any arm has run, what an arm's settings and the data together cannot be."""
    for plan in plans:
        rates = {name: getattr(plan.settings, name) for name in ("lr", "momentum", "weight_decay", "rho")}
        builder(plan.optimizer.name, **rates)
        check_method(plan, data)
