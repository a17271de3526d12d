"""The disentangled network on two features, easy and hard, under SGD and LSAM: many trainings as one computation.

Springer et al. 2024, "SAM enhances feature quality via balanced learning", Sections 5 and 6. A step of the network
f(x) = v . Phi(x) of `disentangled` with the logistic loss on examples (x_i, y_i), y = ±1, is

    theta <- theta - lr mean_i -y_i lambda_i (g_easy grad Phi_easy(x_i) + g_hard grad Phi_hard(x_i))          (eq. 6)

where lambda_i = sigmoid(-y_i w . Phi(x_i)) is the importance weight and g the features' effective learning rates. SGD
has w = g = v. LSAM has w = g = v~, the phantom parameter (eq. 5). It moves v only, and dL/dv = mean_i -y_i lambda_i
Phi(x_i) follows from Phi, so LSAM needs one forward pass. Two effects of v~ are separated by fixing w or g or both at
v* = (1, v*_hard) in SGD (eqs 10-12): importance weighting, learning-rate scaling, both.

All S runs, each with its own examples, start, order, rho, rate and effect, are one batched computation.

>>> seeds = [*range(8)] * 2
>>> examples, held_out = evenly.data.spiral.draw(SpiralDistribution(complexity=315), seeds)
>>> path = train(examples, held_out, seeds=seeds, rho=[0.0] * 8 + [1.5] * 8)
>>> path.hard_error[-1]                 # (16,): probing error of the hard feature
>>> path.phantom_ratio                  # (16,): mean v~_hard / mean v~_easy

Our choices where the paper gives none: v starts at (1, 1), an epoch is a pass in a new order, and training takes 15
epochs. In the interventions v follows plain SGD. The sums over a batch in eqs 3 and 10-12 are means, as the loss is a
mean. Eqs 6 and 10-12 leave out the factor -y_i.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from evenly.errors import EvenlyError
from evenly.randomness import generator
from evenly.settings import checks_options, setting
from evenly.theory.arguments import Count, Positive, batch_size_of, not_negative, positive
from evenly.theory.disentangled import (
    Disentangled,
    Networks,
    feature_values,
    gini,
    importance_weights,
    initial,
    logistic_weights,
    phantom_of,
    representation,
    separated,
    weighted_sum,
)
from evenly.theory.trajectory import Trajectory, joined

__all__ = [
    "Disentangled",
    "Effects",
    "Intervention",
    "Networks",
    "Trajectory",
    "effects",
    "gini",
    "importance_weights",
    "initial",
    "representation",
    "train",
]


Examples = tuple[Tensor, Tensor]
"""Inputs (S, n, 4), the easy feature first, and labels ±1 (S, n), for S runs."""
Effect = Literal["none", "importance", "learning-rate", "both"]
"""The quantities computed at v*: none (SGD, LSAM), lambda (eq. 10), g (eq. 11), both (eq. 12)."""

T = TypeVar("T")
CHUNK = 200_000
"""Activations of a layer computed at once if no gradient is needed: few enough to stay in a core's cache."""


@frozen
class Intervention:
    """A change of SGD (eqs 10-12): which quantities are computed at v* = (1, v_hard)."""

    effect: Effect = setting("none", help="none, importance, learning-rate or both")
    v_hard: float = setting(1.0, help="v*_hard; v*_easy is 1")


NONE = Intervention()


@checks_options
def train(
    examples: Examples,
    held_out: Examples,
    *,
    seeds: Sequence[int],
    rho: float | Sequence[float] = 0.0,
    lr: float | Sequence[float] = 0.01,
    batch_size: int | Sequence[int] = 5,
    intervention: Intervention | Sequence[Intervention] = NONE,
    epochs: Count = 15,
    every: Count = 1,
    start: Networks | None = None,
    perturb: Literal["last layer", "all"] = "last layer",
) -> Trajectory:
    """Train S networks, in the precision and on the device of the examples. Options are one value or S values.

    Args:
        examples: inputs (S, n, 4) and labels ±1 (S, n); see `evenly.data.spiral.draw`.
        held_out: (S, m, 4) and (S, m), where errors are measured.
        seeds: (S,), each run's seed of the initial network and of the order of examples.
        rho: LSAM's radius (eq. 5); 0 is SGD.
        lr: 0.01 in Appendix B, and constant; no momentum, no weight decay.
        batch_size: 5 in Appendix B. The last batch of an epoch is smaller if it does not divide n. Runs of equal batch
            size are one computation.
        intervention: on SGD only.
        epochs: 15 is our choice; the paper gives none.
        every: epochs between recordings; the start and the end are always recorded.
        start: the initial networks; by default from `seeds`.
        perturb: "all" is SAM, which perturbs theta as well (eq. 3); the phantom path then holds its v~.
    """
    S = len(seeds)
    if S == 0:
        raise EvenlyError("seeds is empty; give one seed for each run")
    (x, y), (x_test, y_test) = _checked(examples, S, "examples"), _checked(held_out, S, "held_out")
    radii, rates, sizes = _per_run(rho, S, "rho"), _per_run(lr, S, "lr"), _per_run(batch_size, S, "batch_size")
    changes = _per_run(intervention, S, "intervention")
    for change, radius, rate, size in zip(changes, radii, rates, sizes, strict=True):
        if not_negative("rho", radius) and change.effect != "none":
            raise EvenlyError(
                f"rho must be 0 with the effect {change.effect!r}, as interventions are on SGD, got {radius}"
            )
        positive("lr", rate)
        batch_size_of(size, y.shape[1])
    networks = initial(seeds, dtype=x.dtype) if start is None else start
    if len(networks.v) != S:
        raise EvenlyError(f"start must have {S} networks, one for each run, got {len(networks.v)}")
    networks = Networks(*(part.detach().to(x).clone() for part in networks))

    paths: list[tuple[list[int], Trajectory]] = []
    for size in sorted(set(sizes)):
        runs = [s for s in range(S) if sizes[s] == size]
        step = _Step(
            networks.v.new_tensor([radii[s] for s in runs]),
            networks.v.new_tensor([rates[s] for s in runs]),
            torch.tensor([changes[s].effect in ("importance", "both") for s in runs], device=x.device)[:, None],
            torch.tensor([changes[s].effect in ("learning-rate", "both") for s in runs], device=x.device)[:, None],
            networks.v.new_tensor([[1.0, changes[s].v_hard] for s in runs]),
            perturb == "all",
        )
        path = _train(
            Networks(*(part[runs] for part in networks)),
            (x[runs], y[runs]), (x_test[runs], y_test[runs]),
            [seeds[s] for s in runs], step, int(size), epochs, every,
        )  # fmt: skip
        paths.append((runs, path))
    return paths[0][1] if len(paths) == 1 else joined(paths)


@dataclass(frozen=True)
class Effects:
    """Each effect of LSAM alone: Figure 7.

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
        """The share of LSAM's gain over SGD, in mean error over the runs, that each intervention recovers."""
        mean = {name: float(error.mean()) for name, error in self.hard_error.items()}
        gain = mean["sgd"] - mean["lsam"]
        return {
            name: (mean["sgd"] - mean[name]) / gain if gain else math.nan
            for name in ("importance", "learning-rate", "both")
        }


@checks_options
def effects(
    examples: Examples,
    held_out: Examples,
    *,
    seeds: Sequence[int],
    rho: Positive,
    lr: Positive = 0.01,
    batch_size: int = 5,
    epochs: Count = 15,
) -> Effects:
    """SGD, LSAM of one rho, and SGD under each intervention with v*_hard at LSAM's median ratio (eqs 10-12)."""
    kinds: list[Effect] = ["importance", "learning-rate", "both"]
    S = len(seeds)

    def repeated(times: int, **options: Any) -> Trajectory:
        options |= {"lr": lr, "batch_size": batch_size, "epochs": epochs, "every": epochs}
        training, testing = ((x.repeat(times, 1, 1), y.repeat(times, 1)) for x, y in (examples, held_out))
        return train(training, testing, seeds=[*seeds] * times, **options)

    first = repeated(2, rho=[0.0] * S + [rho] * S)
    v_hard = first.median_ratio[S:]
    second = repeated(3, intervention=[Intervention(kind, v) for kind in kinds for v in v_hard.tolist()])
    errors = torch.cat([first.hard_error[-1], second.hard_error[-1]]).split(S)
    return Effects(v_hard, dict(zip(("sgd", "lsam", *kinds), errors, strict=True)))


class _Step(NamedTuple):
    """A step of S runs: radii (S,), rates (S,), what is fixed at v* (S, 1) and v* (S, 2); SAM instead of LSAM."""

    rho: Tensor
    lr: Tensor
    fix_importance: Tensor
    fix_rates: Tensor
    v_star: Tensor
    everywhere: bool

    def __call__(self, networks: Networks, theta: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
        """Move the networks by one step on a batch, x (S, 2, B, 4) and y (S, B); the phantom parameters (S, 2)."""
        v = networks.v
        if self.everywhere and bool(self.rho.any()):
            return self._sam(networks, theta, x, y)
        phi = feature_values(networks, x)
        fixed = phi.detach()
        v_phantom = phantom_of(v, fixed, y, self.rho)
        weight = logistic_weights(v_phantom, fixed, y)  # lambda at v~, which is v in SGD
        shared = logistic_weights(torch.where(self.fix_importance, self.v_star, v_phantom), fixed, y)
        rates = torch.where(self.fix_rates, self.v_star, v_phantom)
        scale = -y * (self.lr / y.shape[1])[:, None]
        gradients = torch.autograd.grad(phi, theta, (scale * shared)[:, None] * rates[:, :, None])
        with torch.no_grad():
            torch._foreach_sub_(theta, gradients)
            v.sub_(weighted_sum(fixed, scale * weight))
        return v_phantom

    def _sam(self, networks: Networks, theta: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
        """The same for SAM: two passes, and the norm over all weights of a run (eq. 3)."""

        def gradients(v: Tensor) -> list[Tensor]:
            phi = feature_values(networks, x)
            weight = -y * logistic_weights(v, phi.detach(), y) / y.shape[1]
            by_theta = torch.autograd.grad(phi, theta, weight[:, None] * v[:, :, None])
            return [*by_theta, weighted_sum(phi.detach(), weight)]

        def scaled(parts: list[Tensor], factor: Tensor) -> list[Tensor]:
            return [part * factor.view(-1, *[1] * (part.ndim - 1)) for part in parts]

        v = networks.v
        ascent = gradients(v)
        length = torch.stack([part.square().flatten(1).sum(1) for part in ascent]).sum(0).sqrt()
        *shift, v_shift = scaled(ascent, self.rho / length.clamp_min(torch.finfo(v.dtype).tiny))
        with torch.no_grad():
            torch._foreach_add_(theta, shift)
        v_phantom = v + v_shift
        *step, v_step = scaled(gradients(v_phantom), self.lr)
        with torch.no_grad():
            torch._foreach_sub_(theta, shift)
            torch._foreach_sub_(theta, step)
            v.sub_(v_step)
        return v_phantom


def _train(
    networks: Networks, examples: Examples, held_out: Examples, seeds: list[int], step: _Step, batch_size: int,
    epochs: int, every: int,
) -> Trajectory:  # fmt: skip
    """One computation of S runs of one batch size, which changes the networks in place."""
    (x, y), (S, n) = examples, examples[1].shape
    apart = separated(x)
    theta = [part.requires_grad_() for part in networks[:-1]]
    orders = {seed: generator(seed, "order of the spiral") for seed in set(seeds)}
    times: list[int] = []
    records: list[tuple[Tensor, ...]] = []
    real, phantom = [], []

    def record(epoch: int) -> None:
        times.append(epoch)
        records.append((*_errors(networks, *held_out), _features(networks, x), networks.v.clone()))

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


@torch.no_grad()
def _features(networks: Networks, x: Tensor) -> Tensor:
    """Phi(x), (S, N, 2), a few runs at a time."""
    size = max(1, CHUNK // (2 * x.shape[1] * networks.weight1.shape[-1]))
    chunks = [slice(start, start + size) for start in range(0, len(x), size)]
    return torch.cat([representation(Networks(*(part[chunk] for part in networks)), x[chunk]) for chunk in chunks])


@torch.no_grad()
def _errors(networks: Networks, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """How often Phi_easy, Phi_hard and f differ in sign from the label, each (S,)."""
    phi = _features(networks, x)
    answers = torch.cat([phi, phi @ networks.v[:, :, None]], 2)
    easy, hard, both = ((answers > 0) != (y > 0)[:, :, None]).to(x.dtype).mean(1).unbind(1)
    return easy, hard, both


def _per_run(value: T | Sequence[T], count: int, name: str) -> list[T]:
    values = list(value) if isinstance(value, Sequence | np.ndarray | Tensor) else [value] * count
    if len(values) != count:
        raise EvenlyError(f"{name} has {len(values)} values for {count} runs; give one, or one per run")
    return values


def _checked(examples: Examples, count: int, name: str) -> Examples:
    x, y = (part.detach() for part in examples)
    if x.ndim != 3 or x.shape[2] != 4 or y.shape != x.shape[:2] or 0 in x.shape[1:]:
        raise EvenlyError(f"{name} must have shapes (S, n, 4) and (S, n), got {tuple(x.shape)} and {tuple(y.shape)}")
    if len(x) != count:
        raise EvenlyError(f"{name} must have {count} sets, one for each seed, got {len(x)}")
    if not x.is_floating_point() or not bool(x.isfinite().all()):
        raise EvenlyError(f"{name} must be finite floating-point numbers; correct or drop the others")
    if not bool((y.abs() == 1).all()):
        raise EvenlyError(f"{name} must have labels -1 and +1, got {float(y[y.abs() != 1][0]):g}")
    return x, y.to(x)
