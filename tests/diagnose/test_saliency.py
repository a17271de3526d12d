"""Grad-CAM against a computation by hand; the maps are found by watching the pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evenly import EvenlyError
from evenly.diagnose.saliency import grad_cam
from evenly.models import ConvNet, PreActResNet
from evenly.models.densenet import DenseNet
from evenly.models.mobilenet import MobileNetV2
from evenly.models.resnet import BasicBlock, ResNet


class Tiny(nn.Module):
    """Two convolutions, an in-place ReLU on the last one's maps, pooling and a linear layer; one is never run."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.last = nn.Conv2d(4, 5, 3, stride=2, padding=1)
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.idle = nn.Conv2d(1, 1, 1)
        self.relu, self.fc = nn.ReLU(inplace=True), nn.Linear(5, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.relu(self.last(self.relu(self.first(x)))).mean((2, 3)))


def tiny(classes: int = 3) -> Tiny:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Tiny(classes).double()
    with torch.no_grad():
        model.fc.bias.zero_()
        model.last.weight.mul_(10)  # images differ in what is predicted of them
    return model


def images(n: int = 5, channels: int = 2, side: int = 8) -> Tensor:
    return torch.randn(n, channels, side, side, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def enlarged(heat: Tensor, side: int) -> Tensor:
    """Bilinear by hand: the centre of large pixel i lies at (i + 1/2) s - 1/2 of the small ones."""
    small = heat.shape[-1]
    at = ((torch.arange(side) + 0.5) * small / side - 0.5).clamp(0, small - 1)
    low, high = at.floor().long(), at.ceil().long()
    share = (at - at.floor()).to(heat)
    rows = heat[:, low] * (1 - share)[:, None] + heat[:, high] * share[:, None]
    return rows[:, :, low] * (1 - share) + rows[:, :, high] * share


def by_hand(model: Tiny, x: Tensor, targets: Tensor, rectified: bool = True) -> Tensor:
    """d logit_c / d A_k at a position is w_ck / (h w), times [A_k > 0] where A is the convolution's own output."""
    with torch.no_grad():
        maps = F.conv2d(F.conv2d(x, model.first.weight, model.first.bias, padding=1).relu(), model.last.weight,
                        model.last.bias, stride=2, padding=1)  # fmt: skip
        slopes = model.fc.weight[targets][:, :, None, None] / maps[0, 0].numel()
        slopes, maps = (slopes, maps.relu()) if rectified else (slopes * (maps > 0), maps)
        heat = (slopes.mean((2, 3), keepdim=True) * maps).sum(1).relu()
        heat = enlarged(heat, x.shape[-1])
        largest = heat.flatten(1).max(1).values[:, None, None]
        return torch.where(largest > 0, heat / largest, 0.0).float()


def test_the_map_is_the_papers_by_hand() -> None:
    model, x = tiny(), images(70)  # more than pass at once
    predicted = model(x).argmax(1)
    found = grad_cam(model, x)
    assert found.shape == (70, 8, 8)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, by_hand(model, x, predicted), rtol=1e-5, atol=1e-6)
    assert len(predicted.unique()) > 1
    for c in range(3):
        expected = by_hand(model, x, torch.full((70,), c))
        torch.testing.assert_close(grad_cam(model, x, c), expected, rtol=1e-5, atol=1e-6)
    each = torch.arange(70) % 3
    torch.testing.assert_close(grad_cam(model, x, each), by_hand(model, x, each), rtol=1e-5, atol=1e-6)


def test_maps_lie_between_0_and_1_and_reach_1() -> None:
    found = torch.cat([grad_cam(tiny(), images(40), c) for c in range(3)])
    assert float(found.min()) == 0
    assert set(found.amax((1, 2)).tolist()) == {1.0}


def test_one_logit_speaks_for_class_1_and_against_class_0() -> None:
    one, two = tiny(1), tiny(1)
    with torch.no_grad():
        two.fc.weight.neg_()
        two.fc.bias.neg_()
    x = images()
    assert torch.equal(grad_cam(one, x, 0), grad_cam(two, x, 1))
    assert not torch.equal(grad_cam(one, x, 0), grad_cam(one, x, 1))
    predicted = (one(x)[:, 0] > 0).long()
    assert torch.equal(grad_cam(one, x), grad_cam(one, x, predicted))


def test_a_bright_spot_is_where_the_network_looks() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 1, 1, bias=False), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1, 2)
    )
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[4].weight.copy_(torch.tensor([[0.0], [1.0]]))
    x = torch.zeros(1, 1, 6, 6, dtype=torch.uint8)
    x[0, 0, 1, 4] = 200
    found = grad_cam(model, x, 1)[0]
    assert found[1, 4] == 1
    assert float(found.sum()) == 1
    assert not grad_cam(model, x, 0).any()


def test_another_layer_by_name() -> None:
    model, x = tiny(), images()
    last = by_hand(model, x, torch.ones(5, dtype=torch.long), rectified=False)
    torch.testing.assert_close(grad_cam(model, x, 1, layer="last"), last, rtol=1e-5, atol=1e-6)
    first = grad_cam(model, x, 1, layer="first")
    maps = F.conv2d(x, model.first.weight, model.first.bias, padding=1).detach().requires_grad_()
    score = model.fc(model.last(maps.relu()).relu().mean((2, 3)))[:, 1].sum()
    (gradient,) = torch.autograd.grad(score, maps)
    heat = (gradient.mean((2, 3), keepdim=True) * maps).sum(1).relu().detach()
    torch.testing.assert_close(first, (heat / heat.amax((1, 2), keepdim=True)).nan_to_num().float())


NETWORKS: dict[
    str, tuple[Callable[[], nn.Module], int, Callable[[Any, Tensor], Tensor], Callable[[Any, Tensor], Tensor]]
]
NETWORKS = {  # how to build it, the side of its images, its final map, and the logits of that map
    "convnet": (lambda: ConvNet(3, 4, batch_norm=True), 16, lambda m, x: m.features[:6](x),
                lambda m, a: m.fc(m.hidden(m.features[6:](a)))),
    "preact_resnet": (lambda: PreActResNet(3, 4, (1, 1), width=4), 8,
                      lambda m, x: m.bn(m.stages(m.conv1(x))).relu(), lambda m, a: m.fc(a.mean((2, 3)))),
    "resnet": (lambda: ResNet(3, 4, BasicBlock, (1, 1, 1, 1), width=4), 64,
               lambda m, x: m.layer4(m.layer3(m.layer2(m.layer1(m.maxpool(m.bn1(m.conv1(x)).relu()))))),
               lambda m, a: m.fc(a.mean((2, 3)))),
    "densenet": (lambda: DenseNet(3, 4, blocks=(2, 2), growth=4), 8, lambda m, x: m.features(x).relu(),
                 lambda m, a: m.classifier(a.mean((2, 3)))),
    "mobilenet": (lambda: MobileNetV2(3, 4), 64, lambda m, x: m.features(x),
                  lambda m, a: m.classifier(a.mean((2, 3)))),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_evenlys_networks_are_looked_at_where_the_rectified_map_goes_into_the_pooling(name: str) -> None:
    build, side, map_of, logits_of = NETWORKS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build().double().eval()
        for norm in model.modules():
            if isinstance(norm, nn.BatchNorm2d):
                nn.init.normal_(norm.bias)  # the ReLU has something to take away
    x = images(3, channels=3, side=side)
    maps = map_of(model, x).detach().requires_grad_()
    assert maps.ndim == 4
    assert maps.shape[2] > 1
    assert float(maps.detach().min()) == 0
    logits = logits_of(model, maps)
    torch.testing.assert_close(logits, model(x))
    reached = 0.0
    for c in range(4):
        (slopes,) = torch.autograd.grad(logits[:, c].sum(), maps, retain_graph=True)
        heat = enlarged((slopes.mean((2, 3), keepdim=True) * maps).sum(1).relu().detach(), side)
        largest = heat.amax((1, 2), keepdim=True)
        expected = torch.where(largest > 0, heat / largest, 0.0).float()
        torch.testing.assert_close(grad_cam(model, x, c), expected, rtol=1e-5, atol=1e-5)
        reached += float(expected.max())
    assert reached


class Gated(nn.Module):
    """After its maps: a gate of one position by a convolution, an addition in place, a copy that leads nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gate, self.fc = nn.Conv2d(2, 3, 3), nn.Conv2d(3, 3, 1), nn.Linear(3, 4)

    def maps(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        x = x * self.gate(x.mean((2, 3), keepdim=True))
        x.add_(1.0)
        return x

    def forward(self, x: Tensor) -> Tensor:
        x = self.maps(x)
        self.seen = x.detach() * 2
        return self.fc(x.amax((2, 3)))


def test_gates_and_copies_are_not_taken_for_the_last_map() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = Gated().double()
    x = images()
    before = x.clone()
    maps = model.maps(x).detach().requires_grad_()
    (slopes,) = torch.autograd.grad(model.fc(maps.amax((2, 3)))[:, 1].sum(), maps)
    heat = enlarged((slopes.mean((2, 3), keepdim=True) * maps).sum(1).relu().detach(), 8)
    largest = heat.amax((1, 2), keepdim=True)
    assert bool((largest > 0).any())
    expected = torch.where(largest > 0, heat / largest, 0.0).float()
    torch.testing.assert_close(grad_cam(model, x, 1), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(x, before)
    assert not x.requires_grad


def test_maps_of_one_position_are_passed_over_where_there_are_larger_ones() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 3, 6), nn.ReLU(), nn.Flatten(), nn.Linear(3, 2))
    model.double()
    found = grad_cam(model, images(), 1)
    assert torch.equal(found, grad_cam(model, images(), 1, layer="1"))
    assert len(found[0].unique()) > 1
    one = nn.Sequential(nn.Conv2d(2, 3, 8), nn.Flatten(), nn.Linear(3, 2)).double()
    assert float(grad_cam(one, images(), 1).std((1, 2)).max()) < 1e-6


class Aside(nn.Module):
    """A convolution whose maps do not reach the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(2, 1, 1), nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.conv(x)
        return self.fc(x.mean((2, 3)))


def test_what_has_no_map_is_refused() -> None:
    def refused(match: str, *arguments: Any, model: nn.Module | None = None, **options: Any) -> None:
        with pytest.raises(EvenlyError, match=match) as error:
            grad_cam(model or tiny(), *(arguments or (images(),)), **options)
        assert "\n" not in str(error.value)

    flat = nn.Sequential(nn.Flatten(), nn.Linear(128, 3)).double()
    refused("Sequential runs no convolution on these images, so it has no maps", model=flat)
    idle = Tiny().double()
    idle.forward = lambda x: idle.fc(x.mean((1, 2))[:, :5])
    refused("Tiny runs no convolution on these images", model=idle)
    refused("Tiny does not run this layer in a forward pass; name another", layer="idle")
    refused("do not depend on the layer's maps", model=Aside().double())
    refused("do not depend on the layer's maps", model=Aside().double().requires_grad_(False))
    refused(r"images have shape \(2, 8, 8\)", images()[0])
    refused("images have shape", images()[:0])
    refused("target 3 is not among the model's 3 classes; give 0..2", images(), 3)
    refused("target -1 is not among", images(), -1)
    refused(r"targets of shape \(2,\) and type torch.int64 do not go with 5 images", images(), [0, 1])
    refused("type torch.float32 do not go with 5 images", images(), 1.0)
    refused("no layer of Tiny is called 'lats'; did you mean 'last'", layer="lats")
    refused(r"the layer gives \(5, 3\) for 5 images, not maps", layer="fc")
    refused("cannot take inputs of shape", images(channels=3))
