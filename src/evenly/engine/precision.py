"""In which numbers a network computes: bfloat16 where that is fast and harmless, float32 elsewhere or on request."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor

from evenly.data.contract import Split

Precision = Literal["auto", "bf16", "float32"]
"""auto: bf16 for images on a GPU that has it, float32 elsewhere.
bf16: products and convolutions in bfloat16, everything else and the weights in float32.
float32: everything in float32, as torch has it: on a GPU its default rounds what convolutions read to TF32."""


def resolved(precision: str, split: Split, device: torch.device) -> Literal["bf16", "float32"]:
    """What "auto" means for these inputs on this device: images are uint8, and only they are known to bear it."""
    if precision != "auto":
        return "bf16" if precision == "bf16" else "float32"
    fast = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if fast and _are_images(split) else "float32"


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """A block that computes in this precision."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()


def whole(outputs: Tensor) -> Tensor:
    """Outputs in float32 where they are shorter, for losses and clusters."""
    return outputs.float() if outputs.dtype in (torch.bfloat16, torch.float16) else outputs


def _are_images(split: Split) -> bool:
    if isinstance(split.inputs, Tensor):
        return split.inputs.dtype == torch.uint8 and split.inputs.ndim == 4
    first = torch.as_tensor(split.inputs[0][0])
    return first.dtype == torch.uint8 and first.ndim == 3
