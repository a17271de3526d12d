"""evenly stability"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenly.analyses import Axes, CardSettings, Quadratic, Runs
from evenly.cli.answers import check_answer, keep_answer
from evenly.cli.arguments import Json, Out, takes
from evenly.errors import EvenlyError
from evenly.settings import Execution, settings_of

if TYPE_CHECKING:
    from evenly.diagnose.stability import StabilityCard
    from evenly.theory.stability import Hessians

OF_A_CARD = {"device", "data", *settings_of(CardSettings)}
OF_RUNS = ("steps", "repeats")
OF_A_DIAGRAM = {"seed", *settings_of(Axes), *settings_of(Quadratic), *OF_RUNS}


@takes(
    CardSettings, Axes, (Quadratic, ("sigma", "ascent", "optimizer", "n")), (Runs, OF_RUNS), (Execution, ("device",))
)
def stability(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="A folder that `evenly train` left, or an .npz file with an array hessians (n, p, p) or gradients "
            "(n, p). Without it a phase diagram is drawn.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="For RUN: its data, if that has moved or was built in Python.", metavar="DATA", show_default=False
        ),
    ] = None,
    out: Out = None,
    as_json: Json = False,
    **settings: Any,
) -> None:
    """Tell whether SGD or SAM can stay at a minimum.

    With RUN, its minimum is judged; the exit code is 1 if the optimizer would leave it. Without RUN, the phase diagram
    of a quadratic loss is drawn. RUN's own learning rate, batch size and radius are used where you give none.

    \b
    Examples:
      evenly stability runs/a
      evenly stability runs/a --lr 0.1 --batch-size 128 --rho 0.05
      evenly stability hessians.npz --lr 0.1 --batch-size 8
      evenly stability --lr 0.5 --ascent 0.1
      evenly stability --x lr --y batch_size --sigma 9
    """
    from evenly.report import write_report

    typed = settings | ({} if data is None else {"data": data})
    if target is None:
        if foreign := [name for name in typed if name not in OF_A_DIAGRAM]:
            instead = " for a minimum; name its RUN, or give --ascent (rho/alpha) for a diagram"
            raise EvenlyError(f"--{foreign[0].replace('_', '-')} is{instead}")
        _diagram(out or Path("stability") / "phase-diagram", as_json, settings)
        return
    from evenly.report.console import show_card

    if foreign := [name for name in typed if name not in OF_A_CARD]:
        raise EvenlyError(
            f"--{foreign[0].replace('_', '-')} is for a phase diagram; leave it out, or leave out {target}"
        )
    path, device = Path(target), settings.pop("device", "auto")
    out = out or Path("stability") / path.name.removesuffix(".npz")
    check_answer(out, "stability.json", str(target))
    notes: list[str] = []
    rates, name = CardSettings(**settings), str(path)
    if path.suffix == ".npz":
        card, name = _card_of_file(path, rates), path.name
    elif path.exists() and not path.is_dir():
        raise EvenlyError(f"{path} is neither a run's folder nor an .npz file; give one of these")
    else:
        card, notes = _card_of_run(path, data, rates, device)
    page = card.page(name, notes)
    keep_answer(out, "stability.json", {"target": str(target), **card.to_dict(), "page": page.to_dict()})
    write_report(out)
    if as_json:
        print((out / "stability.json").read_text(), end="")
    else:
        show_card(page, out / "stability.html")
    if card.stable is False:
        raise typer.Exit(1)


def _card_of_file(path: Path, rates: CardSettings) -> StabilityCard:
    from evenly.diagnose.stability import judge

    if rates.lr is None or rates.batch_size is None:
        raise EvenlyError(f"{path} does not say how it is trained; give --lr and --batch-size")
    return judge(read_hessians(path), lr=rates.lr, batch_size=rates.batch_size, rho=rates.rho)


def read_hessians(path: Path) -> Hessians:
    """The Hessians in an `.npz` file: hessians (n, p, p), or gradients (n, p) with H_i = g_i g_i^T."""
    from zipfile import BadZipFile

    import numpy as np

    from evenly.theory.stability import Hessians

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


def _card_of_run(path: Path, data: str | None, rates: CardSettings, device: str) -> tuple[StabilityCard, list[str]]:
    """The card of a finished run's weights, at its own learning rate and batch size unless others are given."""
    from evenly.diagnose.stability import stability_card
    from evenly.engine.losses import single
    from evenly.experiment.execute import device_named
    from evenly.experiment.training import data_of
    from evenly.runs.run import load

    run = load(path)
    train, settings, optimizer = data_of(run, data).train, run.plan.settings, run.plan.optimizer.name
    notes = []
    if settings.momentum and optimizer in ("sgd", "sam"):
        notes.append(f"It was trained with momentum {settings.momentum:g}; the theory has none.")
    if optimizer not in ("sgd", "sam"):
        notes.append(f"It was trained with {optimizer}; the verdict is about plain SGD at its learning rate.")
    if settings.weight_decay:
        notes.append(f"Its weight decay {settings.weight_decay:g} is left out of the curvature.")
    if settings.schedule != "constant" and rates.lr is None:
        notes.append(f"Its learning rate followed a {settings.schedule} schedule; lr is the one it began with.")
    if run.plan.method.name != "erm":
        notes.append(f"It was trained by {run.plan.method.name}, and is judged on the plain training loss.")
    own_batch = min(settings.batch_size or len(train), len(train))
    card = stability_card(
        run.model.to(device_named(device)),
        "logistic" if single(run.outputs(train)) else "cross-entropy",
        train,
        lr=settings.lr if rates.lr is None else rates.lr,
        batch_size=own_batch if rates.batch_size is None else rates.batch_size,
        rho=rates.rho if rates.rho is not None else settings.rho if optimizer == "sam" else None,
        samples=rates.samples,
        seed=rates.seed,
    )
    return card, notes


def _diagram(out: Path, as_json: bool, settings: dict[str, Any]) -> None:
    from evenly.engine.progress import Progress
    from evenly.report import write_report
    from evenly.report.console import show_diagram
    from evenly.theory.stability import phase_diagram

    check_answer(out, "stability.json", None)
    axes = Axes(**{name: settings.pop(name) for name in settings_of(Axes) if name in settings})
    runs = Runs(**{name: settings.pop(name) for name in (*OF_RUNS, "seed") if name in settings})
    try:
        with Progress("phase diagram") as bar:
            diagram = phase_diagram(axes, runs=runs, progress=lambda done, total: bar(done / total, ""), **settings)
    except KeyboardInterrupt:
        print("evenly: stopped; nothing was kept", file=sys.stderr)
        sys.exit(130)
    keep_answer(out, "stability.json", {"target": None, **diagram.to_dict()})
    write_report(out)
    if as_json:
        print((out / "stability.json").read_text(), end="")
        return
    show_diagram(diagram, out / "stability.html")
