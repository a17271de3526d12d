"""Augmentations in order, under one name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from evenly.data.augment.crops import random_resized_crop
from evenly.data.augment.geometry import flip, pad_and_crop
from evenly.data.augment.keys import keyed, split
from evenly.data.augment.trivial import trivial_augment
from evenly.errors import EvenlyError, unknown

Step = Callable[[Tensor, Tensor], Tensor]

RECIPES: dict[str, tuple[Step, ...]] = {
    "none": (),
    "basic": (pad_and_crop, flip),
    "resized": (random_resized_crop, flip),
    "trivial": (trivial_augment,),
}


OPTIONS = {"none": (), "basic": ("padding", "p"), "resized": ("scale", "ratio", "p"), "trivial": ()}
"""What can be set of each: pixels of padding, bounds of the box's area and shape, the probability of a flip."""


class Augment:
    """Augmentation of uint8 images (N, C, H, W), each image's a pure function of (seed, epoch, its index).

        Augment("basic")                # zero padding of 4, random crop, flip
        Augment("basic+trivial")        # then TrivialAugment Wide
        Augment("resized:scale=0.7-1")  # boxes of 70% of the area and more
        Augment(["basic", functools.partial(random_resized_crop, size=24)])

    Args:
        recipe: names from RECIPES joined by "+", each perhaps with some of its `OPTIONS`; a function
            ``(images, keys) -> images``; or a sequence of such names and functions. A function takes uint8 to uint8 and
            draws from the int64 keys (N,) alone.
    """

    def __init__(self, recipe: str | Step | Sequence[str | Step] = "basic") -> None:
        self.recipe: str | tuple[str | Step, ...] = (
            recipe if isinstance(recipe, str) else tuple(recipe) if isinstance(recipe, Sequence) else (recipe,)
        )
        self.steps: tuple[Step, ...] = ()
        for part in self.recipe.split("+") if isinstance(self.recipe, str) else self.recipe:
            if callable(part):
                self.steps += (part,)
            elif not isinstance(part, str):
                raise EvenlyError(
                    f"an augmentation must be a name or a function of (images, keys), got a {type(part).__name__}"
                )
            else:
                self.steps += _steps(part)

    def __call__(self, images: Tensor, index: Tensor, epoch: int | Tensor, seed: int | Tensor) -> Tensor:
        """The images of examples `index` (N,) as this epoch sees them; `keyed` says what epoch and seed may be."""
        return self.with_keys(images, keyed(seed, epoch, index))

    def with_keys(self, images: Tensor, keys: Tensor) -> Tensor:
        """The images under given keys (N,): those of `keyed`, or `generated_keys` where no purity is asked for."""
        _check(images, "images are")
        if keys.shape != images.shape[:1]:
            raise EvenlyError(f"got {len(keys)} indices for {len(images)} images; give one for each")
        for position, step in enumerate(self.steps):
            images = step(images, split(keys, position))
            _check(images, f"{_named(step)} returned")
        return images

    def __repr__(self) -> str:
        if isinstance(self.recipe, str):
            return f"Augment({self.recipe!r})"
        return f"Augment([{', '.join(repr(p) if isinstance(p, str) else _named(p) for p in self.recipe)}])"


def _steps(part: str) -> tuple[Step, ...]:
    """The steps of "resized" or "resized:scale=0.7-1:ratio=1-1", whose values are tried at once."""
    name, *given = part.split(":")
    if name not in RECIPES:
        raise unknown("augmentation", name, RECIPES)
    values: dict[str, Any] = {}
    for item in given:
        option, _, text = item.partition("=")
        if option not in OPTIONS[name]:
            raise unknown(f"option of {name}", option, OPTIONS[name])
        try:
            numbers = tuple(float(number) for number in text.split("-"))
        except ValueError:
            numbers = ()
        wanted = 1 if option in ("padding", "p") else 2
        if len(numbers) != wanted:
            form = "a number" if wanted == 1 else "two numbers, as 0.7-1"
            raise EvenlyError(f"{option} of {name} must be {form}, got {text!r}")
        values[option] = numbers if wanted == 2 else numbers[0]
    steps = []
    for step in RECIPES[name]:
        own = {option: value for option, value in values.items() if option in inspect.signature(step).parameters}
        steps.append(functools.partial(step, **own) if own else step)
        if own:
            steps[-1](
                torch.empty(1, 3, 2, 2, dtype=torch.uint8, device="meta"),
                torch.empty(1, dtype=torch.int64, device="meta"),
            )
    return tuple(steps)


def _check(images: Tensor, what: str) -> None:
    if not isinstance(images, Tensor):
        raise EvenlyError(f"{what} a {type(images).__name__}; give a uint8 tensor (N, C, H, W)")
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise EvenlyError(
            f"{what} {str(images.dtype).removeprefix('torch.')} of shape {tuple(images.shape)}; "
            "give uint8 (N, C, H, W), and normalise after augmenting"
        )
    if 0 in images.shape[1:]:
        raise EvenlyError(f"{what} of shape {tuple(images.shape)}, without a pixel; give at least one")


def _named(step: Step) -> str:
    if isinstance(step, functools.partial):
        values = [repr(value) for value in step.args] + [f"{name}={value!r}" for name, value in step.keywords.items()]
        return f"{_named(step.func)}({', '.join(values)})"
    return getattr(step, "__name__", None) or repr(step)
