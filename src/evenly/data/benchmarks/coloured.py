"""Coloured MNIST (Arjovsky, Bottou, Gulrajani and Lopez-Paz 2019, section 5.3): is a digit 0-4 or 5-9?

A quarter of the labels are wrong, in all splits. In training the colour, red or green, predicts the label better than
the digit can. In the test set it mostly predicts the opposite.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from evenly.data.benchmarks.idx import mnist
from evenly.data.benchmarks.places import Folder
from evenly.data.contract import Share, Split
from evenly.data.images.parts import FEW_STROKES, ImageData, Integers, ranks
from evenly.errors import SettingError
from evenly.settings import checks_options

CLASS_NAMES = ("0-4", "5-9")
COLOURS = ("green", "red")


@checks_options
def coloured_mnist(
    folder: Folder = None,
    correlations: Sequence[float] = (0.9, 0.8),
    test_correlation: Share = 0.1,
    noise: Share = 0.25,
    validation: float = 1 / 6,
    n: int | None = None,
    seed: int = 0,
) -> ImageData:
    """MNIST digits 0-4 or 5-9 in red or green, uint8 (N, 3, 28, 28), four groups (label, colour); labels are noisy.

    50,000 training, 10,000 validation and 10,000 test images. Attributes: "half" (the digit's, before the noise),
    "colour", "environment" (of training and validation; the test set's is one more) and "digit". All shares are exact
    to within one image of each stratum, and a wrong label and a colour against the label are independent.

    Args:
        folder: MNIST's own; without it EVENLY_DATA/mnist.
        correlations: for each training environment, all equally large, the share of images whose colour agrees with
            the label. Validation is like training.
        test_correlation: the same share in the test set.
        noise: the share of labels that are flipped, in all splits.
        validation, n: as in `mnist`.
    """
    if not len(correlations) or not all(0 <= share <= 1 for share in correlations):
        requirement = "a share from 0 to 1 for each training environment, e.g. 0.9, 0.8"
        raise SettingError("correlations", correlations, requirement)
    digits = mnist(folder, validation=validation, n=n, seed=seed)
    agreement = np.array([*correlations, test_correlation])
    splits: dict[str, Any] = {}
    for part, split in digits.splits.items():
        digit = split.labels.numpy()
        half = (digit >= 5).astype(np.int64)
        if part == "test":
            environment = np.full(len(digit), len(correlations))
        else:
            environment = np.floor(len(correlations) * ranks(digit, seed, f"environment {part}")).astype(np.int64)
        wrong = _drawn(np.full(len(digit), noise), [environment, half], seed, f"noise {part}")
        label = half ^ wrong
        against = _drawn(1 - agreement[environment], [environment, label, wrong], seed, f"colour {part}")
        colour = label ^ against
        strokes = torch.as_tensor(split.inputs)[:, 0]
        images = torch.zeros(len(digit), 3, *strokes.shape[1:], dtype=torch.uint8)
        images[torch.arange(len(digit)), torch.from_numpy(1 - colour)] = strokes  # channel 0 is red
        attributes = {"half": half, "colour": colour, "environment": environment, "digit": digit}
        splits[part] = Split(images, label, 2 * label + colour, attributes, name=part, places=split.places)
    return ImageData(
        **splits,
        name="coloured-mnist",
        about=f"Is a digit 0-4 or 5-9? {noise:.0%} of the labels are wrong; the colour agrees with the label on "
        f"{' and '.join(f'{share:.0%}' for share in correlations)} of the training images and on "
        f"{test_correlation:.0%} of the test images.",
        class_names=CLASS_NAMES,
        group_names=[f"{half}, {colour}" for half in CLASS_NAMES for colour in COLOURS],
        attribute_names={
            "half": CLASS_NAMES,
            "colour": COLOURS,
            "environment": [*(f"{share:g}" for share in correlations), f"test {test_correlation:g}"],
            "digit": [str(k) for k in range(10)],
        },
        recipe=FEW_STROKES,
        options={
            "correlations": list(correlations), "test_correlation": test_correlation, "noise": noise,
            "validation": validation, "n": n, "seed": seed,
        },
    )  # fmt: skip


def _drawn(shares: np.ndarray[Any, Any], strata: Sequence[Integers], seed: int, purpose: str) -> Integers:
    """(N,) 1 for a share of the examples in every stratum, drawn at random."""
    stratum = np.unique(np.stack(strata), axis=1, return_inverse=True)[1]
    return (ranks(stratum, seed, purpose) < shares).astype(np.int64)
