"""LSAM: SAM that perturbs the last layer only (Springer, Nagarajan and Raghunathan, ICLR 2024, Section 5.1).

    eps = rho g_S / ||g_S||_2  on the chosen parameters S, 0 elsewhere,  g = grad L(w)
    w  <- base(w, grad L(w + eps))

Any parameters may be chosen. The norm is over them alone, so rho is the length of their perturbation.

>>> opt = LSAM(torch.optim.SGD(model.parameters(), lr=0.1), params=model.fc.parameters(), rho=1.0)
>>> loss = opt.step(closure)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from evenly.errors import EvenlyError
from evenly.optim.perturbed import Rounding, Shift, check_base
from evenly.optim.sam import along_gradient
from evenly.optim.sharpness_aware import SharpnessAware


class LSAM(SharpnessAware):
    """Perturbs the given parameters; the base optimizer updates all of its own.

    Args:
        base: the optimizer that steps.
        params: the parameters to perturb, each one held by ``base``.
        rho: the radius in the space of ``params``; a parameter group may have its own ``"rho"``.
        model, local, check_finite, rounding: as in :class:`~evenly.optim.sam.SAM`.
    """

    settings = ("rho",)
    params: list[Tensor]

    def __init__(
        self,
        base: Optimizer,
        params: Iterable[Tensor],
        rho: float = 1.0,
        *,
        model: nn.Module | None = None,
        local: bool = False,
        check_finite: bool = False,
        rounding: Rounding = "nearest",
    ) -> None:
        self.params = list(params)
        held = {p for group in check_base(base).param_groups for p in group["params"]}
        if not self.params:
            raise EvenlyError("`params` must hold at least one parameter, got none; give e.g. model.fc.parameters()")
        for index, p in enumerate(self.params):
            if p not in held:
                raise EvenlyError(
                    f"parameter {index} of `params`, of shape {tuple(p.shape)}, is not in the base optimizer; "
                    f"give it to {type(base).__name__} as well, or leave it out"
                )
        super().__init__(base, model=model, local=local, check_finite=check_finite, rounding=rounding, rho=rho)

    def perturbation(self) -> Iterator[Shift]:
        return along_gradient(self.gradients(subset=set(self.params)))

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "params": self.params}
