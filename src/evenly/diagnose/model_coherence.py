"""Coherence of a model at its weights: `evenly.theory.coherence` of the samples' Gauss-Newton matrices.

    H_i = J_i^T B_i J_i = A_i^T A_i,    J_i = d f(x_i) / d w,    B_i = d^2 loss / d f^2,    A_i = B_i^{1/2} J_i

which is the Hessian of sample i's loss where the model interpolates (zero squared loss) or is linear in its weights,
and positive semi-definite everywhere. The loss of sample i is that of a batch of this sample alone:

    "squared"         1/2 sum_c (f_c - y_c)^2, so that H_i = g_i g_i^T and S_ij = |g_i . g_j| for one output
    "mse"             torch's mean over outputs of (f_c - y_c)^2: the above times 2 / outputs; also nn.MSELoss()
    "cross-entropy"   -log softmax(f)_y; also nn.CrossEntropyLoss()
    "logistic"        log(1 + exp(-±f)), the mean over outputs; also nn.BCEWithLogitsLoss()

>>> found = coherence(model, nn.CrossEntropyLoss(), (x, y))
>>> found.measure, found.largest_sample_eigenvalue, found.largest_hessian_eigenvalue
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from evenly.diagnose.gauss_newton import GaussNewton, Loss, curvature_of, state_of
from evenly.diagnose.samples import samples_of
from evenly.engine.evaluation import in_eval_mode
from evenly.errors import EvenlyError
from evenly.settings import checks_options
from evenly.theory.coherence import Coherence, of_hessians, of_stream
from evenly.theory.factors import MEMORY


@checks_options
def coherence(
    model: nn.Module,
    loss: str | Loss,
    data: Any,
    *,
    ascent: float = 0.0,
    hessian: Literal["gauss-newton", "exact"] = "gauss-newton",
    sketch: int | None = None,
    chunk: int | None = None,
    memory: int = MEMORY,
    seed: int = 0,
) -> Coherence:
    """The coherence matrix S of a model, its measure sigma, and the eigenvalues that stability criteria ask for.

    The model is looked at in eval mode, over its trainable parameters, and left as found: modes, gradients, buffers.

    Args:
        model: any module whose outputs are (N,) or (N, outputs).
        loss: a name above, or torch's loss as a module or function, without weights.
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
    x, y = samples_of(data)
    if chunk is not None and chunk < 1:
        raise EvenlyError(f"chunk {chunk} is no number of samples; give at least 1")
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


def exact_hessians(model: nn.Module, loss: str | Loss, x: Tensor, y: Tensor, chunk: int | None, memory: int) -> Tensor:
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
    shapes = {name: w.shape for name, w in parameters.items()}
    measure = _loss_of(loss)

    def loss_of(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        named = {
            name: part.reshape(shapes[name]) for name, part in zip(sizes, w.split(list(sizes.values())), strict=True)
        }
        return measure(functional_call(model, (named, others), (x[None],)), y[None])

    flat = torch.cat([w.reshape(-1) for w in parameters.values()])
    x = x.to(first) if x.is_floating_point() else x.to(first.device)
    hessian = vmap(jacrev(jacrev(loss_of)), in_dims=(None, 0, 0), chunk_size=chunk or max(1, memory // 64 // (p * p)))
    found: Tensor = hessian(flat, x, y.to(first.device))
    return found


def _loss_of(loss: str | Loss) -> Loss:
    """The loss of a batch of one, from outputs and targets of any shape that agree in number."""
    curvature = curvature_of(loss) if isinstance(loss, str) else None

    def measure(outputs: Tensor, y: Tensor) -> Tensor:
        whole = not y.is_floating_point() and outputs.numel() != y.numel()
        outputs, y = (
            (outputs.reshape(1, -1), y.reshape(1)) if whole else (outputs, y.reshape(outputs.shape).to(outputs))
        )
        if curvature is None:
            return loss(outputs, y)  # type: ignore[operator]
        if curvature.name == "cross-entropy":
            return F.cross_entropy(outputs, y)
        if curvature.name == "logistic":
            return F.binary_cross_entropy_with_logits(outputs, y)
        return 0.5 * (outputs - y).square().sum() if curvature.half else F.mse_loss(outputs, y)

    return measure
