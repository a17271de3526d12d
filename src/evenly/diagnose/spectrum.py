"""The spectrum of a loss' Hessian at a network's weights: top eigenvalues with their residuals, and the density.

    H = d^2/dw^2 (1/n) sum_i loss(f(x_i), y_i)

Nguyen et al. (2024, section 5.5 and App. C.2) read the flatness of a minimum from lambda_max and the spread of its
curvature from lambda_max / lambda_5, both over 1,000 training images of CIFAR-10, 100 of each class.

>>> spectrum = hessian_spectrum(model, "cross-entropy", (x, y), top=5)
>>> spectrum.eigenvalues[0], spectrum.ratio(5), spectrum.converged.all()
>>> plt.plot(*spectrum.density.curve())

Products of H with vectors (`evenly.diagnose.mean_hessian`) go into Lanczos' method (`evenly.theory.lanczos`), which
stops as soon as the residuals of the eigenpairs asked for are small, and whose quadrature gives the density from the
same products. The run's vectors are held: a copy of the parameters for each step.

Repeated eigenvalues: one run shows an eigenvalue that occurs several times (twin units, an output layer of zeros) only
once, and two that are nearer to each other than the tolerance may count as one. With ``runs=2`` there are further runs,
each from a random vector of its own, until one adds nothing to the top; the density is their mean.

With a pilot, a run starts from a random vector that leans towards the top eigenvectors of a few samples' Hessian. These
lie near those of all samples, and a product costs a sixteenth, so a few products are saved. But what the pilot points
at converges first: an eigenvalue of few samples, none of them in the pilot, may be missed, and the density leans
towards the top (its moments by some percent).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal, overload

import torch
from attrs import frozen
from torch import Tensor, nn
from torch.utils.data import DataLoader

from evenly.analyses import MOST_STEPS
from evenly.data.contract import Data, Split
from evenly.diagnose.losses import Loss
from evenly.diagnose.mean_hessian import MeanHessian
from evenly.diagnose.results import Result
from evenly.diagnose.samples import check_real, samples_of
from evenly.engine.evaluation import check_model, in_eval_mode
from evenly.errors import EvenlyError, unknown
from evenly.randomness import derive, generator
from evenly.settings import above, at_least, below, checked, checks_options, setting, settings_of
from evenly.theory.lanczos import Extremes, extremes

BATCH = 128
"""Samples in a batch, where the data is no loader that has its own."""
PILOT = 16
"""One in so many samples is in the pilot; measured on residual networks, see benchmarks/curvature.py."""
FEWEST = 32
"""With fewer samples than this in it there is no pilot: the whole is small enough."""

Shapes = dict[str, torch.Size]


@dataclass(frozen=True, eq=False)
class Density(Result):
    """The eigenvalues' density, as a measure on M nodes: float64 `nodes` (M,) and `weights` (M,) that sum to 1."""

    nodes: Tensor
    weights: Tensor

    @checks_options
    def curve(
        self, points: Annotated[int, at_least(2)] = 1024, width: Annotated[float | None, above(0)] = None
    ) -> tuple[Tensor, Tensor]:
        """A grid (points,) and the density's values on it, each node a Gaussian; its integral is 1.

        Args:
            width: standard deviation of the Gaussians; None: a hundredth of the range of the nodes.
        """
        low, high = float(self.nodes.min()), float(self.nodes.max())
        width = width or 0.01 * (high - low) or 0.01 * abs(high) or 0.01
        grid = torch.linspace(low - 6 * width, high + 6 * width, points, dtype=torch.float64)
        apart = (grid[:, None] - self.nodes) / width
        values = (torch.exp(-0.5 * apart.square()) @ self.weights) / (width * (2 * torch.pi) ** 0.5)
        return grid, values


@dataclass(frozen=True, eq=False, repr=False)
class HessianSpectrum(Result):
    """What is known of the spectrum of H.

    Attributes:
        eigenvalues: (top,) float64, descending; by magnitude where that was asked for.
        residuals: (top,) ||Hv - lambda v|| of unit vectors v: there is an eigenvalue of H this near or nearer.
        converged: (top,) bool, whether the residual is within the tolerance.
        density: of all eigenvalues, see :class:`Density`.
        products: how many Hessian-vector products it took, each over all samples.
        cost: the same with those of the pilot, each counted by its share of the samples.
        runs: how many runs of Lanczos' method they belong to.
        samples: n, of the mean loss.
        shapes: the parameters that H is taken over, by name.
        vectors: (top, p) unit eigenvectors over these parameters, flattened in this order; None unless asked for.
    """

    eigenvalues: Tensor
    residuals: Tensor
    converged: Tensor
    density: Density
    products: int
    cost: float
    runs: int
    samples: int
    shapes: Shapes
    vectors: Tensor | None = None

    def ratio(self, k: int) -> float:
        """lambda_max / lambda_k, k counted from 1."""
        if not 1 <= k <= len(self.eigenvalues):
            count = len(self.eigenvalues)
            raise EvenlyError(
                f"eigenvalue {k} is not among the {count} found; give 1 to {count}, or ask for a larger top"
            )
        return float(self.eigenvalues[0] / self.eigenvalues[k - 1])

    def __repr__(self) -> str:
        values = ", ".join(f"{float(value):.4g}" for value in self.eigenvalues)
        return (
            f"HessianSpectrum({values}; {int(self.converged.sum())} of {len(self.converged)} converged, "
            f"{self.products} products, {self.samples} samples)"
        )


@frozen(kw_only=True)
class Lanczos:
    """Further options of `hessian_spectrum`: which eigenvalues are searched for, and how."""

    which: Literal["largest", "magnitude"] = setting(
        "largest", help="by value, so that a large negative curvature does not count; or by absolute value"
    )
    tolerance: float = setting(
        1e-3, above(0), below(1), help="converged at ||Hv - lambda v|| <= tolerance lambda_max; in float32 from 1e-5"
    )
    runs: int = setting(1, at_least(1), help="from 2 on, they go on until one adds nothing: see repeated eigenvalues")
    least_steps: int = setting(1, at_least(1), help="fewest products in a run; more make the density finer")
    most_steps: int = setting(MOST_STEPS, at_least(1), help="most products in a run; what has not converged is marked")
    pilot: bool = setting(False, help="start in the direction of a sixteenth of the samples, at least 32")
    vectors: bool = setting(False, help="keep the eigenvectors")
    memory: int | None = setting(
        None, at_least(0), help="bytes of graphs to keep between products; by default 2 GiB, or half of a GPU's free"
    )


By = Literal["class", "group"]


@overload
def hessian_spectrum(
    model: nn.Module, loss: str | Loss, data: Any, top: int = 5, *, by: None = None, **options: Any
) -> HessianSpectrum: ...


@overload
def hessian_spectrum(
    model: nn.Module, loss: str | Loss, data: Any, top: int = 5, *, by: By, **options: Any
) -> dict[int, HessianSpectrum]: ...


@checks_options
def hessian_spectrum(
    model: nn.Module,
    loss: str | Loss,
    data: Any,
    top: Annotated[int, at_least(1)] = 5,
    *,
    by: By | None = None,
    parameters: str | Sequence[str] | Sequence[Tensor] | None = None,
    mode: Literal["eval", "train"] = "eval",
    batch_size: Annotated[int | None, at_least(1)] = None,
    seed: int = 0,
    **options: Any,
) -> HessianSpectrum | dict[int, HessianSpectrum]:
    """The top eigenvalues of the mean loss' Hessian and the density of all, at the model's weights.

    Neither the model (modes, gradients, buffers) nor the global random state is changed.

    Args:
        model: any module that maps a batch to a tensor, differentiable twice.
        loss: 'squared', 'mse', 'cross-entropy', 'logistic' as in :func:`evenly.coherence`, or a function of (outputs,
            targets) that gives the batch's mean loss, or one loss for each sample. A module whose ``reduction`` is
            "sum" is taken as a sum.
        data: ``(x, y)``, an evenly Data (its training split) or Split, a DataLoader or a Dataset of ``(x, y)``; read
            once, so that every product is over the same samples.
        top: how many eigenvalues.
        by: one spectrum for each class (the targets) or each group (those of a Split or Data); the result is then a
            dict by that number.
        parameters: those to differentiate by: names of parameters or of modules ("fc", "layer4.1"), or the parameters
            themselves; by default all that are trainable.
        mode: "eval", or "train" for the loss of training: batches of `batch_size` in the data's order, each normalised
            by its own statistics, with dropout masks that the seed fixes.
        batch_size: samples at a time; by default the DataLoader's, or 128.
        seed: of the starts and the masks.
        options: of :class:`Lanczos`, e.g. ``tolerance=1e-5, vectors=True``.
    """
    search = Lanczos(**checked("option of hessian_spectrum", options, settings_of(Lanczos)))
    if search.most_steps < top:
        raise EvenlyError(
            f"most_steps {search.most_steps} cannot show {top} eigenvalues; give at least {top}, or a smaller top"
        )
    if not isinstance(loss, str) and (not callable(loss) or isinstance(loss, type)):
        name = loss.__name__ if isinstance(loss, type) else repr(loss)
        raise EvenlyError(f"loss {name} is no function; give 'cross-entropy', or e.g. torch.nn.CrossEntropyLoss()")
    check_model(model)
    shapes = _chosen(model, parameters)
    check_real(model, shapes)
    size = sum(shape.numel() for shape in shapes.values())
    if top > size:
        raise EvenlyError(f"top {top} exceeds the {size} parameters, and so the eigenvalues there are; ask for fewer")
    if batch_size is None:
        batch_size = (data.batch_size if isinstance(data, DataLoader) else None) or BATCH
    x, y = samples_of(data)
    subsets: dict[int, Any] = {0: slice(None)} if by is None else _subsets(by, data, y)

    def hessian_of(x: Tensor, y: Tensor) -> MeanHessian:
        return MeanHessian(model, list(shapes), loss, x, y, batch_size=batch_size, memory=search.memory, seed=seed)

    with in_eval_mode(model), torch.enable_grad():
        model.train(mode == "train")
        spectra = {
            number: _spectrum(hessian_of, x[index], y[index], top, search, seed) for number, index in subsets.items()
        }
    return spectra[0] if by is None else spectra


def _spectrum(
    hessian_of: Callable[[Tensor, Tensor], MeanHessian], x: Tensor, y: Tensor, top: int, search: Lanczos, seed: int
) -> HessianSpectrum:
    """The spectrum over samples x (n, ...), y (n, ...)."""

    def leading(hessian: MeanHessian, **options: Any) -> Extremes:
        return extremes(
            hessian.times,
            lambda number: hessian.random(derive(seed, "start", number)),
            top,
            magnitude=search.which == "magnitude",
            **options,
        )

    n, towards, cost = len(x), None, 0.0
    if search.pilot and n // PILOT >= FEWEST:
        few = torch.randperm(n, generator=generator(derive(seed, "pilot")))[: n // PILOT].to(x.device)
        with suppress(EvenlyError):  # what is wrong with a sample, the run over all of them says
            pilot = leading(hessian_of(x[few], y[few]), tolerance=3e-3, most=max(top, min(search.most_steps, 40)))
            towards, cost = pilot.vectors.sum(0), pilot.products * len(few) / n
    limits = {"least": search.least_steps, "most": search.most_steps}
    hessian = hessian_of(x, y)
    top_pairs = leading(hessian, tolerance=search.tolerance, runs=search.runs, towards=towards, **limits)
    return HessianSpectrum(
        torch.from_numpy(top_pairs.values),
        torch.from_numpy(top_pairs.residuals),
        torch.from_numpy(top_pairs.converged),
        Density(torch.from_numpy(top_pairs.nodes), torch.from_numpy(top_pairs.weights)),
        products=top_pairs.products,
        cost=top_pairs.products + cost,
        runs=top_pairs.runs,
        samples=n,
        shapes={name: weight.shape for name, weight in hessian.weights.items()},
        vectors=top_pairs.vectors if search.vectors else None,
    )


def _chosen(model: nn.Module, parameters: Any) -> Shapes:
    """The parameters to differentiate by: names and shapes, in the model's order."""
    every, network = dict(model.named_parameters()), type(model).__name__
    if parameters is None:
        chosen = {name for name, weight in every.items() if weight.requires_grad}
    elif isinstance(parameters, Iterable):
        several = [parameters] if isinstance(parameters, str | Tensor) else list(parameters)
        chosen = {name for each in several for name in _named(model, every, each)}
    else:
        raise EvenlyError(f"parameters is a {type(parameters).__name__}; give names, or some of model.parameters()")
    if not chosen:
        raise EvenlyError(f"there is no parameter to differentiate {network} by; set requires_grad, or name parameters")
    if fixed := [name for name in every if name in chosen and not every[name].requires_grad]:
        raise EvenlyError(f"parameter {fixed[0]} requires no gradient; set requires_grad, or leave it out")
    return {name: weight.shape for name, weight in every.items() if name in chosen}


def _named(model: nn.Module, every: dict[str, nn.Parameter], parameter: str | Tensor) -> list[str]:
    """The names of a parameter, or of those of a module."""
    if isinstance(parameter, Tensor):
        if names := [name for name, weight in every.items() if weight is parameter]:
            return names
        raise EvenlyError(
            f"a tensor of shape {tuple(parameter.shape)} in parameters is none of {type(model).__name__}'s; "
            "take them from model.parameters()"
        )
    if names := [name for name in every if name == parameter or name.startswith(f"{parameter}.")]:
        return names
    raise unknown("parameter or module", str(parameter), {*every, *(name for name, _ in model.named_modules() if name)})


def _subsets(by: str, data: Any, y: Tensor) -> dict[int, Tensor]:
    """The indices of the samples of each class or group, by its number."""
    if by == "class":
        if y.is_floating_point() or y.numel() != len(y):
            raise EvenlyError(f"targets are {y.dtype} of shape {tuple(y.shape)}, no classes; give integers (N,)")
        numbers = y.reshape(-1)
    else:
        split = data.train if isinstance(data, Data) else data
        if not isinstance(split, Split) or split.groups is None:
            raise EvenlyError("by='group' needs a Split or Data with groups; give these, or by='class'")
        numbers = split.groups
    if numbers.ndim == 2:  # groups that overlap, a column for each
        columns = enumerate(numbers.unbind(1))
        return {group: column.nonzero().flatten().cpu() for group, column in columns if bool(column.any())}
    return {int(number): (numbers == number).nonzero().flatten().cpu() for number in numbers.unique()}
