"""The data sets, networks, recipe and baselines of the image experiments (section 5, appendices C and D)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from evenly.data.augment.trivial import OPERATIONS
from evenly.engine.losses import losses
from evenly.engine.schedules import SCHEDULES
from evenly.methods import METHODS
from evenly.methods.misclassification import misclassified
from evenly.methods.quantile import above_quantile
from evenly.models import RECIPES, find
from evenly.models.vit import ViT
from evenly.optim.registry import rho_factor
from evenly.papers.claims import claim, untestable
from evenly.papers.nodes import Stored, computed
from evenly.runs.verdict import Check, Judgement, Measurement

CIFAR = (3, 32, 32)


@claim(
    "useful/data-cifar10",
    where="Section C.1, CIFAR-10",
    states="50,000 training and 10,000 test images in 10 classes.",
    rule="The runs stored here were trained and tested on exactly these numbers.",
    published={"training": "50,000", "test": "10,000", "classes": "10"},
    uses=lambda scale: {"sgd": Stored("cifar10-sgd-200.json")},
)
def cifar10(sgd: Mapping[str, Any]) -> Judgement:
    facts = [row["results"]["data"] for row in sgd["rows"]]
    sizes = all(each["sizes"] == {"train": 50_000, "test": 10_000} for each in facts)
    classes = all(len(each["class_names"]) == 10 for each in facts)
    return Judgement([Check("50,000 and 10,000 images", sizes), Check("10 classes", classes)])


untestable(
    "useful/data-others",
    where="Section C.1",
    states="CIFAR-100, CINIC-10, Tiny-ImageNet, STL-10; Waterbirds in section D.5.",
    why="the data are not here; their readers are tested on small files of the official layouts",
    published={
        "CIFAR-100": "50,000 / 10,000",
        "CINIC-10": "270,000",
        "Tiny-ImageNet": "100,000",
        "STL-10": "5,000 / 8,000",
    },
)


def network_facts() -> dict[str, Any]:
    """Sizes of the paper's networks as they are built for CIFAR-10, and parts of the MLP and the ViT."""
    built: dict[str, nn.Module] = {}
    for name in ("preact_resnet18", "preact_resnet34", "vgg19", "densenet121", "vit_s", "mlp_512"):
        with torch.device("meta"):
            built[name] = find(name)[1](CIFAR, 10)
    vit, mlp = built["vit_s"], built["mlp_512"]
    assert isinstance(vit, ViT)
    heads = [module.heads for module in vit.modules() if hasattr(module, "heads")]
    linear = [module for module in mlp.modules() if isinstance(module, nn.Linear)]
    widths = [
        [module.in_features, module.out_features] for module in vit.blocks[0].modules() if isinstance(module, nn.Linear)
    ]
    return {
        "weights": {name: sum(p.numel() for p in network.parameters()) for name, network in built.items()},
        "vit": {
            "patch": vit.patch,
            "depth": len(vit.blocks),
            "width": vit.head.in_features,
            "layers": widths,
            "heads": heads,
        },
        "mlp": [module.out_features for module in linear],
        "dropout": [module.p for module in mlp.modules() if isinstance(module, nn.Dropout)],
    }


@claim(
    "useful/networks",
    where="Section C.1, networks",
    states="Pre-activation ResNet-18 and 34; the official VGG19 and DenseNet121; an MLP of 3 layers, 512 wide, dropout "
    "0.1; a ViT of width 768, depth 8, 8 heads, MLP 2304, patches of 4.",
    rule="The networks have these shapes; the ResNets have 11.2 and 21.3 million weights. Side point: VGG19 and "
    "DenseNet121 have as many weights as PyTorch's with 10 classes, 139.6 and 7.0 million.",
    published={"MLP": "3 layers, 512, dropout 0.1", "ViT": "768, 8, 8, 2304, patch 4"},
    choices=("VGG19 has BatchNorm and a linear head, DenseNet121 a stem for small images; others by option",),
    uses=lambda scale: {"facts": computed(network_facts)},
)
def networks(facts: Mapping[str, Any]) -> Judgement:
    millions = {name: count / 1e6 for name, count in facts["weights"].items()}
    vit, dense = facts["vit"], millions["densenet121"]
    shape = (vit["width"], vit["depth"], vit["patch"]) == (768, 8, 4) and set(vit["heads"]) == {8}
    hidden = [768, 2304] in vit["layers"]
    return Judgement(
        [
            Check("ResNet-18: 11.2 million weights", abs(millions["preact_resnet18"] - 11.2) < 0.05),
            Check("ResNet-34: 21.3 million weights", abs(millions["preact_resnet34"] - 21.3) < 0.05),
            Check("MLP: 512, 512, 10, dropout 0.1", facts["mlp"] == [512, 512, 10] and set(facts["dropout"]) == {0.1}),
            Check("ViT: width 768, depth 8, 8 heads, MLP 2304, patch 4", shape and hidden),
            Check(f"VGG19 as PyTorch's ({millions['vgg19']:.1f})", abs(millions["vgg19"] - 139.6) < 0.05, main=False),
            Check(f"DenseNet121 as PyTorch's ({dense:.2f})", abs(dense - 6.96) < 0.05, main=False),
        ],
        [Measurement(f"{name}, million weights", value) for name, value in millions.items()],
    )  # fmt: skip


def recipe_facts() -> dict[str, Any]:
    """The recipes as they are registered, the learning rate's factor around its steps, and ASAM's radius over SAM's."""
    factors = [SCHEDULES["step"](epoch / 200) for epoch in (0, 99, 100, 149, 150, 199)]
    return {"recipes": RECIPES, "asam": rho_factor("asam"), "factors": factors}


@claim(
    "useful/recipe",
    where="Sections 5 and C.1, D.4",
    states="200 epochs, batch 128, SGD with momentum 0.9, weight decay 0.0005, learning rate 0.1 divided by 10 at 50% "
    "and 75%, rho 0.1; MLP rho 0.01; ViT learning rate and rho 0.01; ASAM rho 1.",
    rule="The recipe of each network equals the paper's, value by value.",
    published={"epochs": "200", "batch": "128", "lr": "0.1", "weight decay": "0.0005", "rho": "0.1, ASAM 1.0"},
    choices=("precision is bf16 on a GPU",),
    uses=lambda scale: {"facts": computed(recipe_facts)},
)
def recipe(facts: Mapping[str, Any]) -> Judgement:
    common: dict[str, Any] = {
        "epochs": 200,
        "batch_size": 128,
        "lr": 0.1,
        "momentum": 0.9,
        "weight_decay": 5e-4,
        "schedule": "step",
        "rho": 0.1,
    }
    own = {"mlp_512": {"rho": 0.01}, "vit_s": {"lr": 0.01, "rho": 0.01}}
    names = ("preact_resnet18", "preact_resnet34", "vgg19", "densenet121", "mlp_512", "vit_s")
    same = [Check(name, facts["recipes"][name] == common | own.get(name, {})) for name in names]
    falls = all(
        abs(factor - wanted) < 1e-9
        for factor, wanted in zip(facts["factors"], (1, 1, 0.1, 0.1, 0.01, 0.01), strict=True)
    )
    asam = Check("ASAM's rho is 10 times SAM's", facts["asam"] * common["rho"] == 1.0)
    return Judgement([*same, Check("the learning rate falls by 10 after 100 and after 150 of 200 epochs", falls), asam])


def baseline_facts(seed: int) -> dict[str, Any]:
    """What the rules of Tables 2, 5 and 6 choose from the outputs of a network on 1,000 examples of 10 classes."""
    generator = torch.Generator().manual_seed(seed)
    logits, labels = torch.randn(1000, 10, generator=generator), torch.randint(0, 10, (1000,), generator=generator)
    each, predicted = losses(logits, labels), logits.argmax(1)
    half, wrong = above_quantile(each), misclassified(logits, labels)
    return {
        "half": len(half), "above": bool(each[half].min() > each.median()), "wrong": len(wrong),
        "all wrong": bool((predicted[wrong] != labels[wrong]).all()), "errors": int((predicted != labels).sum()),
        "methods": sorted(METHODS.own), "operations": len(OPERATIONS),
    }  # fmt: skip


@claim(
    "useful/baselines",
    where="Sections 5.4, D.4, D.6; Tables 2, 4, 5 and 6",
    states="Rivals: random upsampling, doubling the loss, the half with the larger loss (QUANTILE), the misclassified; "
    "ASAM and TrivialAugment.",
    rule="Each is there by name; QUANTILE takes exactly the losses above the median, MISCLASSIFICATION exactly the "
    "errors; TrivialAugment has its 14 operations.",
    uses=lambda scale: {"facts": computed(baseline_facts, seed=0)},
)
def baselines(facts: Mapping[str, Any]) -> Judgement:
    named = {"random_upsample", "upweight", "quantile", "misclassification"} <= set(facts["methods"])
    return Judgement(
        [
            Check("the methods are there", named),
            Check(f"QUANTILE: {facts['half']} of 1,000, all above the median", facts["half"] == 500 and facts["above"]),
            Check(
                "MISCLASSIFICATION: all errors and nothing else",
                facts["all wrong"] and facts["wrong"] == facts["errors"],
            ),
            Check("TrivialAugment has 14 operations", facts["operations"] == 14),
        ]
    )
