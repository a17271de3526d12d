"""What an audit looks at: finished runs' folders, or files of weights and the name of their network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from evenly.data import Data, Texts
from evenly.errors import EvenlyError
from evenly.experiment import as_data, as_device, reopen, scaled
from evenly.models import encoded, factory, load_weights
from evenly.models.standardised import Standardised
from evenly.models.weights import PREFIXES, read_weights

SCALINGS = {
    "none": "inputs not normalised",
    "mean": "inputs less the data's mean",
    "data": "inputs normalised by the data's mean and deviation",
    "imagenet": "inputs normalised as ImageNet's",
}


class Subject(NamedTuple):
    """A network on its device, its data, what to call it, and (M,) forgetting scores where its run recorded them."""

    network: nn.Module
    data: Data
    name: str
    forgetting: Tensor | None = None


def check_targets(targets: Sequence[str]) -> None:
    """Refuse what is neither a finished run's folder nor a file, and two of the same."""
    for target in targets:
        path = Path(target)
        if not target.strip() or not (path.is_dir() or path.is_file()):
            raise EvenlyError(f"there is no {target!r}; give a run's folder or a file of weights")
        if path.is_dir() and not (path / "config.json").is_file():
            raise EvenlyError(f"{path} holds no run of evenly; give the folder that `evenly train` left behind")
    if len({Path(target).resolve() for target in targets}) < len(targets):
        raise EvenlyError(
            f"--against {targets[-1]} is what it would be held against; name another run or file of weights"
        )


def subjects(
    targets: Sequence[str],
    data: str | None = None,
    model: str | None = None,
    device: str = "auto",
    *,
    normalise: str | None = None,
    data_options: dict[str, Any] | None = None,
) -> list[Subject]:
    """What a user's words mean, in their order.

    Args:
        targets: folders that `evenly.train` left, or files of weights (safetensors, npz, or a state dict, of which
            nothing is executed).
        data: for a run, what it was trained on where its folder cannot say; for a file of weights, needed, but beside a
            run it is the run's.
        model: the network of the files of weights, by name.
        normalise: how the network of a file of weights was given its images, as in `evenly.train`: "none" where not
            said. A file that was saved with its scaling brings it along.
    """
    check_targets(targets)
    files = [Path(target) for target in targets if Path(target).is_file()]
    if not files:
        for option, given in (("--model", model), ("--normalise", normalise), ("-d", data_options)):
            if given:
                raise EvenlyError(
                    f"{option} is for a file of weights, and {targets[0]} is a run that knows its own; leave it out"
                )
    if files and model is None:
        raise EvenlyError(f"{files[0]} is a file of weights; give --model NAME and --data DATA with it")
    found = {target: _run(Path(target), data, device) for target in targets if Path(target).is_dir()}
    beside = next((run.data for run in found.values()), None)
    for file in files:
        if data is None and beside is None:
            raise EvenlyError(f"{file} is a file of weights; give --model NAME and --data DATA with it")
        its_data = beside if data is None or beside is not None else as_data(data, 0, data_options or {})
        assert its_data is not None
        found[str(file)] = _file(file, its_data, str(model), device, normalise)
    return [found[target if Path(target).is_dir() else str(Path(target))] for target in targets]


def _run(path: Path, data: str | None, device: str) -> Subject:
    run, its_data, config = reopen(path, data)
    name = f"{path.resolve().name} ({config['model']['name']} by {config['method']['name']} with {config['optimizer']})"
    tracked = None if run.record is None else run.record.forgetting
    return Subject(run.model.to(as_device(device)), its_data, name, None if tracked is None else tracked.scores)


def _file(path: Path, data: Data, model: str, device: str, normalise: str | None) -> Subject:
    texts = data.train.texts if isinstance(data.train.inputs, Texts) else None
    fresh, name = factory(model, data.train.example_shape, data.classes, 0, texts=texts)
    network, scaling = fresh(), SCALINGS["none"]
    data = encoded(data, network)
    if (channels := _scaling(path)) is not None:
        if normalise is not None:
            raise EvenlyError(f"{path} was saved with its scaling and brings it along; leave --normalise out")
        network, scaling = Standardised(network, [0.0] * channels, [1.0] * channels), "inputs normalised as saved"
    load_weights(network, path, replace_head=False)
    if normalise is not None:
        if normalise not in SCALINGS:
            raise EvenlyError(f"normalise {normalise!r} is not known; give {', '.join(SCALINGS)}")
        network, scaling = scaled(lambda draw=0: network, model, data, normalise)(), SCALINGS[normalise]
    told = f", {scaling}" if normalise is not None or channels is not None or _is_image(data) else ""
    return Subject(network.to(as_device(device)), data, f"{name} ({path.name}{told})")


def _scaling(path: Path) -> int | None:
    """The channels of the scaling that a network was saved behind (`evenly.models.standardised`); None if none."""
    found = read_weights(path)
    for prefix in ("", *PREFIXES):
        rest = set(found) - {f"{prefix}mean", f"{prefix}std"}
        if len(rest) == len(found) - 2 and rest and all(name.startswith(f"{prefix}network.") for name in rest):
            return len(found[f"{prefix}mean"]) if found[f"{prefix}mean"].ndim else 1
    return None


def _is_image(data: Data) -> bool:
    inputs = data.train.inputs
    if isinstance(inputs, Texts):
        return False
    first = inputs[0] if isinstance(inputs, Tensor) else torch.as_tensor(inputs[0][0])
    return first.ndim == 3 and first.dtype == torch.uint8
