"""SAM: sharpness-aware minimization (Foret, Kleiner, Mobahi and Neyshabur, ICLR 2021).

    eps = rho g / ||g||_2,  g = grad L(w),  the norm over all parameters together
    w  <- base(w, grad L(w + eps))

>>> opt = SAM(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), rho=0.05)
>>> def closure():
...     opt.zero_grad()
...     loss = criterion(model(x), y)
...     loss.backward()
...     return loss
>>> loss = opt.step(closure)
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.optim import Optimizer

from evenly.optim.perturbed import Part, Rounding, Shift
from evenly.optim.shards import whole_norm
from evenly.optim.sharpness_aware import SharpnessAware


class SAM(SharpnessAware):
    """Takes the gradient where the loss is near its worst within distance rho of the weights.

    Args:
        base: the optimizer that steps.
        rho: the radius. 0.05 is the usual default; Nguyen et al. (USEFUL) take 0.1 on CIFAR. A parameter group may
            have its own ``"rho"``: it moves by rho g_group / ||g||, with the norm over all groups.
        model: as in :class:`~evenly.optim.sharpness_aware.SharpnessAware`. Recommended for BatchNorm in a compiled or
            captured step, required for ``local``.
        local: perturb each replica by its own gradient (m-sharpness, Foret et al. Section 4.1).
        check_finite: raise if a gradient is not finite.
        rounding: "stochastic" keeps the perturbation of a large network whose weights are stored in half precision.
    """

    settings = ("rho",)

    def __init__(
        self,
        base: Optimizer,
        rho: float = 0.05,
        *,
        model: nn.Module | None = None,
        local: bool = False,
        check_finite: bool = False,
        rounding: Rounding = "nearest",
    ) -> None:
        super().__init__(base, model=model, local=local, check_finite=check_finite, rounding=rounding, rho=rho)

    def perturbation(self) -> Iterator[Shift]:
        return along_gradient(self.gradients())


def along_gradient(parts: list[Part]) -> Iterator[Shift]:
    """eps = rho g / ||g||_2, each group with its own rho; 0 if g is 0."""
    g_norm = whole_norm((part.params, part.grads) for part in parts)
    for part in parts:
        yield Shift(part.params, part.grads, part.divided_by_rho(g_norm))
