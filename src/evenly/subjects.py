"""What an audit looks at: a finished run's folder, or a file of weights and the name of its network."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from evenly.data import Data, Texts
from evenly.errors import EvenlyError
from evenly.experiment import as_data, as_device, reopen
from evenly.models import encoded, factory, load_weights


class Subject(NamedTuple):
    """A network on its device, its data, what to call it, and (M,) forgetting scores where its run recorded them."""

    network: nn.Module
    data: Data
    name: str
    forgetting: Tensor | None = None


def subject(
    target: str | Path, data: str | None, model: str | None, device: str, data_options: dict[str, Any] | None = None
) -> Subject:
    """What a user's words mean.

    Args:
        target: a folder that `evenly.train` left, or a file of weights (safetensors, npz, or a state dict, of which
            nothing is executed).
        data: for a run, what it was trained on where its folder cannot say; for a file of weights, needed.
        model: the network of a file of weights, by name.
    """
    path = Path(target)
    if path.is_dir():
        if model is not None:
            raise EvenlyError(f"--model is for a file of weights, and {path} is a run that knows its own; leave it out")
        run, its_data, config = reopen(path, data)
        name = f"{path.name} ({config['model']['name']} by {config['method']['name']} with {config['optimizer']})"
        tracked = None if run.record is None else run.record.forgetting
        scores = None if tracked is None else tracked.scores
        return Subject(run.model.to(as_device(device)), its_data, name, scores)
    if not path.is_file():
        raise EvenlyError(f"there is no {str(path)!r}; give a run's folder or a file of weights")
    if model is None or data is None:
        raise EvenlyError(f"{path} is a file of weights; give --model NAME and --data DATA with it")
    its_data = as_data(data, 0, data_options or {})
    texts = its_data.train.texts if isinstance(its_data.train.inputs, Texts) else None
    fresh, name = factory(model, its_data.train.example_shape, its_data.classes, 0, texts=texts)
    network = fresh()
    its_data = encoded(its_data, network)
    load_weights(network, path, replace_head=False)
    return Subject(network.to(as_device(device)), its_data, f"{name} ({path.name})")
