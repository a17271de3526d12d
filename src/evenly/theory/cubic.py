"""The two-layer cubic network on patch data, trained full-batch without autograd.

    f(x) = sum_j sum_p <w_j, x_p>^3,    L(W) = mean_i log(1 + exp(-m_i)),    m_i = y_i f(x_i)

(Nguyen et al. 2024, eqs 1-4; Deng et al. 2023, eqs 2.2 and 2.3.) The cube is odd, so the label goes into the patches,
u_ip = y_i x_ip, and equal patches need their products with the filters only once. With the distinct patches u_r as the
rows of U, a_r = sum_j <w_j, u_r>^3 and S_ri the number of times that example i holds u_r, less those it holds -u_r,

    m_i = sum_r S_ri a_r
    grad_{w_j} L = -3 sum_r c_r <w_j, u_r>^2 u_r,    c_r = (1/N) sum_i S_ri l_i,    l_i = sigmoid(-m_i)

(Lemma A.2 of Nguyen et al., Lemma D.1 of Deng et al.) On the papers' data every example shares its feature patches with
the others, so that of N P patches P - 2 per example are left to multiply; without noise a handful are left in all.

>>> law = PatchDistribution()
>>> split, features = law.sample(2000, seed=0), torch.stack(law.directions(0))
>>> data = fold(split.inputs, split.labels)
>>> gd = train(w0, data, features, lr=0.1, steps=600)
>>> sam = train(w0, data, features, lr=0.1, steps=600, rho=0.02)
>>> sam.largest[:, 0]               # max_j <w_j, v_e> at steps 0, 1, ..., 600
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from evenly.errors import EvenlyError

SHARED = 0.01
"""A patch is multiplied once for all examples if its occurrences number more than this share of the examples (and more
than one): at most P / SHARED patches can, which bounds what their N columns cost."""


@dataclass(frozen=True)
class Folded:
    """Patch data with the labels folded in: what of it the network's loss depends on.

    Attributes:
        shared: (F, d), the patches that many examples hold, up to sign.
        counts: (F, n), how often example i holds patch f, minus how often it holds its negative.
        own: (Q, n, d), each example's other patches times its label, zeros where it has fewer than Q.
        weight: (n,), the share of the N examples that each stands for; sums to 1. Where no example has patches of its
            own (no noise), equal examples are one, so that n is a handful.
    """

    shared: Tensor
    counts: Tensor
    own: Tensor
    weight: Tensor


@dataclass(frozen=True)
class Trajectory:
    """What training passed through. S is the shape of the batch of networks: nothing, or (number of networks,).

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

    Any patch data will do: what repeats nowhere is kept as it is, and only the speed depends on how much repeats.

    Args:
        patches: (N, P, d), finite.
        labels: (N,), 0/1 or -1/+1.
    """
    if patches.ndim != 3 or 0 in patches.shape:
        raise EvenlyError(f"patches have shape {tuple(patches.shape)}; give (N, P, d) with at least 1 of each")
    if labels.shape != patches.shape[:1]:
        raise EvenlyError(f"labels have shape {tuple(labels.shape)} for {len(patches)} examples; give one each")
    if not patches.is_floating_point() or not patches.isfinite().all():
        raise EvenlyError("patches hold entries that are not finite floating-point numbers; mend or drop those")
    y = _signs(labels).to(patches)
    N, P, d = patches.shape
    u = (y[:, None, None] * patches).reshape(N * P, d)

    first = (u != 0).to(torch.uint8).argmax(1, keepdim=True)
    sign = u.gather(1, first)[:, 0].sign()
    upright = u * sign[:, None] + 0.0  # -0.0 + 0.0 is 0.0: equal numbers have equal bits
    _, kind, size = torch.unique(_fingerprint(upright), return_inverse=True, return_counts=True)
    example = torch.arange(N, device=u.device).repeat_interleave(P)
    member = torch.empty_like(size).scatter_(0, kind, torch.arange(N * P, device=u.device))
    common = size > max(1.0, SHARED * N)
    is_shared = common[kind] & (sign != 0) & (upright == upright[member[kind]]).all(1)

    column = common.cumsum(0) - 1
    shared = upright[member[common]]
    counts = u.new_zeros(len(shared), N)
    counts.index_put_((column[kind[is_shared]], example[is_shared]), sign[is_shared], accumulate=True)
    used = (counts != 0).any(1)  # the zero patch is common where features are absent
    shared, counts = shared[used], counts[used]

    left = (~is_shared & (sign != 0)).view(N, P)
    Q = int(left.sum(1).max())
    place = left.cumsum(1)[left] - 1
    own = u.new_zeros(Q, N, d)
    own[place, torch.arange(N, device=u.device).repeat_interleave(left.sum(1))] = u[left.view(-1)]
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
    raise EvenlyError(f"labels have the values {sorted(values)[:4]}; give 0/1 or -1/+1")


def _fingerprint(rows: Tensor) -> Tensor:
    """An integer (R,) for each row (R, d), equal for equal bits and almost surely different for others."""
    bits = rows.double().contiguous().view(torch.int64)
    odd = torch.randint(2**62, (rows.shape[1],), generator=torch.Generator().manual_seed(0)).to(rows.device) * 2 + 1
    # the shift brings the high bits down: numbers of few digits end in zeros, which no product would spread
    return ((bits ^ (bits >> 29)) * odd).sum(1)


class _Pass:
    """Loss and gradient of S networks of J filters at w (S, J, d), the products in memory that is used again."""

    def __init__(self, data: Folded, w: Tensor) -> None:
        S, J, d = w.shape
        Q, n, _ = data.own.shape
        self.u = torch.cat([data.own.reshape(Q * n, d), data.shared]).to(w)  # (R, d)
        self.columns = self.u.T.contiguous()
        self.counts, self.examples = data.counts.to(w), data.counts.T.contiguous().to(w)
        # as a rule all examples weigh the same, and their weight then goes into the gradient as one number
        self.even = float(data.weight[0]) if bool((data.weight == data.weight[0]).all()) else None
        self.weight = data.weight.to(w)
        self.z, self.square = w.new_empty(2, S, J, len(self.u))
        self.a, self.c = w.new_empty(2, S, len(self.u))
        self.own_a, self.shared_a = self.a[:, : Q * n].view(S, Q, n), self.a[:, Q * n :]
        self.own_c, self.shared_c = self.c[:, : Q * n].view(S, Q, n), self.c[:, Q * n :]
        self.gradient = torch.empty_like(w)
        self.flat = [t.view(S * J, -1) for t in (self.z, self.square, self.gradient)]

    def __call__(self, w: Tensor, with_loss: bool = False) -> tuple[Tensor | None, Tensor]:
        """The loss (S,) if asked for, and the gradient (S, J, d), which the next call overwrites."""
        z, square, gradient = self.flat
        torch.mm(w.view(len(z), -1), self.columns, out=z)
        torch.mul(z, z, out=square)
        torch.sum(self.z.mul_(self.square), 1, out=self.a)
        own = self.own_a[:, 0] if self.own_a.shape[1] == 1 else self.own_a.sum(1)
        margin = torch.addmm(own, self.shared_a, self.counts)
        loss = -F.logsigmoid(margin) @ self.weight if with_loss else None
        share = margin.neg_().sigmoid_()  # l_i, or l_i / N where examples weigh differently
        if self.even is None:
            share.mul_(self.weight)
        self.own_c.copy_(share[:, None])
        torch.mm(share, self.examples, out=self.shared_c)
        self.square.mul_(self.c[:, None])
        torch.addmm(gradient, square, self.u, beta=0, alpha=-3 * (self.even or 1.0), out=gradient)
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
def train(
    w0: Tensor,
    data: Folded,
    features: Tensor,
    *,
    lr: float,
    steps: int,
    rho: float = 0.0,
    momentum: float = 0.0,
    every: int = 1,
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
        every: record every so many iterations.
    """
    w = _checked(w0, data)
    v = features.detach().to(w)
    if v.ndim != 2 or v.shape[1] != w.shape[-1]:
        raise EvenlyError(f"features have shape {tuple(v.shape)}; give (K, {w.shape[-1]}), a row for each")
    off = [k for k, norm in enumerate(v.norm(dim=1).tolist()) if not abs(norm - 1) <= 1e-5]
    if off:
        raise EvenlyError(f"feature {off[0]} has norm {float(v[off[0]].norm()):.6g}; give unit vectors")
    if not 0 < lr < math.inf:
        raise EvenlyError(f"lr {lr} does not descend; give a positive number")
    if not 0 <= rho < math.inf:
        raise EvenlyError(f"rho {rho} is no radius; give a number from 0, which is plain gradient descent")
    if not 0 <= momentum < 1:
        raise EvenlyError(f"momentum {momentum} is not in [0, 1); give 0 for none")
    if steps < 0 or every < 1:
        raise EvenlyError(f"steps {steps} and every {every} cannot be counted; give steps from 0 and every from 1")

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
        raise EvenlyError(f"weights have shape {tuple(w.shape)}; give (J, {d}), or (S, J, {d}) for S networks")
    if not w.is_floating_point() or not w.isfinite().all():
        raise EvenlyError("the weights given are not all finite floating-point numbers; draw them anew")
    return w.detach()
