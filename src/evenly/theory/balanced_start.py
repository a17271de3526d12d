"""A group-balanced start and the noise: Lemma 3.1 and Lemmas D.1, G.3, G.4 of Deng et al. 2023 ("PDE"), as functions.

On data without noise an example is known by whether its spurious feature agrees with its label. With the margins m_c =
beta_c^3 sum_j <w_j, v_c>^3 and m_s = beta_s^3 sum_j <w_j, v_s>^3, its derivative is l = sigmoid(-m_c - m_s) if it does,
sigmoid(-m_c + m_s) if not. The spurious alignments grow with the difference of the two sums of derivatives (eq. D.6):

    pull = alpha sigmoid(-m_c - m_s) - (1 - alpha) sigmoid(-m_c + m_s)

>>> spurious_pull(m_c, m_s, alpha=0.5)          # 0 where m_s = 0; of the other sign than m_s elsewhere
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from evenly.settings import checks_options
from evenly.theory.arguments import Count, Positive, Share

__all__ = ["Parts", "balanced_pull_limit", "largest_noise_alignment", "noise_alignment_order", "spurious_pull"]


@checks_options
def spurious_pull(core_margin: Tensor, spurious_margin: Tensor, alpha: Share) -> Tensor:
    """(1/N) (sum over S_1 of l_i - sum over S_2 of l_i) without noise: eq. D.6, for margins m_c and m_s of any shape.

    Lemma 3.1 says that it is 0 at alpha = 1/2. It is 0 exactly where m_s = 0, as at W = 0. Elsewhere it has the sign of
    -m_s: the balanced set does not ignore the spurious feature, it takes back what was there at the start.
    """
    agree, oppose = torch.sigmoid(-core_margin - spurious_margin), torch.sigmoid(spurious_margin - core_margin)
    return alpha * agree - (1 - alpha) * oppose


def balanced_pull_limit(spurious_margin: Tensor) -> Tensor:
    """|m_s| / 4, which the pull of a balanced set cannot exceed: the sigmoid's slope is at most 1/4.

    It is of third order in the weights, where an unbalanced set has (2 alpha - 1)/2 at once.
    """
    return spurious_margin.abs() / 4


class Parts:
    """The patches of spurious patch data (N, P, d), P = 3, by what they are, whatever their order.

    Attributes:
        core, spurious, noise: (N, d), multiplied by the label y = ±1.
        agrees: (N,), whether the spurious feature points to the label: S_1, else S_2.
        features: (2, d), v_s and v_c, orthonormal in float64.
    """

    def __init__(self, inputs: Tensor, labels: Tensor, v_spurious: Tensor, v_core: Tensor, orthogonal: bool = False):
        """Args: orthogonal, whether to take the features out of the noise, as the proofs have it."""
        x = inputs.double()
        v_s, v_c = torch.linalg.qr(torch.stack([v_spurious, v_core], 1).double()).Q.T
        v_s, v_c = (v * (v @ given.double()).sign() for v, given in ((v_s, v_spurious), (v_c, v_core)))
        y = (2 * labels - 1).double()[:, None]
        spurious, core = (self._place(x, v) for v in (v_s, v_c))
        rows = torch.arange(len(x))
        self.spurious, self.core = y * x[rows, spurious], y * x[rows, core]
        self.noise = y * x[rows, 3 - spurious - core]
        along_s, along_c = self.spurious @ v_s, self.core @ v_c
        if orthogonal:  # to the last bit: what is left of one feature in another would grow with it
            self.spurious, self.core = (
                (along.sign() * along.abs().median())[:, None] * v for along, v in ((along_s, v_s), (along_c, v_c))
            )
            for v in (v_s, v_c):
                self.noise = self.noise - (self.noise @ v)[:, None] * v
        self.agrees, self.features = along_s > 0, torch.stack([v_s, v_c])

    @staticmethod
    def _place(x: Tensor, v: Tensor) -> Tensor:
        """(N,) the patch that has nothing but a multiple of v, which noise never is."""
        along = x @ v
        beside = (x - along[..., None] * v).norm(dim=2)
        place: Tensor = (beside - along.abs()).argmin(1)
        return place

    @property
    def patches(self) -> Tensor:
        """(N, 3, d), core, spurious, noise, times the label."""
        return torch.stack([self.core, self.spurious, self.noise], 1)

    def derivatives(self, w: Tensor) -> Tensor:
        """l_i (N,) = sigmoid(-y_i f(x_i)) of a network w (J, d): eq. D.8."""
        return torch.sigmoid(-(self.patches @ w.T).pow(3).sum((1, 2)))


def largest_noise_alignment(w: Tensor, noise: Tensor) -> float:
    """max over i and j of |<w_j, xi_i>| for filters w (J, d) and noise (N, d): what Lemma G.3 bounds."""
    return float((noise @ w.T).abs().max())


@checks_options
def noise_alignment_order(sigma_0: Positive, sigma_p: Positive, examples: Count, filters: Count) -> float:
    """What the largest of N J alignments with noise is at the start: sigma_0 sigma_p sqrt(2 log(2 N J)).

    The order of Lemma G.3, sigma_0 sigma sqrt(d) with sigma_p = sigma sqrt(d), and the logarithm that its O hides: each
    alignment is about N(0, sigma_0^2 sigma_p^2).
    """
    return sigma_0 * sigma_p * math.sqrt(2 * math.log(2 * examples * filters))
