"""SAM raises an example's importance by the norm of its logit's gradient (Appendix D)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from evenly.papers.claims import Scale, claim
from evenly.papers.nodes import Computation, computed
from evenly.runs.verdict import Chart, Check, Judgement, line, measurement
from evenly.theory import gradient_norms

EXACT = 1e-9
WIDTHS = (4, 4, 4, 4)
"""Square layers: as printed, the products of equations 32 to 39 fit no others."""
RADII = (0.1, 0.03, 0.01, 0.003, 0.001)
DRAWS = 20

Parameters = Sequence[Tensor]


def case(seed: int) -> tuple[Tensor, list[Tensor], Tensor]:
    """v, W_1 to W_3 and seven inputs, in double precision."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(WIDTHS[0],), (7, WIDTHS[-1]), *pairwise(WIDTHS)]
    v, x, *weights = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return v, weights, x


def network(parameters: Parameters, x: Tensor, relu: bool) -> Tensor:
    """f = v . W_1 W_2 ... x, or with a ReLU after each W."""
    v, *weights = parameters
    for W in reversed(weights):
        x = (x @ W.T).relu() if relu else x @ W.T
    return x @ v


def by_autograd(parameters: Parameters, x: Tensor, relu: bool) -> Tensor:
    """||grad f(x_i)|| over all parameters, (N,)."""
    leaves = [p.clone().requires_grad_() for p in parameters]
    rows = [torch.autograd.grad(network(leaves, each[None], relu)[0], leaves) for each in x]
    return torch.stack([torch.cat([g.flatten() for g in row]).norm() for row in rows])


def log_ratio(f: Callable[[Parameters], Tensor], parameters: Parameters, y: float, rho: float, logistic: bool) -> float:
    """log(lambda~ / lambda) of one example by the definition: SAM's phantom, the weight there and here."""
    leaves = [p.clone().requires_grad_() for p in parameters]
    margin = y * f(leaves).sum()
    gradients = torch.autograd.grad(F.softplus(-margin) if logistic else torch.exp(-margin), leaves)
    length = torch.cat([g.flatten() for g in gradients]).norm()
    phantom = [p + rho * g / length for p, g in zip(parameters, gradients, strict=True)]
    before, after = (y * f(each).sum() for each in (parameters, phantom))
    change = F.logsigmoid(-after) - F.logsigmoid(-before) if logistic else before - after
    return float(change)


def ratios(seed: int) -> dict[str, object]:
    """Log ratios of SAM's importance weights in a ReLU network against rho ||grad f||.

    Returns: the largest relative error of the first order at each radius; of LSAM, at rho 0.7; of the logistic
    loss against the exponential one at a small radius, beside the margin, for correctly classified examples.
    """
    v, weights, x = case(seed)
    parameters = [v, *weights]
    norm = gradient_norms.relu_network(v, weights, x)
    alive = [i for i in range(len(x)) if norm[i] > 1e-6]
    errors, logistic = [], []

    def f(parameters: Parameters, i: int) -> Tensor:
        return network(parameters, x[i : i + 1], True)

    for rho in RADII:
        first = gradient_norms.log_importance_ratio(norm, rho)
        worst = 0.0
        for i in alive:
            exact = log_ratio(lambda p, i=i: f(p, i), parameters, 1.0, rho, False)  # type: ignore[misc]
            worst = max(worst, abs(exact / float(first[i]) - 1))
        errors.append(worst)
    phi = network([torch.eye(len(v), dtype=torch.float64), *weights], x, True)
    of_last = gradient_norms.log_importance_ratio(gradient_norms.last_layer(phi), 0.7)
    last = 0.0
    for i in alive:
        for y in (-1.0, 1.0):
            exact = log_ratio(lambda p, i=i: phi[i : i + 1] @ p[0], [v], y, 0.7, False)  # type: ignore[misc]
            last = max(last, abs(exact / float(of_last[i]) - 1))
    for i in alive:
        margin = abs(float(f(parameters, i)))
        y = 1.0 if float(f(parameters, i)) > 0 else -1.0
        both = [log_ratio(lambda p, i=i: f(p, i), parameters, y, 1e-4, kind) for kind in (True, False)]  # type: ignore[misc]
        logistic.append([margin, both[0] / both[1]])
    return {"first order": errors, "last layer": last, "logistic": logistic}


def _ratios(scale: Scale) -> dict[str, list[Computation]]:
    return {"found": [computed(ratios, seed=seed) for seed in scale.seeds(DRAWS)]}


@claim(
    "balanced/eq25",
    where="Equations 15-25, Appendix D",
    states="With the exponential loss, SAM multiplies an example's importance weight by exp(rho ||grad f||), to first "
    "order in rho.",
    rule=f"In {DRAWS} random ReLU networks, the median over networks of the largest relative error is proportional to "
    "rho: at rho 0.001 it is within 5 to 20 times smaller than at 0.01, and below 5%.",
    uses=_ratios,
)
def equation_25(found: Sequence[Mapping[str, list[float]]]) -> Judgement:
    medians = [sorted(each["first order"][k] for each in found)[len(found) // 2] for k in range(len(RADII))]
    factor = medians[2] / medians[4]
    checks = [
        Check(f"10 times smaller at a tenth of rho ({factor:.1f} times)", 5 <= factor <= 20),
        Check(f"below 5% at rho 0.001 ({medians[4]:.2%})", medians[4] < 0.05),
    ]
    chart = Chart("relative error of rho ||grad f||", "rho", [line("median", RADII, medians)], log_x=True, log_y=True)
    return Judgement(
        checks, [measurement("relative error at rho 0.001", [each["first order"][4] for each in found])], [chart]
    )


@claim(
    "balanced/eq27",
    where="Equation 27, Appendix D, example 1",
    states="LSAM multiplies an example's importance weight by exp(rho ||phi(x)||).",
    rule=f"In {DRAWS} random networks and for both labels, the log ratio at rho 0.7 differs from rho ||phi(x)|| by "
    f"less than {EXACT:g} of it: f is linear in the last layer.",
    uses=_ratios,
)
def equation_27(found: Sequence[Mapping[str, float]]) -> Judgement:
    worst = max(each["last layer"] for each in found)
    return Judgement([Check(f"exact at rho 0.7 (apart by {worst:.1e})", worst < EXACT)])


@claim(
    "balanced/appD-logistic",
    where="Appendix D, preliminaries",
    states="For correctly classified points the logistic loss is almost identical to the exponential one.",
    rule=f"In {DRAWS} random networks, the log ratio of importance weights under the logistic loss is at least 0.9 of "
    "that under the exponential loss for all points with a margin above 3. Side point: for all correctly classified "
    "points.",
    uses=_ratios,
)
def appendix_d_logistic(found: Sequence[Mapping[str, list[list[float]]]]) -> Judgement:
    points = sorted(tuple(point) for each in found for point in each["logistic"])
    far, all_points = min(ratio for margin, ratio in points if margin > 3), min(ratio for _, ratio in points)
    checks = [
        Check(f"at least 0.9 at margins above 3 (lowest {far:.2f})", far >= 0.9),
        Check(f"at least 0.9 at every margin above 0 (lowest {all_points:.2f})", all_points >= 0.9, main=False),
    ]
    margins, values = zip(*points, strict=True)
    chart = Chart("log ratio, logistic by exponential loss", "margin y f", [line("points", margins, values, dots=True)])
    return Judgement(checks, charts=[chart])


def norms(seed: int) -> dict[str, float]:
    """The largest relative errors of ||grad f||^2 in examples 2 to 4, as printed and as evenly has it."""
    v, weights, x = case(seed)
    parameters = [v, *weights]

    def apart(squares: Tensor, parameters: Parameters, relu: bool = False) -> float:
        exact = by_autograd(parameters, x, relu).square()
        alive = exact > 1e-12
        return float((squares[alive] / exact[alive] - 1).abs().max())

    W = weights[0]
    linear, relu = (gradient_norms.terms(v, weights, x, relu=each) for each in (False, True))
    return {
        "29 printed": apart((x @ W.T).square().sum(1) + v.square().sum() * x.norm(dim=1), [v, W]),
        "29": apart(gradient_norms.two_layer_linear(v, W, x).square(), [v, W]),
        "32 printed": apart(_equation_32(v, weights, x), parameters),
        "33 printed": apart(_equation_33(v, weights, x), parameters),
        "33": apart(gradient_norms.deep_linear(v, weights, x).square(), parameters),
        "39 printed": apart(_equation_39(weights, x), parameters, True),
        "39": apart(gradient_norms.relu_network(v, weights, x).square(), parameters, True),
        "33 weights vary": float(linear.a.std(0).max()),
        "39 weights vary": float(relu.a.std(0).max()),
    }


def _below(weights: Sequence[Tensor], x: Tensor, relu: bool = False) -> list[Tensor]:
    """The representations W_j ... W_{L-1} x for j from 1 to L; the last is x."""
    r = [x]
    for W in reversed(weights):
        z = r[0] @ W.T
        r.insert(0, z.relu() if relu else z)
    return r


def _equation_32(v: Tensor, weights: Sequence[Tensor], x: Tensor) -> Tensor:
    """||W_1 ... x||^2 + sum_i ||W_1 ... W_{i-1} v||^2 ||W_{i+1} ... x||^2, the products in the printed order."""
    r = _below(weights, x)
    total, product = r[0].square().sum(1), torch.eye(len(v), dtype=v.dtype)
    for i, W in enumerate(weights):
        total = total + (product @ v).square().sum() * r[i + 1].square().sum(1)
        product = product @ W
    return total


def _equation_33(v: Tensor, weights: Sequence[Tensor], x: Tensor) -> Tensor:
    """sum_j a_j ||W_j ... x||^2 with a_j = ||W_1 ... W_{j-1} v||^2."""
    total, product = torch.zeros(len(x), dtype=x.dtype), torch.eye(len(v), dtype=v.dtype)
    for r_j, W in zip(_below(weights, x), [*weights, None], strict=True):
        total = total + (product @ v).square().sum() * r_j.square().sum(1)
        product = product if W is None else product @ W
    return total


def _equation_39(weights: Sequence[Tensor], x: Tensor) -> Tensor:
    """sum_j a_j ||sigma_j(x)||^2 with a_j = ||A_1 W_1 ... A_{j-1} W_{j-1}||^2, Frobenius, and a_1 = 1."""
    r = _below(weights, x, relu=True)
    total = r[0].square().sum(1)
    product = torch.eye(x.shape[1], dtype=x.dtype).expand(len(x), -1, -1)
    for j, W in enumerate(weights):
        product = product @ (torch.diag_embed((r[j] > 0).to(x.dtype)) @ W)
        total = total + product.square().sum((1, 2)) * r[j + 1].square().sum(1)
    return total


def _norms(scale: Scale) -> dict[str, list[Computation]]:
    return {"found": [computed(norms, seed=seed) for seed in scale.seeds(DRAWS)]}


def _equal(found: Sequence[Mapping[str, float]], name: str) -> Judgement:
    worst = max(each[name] for each in found)
    text = f"the squared norm equals autograd's (largest relative difference {worst:.1e})"
    return Judgement([Check(text, worst < EXACT)])


RULE = f"In {DRAWS} random networks the squared norm differs from autograd's by less than {EXACT:g} of it"


@claim(
    "balanced/eq29",
    where="Equation 29, Appendix D, example 2",
    states="In a two-layer linear network ||grad f||^2 = ||W x||^2 + ||v||^2 ||x||.",
    rule=f"{RULE}, as printed.",
    uses=_norms,
)
def equation_29(found: Sequence[Mapping[str, float]]) -> Judgement:
    return _equal(found, "29 printed")


@claim(
    "balanced/eq29-corrected",
    where="Equation 29, Appendix D, example 2, corrected",
    states="In a two-layer linear network ||grad f||^2 = ||W x||^2 + ||v||^2 ||x||^2.",
    rule=f"{RULE}.",
    uses=_norms,
)
def equation_29_corrected(found: Sequence[Mapping[str, float]]) -> Judgement:
    return _equal(found, "29")


@claim(
    "balanced/eq33",
    where="Equations 32 and 33, Appendix D, example 3",
    states="In a deep linear network ||grad f||^2 is the sum over layers of a_j ||W_j ... x||^2 with "
    "a_j = ||W_1 ... W_{j-1} v||^2.",
    rule=f"{RULE}, by equation 32 and by 33 as printed, where all layers are square.",
    choices=("square layers: the printed products fit no others",),
    uses=_norms,
)
def equation_33(found: Sequence[Mapping[str, float]]) -> Judgement:
    worst = {name: max(each[f"{name} printed"] for each in found) for name in ("32", "33")}
    return Judgement(
        [Check(f"equation {name} equals autograd's (apart by {gap:.1e})", gap < EXACT) for name, gap in worst.items()]
    )


@claim(
    "balanced/eq33-corrected",
    where="Equations 32 and 33, Appendix D, example 3, corrected",
    states="In a deep linear network ||grad f||^2 is a weighted sum of the squared norms of all representations. The "
    "weights are 1 for the input of v and ||W_{j-2}^T ... W_1^T v||^2 for that of W_{j-1}, the same for all inputs.",
    rule=f"{RULE}, and the weights do not depend on the example.",
    uses=_norms,
)
def equation_33_corrected(found: Sequence[Mapping[str, float]]) -> Judgement:
    varies = max(each["33 weights vary"] for each in found)
    return Judgement([*_equal(found, "33").checks, Check("the weights are the same for all inputs", varies < EXACT)])


@claim(
    "balanced/eq39",
    where="Equations 37-39, Appendix D, example 4",
    states="In a ReLU network ||grad f||^2 is the sum over layers of a_j ||sigma_j(x)||^2 with "
    "a_j = ||A_1 W_1 ... A_{j-1} W_{j-1}||^2.",
    rule=f"{RULE}, as printed.",
    choices=("the Frobenius norm of the printed matrix, which leaves v out; a_1 is 1",),
    uses=_norms,
)
def equation_39(found: Sequence[Mapping[str, float]]) -> Judgement:
    return _equal(found, "39 printed")


@claim(
    "balanced/eq39-corrected",
    where="Equations 37-39, Appendix D, example 4, corrected",
    states="In a ReLU network ||grad f||^2 is a weighted sum of the squared norms of all representations, with the "
    "backward signal's squared norm at each layer as weights. They depend on the input.",
    rule=f"{RULE}, and the weights depend on the example.",
    uses=_norms,
)
def equation_39_corrected(found: Sequence[Mapping[str, float]]) -> Judgement:
    varies = min(each["39 weights vary"] for each in found)
    return Judgement([*_equal(found, "39").checks, Check("the weights depend on the input", varies > EXACT)])
