"""Grad-CAM: where in an image a network looks for a class (Selvaraju, Cogswell, Das et al. 2017).

    alpha_k = mean over positions of d logit_c / d A_k,      map = ReLU(sum_k alpha_k A_k)             (eqs 1 and 2)

for the maps A (K, h, w) that the convolutions end in, enlarged to the image and divided by its largest value. The
paper takes the last convolution. In a residual network that is a fragment, a shortcut or a branch before it is added;
here A is what becomes of it before it is pooled: after norms, sums and ReLU.

>>> heat = grad_cam(model, images)                         # (N, H, W) in [0, 1], for the class that is predicted
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from evenly.diagnose.samples import tensor_of
from evenly.engine.evaluation import check_model, in_eval_mode, like_of, logits_of, named_layer
from evenly.engine.losses import predictions, single
from evenly.errors import EvenlyError
from evenly.settings import checks_options

CHUNK = 16
"""Images whose gradients are taken at once."""


@checks_options
def grad_cam(model: nn.Module, images: Any, targets: Any = None, layer: str | None = None) -> Tensor:
    """Heat maps (N, H, W) float32 in [0, 1] on the CPU, each with the largest value 1; 0 where nothing speaks for c.

    They are of the model in eval mode. The model and its gradients are not changed.

    Args:
        images: (N, C, H, W); uint8 pixels become numbers in [0, 1].
        targets: the class c of each image (N,), or one for all; by default the predicted one. For a single logit
            class 1 is the logit and class 0 its negative.
        layer: the name of a module that gives maps (N, K, h, w). Without it, the last maps of the resolution of the
            last convolution, of those with more than one position, that the logits depend on.
    """
    check_model(model)
    x = tensor_of(images, "images", "(N, C, H, W)")
    if x.ndim != 4 or not len(x):
        raise EvenlyError(f"images have shape {tuple(x.shape)}; give (N, C, H, W)")
    x = x.float() / 255 if x.dtype == torch.uint8 else x
    like = like_of(model)
    wanted = None if targets is None else _targets(targets, len(x))
    named = None if layer is None else named_layer(model, layer)
    with in_eval_mode(model):
        parts = [
            _heat(model, each.to(like), None if wanted is None else wanted[start : start + CHUNK], named)
            for start, each in zip(range(0, len(x), CHUNK), x.split(CHUNK), strict=True)
        ]
    return torch.cat(parts)


def _heat(model: nn.Module, x: Tensor, targets: Tensor | None, layer: nn.Module | None) -> Tensor:
    with torch.enable_grad():
        logits, candidates = _last_maps(model, x) if layer is None else _maps_of(model, layer, x)
        score = _score(logits, targets)
    for maps in reversed(candidates):
        gradient = None
        if score.requires_grad and maps.requires_grad:
            (gradient,) = torch.autograd.grad(score, maps, retain_graph=True, allow_unused=True)
        if gradient is not None:
            break
    else:
        raise EvenlyError(f"the logits of {type(model).__name__} do not depend on the layer's maps; name another")
    with torch.no_grad():
        heat = (gradient.mean((2, 3), keepdim=True) * maps).sum(1, keepdim=True).relu().float()
        heat = F.interpolate(heat, size=x.shape[2:], mode="bilinear", align_corners=False)[:, 0]
        largest = heat.amax((1, 2), keepdim=True)
        return torch.where(largest > 0, heat / largest, 0.0).cpu()


class _Maps(TorchFunctionMode):
    """Notes every result (N, K, h, w) since a convolution first gave the h x w that the last one gives."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count, self.size, self.maps = count, torch.Size(), list[Tensor]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.ndim == 4 and len(result) == self.count:
            size = result.shape[2:]
            if func is F.conv2d and size != self.size and (size.numel() > 1 or not self.maps):
                self.size, self.maps = size, []
            if size == self.size:
                self.maps.append(result)
        return result


def _last_maps(model: nn.Module, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The logits, and the maps that the last convolution and what follows it give."""
    with _Maps(len(x)) as mode:
        logits = logits_of(model, x.requires_grad_().clone())
    if not mode.maps:
        raise EvenlyError(
            f"{type(model).__name__} runs no convolution on these images, so it has no maps to weigh; "
            "name a layer that gives (N, K, h, w), or take a network with convolutions"
        )
    return logits, mode.maps


def _maps_of(model: nn.Module, layer: nn.Module, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The logits, and the maps that a layer gives."""
    seen: list[Any] = []

    def cut(_: nn.Module, __: Any, output: Any) -> Any:
        if not isinstance(output, Tensor):
            seen[:] = [output]
            return None
        seen[:] = [output.detach().requires_grad_()]
        return seen[0].clone()  # what comes after may write into it

    hook = layer.register_forward_hook(cut)
    try:
        logits = logits_of(model, x)
    finally:
        hook.remove()
    if not seen:
        raise EvenlyError(f"{type(model).__name__} does not run this layer in a forward pass; name another")
    (maps,) = seen
    if not isinstance(maps, Tensor) or maps.ndim != 4 or len(maps) != len(x):
        shape = tuple(maps.shape) if isinstance(maps, Tensor) else type(maps).__name__
        raise EvenlyError(f"the layer gives {shape} for {len(x)} images, not maps (N, K, h, w); name another")
    return logits, [maps]


def _score(logits: Tensor, targets: Tensor | None) -> Tensor:
    """The sum over images of the logit of each one's class."""
    c = predictions(logits) if targets is None else targets.to(logits.device)
    classes = 2 if single(logits) else logits.shape[1]
    if bool((wrong := (c < 0) | (c >= classes)).any()):
        raise EvenlyError(
            f"target {int(c[wrong][0])} is not among the model's {classes} classes; give 0..{classes - 1}"
        )
    if single(logits):
        return ((2 * c - 1) * logits.reshape(len(c))).sum()
    return logits.gather(1, c[:, None]).sum()


def _targets(targets: Any, count: int) -> Tensor:
    classes = tensor_of(targets, "targets", "one class for each image, or one for all")
    if classes.is_floating_point() or classes.dtype == torch.bool or classes.shape not in ((), (count,)):
        raise EvenlyError(
            f"targets of shape {tuple(classes.shape)} and type {classes.dtype} do not go with {count} images; "
            "give one class for each, or one for all"
        )
    return classes.long().expand(count)
