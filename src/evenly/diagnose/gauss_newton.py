"""The Gauss-Newton matrices of a model's samples, as factors H_i = A_i^T A_i for `evenly.theory.coherence`.

    A_i = R_i J_i (k, p),    J_i = d f(x_i) / d w (c, p),    R_i^T R_i = d^2 loss / d f^2 (c, c)

A linear layer z = W u + b that a sample passes once leaves rows (delta u^T, delta) with delta = d (R f)_a / d z, so
that products of rows need no gradient of W:  < A_i, A_j >_ab = (delta_ia . delta_jb) (u_i . u_j + 1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from evenly.diagnose.losses import Curvature, first_line
from evenly.engine.evaluation import called
from evenly.errors import EvenlyError
from evenly.theory.factors import Block, in_memory_if_it_fits, product, products, refuse_infinite


def _pullback(function: Callable[[Any], Any], argument: Any) -> tuple[Tensor, Callable[[Any], Any]]:
    """The value of a function of one argument, and the map from u to (J^T u,)."""
    traced: Any = vjp(function, argument)
    return traced[0], traced[1]


def _ranges(start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    return ((first, min(first + size, stop)) for first in range(start, stop, size))


class GaussNewton:
    """The factors A_i of a model's Gauss-Newton matrices, computed anew at every call.

    Args:
        model: in eval mode.
        chunk: samples at a time; None: as many as an eighth of `memory` holds; 1: without ``torch.vmap``.
        among: names of the parameters to differentiate by; None: all that are trainable.
    """

    def __init__(
        self,
        model: nn.Module,
        curvature: Curvature,
        x: Tensor,
        y: Tensor,
        *,
        chunk: int | None = None,
        memory: int,
        among: set[str] | None = None,
    ) -> None:
        self.model, self.curvature, self.x, self.y = model, curvature, x, y
        self.parameters, self.others = state_of(model, among)
        first = next(iter(self.parameters.values()))
        self.dtype, self.device = first.dtype, first.device
        outputs, saved_bytes = self._outputs_and_bytes()
        curvature.check(outputs, y)
        self.n, self.k = len(x), curvature.rank(outputs)
        self.p = sum(w.numel() for w in self.parameters.values())
        each = self.dtype.itemsize * 2 * self.k * self.p + (1 + self.k) * saved_bytes
        self.chunk_option, self.batched = chunk, chunk != 1
        self.chunk = chunk or max(1, min(self.n, memory // 8 // each))
        self.pass_size = chunk or max(1, min(self.n, memory // 8 // ((1 + self.k) * max(saved_bytes, 1))))

    def outputs(self, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        """The model's outputs (b, c) on inputs (b, ...)."""
        out: Tensor = functional_call(self.model, (parameters, self.others), (x,))
        return out.reshape(len(x), -1)

    def inputs(self, start: int, stop: int) -> Tensor:
        """Inputs of samples, on the model's device and of its type."""
        x = self.x[start:stop].to(self.device, copy=True)  # a model may write into its input
        return x.to(self.dtype) if x.is_floating_point() else x

    def rows(self, start: int, stop: int) -> Tensor:
        """The factors of samples (b, k, p)."""
        rows = torch.empty(stop - start, self.k, self.p, dtype=self.dtype, device=self.device)
        for first, end in _ranges(start, stop, self.chunk):
            part = self._over_samples(self._factor, first, end) if self.batched else self._one(first)
            refuse_infinite(part, first)
            rows[first - start : end - start] = part
        return rows

    def products(self, memory: int) -> Iterator[Block]:
        """Products of all rows, in blocks of samples."""
        layers = linear_layers(self, memory) if self.batched else None
        if layers is not None and layers.size() <= memory:
            return layers.products(memory)
        return products(in_memory_if_it_fits(self, memory), memory)

    def times_hessian(self, v: Tensor) -> Tensor:
        """H v = (1/n) sum_i J_i^T R_i^T R_i J_i v, a chunk of samples at a time, without any sample's Jacobian."""
        total = torch.zeros_like(v)
        if not self.batched:
            for i in range(self.n):
                a = self.rows(i, i + 1)[0].to(v.dtype)
                total += a.T @ (a @ v)
            return total / self.n
        sizes = [w.numel() for w in self.parameters.values()]
        direction = {
            name: part.reshape(w.shape).to(w.dtype)
            for (name, w), part in zip(self.parameters.items(), v.split(sizes), strict=True)
        }
        for start, stop in _ranges(0, self.n, self.pass_size):
            pulled = self._gauss_newton_product(self.inputs(start, stop), direction)
            total += torch.cat([each.reshape(-1) for each in pulled.values()]).to(v.dtype)
        return total / self.n

    def _outputs_and_pullback(self, x: Tensor) -> tuple[Tensor, Callable[[Any], Any]]:
        return _pullback(lambda w: vmap(lambda one: self.outputs(w, one[None])[0])(x), self.parameters)

    def _gauss_newton_product(self, x: Tensor, direction: dict[str, Tensor]) -> dict[str, Tensor]:
        """sum_i J_i^T R_i^T R_i J_i v over the inputs x (b, ...), for v and the result by parameter."""
        f, pull = self._outputs_and_pullback(x)
        # J v is the derivative of J^T u by u along v: two reverse passes, where a forward one is not always there
        (moved,) = _pullback(lambda u: pull(u)[0], torch.zeros_like(f))[1](direction)
        root = vmap(self.curvature.root)(f)
        return cast(dict[str, Tensor], pull((root.mT @ (root @ moved[..., None]))[..., 0])[0])

    def combined(self, signs: Tensor, start: int, stop: int) -> dict[str, Tensor]:
        """sum_ia signs_ia (row a of A_i) over the samples from start to stop, by parameter, in one backward pass."""

        def added(x: Tensor) -> Any:
            f, pull = self._outputs_and_pullback(x)
            return pull((signs[:, :, None] * vmap(self.curvature.root)(f)).sum(1))[0]

        return cast(dict[str, Tensor], self._batched(added, self.inputs(start, stop)))

    def _factor(self, x: Tensor) -> Tensor:
        f, pull = _pullback(lambda w: self.outputs(w, x[None])[0], self.parameters)
        (rows,) = vmap(pull)(self.curvature.root(f))
        return torch.cat([row.reshape(self.k, -1) for row in rows.values()], dim=1)

    def _over_samples(self, function: Callable[[Tensor], Any], start: int, stop: int) -> Any:
        return self._batched(vmap(function), self.inputs(start, stop))

    def _batched(self, function: Callable[[Tensor], Any], x: Tensor) -> Any:
        try:
            return function(x)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            network = type(self.model).__name__
            raise EvenlyError(f"torch.vmap cannot batch {network} ({first_line(error)}); give chunk=1") from error

    def _one(self, i: int) -> Tensor:
        """The factor of one sample (1, k, p), without ``torch.vmap``."""
        weights = {name: w.clone().requires_grad_() for name, w in self.parameters.items()}
        with torch.enable_grad():
            f = self.outputs(weights, self.inputs(i, i + 1))[0]
        rows = torch.empty(1, self.k, self.p, dtype=self.dtype, device=self.device)
        for a, row in enumerate(self.curvature.root(f.detach())):
            pulled = torch.autograd.grad(f, list(weights.values()), row, retain_graph=True, materialize_grads=True)
            rows[0, a] = torch.cat([each.reshape(-1) for each in pulled])
        return rows

    def _outputs_and_bytes(self) -> tuple[int, int]:
        """The number of outputs, and the bytes that a backward pass saves beside the weights, both for one sample."""
        weights = {name: w.clone().requires_grad_() for name, w in self.parameters.items()}
        known = {w.data_ptr() for w in (*weights.values(), *self.others.values())}
        saved = 0

        def count(tensor: Tensor) -> Tensor:
            nonlocal saved
            saved += 0 if tensor.data_ptr() in known else tensor.numel() * tensor.element_size()
            return tensor

        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            out = called(self.model, self.inputs(0, 1), self.others | weights)
        if not isinstance(out, Tensor) or out.ndim > 2 or (out.ndim and len(out) != 1):
            shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise EvenlyError(
                f"the model gives {shape} for one sample; it must give (N,) or (N, outputs) for N samples"
            )
        return out.numel(), saved


@dataclass
class LinearLayers:
    """Products of a model's rows through its linear layers, one by one; other parameters' rows are held as they are."""

    factors: GaussNewton
    layers: dict[str, nn.Linear]
    rest: GaussNewton | None

    def size(self) -> int:
        """Bytes held: of each sample u (in) and delta (k, out) for every layer, and the rest's rows."""
        k = self.factors.k
        numbers = sum(layer.in_features + k * layer.out_features for layer in self.layers.values())
        numbers += k * self.rest.p if self.rest is not None else 0
        return self.factors.n * numbers * self.factors.dtype.itemsize

    def products(self, memory: int) -> Iterator[Block]:
        """As :func:`evenly.theory.coherence.products`, in squares of samples."""
        n, k = self.factors.n, self.factors.k
        passes = [self.inputs_and_deltas(start, stop) for start, stop in _ranges(0, n, self.factors.pass_size)]
        us = {name: torch.cat([u[name] for u, _ in passes]) for name in self.layers}
        deltas = {name: torch.cat([delta[name] for _, delta in passes]) for name in self.layers}
        del passes
        for name in self.layers:
            refuse_infinite(deltas[name] * us[name].abs().amax(1)[:, None, None], 0)
        rest = None if self.rest is None else self.rest.rows(0, n)
        side = max(1, int((memory / (128 * k * k)) ** 0.5))
        for i in (slice(*bounds) for bounds in _ranges(0, n, side)):
            for j in (slice(*bounds) for bounds in _ranges(i.start, n, side)):
                shape = (i.stop - i.start, k, j.stop - j.start, k)
                block = torch.zeros(shape, dtype=torch.float64, device=self.factors.device)
                if rest is not None:
                    block += product(rest[i].flatten(0, 1), rest[j].flatten(0, 1)).reshape(shape)
                for name in self.layers:
                    u, delta = us[name], deltas[name]
                    of_inputs = product(u[i], u[j]) + float(_joined(name, "bias") in self.factors.parameters)
                    of_deltas = product(delta[i].flatten(0, 1), delta[j].flatten(0, 1)).reshape(shape)
                    block.addcmul_(of_deltas, of_inputs[:, None, :, None])
                yield i, j, block.reshape(shape[0] * k, shape[2] * k)

    def inputs_and_deltas(self, start: int, stop: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """u (b, in) and delta (b, k, out) of samples, by layer."""
        zero = {
            name: torch.zeros(1, layer.out_features, dtype=self.factors.dtype, device=self.factors.device)
            for name, layer in self.layers.items()
        }

        def pass_through(x: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
            def outputs(added: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
                with _layer_inputs(self.layers, added) as us:
                    f = self.factors.outputs(self.factors.parameters, x[None])[0]
                return f, us

            traced: Any = vjp(outputs, zero, has_aux=True)
            f, pull, us = traced
            (deltas,) = vmap(pull)(self.factors.curvature.root(f))
            return {name: u[0] for name, u in us.items()}, {name: delta[:, 0] for name, delta in deltas.items()}

        both: tuple[dict[str, Tensor], dict[str, Tensor]] = self.factors._over_samples(pass_through, start, stop)
        return both


@contextmanager
def _layer_inputs(layers: dict[str, nn.Linear], added: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """While it lasts, the input of each layer is noted, and `added` joins its output."""
    us: dict[str, Tensor] = {}

    def hook(_: nn.Module, inputs: Any, z: Tensor, name: str) -> Tensor:
        us[name] = inputs[0]
        return z + added[name]

    hooks = [layer.register_forward_hook(partial(hook, name=name)) for name, layer in layers.items()]
    try:
        yield us
    finally:
        for each in hooks:
            each.remove()


def linear_layers(factors: GaussNewton, memory: int) -> LinearLayers | None:
    """The linear layers whose weights' gradients are delta u^T and nothing else, for every sample.

    Found by one backward pass of a random combination of all samples' rows, which the layers' own deltas and inputs
    must reproduce. A layer that is passed twice or by a sequence, shares its weight, or whose weight is used outside of
    it, be it for a single sample, is left to the other parameters; None where no layer remains.
    """
    names = factors.parameters.keys()
    once = _layers_run_once(factors)
    if not once:
        return None
    true = {name: torch.zeros_like(w, dtype=torch.float64) for name, w in factors.parameters.items()}
    rebuilt = {name: torch.zeros_like(w) for name, w in true.items()}
    draw = torch.Generator().manual_seed(0)
    for start, stop in _ranges(0, factors.n, factors.pass_size):
        signs = torch.randn(stop - start, factors.k, generator=draw, dtype=torch.float64)
        signs = signs.to(factors.device, factors.dtype)
        for name, gradient in factors.combined(signs, start, stop).items():
            true[name] += gradient
        us, deltas = LinearLayers(factors, once, None).inputs_and_deltas(start, stop)
        for name in once:
            delta = (signs[:, :, None] * deltas[name]).sum(1)
            rebuilt[_joined(name, "weight")] += delta.T @ us[name]
            if _joined(name, "bias") in names:
                rebuilt[_joined(name, "bias")] += delta.sum(0)
    tolerance = torch.finfo(factors.dtype).eps ** 0.6
    layers = {}
    for name, layer in once.items():
        own = [part for part in (_joined(name, "weight"), _joined(name, "bias")) if part in names]
        if all(float((true[w] - rebuilt[w]).abs().max()) <= tolerance * float(true[w].abs().max()) for w in own):
            layers[name] = layer
    if not layers:
        return None
    left = set(names) - {_joined(name, part) for name in layers for part in ("weight", "bias")}
    if not left:
        return LinearLayers(factors, layers, None)
    same = factors.model, factors.curvature, factors.x, factors.y
    return LinearLayers(factors, layers, GaussNewton(*same, chunk=factors.chunk_option, memory=memory, among=left))


def _layers_run_once(factors: GaussNewton) -> dict[str, nn.Linear]:
    """The linear layers with a trainable weight that a sample passes once, as a row."""
    layers = {
        name: layer
        for name, layer in factors.model.named_modules()
        if type(layer) is nn.Linear and _joined(name, "weight") in factors.parameters
    }
    shapes: dict[str, list[torch.Size]] = {name: [] for name in layers}
    hooks = [
        layer.register_forward_hook(lambda _, inputs, z, name=name: shapes[name].append(inputs[0].shape))
        for name, layer in layers.items()
    ]
    try:
        factors.outputs(factors.parameters, factors.inputs(0, 1))
    finally:
        for hook in hooks:
            hook.remove()
    return {name: layer for name, layer in layers.items() if [len(s) for s in shapes[name]] == [2]}


def _joined(layer: str, part: str) -> str:
    """The name of a layer's parameter; the model itself is the layer without a name."""
    return f"{layer}.{part}" if layer else part


def state_of(model: nn.Module, among: set[str] | None = None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The trainable parameters (those `among` the names), and all else that the model computes with.

    Buffers are copies, so that nothing is written back.
    """
    trained: dict[str, Tensor] = {}
    others: dict[str, Tensor] = {}
    for name, w in model.named_parameters():
        (trained if w.requires_grad and (among is None or name in among) else others)[name] = w.detach()
    return trained, others | {name: b.detach().clone() for name, b in model.named_buffers()}
