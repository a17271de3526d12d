"""The Hessian of the mean loss, by its products with vectors.

    H = d^2/dw^2 (1/n) sum_i loss(f(x_i), y_i)

H is never formed. A product is the derivative of the gradient along a vector, summed over batches. As many batches as
memory holds keep the graph of their gradient, so that a product of theirs is one backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from evenly.diagnose.losses import Loss, SummedLoss, first_line
from evenly.errors import EvenlyError
from evenly.randomness import derive, generator, isolated

MEMORY = 2 * 2**30
"""Bytes of graphs kept between products on the CPU; a GPU gives half of what it has free."""


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
        self.loss = SummedLoss(loss)
        every = {name: w.detach() for name, w in model.named_parameters()}
        self.weights = {name: every[name] for name in names}
        self.others = {name: w for name, w in every.items() if name not in self.weights}
        self.buffers = {name: b.detach() for name, b in model.named_buffers()}
        first = next(iter(self.weights.values()))
        self.device, self.dtype = first.device, first.dtype
        exact = torch.float64 if self.dtype == torch.float64 else torch.float32
        self.flat = torch.cat([w.reshape(-1).to(first.device, exact) for w in self.weights.values()]).requires_grad_()
        self.batches = list(torch.arange(len(x)).split(batch_size))
        self.graphs: dict[int, Tensor] = {}
        self.checked: set[int] = set()
        self.bytes_left = free_memory(self.device) if memory is None else memory
        self.bytes_per_sample = self._bytes() if self.bytes_left > 0 else 0

    def random(self, seed: int) -> Tensor:
        """A Gaussian vector (p,), the same on every device."""
        draw = torch.randn(len(self.flat), generator=generator(seed), dtype=self.flat.dtype)
        return draw.to(self.device)

    def times(self, v: Tensor) -> Tensor:
        """H v (p,) for v (p,)."""
        total = torch.zeros_like(v)
        for number, batch in enumerate(self.batches):
            gradient = self.graphs.get(number)
            if gradient is None:
                gradient = self._gradient(number, batch)
                if (needed := len(batch) * self.bytes_per_sample) <= self.bytes_left and self.bytes_per_sample:
                    self.bytes_left -= needed
                    self.graphs[number] = gradient
            if not gradient.requires_grad:
                continue
            with self._explained(
                "torch cannot differentiate {} twice ({}); give parameters= that come after that layer"
            ):
                total += torch.autograd.grad(gradient, self.flat, v, retain_graph=number in self.graphs)[0]
        return total

    def _gradient(self, number: int, batch: Tensor) -> Tensor:
        """The batch's share (p,) of the gradient, with its graph."""
        inputs, y = self.x[batch.to(self.x.device)], self.y[batch.to(self.y.device)]
        inputs = inputs.to(self.device, copy=True)  # a model may write into its input
        if inputs.is_floating_point():
            inputs = inputs.to(self.dtype)
        parts = self.flat.split([w.numel() for w in self.weights.values()])
        weights = {
            name: part.reshape(w.shape).to(w) for (name, w), part in zip(self.weights.items(), parts, strict=True)
        }
        buffers = {name: b.clone() for name, b in self.buffers.items()}
        with isolated(derive(self.seed, "batch", number)), sdpa_kernel(SDPBackend.MATH):
            taken = tuple(inputs.shape[1:])
            with self._explained(f"{{}} cannot take samples of shape {taken} ({{}}); give data that fits it"):
                outputs = functional_call(self.model, (weights | self.others, buffers), (inputs,))
            if not isinstance(outputs, Tensor) or outputs.ndim == 0 or len(outputs) != len(inputs):
                shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else f"a {type(outputs).__name__}"
                raise EvenlyError(
                    f"the model gives {shape} for {len(inputs)} samples; it must give a tensor with a row for each"
                )
            if not self.checked:
                self.loss.check(outputs, self.y)
            value = self.loss(outputs, y.to(outputs.device)) / len(self.x)
        if number not in self.checked:
            self.checked.add(number)
            if not bool(torch.isfinite(value)):
                raise EvenlyError(
                    f"the loss of samples {int(batch[0])} to {int(batch[-1])} is {float(value.detach())}; check "
                    "their inputs and the weights"
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
        self.checked.clear()
        for own in (self.flat, *self.others.values()):
            held.pop(own.untyped_storage().data_ptr(), None)
        del gradient
        return max(1, sum(held.values()) // len(few))

    @contextmanager
    def _explained(self, message: str) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise EvenlyError(message.format(type(self.model).__name__, first_line(error))) from error


def free_memory(device: torch.device) -> int:
    """Bytes that graphs may take."""
    return torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else MEMORY
