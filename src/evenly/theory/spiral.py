"""The disentangled network on two features, easy and hard, under SGD and LSAM: many trainings as one computation.

    Phi(x) = [phi_theta([x_easy, 0]), phi_theta([0, x_hard])],      f(x) = v_easy Phi_easy(x) + v_hard Phi_hard(x)

with one network phi_theta: R^4 -> R of two hidden layers with LayerNorm, and the logistic loss (Springer et al. 2024,
"SAM enhances feature quality via balanced learning", Sections 5 and 6). A step on examples (x_i, y_i), y = ±1, is

    theta <- theta - lr mean_i -y_i lambda_i (g_easy grad Phi_easy(x_i) + g_hard grad Phi_hard(x_i))          (eq. 6)

where lambda_i = sigmoid(-y_i w . Phi(x_i)) is the importance weight and g the features' effective learning rates. SGD
has w = g = v. LSAM has w = g = v~, the phantom parameter (eq. 5). It moves v only, and dL/dv = mean_i -y_i lambda_i
Phi(x_i) is read off Phi, so that LSAM needs one forward pass. Two effects of v~ are told apart by fixing w or g or both
at v* = (1, v*_hard) in SGD (eqs 10-12): importance weighting, learning-rate scaling, both.

All S runs, each with its own examples, start, order, rho, rate and effect, are one batched computation.

>>> seeds = [*range(8)] * 2
>>> examples, held_out = evenly.data.spiral.draw(SpiralDistribution(complexity=315), seeds)
>>> path = train(examples, held_out, seeds=seeds, rho=[0.0] * 8 + [1.5] * 8)
>>> path.hard_error[-1]                 # (16,): probing error of the hard feature
>>> path.phantom_ratio                  # (16,): mean v~_hard / mean v~_easy

What the paper leaves open is chosen: v starts at (1, 1), an epoch is a pass in a new order, and training takes 15 of
them. In the interventions v follows plain SGD. The sums over a batch in eqs 3 and 10-12 are means, as the loss is one;
eqs 6 and 10-12 leave out the factor -y_i.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evenly.errors import EvenlyError, unknown
from evenly.randomness import generator

Examples = tuple[Tensor, Tensor]
"""Inputs (S, n, 4), the easy feature first, and labels ±1 (S, n), for S runs."""
Effect = Literal["none", "importance", "learning-rate", "both"]
"""What is computed at v*: nothing (SGD, LSAM), lambda (eq. 10), g (eq. 11), both (eq. 12)."""

T = TypeVar("T", int, float, str)
HIDDEN = 100
"""Units in each of the two hidden layers (Appendix B)."""
AT_ONCE = 200_000
"""Activations of a layer computed at once where features are only read: few enough to stay in a core's cache."""


class Networks(NamedTuple):
    """S networks: the parameters theta of phi, and v. Layer l is relu(gain * LayerNorm(h @ weight + bias) + shift)."""

    weight1: Tensor  # (S, 4, H)
    bias1: Tensor  # (S, 1, H), like all vectors of a layer
    gain1: Tensor
    shift1: Tensor
    weight2: Tensor  # (S, H, H)
    bias2: Tensor
    gain2: Tensor
    shift2: Tensor
    weight3: Tensor  # (S, H, 1)
    bias3: Tensor  # (S, 1, 1)
    v: Tensor  # (S, 2): v_easy, v_hard

    def module(self, run: int) -> Disentangled:
        """One of the networks as a module."""
        return Disentangled(Networks(*(part[run : run + 1] for part in self)))


class Disentangled(nn.Module):
    """One network: inputs (N, 4) to logits (N,); its `representation` is Phi, (N, 2)."""

    def __init__(self, network: Networks) -> None:
        super().__init__()
        if len(network.v) != 1:
            raise EvenlyError(f"{len(network.v)} networks cannot be one module; take one of them, e.g. .module(0)")
        for name, part in network._asdict().items():
            setattr(self, name, nn.Parameter(part.detach().clone()))

    def representation(self, x: Tensor) -> Tensor:
        """Phi(x), (N, 2): easy, hard (eq. 4)."""
        theta = Networks(*(getattr(self, name) for name in Networks._fields))
        return representation(theta, x[None])[0]

    def forward(self, x: Tensor) -> Tensor:
        return self.representation(x) @ self.get_parameter("v")[0]


def initial(seeds: Sequence[int], hidden: int = HIDDEN, dtype: torch.dtype = torch.float32) -> Networks:
    """S networks as torch initialises the layers of Appendix B, U(-1/sqrt(inputs), 1/sqrt(inputs)); v = (1, 1)."""
    if hidden < 2:
        raise EvenlyError(f"hidden {hidden} leaves LayerNorm nothing to compare; give at least 2")
    drawn: dict[int, list[Tensor]] = {}
    for seed in set(seeds):
        draw = generator(seed, "disentangled network")
        for inputs, outputs in ((4, hidden), (hidden, hidden), (hidden, 1)):
            u = 2 * torch.rand(inputs + 1, outputs, generator=draw, dtype=torch.float64) - 1
            drawn.setdefault(seed, []).append((u / math.sqrt(inputs)).to(dtype))
    layers = [torch.stack([drawn[seed][layer] for seed in seeds]) for layer in range(3)]
    (weight1, bias1), (weight2, bias2), (weight3, bias3) = ((u[:, :-1].clone(), u[:, -1:].clone()) for u in layers)
    one, zero = torch.ones_like(bias1), torch.zeros_like(bias1)
    v = torch.ones(len(seeds), 2, dtype=dtype)
    return Networks(
        weight1, bias1, one, zero, weight2, bias2, one.clone(), zero.clone(), weight3, bias3, v
    )  # fmt: skip


def representation(networks: Networks, x: Tensor) -> Tensor:
    """Phi(x), (S, N, 2): easy, hard (eq. 4). x: (S, N, 4)."""
    return _phi(networks, _apart(x)).mT


def importance_weights(v: Tensor, phi: Tensor, y: Tensor, rho: float | Tensor = 0.0) -> Tensor:
    """lambda_i = sigmoid(-y_i v . Phi(x_i)), (..., N) (eq. 6); with rho > 0 at LSAM's phantom of the N examples.

    Args:
        v: (..., 2).
        phi: (..., N, 2).
        y: (..., N), ±1.
        rho: a number, or (...).
    """
    phi, rho = phi.mT, torch.as_tensor(rho, dtype=v.dtype, device=v.device)
    return _importance(_phantom(v, phi, y, rho), phi, y)


def gini(weights: Tensor) -> Tensor:
    """The Gini coefficient over the last dimension, (...): 0 where all weights are equal, near 1 where one has all.

    sum_i (2 i - N - 1) w_(i) / (N sum_i w_i) with w_(1) <= ... <= w_(N): twice the area between the Lorenz curve
    and the diagonal.
    """
    if not bool((weights >= 0).all()):
        raise EvenlyError(f"a weight is {float(weights.min()):g}; give weights from 0")
    N = weights.shape[-1]
    rank = torch.arange(1 - N, N, 2, dtype=weights.dtype, device=weights.device)
    return (weights.sort(-1).values * rank).sum(-1) / (N * weights.sum(-1))


@dataclass(frozen=True)
class Trajectory:
    """What S runs passed through, at E recorded epochs and in T steps. Features stand in the order easy, hard.

    Attributes:
        epochs: (E,), those after which errors and features were recorded; 0 is the start.
        easy_error, hard_error: (E, S), probing errors: how often the sign of a feature is not the label's, held out.
        test_error: (E, S), the same of f.
        features: (E, S, n, 2), Phi of the training examples.
        v: (E, S, 2).
        real, phantom: (T, S, 2), v before every step and the point v~ at which LSAM takes the step's gradient (v itself
            for rho 0); NaN after a run's last step where runs of larger batches take fewer steps.
        labels: (S, n), the training examples', ±1.
        rho, batch_size: (S,).
        networks: at the end.
    """

    epochs: Tensor
    easy_error: Tensor
    hard_error: Tensor
    test_error: Tensor
    features: Tensor
    v: Tensor
    real: Tensor
    phantom: Tensor
    labels: Tensor
    rho: Tensor
    batch_size: Tensor
    networks: Networks

    @property
    def real_ratio(self) -> Tensor:
        """(S,), mean v_hard / mean v_easy over the steps: Figure 3, dashed."""
        return _ratio_of_means(self.real)

    @property
    def phantom_ratio(self) -> Tensor:
        """(S,), mean v~_hard / mean v~_easy: Figure 3, solid. A mean of ratios blows up where v~_easy crosses 0."""
        return _ratio_of_means(self.phantom)

    @property
    def median_ratio(self) -> Tensor:
        """(S,), the median of v~_hard / v~_easy over the steps."""
        return (self.phantom[..., 1] / self.phantom[..., 0]).nanmedian(0).values

    @property
    def rate_factors(self) -> Tensor:
        """(T, S, 2), v~ / v: by how much LSAM changes the features' effective learning rates (Figure 4, i)."""
        return self.phantom / self.real

    @property
    def hard_shares(self) -> tuple[Tensor, Tensor]:
        """v_hard / (v_easy + v_hard), (T, S), at the real and at the phantom parameters (Figure 4, ii)."""
        return self.real[..., 1] / self.real.sum(-1), self.phantom[..., 1] / self.phantom.sum(-1)

    def importance(self, phantom: bool = False) -> Tensor:
        """(E, S, n), lambda_i of the training examples at v, or at the phantom of each one's batch (Figure 5).

        The batches are of the size that the run was trained with, and follow one another as the examples are stored.
        """
        if not phantom:
            return importance_weights(self.v, self.features, self.labels)
        weights = torch.empty_like(self.features[..., 0])
        for size in self.batch_size.unique().tolist():
            runs = self.batch_size == size
            batches = zip(self.features[:, runs].split(size, 2), self.labels[runs].split(size, 1), strict=True)
            parts = [importance_weights(self.v[:, runs], phi, y, self.rho[runs]) for phi, y in batches]
            weights[:, runs] = torch.cat(parts, 2)
        return weights

    @property
    def contributions(self) -> Tensor:
        """(E, S, n, 2), y Phi: how well each training example is fit by each feature (Section 6.2, Figure 6)."""
        return self.labels[..., None] * self.features


def train(
    examples: Examples,
    held_out: Examples,
    *,
    seeds: Sequence[int],
    rho: float | Sequence[float] = 0.0,
    lr: float | Sequence[float] = 0.01,
    batch_size: int | Sequence[int] = 5,
    effect: Effect | Sequence[Effect] = "none",
    v_hard: float | Sequence[float] = 1.0,
    epochs: int = 15,
    every: int = 1,
    start: Networks | None = None,
) -> Trajectory:
    """Train S networks, in the precision and on the device of the examples. Options are one for all runs or S of them.

    Args:
        examples: inputs (S, n, 4) and labels ±1 (S, n); see `evenly.data.spiral.draw`.
        held_out: (S, m, 4) and (S, m), where errors are measured.
        seeds: (S,), each decides a run's initial network and the order of its examples.
        rho: LSAM's radius (eq. 5); 0 is SGD.
        lr: 0.01 in Appendix B, and constant; no momentum, no weight decay.
        batch_size: 5 in Appendix B. The last batch of an epoch is smaller where it does not divide n. Runs of equal
            batch size are one computation.
        effect: an intervention on SGD, eqs 10-12: "importance", "learning-rate" or "both" are computed at v*.
        v_hard: v*_hard of the interventions; v*_easy is 1.
        epochs: 15 is this library's choice, the paper gives none.
        every: epochs between recordings; the start and the end are always recorded.
        start: the initial networks; from `seeds` where not given.
    """
    S = len(seeds)
    (x, y), (x_test, y_test) = _checked(examples, S, "examples"), _checked(held_out, S, "held-out examples")
    if S == 0:
        raise EvenlyError("no seeds, no runs; give one seed for each run")
    if epochs < 1 or every < 1:
        raise EvenlyError(f"epochs {epochs} and every {every} cannot be counted; give both from 1")
    radii, rates, v_stars = (_each(given, S, name) for given, name in ((rho, "rho"), (lr, "lr"), (v_hard, "v_hard")))
    sizes, kinds = _each(batch_size, S, "batch_size"), _each(effect, S, "effect")
    for kind, radius, rate, size, v_star in zip(kinds, radii, rates, sizes, v_stars, strict=True):
        if kind not in get_args(Effect):
            raise unknown("effect", str(kind), get_args(Effect))
        if not 0 <= radius < math.inf:
            raise EvenlyError(f"rho {radius} is no radius; give a number from 0, which is SGD")
        if radius and kind != "none":
            raise EvenlyError(f"rho {radius} with the effect {kind!r}: interventions are on SGD; give rho 0 or 'none'")
        if not 0 < rate < math.inf:
            raise EvenlyError(f"lr {rate} does not descend; give a positive number")
        if size != int(size) or not 1 <= size <= y.shape[1]:
            raise EvenlyError(f"batch_size {size} cannot be had of {y.shape[1]} examples; give 1 to {y.shape[1]}")
        if not math.isfinite(v_star):
            raise EvenlyError(f"v_hard {v_star} cannot weigh a feature; give a finite number")
    networks = initial(seeds, dtype=x.dtype) if start is None else start
    if len(networks.v) != S:
        raise EvenlyError(f"{len(networks.v)} networks to start {S} runs from; give one for each")
    networks = Networks(*(part.detach().to(x).clone() for part in networks))

    paths: list[tuple[list[int], Trajectory]] = []
    for size in sorted(set(sizes)):
        runs = [s for s in range(S) if sizes[s] == size]
        step = _Step(
            networks.v.new_tensor([radii[s] for s in runs]),
            networks.v.new_tensor([rates[s] for s in runs]),
            torch.tensor([kinds[s] in ("importance", "both") for s in runs], device=x.device)[:, None],
            torch.tensor([kinds[s] in ("learning-rate", "both") for s in runs], device=x.device)[:, None],
            networks.v.new_tensor([[1.0, v_stars[s]] for s in runs]),
        )
        path = _train(
            Networks(*(part[runs] for part in networks)),
            (x[runs], y[runs]), (x_test[runs], y_test[runs]),
            [seeds[s] for s in runs], step, int(size), epochs, every,
        )  # fmt: skip
        paths.append((runs, path))
    return paths[0][1] if len(paths) == 1 else _joined(paths)


@dataclass(frozen=True)
class Effects:
    """What each effect of LSAM does by itself: Figure 7.

    Attributes:
        v_hard: (S,), v*_hard of the interventions: the median of v~_hard / v~_easy over the steps of the LSAM run on
            the same examples.
        hard_error: (S,), the probing error of the hard feature at the end, under "sgd", "lsam" and each of the three
            interventions, "importance", "learning-rate" and "both".
    """

    v_hard: Tensor
    hard_error: dict[str, Tensor]

    @property
    def recovered(self) -> dict[str, float]:
        """The share of LSAM's gain over SGD, in mean error over the runs, that each intervention has."""
        mean = {name: float(error.mean()) for name, error in self.hard_error.items()}
        gain = mean["sgd"] - mean["lsam"]
        return {
            name: (mean["sgd"] - mean[name]) / gain if gain else math.nan
            for name in ("importance", "learning-rate", "both")
        }


def effects(
    examples: Examples,
    held_out: Examples,
    *,
    seeds: Sequence[int],
    rho: float,
    lr: float = 0.01,
    batch_size: int = 5,
    epochs: int = 15,
) -> Effects:
    """SGD, LSAM of one rho, and SGD under each intervention with v*_hard at LSAM's median ratio (eqs 10-12)."""
    if not rho > 0:
        raise EvenlyError(f"rho {rho} is SGD, whose effects there are none of; give a positive number")
    kinds: list[Effect] = ["importance", "learning-rate", "both"]
    S = len(seeds)
    radii = [0.0] * S + [rho] * S
    first = train(
        _repeated(examples, 2), _repeated(held_out, 2), seeds=[*seeds] * 2, rho=radii, lr=lr, batch_size=batch_size,
        epochs=epochs, every=epochs,
    )  # fmt: skip
    v_hard = first.median_ratio[S:]
    second = train(
        _repeated(examples, 3), _repeated(held_out, 3), seeds=[*seeds] * 3, lr=lr, batch_size=batch_size,
        effect=[kind for kind in kinds for _ in range(S)], v_hard=v_hard.tolist() * 3, epochs=epochs, every=epochs,
    )  # fmt: skip
    errors = torch.cat([first.hard_error[-1], second.hard_error[-1]]).split(S)
    return Effects(v_hard, dict(zip(("sgd", "lsam", *kinds), errors, strict=True)))


class _Step(NamedTuple):
    """What a step of S runs depends on: radii (S,), rates (S,), what is fixed at v* (S, 1) and v* (S, 2)."""

    rho: Tensor
    lr: Tensor
    fix_importance: Tensor
    fix_rates: Tensor
    v_star: Tensor

    def __call__(self, networks: Networks, theta: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
        """Move the networks by one step on a batch, x (S, 2, B, 4) and y (S, B); the phantom parameters (S, 2)."""
        v = networks.v
        phi = _phi(networks, x)
        fixed = phi.detach()
        v_phantom = _phantom(v, fixed, y, self.rho)
        weight = _importance(v_phantom, fixed, y)  # lambda at v~, which is v in SGD
        shared = _importance(torch.where(self.fix_importance, self.v_star, v_phantom), fixed, y)
        rates = torch.where(self.fix_rates, self.v_star, v_phantom)
        scale = -y * (self.lr / y.shape[1])[:, None]
        gradients = torch.autograd.grad(phi, theta, (scale * shared)[:, None] * rates[:, :, None])
        with torch.no_grad():
            torch._foreach_sub_(theta, gradients)
            v.sub_(_weighted(fixed, scale * weight))
        return v_phantom


def _train(
    networks: Networks, examples: Examples, held_out: Examples, seeds: list[int], step: _Step, batch_size: int,
    epochs: int, every: int,
) -> Trajectory:  # fmt: skip
    """One computation of S runs of one batch size; moves the networks."""
    (x, y), (S, n) = examples, examples[1].shape
    apart = _apart(x)
    theta = [part.requires_grad_() for part in networks[:-1]]
    orders = {seed: generator(seed, "order of the spiral") for seed in set(seeds)}
    times: list[int] = []
    records: list[tuple[Tensor, ...]] = []
    real, phantom = [], []

    def record(epoch: int) -> None:
        times.append(epoch)
        records.append((*_errors(networks, *held_out), _read(networks, x), networks.v.clone()))

    record(0)
    for epoch in range(1, epochs + 1):
        permutations = {seed: torch.randperm(n, generator=draw) for seed, draw in orders.items()}
        order = torch.stack([permutations[seed] for seed in seeds]).to(x.device)
        x_epoch = apart.gather(2, order[:, None, :, None].expand(S, 2, n, 4))
        y_epoch = y.gather(1, order)
        for x_batch, y_batch in zip(x_epoch.split(batch_size, 2), y_epoch.split(batch_size, 1), strict=True):
            real.append(networks.v.clone())
            phantom.append(step(networks, theta, x_batch, y_batch))
        if epoch % every == 0 or epoch == epochs:
            if not all(bool(part.isfinite().all()) for part in networks):
                raise EvenlyError(
                    f"the weights are not finite after epoch {epoch}; train with an lr below {float(step.lr.max()):g}"
                )
            record(epoch)
    easy, hard, test, features, v = (torch.stack(column) for column in zip(*records, strict=True))
    return Trajectory(
        torch.tensor(times), easy, hard, test, features, v, torch.stack(real), torch.stack(phantom), y, step.rho,
        torch.full((S,), batch_size, device=x.device), Networks(*(part.detach() for part in networks)),
    )  # fmt: skip


def _apart(x: Tensor) -> Tensor:
    """[x_easy, 0] and [0, x_hard], (S, 2, N, 4), of x (S, N, 4)."""
    apart = x.new_zeros(len(x), 2, *x.shape[1:])
    apart[:, 0, :, :2], apart[:, 1, :, 2:] = x[..., :2], x[..., 2:]
    return apart


def _phi(networks: Networks, x: Tensor) -> Tensor:
    """phi_theta, (S, 2, N), of the separated features x (S, 2, N, 4)."""
    weight1, bias1, gain1, shift1, weight2, bias2, gain2, shift2, weight3, bias3, _ = networks
    width = weight1.shape[-1:]
    h = torch.baddbmm(bias1, x.flatten(1, 2), weight1)
    h = torch.addcmul(shift1, F.layer_norm(h, width), gain1).relu()
    h = torch.baddbmm(bias2, h, weight2)
    h = torch.addcmul(shift2, F.layer_norm(h, width), gain2).relu()
    return torch.baddbmm(bias3, h, weight3).view(x.shape[:3])


def _importance(v: Tensor, phi: Tensor, y: Tensor) -> Tensor:
    """sigmoid(-y v . Phi), (..., N), of v (..., 2), phi (..., 2, N) and y (..., N)."""
    return (-y * (v[..., None] * phi).sum(-2)).sigmoid()


def _weighted(phi: Tensor, weight: Tensor) -> Tensor:
    """sum_i weight_i Phi_i, (..., 2), of phi (..., 2, N) and weight (..., N)."""
    return (phi * weight[..., None, :]).sum(-1)


def _phantom(v: Tensor, phi: Tensor, y: Tensor, rho: Tensor) -> Tensor:
    """v~ = v + rho grad_v L / ||grad_v L|| (eq. 5), and v where the gradient is 0."""
    gradient = _weighted(phi, -y * _importance(v, phi, y))
    # where all examples are fit well the gradient may be so small that its square is 0
    gradient = gradient / gradient.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(v.dtype).tiny)
    return v + rho[..., None] * F.normalize(gradient, dim=-1)


@torch.no_grad()
def _read(networks: Networks, x: Tensor) -> Tensor:
    """Phi(x), (S, N, 2), some runs at a time."""
    some = max(1, AT_ONCE // (2 * x.shape[1] * networks.weight1.shape[-1]))
    return torch.cat([
        representation(Networks(*(part[s : s + some] for part in networks)), x[s : s + some])
        for s in range(0, len(x), some)
    ])  # fmt: skip


@torch.no_grad()
def _errors(networks: Networks, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """How often the signs of Phi_easy, Phi_hard and f are not the label's, each (S,)."""
    phi = _read(networks, x)
    answers = torch.cat([phi, phi @ networks.v[:, :, None]], 2)
    easy, hard, both = ((answers > 0) != (y > 0)[:, :, None]).to(x.dtype).mean(1).unbind(1)
    return easy, hard, both


def _ratio_of_means(path: Tensor) -> Tensor:
    easy, hard = path.nanmean(0).unbind(-1)
    return hard / easy


def _joined(paths: list[tuple[list[int], Trajectory]]) -> Trajectory:
    """The runs of several computations in their own order; steps that a run has not are NaN."""
    place = torch.tensor([run for runs, _ in paths for run in runs]).argsort()
    steps = max(len(path.real) for _, path in paths)

    def padded(path: Tensor) -> Tensor:
        return F.pad(path, (0, 0, 0, 0, 0, steps - len(path)), value=math.nan)

    def over(parts: list[Tensor], dim: int) -> Tensor:
        return torch.cat(parts, dim).index_select(dim, place.to(parts[0].device))

    each = [path for _, path in paths]
    recorded = ("easy_error", "hard_error", "test_error", "features", "v")
    columns = {name: over([getattr(path, name) for path in each], 1) for name in recorded}
    columns |= {name: over([padded(getattr(path, name)) for path in each], 1) for name in ("real", "phantom")}
    columns |= {name: over([getattr(path, name) for path in each], 0) for name in ("labels", "rho", "batch_size")}
    networks = Networks(*(over(list(parts), 0) for parts in zip(*(path.networks for path in each), strict=True)))
    return Trajectory(epochs=each[0].epochs, networks=networks, **columns)


def _repeated(examples: Examples, times: int) -> Examples:
    return examples[0].repeat(times, 1, 1), examples[1].repeat(times, 1)


def _each(given: T | Sequence[T], count: int, name: str) -> list[T]:
    values = [given] * count if isinstance(given, int | float | str) else list(given)
    if len(values) != count:
        raise EvenlyError(f"{len(values)} values of {name} for {count} runs; give one, or one for each")
    return values


def _checked(examples: Examples, count: int, what: str) -> Examples:
    x, y = (part.detach() for part in examples)
    if x.ndim != 3 or x.shape[2] != 4 or y.shape != x.shape[:2] or 0 in x.shape[1:]:
        raise EvenlyError(f"{what} have shapes {tuple(x.shape)} and {tuple(y.shape)}; give (S, n, 4) and (S, n)")
    if len(x) != count:
        raise EvenlyError(f"{what} of {len(x)} runs for {count} seeds; give one set for each seed")
    if not x.is_floating_point() or not bool(x.isfinite().all()):
        raise EvenlyError(f"{what} hold entries that are not finite floating-point numbers; mend or drop those")
    if not bool((y.abs() == 1).all()):
        raise EvenlyError(f"{what} have the label {float(y[y.abs() != 1][0]):g}; give -1 and +1")
    return x, y.to(x)
