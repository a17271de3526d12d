"""`evenly.train`: one method, one optimizer, one model, one seed on one data set; leaves a run folder behind.

run = evenly.train("convnet", evenly.Data(train=(x, y, groups), test=(x2, y2, groups2)), method="pde", out="runs/a")
run.model, run.results, run.history
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from evenly.data import DATASETS, Data, Split, Texts, dataset_options, load, reader_options
from evenly.engine import Fit, Run, measure
from evenly.engine.accuracy import intervals, usage
from evenly.engine.batches import Batches, outputs_of
from evenly.engine.folder import Folder
from evenly.engine.precision import Precision
from evenly.engine.progress import Progress
from evenly.engine.run import Record
from evenly.engine.schedules import schedule as find_schedule
from evenly.errors import EvenlyError, EvenlyWarning, unknown
from evenly.files import read_json, write_json
from evenly.methods import METHODS, find, infer_groups
from evenly.methods.inferred import Infer, rehearse
from evenly.models import MODELS, RECIPES, TEXT_MODELS, BagOfWords, Factory, encoded, factory
from evenly.models import find as find_model
from evenly.models.standardised import IMAGENET, Standardised, channel_moments
from evenly.models.texts import TEXT_RECIPES, find_text_model
from evenly.optim.registry import ADAPTIVE, builder
from evenly.options import checked, kinds_of, options_of
from evenly.randomness import derive, isolated, reseed

Model = str | nn.Module | Callable[[], nn.Module]

DEFAULTS: dict[str, Any] = {
    "model": "mlp",
    "epochs": 30,
    "batch_size": 128,
    "lr": 0.05,
    "momentum": 0.9,
    "weight_decay": 0.0,
    "rho": 0.05,
    "schedule": "constant",
    "select": "last",
    "evaluate_every": 1,
    "augment": "none",
    "normalise": "none",
    "precision": "auto",
    "model_options": {},
}
"""What is used where neither the user nor the data's recipe says otherwise."""

KINDS: dict[str, Any] = {
    "model": Any,
    "epochs": int,
    "batch_size": int | None,
    "lr": float,
    "momentum": float,
    "weight_decay": float,
    "rho": float,
    "schedule": Any,
    "select": str,
    "evaluate_every": int | None,
    "augment": str,
    "normalise": Literal["none", "mean", "data", "imagenet"],
    "precision": Precision,
    "model_options": Any,
    "patience": int | None,
    "groups": Literal["given", "infer"],
    "infer": Infer,
}
"""Of what kind each setting is. Those without a default are in a plan only where the user or a recipe gives them."""

MANY, FEW_EACH = 20, 10
"""More groups than so many, of fewer examples than so many on average, are worth a warning."""


def train(
    model: Model | None = None,
    data: Data | str | Path | Any = None,
    method: str = "erm",
    optimizer: str | Callable[[Any], Optimizer] = "sgd",
    *,
    seed: int = 0,
    device: str = "auto",
    workers: int = 0,
    capture: bool = True,
    budget: float | None = None,
    out: str | Path | None = None,
    data_options: dict[str, Any] | None = None,
    unit: float | None = None,
    progress: Callable[[float, str], None] | None = None,
    reading: bool = False,
    record: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Run:
    """Train by a method and measure what came of it.

    Args:
        model: a name, a function that builds a network, or a module to start from (it is copied, never changed).
        data: a `Data`, a name from `evenly datasets`, an `.npz` or `.csv` file, a folder of images, or (inputs,
            labels[, groups]) to train on.
        method: a name from `evenly methods`.
        optimizer: a name ("sgd", "adam", "adamw", "sam", "asam") or a function from parameters to an optimizer.
        seed: decides the data (of a named law), the initial weights and every draw.
        workers: processes that read and decode what is not in memory; they change nothing in the results.
        capture: on a GPU, record the step once and replay it where that is possible (`Run.step` tells).
        budget: example-gradients to stop at, instead of epochs; for erm and random_upsample, which serve as controls.
        out: the run's folder; a run that was interrupted there goes on, a finished one is read back.
        unit: the cost that is called 1.00x; that of ERM with the same settings where not given, for the epochs that it
            would take by the data's recipe where the method has its own.
        reading: only read back what is finished in `out`, which is left as it is; refuse to train.
        record: what to look at as the network learns, and when: the options of `evenly.Recorder`, e.g.
            ``{"forgetting": True, "probes": ["background"], "every": 5}``. Goes into the history; `Run.record` has all.
        settings: epochs, batch_size (None: full batch; an epoch's last batch holds what is left, and a single example
            left over joins the batch before), lr, momentum, weight_decay, rho, schedule, select
            ("last", "average", "worst-group", "worst-class"), evaluate_every, model_options; of images also augment
            ("none", "basic", "resized", "trivial", joined by +) and, for a model by name, normalise ("none", "mean":
            less the training set's mean, "data": by its mean and standard deviation, "imagenet"); precision ("auto":
            bf16 for images on a GPU, "bf16", "float32"). patience: epochs without a better value of what `select` goes
            by, after which training stops. groups: "given", the data's own; columns of a file's table, as "place" or
            "label,place" (`evenly.data.metadata`); or "infer": two for each class, from an early network, by
            infer="useful" (clusters of its outputs) or "eiil" (environments), for a method that needs groups and for
            select="worst-group"; the true ones are then only measured by. What that costs is counted to a method that
            needs groups, and to the evaluation of any other. Anything else is an option of the method.
    """
    seed = int(seed)
    settings, data_options = by_columns(settings, data, data_options)
    with isolated(derive(seed, "train")):
        data = as_data(data, seed, data_options or {})
        chosen = find(method)
        plan, options = resolve(data, method, settings, model)
        if not reading:
            check_inference([(method, plan)])
            _tell_of_many_groups(data)
        model = plan["model"] if model is None else model
        if optimizer in ADAPTIVE and "rho" not in settings:
            plan["rho"] *= ADAPTIVE[optimizer]
        if budget is not None and method not in (controls := sorted({m.control for m in METHODS.values()})):
            raise EvenlyError(f"budget does not apply to {method}; it is for {' and '.join(controls)}")
        texts = data.train.texts if isinstance(data.train.inputs, Texts) else None
        fresh, model_name = factory(
            model, data.train.example_shape, data.classes, seed, texts=texts, **plan["model_options"]
        )
        given, data = data, encoded(data, fresh()) if texts is not None else data
        fresh = scaled(fresh, model, data, plan["normalise"])
        _check_fit(fresh(), data)
        config = {
            "data": {"name": data.name, "fingerprint": given.fingerprint(), **data.options},
            "model": {"name": model_name, "options": plan["model_options"], "fingerprint": fingerprint(fresh())},
            "method": {"name": method, "options": options},
            "optimizer": name_of(optimizer),
            "optimizer_settings": _settings_of(optimizer),
            "settings": {key: value for key, value in plan.items() if key not in ("model", "model_options")}
            | {"schedule": _schedule_name(plan["schedule"])},
            "budget": budget,
            "seed": seed,
        }
        recorder = None
        if record is not None:
            config["record"] = _kept(record)
            recorder = _recorder(record, data, fresh())
        rates = {key: plan[key] for key in ("lr", "momentum", "weight_decay", "rho")}
        with Progress(f"{data.name}: {method}, {config['optimizer']}", show=progress is None) as bar:
            fit = Fit(
                plan["epochs"], builder(optimizer, **rates), find_schedule(plan["schedule"]), plan["batch_size"],
                plan["select"], plan["evaluate_every"], budget, seed, as_device(device), workers,
                folder=None if out is None else Folder(out, config), progress=progress or bar, augment=plan["augment"],
                precision=plan["precision"], capture=capture, reading=reading, patience=plan.get("patience"),
                record=recorder,
            )  # fmt: skip
            shown, inferred = data, None
            with memory_explained(plan["batch_size"]):
                if uses_inferred(method, plan):
                    rehearse(chosen, fresh, data, fit, options)
                    inferred = infer_groups(fresh, data, fit, plan.get("infer", "useful"))
                    # to a method that asks for no groups they are part of the looks at validation
                    spent = inferred.cost if chosen.needs_groups else 0.0
                    shown, fit = inferred.data, replace(fit, spent=spent, inferred=True)
                    for doubt in [] if reading else inferred.doubts(fit.select):
                        warnings.warn(doubt, EvenlyWarning, stacklevel=2)
                run = chosen(fresh, shown, fit, **options)
                if inferred is not None and not chosen.needs_groups:
                    run.evaluation_cost += inferred.cost
        if reading and fit.folder is not None:
            run.results = fit.folder.results or {}
            return run
        with memory_explained(plan["batch_size"]):
            by_erm, _ = resolve(data, "erm", {name: value for name, value in settings.items() if name in KINDS}, model)
            run.results = _results(run, data, config, unit or erm_cost(data, by_erm["epochs"]))
            if inferred is not None:
                run.results["inferred_groups"] = inferred.summary()
        if fit.folder is not None:
            _leave_behind(run, data, config, fit.folder)
    return run


def reopen(folder: str | Path, data: Data | str | Path | None = None) -> tuple[Run, Data, dict[str, Any]]:
    """A finished run read back from its folder, which is left as it is: the run, its data and its configuration.

    Args:
        data: needed where the configuration cannot name it, as for a `Data` of the user's own, or a file or folder
            that has moved.
    """
    path = Path(folder)
    config, results = read_json(path / "config.json"), read_json(path / "results.json")
    if not isinstance(config, dict) or not isinstance(results, dict):
        raise EvenlyError(f"{path} holds no finished run of evenly; give the folder that `evenly train` left behind")
    try:
        named, settings, method, model = config["data"], config["settings"], config["method"], config["model"]
        seed, name = config["seed"], named["name"]
        options = {key: value for key, value in named.items() if key not in ("name", "fingerprint")}
        if data is None and name in DATASETS:
            data = load(
                name, **{option: options[option] for option in ("seed", *dataset_options(name)) if option in options}
            )
        elif (place := _place_of(data, options)) is not None:
            data = load(place, **reader_options(options))
        elif data is None:
            raise EvenlyError(
                f"{path} was trained on {name!r}, which {_gone(options)}; give that data as well (--data FILE)"
            )
        data = as_data(data, seed, {})
        if data.fingerprint() != named["fingerprint"]:
            raise EvenlyError(f"the data given is not what {path} was trained on ({name}); give that")
        data.name, data.options = name, options
        by_name = model["name"] in (*MODELS, *TEXT_MODELS) or ":" in model["name"]
        record = config.get("record")
        own_record = record is not None and isinstance(record.get("spectrum"), str)
        if not by_name or config["optimizer_settings"] or isinstance(settings["schedule"], list) or own_record:
            raise EvenlyError(
                f"{path} was trained with a model, optimizer, schedule or record of the user's own; call evenly.train "
                "as then and take its .model"
            )
        run = train(
            model["name"], data, method["name"], config["optimizer"], seed=seed, device="cpu", budget=config["budget"],
            out=path, progress=lambda *_: None, reading=True, model_options=model["options"],
            record=record, **settings, **method["options"],
        )  # fmt: skip
    except (KeyError, TypeError, AttributeError) as error:
        raise EvenlyError(f"{path / 'config.json'} is damaged ({error!r}); train the run again") from None
    return run, encoded(data, run.model), config


def _recorder(record: Mapping[str, Any], data: Data, network: nn.Module) -> Callable[[Data], Record]:
    """What makes a recorder for a fit, each of which has its own; refused now if it cannot look at this network."""
    from evenly.diagnose.recording import Recorder

    kinds = kinds_of(Recorder.__init__)
    options = checked("option of record", record, {name: kinds[name] for name in options_of(Recorder.__init__)})
    Recorder(data, **options).check(network)
    return lambda data: Recorder(data, **options)


def _kept(record: Mapping[str, Any]) -> dict[str, Any]:
    """What is recorded, as a configuration keeps it: a function by its name."""
    if not isinstance(record, Mapping):
        raise EvenlyError(
            f'record is a {type(record).__name__}; give what to record by name, e.g. {{"forgetting": True}}'
        )
    try:
        kept = {
            key: sorted(value) if key == "epochs" and isinstance(value, Collection) else name_of(value)
            for key, value in record.items()
        }
        json.dumps(kept)
    except TypeError as error:
        raise EvenlyError(
            f"record {dict(record)} cannot be kept with the run ({error}); give numbers and names"
        ) from None
    return kept


def _place_of(data: Any, options: Mapping[str, Any]) -> Path | None:
    """The folder or file that a run was trained on, where it is there: as it was, or as the user says now."""
    if "folder" not in options or not (data is None or isinstance(data, str | Path)):
        return None
    place = Path(options["folder"]) / options.get("file", "") if data is None else Path(data)
    return place if place.exists() else None


def _gone(options: Mapping[str, Any]) -> str:
    if "folder" not in options:
        return "is not in the folder"
    return f"is no longer at {Path(options['folder']) / options.get('file', '')}"


def _leave_behind(run: Run, data: Data, config: dict[str, Any], folder: Folder) -> None:
    from evenly.report import run_page

    if folder.results is not None and not os.access(folder.path, os.W_OK):
        return  # a finished run that is only to be read
    if run.selection is not None:
        run.selection.save(folder.path / "selection.npz")
    if isinstance(run.model, BagOfWords):
        write_json(folder.path / "vocabulary.json", run.model.vocabulary.words)
    if folder.results is None:
        write_json(folder.path / "results.json", run.results)
    run_page(run, data, config, folder.path / "report.html")


def as_data(data: Any, seed: int, options: dict[str, Any]) -> Data:
    """The data set that a user's argument means."""
    if isinstance(data, str | Path):
        return load(data, seed=seed, **options)
    if data is None:
        raise EvenlyError("there is no data; give a Data, a name from `evenly datasets`, or an .npz or .csv file")
    return data if isinstance(data, Data) else Data(train=data)


def by_columns(
    settings: Mapping[str, Any], data: Any, data_options: Mapping[str, Any] | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(settings, options of the data): `groups` that name columns are an option of data that is read from a table."""
    settings, options = dict(settings), dict(data_options or {})
    by = settings.get("groups", "given")
    if not isinstance(data, str | Path) or by in ("given", "infer"):
        return settings, options
    table = f"groups {by!r} names columns of a table"
    if str(data).endswith(".npz"):
        raise EvenlyError(f"{table} and {data} holds arrays; save an array groups in it, or give groups='infer'")
    if str(data) in DATASETS and "groups" not in dataset_options(str(data)):
        raise EvenlyError(f"{table}, which {data} is not; leave groups out, or give groups='infer'")
    if options.get("groups", by) != by:
        raise EvenlyError(f"groups are {by!r} and, of the data, {options['groups']!r}; name the columns once")
    options["groups"] = settings.pop("groups")
    return settings, options


def uses_inferred(method: str, plan: Mapping[str, Any]) -> bool:
    """Whether groups are to be inferred and a method, or the rule that selects its epoch, goes by them."""
    return plan.get("groups") == "infer" and (find(method).needs_groups or plan["select"] == "worst-group")


def check_inference(plans: Collection[tuple[str, Mapping[str, Any]]]) -> None:
    """Refuse to infer groups that none of these methods, each with its settings, would use."""
    asked = [method for method, plan in plans if plan.get("groups") == "infer"]
    if asked and not any(uses_inferred(method, plan) for method, plan in plans):
        using = [name for name, method in sorted(METHODS.items()) if method.needs_groups]
        raise EvenlyError(
            f"groups 'infer' would not be used by {', '.join(dict.fromkeys(asked))}; give select='worst-group', or a "
            f"method that needs groups: {', '.join(using)}"
        )


def _tell_of_many_groups(data: Data) -> None:
    """Warn of groups so many that each is but a few examples: what is balanced or measured by them is mostly chance."""
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


def as_device(name: str) -> torch.device:
    """A device by name; "auto" is the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise EvenlyError(f"device {name!r} cannot be used ({str(error).splitlines()[0]}); use cpu or auto") from None
    return device


def resolve(
    data: Data, method: str, settings: Mapping[str, Any], model: Model | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(settings of training, options of the method): from the user, else from a recipe, else the defaults.

    The data's recipe goes before that of the model it names; a model that the user names brings its own recipe first.
    """
    recipe = dict(data.recipe)
    given = recipe.pop("options", {}).get(method, {}) | dict(settings)
    own = find(method)
    if foreign := [name for name in given if name not in KINDS and name not in own.options]:
        raise unknown(f"setting or option of {method}", foreign[0], [*KINDS, *own.options])
    given = checked("setting", {k: v for k, v in given.items() if k in KINDS}, KINDS) | {
        k: v for k, v in given.items() if k not in KINDS
    }
    if model is None:
        plan = DEFAULTS | _recipe_of(given.get("model", recipe.get("model"))) | recipe
    else:
        plan = DEFAULTS | recipe | _recipe_of(model)
    plan |= {name: value for name, value in given.items() if name in KINDS}
    if plan.get("patience") is not None and plan["select"] == "last":
        raise EvenlyError(
            f"patience {plan['patience']} has no validation metric to wait for; give select, e.g. 'worst-group'"
        )
    if "infer" in plan and plan.get("groups") != "infer":
        raise EvenlyError(f"infer {plan['infer']!r} is how groups are inferred; give groups='infer' as well")
    if "weights" in plan["model_options"] and "normalise" not in given and _coloured(data.train):
        plan["normalise"] = "imagenet"  # weights from a file are nearly always ImageNet's and know its scale
    if model is not None and not isinstance(model, str):
        if given.get("normalise", "none") != "none":
            raise EvenlyError(
                f"normalise {given['normalise']!r} is for a model by name; let the module scale its own inputs"
            )
        plan["normalise"] = "none"
    return plan, own.checked({name: value for name, value in given.items() if name in own.options})


def _coloured(split: Split) -> bool:
    if isinstance(split.inputs, Texts):
        return False
    first = split.inputs[0] if isinstance(split.inputs, torch.Tensor) else torch.as_tensor(split.inputs[0][0])
    return first.dtype == torch.uint8 and first.ndim == 3 and len(first) == 3


def _recipe_of(model: Any) -> dict[str, Any]:
    if not isinstance(model, str):
        return {}
    if (for_texts := find_text_model(model)) is not None:
        return TEXT_RECIPES[for_texts[0].partition(":")[0]]
    return RECIPES.get(find_model(model)[0], {})


def scaled(fresh: Factory, model: Model, data: Data, normalise: str) -> Factory:
    """The networks that `fresh` builds, behind the scaling asked for; one of the user's own scales by itself."""
    if normalise == "none" or not isinstance(model, str):
        return fresh
    of_data = channel_moments(data.train)  # which refuses what are no images
    mean, std = IMAGENET if normalise == "imagenet" else of_data
    std = [1.0] * len(mean) if normalise == "mean" else std
    channels = data.train.example_shape[0]
    if len(mean) != channels:
        raise EvenlyError(f"normalise 'imagenet' is for 3 channels and the images have {channels}; use 'data'")
    return lambda draw=0: Standardised(fresh(draw), mean, std)


@contextmanager
def memory_explained(batch_size: int | None) -> Iterator[None]:
    """Where a GPU's memory does not suffice, or a batch is too small, say which setting to change."""
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise EvenlyError(
            f"a batch of one example, at batch size {batch_size}, is too few for the model's batch normalisation; "
            "raise batch_size"
        ) from None
    except torch.OutOfMemoryError as error:
        total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory / 2**30
        raise EvenlyError(
            f"the GPU's {total:.0f} GiB do not suffice at batch size {batch_size or 'full'} "
            f"({str(error).split('. ')[0]}); lower batch_size, use precision bf16, or run fewer seeds side by side"
        ) from None


def name_of(value: Any) -> Any:
    """A function by its name, for a configuration; anything else as it is."""
    return getattr(value, "__qualname__", type(value).__name__) if callable(value) else value


def _schedule_name(schedule: Any) -> Any:
    """A schedule of the user's own by its course, so that another one is not taken for it on resume."""
    return [float(schedule(step / 10)) for step in range(10)] if callable(schedule) else schedule


def _settings_of(optimizer: str | Callable[[Any], Optimizer]) -> str | None:
    """What an optimizer made by a user's function is, so that another one is not taken for it on resume."""
    if isinstance(optimizer, str):
        return None
    built = optimizer([nn.Parameter(torch.zeros(1))])
    return f"{type(built).__name__} {sorted((k, v) for k, v in built.defaults.items() if not callable(v))}"


def fingerprint(model: nn.Module) -> str:
    """Sixteen hex digits that change when any initial weight does."""
    digest = hashlib.sha256()
    for key, value in model.state_dict().items():
        digest.update(f"{key} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def erm_cost(data: Data, epochs: int) -> float:
    """What ERM with plain gradients costs: the unit of every cost that is printed."""
    return float(epochs * len(data.train))


def _check_fit(model: nn.Module, data: Data) -> None:
    """Try two examples, so that a network that does not go with the data is said in one line."""
    split = data.train
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise EvenlyError("the model has no parameter that requires gradients; there is nothing to train")
    if isinstance(split.inputs, torch.Tensor):
        x = split.inputs[:2].clone()
    else:
        x = torch.stack([torch.as_tensor(split.inputs[i][0]) for i in range(min(2, len(split)))])
    x = x.float() / 255 if x.dtype == torch.uint8 else x
    try:
        with torch.no_grad():
            outputs = model.eval()(x)
    except Exception as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise EvenlyError(
            f"the model cannot take inputs of shape {tuple(x.shape[1:])} and type {x.dtype} ({said}); "
            "convert them, e.g. x.float(), or choose another"
        ) from error
    expected = "(N,) or (N, 1) or (N, 2)" if data.classes == 2 else f"(N, {data.classes})"
    good = isinstance(outputs, torch.Tensor) and (
        outputs.shape == (len(x), data.classes) or (data.classes == 2 and outputs.shape in ((len(x),), (len(x), 1)))
    )
    if not good:
        got = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
        raise EvenlyError(
            f"the model returns {got} for {len(x)} examples of {data.classes} classes; it must return {expected}"
        )


def _results(run: Run, data: Data, config: dict[str, Any], unit: float) -> dict[str, Any]:
    """One row: what was run, what it reached on every split, what it cost, also in units of ERM's cost."""
    device = next((p.device for p in run.model.parameters()), torch.device("cpu"))
    row: dict[str, Any] = {
        "data": data.name, "method": config["method"]["name"], "optimizer": config["optimizer"], "seed": config["seed"],
        "model": config["model"]["name"], "rule": run.rule, "selected_epoch": run.selected_epoch,
        "selected_after_epochs": run.selected_cost / len(data.train),
        "epochs": len(run.history), "cost": run.cost,
        "cost_multiple": run.cost / unit,
        "evaluation_cost": run.evaluation_cost, "evaluation_cost_multiple": run.evaluation_cost / unit,
        "seconds": round(run.seconds, 3),
        "chosen": None if run.selection is None else len(run.selection.indices),
        "device": str(device.type), "step": run.step,
    }  # fmt: skip
    if run.selection is not None and "ever_added" in run.selection.details:
        row["chosen_by_the_end"] = len(run.selection.details["ever_added"])
    for name, split in data.splits.items():
        reseed(derive(config["seed"], "results", name))
        outputs = outputs_of(
            run.model, Batches(split, config["settings"]["batch_size"], device, run.workers, precision=run.precision)
        ).cpu()
        row[name] = measure(outputs, split, data)
        if "groups" in row[name]:
            row[name]["group_intervals"] = intervals(row[name]["groups"], row[name]["group_counts"])
    if any("groups" in row[name] for name in data.splits):
        row["group_names"] = list(data.measured_names)
    if run.shown is not None:
        row["used"] = usage(run.shown, data)
    return row
