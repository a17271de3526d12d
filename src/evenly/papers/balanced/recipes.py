"""Networks, recipes and the weighted test error of the experiments on images (Appendix B)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from evenly.data.augment import Augment
from evenly.data.benchmarks.composites import RECIPE
from evenly.data.images.parts import GROUPED
from evenly.engine.accuracy import group_accuracy
from evenly.models import find
from evenly.papers.claims import claim
from evenly.papers.nodes import Stored, computed
from evenly.runs.verdict import Check, Judgement

SHAPE = (3, 64, 32)
"""Of a composite image: 32 x 32 above 32 x 32."""
COMPOSITE_RECIPE = {
    "epochs": 20, "batch_size": 100, "momentum": 0.9, "weight_decay": 0.0, "schedule": "cosine", "augment": "none",
    "normalise": "mean",
}  # fmt: skip
GROUPED_RECIPE = {"batch_size": 128, "momentum": 0.9, "weight_decay": 1e-4, "schedule": "cosine", "model": "resnet18"}


def composite_network(seed: int) -> dict[str, Any]:
    """convnet_3 against the layers of Appendix B written out, on random images; the layers in words."""
    torch.manual_seed(seed)
    ours = find("convnet_3")[1](SHAPE, 2).double()
    printed = nn.Sequential(
        nn.Conv2d(3, 32, kernel_size=5, stride=2, padding=2), nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(64, 128, kernel_size=3, stride=2, padding=1), nn.ReLU(), nn.ReLU(),
        nn.Flatten(), nn.Linear(128 * 8 * 4, 2),
    ).double()  # fmt: skip
    with torch.no_grad():
        for a, b in zip(printed.parameters(), ours.parameters(), strict=True):
            a.copy_(b)
        x = torch.randn(4, *SHAPE, dtype=torch.float64)
        gap = float((printed(x) - ours(x)).abs().max())
    return {"gap": gap, "recipe": {name: RECIPE[name] for name in COMPOSITE_RECIPE}}


@claim(
    "balanced/appB-composites",
    where="Appendix B, CIFAR-MNIST and FMNIST-MNIST",
    states="Three convolutions and a linear layer; 20 epochs, batches of 100, momentum 0.9, a cosine schedule, no "
    "weight decay, no augmentation, the mean pixel subtracted. lr is one of 0.01, 0.05 and 0.1, rho one of seven from "
    "0 to 0.2.",
    rule="On random images the network differs from the printed layers by less than 1e-12. The recipe has these "
    "values. The stored runs have them too, and cover the whole grid.",
    choices=("a mean for each colour: the paper says the mean pixel value",),
    uses=lambda scale: {
        "found": computed(composite_network, seed=0),
        "stored": [Stored("cifar-mnist.json"), Stored("fashion-mnist-mnist.json")],
    },
)
def appendix_b_composites(found: Mapping[str, Any], stored: Any) -> Judgement:
    checks = [Check(f"the network is that of Appendix B (apart by {found['gap']:.0e})", found["gap"] < 1e-12)]
    checks += [
        Check(f"the recipe's {name} is {found['recipe'][name]}", found["recipe"][name] == value)
        for name, value in COMPOSITE_RECIPE.items()
    ]
    rates, radii = {0.01, 0.05, 0.1}, {0.01, 0.03, 0.05, 0.07, 0.1, 0.2}
    for name, content in zip(("CIFAR-MNIST", "FMNIST-MNIST"), stored, strict=True):
        same = all(content["in_common"][key] == value for key, value in COMPOSITE_RECIPE.items())
        tried = {tuple(row["arm"]["swept"].values()) for row in content["rows"] if row["label"] in ("SGD", "SAM")}
        tried |= {tuple(each["settings"].values()) for each in content["diverged"]}
        expected = {(lr,) for lr in rates} | {(lr, rho) for lr in rates for rho in radii}
        checks += [
            Check(f"{name}: the stored runs have these settings", same),
            Check(f"{name}: all {len(expected)} settings of the grid were tried", tried >= expected),
        ]
    return Judgement(checks)


def grouped_recipe() -> dict[str, Any]:
    """Values of the recipe of photographs with groups, and whether the paper's augmentation has a name."""
    augment = Augment("resized:scale=0.7-1:ratio=0.75-1.3333333333333333")
    images = torch.randint(0, 256, (4, 3, 96, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    shape = list(augment(images, torch.arange(4), 0, 0).shape)
    return {**{name: GROUPED[name] for name in GROUPED_RECIPE}, "lr": GROUPED["lr"], "augmented": shape}


@claim(
    "balanced/appB-photographs",
    where="Appendix B, CelebA and Waterbirds",
    states="A ResNet-18, batches of 128, a cosine schedule, momentum 0.9 and weight decay 1e-4. Waterbirds is "
    "augmented by crops of 70 to 100% of the area and flips at 96 px.",
    rule="The recipe has these values, its lr is one of the paper's sweep, and that augmentation can be asked for by "
    "name.",
    uses=lambda scale: {"found": computed(grouped_recipe)},
)
def appendix_b_photographs(found: Mapping[str, Any]) -> Judgement:
    checks = [Check(f"{name} is {found[name]}", found[name] == value) for name, value in GROUPED_RECIPE.items()]
    checks += [
        Check(f"lr {found['lr']:g} is in the sweep", found["lr"] in (0.0005, 0.001, 0.005, 0.01)),
        Check("crops of 70 to 100% and flips at 96 px", found["augmented"] == [4, 3, 96, 96]),
    ]
    return Judgement(checks)


def weighted_errors(draws: int = 200) -> dict[str, float]:
    """The largest difference between evenly's weighted accuracy and the groups' accuracies times their shares."""
    worst = largest_gap = 0.0
    for seed in range(draws):
        generator = torch.Generator().manual_seed(seed)
        labels = torch.randint(0, 2, (300,), generator=generator)
        groups = 2 * labels + torch.randint(0, 2, (300,), generator=generator)
        outputs = torch.randn(300, 2, generator=generator)
        in_training = torch.cat(
            [torch.arange(4), torch.multinomial(torch.rand(4, generator=generator), 500, True, generator=generator)]
        )
        found = group_accuracy(outputs, labels, groups, in_training)
        right = (outputs.argmax(1) == labels).double()
        expected = sum(float((in_training == g).double().mean()) * float(right[groups == g].mean()) for g in range(4))
        assert found.weighted is not None
        worst = max(worst, abs(found.weighted - expected))
        largest_gap = max(largest_gap, abs(float(right.mean()) - expected))
    return {"apart": worst, "from the plain average": largest_gap}


@claim(
    "balanced/appB-weighted",
    where="Appendix B, reporting test error",
    states="Test errors on Waterbirds and CelebA weight each group by its frequency in the training set.",
    rule="On 200 random sets evenly's weighted accuracy differs from that sum by less than 1e-12.",
    uses=lambda scale: {"found": computed(weighted_errors)},
)
def appendix_b_weighted(found: Mapping[str, float]) -> Judgement:
    return Judgement([Check(f"the sum over groups (apart by {found['apart']:.0e})", found["apart"] < 1e-12)])
