"""Penultimate activations: what the last linear layer of a network is given."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from evenly.engine.batches import Batches
from evenly.engine.precision import autocast
from evenly.errors import EvenlyError


@torch.no_grad()
def features_of(model: nn.Module, batches: Batches) -> Tensor:
    """The input of the last `nn.Linear` that runs in a forward pass, for every example in the order of storage.

    Found by watching the pass, wherever the layer sits in the network; in eval mode. (N, D) float32 on the CPU, what
    further dimensions an example's activations have flattened.
    """
    seen: dict[str, Tensor] = {}

    def watch(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = args[0] if args else kwargs["input"]
        seen["last"] = given.clone()  # what comes after the layer may write into it

    hooks = [layer.register_forward_pre_hook(watch, with_kwargs=True) for layer in linear_layers(model)]
    was_training = model.training
    model.eval()
    try:
        parts = []
        for batch in batches.in_order():
            seen.clear()
            with autocast(batches.precision, batches.device):
                model(batch.x)
            parts.append(_rows(seen.get("last"), len(batch), model).float().cpu())
        return torch.cat(parts)
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()


def linear_layers(model: nn.Module) -> list[nn.Linear]:
    """The network's linear layers; refused where it has none, since it then has no penultimate activations."""
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise EvenlyError(
            f"{type(model).__name__} has no linear layer whose input could be its features; "
            "use its outputs instead (on='probabilities' or 'logits')"
        )
    return layers


def _rows(activations: Tensor | None, count: int, model: nn.Module) -> Tensor:
    """Activations as a row per example (B, D)."""
    if activations is None:
        raise EvenlyError(
            f"{type(model).__name__} runs none of its linear layers in a forward pass, so it shows no features; "
            "use its outputs instead (on='probabilities' or 'logits')"
        )
    if activations.ndim < 2 or len(activations) % count:
        raise EvenlyError(
            f"the last linear layer of {type(model).__name__} is given {tuple(activations.shape)} for {count} "
            "examples, not a row for each; use its outputs instead (on='probabilities' or 'logits')"
        )
    return activations.reshape(count, -1)
