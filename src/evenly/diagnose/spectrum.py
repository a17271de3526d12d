"""The spectrum of a loss' Hessian at a network's weights: top eigenvalues with their residuals, and the density.

    H = d^2/dw^2 (1/n) sum_i loss(f(x_i), y_i)

Nguyen et al. (2024, section 5.5 and App. C.2) read the flatness of a minimum from lambda_max and the spread of its
curvature from lambda_max / lambda_5, both over 1,000 training images of CIFAR-10, 100 of each class.

>>> found = hessian_spectrum(model, "cross-entropy", (x, y), top=5)
>>> found.eigenvalues[0], found.ratio(5), found.converged.all()
>>> plt.plot(*found.density.curve())

H is never formed. It is seen through products with vectors, each the derivative of the gradient along a vector, summed
over batches; as many batches as memory holds keep the graph of their gradient, so that a product of theirs is one
backward pass. The vectors are those of Lanczos' method (`evenly.theory.lanczos`), which stops as soon as the
residuals of the eigenpairs asked for are small, and whose quadrature gives the density from the same products. On
request it starts from a random vector that leans towards the top eigenvectors of a few samples' Hessian, the pilot:
they lie near those of all samples, a product costs a sixteenth, and the run over all samples has less left to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader

from evenly.data.contract import Data, Split
from evenly.diagnose.gauss_newton import Loss, curvature_of
from evenly.diagnose.losses import summed
from evenly.diagnose.samples import check_order, check_real, samples_of
from evenly.engine.evaluation import check_model, in_eval_mode
from evenly.errors import EvenlyError, unknown
from evenly.randomness import derive, generator, isolated
from evenly.settings import checks_options
from evenly.theory.lanczos import Extremes, extremes

BATCH = 128
"""Samples in a batch, where the data is no loader that has its own."""
PILOT = 16
"""One in so many samples is in the pilot; measured on residual networks, see benchmarks/curvature.py."""
FEWEST = 32
"""Samples under which there is no pilot: the whole is small enough."""
MOST_STEPS = 200
"""Products of a run at most, and so eigenvalues, where the user says nothing else."""
MEMORY = 2 * 2**30
"""Bytes of graphs kept between products on the CPU; a GPU gives half of what it has free."""


@dataclass(frozen=True, eq=False)
class Density:
    """The eigenvalues' density, as a measure on M nodes: float64 `nodes` (M,) and `weights` (M,) that sum to 1."""

    nodes: Tensor
    weights: Tensor

    def curve(self, points: int = 1024, width: float | None = None) -> tuple[Tensor, Tensor]:
        """A grid (points,) and the density's values on it, each node a Gaussian; its integral is 1.

        Args:
            width: standard deviation of the Gaussians; None: a hundredth of the range of the nodes.
        """
        if width is not None and not width > 0:
            raise EvenlyError(f"width {width} is no standard deviation; give a number above 0")
        low, high = float(self.nodes.min()), float(self.nodes.max())
        width = width or 0.01 * (high - low) or 0.01 * abs(high) or 0.01
        grid = torch.linspace(low - 6 * width, high + 6 * width, points, dtype=torch.float64)
        apart = (grid[:, None] - self.nodes) / width
        values = (torch.exp(-0.5 * apart.square()) @ self.weights) / (width * (2 * torch.pi) ** 0.5)
        return grid, values

    @property
    def grid(self) -> Tensor:
        """Where `values` are taken, (1024,)."""
        return self.curve()[0]

    @property
    def values(self) -> Tensor:
        """The density on `grid`, (1024,)."""
        return self.curve()[1]


@dataclass(frozen=True, eq=False, repr=False)
class HessianSpectrum:
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
    shapes: dict[str, torch.Size]
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
        shown = ", ".join(f"{float(value):.4g}" for value in self.eigenvalues)
        return (
            f"HessianSpectrum({shown}; {int(self.converged.sum())} of {len(self.converged)} converged, "
            f"{self.products} products, {self.samples} samples)"
        )


By = Literal["class", "group"]


@overload
def hessian_spectrum(
    model: nn.Module, loss: str | Loss, data: Any, top: int = 5, *, by: None = None, **options: Any
) -> HessianSpectrum: ...


@overload
def hessian_spectrum(
    model: nn.Module, loss: str | Loss, data: Any, top: int = 5, *, by: By | Sequence[int] | Tensor, **options: Any
) -> dict[int, HessianSpectrum]: ...


@checks_options  # type: ignore[misc]  # the overloads do not repeat the options
def hessian_spectrum(
    model: nn.Module,
    loss: str | Loss,
    data: Any,
    top: int = 5,
    *,
    by: By | Sequence[int] | Tensor | None = None,
    parameters: str | Sequence[str] | Sequence[Tensor] | None = None,
    which: Literal["largest", "magnitude"] = "largest",
    mode: Literal["eval", "train"] = "eval",
    tolerance: float = 1e-3,
    runs: int = 1,
    least_steps: int = 1,
    most_steps: int = MOST_STEPS,
    pilot: bool = False,
    vectors: bool = False,
    batch_size: int | None = None,
    memory: int | None = None,
    seed: int = 0,
) -> HessianSpectrum | dict[int, HessianSpectrum]:
    """The top eigenvalues of the mean loss' Hessian and the density of all, at the model's weights.

    The model is left as found: modes, gradients, buffers; so is the global random state. In float32 a tolerance under
    1e-5 is beyond what rounding allows: ask a model in float64.

    Args:
        model: any module that maps a batch to a tensor, differentiable twice.
        loss: 'squared', 'mse', 'cross-entropy', 'logistic' as in :func:`evenly.coherence`, or a function of (outputs,
            targets) that gives the batch's mean loss, or one loss for each sample. A module whose ``reduction`` is
            "sum" is taken as a sum.
        data: ``(x, y)``, an evenly Data (its training split) or Split, a DataLoader or a Dataset of ``(x, y)``; read
            once, so that every product is over the same samples.
        top: how many eigenvalues.
        by: one spectrum for each class ("class": the targets), each group ("group": those of a Split or Data) or each
            value of an array (N,); the result is then a dict by that number.
        parameters: those to differentiate by: names of parameters or of modules ("fc", "layer4.1"), or the parameters
            themselves; by default all that are trainable.
        which: "largest", the paper's lambda_max: by value, so that a large negative curvature does not count; or
            "magnitude", by absolute value.
        mode: "eval", or "train" for the loss of training: batches of `batch_size` in the data's order, each normalised
            by its own statistics, with dropout masks that the seed fixes.
        tolerance: an eigenpair has converged at ||Hv - lambda v|| <= tolerance lambda_max. Eigenvalues nearer to each
            other than this may count as one.
        runs: of Lanczos' method, each from a random vector of its own. One run shows an eigenvalue that occurs several
            times (twin units, an output layer of zeros) only once. From 2 on, runs go on until one finds nothing that
            belongs among the top, and the density is their mean.
        least_steps, most_steps: products of a run. More than the top need make the density finer. What has not
            converged after `most_steps` is returned and marked.
        pilot: start where a sixteenth of the samples (at least 32) point. It saves a few products; but what it points
            at converges first, so that an eigenvalue of few samples, which the pilot had none of, may be passed over,
            and the density leans towards the top (its moments by some percent).
        vectors: keep the eigenvectors.
        batch_size: samples at a time; by default the DataLoader's, or 128.
        memory: bytes of graphs to keep between products; 0 keeps none. By default 2 GiB, or half of what is free on
            the GPU that the model is on. The run's vectors come on top: a copy of the parameters for each step.
        seed: of the starts and the masks.
    """
    if top < 1:
        raise EvenlyError(f"top {top} is no number of eigenvalues; give at least 1")
    if not 0 < tolerance < 1:
        raise EvenlyError(
            f"tolerance {tolerance} is no share of lambda_max; give a number between 0 and 1, such as 1e-3"
        )
    for name, count in (("runs", runs), ("least_steps", least_steps), ("most_steps", most_steps)):
        if count < 1:
            raise EvenlyError(f"{name} {count} is too few; give at least 1")
    if most_steps < top:
        raise EvenlyError(
            f"most_steps {most_steps} cannot show {top} eigenvalues; give at least {top}, or a smaller top"
        )
    if memory is not None and memory < 0:
        raise EvenlyError(f"memory {memory} is no number of bytes; give 0 to keep no graphs, or more")
    _check_kinds(model, loss, data, by, batch_size)
    shapes = _chosen(model, parameters)
    check_real(model, shapes)
    size = sum(shape.numel() for shape in shapes.values())
    if top > size:
        raise EvenlyError(f"top {top} exceeds the {size} parameters, and so the eigenvalues there are; ask for fewer")
    if batch_size is None:
        batch_size = (data.batch_size if isinstance(data, DataLoader) else None) or BATCH
    x, y = samples_of(data)

    def top_of(given: tuple[Tensor, Tensor], **options: Any) -> Extremes:
        hessian = MeanHessian(model, list(shapes), loss, *given, batch_size=batch_size, memory=memory, seed=seed)
        return extremes(
            hessian.times, lambda number: hessian.random(derive(seed, "start", number)), top,
            magnitude=which == "magnitude", **options,
        )  # fmt: skip

    def of(index: Tensor | None) -> HessianSpectrum:
        given = (x, y) if index is None else (x[index], y[index])
        n = len(given[0])
        towards, cost = None, 0.0
        with in_eval_mode(model), torch.enable_grad():
            model.train(mode == "train")
            if pilot and n // PILOT >= FEWEST:
                few = torch.randperm(n, generator=generator(derive(seed, "pilot")))[: n // PILOT].to(x.device)
                with suppress(EvenlyError):  # the run over all samples says it of its own
                    first = top_of((given[0][few], given[1][few]), tolerance=3e-3, most=max(top, min(most_steps, 40)))
                    towards, cost = first.vectors.sum(0), first.products * len(few) / n
            found = top_of(given, tolerance=tolerance, runs=runs, least=least_steps, most=most_steps, towards=towards)
        return HessianSpectrum(
            torch.from_numpy(found.values), torch.from_numpy(found.residuals), torch.from_numpy(found.converged),
            Density(torch.from_numpy(found.nodes), torch.from_numpy(found.weights)), found.products,
            found.products + cost, found.runs, n, shapes, found.vectors if vectors else None,
        )  # fmt: skip

    if by is None:
        return of(None)
    return {number: of(index.to(x.device)) for number, index in _subsets(by, data, y).items()}


class MeanHessian:
    """H of the mean loss over samples x (n, ...), y (n, ...), by its products with vectors over the named parameters.

    What a batch draws at random is the same at every product, so that H is one matrix.
    """

    def __init__(
        self,
        model: nn.Module,
        names: Sequence[str],
        loss: str | Loss,
        x: Tensor,
        y: Tensor,
        *,
        batch_size: int,
        memory: int | None,
        seed: int,
    ) -> None:
        self.model, self.x, self.y, self.seed = model, x, y, seed
        self.loss = _Summed(loss)
        every = {name: w.detach() for name, w in model.named_parameters()}
        self.weights = {name: every[name] for name in names}
        self.others = {name: w for name, w in every.items() if name not in self.weights}
        self.buffers = {name: b.detach() for name, b in model.named_buffers()}
        first = next(iter(self.weights.values()))
        self.device, self.dtype = first.device, first.dtype
        exact = torch.float64 if self.dtype == torch.float64 else torch.float32
        self.flat = torch.cat([w.reshape(-1).to(first.device, exact) for w in self.weights.values()]).requires_grad_()
        self.batches = list(torch.arange(len(x)).split(batch_size))
        self.kept: dict[int, Tensor] = {}
        self.looked: set[int] = set()
        self.room = _free(self.device) if memory is None else memory
        self.room_of_sample = self._bytes() if self.room > 0 else 0

    def random(self, seed: int) -> Tensor:
        """A Gaussian vector (p,), the same on every device."""
        draw = torch.randn(len(self.flat), generator=generator(seed), dtype=self.flat.dtype)
        return draw.to(self.device)

    def times(self, v: Tensor) -> Tensor:
        """H v (p,) for v (p,)."""
        total = torch.zeros_like(v)
        for number, batch in enumerate(self.batches):
            gradient = self.kept.get(number)
            if gradient is None:
                gradient = self._gradient(number, batch)
                if (room := len(batch) * self.room_of_sample) <= self.room and self.room_of_sample:
                    self.room -= room
                    self.kept[number] = gradient
            if not gradient.requires_grad:
                continue
            with self._spoken("torch cannot differentiate {} twice ({}); give parameters= that come after that layer"):
                total += torch.autograd.grad(gradient, self.flat, v, retain_graph=number in self.kept)[0]
        return total

    def _gradient(self, number: int, batch: Tensor) -> Tensor:
        """The batch's share (p,) of the gradient, with its graph."""
        inputs, y = self.x[batch.to(self.x.device)], self.y[batch.to(self.y.device)]
        inputs = inputs.to(self.device, copy=True)  # a model may write into what it is given
        if inputs.is_floating_point():
            inputs = inputs.to(self.dtype)
        parts = self.flat.split([w.numel() for w in self.weights.values()])
        weights = {
            name: part.reshape(w.shape).to(w) for (name, w), part in zip(self.weights.items(), parts, strict=True)
        }
        buffers = {name: b.clone() for name, b in self.buffers.items()}
        with isolated(derive(self.seed, "batch", number)), sdpa_kernel(SDPBackend.MATH):
            shape = tuple(inputs.shape[1:])
            with self._spoken(f"{{}} cannot take samples of shape {shape} ({{}}); give data that fits it"):
                outputs = functional_call(self.model, (weights | self.others, buffers), (inputs,))
            if not isinstance(outputs, Tensor) or outputs.ndim == 0 or len(outputs) != len(inputs):
                given = tuple(outputs.shape) if isinstance(outputs, Tensor) else f"a {type(outputs).__name__}"
                raise EvenlyError(
                    f"the model gives {given} for {len(inputs)} samples; it must give a tensor with a row for each"
                )
            if not self.looked:
                self.loss.check(outputs, self.y)
            value = self.loss(outputs, y.to(outputs.device)) / len(self.x)
        if number not in self.looked:
            self.looked.add(number)
            if not bool(torch.isfinite(value)):
                raise EvenlyError(
                    f"the loss of samples {int(batch[0])} to {int(batch[-1])} is {float(value.detach())}; look at "
                    "their inputs and at the weights"
                )
        if not value.requires_grad:
            return torch.zeros_like(self.flat, requires_grad=False)
        return torch.autograd.grad(value, self.flat, create_graph=True, materialize_grads=True)[0]

    def _bytes(self) -> int:
        """Bytes that the graph of a sample's gradient holds beside the weights, by two samples or the only one."""
        held: dict[int, int] = {}

        def note(tensor: Tensor) -> Tensor:
            held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        few = torch.arange(min(2, len(self.x)))
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            gradient = self._gradient(0, few)
        self.looked.clear()
        for own in (self.flat, *self.others.values()):
            held.pop(own.untyped_storage().data_ptr(), None)
        del gradient
        return max(1, sum(held.values()) // len(few))

    @contextmanager
    def _spoken(self, message: str) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise EvenlyError(message.format(type(self.model).__name__, _first_line(error))) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:120] if str(error).strip() else type(error).__name__


class _Summed:
    """A loss as the sum over a batch's samples."""

    known: tuple[Any, ...] = (F.mse_loss, F.cross_entropy, F.binary_cross_entropy_with_logits)
    known_modules = (nn.MSELoss, nn.CrossEntropyLoss, nn.BCEWithLogitsLoss)

    def __init__(self, loss: str | Loss) -> None:
        self.loss: Any = loss
        named = isinstance(loss, str) or type(loss) in self.known_modules or loss in self.known
        self.curvature = curvature_of(loss) if named else None

    def check(self, outputs: Tensor, y: Tensor) -> None:
        """Refuse all samples' targets where they do not go with outputs of this shape."""
        if self.curvature is not None:
            self.curvature.check(outputs[0].numel(), y)

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        if self.curvature is not None:
            return summed(self.loss, outputs.reshape(len(outputs), -1), y)
        y = y.to(outputs) if y.is_floating_point() else y
        try:
            value: Any = self.loss(outputs, y.reshape(outputs.shape) if y.numel() == outputs.numel() else y)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            called = getattr(self.loss, "__name__", type(self.loss).__name__)
            raise EvenlyError(
                f"the loss {called} cannot take outputs {tuple(outputs.shape)} and targets {tuple(y.shape)} "
                f"({_first_line(error)}); give a loss that goes with them, e.g. 'cross-entropy'"
            ) from error
        if not isinstance(value, Tensor) or (value.ndim and len(value) != len(outputs)):
            shape = f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise EvenlyError(f"the loss is {shape}; it must be the batch's mean loss or one number for each sample")
        mean = value.ndim == 0 and getattr(self.loss, "reduction", "mean") == "mean"
        return value * len(outputs) if mean else value.sum()


def _check_kinds(model: Any, loss: Any, data: Any, by: Any, batch_size: Any) -> None:
    if batch_size is not None and batch_size < 1:
        raise EvenlyError(f"batch_size {batch_size} is no number of samples; give at least 1")
    if not isinstance(loss, str) and (not callable(loss) or isinstance(loss, type)):
        said = loss.__name__ if isinstance(loss, type) else repr(loss)
        raise EvenlyError(f"loss {said} is no function; give 'cross-entropy', or e.g. torch.nn.CrossEntropyLoss()")
    check_model(model)
    if by is not None and not isinstance(by, str):
        check_order(data)  # the numbers go by the order of storage


def _chosen(model: nn.Module, parameters: Any) -> dict[str, torch.Size]:
    """The parameters to differentiate by: names and shapes, in the model's order."""
    every = dict(model.named_parameters())
    if parameters is None:
        chosen = {name for name, w in every.items() if w.requires_grad}
        if not chosen:
            raise EvenlyError(
                f"{type(model).__name__} has no trainable parameter; set requires_grad where the Hessian is wanted"
            )
    else:
        chosen = set()
        names = {id(w): name for name, w in every.items()}
        modules = {name for name, _ in model.named_modules() if name}
        if not isinstance(parameters, Iterable):
            raise EvenlyError(f"parameters is a {type(parameters).__name__}; give names, or some of model.parameters()")
        for given in [parameters] if isinstance(parameters, str | Tensor) else list(parameters):
            if isinstance(given, Tensor):
                if id(given) not in names:
                    raise EvenlyError(
                        f"a tensor of shape {tuple(given.shape)} in parameters is none of {type(model).__name__}'s; "
                        "take them from model.parameters()"
                    )
                chosen.add(names[id(given)])
                continue
            found = {name for name in every if name == given or name.startswith(f"{given}.")}
            if not found:
                raise unknown("parameter or module", str(given), {*every, *modules})
            chosen |= found
        if not chosen:
            raise EvenlyError("parameters is empty; name at least one, or leave it out for all that are trainable")
        if frozen := [name for name in every if name in chosen and not every[name].requires_grad]:
            raise EvenlyError(f"parameter {frozen[0]} requires no gradient; set requires_grad, or leave it out")
    return {name: w.shape for name, w in every.items() if name in chosen}


def _subsets(by: Any, data: Any, y: Tensor) -> dict[int, Tensor]:
    """The indices of the samples of each class, group or value, by its number."""
    if isinstance(by, str) and by == "group":
        split = data.train if isinstance(data, Data) else data
        if not isinstance(split, Split) or split.groups is None:
            raise EvenlyError("by='group' needs a Split or Data with groups; give these, or an array (N,) of numbers")
        if split.groups.ndim == 2:
            columns = enumerate(split.groups.unbind(1))
            return {group: column.nonzero().flatten() for group, column in columns if bool(column.any())}
        numbers = split.groups
    elif isinstance(by, str) and by == "class":
        if y.is_floating_point() or y.numel() != len(y):
            raise EvenlyError(f"targets are {y.dtype} of shape {tuple(y.shape)}, no classes; give by= an array (N,)")
        numbers = y.reshape(-1)
    elif isinstance(by, str):
        raise unknown("partition", by, ("class", "group"))
    else:
        try:
            numbers = torch.as_tensor(np.asarray(by) if isinstance(by, list | tuple) else by)
        except (TypeError, ValueError, RuntimeError):
            raise EvenlyError(f"by is a {type(by).__name__}, no array of numbers; give an integer for each") from None
        if numbers.shape != (len(y),) or numbers.is_floating_point():
            raise EvenlyError(
                f"by is {numbers.dtype} of shape {tuple(numbers.shape)} for {len(y)} samples; give an integer for each"
            )
    return {int(number): (numbers == number).nonzero().flatten() for number in numbers.unique()}


def _free(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else MEMORY
