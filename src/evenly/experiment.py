"""`evenly.train`: one method, one optimizer, one model, one seed on one data set; leaves a run folder behind.

run = evenly.train("convnet", evenly.Data(train=(x, y, groups), test=(x2, y2, groups2)), method="pde", out="runs/a")
run.model, run.results, run.history
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from evenly.data import Data, load
from evenly.engine import Fit, Run, measure
from evenly.engine.batches import Batches, outputs_of
from evenly.engine.folder import Folder, write_json
from evenly.engine.progress import Progress
from evenly.engine.schedules import schedule as find_schedule
from evenly.errors import EvenlyError, unknown
from evenly.methods import METHODS, find
from evenly.models import factory
from evenly.optim.registry import builder

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
    "model_options": {},
}
"""What is used where neither the user nor the data's recipe says otherwise."""


def train(
    model: Model | None = None,
    data: Data | str | Path | Any = None,
    method: str = "erm",
    optimizer: str | Callable[[Any], Optimizer] = "sgd",
    *,
    seed: int = 0,
    device: str = "auto",
    workers: int = 0,
    budget: float | None = None,
    out: str | Path | None = None,
    data_options: dict[str, Any] | None = None,
    progress: Callable[[float, str], None] | None = None,
    **settings: Any,
) -> Run:
    """Train by a method and measure what came of it.

    Args:
        model: a name, a function that builds a network, or a module to start from (it is copied, never changed).
        data: a `Data`, a name from `evenly datasets`, an `.npz` file, or (inputs, labels[, groups]) to train on.
        method: a name from `evenly methods`.
        optimizer: a name ("sgd", "adam", "adamw", "sam") or a function from parameters to an optimizer.
        seed: decides the data (of a named law), the initial weights and every draw.
        budget: example-gradients to stop at, instead of epochs; for erm and random_upsample, which serve as controls.
        out: the run's folder; a run that was interrupted there goes on, a finished one is read back.
        settings: epochs, batch_size (None: full batch), lr, momentum, weight_decay, rho, schedule, select
            ("last", "average", "worst-group", "worst-class"), evaluate_every, model_options; anything else is an
            option of the method.
    """
    data = as_data(data, seed, data_options or {})
    chosen = find(method)
    plan, options = resolve(data, method, settings)
    if options.keys() - chosen.options.keys():
        option = sorted(options.keys() - chosen.options.keys())[0]
        raise unknown(f"setting or option of {method}", option, [*DEFAULTS, *chosen.options])
    if budget is not None and method not in (controls := sorted({m.control for m in METHODS.values()})):
        raise EvenlyError(f"budget does not apply to {method}; it is for {' and '.join(controls)}")
    if model is None:
        model = plan["model"]
    shape = tuple(data.train.example_shape)
    fresh, model_name = factory(model, shape, data.classes, seed, **plan["model_options"])
    _fits(fresh(), data)
    config = {
        "data": {"name": data.name, "fingerprint": data.fingerprint(), **data.options},
        "model": {"name": model_name, "options": plan["model_options"]},
        "method": {"name": method, "options": options},
        "optimizer": optimizer if isinstance(optimizer, str) else getattr(optimizer, "__qualname__", "a function"),
        "settings": {
            key: (value if not callable(value) else getattr(value, "__qualname__", "a function"))
            for key, value in plan.items()
            if key not in ("model", "model_options")
        },
        "budget": budget,
        "seed": seed,
    }
    build = builder(
        optimizer,
        lr=plan["lr"],
        momentum=plan["momentum"],
        weight_decay=plan["weight_decay"],
        rho=plan["rho"],
    )
    with Progress(f"{data.name}: {method}, {config['optimizer']}", show=progress is None) as bar:
        engine = dict(
            epochs=plan["epochs"], optimizer=build, schedule=find_schedule(plan["schedule"]),
            batch_size=plan["batch_size"], select=plan["select"], evaluate_every=plan["evaluate_every"],
            budget=budget, seed=seed, device=as_device(device), workers=workers, progress=progress or bar,
        )  # fmt: skip
        Fit(**engine)  # settings that cannot work are said before a folder is made
        folder = None if out is None else Folder(out, config)
        run = chosen(fresh, data, Fit(**engine, folder=folder), **options)
    run.results = _results(run, data, config, erm_cost(data, resolve(data, "erm", settings)[0]["epochs"]))
    if folder is not None:
        if run.selection is not None:
            run.selection.save(folder.path / "selection.npz")
        if folder.results is None:
            write_json(folder.path / "results.json", run.results)
        from evenly.report import run_page

        run_page(run, data, config, folder.path / "report.html")
    return run


def as_data(data: Any, seed: int, options: dict[str, Any]) -> Data:
    """The data set that a user's argument means."""
    if isinstance(data, str | Path):
        return load(data, seed=seed, **options)
    if data is None:
        raise EvenlyError("there is no data; give a Data, a name from `evenly datasets`, or an .npz file")
    return data if isinstance(data, Data) else Data(train=data)


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


def resolve(data: Data, method: str, settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(settings of training, options of the method): from the user, else the data's recipe, else the defaults."""
    recipe = dict(data.recipe)
    given = recipe.pop("options", {}).get(method, {}) | settings
    plan = DEFAULTS | recipe | {key: value for key, value in given.items() if key in DEFAULTS}
    return plan, {key: value for key, value in given.items() if key not in DEFAULTS}


def erm_cost(data: Data, epochs: int) -> float:
    """What ERM with plain gradients costs: the unit of every cost that is printed."""
    return float(epochs * len(data.train))


def _fits(model: nn.Module, data: Data) -> None:
    """Try two examples, so that a network that does not go with the data is said in one line."""
    split = data.train
    if isinstance(split.inputs, torch.Tensor):
        x = split.inputs[:2].clone()
    else:
        x = torch.stack([torch.as_tensor(split.inputs[i][0]) for i in range(min(2, len(split)))])
    x = x.float() / 255 if x.dtype == torch.uint8 else x
    try:
        with torch.no_grad():
            outputs = model.eval()(x)
    except Exception as error:
        raise EvenlyError(
            f"the model cannot take inputs of shape {tuple(x.shape[1:])} and type {x.dtype} "
            f"({str(error).splitlines()[0]}); choose a model that can"
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
        "epochs": len(run.history), "cost": run.cost,
        "cost_multiple": run.cost / unit,
        "evaluation_cost": run.evaluation_cost, "seconds": round(run.seconds, 3),
        "chosen": None if run.selection is None else len(run.selection.indices),
    }  # fmt: skip
    for name, split in data.splits.items():
        outputs = outputs_of(run.model, Batches(split, config["settings"]["batch_size"], device)).cpu()
        row[name] = measure(outputs, split, data)
        if not math.isfinite(row[name]["loss"]):
            row[name]["loss"] = None
    return row
