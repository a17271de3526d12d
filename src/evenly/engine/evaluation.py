"""A network evaluated on a split, in eval mode and left as it was found: its outputs, its features, functions of them.

Two kinds of batches go in. Those of `Batches.in_order` lie on the device throughout, as training keeps them. Those of
`in_chunks` come as they are asked for, in the network's own precision and on its device.

Features are penultimate activations: what the last linear layer is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import is_lazy

from evenly.data.contract import Split
from evenly.data.mapped import MappedRows
from evenly.engine.batches import Batch, Batches
from evenly.engine.losses import single
from evenly.engine.precision import Precision, autocast, whole
from evenly.engine.world import ALONE, World
from evenly.errors import EvenlyError, unknown
from evenly.randomness import derive, isolated

CHUNK = 256
"""Examples that pass through a network at once."""
OUTPUTS = "use its outputs instead (on='probabilities' or 'logits')"
"""The way out of a network without features, for a method."""


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Every module in eval mode inside, and each in its own mode again after."""
    check_model(model)
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def evaluated(model: nn.Module, batches: Iterable[Batch], function: Callable[[Batch], Tensor]) -> Tensor:
    """What a function gives for every batch, one after the other, in eval mode and without gradients."""
    with in_eval_mode(model), torch.no_grad():
        return torch.cat([function(batch) for batch in batches])


def outputs_of(model: nn.Module, batches: Batches) -> Tensor:
    """The model's outputs on every example, in the order of storage."""
    own = evaluated(model, batches.in_order(), lambda batch: _called(model, batches)(batch.x))
    return whole(batches.collected(own))


def features_of(model: nn.Module, batches: Batches) -> Tensor:
    """The features of every example in the order of storage, (N, D) float32 on the CPU."""
    return batches.collected(activations(model, batches.in_order(), _called(model, batches))).float()


def outputs_on(
    model: nn.Module,
    split: Split,
    seed: int = 0,
    precision: Precision = "auto",
    workers: int = 0,
    world: World = ALONE,
) -> Tensor:
    """The network's outputs on a split, in order, on the CPU; on the device that the network is on."""
    with isolated(derive(seed, "outputs", split.name)):
        return outputs_of(model, _whole_split(model, split, precision, workers, world)).cpu()


def features_on(
    model: nn.Module,
    split: Split,
    seed: int = 0,
    precision: Precision = "auto",
    workers: int = 0,
    world: World = ALONE,
) -> Tensor:
    """The network's features on a split (N, D), as `outputs_on`; float32."""
    with isolated(derive(seed, "outputs", split.name)):
        return features_of(model, _whole_split(model, split, precision, workers, world))


def _whole_split(model: nn.Module, split: Split, precision: Precision, workers: int, world: World) -> Batches:
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    return Batches(split, None, device, workers, precision=precision, world=world)


def _called(model: nn.Module, batches: Batches) -> Callable[[Tensor], Any]:
    def call(x: Tensor) -> Any:
        with autocast(batches.precision, batches.device):
            return model(x)

    return call


def activations(
    model: nn.Module,
    batches: Iterable[Batch],
    call: Callable[[Tensor], Any],
    layer: str | None = None,
    instead: str = OUTPUTS,
) -> Tensor:
    """The input of the last `nn.Linear` to run, or the output of a named layer, for every example.

    Found by watching the pass, wherever the layer sits in the network. (N, D) on the CPU, in float32 or more; what
    further dimensions an example's activations have is flattened, or averaged over the positions of a named layer.

    Args:
        call: the forward pass.
        instead: the way out where the network has no linear layer.
    """
    watched = last_linear(model, instead) if layer is None else _output_of(model, layer)
    with watched as seen:

        def rows(batch: Batch) -> Tensor:
            seen.clear()
            call(batch.x)
            count = len(batch)
            each = as_rows(seen, count, model, instead) if layer is None else _layer_rows(seen, count, model, layer)
            return whole(each).cpu()

        return evaluated(model, batches, rows)


@contextmanager
def last_linear(model: nn.Module, instead: str = OUTPUTS) -> Iterator[dict[str, Any]]:
    """Note what the last linear layer of a pass is given under "activations", and which it is under "layer"."""
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


def as_rows(seen: Mapping[str, Any], count: int, model: nn.Module, instead: str = OUTPUTS) -> Tensor:
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


def named_layer(model: nn.Module, name: str) -> nn.Module:
    """The module of a dotted name."""
    modules: dict[str, nn.Module] = dict(model.named_modules())
    if name not in modules:
        raise unknown(f"layer of {type(model).__name__}", str(name), [known for known in modules if known])
    return modules[name]


@contextmanager
def _output_of(model: nn.Module, layer: str) -> Iterator[dict[str, Any]]:
    """Note the output of a named layer under "activations"."""
    seen: dict[str, Any] = {}

    def note(_: nn.Module, __: Any, output: Any) -> None:
        value = output[0] if isinstance(output, tuple | list) and len(output) else output
        seen["activations"] = value.detach().clone() if isinstance(value, Tensor) else value

    hook = named_layer(model, layer).register_forward_hook(note)
    try:
        yield seen
    finally:
        hook.remove()


def _layer_rows(seen: Mapping[str, Any], count: int, model: nn.Module, layer: str) -> Tensor:
    """The output of a named layer as a row per example (B, D), averaged over the positions of an image."""
    if "activations" not in seen:
        raise EvenlyError(
            f"{type(model).__name__} does not run its layer {layer!r} in a forward pass; name a layer that it runs"
        )
    output = seen["activations"]
    if not isinstance(output, Tensor) or output.ndim < 2 or len(output) % count:
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise EvenlyError(
            f"the layer {layer!r} of {type(model).__name__} shows {shape} for {count} examples, not a row for each; "
            "name another layer"
        )
    return output.mean((2, 3)) if output.ndim == 4 and len(output) == count else output.reshape(count, -1)


def in_chunks(model: nn.Module, split: Split, index: Tensor | None = None, size: int = CHUNK) -> Iterator[Batch]:
    """The examples at `index` (M,), all of them where not given, `size` at a time.

    Inputs and labels lie on the model's device, inputs in its precision (uint8 images as numbers in [0, 1]).
    """
    like = like_of(model)
    for part in (torch.arange(len(split)) if index is None else index.cpu()).split(size):
        x = split.inputs[part.to(split.inputs.device)] if isinstance(split.inputs, Tensor) else _read(split, part)
        x = x.float() / 255 if x.dtype == torch.uint8 else x
        x = x.to(like) if x.is_floating_point() else x.to(like.device)
        yield Batch(x, split.labels[part.to(split.labels.device)].to(like.device), part, None)


def _read(split: Split, index: Tensor) -> Tensor:
    if isinstance(split.inputs, MappedRows):
        return split.inputs.at(index)
    try:
        with isolated():
            return torch.stack([torch.as_tensor(item_of(split.inputs, i)[0]) for i in index.tolist()])
    except (TypeError, ValueError, RuntimeError) as error:
        cause = f"{type(error).__name__}: {error}".splitlines()[0]
        raise EvenlyError(
            f"the {split.name} inputs cannot be put in a batch ({cause}); let the Dataset give tensors of one shape"
        ) from error


def item_of(dataset: Any, i: int) -> Any:
    """Example i of a Dataset of the user's own, which can raise anything."""
    try:
        return dataset[i]
    except Exception as error:
        cause = f"{type(error).__name__}: {error}".splitlines()[0]
        raise EvenlyError(f"example {i} of the data cannot be read ({cause}); mend it, or leave it out") from error


def like_of(model: nn.Module) -> Tensor:
    """What a network's inputs are to be like, in type and device: its first parameter that is a real number."""
    parameters = list(model.parameters())
    real = next((each for each in parameters if each.is_floating_point()), None)
    return real if real is not None else torch.empty(0, device=parameters[0].device if parameters else None)


def called(model: nn.Module, x: Tensor, weights: Mapping[str, Tensor] | None = None) -> Any:
    """The model's outputs for a batch, by other weights under their names if given; its buffers stay as they are."""
    state = {**{name: b.clone() for name, b in model.named_buffers()}, **(weights or {})}
    try:
        return functional_call(model, state, (x,))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a network of the user's own can raise anything
        cause = f"{type(error).__name__}: {error}".splitlines()[0]
        raise EvenlyError(
            f"{type(model).__name__} cannot take inputs of shape {tuple(x.shape[1:])} and type {x.dtype} ({cause}); "
            "give the data that it is made for"
        ) from error


def logits_of(
    model: nn.Module, x: Tensor, labels: Tensor | None = None, weights: Mapping[str, Tensor] | None = None
) -> Tensor:
    """The model's logits for a batch, (B, K), (B, 1) or (B,); refused if not finite or not for these labels (B,)."""
    outputs = called(model, x, weights)
    if not isinstance(outputs, Tensor) or outputs.ndim not in (1, 2) or len(outputs) != len(x):
        got = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise EvenlyError(f"{type(model).__name__} gives {got} for {len(x)} examples; it must give logits (N, K)")
    if not bool(outputs.isfinite().all()):
        raise EvenlyError(
            f"{type(model).__name__} gives outputs that are not finite, so neither is its loss; "
            "look at a checkpoint before it diverged, or at its inputs"
        )
    if labels is not None:
        check_labels(outputs, labels)
    return outputs


def check_labels(outputs: Tensor, labels: Tensor) -> None:
    """Refuse labels (N,) that are not among the classes of logits (N, K), (N, 1) or (N,)."""
    classes = 2 if single(outputs) else outputs.shape[1]
    if bool((wrong := (labels < 0) | (labels >= classes)).any()):
        raise EvenlyError(
            f"label {int(labels[wrong][0])} is not among the model's {classes} classes; give labels 0..{classes - 1}"
        )


def check_model(model: Any) -> None:
    """Refuse what is no network, or one without weights."""
    if not isinstance(model, nn.Module):
        raise EvenlyError(f"model is a {type(model).__name__}; give an nn.Module, e.g. run.model")
    weights = (*model.parameters(), *model.buffers())
    if any(is_lazy(each) for each in weights):
        raise EvenlyError(f"{type(model).__name__} has lazy parameters without values; run it on a batch first")
    if any(each.is_meta for each in weights):
        raise EvenlyError(
            f"{type(model).__name__} is on the meta device, where weights have no values; "
            "build it on the cpu and load them"
        )
