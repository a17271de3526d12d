"""The command line. Exit codes: 0, 1 (it ran and the answer is no), 2 (the input is wrong; said in one line)."""

from __future__ import annotations

import inspect
import io
import json
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from evenly import __version__
from evenly.arguments import names, numbers, only_given, pairs, running, seeds_of, settings_of, swept
from evenly.errors import EvenlyError, EvenlyWarning

app = typer.Typer(
    add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="Make networks learn every predictive feature in their data, not only the easy ones, and see if they did.",
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip

Out = Annotated[Path | None, typer.Option("--out", help="Folder for what is left behind.", show_default=False)]
Seed = Annotated[int, typer.Option(help="Decides the data of a law, the initial weights and every draw.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ... or auto.")]
Json = Annotated[bool, typer.Option("--json", help="Print the results as JSON and nothing else.")]
DataName = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="A name from `evenly datasets`, a folder of images, a .csv file of texts or numbers, or an .npz file with "
        "x, y[, groups][, split].",
    ),
]
Model = Annotated[
    str | None,
    typer.Option(help="A name from `evenly models`; the data's own where not given.", show_default=False),
]
Number = Annotated[float | None, typer.Option(show_default=False)]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", help="An option of the method, name=value; repeatable.", show_default=False),
]
DataOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--data-option", "-d", help="An option of the data's law, name=value; repeatable.", show_default=False
    ),
]
Epochs = Annotated[int | None, typer.Option(help="Passes over what the method trains on.", show_default=False)]
BatchSize = Annotated[str | None, typer.Option(help="Examples per step, or 'full'.", show_default=False)]
Schedule = Annotated[str | None, typer.Option(help="constant, step or cosine.", show_default=False)]
Select = Annotated[
    str | None,
    typer.Option(
        help="Which epoch's weights count: last, average, worst-group or worst-class (the latter three on validation).",
        show_default=False,
    ),
]
Patience = Annotated[
    int | None,
    typer.Option(help="Stop after so many epochs without a better value of what --select goes by.", show_default=False),
]
Groups = Annotated[
    str | None,
    typer.Option(
        help="Columns of a table to group by, as place, label,place or label,male+female; given (the data's own, where "
        "not told); or infer: two for each class, from an early network.",
        show_default=False,
    ),
]
Infer = Annotated[
    str | None,
    typer.Option(help="How groups are inferred: useful (clusters, the default) or eiil.", show_default=False),
]
Augment = Annotated[
    str | None,
    typer.Option(help="Of images: none, or basic, resized, trivial joined by +, as basic+trivial.", show_default=False),
]
Normalise = Annotated[
    str | None,
    typer.Option(help="Of images: none, mean, data (its own mean and deviation) or imagenet.", show_default=False),
]
Precision = Annotated[
    str | None, typer.Option(help="auto (bf16 for images on a GPU), bf16 or float32.", show_default=False)
]
Workers = Annotated[int, typer.Option(help="Processes that read what is not in memory; they change no result.")]
NoCapture = Annotated[bool, typer.Option("--no-capture", help="On a GPU, take every step one by one.")]
ModelOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--model-option", help="An option of the model, name=value, e.g. weights=FILE; repeatable.", show_default=False
    ),
]


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for results.json, report.html and the runs.")] = Path(
        "evenly-demo"
    ),
    seed: Annotated[int, typer.Option(help="The first seed.")] = 10,
    device: Device = "cpu",
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Processes that share the seeds; all cores, four at most, where not given.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the point of evenly on data that ships with it, in about a minute.

    Example: evenly demo --out /tmp/demo
    """
    from evenly.demo import demo as run_demo
    from evenly.report.console import show_results

    jobs = min(4, os.cpu_count() or 1) if jobs is None else jobs
    tables = run_demo(out, seed=seed, device=device, jobs=jobs)
    show_results(tables, out, as_json)


@app.command()
def train(
    data: DataName,
    method: Annotated[str, typer.Option(help="A name from `evenly methods`.")] = "erm",
    optimizer: Annotated[str, typer.Option(help="sgd, adam, adamw, sam or asam.")] = "sgd",
    model: Model = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    lr: Number = None,
    momentum: Number = None,
    weight_decay: Number = None,
    rho: Number = None,
    schedule: Schedule = None,
    select: Select = None,
    patience: Patience = None,
    groups: Groups = None,
    infer: Infer = None,
    augment: Augment = None,
    normalise: Normalise = None,
    precision: Precision = None,
    option: Options = None,
    model_option: ModelOptions = None,
    data_option: DataOptions = None,
    seed: Seed = 0,
    device: Device = "auto",
    workers: Workers = 0,
    no_capture: NoCapture = False,
    record: Annotated[
        list[str] | None,
        typer.Option(
            help="What to look at in training, name=value: forgetting=true, probes=true, importance=0.05, spectrum=5, "
            "l1=true, every=5; repeatable. `evenly audit` shows forgetting.",
            show_default=False,
        ),
    ] = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Train by one method with one optimizer and one seed; leaves a run folder.

    Examples:

      evenly train shortcut-digits --method pde

      evenly train my.npz --method useful --optimizer sam --epochs 60 -o factor=3

      evenly train reviews.csv --method pde --groups label,product

      evenly train my.npz --record forgetting=true --record importance=0.05 --record every=10

      evenly train photos/ --model torchvision:resnet50 --model-option weights=resnet50.safetensors --augment basic
    """
    from evenly.experiment import train as run_train
    from evenly.methods import find
    from evenly.report.console import show_run

    settings = settings_of(
        batch_size, model_option, epochs=epochs, lr=lr, momentum=momentum, weight_decay=weight_decay, rho=rho,
        schedule=schedule, select=select, augment=augment, normalise=normalise, precision=precision,
        patience=patience, groups=groups, infer=infer,
    )  # fmt: skip
    options = find(method).checked(pairs(option))
    out = _outside(data, out or Path("runs") / f"{_short(data)}-{method}-{optimizer}-seed{seed}")
    run = run_train(
        model, data, method, optimizer, seed=seed, device=device, out=out,
        data_options=pairs(data_option), record=pairs(record) or None, **running(workers, no_capture), **settings,
        **options,
    )  # fmt: skip
    if as_json:
        print(json.dumps(run.results, indent=2))
        return
    show_run(run.results, out / "report.html")
    if run.record is not None and not run.record.history:
        print(run.record.table())


@app.command()
def compare(
    data: DataName,
    methods: Annotated[str, typer.Option(help="Names, separated by commas.")] = "erm,useful",
    optimizers: Annotated[str, typer.Option(help="sgd, adam, adamw, sam, asam, separated by commas.")] = "sgd",
    seeds: Annotated[str, typer.Option(help="How many, or which: 3 or 100,101,102.")] = "3",
    model: Model = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    lr: Number = None,
    momentum: Number = None,
    weight_decay: Number = None,
    rho: Number = None,
    schedule: Schedule = None,
    select: Select = None,
    patience: Patience = None,
    groups: Groups = None,
    infer: Infer = None,
    augment: Augment = None,
    normalise: Normalise = None,
    precision: Precision = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            help="Values to run every arm at: batch_size=128,256 or useful.factor=2,3; repeatable, then all pairs.",
            show_default=False,
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", "-o", help="An option of a method, method.name=value; repeatable.", show_default=False
        ),
    ] = None,
    model_option: ModelOptions = None,
    data_option: DataOptions = None,
    jobs: Annotated[int, typer.Option(help="Processes that share the seeds, one thread each.")] = 1,
    together: Annotated[int, typer.Option(help="Seeds side by side on one GPU.")] = 3,
    device: Device = "auto",
    workers: Workers = 0,
    no_capture: NoCapture = False,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Compare methods x optimizers x seeds, each against a control of equal cost.

    Examples:

      evenly compare shortcut-digits --methods erm,pde,group_dro --seeds 5

      evenly compare my.npz --methods erm,useful --optimizers sgd,sam -o useful.factor=3

      evenly compare cifar10 --methods erm,useful --sweep batch_size=128,256,512
    """
    from evenly.comparison import compare as run_compare
    from evenly.report.console import show_results

    by_method: dict[str, dict[str, Any]] = {}
    for name, value in pairs(option).items():
        owner, dot, own = name.partition(".")
        if not dot:
            raise EvenlyError(f"option {name!r} does not say whose it is; write method.{name}=..., e.g. pde.{name}=...")
        by_method.setdefault(owner, {})[own] = value
    out = _outside(data, out or Path("runs") / f"compare-{_short(data)}")
    table = run_compare(
        model, data, names(methods), names(optimizers), seeds_of(seeds), options=by_method, sweep=swept(sweep),
        data_options=pairs(data_option), device=device, jobs=jobs, together=together, out=out,
        **running(workers, no_capture),
        **settings_of(
            batch_size, model_option, epochs=epochs, lr=lr, momentum=momentum, weight_decay=weight_decay, rho=rho,
            schedule=schedule, select=select, augment=augment, normalise=normalise, precision=precision,
            patience=patience, groups=groups, infer=infer,
        ),
    )  # fmt: skip
    show_results([table], out, as_json)


@app.command()
def stability(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            help="A folder that `evenly train` left, or an .npz file with hessians (n, p, p) or gradients (n, p).",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="What RUN was trained on, where that is a file.", show_default=False)
    ] = None,
    lr: Number = None,
    batch_size: Annotated[int | None, typer.Option(help="Examples per step.", show_default=False)] = None,
    rho: Annotated[float | None, typer.Option(help="Of SAM, for a minimum.", show_default=False)] = None,
    samples: Annotated[int, typer.Option(help="Training examples of RUN that are looked at, at most.")] = 2000,
    x: Annotated[str, typer.Option(help="Across: batch_size, sigma, lr or ascent (rho/alpha).")] = "batch_size",
    y: Annotated[str, typer.Option(help="Upwards: another of these.")] = "sigma",
    x_values: Annotated[str | None, typer.Option(help="Separated by commas.", show_default=False)] = None,
    y_values: Annotated[str | None, typer.Option(help="Separated by commas.", show_default=False)] = None,
    sigma: Annotated[int | None, typer.Option(help="Coherence, 9 where no axis has it.", show_default=False)] = None,
    ascent: Annotated[float | None, typer.Option(help="SAM's rho/alpha, 0 if not given.", show_default=False)] = None,
    optimizer: Annotated[
        str | None, typer.Option(help="sgd, random_perturbation or sam, for a diagram.", show_default=False)
    ] = None,
    n: Annotated[int, typer.Option(help="Samples of the diagram's quadratic.")] = 100,
    steps: Annotated[int, typer.Option(help="Steps of every run.")] = 1000,
    repeats: Annotated[int, typer.Option(help="Runs in every cell.")] = 10,
    seed: Annotated[int, typer.Option(help="Decides the runs, and which examples are looked at.")] = 0,
    device: Device = "cpu",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Can SGD or SAM stay at a minimum? A phase diagram, or the card of a minimum: exit code 1 if it cannot.

    Examples:

      evenly stability --lr 0.5 --ascent 0.1

      evenly stability --x lr --y batch_size --sigma 9

      evenly stability runs/a --lr 0.1 --batch-size 128 --rho 0.05

      evenly stability hessians.npz --lr 0.1 --batch-size 8
    """
    if target is None:
        _diagram(
            out or Path("stability") / "phase-diagram", as_json, x=x, y=y, x_values=numbers("x-values", x_values),
            y_values=numbers("y-values", y_values), optimizer=optimizer, n=n, steps=steps, repeats=repeats, seed=seed,
            **only_given(batch_size=batch_size, sigma=sigma, lr=lr, ascent=ascent), rho=rho, data=data,
        )  # fmt: skip
        return
    from evenly.minima import read
    from evenly.report.console import show_card
    from evenly.report.stability_pages import card_page

    if foreign := [name for name, value in only_given(sigma=sigma, ascent=ascent, optimizer=optimizer).items()]:
        raise EvenlyError(f"--{foreign[0]} is for a phase diagram; leave it out, or leave out {target}")
    out = out or Path("stability") / Path(target).name.removesuffix(".npz")
    _check_answer(out, "stability.json", str(target))
    card, name, notes = read(
        target, data, lr=lr, batch_size=batch_size, rho=rho, samples=samples, seed=seed, device=device
    )
    _keep(out, "stability.json", {"target": str(target), **card.to_dict(), "notes": notes})
    card_page(card, out / "stability.html", name, notes)
    if as_json:
        print((out / "stability.json").read_text(), end="")
    else:
        show_card(card, notes, out / "stability.html")
    if card.stable is False:
        raise typer.Exit(1)


@app.command()
def audit(
    target: Annotated[
        str,
        typer.Argument(metavar="RUN_OR_CHECKPOINT", help="A folder that `evenly train` left, or a file of weights."),
    ],
    against: Annotated[
        str | None, typer.Option(help="Another of these, beside it on the page.", show_default=False)
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="The data, where a run's folder cannot say.", show_default=False)
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The network of a file of weights: `evenly models`.", show_default=False)
    ] = None,
    normalise: Annotated[
        str | None,
        typer.Option(
            help="How the network of a file of weights was given its images: none (the default), mean, data, imagenet.",
            show_default=False,
        ),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Judge on train, validation or test (the default).", show_default=False)
    ] = None,
    rho: Annotated[float, typer.Option(help="SAM's radius, for the importance weights.")] = 0.05,
    top: Annotated[int, typer.Option(help="Eigenvalues of the Hessian; 0 leaves curvature out.")] = 5,
    samples: Annotated[int, typer.Option(help="Training examples for curvature and importance, at most.")] = 1000,
    data_option: DataOptions = None,
    seed: Annotated[int, typer.Option(help="Decides which examples are looked at.")] = 0,
    device: Device = "auto",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Show what a model has learned: groups, probes, importance, curvature, the hardest examples. Leaves a page.

    Examples:

      evenly audit runs/a

      evenly audit runs/a --against runs/b

      evenly audit weights.safetensors --model resnet18 --data photos/
    """
    from evenly.diagnose.audit import audit as look
    from evenly.diagnose.audit import check_same, check_settings
    from evenly.engine.progress import Progress
    from evenly.report.console import show_audits
    from evenly.subjects import check_targets, subjects

    targets = [target] if against is None else [target, against]
    check_settings(rho, top, samples)
    check_targets(targets)
    out = out or Path("audits") / "-".join(Path(each).resolve().name.partition(".")[0] for each in targets)
    asked = {
        "target": target, "against": against, "data": data, "model": model, "normalise": normalise, "split": split,
        "rho": rho, "top": top, "samples": samples, "seed": seed, "data_options": pairs(data_option),
    }  # fmt: skip
    _check_answer(out, "audit.json", asked, "asked")
    found = []
    with Progress("audit") as bar:
        bar(0.0, "reading")
        given = subjects(targets, data, model, device, normalise=normalise, data_options=pairs(data_option))
        check_same(given[0].data, given[-1].data)
        for number, of in enumerate(given):

            def show(share: float, note: str, at: int = number) -> None:
                bar((at + share) / len(targets), note)

            found.append(
                look(
                    of.network, of.data, name=of.name, split=split, rho=rho, top=top, samples=samples,
                    forgetting=of.forgetting, seed=seed, progress=show,
                )
            )  # fmt: skip
    compared = found[0].compared(found[1]) if len(found) > 1 else []
    content = {"asked": asked, "compared": compared, "audits": [each.to_dict() for each in found]}
    _keep(out, "audit.json", content)
    found[0].report(out / "audit.html", *found[1:])
    if as_json:
        print((out / "audit.json").read_text(), end="")
        return
    show_audits(found, compared, out / "audit.html")


@app.command()
def methods(as_json: Json = False) -> None:
    """List the methods.

    Example: evenly methods --json
    """
    from evenly.methods import METHODS
    from evenly.report.console import show_list, with_options

    show_list(
        {
            name: with_options(m.summary, m.options) + (" (needs groups)" if m.needs_groups else "")
            for name, m in sorted(METHODS.items())
        },
        as_json,
    )


@app.command()
def datasets(as_json: Json = False) -> None:
    """List the data sets that come with evenly.

    Example: evenly datasets
    """
    from evenly.data import DATASETS, dataset_options
    from evenly.report.console import show_list, with_options

    rows = {
        name: with_options((make.__doc__ or "").splitlines()[0], dataset_options(name))
        for name, make in DATASETS.items()
    }
    rows["FOLDER"] = "your own images: a folder for each class, or a file metadata.csv with file, label[, split, ...]"
    rows["FILE.csv"] = "your own texts (a column text) or numbers: label[, split, attributes ...]; also .csv.gz"
    rows["FILE.npz"] = "your own arrays: x (N, ...), y (N,), optionally groups (N,) and split (N,)"
    show_list(rows, as_json)


@app.command()
def models(as_json: Json = False) -> None:
    """List the models.

    Example: evenly models
    """
    from evenly.models import MODELS, TEXT_MODELS
    from evenly.report.console import show_list

    rows = {name: summary for name, (_, summary) in (MODELS | TEXT_MODELS).items()}
    rows["hf:FOLDER"] = "for texts: a sequence classifier of transformers and its tokenizer from a local folder"
    for library in ("torchvision", "timm"):
        rows[f"{library}:NAME"] = (
            f"any model of {library} where it is installed; weights from a local file with --model-option weights=FILE"
        )
    show_list(rows, as_json)


@app.callback(invoke_without_command=True)
def version(
    context: typer.Context, show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    if show:
        print(f"evenly {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


def main() -> None:
    """Run the command line; what the user can mend is one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ± still gets its table
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default", EvenlyWarning)
            warnings.showwarning = _told(warnings.showwarning)
            code = app(standalone_mode=False)
    except EvenlyError as error:
        _fail(_typed(str(error)))
    except _UsageError as error:
        _fail(_misread(error))
    except (KeyboardInterrupt, typer.Abort):
        _stopped()
    except OSError as error:
        _fail(str(error))
    except Exception:  # a defect of ours; its exit code must not be taken for an answer
        traceback.print_exc()
        sys.exit(DEFECT)
    else:
        if code == INTERRUPTED:
            _stopped()
        sys.exit(code if isinstance(code, int) else 0)


_UsageError: type[Any] = typer.BadParameter.__bases__[
    0
]  # click's, which newer versions of typer bring along under their own name


INTERRUPTED = 130  # what typer makes of Ctrl-C
DEFECT = 70  # of the software, by the convention of sysexits.h


def _told(otherwise: Callable[..., None]) -> Callable[..., None]:
    """How warnings are shown: evenly's own in one line."""

    def tell(message: Warning | str, category: type[Warning], *place: Any, **kwargs: Any) -> None:
        if not issubclass(category, EvenlyWarning):
            otherwise(message, category, *place, **kwargs)
            return
        print(f"evenly: {_typed(str(message))}", file=sys.stderr)

    return tell


def _stopped() -> NoReturn:
    print("evenly: stopped; the same command goes on where it stopped", file=sys.stderr)
    sys.exit(INTERRUPTED)


def _typed(message: str) -> str:
    """Hints in Python's spelling as they are typed here.

    select='last' is --select last, of the data skip_bad=True is -d skip_bad=true, of a method on='train' is on=train.
    """
    options = {name for verb in (train, compare, audit) for name in inspect.signature(verb).parameters}

    def typed(hint: re.Match[str]) -> str:
        name, quoted, plain = hint.groups()
        if name in options and (quoted or name == "groups"):
            return f"--{name} {quoted or plain}"
        if name in _data_options():
            return f"-d {name}={quoted or {'True': 'true', 'False': 'false'}.get(plain, plain)}"
        return f"{name}={quoted}" if quoted else hint.group()

    return re.sub(r"(?<![^\s(])(?<!-d )([a-z_]+)=(?:'([\w-]+)'|([\w,+-]+))", typed, message)


@cache
def _data_options() -> set[str]:
    """What `-d` can be given, of one data set or another."""
    from evenly.data import DATASETS, dataset_options, images
    from evenly.data.tables import table
    from evenly.options import options_of

    readers = [options_of(read, leave_out=("seed",)) for read in (table, images.image_folder)]
    return {name for known in (*map(dataset_options, DATASETS), *readers) for name in known}


def _misread(error: Any) -> str:
    """What typer says of an argument; with the value, which it may leave out, where that is no number."""
    said: str = error.format_message()
    found = getattr(error.__cause__, "errors", None)
    if not callable(found):
        return said
    wrong = found()[0]
    kind = {"int": "a whole number", "float": "a number"}.get(wrong["type"].partition("_")[0])
    return said if kind is None else f"{error.param.opts[-1]} {wrong['input']!r} cannot be used; give {kind}"


def _fail(message: str) -> NoReturn:
    print(f"evenly: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


def _diagram(out: Path, as_json: bool, rho: float | None, data: str | None, **settings: Any) -> None:
    from evenly.engine.progress import Progress
    from evenly.report.console import show_diagram
    from evenly.report.phase_figure import save_phase_figure
    from evenly.report.stability_pages import diagram_page
    from evenly.theory.stability import phase_diagram

    if rho is not None or data is not None:
        which = "--rho" if rho is not None else "--data"
        raise EvenlyError(f"{which} is for a minimum; name its RUN, or give --ascent (rho/alpha) for a diagram")
    _check_answer(out, "stability.json", None)
    try:
        with Progress("phase diagram") as bar:
            diagram = phase_diagram(**settings, progress=lambda done, of: bar(done / of, ""))
    except KeyboardInterrupt:
        print("evenly: stopped; nothing was kept", file=sys.stderr)
        sys.exit(INTERRUPTED)
    _keep(out, "stability.json", {"target": None, **diagram.to_dict()})
    save_phase_figure(diagram, out / "phase.svg")
    diagram_page(diagram, out / "stability.html")
    if as_json:
        print((out / "stability.json").read_text(), end="")
        return
    show_diagram(diagram, out / "stability.html")


def _check_answer(out: Path, file: str, target: Any, key: str = "target") -> None:
    """Refuse a folder that holds anything but an earlier answer to the same, which the file has under `key`."""
    from evenly.files import holds_something, read_json

    if out.is_file():
        raise EvenlyError(f"{out} is a file; give a folder as out")
    there = read_json(out / file)
    if there is None and holds_something(out):
        raise EvenlyError(f"{out} is not empty and holds no {file}; choose another out")
    earlier = there.get(key) if isinstance(there, dict) else None
    if there is not None and (not isinstance(there, dict) or earlier != target):
        why = ""
        if isinstance(earlier, dict) and isinstance(target, dict):
            name = next(name for name in (*target, *earlier) if target.get(name) != earlier.get(name))
            why = f" (its {name.replace('_', ' ')} is {earlier.get(name)!r}, not {target.get(name)!r})"
        raise EvenlyError(f"{out} holds the {Path(file).stem} of something else{why}; choose another out")


def _keep(out: Path, file: str, content: dict[str, Any]) -> None:
    from evenly.files import make_folder, write_json

    make_folder(out)
    write_json(out / file, content)


def _short(data: str) -> str:
    """What a run on this data is called."""
    path = Path(data)
    return path.resolve().name if path.is_dir() else Path(path.name.removesuffix(".gz")).stem


def _outside(data: str, out: Path) -> Path:
    """Refuse results in the folder of images itself: they would be taken for a class of images next time."""
    if Path(data).is_dir() and out.resolve().is_relative_to(Path(data).resolve()):
        raise EvenlyError(
            f"{out} lies in {data}, the folder of images, and would be taken for a class; give --out elsewhere"
        )
    return out
