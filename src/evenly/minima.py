"""Minima that are kept in files: a finished run of evenly, or arrays of Hessians."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from evenly.diagnose.stability_card import StabilityCard, judge, stability_card
from evenly.engine.losses import single
from evenly.errors import EvenlyError
from evenly.experiment import as_device, reopen
from evenly.theory.stability import Hessians


def read(target: str | Path, data: str | None, **asked: Any) -> tuple[StabilityCard, str, list[str]]:
    """The card of what a file or folder holds, its name, and what should be said beside it.

    Args:
        target: an `.npz` file with Hessians, or a run's folder.
        data: what the run was trained on, where its folder cannot say.
        asked: the arguments of :func:`of_run`.
    """
    path = Path(target)
    if path.suffix == ".npz":
        settings = {name: asked[name] for name in ("lr", "batch_size", "rho")}
        if settings["lr"] is None or settings["batch_size"] is None:
            raise EvenlyError(f"{path} does not say how it is trained; give --lr and --batch-size")
        return judge(hessians(path), **settings), path.name, []
    if path.exists() and not path.is_dir():
        raise EvenlyError(f"{path} is neither a run's folder nor an .npz file; give one of these")
    return of_run(path, data, **asked)


def hessians(path: Path) -> Hessians:
    """The Hessians in an `.npz` file: hessians (n, p, p), or gradients (n, p) with H_i = g_i g_i^T."""
    if not path.exists():
        raise EvenlyError(f"there is no file {str(path)!r}; give an .npz file or a run's folder")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files if name in ("hessians", "gradients")}
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise EvenlyError(f"{path} cannot be read ({error}); give an .npz file of plain arrays") from None
    if len(arrays) != 1:
        raise EvenlyError(f"{path} must hold one of the arrays hessians (n, p, p) and gradients (n, p)")
    ((name, values),) = arrays.items()
    return Hessians.dense(values) if name == "hessians" else Hessians.rank_one(values)


def of_run(
    folder: Path,
    data: str | None,
    *,
    lr: float | None,
    batch_size: int | None,
    rho: float | None,
    samples: int,
    seed: int,
    device: str,
) -> tuple[StabilityCard, str, list[str]]:
    """The card of a finished run's weights, at its own learning rate and batch size unless others are given."""
    run, its_data, config = reopen(folder, data)
    settings, total = config["settings"], len(its_data.train)
    notes = []
    if settings["momentum"] and config["optimizer"] in ("sgd", "sam"):
        notes.append(f"It was trained with momentum {settings['momentum']:g}, of which the theory does not know.")
    if config["optimizer"] not in ("sgd", "sam"):
        notes.append(f"It was trained with {config['optimizer']}; the verdict is about plain SGD at its learning rate.")
    if settings["weight_decay"]:
        notes.append(f"Its weight decay {settings['weight_decay']:g} is left out of the curvature.")
    if settings["schedule"] != "constant" and lr is None:
        notes.append(f"Its learning rate followed a {settings['schedule']} schedule; lr is the one it began with.")
    if config["method"]["name"] != "erm":
        notes.append(f"It was trained by {config['method']['name']}, and is judged on the plain training loss.")
    own = min(settings["batch_size"] or total, total)
    card = stability_card(
        run.model.to(as_device(device)),
        "logistic" if single(run.outputs(its_data.train)) else "cross-entropy",
        its_data.train,
        lr=settings["lr"] if lr is None else lr,
        batch_size=own if batch_size is None else batch_size,
        rho=rho if rho is not None else settings["rho"] if config["optimizer"] == "sam" else None,
        samples=samples,
        seed=seed,
    )
    return card, str(folder), notes
