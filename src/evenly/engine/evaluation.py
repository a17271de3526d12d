"""A network evaluated on a split, in order and in eval mode: its outputs, and its features.

Features are penultimate activations: what the last linear layer is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from evenly.data.contract import Split
from evenly.engine.batches import Batches
from evenly.engine.precision import Precision, autocast, whole
from evenly.errors import EvenlyError
from evenly.randomness import derive, isolated

OUTPUTS = "use its outputs instead (on='probabilities' or 'logits')"
"""The way out of a network without features, for a method."""


@torch.no_grad()
def outputs_of(model: nn.Module, batches: Batches) -> Tensor:
    """The model's outputs on every example, in the order of storage, in eval mode."""
    was_training = model.training
    model.eval()
    try:
        outputs = []
        for batch in batches.in_order():
            with autocast(batches.precision, batches.device):
                outputs.append(model(batch.x))
        return whole(torch.cat(outputs))
    finally:
        model.train(was_training)


@torch.no_grad()
def features_of(model: nn.Module, batches: Batches) -> Tensor:
    """The input of the last `nn.Linear` that runs in a forward pass, for every example in the order of storage.

    Found by watching the pass, wherever the layer sits in the network; in eval mode. (N, D) float32 on the CPU, what
    further dimensions an example's activations have flattened.
    """
    was_training = model.training
    model.eval()
    try:
        with last_linear(model) as seen:
            parts = []
            for batch in batches.in_order():
                seen.clear()
                with autocast(batches.precision, batches.device):
                    model(batch.x)
                parts.append(as_rows(seen, len(batch), model).float().cpu())
            return torch.cat(parts)
    finally:
        model.train(was_training)


def outputs_on(
    model: nn.Module, split: Split, seed: int = 0, precision: Precision = "auto", workers: int = 0
) -> Tensor:
    """The network's outputs on a split, in order, in eval mode, on the CPU; on the device that the network is on."""
    with isolated(derive(seed, "outputs", split.name)):
        return outputs_of(model, _whole_split(model, split, precision, workers)).cpu()


def features_on(
    model: nn.Module, split: Split, seed: int = 0, precision: Precision = "auto", workers: int = 0
) -> Tensor:
    """The network's penultimate activations on a split (N, D), float32 on the CPU."""
    with isolated(derive(seed, "outputs", split.name)):
        return features_of(model, _whole_split(model, split, precision, workers))


def _whole_split(model: nn.Module, split: Split, precision: Precision, workers: int) -> Batches:
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    return Batches(split, None, device, workers, precision=precision)


@contextmanager
def last_linear(model: nn.Module, instead: str = OUTPUTS) -> Iterator[dict[str, Any]]:
    """Note what the last linear layer of a pass is given under "activations", and which it is under "layer".

    Args:
        instead: the way out where the network has none.
    """
    check_features(model, instead)
    seen: dict[str, Any] = {}

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        value = args[0] if args else kwargs["input"]
        seen.update(activations=value.detach().clone(), layer=module)  # what comes after may write into it

    hooks = [layer.register_forward_pre_hook(note, with_kwargs=True) for layer in linear_layers(model)]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def linear_layers(model: nn.Module) -> list[nn.Linear]:
    """The network's linear layers."""
    return [module for module in model.modules() if isinstance(module, nn.Linear)]


def check_features(model: nn.Module, instead: str = OUTPUTS) -> None:
    """Refuse a network without a linear layer, since it then has no penultimate activations."""
    if not linear_layers(model):
        raise EvenlyError(f"{type(model).__name__} has no linear layer whose input could be its features; {instead}")


def as_rows(seen: dict[str, Any], count: int, model: nn.Module, instead: str = OUTPUTS) -> Tensor:
    """What `last_linear` noted as a row per example (B, D)."""
    if "activations" not in seen:
        raise EvenlyError(
            f"{type(model).__name__} runs none of its linear layers in a forward pass, so it shows no features; "
            f"{instead}"
        )
    activations: Tensor = seen["activations"]
    if activations.ndim < 2 or len(activations) % count:
        raise EvenlyError(
            f"the last linear layer of {type(model).__name__} is given {tuple(activations.shape)} for {count} "
            f"examples, not a row for each; {instead}"
        )
    return activations.reshape(count, -1)
