"""evenly audit"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from evenly.analyses import AuditSettings
from evenly.cli.answers import check_answer
from evenly.cli.arguments import DataOptions, Json, Out, pairs, takes
from evenly.errors import EvenlyError
from evenly.settings import Execution

if TYPE_CHECKING:
    from torch import Tensor, nn

    from evenly.data import Data
    from evenly.diagnose.given_predictions import Given


@takes(AuditSettings, (Execution, ("device",)))
def audit(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A folder that `evenly train` left, a file of weights, or a .csv of predictions."
        ),
    ],
    against: Annotated[
        str | None, typer.Option(help="A second model to compare with.", metavar="MODEL", show_default=False)
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="The data. A run finds its own unless it has moved or was built in Python.",
            metavar="DATA",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="For a file of weights: its network, a name from `evenly models`.", metavar="NAME", show_default=False
        ),
    ] = None,
    normalise: Annotated[
        str | None,
        typer.Option(
            help="For a file of weights: the scaling of images, none, mean, data or imagenet. [default: none]",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    data_option: DataOptions = None,
    out: Out = None,
    as_json: Json = False,
    **settings: Any,
) -> None:
    """Show what a trained model has learned.

    The page shows accuracy by group, the slices of the data on which it fails, confusion and calibration, which
    attributes can be read from the features, which examples drive training, the curvature of the loss, and the hardest
    examples. examples.csv lists every example by its loss. Of predictions, what needs no network is shown.

    \b
    Examples:
      evenly audit runs/a
      evenly audit runs/a --against runs/b
      evenly audit weights.safetensors --model resnet18 --data photos/
      evenly audit predictions.csv --data photos/
    """
    from evenly.diagnose.audit_folder import save_audits
    from evenly.diagnose.auditing import audit as run_audit
    from evenly.diagnose.findings import check_same
    from evenly.engine.progress import Progress
    from evenly.report import write_report
    from evenly.report.console import show_audits

    targets = [target] if against is None else [target, against]
    device = settings.pop("device", "auto")
    ask = AuditSettings(**settings)
    check_targets(targets)
    out = out or Path("audits") / "-".join(Path(each).resolve().name.partition(".")[0] for each in targets)
    asked = ask.to_dict() | {"target": target, "against": against, "data": data, "model": model}
    asked |= {"normalise": normalise, "data_options": pairs(data_option)}
    check_answer(out, "audit.json", asked, "asked")
    audits = []
    with Progress("audit") as bar:
        bar(0.0, "reading")
        models = audited_models(targets, data, model, device, normalise, pairs(data_option), ask.split)
        check_same(models[0].data, models[-1].data)
        for number, each in enumerate(models):

            def show(share: float, note: str, before: int = number) -> None:
                bar((before + share) / len(targets), note)

            own = ask.to_dict() | {"batch_size": ask.batch_size or each.batch_size}
            if each.network is None and any(other.network is not None for other in models):
                own = {"split": ask.split, "seed": ask.seed}  # the others are of the network beside it
            own |= {"predictions": each.predictions, "forgetting": each.forgetting}
            audits.append(run_audit(each.network, each.data, name=each.name, progress=show, **own))
    save_audits(out, audits, asked)
    page = write_report(out)
    if as_json:
        print((out / "audit.json").read_text(), end="")
        return
    show_audits(out, page)


class Audited(NamedTuple):
    """A network on its device, its data, its name, and of a run the (M,) forgetting scores, where they were recorded,
    and the batch size; or predictions and no network."""

    network: nn.Module | None
    data: Data
    name: str
    forgetting: Tensor | None = None
    batch_size: int | None = None
    predictions: Given | None = None


def check_targets(targets: Sequence[str]) -> None:
    """Refuse what is neither a run's folder nor a file, and two of the same."""
    for target in targets:
        path = Path(target)
        if not target.strip() or not (path.is_dir() or path.is_file()):
            raise EvenlyError(
                f"there is no {target!r}; give a run's folder or a file of weights, or a .csv of predictions"
            )
        if path.is_dir() and not (path / "config.json").is_file():
            raise EvenlyError(f"{path} holds no run of evenly; give the folder that `evenly train` left behind")
    if len({Path(target).resolve() for target in targets}) < len(targets):
        raise EvenlyError(f"--against {targets[-1]} is the same model; name another run or file of weights")


def audited_models(
    targets: Sequence[str],
    data: str | None,
    model: str | None,
    device: str,
    normalise: str | None,
    data_options: dict[str, Any],
    split: str | None = None,
) -> list[Audited]:
    """The models that a user's words mean, in their order: run folders, files of weights and a network's name, or
    predictions of the `split` that is judged."""
    from evenly.data import load as load_data
    from evenly.experiment.execute import device_named
    from evenly.models.saved import load_model

    files = [target for target in targets if Path(target).is_file()]
    if predicted := [file for file in files if _is_predictions(file)]:
        for option, value in (("--model", model), ("--normalise", normalise)):
            if value and len(predicted) == len(files):
                raise EvenlyError(
                    f"{option} is for a file of weights, and {predicted[0]} has predictions; leave it out"
                )
    if not files:
        for option, given in (("--model", model), ("--normalise", normalise), ("-d", data_options)):
            if given:
                raise EvenlyError(
                    f"{option} is for a file of weights, and {targets[0]} is a run that knows its own; leave it out"
                )
    models = {target: _of_run(Path(target), data, device) for target in targets if Path(target).is_dir()}
    run_data = next((each.data for each in models.values()), None)
    for file in files:
        if _is_predictions(file):
            if data is None and run_data is None:
                raise EvenlyError(f"{file} has predictions; give the data that they are of with --data DATA")
            run_data = run_data if run_data is not None else load_data(str(data), seed=0, **data_options)
            models[file] = _of_predictions(Path(file), run_data, split)
            continue
        if model is None or (data is None and run_data is None):
            raise EvenlyError(f"{file} is a file of weights; give --model NAME and --data DATA with it")
        its_data = run_data if run_data is not None else load_data(str(data), seed=0, **data_options)
        saved = load_model(Path(file), its_data, model, normalise)
        models[file] = Audited(saved.network.to(device_named(device)), saved.data, saved.name)
    return [models[target] for target in targets]


def _is_predictions(file: str) -> bool:
    return file.endswith((".csv", ".csv.gz"))


def _of_predictions(path: Path, data: Data, split: str | None) -> Audited:
    from evenly.diagnose.auditing import judged_split
    from evenly.diagnose.given_predictions import read_predictions

    return Audited(None, data, path.name, predictions=read_predictions(path, judged_split(data, split), data))


def _of_run(path: Path, data: str | None, device: str) -> Audited:
    from evenly.experiment.execute import device_named
    from evenly.experiment.training import data_of
    from evenly.runs.run import load

    run = load(path)
    result = run.results
    name = f"{path.resolve().name} ({result.model} by {result.method} with {result.optimizer})"
    scores = None if run.record is None else run.record.forgetting_scores
    network, own = run.model.to(device_named(device)), data_of(run, data)
    return Audited(network, own, name, scores, run.plan.settings.batch_size or len(own.train))
