"""Models of other libraries by name, with stand-ins for the libraries."""

import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from evenly.models import factory


def stand_in(**asked):
    """A linear layer that remembers what was asked for."""
    if asked.get("strange"):
        raise ValueError("strange is not\na setting of this network")
    model = nn.Linear(3, asked["num_classes"])
    model.asked = asked
    return model


@pytest.fixture
def torchvision(monkeypatch):
    package, models = ModuleType("torchvision"), ModuleType("torchvision.models")
    package.models = models
    models.list_models = lambda module=None: ["resnet18", "vgg11"] if module is models else ["raft"]
    models.get_model = lambda name, **asked: stand_in(name=name, **asked)
    monkeypatch.setitem(sys.modules, "torchvision", package)
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    return models


@pytest.fixture
def timm(monkeypatch):
    package = ModuleType("timm")
    known = ["vit_small_patch16_224", "resnet26d"]
    package.is_model = lambda name: name.partition(".")[0] in known
    package.list_models = lambda: known
    package.create_model = lambda name, **asked: stand_in(name=name, **asked)
    monkeypatch.setitem(sys.modules, "timm", package)
    return package


@pytest.mark.usefixtures("torchvision")
def test_torchvision_builds_without_weights_for_the_classes_at_hand():
    fresh, name = factory("torchvision:resnet18", (3, 64, 64), 7, 0, width_per_group=32)
    assert name == "torchvision:resnet18"
    assert fresh().asked == {"name": "resnet18", "weights": None, "num_classes": 7, "width_per_group": 32}
    assert torch.equal(fresh().weight, fresh().weight)
    other = factory("torchvision:resnet18", (3, 64, 64), 7, 1)[0]()
    assert not torch.equal(fresh().weight, other.weight)


@pytest.mark.usefixtures("timm")
@pytest.mark.parametrize("name", ["vit_small_patch16_224", "vit_small_patch16_224.augreg_in1k"])
def test_timm_builds_without_weights_for_the_channels_and_classes_at_hand(name):
    fresh, called = factory(f"timm:{name}", (1, 32, 32), 7, 0, img_size=32)
    assert called == f"timm:{name}"
    assert fresh().asked == {"name": name, "pretrained": False, "num_classes": 7, "in_chans": 1, "img_size": 32}


@pytest.mark.usefixtures("torchvision", "timm")
@pytest.mark.parametrize(
    ("name", "shape", "options", "message"),
    [
        ("torchvision:resnet19", (3, 8, 8), {}, "no model of torchvision is called 'resnet19'; did you mean"),
        ("torchvision:raft", (3, 8, 8), {}, "no model of torchvision is called 'raft'"),
        ("torchvision:resnet18", (1, 8, 8), {}, "torchvision:resnet18 takes 3 channels, got 1; repeat the channel"),
        ("torchvision:resnet18", (8,), {}, r"torchvision:resnet18 takes images \(C, H, W\), got inputs \(8,\)"),
        (
            "torchvision:resnet18",
            (3, 8, 8),
            {"strange": 1},
            r"options {'strange': 1} \(strange is not\); see torchv",
        ),
        ("timm:resnet26", (3, 8, 8), {}, "no model of timm is called 'resnet26'; did you mean 'resnet26d'"),
        ("keras:resnet18", (3, 8, 8), {}, "model 'keras:resnet18' names an unknown library; give torchvision:NAME"),
    ],
)
def test_refusals(name, shape, options, message, refused, built):
    refused(message, built, name, shape, 7, 0, **options)


def test_a_library_that_is_not_installed_or_broken(monkeypatch, refused, built):
    for library in ("torchvision", "timm"):
        for module in [library, f"{library}.models"]:
            monkeypatch.setitem(sys.modules, module, None)
        message = rf"{library} cannot be imported \(.*\); pip install {library}, or choose"
        refused(message, built, f"{library}:resnet18", (3, 8, 8), 7, 0)
    assert factory("timm:resnet26d", (3, 8, 8), 7, 0)[1] == "timm:resnet26d", "a name imports nothing"

    def broken(name):
        raise RuntimeError("operator torchvision::nms does not exist\nand more")

    monkeypatch.setattr("evenly.models.libraries.import_module", broken)
    message = r"torchvision cannot be imported \(operator torchvision::nms does not exist\)"
    refused(message, built, "torchvision:resnet18", (3, 8, 8), 7, 0)
