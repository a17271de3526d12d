"""evenly stability"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenly.cli.answers import check_answer, keep_answer
from evenly.cli.arguments import Device, Json, Out, numbers, only_given
from evenly.errors import EvenlyError

if TYPE_CHECKING:
    from evenly.diagnose.stability import StabilityCard
    from evenly.theory.stability import Hessians

Values = Annotated[
    str | None,
    typer.Option(help="For a diagram: the values on this axis.", metavar="NUMBER,NUMBER", show_default=False),
]


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
    lr: Annotated[float | None, typer.Option(help="Learning rate.", metavar="NUMBER", show_default=False)] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Examples per step.", metavar="INTEGER", show_default=False)
    ] = None,
    rho: Annotated[
        float | None, typer.Option(help="For RUN: the radius of SAM.", metavar="NUMBER", show_default=False)
    ] = None,
    samples: Annotated[int, typer.Option(help="For RUN: training examples to use.", metavar="INTEGER")] = 2000,
    x: Annotated[
        str, typer.Option(help="For a diagram: the axis across, batch_size, sigma, lr or ascent.", metavar="NAME")
    ] = "batch_size",
    y: Annotated[
        str, typer.Option(help="For a diagram: the axis upwards, another of these.", metavar="NAME")
    ] = "sigma",
    x_values: Values = None,
    y_values: Values = None,
    sigma: Annotated[
        int | None,
        typer.Option(
            help="For a diagram: coherence, where no axis has it. [default: 9]", metavar="INTEGER", show_default=False
        ),
    ] = None,
    ascent: Annotated[
        float | None,
        typer.Option(
            help="For a diagram: rho/alpha of SAM, where no axis has it. [default: 0]",
            metavar="NUMBER",
            show_default=False,
        ),
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(help="For a diagram: sgd, random_perturbation or sam.", metavar="NAME", show_default=False),
    ] = None,
    n: Annotated[int, typer.Option(help="For a diagram: examples.", metavar="INTEGER")] = 100,
    steps: Annotated[int, typer.Option(help="For a diagram: steps of every run.", metavar="INTEGER")] = 1000,
    repeats: Annotated[int, typer.Option(help="For a diagram: runs in every cell.", metavar="INTEGER")] = 10,
    seed: Annotated[int, typer.Option(help="Decides every random draw.", metavar="INTEGER")] = 0,
    device: Device = "cpu",
    out: Out = None,
    as_json: Json = False,
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
    if target is None:
        _diagram(
            out or Path("stability") / "phase-diagram", as_json, rho, data,
            (x, y, numbers("x-values", x_values), numbers("y-values", y_values)),
            {"steps": steps, "repeats": repeats, "seed": seed}, optimizer=optimizer, n=n,
            **only_given(batch_size=batch_size, sigma=sigma, lr=lr, ascent=ascent),
        )  # fmt: skip
        return
    from evenly.report.console import show_card
    from evenly.report.stability_pages import card_page

    if foreign := [name for name, value in only_given(sigma=sigma, ascent=ascent, optimizer=optimizer).items()]:
        raise EvenlyError(f"--{foreign[0]} is for a phase diagram; leave it out, or leave out {target}")
    path = Path(target)
    out = out or Path("stability") / path.name.removesuffix(".npz")
    check_answer(out, "stability.json", str(target))
    rates: dict[str, Any] = {"lr": lr, "batch_size": batch_size, "rho": rho}
    notes: list[str] = []
    if path.suffix == ".npz":
        card = _card_of_file(path, rates)
    elif path.exists() and not path.is_dir():
        raise EvenlyError(f"{path} is neither a run's folder nor an .npz file; give one of these")
    else:
        card, notes = _card_of_run(path, data, rates, samples, seed, device)
    keep_answer(out, "stability.json", {"target": str(target), **card.to_dict(), "notes": notes})
    card_page(card, out / "stability.html", path.name if path.suffix == ".npz" else str(path), notes)
    if as_json:
        print((out / "stability.json").read_text(), end="")
    else:
        show_card(card, notes, out / "stability.html")
    if card.stable is False:
        raise typer.Exit(1)


def _card_of_file(path: Path, rates: dict[str, Any]) -> StabilityCard:
    from evenly.diagnose.stability import judge

    if rates["lr"] is None or rates["batch_size"] is None:
        raise EvenlyError(f"{path} does not say how it is trained; give --lr and --batch-size")
    return judge(read_hessians(path), **rates)


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


def _card_of_run(
    path: Path, data: str | None, rates: dict[str, Any], samples: int, seed: int, device: str
) -> tuple[StabilityCard, list[str]]:
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
    if settings.schedule != "constant" and rates["lr"] is None:
        notes.append(f"Its learning rate followed a {settings.schedule} schedule; lr is the one it began with.")
    if run.plan.method.name != "erm":
        notes.append(f"It was trained by {run.plan.method.name}, and is judged on the plain training loss.")
    own_batch = min(settings.batch_size or len(train), len(train))
    card = stability_card(
        run.model.to(device_named(device)),
        "logistic" if single(run.outputs(train)) else "cross-entropy",
        train,
        lr=settings.lr if rates["lr"] is None else rates["lr"],
        batch_size=own_batch if rates["batch_size"] is None else rates["batch_size"],
        rho=rates["rho"] if rates["rho"] is not None else settings.rho if optimizer == "sam" else None,
        samples=samples,
        seed=seed,
    )
    return card, notes


def _diagram(
    out: Path,
    as_json: bool,
    rho: float | None,
    data: str | None,
    axes: tuple[Any, ...],
    runs: dict[str, int],
    **settings: Any,
) -> None:
    from evenly.engine.progress import Progress
    from evenly.report.console import show_diagram
    from evenly.report.phase_figure import save_phase_figure
    from evenly.report.stability_pages import diagram_page
    from evenly.theory.stability import Axes, Runs, phase_diagram

    if rho is not None or data is not None:
        which = "--rho" if rho is not None else "--data"
        raise EvenlyError(f"{which} is for a minimum; name its RUN, or give --ascent (rho/alpha) for a diagram")
    check_answer(out, "stability.json", None)
    try:
        with Progress("phase diagram") as bar:
            diagram = phase_diagram(
                Axes(*axes), runs=Runs(**runs), **settings, progress=lambda done, total: bar(done / total, "")
            )
    except KeyboardInterrupt:
        print("evenly: stopped; nothing was kept", file=sys.stderr)
        sys.exit(130)
    keep_answer(out, "stability.json", {"target": None, **diagram.to_dict()})
    save_phase_figure(diagram, out / "phase.svg")
    diagram_page(diagram, out / "stability.html")
    if as_json:
        print((out / "stability.json").read_text(), end="")
        return
    show_diagram(diagram, out / "stability.html")
