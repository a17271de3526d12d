"""The (C, r) solutions of C.1: the example with d = 5, C = 3, and the trace of a sample's Hessian (eqs 6 to 9)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.func import functional_call, grad, vmap

from evenly.papers.claims import claim
from evenly.papers.nodes import computed
from evenly.runs.verdict import Check, Judgement, Measurement
from evenly.theory import parity
from evenly.theory.parity import TwoLayerReLU

SIZES = ((5, 3), (5, 1), (6, 2), (8, 4), (10, 5))
RADII = (0.5, 1.0, 1.7, 3.0)


def gradients(network: TwoLayerReLU, x: torch.Tensor) -> torch.Tensor:
    """grad f(x_i) over (W2, W1, b), (n, p), by automatic differentiation."""
    parameters = {name: value.detach() for name, value in network.named_parameters()}

    def output(weights: dict[str, torch.Tensor], row: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = functional_call(network, weights, (row,))
        return result

    per_sample = vmap(grad(output), in_dims=(None, 0))(parameters, x)
    return torch.cat([value.reshape(len(x), -1) for value in per_sample.values()], 1)


def largest_error(network: TwoLayerReLU, x: torch.Tensor, y: torch.Tensor) -> float:
    """max_i |f(x_i) - y_i|."""
    return float((network(x) - y).detach().abs().max())


def example() -> dict[str, Any]:
    """The network of C.1's example: d = 5, C = 3, r = 1, 10 hidden units; its largest error on all 32 inputs."""
    network, x = parity.solution(5, 3, 1.0, hidden=10), parity.boolean_inputs(5)
    error = largest_error(network, x, parity.labels(x, 3))
    return {"W1": network.W1.detach(), "W2": network.W2.detach(), "b": network.b.detach(), "error": error}


@claim(
    "stability/c1-example",
    where="C.1, eqs 6 to 8",
    states="The (3, 1) solution for d = 5 with 10 hidden units has a row of W1 for each of the 8 patterns of three "
    "signs, W2 of (-1)^(a1 + a2), b = -2, and two units of 0.",
    rule="The rows, W2 and b equal the printed ones, and the network gives x_1 x_2 on all 32 inputs.",
    choices=("a minus sign is lost in the sixth row of our copy of W1 and W2; the rule above the matrix has it",),
    uses=lambda scale: {"found": computed(example)},
)
def solution_of_the_example(found: Mapping[str, Any]) -> Judgement:
    signs = [[1 - 2 * (j >> bit & 1) for bit in range(3)] for j in range(8)]
    return Judgement([
        Check("W1 has the printed rows", found["W1"] == [[*row, 0, 0] for row in signs] + [[0] * 5] * 2),
        Check("W2 is the printed one", found["W2"] == [1, -1, -1, 1, 1, -1, -1, 1, 0, 0]),
        Check("b is the printed one", found["b"] == [-2] * 8 + [0] * 2),
        Check(f"it solves all 32 inputs (largest error {found['error']:.1e})", found["error"] < 1e-12),
    ])  # fmt: skip


def traces() -> dict[str, float]:
    """||grad f(x_i)||^2 by automatic differentiation against r^2 + (d + 1)/r^2, on all inputs of several networks."""
    error = outputs = 0.0
    one_active = True
    for d, C in SIZES:
        x = parity.boolean_inputs(d)
        for r in (*RADII, parity.flattest_r(d)):
            network = parity.solution(d, C, r)
            squares = gradients(network, x).square().sum(1)
            error = max(error, float((squares / parity.trace(d, r) - 1).abs().max()))
            outputs = max(outputs, largest_error(network, x, parity.labels(x, C)))
            one_active = one_active and bool((network.active(x).sum(1) == 1).all())
    grid = torch.linspace(0.5, 6, 5501, dtype=torch.float64)
    best = max(
        abs(float(grid[(grid**2 + (d + 1) / grid**2).argmin()]) - parity.flattest_r(d)) for d in (5, 15, 100, 1000)
    )
    return {"error": error, "outputs": outputs, "one_active": float(one_active), "flattest": best}


@claim(
    "stability/eq9",
    where="C.1, eq. 9",
    states="Exactly one hidden unit is active on each input, so that Tr H_i = r^2 + (d + 1)/r^2 for every sample, and "
    "solutions of every C have the same sharpness per sample.",
    rule="On all inputs, for five pairs (d, C) and five r each, the squared gradient equals this to 1e-9 and one unit "
    "is active. The trace is smallest at r = (d + 1)^(1/4), to the 0.001 of a grid.",
    uses=lambda scale: {"found": computed(traces)},
)
def equation_9(found: Mapping[str, float]) -> Judgement:
    return Judgement(
        [
            Check("exactly one unit is active on every input", bool(found["one_active"])),
            Check(f"the networks have zero loss ({found['outputs']:.1e})", found["outputs"] < 1e-9),
            Check(f"Tr H_i is r^2 + (d + 1)/r^2 ({found['error']:.1e})", found["error"] < 1e-9),
            Check(f"it is smallest at (d + 1)^(1/4) ({found['flattest']:.4f} away)", found["flattest"] <= 0.00101),
        ],
        [Measurement("largest relative error of the trace", found["error"])],
    )
