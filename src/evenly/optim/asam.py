"""ASAM: adaptive sharpness-aware minimization (Kwon, Kim, Park and Choi, ICML 2021).

    T_w = |w| + eta on weights, 1 on biases
    eps = rho T_w^2 g / ||T_w g||_2,  g = grad L(w),  the norm over all parameters together
    w  <- base(w, grad L(w + eps))

The neighbourhood scales with each weight, so a rescaling of the network that leaves its function unchanged leaves the
sharpness unchanged too.

>>> opt = ASAM(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), rho=1.0, model=model)
>>> loss = opt.step(closure)
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from evenly.optim.perturbed import Part, Rounding, Shift
from evenly.optim.shards import whole_norm
from evenly.optim.sharpness_aware import SharpnessAware


class ASAM(SharpnessAware):
    """SAM in a neighbourhood that scales with the weights.

    Args:
        base: the optimizer that steps.
        rho: the radius after scaling, about ten times SAM's. Nguyen et al. (USEFUL) take 1.0 on CIFAR. A parameter
            group may have its own ``"rho"`` and ``"eta"``; the norm is over all groups.
        eta: keeps weights near 0 moving; 0.01 is from the authors' code.
        model: its parameter names identify the biases, where T_w is 1: "bias" is in the last part of the name. Every
            other parameter is scaled, including embeddings and the weights of normalization layers. Without a model,
            every tensor of fewer than two dimensions counts as a bias, also a normalization layer's weight.
            Otherwise as in :class:`~evenly.optim.sam.SAM`.
        local, check_finite, rounding: as in :class:`~evenly.optim.sam.SAM`.
    """

    settings = ("rho", "eta")

    def __init__(
        self,
        base: Optimizer,
        rho: float = 1.0,
        eta: float = 0.01,
        *,
        model: nn.Module | None = None,
        local: bool = False,
        check_finite: bool = False,
        rounding: Rounding = "nearest",
    ) -> None:
        super().__init__(base, model=model, local=local, check_finite=check_finite, rounding=rounding, rho=rho, eta=eta)

    def perturbation(self) -> Iterator[Shift]:
        parts = self.gradients()
        names: dict[Tensor, str] = {}
        if self.model is not None:
            names.update((p, name) for name, p in self.model.named_parameters())
        T = [self._scale(part, names) for part in parts]
        Tg = [list(torch._foreach_mul(part.grads, T_w)) for part, T_w in zip(parts, T, strict=True)]
        Tg_norm = whole_norm(zip((part.params for part in parts), Tg, strict=True))
        for part, T_w, T_w_g in zip(parts, T, Tg, strict=True):
            yield Shift(part.params, list(torch._foreach_mul(T_w_g, T_w)), part.divided_by_rho(Tg_norm))

    @staticmethod
    def _scale(part: Part, names: dict[Tensor, str]) -> list[Tensor]:
        """T_w of each parameter, in the shape of this process's shard of it."""
        T_w = list(torch._foreach_abs(part.weights))
        torch._foreach_add_(T_w, part.group["eta"])
        for w, T in zip(part.params, T_w, strict=True):
            bias = "bias" in names[w].rpartition(".")[2] if w in names else w.ndim < 2
            if bias:
                T.fill_(1.0)
        return T_w
