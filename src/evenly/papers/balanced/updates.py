"""The probing error, and the updates of SGD, SAM and LSAM (Sections 3, 5.1 and 6.2, Appendix C)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import erfc, sqrt
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evenly.data.contract import Split
from evenly.data.spiral import SpiralDistribution, draw
from evenly.diagnose.probing import probe
from evenly.optim.lsam import LSAM
from evenly.optim.sam import SAM
from evenly.papers.claims import Scale, claim
from evenly.papers.nodes import Computation, computed
from evenly.runs.differences import mean
from evenly.runs.verdict import Check, Judgement, measurement
from evenly.theory import spiral

EXACT = 1e-10
"""The largest relative difference from a formula that double precision explains."""
NOISE_COLUMNS = 100
BAYES = erfc(1 / sqrt(2)) / 2
"""Of a feature ±1 in noise of variance 1."""


class Columns(nn.Module):
    """A network whose representation is some columns of its input."""

    def __init__(self, columns: Sequence[int]) -> None:
        super().__init__()
        self.columns = list(columns)
        self.fc = nn.Linear(len(columns), 1)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.fc(x[:, self.columns])
        return answer


def probing_errors(seed: int, n: int = 4000) -> dict[str, float]:
    """Probing errors of a hard attribute from representations that have it, or have not."""
    generator = torch.Generator().manual_seed(seed)

    def split(count: int, balanced: bool) -> Split:
        hard = torch.randint(0, 2, (count,), generator=generator)
        easy = torch.randint(0, 2, (count,), generator=generator) if balanced else hard
        columns = torch.randn(count, 2 + NOISE_COLUMNS, generator=generator)
        columns[:, :2] += 2 * torch.stack([easy, hard], 1) - 1
        return Split(columns, hard, None, {"easy": easy, "hard": hard})

    has_it, has_it_not = Columns([0, 1]), Columns([0, *range(2, 2 + NOISE_COLUMNS)])
    fitted, held_out = (split(count, True) for count in (1000, n))
    together = split(1000, False)
    return {
        "has it": probe(has_it, fitted, "hard", held_out=held_out, against=["easy"], seed=seed).error,
        "has it not": probe(has_it_not, fitted, "hard", held_out=held_out, against=["easy"], seed=seed).error,
        "has it not, unbalanced": probe(
            has_it_not, together, "hard", held_out=split(n, False), against=(), seed=seed
        ).error,
    }


@claim(
    "balanced/eq1",
    where="Equation 1, Section 3.1",
    states="A linear probe that is fitted on a balanced set picks up the attribute in question alone, so its held-out "
    "error measures how well a representation has that attribute.",
    rule="Over 6 seeds: the mean error of the probe is within 2 points of the Bayes error where the representation has "
    "the attribute in noise, and within 2 points of 50% where it has another attribute and 100 columns of noise. On a "
    "set where both attributes go together, that second representation has an error below 40%: balance is needed.",
    choices=("1,000 examples to fit on: the paper says a small data set", "an l2 penalty, chosen by 5 folds"),
    uses=lambda scale: {"probes": [computed(probing_errors, seed=seed) for seed in scale.seeds(6)]},
)
def equation_1(probes: Sequence[Mapping[str, float]]) -> Judgement:
    by_name = {name: [each[name] for each in probes] for name in probes[0]}
    has, has_not, together = (mean(by_name[name]) for name in by_name)
    checks = [
        Check(f"with the attribute: {has:.3f}, Bayes {BAYES:.3f}", abs(has - BAYES) < 0.02),
        Check(f"without it: {has_not:.3f}, chance 0.5", abs(has_not - 0.5) < 0.02),
        Check(f"without it, attributes that go together: {together:.3f}, below 0.4", together < 0.4),
    ]
    return Judgement(checks, [measurement(f"probing error, {name}", values) for name, values in by_name.items()])


def optimizer_steps(optimizer: str, draws: int = 100, rho: float = 0.5, lr: float = 0.1) -> dict[str, float]:
    """A step of evenly's optimizer against the formula, on random networks and batches of 5, in double precision.

    Returns: the largest differences of the step and of the perturbation's length, both relative; the largest movement
    of weights that are not to be perturbed; on how many networks the loss is higher at the phantom weights.
    """
    found = [_optimizer_step(optimizer, seed, rho, lr) for seed in range(draws)]
    worst = {name: max(each[name] for each in found) for name in ("step", "length", "elsewhere")}
    return {**worst, "ascents": sum(each["ascends"] for each in found), "draws": draws}


def _optimizer_step(optimizer: str, seed: int, rho: float, lr: float) -> dict[str, float]:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1, bias=False)).double()
    x, y = torch.randn(5, 4, dtype=torch.float64), torch.randint(0, 2, (5,)).double() * 2 - 1
    weights = [parameter.detach().clone() for parameter in net.parameters()]
    perturbed = {"sgd": [], "sam": [0, 1, 2], "lsam": [2]}[optimizer]

    before, g = _loss_and_gradient(net, weights, x, y)
    length = torch.cat([g[k].flatten() for k in perturbed]).norm() if perturbed else torch.ones(())
    phantom = [w + rho * g[k] / length if k in perturbed else w for k, w in enumerate(weights)]
    _, g_phantom = _loss_and_gradient(net, phantom, x, y)
    expected = [w - lr * each for w, each in zip(weights, g_phantom, strict=True)]

    _write(net, weights)
    seen: list[list[Tensor]] = []
    base = torch.optim.SGD(net.parameters(), lr=lr)

    def closure() -> Any:
        seen.append([parameter.detach().clone() for parameter in net.parameters()])
        base.zero_grad()
        loss = F.softplus(-y * net(x)[:, 0]).mean()
        loss.backward()
        return loss

    wrapped: Any = base
    if perturbed:
        wrapped = SAM(base, rho) if optimizer == "sam" else LSAM(base, net[2].parameters(), rho)
    wrapped.step(closure)
    stepped = [parameter.detach().clone() for parameter in net.parameters()]
    shift = [now - w for now, w in zip(seen[-1], weights, strict=True)]
    moved = torch.cat([shift[k].flatten() for k in perturbed]).norm() / rho if perturbed else torch.ones(())
    after, _ = _loss_and_gradient(net, seen[-1], x, y)
    return {
        "step": _apart(stepped, expected, weights),
        "length": abs(float(moved) - 1),
        "elsewhere": max([float(each.abs().max()) for k, each in enumerate(shift) if k not in perturbed], default=0.0),
        "ascends": float(after > before),
    }


def _write(net: nn.Module, weights: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for parameter, w in zip(net.parameters(), weights, strict=True):
            parameter.copy_(w)


def _loss_and_gradient(net: nn.Module, weights: Sequence[Tensor], x: Tensor, y: Tensor) -> tuple[float, list[Tensor]]:
    _write(net, weights)
    loss = F.softplus(-y * net(x)[:, 0]).mean()
    return float(loss.detach()), list(torch.autograd.grad(loss, list(net.parameters())))


def _apart(these: Sequence[Tensor], those: Sequence[Tensor], start: Sequence[Tensor]) -> float:
    """The distance between two steps from one start, relative to the second's length."""
    gap = torch.cat([(a - b).flatten() for a, b in zip(these, those, strict=True)]).norm()
    return float(gap / torch.cat([(b - w).flatten() for b, w in zip(those, start, strict=True)]).norm())


@claim(
    "balanced/eq2",
    where="Equation 2, Section 3.2",
    states="SGD steps along the gradient of the batch's mean loss.",
    rule=f"On 100 random networks the step differs from the formula by less than {EXACT:g} of its length.",
    uses=lambda scale: {"steps": computed(optimizer_steps, optimizer="sgd")},
)
def equation_2(steps: Mapping[str, float]) -> Judgement:
    return Judgement([Check(f"the step is the formula's (apart by {steps['step']:.1e})", steps["step"] < EXACT)])


@claim(
    "balanced/eq3",
    where="Equation 3, Section 3.2",
    states="SAM sums the gradient at the phantom weights over the B examples of a batch. The only difference from SGD "
    "is where the gradient is taken.",
    rule="On 100 random batches of 5 with rho 0, the printed sum over i of the gradient of the batch's mean loss gives "
    "SGD's step of equation 2.",
    uses=lambda scale: {"sums": computed(printed_sum)},
)
def equation_3(sums: Mapping[str, float]) -> Judgement:
    factor = sums["factor"]
    return Judgement([Check(f"with rho 0 the printed step is SGD's (it is {factor:g} times as long)", factor == 1)])


def printed_sum(B: int = 5) -> dict[str, float]:
    """How long the printed step is with rho 0, in lengths of SGD's: B equal gradients of a mean are added."""
    torch.manual_seed(0)
    net = nn.Linear(4, 1).double()
    x, y = torch.randn(B, 4, dtype=torch.float64), torch.ones(B, dtype=torch.float64)
    _, gradient = _loss_and_gradient(net, [parameter.detach().clone() for parameter in net.parameters()], x, y)
    summed = sum(gradient[0] for _ in range(B))
    return {"factor": round(float(torch.as_tensor(summed).norm() / gradient[0].norm()), 9)}


def _judged_steps(steps: Mapping[str, float], perturbed: str) -> Judgement:
    draws, ascents = int(steps["draws"]), int(steps["ascents"])
    checks = [
        Check(f"the step is the formula's (apart by {steps['step']:.1e})", steps["step"] < EXACT),
        Check(f"{perturbed} move by rho (off by {steps['length']:.1e})", steps["length"] < EXACT),
        Check("no other weights move before the gradient is taken", steps["elsewhere"] == 0),
        Check(f"the loss is higher at the phantom weights ({ascents} of {draws})", ascents >= 0.95 * draws),
    ]
    return Judgement(checks)


STEP_RULE = (
    f"On 100 random networks: the step differs from the formula by less than {EXACT:g} of its length. The perturbed "
    "weights move by rho, and no others. The loss is higher at the phantom weights on at least 95."
)


@claim(
    "balanced/eq3-corrected",
    where="Equation 3, Section 3.2, corrected",
    states="SAM is SGD with the gradient of the batch's mean loss taken at the phantom weights w + rho g / ||g||.",
    rule=STEP_RULE,
    uses=lambda scale: {"steps": computed(optimizer_steps, optimizer="sam")},
)
def equation_3_corrected(steps: Mapping[str, float]) -> Judgement:
    return _judged_steps(steps, "all weights")


@claim(
    "balanced/eq5",
    where="Equation 5, Section 5.1",
    states="LSAM perturbs the last layer alone, by rho along its own gradient, and updates all weights.",
    rule=STEP_RULE,
    uses=lambda scale: {"steps": computed(optimizer_steps, optimizer="lsam")},
)
def equation_5(steps: Mapping[str, float]) -> Judgement:
    return _judged_steps(steps, "the last layer's weights")


def decompositions(seed: int) -> dict[str, float]:
    """The gradient by theta on a batch of 5 as equations 6 and 10-12 give it, against autograd and the simulator.

    Returns: relative differences. Of equation 6 and of 10-12 at v* = v from the loss's gradient, as printed and with
    mean_i -y_i in front; of the simulator's steps from the equations at another v*.
    """
    examples, held_out = draw(SpiralDistribution(), [seed], n=5, held_out=5, dtype=torch.float64)
    (x,), (y,) = examples
    network = spiral.initial([seed], hidden=12, dtype=torch.float64)
    network.v.copy_(1 + torch.rand(1, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))
    module = network.module(0)
    theta = [parameter for name, parameter in module.named_parameters() if name != "v"]
    phi, v, v_star = module.representation(x), network.v[0], torch.tensor([1.0, 1.7], dtype=torch.float64)

    def gradient(value: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(value, theta, retain_graph=True))

    def terms(importance: Tensor, rates: Tensor) -> Tensor:
        return torch.sigmoid(-y * (phi @ importance)).detach() * (phi @ rates)

    def apart(these: Sequence[Tensor], those: Sequence[Tensor]) -> float:
        return _apart(these, those, [torch.zeros_like(each) for each in those])

    exact = gradient(F.softplus(-y * (phi @ v)).mean())
    result = {
        "eq6 printed": apart(gradient(terms(v, v).mean()), exact),
        "eq6": apart(gradient((-y * terms(v, v)).mean()), exact),
        "eq10-12 printed": apart(gradient(terms(v, v).sum()), exact),
    }
    at = {"importance": (v_star, v), "learning-rate": (v, v_star), "both": (v_star, v_star)}
    for effect in get_args(spiral.Effect)[1:]:
        path = spiral.train(
            examples,
            held_out,
            seeds=[seed],
            start=network,
            lr=0.1,
            epochs=1,
            intervention=spiral.Intervention(effect, 1.7),
        )
        stepped = [(before - after)[0] / 0.1 for before, after in zip(network[:-1], path.networks[:-1], strict=True)]
        expected = [each[0] for each in gradient((-y * terms(*at[effect])).mean())]
        result[f"{effect} step"] = apart(stepped, expected)
    return result


def _decompositions(scale: Scale) -> dict[str, list[Computation]]:
    return {"parts": [computed(decompositions, seed=seed) for seed in scale.seeds(20)]}


def _agrees(parts: Sequence[Mapping[str, float]], name: str, text: str) -> Check:
    worst = max(each[name] for each in parts)
    return Check(f"{text} (apart by {worst:.1e})", worst < EXACT)


@claim(
    "balanced/eq6",
    where="Equation 6, Section 6.2",
    states="The gradient by theta is lambda_i (v_easy grad Phi_easy + v_hard grad Phi_hard).",
    rule=f"On 20 random networks and batches it differs from the loss's gradient by less than {EXACT:g} of its length.",
    uses=_decompositions,
)
def equation_6(parts: Sequence[Mapping[str, float]]) -> Judgement:
    return Judgement([_agrees(parts, "eq6 printed", "as printed it is the loss's gradient")])


@claim(
    "balanced/eq6-corrected",
    where="Equation 6, Section 6.2, corrected",
    states="The gradient by theta is -y_i lambda_i (v_easy grad Phi_easy + v_hard grad Phi_hard): a weight per example "
    "times a sum of feature gradients.",
    rule=f"On 20 random networks and batches it differs from the loss's gradient by less than {EXACT:g} of its length.",
    uses=_decompositions,
)
def equation_6_corrected(parts: Sequence[Mapping[str, float]]) -> Judgement:
    return Judgement([_agrees(parts, "eq6", "with -y_i in front it is the loss's gradient")])


@claim(
    "balanced/eqs10-12",
    where="Equations 7-12, Section 6.2 and Appendix C",
    states="The interventions are SGD with v replaced by a constant v* in the importance weights, in the sum of "
    "feature gradients, or in both.",
    rule=f"With v* = v they differ from SGD's gradient by less than {EXACT:g} of its length, on 20 random networks.",
    uses=_decompositions,
)
def equations_10_to_12(parts: Sequence[Mapping[str, float]]) -> Judgement:
    return Judgement([_agrees(parts, "eq10-12 printed", "as printed, with v* = v, they are SGD's gradient")])


@claim(
    "balanced/eqs10-12-corrected",
    where="Equations 7-12, Section 6.2 and Appendix C, corrected",
    states="With mean_i -y_i in place of the sum, the interventions are SGD with v* in one term or in both.",
    rule=f"With v* = v they differ from SGD's gradient by less than {EXACT:g} of its length, on 20 random networks. So "
    "does the simulator's step from each equation with v* = (1, 1.7).",
    choices=("v itself follows plain SGD: the paper does not say",),
    uses=_decompositions,
)
def equations_10_to_12_corrected(parts: Sequence[Mapping[str, float]]) -> Judgement:
    steps = [_agrees(parts, f"{effect} step", f"the step of {effect}") for effect in get_args(spiral.Effect)[1:]]
    return Judgement([_agrees(parts, "eq6", "with v* = v they are SGD's gradient"), *steps])
