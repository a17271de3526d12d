"""evenly audit"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from evenly.cli.answers import check_answer, keep_answer
from evenly.cli.arguments import DataOptions, Device, Json, Out, pairs
from evenly.errors import EvenlyError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from evenly.data import Data

SCALINGS = {
    "none": "inputs not normalised",
    "mean": "inputs less the data's mean",
    "data": "inputs normalised by the data's mean and deviation",
    "imagenet": "inputs normalised as ImageNet's",
}


def audit(
    target: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A folder that `evenly train` left, or a file of weights."),
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
    split: Annotated[
        str | None,
        typer.Option(help="train, validation or test. [default: test]", metavar="NAME", show_default=False),
    ] = None,
    rho: Annotated[float, typer.Option(help="Radius of SAM, for the importance weights.", metavar="NUMBER")] = 0.05,
    top: Annotated[int, typer.Option(help="Eigenvalues of the Hessian; 0 for none.", metavar="INTEGER")] = 5,
    samples: Annotated[
        int, typer.Option(help="Training examples to measure curvature and importance on.", metavar="INTEGER")
    ] = 1000,
    data_option: DataOptions = None,
    seed: Annotated[int, typer.Option(help="Decides which examples are sampled.", metavar="INTEGER")] = 0,
    device: Device = "auto",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Show what a trained model has learned.

    The page shows accuracy by group, which attributes can be read off the features, which examples drive training,
    the curvature of the loss, and the hardest examples.

    \b
    Examples:
      evenly audit runs/a
      evenly audit runs/a --against runs/b
      evenly audit weights.safetensors --model resnet18 --data photos/
    """
    from evenly.diagnose.auditing import audit as run_audit
    from evenly.diagnose.findings import check_same
    from evenly.engine.progress import Progress
    from evenly.report import write_report
    from evenly.report.console import show_audits
    from evenly.settings import checked, options_of

    targets = [target] if against is None else [target, against]
    checked("setting", {"rho": rho, "top": top, "samples": samples}, options_of(run_audit))
    check_targets(targets)
    out = out or Path("audits") / "-".join(Path(each).resolve().name.partition(".")[0] for each in targets)
    asked = {
        "target": target, "against": against, "data": data, "model": model, "normalise": normalise, "split": split,
        "rho": rho, "top": top, "samples": samples, "seed": seed, "data_options": pairs(data_option),
    }  # fmt: skip
    check_answer(out, "audit.json", asked, "asked")
    audits = []
    with Progress("audit") as bar:
        bar(0.0, "reading")
        models = audited_models(targets, data, model, device, normalise, pairs(data_option))
        check_same(models[0].data, models[-1].data)
        for number, each in enumerate(models):

            def show(share: float, note: str, before: int = number) -> None:
                bar((before + share) / len(targets), note)

            audits.append(
                run_audit(
                    each.network, each.data, name=each.name, split=split, rho=rho, top=top, samples=samples,
                    forgetting=each.forgetting, seed=seed, progress=show,
                )
            )  # fmt: skip
    compared = audits[0].compared(audits[1]) if len(audits) > 1 else []
    keep_answer(
        out, "audit.json", {"asked": asked, "compared": compared, "audits": [each.to_dict() for each in audits]}
    )
    write_report(audits, out / "audit.html")
    if as_json:
        print((out / "audit.json").read_text(), end="")
        return
    show_audits(audits, compared, out / "audit.html")


class Audited(NamedTuple):
    """A network on its device, its data, its name, and (M,) forgetting scores where its run recorded them."""

    network: nn.Module
    data: Data
    name: str
    forgetting: Tensor | None = None


def check_targets(targets: Sequence[str]) -> None:
    """Refuse what is neither a run's folder nor a file, and two of the same."""
    for target in targets:
        path = Path(target)
        if not target.strip() or not (path.is_dir() or path.is_file()):
            raise EvenlyError(f"there is no {target!r}; give a run's folder or a file of weights")
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
) -> list[Audited]:
    """The models that a user's words mean, in their order: run folders, or files of weights and a network's name."""
    from evenly.data import load as load_data

    files = [target for target in targets if Path(target).is_file()]
    if not files:
        for option, given in (("--model", model), ("--normalise", normalise), ("-d", data_options)):
            if given:
                raise EvenlyError(
                    f"{option} is for a file of weights, and {targets[0]} is a run that knows its own; leave it out"
                )
    models = {target: _of_run(Path(target), data, device) for target in targets if Path(target).is_dir()}
    run_data = next((each.data for each in models.values()), None)
    for file in files:
        if model is None or (data is None and run_data is None):
            raise EvenlyError(f"{file} is a file of weights; give --model NAME and --data DATA with it")
        its_data = run_data if run_data is not None else load_data(str(data), seed=0, **data_options)
        models[file] = _of_weights(Path(file), its_data, model, device, normalise)
    return [models[target] for target in targets]


def _of_run(path: Path, data: str | None, device: str) -> Audited:
    from evenly.experiment.execute import device_named
    from evenly.experiment.training import data_of
    from evenly.runs.run import load

    run = load(path)
    result = run.results
    name = f"{path.resolve().name} ({result.model} by {result.method} with {result.optimizer})"
    scores = None if run.record is None else run.record.forgetting_scores
    return Audited(run.model.to(device_named(device)), data_of(run, data), name, scores)


def _of_weights(path: Path, data: Data, model: str, device: str, normalise: str | None) -> Audited:
    from evenly.data import Texts
    from evenly.experiment.execute import device_named, scaled
    from evenly.models import encoded, factory, load_weights
    from evenly.models.standardised import Standardised

    texts = data.train.texts if isinstance(data.train.inputs, Texts) else None
    fresh, name = factory(model, data.train.example_shape, data.classes, 0, texts=texts)
    network, scaling = fresh(), "" if not _are_images(data) else SCALINGS["none"]
    data = encoded(data, network)
    if (channels := _saved_scaling(path)) is not None:
        if normalise is not None:
            raise EvenlyError(f"{path} was saved with its scaling and brings it along; leave --normalise out")
        network, scaling = Standardised(network, [0.0] * channels, [1.0] * channels), "inputs normalised as saved"
    load_weights(network, path, replace_head=False)
    if normalise is not None:
        if normalise not in SCALINGS:
            raise EvenlyError(f"--normalise must be one of {', '.join(SCALINGS)}, got {normalise!r}")
        loaded = network
        network, scaling = scaled(lambda draw=0: loaded, normalise, data)(), SCALINGS[normalise]
    note = f", {scaling}" if scaling else ""
    return Audited(network.to(device_named(device)), data, f"{name} ({path.name}{note})")


def _saved_scaling(path: Path) -> int | None:
    """The channels of the scaling that a network was saved behind (`evenly.models.standardised`); None if none."""
    from evenly.models.weights import PREFIXES, read_weights

    weights = read_weights(path)
    for prefix in ("", *PREFIXES):
        rest = set(weights) - {f"{prefix}mean", f"{prefix}std"}
        if len(rest) == len(weights) - 2 and rest and all(name.startswith(f"{prefix}network.") for name in rest):
            return len(weights[f"{prefix}mean"]) if weights[f"{prefix}mean"].ndim else 1
    return None


def _are_images(data: Data) -> bool:
    import torch

    inputs = data.train.inputs
    if not hasattr(inputs, "__getitem__") or data.train.texts is not None:
        return False
    first = inputs[0] if isinstance(inputs, torch.Tensor) else torch.as_tensor(inputs[0][0])
    return first.ndim == 3 and first.dtype == torch.uint8
