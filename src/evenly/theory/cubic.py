"""The two-layer cubic network on patch data, trained full-batch without autograd.

    f(x) = sum_j sum_p <w_j, x_p>^3,    L(W) = mean_i log(1 + exp(-m_i)),    m_i = y_i f(x_i)

(Nguyen et al. 2024, eqs 1-4; Deng et al. 2023, eqs 2.2 and 2.3.) The cube is odd, so the label goes into the patches,
u_ip = y_i x_ip, and equal patches need their products with the filters only once. With the distinct patches u_r as the
rows of U, a_r = sum_j <w_j, u_r>^3 and S_ri the number of times that example i holds u_r, less those it holds -u_r,

    m_i = sum_r S_ri a_r
    grad_{w_j} L = -3 sum_r c_r <w_j, u_r>^2 u_r,    c_r = (1/N) sum_i S_ri l_i,    l_i = sigmoid(-m_i)

(Lemma A.2 of Nguyen et al., Lemma D.1 of Deng et al.) In the papers' data examples share their feature patches, so that
of N P patches only P - 2 per example are left to multiply. Without noise a handful are left in all.

>>> distribution = PatchDistribution()
>>> split, features = distribution.sample(2000, seed=0), torch.stack(distribution.directions(0))
>>> data = fold(split.inputs, split.labels)
>>> gd = train(w0, data, features, lr=0.1, steps=600)
>>> sam = train(w0, data, features, lr=0.1, steps=600, rho=0.02)
>>> sam.largest[:, 0]               # max_j <w_j, v_e> at steps 0, 1, ..., 600
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from evenly.errors import EvenlyError
from evenly.settings import at_least, below, checks_options
from evenly.theory.arguments import Count, NotNegative, Positive

SHARED = 0.01
"""A patch is multiplied once for all examples if it occurs more than once and in more than this share of the examples.
At most P / SHARED patches do, which bounds the cost of their N columns."""


@dataclass(frozen=True)
class Folded:
    """Patch data with the labels folded in: everything that the network's loss depends on.

    Attributes:
        shared: (F, d), the patches that many examples share, up to sign.
        counts: (F, n), how often example i has patch f, minus how often it has its negative.
        own: (Q, n, d), each example's other patches times its label, zeros where it has fewer than Q.
        weight: (n,), the share of the N examples that each represents; sums to 1. If no example has patches of its own
            (no noise), equal examples are merged, so that n is a handful.
    """

    shared: Tensor
    counts: Tensor
    own: Tensor
    weight: Tensor


@dataclass(frozen=True)
class Trajectory:
    """The path of training. S is the shape of the batch of networks: (), or (number of networks,).

    Attributes:
        steps: (T,), the iterations t that were recorded: 0, every, 2 every, ..., and the last.
        loss: (T, *S), the logistic loss at W^(t).
        alignments: (T, *S, K, J), <w_j^(t), v_k> for the K features.
        weights: (*S, J, d), at the end.
    """

    steps: Tensor
    loss: Tensor
    alignments: Tensor
    weights: Tensor

    @property
    def largest(self) -> Tensor:
        """max_j <w_j^(t), v_k>, (T, *S, K): G_e and G_d (S_e and S_d under SAM) of Nguyen et al."""
        return self.alignments.amax(-1)


@torch.no_grad()
def fold(patches: Tensor, labels: Tensor) -> Folded:
    """Fold labels into patches and find the patches that examples share, bit for bit up to sign.

    Works for any patch data; only the speed depends on how many patches repeat.

    Args:
        patches: (N, P, d), finite.
        labels: (N,), 0/1 or -1/+1.
    """
    if patches.ndim != 3 or 0 in patches.shape:
        raise EvenlyError(f"patches must have shape (N, P, d), each at least 1, got {tuple(patches.shape)}")
    if labels.shape != patches.shape[:1]:
        raise EvenlyError(f"labels must have shape ({len(patches)},), got {tuple(labels.shape)}")
    if not patches.is_floating_point() or not patches.isfinite().all():
        raise EvenlyError("patches must be finite floating-point numbers; correct or drop the others")
    y = _signs(labels).to(patches)
    N, P, d = patches.shape
    u = (y[:, None, None] * patches).reshape(N * P, d)

    first = (u != 0).to(torch.uint8).argmax(1, keepdim=True)
    sign = u.gather(1, first)[:, 0].sign()
    canonical = u * sign[:, None] + 0.0  # -0.0 + 0.0 is 0.0: equal numbers have equal bits
    _, kind, size = torch.unique(_fingerprint(canonical), return_inverse=True, return_counts=True)
    example = torch.arange(N, device=u.device).repeat_interleave(P)
    member = torch.empty_like(size).scatter_(0, kind, torch.arange(N * P, device=u.device))
    common = size > max(1.0, SHARED * N)
    is_shared = common[kind] & (sign != 0) & (canonical == canonical[member[kind]]).all(1)

    column = common.cumsum(0) - 1
    shared = canonical[member[common]]
    counts = u.new_zeros(len(shared), N)
    counts.index_put_((column[kind[is_shared]], example[is_shared]), sign[is_shared], accumulate=True)
    used = (counts != 0).any(1)  # the zero patch is common if features are absent
    shared, counts = shared[used], counts[used]

    is_own = (~is_shared & (sign != 0)).view(N, P)
    Q = int(is_own.sum(1).max())
    place = is_own.cumsum(1)[is_own] - 1
    own = u.new_zeros(Q, N, d)
    own[place, torch.arange(N, device=u.device).repeat_interleave(is_own.sum(1))] = u[is_own.view(-1)]
    weight = torch.full((N,), 1 / N, dtype=torch.float64, device=u.device)
    if Q == 0 and len(shared):
        counts, size = torch.unique(counts, dim=1, return_counts=True)
        own, weight = own[:, : len(size)], size.double() / N
    return Folded(shared, counts, own, weight)


def _signs(labels: Tensor) -> Tensor:
    values = set(labels.unique().tolist())
    if values <= {0, 1}:
        return 2 * labels.double() - 1
    if values <= {-1, 1}:
        return labels.double()
    raise EvenlyError(f"labels must be 0/1 or -1/+1, got {sorted(values)[:4]}")


def _fingerprint(rows: Tensor) -> Tensor:
    """An integer (R,) for each row (R, d), equal for equal bits and almost surely different for others."""
    bits = rows.double().contiguous().view(torch.int64)
    odd = torch.randint(2**62, (rows.shape[1],), generator=torch.Generator().manual_seed(0)).to(rows.device) * 2 + 1
    # the shift moves the high bits down: numbers of few digits end in zeros, which a product would not spread
    return ((bits ^ (bits >> 29)) * odd).sum(1)


class _Pass:
    """Loss and gradient of S networks of J filters at w (S, J, d), with memory that is reused for the products."""

    def __init__(self, data: Folded, w: Tensor) -> None:
        S, J, d = w.shape
        Q, n, _ = data.own.shape
        self.u = torch.cat([data.own.reshape(Q * n, d), data.shared]).to(w)  # (R, d)
        self.columns = self.u.T.contiguous()
        self.counts, self.examples = data.counts.to(w), data.counts.T.contiguous().to(w)
        # usually all examples have the same weight, which then enters the gradient as one number
        self.equal_weight = float(data.weight[0]) if bool((data.weight == data.weight[0]).all()) else None
        self.weight = data.weight.to(w)
        self.z, self.square = w.new_empty(2, S, J, len(self.u))
        self.a, self.c = w.new_empty(2, S, len(self.u))
        self.own_a, self.shared_a = self.a[:, : Q * n].view(S, Q, n), self.a[:, Q * n :]
        self.own_c, self.shared_c = self.c[:, : Q * n].view(S, Q, n), self.c[:, Q * n :]
        self.gradient = torch.empty_like(w)
        self.flat = [t.view(S * J, -1) for t in (self.z, self.square, self.gradient)]

    def __call__(self, w: Tensor, with_loss: bool = False) -> tuple[Tensor | None, Tensor]:
        """The loss (S,), if `with_loss`, and the gradient (S, J, d), which the next call overwrites."""
        z, square, gradient = self.flat
        torch.mm(w.view(len(z), -1), self.columns, out=z)
        torch.mul(z, z, out=square)
        torch.sum(self.z.mul_(self.square), 1, out=self.a)
        own = self.own_a[:, 0] if self.own_a.shape[1] == 1 else self.own_a.sum(1)
        margin = torch.addmm(own, self.shared_a, self.counts)
        loss = -F.logsigmoid(margin) @ self.weight if with_loss else None
        share = margin.neg_().sigmoid_()  # l_i, or l_i / N if examples have different weights
        if self.equal_weight is None:
            share.mul_(self.weight)
        self.own_c.copy_(share[:, None])
        torch.mm(share, self.examples, out=self.shared_c)
        self.square.mul_(self.c[:, None])
        torch.addmm(gradient, square, self.u, beta=0, alpha=-3 * (self.equal_weight or 1.0), out=gradient)
        return loss, self.gradient


@torch.no_grad()
def gradient(w: Tensor, data: Folded) -> tuple[Tensor, Tensor]:
    """The loss and its gradient (Lemma A.2) at w: (J, d), or (S, J, d) for S networks; shapes () and w's, or (S,)."""
    w = _checked(w, data)
    networks = w.reshape(-1, *w.shape[-2:])
    loss, g = _Pass(data, networks)(networks, with_loss=True)
    assert loss is not None
    return loss.view(w.shape[:-2]), g.view(w.shape)


@torch.no_grad()
def margins(w: Tensor, data: Folded) -> Tensor:
    """m_i = y_i f(x_i), (n,), at w (J, d); l_i of eq. 13 is sigmoid(-m_i)."""
    w = _checked(w, data)
    own, shared = (((patches.to(w) @ w.mT) ** 3).sum(-1) for patches in (data.own, data.shared))
    return own.sum(0) + shared @ data.counts.to(w)


@torch.no_grad()
@checks_options
def perturbed(w: Tensor, data: Folded, rho: NotNegative) -> Tensor:
    """SAM's w_eps = w + rho grad L / ||grad L||_F, (J, d): eq. 33 of Nguyen et al."""
    _, g = gradient(w, data)
    moved: Tensor = w + rho * g / g.norm()
    return moved


@torch.no_grad()
def noise_alignments(w: Tensor, data: Folded) -> Tensor:
    """|<w_j, xi_i>|, (Q, n, J): Lemmas B.4 and B.9 of Nguyen et al. bound them. xi are the patches that are not shared.

    For SAM's lemma give the weights of :func:`perturbed`.
    """
    w = _checked(w, data)
    return (data.own.to(w) @ w.mT).abs()


@torch.no_grad()
def orthogonal_noise(data: Folded, features: Tensor) -> Folded:
    """The same data with each example's own patches projected off orthonormal features (K, d), as the analyses assume.

    In a sample from `PatchDistribution` the noise has components along the features.
    """
    v = features.to(data.own)
    return replace(data, own=data.own - data.own @ v.T @ v)


@checks_options
@torch.no_grad()
def train(
    w0: Tensor,
    data: Folded,
    features: Tensor,
    *,
    lr: Positive,
    steps: Annotated[int, at_least(0)],
    rho: NotNegative = 0.0,
    momentum: Annotated[float, at_least(0), below(1)] = 0.0,
    every: Count = 1,
) -> Trajectory:
    """Full-batch gradient descent (eq. 3), or SAM with rho > 0 (eq. 4), from w0; in w0's precision and on its device.

    Args:
        w0: (J, d), or (S, J, d) for S networks at once, each with its own norm in SAM. Many networks on noise-free data
            cost little more than one; with noise they cost S times one.
        data: from :func:`fold`.
        features: (K, d), unit vectors whose alignments are recorded.
        lr: eta.
        steps: iterations.
        rho: SAM's radius: the gradient is taken at W + rho grad L / ||grad L||_F.
        momentum: torch's: velocity <- momentum velocity + gradient, W <- W - lr velocity.
        every: iterations between recordings.
    """
    w = _checked(w0, data)
    v = features.detach().to(w)
    if v.ndim != 2 or v.shape[1] != w.shape[-1]:
        raise EvenlyError(f"features must have shape (K, {w.shape[-1]}), got {tuple(v.shape)}")
    for k, norm in enumerate(v.norm(dim=1).tolist()):
        if not abs(norm - 1) <= 1e-5:
            raise EvenlyError(f"feature {k} must be a unit vector, got norm {norm:.6g}")

    shape = w.shape
    w = w.reshape(-1, *shape[-2:]).clone()
    loss_and_gradient = _Pass(data, w)
    velocity = torch.zeros_like(w) if momentum else None
    times, losses, alignments = [], [], []
    for t in range(steps + 1):
        loss, g = loss_and_gradient(w, with_loss=t % every == 0 or t == steps)
        if loss is not None:
            if not w.isfinite().all():
                raise EvenlyError(f"the weights are not finite at step {t}; train with an lr below {lr:g}")
            times.append(t)
            losses.append(loss)
            alignments.append(v @ w.mT)
        if t == steps:
            break
        if rho:
            norm = g.flatten(1).norm(dim=1)[:, None, None]
            _, g = loss_and_gradient(torch.where(norm > 0, w + g * (rho / norm), w))
        if velocity is not None:
            g = velocity.mul_(momentum).add_(g)
        w.add_(g, alpha=-lr)
    return Trajectory(
        torch.tensor(times),
        torch.stack(losses).view(-1, *shape[:-2]),
        torch.stack(alignments).view(-1, *shape[:-2], len(v), shape[-2]),
        w.view(shape),
    )


def _checked(w: Tensor, data: Folded) -> Tensor:
    d = data.own.shape[-1]
    if w.ndim not in (2, 3) or w.shape[-1] != d or 0 in w.shape:
        raise EvenlyError(f"weights must have shape (J, {d}), or (S, J, {d}) for S networks, got {tuple(w.shape)}")
    if not w.is_floating_point() or not w.isfinite().all():
        raise EvenlyError("the initial weights must be finite floating-point numbers; draw them again")
    return w.detach()
