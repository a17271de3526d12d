"""Coherence of a model at its weights: `evenly.theory.coherence` of the samples' Gauss-Newton matrices.

    H_i = J_i^T B_i J_i = A_i^T A_i,    J_i = d f(x_i) / d w,    B_i = d^2 loss / d f^2,    A_i = B_i^{1/2} J_i

which is the Hessian of sample i's loss where the model interpolates (zero squared loss) or is linear in its weights,
and positive semi-definite everywhere. Losses and their names are in `evenly.diagnose.losses`; for "squared" and one
output H_i = g_i g_i^T and S_ij = |g_i . g_j|.

>>> result = coherence(model, nn.CrossEntropyLoss(), (x, y))
>>> result.measure, result.largest_sample_eigenvalue, result.largest_hessian_eigenvalue
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from evenly.diagnose.gauss_newton import GaussNewton, state_of
from evenly.diagnose.losses import Loss, SummedLoss, curvature_of
from evenly.diagnose.samples import samples_of
from evenly.engine.evaluation import check_model, in_eval_mode
from evenly.errors import EvenlyError
from evenly.settings import at_least, checks_options
from evenly.theory.arguments import NotNegative
from evenly.theory.coherence import Coherence, of_hessians, of_stream
from evenly.theory.factors import MEMORY


@checks_options
def coherence(
    model: nn.Module,
    loss: str | Loss,
    data: Any,
    *,
    ascent: NotNegative = 0.0,
    hessian: Literal["gauss-newton", "exact"] = "gauss-newton",
    sketch: Annotated[int | None, at_least(2)] = None,
    chunk: Annotated[int | None, at_least(1)] = None,
    memory: Annotated[int, at_least(1)] = MEMORY,
    seed: int = 0,
) -> Coherence:
    """The coherence matrix S of a model, its measure sigma, and the eigenvalues that stability criteria ask for.

    They are of the model in eval mode, over its trainable parameters. The model is not changed.

    Args:
        model: any module whose outputs are (N,) or (N, outputs).
        loss: 'squared', 'mse', 'cross-entropy' or 'logistic', or torch's loss as a module or function, without weights.
        data: ``(x, y)``, an evenly Data (its training split) or Split, a DataLoader or a Dataset of ``(x, y)``.
        ascent: c = rho/alpha: the SAM version, with alpha the frozen gradient norm; 0 for SGD.
        hessian: "gauss-newton", or "exact" for the samples' true Hessians by any loss, p x p each, so for few
            parameters; refused where one is not positive semi-definite.
        sketch: project the parameters at random to so many numbers, in one pass over the data; the result then has an
            ``error_bound`` (see :func:`evenly.theory.coherence.sketched`). A few thousand is a good start.
        chunk: how many samples' gradients are taken at once; by default as many as an eighth of `memory` holds. 1 goes
            without ``torch.vmap``, for models that it cannot batch.
        memory: bytes of gradients held at a time; they are taken again where they do not all fit. The n x n matrix
            comes on top.
        seed: of the sketch; the global random state is not touched.
    """
    check_model(model)
    x, y = samples_of(data)
    if not any(w.requires_grad for w in model.parameters()):
        raise EvenlyError(
            f"{type(model).__name__} has no trainable parameter; set requires_grad where the Hessian is wanted"
        )
    for name, layer in model.named_modules():
        if isinstance(layer, _BatchNorm) and layer.running_mean is None:
            raise EvenlyError(
                f"{name or type(layer).__name__} normalises by the batch's own statistics, so no sample has its own "
                "gradient; build it with track_running_stats=True"
            )
    with in_eval_mode(model), torch.no_grad():
        if hessian == "exact":
            if sketch is not None:
                raise EvenlyError(f"sketch {sketch} needs factors; leave it out or take hessian='gauss-newton'")
            return of_hessians(exact_hessians(model, loss, x, y, chunk, memory), ascent=ascent)
        factors = GaussNewton(model, curvature_of(loss), x, y, chunk=chunk, memory=memory)
        return of_stream(factors, ascent=ascent, sketch=sketch, memory=memory, seed=seed)


def exact_hessians(
    model: nn.Module, loss: str | Loss, x: Tensor, y: Tensor, chunk: int | None = None, memory: int = MEMORY
) -> Tensor:
    """The Hessians (n, p, p) of the samples' losses."""
    parameters, others = state_of(model)
    sizes = {name: w.numel() for name, w in parameters.items()}
    n, p = len(x), sum(sizes.values())
    first = next(iter(parameters.values()))
    if n * p * p * first.dtype.itemsize > memory:
        raise EvenlyError(
            f"{n} exact Hessians of {p} x {p} take {n * p * p * first.dtype.itemsize / 2**30:.1f} GiB; take fewer "
            "samples, hessian='gauss-newton' or more memory"
        )
    loss_of_batch = SummedLoss(loss)

    def loss_of(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        parts = zip(parameters.items(), w.split(list(sizes.values())), strict=True)
        weights = {name: part.reshape(own.shape) for (name, own), part in parts}
        return loss_of_batch(functional_call(model, (weights, others), (x[None],)), y[None])

    flat = torch.cat([w.reshape(-1) for w in parameters.values()])
    x = x.to(first) if x.is_floating_point() else x.to(first.device)
    hessian = vmap(jacrev(jacrev(loss_of)), in_dims=(None, 0, 0), chunk_size=chunk or max(1, memory // 64 // (p * p)))
    hessians: Tensor = hessian(flat, x, y.to(first.device))
    return hessians
