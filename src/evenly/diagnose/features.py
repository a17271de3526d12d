"""What a network makes of its inputs: the input of its last linear layer, and a map of these features.

>>> features = representations(model, data)                # (N, D)
>>> places = embedding(features, seed=0)                   # (N, 2), by t-SNE
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn

from evenly.data.contract import Split
from evenly.diagnose.samples import split_of, tensor_of
from evenly.engine.evaluation import activations, called, check_model, in_chunks
from evenly.errors import EvenlyError
from evenly.randomness import derive
from evenly.settings import above, checks_options

PERPLEXITY = 30.0
"""Of t-SNE: van der Maaten and Hinton (2008) find 5 to 50 alike."""
MOST_DIMENSIONS = 50
"""Features are brought to this many principal components before t-SNE (van der Maaten and Hinton 2008, section 4.1)."""


@checks_options
def representations(model: nn.Module, data: Any, *, layer: str | None = None) -> Tensor:
    """The features of every example, in the order of storage: (N, D) on the CPU, in the model's precision.

    They are of the model in eval mode. The model is not changed.

    Args:
        data: ``(x, y)``, an evenly Data (its training split) or Split, a DataLoader or a Dataset of ``(x, y)``.
        layer: the name of a module whose output is taken, e.g. "layer3", averaged over the positions of an image;
            without it the input of the last `nn.Linear` to run.
    """
    return features_at(model, split_of(data), layer=layer)


def features_at(model: nn.Module, split: Split, index: Tensor | None = None, layer: str | None = None) -> Tensor:
    """The same for the examples at `index` (M,) alone, in its order."""
    check_model(model)
    last = list(model.named_modules())[-1][0]
    instead = f"name a layer, e.g. layer={last!r}"
    return activations(model, in_chunks(model, split, index), partial(called, model), layer, instead)


@checks_options
def embedding(features: Any, *, perplexity: Annotated[float, above(0)] = PERPLEXITY, seed: int = 0) -> Tensor:
    """Places of the rows of `features` (N, D) in the plane by t-SNE (van der Maaten and Hinton 2008), (N, 2) float32.

    It starts from the two leading principal components with a trace of noise, so that the map keeps what large-scale
    order there is and is a function of (features, seed). Several thousand rows take a minute: draw some of them.

    Args:
        perplexity: about how many neighbours each point is drawn to; lowered to (N - 1) / 3 where there are fewer.
    """
    rows = _matrix(features)
    n = len(rows)
    random = np.random.default_rng(derive(seed, "embedding"))
    principal = _principal(rows, MOST_DIMENSIONS)
    start = np.zeros((n, 2))
    start[:, : principal.shape[1]] = principal[:, :2]
    spread = float(start[:, 0].std())
    alike = spread <= 1e-12 * float(np.abs(rows).max())
    start = (np.zeros((n, 2)) if alike else start / spread) + 1e-2 * random.standard_normal((n, 2))
    if n < 4 or alike:
        return torch.from_numpy(start.astype(np.float32))  # nothing has neighbours
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    tsne = TSNE(
        2,
        perplexity=min(perplexity, (n - 1) / 3),
        init=(1e-4 * start).astype(np.float32),
        learning_rate="auto",
        random_state=derive(seed, "t-SNE") % 2**32,
    )
    with threadpool_limits(1):  # sums in one order, so that the same seed gives the same map
        return torch.from_numpy(tsne.fit_transform(principal.astype(np.float32)).astype(np.float32))


def _matrix(features: Any) -> np.ndarray:
    rows = tensor_of(features, "features", "a row for each example, (N, D)").cpu().double()
    if rows.ndim < 2 or not len(rows):
        raise EvenlyError(f"features have shape {tuple(rows.shape)}; give a row for each example, (N, D)")
    if not bool(rows.isfinite().all()):
        raise EvenlyError("features hold NaN or infinity; use a checkpoint before the model diverged")
    array: np.ndarray = rows.reshape(len(rows), -1).numpy()
    return array


def _principal(rows: np.ndarray, most: int) -> np.ndarray:
    """Coordinates along the leading principal components (N, min(most, D, N)), each with a sign of its own data."""
    centred = rows - rows.mean(0)
    if len(rows) > rows.shape[1]:
        values, vectors = np.linalg.eigh(centred.T @ centred)
        coordinates = centred @ vectors[:, np.argsort(values)[::-1][:most]]
    else:
        left, values, _ = np.linalg.svd(centred, full_matrices=False)
        coordinates = left[:, :most] * values[:most]
    largest = np.abs(coordinates).argmax(0)
    result: np.ndarray = coordinates * np.where(coordinates[largest, np.arange(coordinates.shape[1])] < 0, -1.0, 1.0)
    return result
