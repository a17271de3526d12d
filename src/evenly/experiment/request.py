"""What a user asked for becomes a plan, once: every value is resolved and checked here.

A value is the user's; else the recipe's (of the data, then of the model the data names; a model that the user names
brings its own recipe first); else the default.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from attrs import evolve, frozen
from torch import nn
from torch.optim import Optimizer

from evenly.data import DATASETS, Data, Split, Texts, dataset_options, from_arrays
from evenly.data import load as load_data
from evenly.data.augment import Augment
from evenly.data.contract import fingerprint
from evenly.data.mapped import memory_shared_by
from evenly.engine import check_selection
from evenly.engine.accuracy import small_group
from evenly.errors import EvenlyError, EvenlyWarning, unknown
from evenly.experiment.packages import packages_used
from evenly.methods import METHODS, find
from evenly.models import RECIPES
from evenly.models import find as find_model
from evenly.models.texts import TEXT_RECIPES, find_text_model
from evenly.optim.registry import known_name, rho_factor
from evenly.runs.plan import DataSpec, MethodSpec, Model, ModelSpec, OptimizerSpec, Plan
from evenly.settings import BY_GROUP, Execution, Option, Recording, Settings, above, at_least, checked, settings_of
from evenly.values import name_of, plain

log = logging.getLogger("evenly")
MODEL_OPTIONS = {
    "model": Option("model", Any),
    "model_options": Option("model_options", Mapping[str, Any], default={}),
}
SEED = Option("seed", int)
BUDGET = Option("budget", float, (above(0),))
SETTINGS = settings_of(Settings) | MODEL_OPTIONS
"""What can be set for any method."""
EXECUTION = settings_of(Execution)

MANY, FEW_EACH = 20, 10
"""More groups than this, with fewer examples each than this on average, are worth a warning."""


@frozen
class Source:
    """The data of a request: a `Data`, a name, a file, a folder of images, or a function of the seed.

    `largest` is the side that images in a folder are brought to where they are larger and no size was asked for.
    `without_test` withholds the test set, for runs that something is chosen by. `processes` read the data at once.
    """

    given: Any
    options: Mapping[str, Any]
    largest: int | None = None
    without_test: bool = False
    processes: int = 1

    def data(self, seed: int) -> Data:
        """The data of a seed."""
        with memory_shared_by(self.processes):
            data = self._whole(seed)
        return replace(data, test=None) if self.without_test else data

    def _whole(self, seed: int) -> Data:
        if self.is_function:
            data = self.given(seed)
            if not isinstance(data, Data):
                raise EvenlyError(f"the function for the data returned a {type(data).__name__}; return an evenly.Data")
            return data
        if isinstance(self.given, str | Path):
            return load_data(self.given, seed=seed, largest=self.largest, **self.options)
        if self.given is None:
            raise EvenlyError("there is no data; give a Data, a name from `evenly datasets`, or an .npz or .csv file")
        if self._is_divided:
            inputs, labels, groups = (*self.given, None)[:3]
            return from_arrays(inputs, labels, groups, seed)
        return self.given if isinstance(self.given, Data) else Data(train=self.given)

    def spec(self, data: Data) -> DataSpec:
        """The data in a plan."""
        if isinstance(self.given, str | Path):
            named = str(self.given) in DATASETS
            defaults = dataset_options(str(self.given)) if named else {}
            place = None if named else str(Path(self.given).resolve())
            options = plain({**defaults, **self.options})
            if self.largest is not None and data.options.get("size") == self.largest and "size" not in options:
                options["size"] = self.largest
                log.info("images are brought to %d x %d for the CPU", self.largest, self.largest)
                log.info("  for others: -d size=224, and --model resnet18 for a larger network")
            return DataSpec(data.name, options, place, kind="named" if named else "file")
        if self._is_divided:  # of what was given: each seed divides it anew, and a seed has one plan in every call
            return DataSpec(data.name, fingerprint=fingerprint({"whole": Split(*self.given)}))
        return DataSpec(data.name, fingerprint=None if self.is_function else data.fingerprint())

    def fingerprint(self, data: Data, seed: int) -> str | None:
        """Of the data of seed 0, given that of a seed; a name stands for itself, and a function may give anything."""
        if self.is_function or (isinstance(self.given, str | Path) and str(self.given) in DATASETS):
            return None
        return (data if seed == 0 else self.data(0)).fingerprint()

    @property
    def _is_divided(self) -> bool:
        """Whether it is (inputs, labels[, groups]), which evenly divides by the seed."""
        return isinstance(self.given, tuple | list) and len(self.given) in (2, 3)

    @property
    def is_function(self) -> bool:
        """Whether each seed's data come from the user, so that no name or file says what they are."""
        return callable(self.given) and not isinstance(self.given, Data | nn.Module | type)


def source(
    data: Any, options: Mapping[str, Any] | None, settings: Mapping[str, Any], largest: int | None = None
) -> tuple[Source, dict[str, Any]]:
    """The data asked for, and the settings without `groups` where that names columns of the data's table."""
    if not isinstance(options, Mapping | None) or "seed" in (options or {}):
        raise EvenlyError(
            f"options of the data must be names and values without a seed, got {options!r}; give seed=..."
        )
    settings, options = dict(settings), dict(options or {})
    columns = settings.get("groups", "given")
    if not isinstance(data, str | Path) or columns in ("given", "infer"):
        return Source(data, options, largest), settings
    table = f"groups {columns!r} names columns of a table"
    if str(data).endswith(".npz"):
        raise EvenlyError(f"{table} and {data} holds arrays; save an array groups in it, or give groups='infer'")
    if str(data) in DATASETS and "groups" not in dataset_options(str(data)):
        raise EvenlyError(f"{table}, which {data} is not; leave groups out, or give groups='infer'")
    if options.get("groups", columns) != columns:
        raise EvenlyError(f"groups are {columns!r} and, of the data, {options['groups']!r}; name the columns once")
    return Source(data, options | {"groups": settings.pop("groups")}, largest), settings


def split_arguments(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], Execution]:
    """The settings and options among keyword arguments, and how to execute."""
    execution = {name: value for name, value in arguments.items() if name in EXECUTION}
    return {name: value for name, value in arguments.items() if name not in EXECUTION}, Execution(**execution)


def seed_numbers(seeds: Any) -> tuple[int, ...]:
    """Seeds from how many there are to be, or which."""
    if isinstance(seeds, Iterable) and not isinstance(seeds, str) and getattr(seeds, "ndim", 1) != 0:
        return tuple(Option("seeds", int).checked(seed) for seed in seeds)
    return tuple(range(Option("seeds", int, (at_least(1),)).checked(seeds)))


@frozen
class Request:
    """One method with one optimizer, and what the user set for it: settings and the method's own options.

    `prefers` is the selection rule where neither the user nor a recipe names one and the data allows it.
    """

    method: str
    optimizer: str | Callable[[Any], Optimizer]
    model: Model | None
    values: Mapping[str, Any]
    record: Recording | None = None
    prefers: str | None = None


def plan_for(request: Request, data: Data, spec: DataSpec, seed: int, reference_epochs: int | None = None) -> Plan:
    """The plan of a request on this data.

    Args:
        reference_epochs: of ERM, whose cost is called 1.00x; those that ERM would take with these settings where not
            given.
    """
    settings, options, model, model_options = _resolved(request, data)
    network, optimizer = _model_spec(model, model_options), _optimizer_spec(request.optimizer)
    if reference_epochs is None:
        shared = {name: value for name, value in request.values.items() if name in SETTINGS}
        reference_epochs = erm_settings(evolve(request, values=shared), data).epochs
    return Plan(
        data=spec,
        model=network,
        method=MethodSpec(request.method, options),
        optimizer=optimizer,
        settings=settings,
        record=request.record,
        seed=seed,
        reference_epochs=reference_epochs,
        packages=packages_used(spec, network, request.method, optimizer),
    )


def not_default(request: Request, plan: Plan, place: Source, data: Data) -> dict[str, Any]:
    """What the user set that would be something else otherwise, by name: the model, options and settings.

    Args:
        plan: that of the request.
    """

    def differs(other: Request) -> bool:
        try:
            return evolve(plan_for(other, data, plan.data, plan.seed), budget=plan.budget).digest != plan.digest
        except EvenlyError:
            return True

    values = request.values
    names = {name for name in values if differs(evolve(request, values={k: v for k, v in values.items() if k != name}))}
    defaults = dataset_options(str(place.given)) if plan.data.kind == "named" else {}
    own = {name: plan.data.options[name] for name in place.options}
    return {
        **({"model": plan.model.name} if differs(evolve(request, model=None)) else {}),
        **({} if plan.budget is None else {"budget": plan.budget}),
        **{name: SETTINGS[name].text(getattr(plan.settings, name)) for name in settings_of(Settings) if name in names},
        **{name: value for name, value in plan.method.options.items() if name in names},
        **(plan.model.options if "model_options" in names else {}),
        **{name: value for name, value in own.items() if name not in defaults or value != defaults[name]},
    }


def erm_settings(request: Request, data: Data) -> Settings:
    """The settings that ERM has where a request has these."""
    return _resolved(evolve(request, method="erm", optimizer="sgd"), data)[0]


def uses_inferred(method: str, settings: Settings) -> bool:
    """Whether groups are to be inferred and a method, or the rule that selects its epoch, goes by them."""
    return settings.groups == "infer" and (find(method).needs_groups or settings.select in BY_GROUP)


def check_inference(plans: Collection[Plan]) -> None:
    """Refuse to infer groups that none of these plans would use."""
    asked = [plan.method.name for plan in plans if plan.settings.groups == "infer"]
    if asked and not any(uses_inferred(plan.method.name, plan.settings) for plan in plans):
        using = [name for name, method in sorted(METHODS.own.items()) if method.needs_groups]
        raise EvenlyError(
            f"groups 'infer' would not be used by {', '.join(dict.fromkeys(asked))}; give select='worst-group', or a "
            f"method that needs groups: {', '.join(using)}"
        )


def without_unused_groups(plan: Plan) -> Plan:
    """The plan without inferred groups where nothing would go by them, so that equal runs have equal plans."""
    if plan.settings.groups != "infer" or uses_inferred(plan.method.name, plan.settings):
        return plan
    return evolve(plan, settings=evolve(plan.settings, groups="given", infer="useful"))


def report_notes(data: Data) -> None:
    """Put what the user should know of the data before training into the log, which the shell prints."""
    for note in data.notes:
        logging.getLogger("evenly").info("%s", note)


def warn_of_many_groups(data: Data) -> None:
    """Warn of many groups of a few examples each: what is balanced or measured by them is mostly chance."""
    groups = data.train.groups
    if groups is None or groups.ndim == 2 or data.train.evaluation_groups is not None:
        return  # where groups overlap, their many combinations are only what methods balance
    sizes = torch.bincount(groups)
    sizes = sizes[sizes > 0]
    if len(sizes) > MANY and len(groups) < FEW_EACH * len(sizes):
        least = int(sizes.min())
        warnings.warn(
            f"{len(groups)} training examples are in {len(sizes)} groups, the smallest of {least} "
            f"example{'s' * (least != 1)}: little can be learned or measured by them; group by fewer columns, or by "
            "columns of fewer values",
            EvenlyWarning,
            stacklevel=3,
        )


def warn_of_small_groups(data: Data, settings: Settings) -> None:
    """Warn of validation groups that are too small to choose an epoch by."""
    if settings.select not in BY_GROUP or settings.groups == "infer" or data.validation is None:
        return
    if (doubt := small_group(data, settings.select)) is not None:
        warnings.warn(doubt, EvenlyWarning, stacklevel=3)


def recording(record: Mapping[str, Any] | Recording | None) -> Recording | None:
    """What to record, from names and values."""
    if record is None or isinstance(record, Recording):
        return record
    if not isinstance(record, Mapping):
        raise EvenlyError(
            f'record is a {type(record).__name__}; give what to record by name, e.g. {{"forgetting": True}}'
        )
    recording = Recording(**checked("option of record", record, settings_of(Recording)))
    try:
        json.dumps(recording.to_dict())
    except TypeError as error:
        raise EvenlyError(f"record {record} cannot be written to a file ({error}); give numbers and names") from None
    return recording


def _resolved(request: Request, data: Data) -> tuple[Settings, dict[str, Any], Model, dict[str, Any]]:
    """(settings, options of the method, model, options of the model)."""
    method, model = find(request.method), request.model
    recipe = dict(data.recipe)
    given = {**recipe.pop("options", {}).get(request.method, {}), **request.values}
    if foreign := [name for name in given if name not in SETTINGS and name not in method.options]:
        raise unknown(f"setting or option of {request.method}", foreign[0], [*SETTINGS, *method.options])
    if model is None:
        values = _recipe_of(given.get("model", recipe.get("model"))) | recipe
    else:
        values = recipe | _recipe_of(model)
    values |= checked("setting", {name: value for name, value in given.items() if name in SETTINGS}, SETTINGS)
    model = values.pop("model", "mlp") if model is None else model
    values.pop("model", None)
    model_options = dict(values.pop("model_options", {}))
    if "weights" in model_options and "normalise" not in given and _coloured(data.train):
        values["normalise"] = "imagenet"  # weights from a file are nearly always ImageNet's and know its scale
    if not isinstance(model, str):
        if given.get("normalise", "none") != "none":
            raise EvenlyError(
                f"normalise {given['normalise']!r} is for a model by name; let the module scale its own inputs"
            )
        values["normalise"] = "none"
    if "infer" in values and values.get("groups") != "infer":
        raise EvenlyError(f"infer {values['infer']!r} is how groups are inferred; give groups='infer' as well")
    settings = _settings(values, request.prefers, data)
    Augment(settings.augment)  # which refuses options that it does not have
    if isinstance(request.optimizer, str) and "rho" not in request.values:
        settings = evolve(settings, rho=settings.rho * rho_factor(known_name(request.optimizer)))
    own = {name: value for name, value in given.items() if name in method.options}
    options = {name: option.default for name, option in method.options.items()} | method.checked(own)
    return settings, plain(options), model, model_options


def _settings(values: Mapping[str, Any], prefers: str | None, data: Data) -> Settings:
    """The settings of these values; the preferred selection rule, if none is among them and the data allows it."""
    if prefers is None or "select" in values:
        return Settings(**values)
    settings = Settings(**values, select=prefers)
    try:
        check_selection(data, settings)
    except EvenlyError:
        return Settings(**values)
    return settings


def _coloured(split: Split) -> bool:
    if isinstance(split.inputs, Texts):
        return False
    first = split.inputs[0] if isinstance(split.inputs, torch.Tensor) else torch.as_tensor(split.inputs[0][0])
    return first.dtype == torch.uint8 and first.ndim == 3 and len(first) == 3


def _recipe_of(model: Any) -> dict[str, Any]:
    if not isinstance(model, str):
        return {}
    if (for_texts := find_text_model(model)) is not None:
        return dict(TEXT_RECIPES[for_texts[0].partition(":")[0]])
    return dict(RECIPES.get(find_model(model)[0], {}))


def _model_spec(model: Model, options: Mapping[str, Any]) -> ModelSpec:
    if isinstance(model, str):
        for_texts = find_text_model(model)
        if reserved := [name for name in ("model", "shape", "classes", "seed", "texts") if name in options]:
            raise EvenlyError(f"model option {reserved[0]!r} follows from the data and the seed; leave it out")
        return ModelSpec(for_texts[0] if for_texts is not None else find_model(model)[0], plain(options))
    if isinstance(model, nn.Module):
        return ModelSpec(f"{type(model).__name__} as given", plain(options), True, model)
    if callable(model):
        return ModelSpec(str(name_of(model)), plain(options), True, model)
    raise EvenlyError(f"a model is a name, a function that builds one, or a module, not a {type(model).__name__}")


def _optimizer_spec(optimizer: str | Callable[[Any], Optimizer]) -> OptimizerSpec:
    """An optimizer of the user's own by what it builds, so that another is not taken for it on resume."""
    if isinstance(optimizer, str):
        return OptimizerSpec(known_name(optimizer))
    if not callable(optimizer):
        raise EvenlyError(f"an optimizer is a name or a function from parameters to an optimizer, got {optimizer!r}")
    built = optimizer([nn.Parameter(torch.zeros(1))])
    if not isinstance(built, Optimizer):
        raise EvenlyError(f"optimizer returned a {type(built).__name__}; it must return a torch optimizer")
    defaults = sorted((name, value) for name, value in built.defaults.items() if not callable(value))
    return OptimizerSpec(str(name_of(optimizer)), f"{type(built).__name__} {defaults}", optimizer)
