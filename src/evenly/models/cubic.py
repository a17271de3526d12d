"""The two-layer convolutional network with cubic activation of the patch analyses.

    f(x) = sum_j sum_p (<w_j, x_p> + b_j)^3

(Nguyen et al. 2024, eq. 1; Deng et al. 2023, eq. 2.3; there without b_j.) One logit, logistic loss. The code that Deng
et al. published has a bias, which matters: without it the core feature is not learned in their 800 warm-up iterations.
It also has two logits of 20 filters each; as (-z)^3 = -z^3, that is this network with 40 filters up to signs.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from evenly.settings import checks_options


class CubicCNN(nn.Module):
    """Inputs (N, P, d), one logit (N,).

    Args:
        dimension: d.
        filters: J, the number of filters; 40 in both papers.
        bias: whether each filter has a bias.
        sigma_0: standard deviation of the normal initialisation. Neither paper gives it; 0.1 / sqrt(50) = 0.01414
            reproduces the published timing (Nguyen et al., Fig. 2). With "uniform" it is the scale that multiplies
            torch's default convolution initialisation, U(-1/sqrt(d), 1/sqrt(d)); Deng et al. use 0.1.
        init: "normal" (filters normal, bias zero) or "uniform" (both uniform).
    """

    @checks_options
    def __init__(
        self,
        dimension: int,
        filters: int = 40,
        bias: bool = False,
        sigma_0: float | None = None,
        init: Literal["normal", "uniform"] = "normal",
    ) -> None:
        super().__init__()
        self.filters = nn.Parameter(torch.empty(filters, dimension))
        self.bias = nn.Parameter(torch.zeros(filters)) if bias else None
        if init == "normal":
            nn.init.normal_(self.filters, std=0.1 / 50**0.5 if sigma_0 is None else sigma_0)
        else:
            bound = (0.1 if sigma_0 is None else sigma_0) / dimension**0.5
            nn.init.uniform_(self.filters, -bound, bound)
            if self.bias is not None:
                nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        z = x @ self.filters.T
        if self.bias is not None:
            z = z + self.bias
        return (z * z * z).sum((1, 2))
