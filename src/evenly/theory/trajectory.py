"""The paths that the runs of `spiral` took."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from evenly.theory.disentangled import Networks, importance_weights


@dataclass(frozen=True)
class Trajectory:
    """The paths of S runs, at E recorded epochs and in T steps. Features are in the order easy, hard.

    Attributes:
        epochs: (E,), the epochs after which errors and features were recorded; 0 is the start.
        easy_error, hard_error: (E, S), probing errors: how often a feature and the label differ in sign, held out.
        test_error: (E, S), the same of f.
        features: (E, S, n, 2), Phi of the training examples.
        v: (E, S, 2).
        real, phantom: (T, S, 2), v before every step and the point v~ at which LSAM takes the step's gradient (v itself
            for rho 0); NaN after the last step of runs that take fewer steps, as their batches are larger.
        labels: (S, n), of the training examples, ±1.
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
        """(S,), mean v~_hard / mean v~_easy: Figure 3, solid. A mean of ratios diverges if v~_easy crosses 0."""
        return _ratio_of_means(self.phantom)

    @property
    def median_ratio(self) -> Tensor:
        """(S,), the median of v~_hard / v~_easy over the steps."""
        return (self.phantom[..., 1] / self.phantom[..., 0]).nanmedian(0).values

    @property
    def rate_factors(self) -> Tensor:
        """(T, S, 2), v~ / v: LSAM's factors on the features' effective learning rates (Figure 4, i)."""
        return self.phantom / self.real

    @property
    def hard_shares(self) -> tuple[Tensor, Tensor]:
        """v_hard / (v_easy + v_hard), (T, S), at the real and at the phantom parameters (Figure 4, ii)."""
        return self.real[..., 1] / self.real.sum(-1), self.phantom[..., 1] / self.phantom.sum(-1)

    def importance(self, phantom: bool = False) -> Tensor:
        """(E, S, n), lambda_i of the training examples at v, or at the phantom of each one's batch (Figure 5).

        The batches have the run's batch size and take the examples in the order of storage.
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
        """(E, S, n, 2), y Phi: the fit of each training example by each feature (Section 6.2, Figure 6)."""
        return self.labels[..., None] * self.features


def _ratio_of_means(path: Tensor) -> Tensor:
    easy, hard = path.nanmean(0).unbind(-1)
    return hard / easy


def joined(paths: list[tuple[list[int], Trajectory]]) -> Trajectory:
    """The runs of several computations in their order; missing steps are NaN."""
    place = torch.tensor([run for runs, _ in paths for run in runs]).argsort()
    steps = max(len(path.real) for _, path in paths)

    def padded(path: Tensor) -> Tensor:
        return F.pad(path, (0, 0, 0, 0, 0, steps - len(path)), value=math.nan)

    def ordered(parts: list[Tensor], dim: int) -> Tensor:
        return torch.cat(parts, dim).index_select(dim, place.to(parts[0].device))

    trajectories = [path for _, path in paths]
    recorded = ("easy_error", "hard_error", "test_error", "features", "v")
    columns = {name: ordered([getattr(path, name) for path in trajectories], 1) for name in recorded}
    for name in ("real", "phantom"):
        columns[name] = ordered([padded(getattr(path, name)) for path in trajectories], 1)
    for name in ("labels", "rho", "batch_size"):
        columns[name] = ordered([getattr(path, name) for path in trajectories], 0)
    parts = zip(*(path.networks for path in trajectories), strict=True)
    networks = Networks(*(ordered(list(part), 0) for part in parts))
    return Trajectory(epochs=trajectories[0].epochs, networks=networks, **columns)
