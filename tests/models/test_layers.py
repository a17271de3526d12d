"""Every network against its layers written out, in float64, with weights and running statistics drawn at random."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from evenly.models import MLP, VGG, DenseNet, MobileNetV2, PreActResNet, ResNet, ThreeConvNet, ViT
from evenly.models.resnet import BasicBlock, Bottleneck


class Written:
    """A network's state dict, and the operations of the papers by the names in it."""

    def __init__(self, model):
        for name, value in model.double().eval().state_dict().items():
            if value.ndim == 4:
                nn.init.kaiming_normal_(value)  # the signal keeps its size, also through depthwise convolutions
            elif "running_mean" in name or (value.ndim == 1 and "bias" in name):
                value.normal_(std=0.3)
            elif "running_var" in name or (value.ndim == 1 and "weight" in name):
                value.uniform_(0.5, 1.5)
        self.model, self.used = model, set[str]()

    def get(self, name):
        self.used.add(name)
        return self.model.state_dict()[name]

    def conv(self, x, name, stride=1, groups=1):
        weight = self.get(f"{name}.weight")
        bias = self.get(f"{name}.bias") if f"{name}.bias" in self.model.state_dict() else None
        return F.conv2d(x, weight, bias, stride, weight.shape[-1] // 2, groups=groups)

    def bn(self, x, name):
        mean, var, scale, shift = (
            self.get(f"{name}.{part}")[:, None, None] for part in ("running_mean", "running_var", "weight", "bias")
        )
        return (x - mean) / (var + 1e-5).sqrt() * scale + shift

    def ln(self, x, name):
        centred = x - x.mean(-1, keepdim=True)
        scale = (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return centred / scale * self.get(f"{name}.weight") + self.get(f"{name}.bias")

    def linear(self, x, name):
        return x @ self.get(f"{name}.weight").T + self.get(f"{name}.bias")

    def compare(self, x, expected):
        """The network's own output is this, and no weight of it was left unread."""
        torch.testing.assert_close(self.model(x), expected, rtol=1e-9, atol=1e-9)
        assert float(expected.detach().std(0).max()) > 1e-3
        names = {name for name in self.model.state_dict() if not name.endswith("num_batches_tracked")}
        assert self.used == names


def relu(x):
    return x.clamp(min=0)


def pooled(x):
    return x.flatten(2).mean(2)


def inputs(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_preact_resnet():
    net, x = Written(PreActResNet(3, 4, blocks=(2, 1, 2), width=4)), inputs(3, 3, 9, 8)
    h = net.conv(x, "conv1")
    for stage, count in enumerate((2, 1, 2)):
        for i in range(count):
            name, stride = f"stages.{stage}.{i}", 2 if stage and not i else 1
            active = relu(net.bn(h, f"{name}.bn1"))
            shortcut = net.conv(active, f"{name}.shortcut", 2) if stride == 2 else h
            h = shortcut + net.conv(
                relu(net.bn(net.conv(active, f"{name}.conv1", stride), f"{name}.bn2")), f"{name}.conv2"
            )
    net.compare(x, net.linear(pooled(relu(net.bn(h, "bn"))), "fc"))


@pytest.mark.parametrize("block", [BasicBlock, Bottleneck])
def test_resnet(block):
    net, x = Written(ResNet(3, 4, block, (2, 1, 2, 1), width=4)), inputs(3, 3, 40, 33)
    h = F.max_pool2d(relu(net.bn(net.conv(x, "conv1", 2), "bn1")), 3, 2, 1)
    for stage, count in enumerate((2, 1, 2, 1)):
        for i in range(count):
            name, stride = f"layer{stage + 1}.{i}", 2 if stage and not i else 1
            strides = {1: stride, 2: 1} if block is BasicBlock else {1: 1, 2: stride, 3: 1}
            branch = h
            for number, by in strides.items():
                branch = net.bn(net.conv(relu(branch) if number > 1 else branch, f"{name}.conv{number}", by),
                                f"{name}.bn{number}")  # fmt: skip
            if i == 0 and (stage or block is Bottleneck):
                h = net.bn(net.conv(h, f"{name}.downsample.0", stride), f"{name}.downsample.1")
            h = relu(branch + h)
    net.compare(x, net.linear(pooled(h), "fc"))


def test_vgg():
    net, x = Written(VGG(3, 4, ((4, 2), (8, 1)))), inputs(3, 3, 9, 8)
    h = x
    for layer in (0, 3):
        h = relu(net.bn(net.conv(h, f"features.{layer}"), f"features.{layer + 1}"))
    h = F.max_pool2d(h, 2)
    h = F.max_pool2d(relu(net.bn(net.conv(h, "features.7"), "features.8")), 2)
    net.compare(x, net.linear(pooled(h), "classifier"))


@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
def test_densenet(stem):
    net, x = Written(DenseNet(3, 4, stem, blocks=(2, 3), growth=4)), inputs(3, 3, 16, 12)
    if stem == "cifar":
        h = net.conv(x, "features.conv0")
    else:
        h = F.max_pool2d(relu(net.bn(net.conv(x, "features.conv0", 2), "features.norm0")), 3, 2, 1)
    for block, layers in ((1, 2), (2, 3)):
        outputs = [h]
        for i in range(1, layers + 1):
            name = f"features.denseblock{block}.denselayer{i}"
            inner = net.conv(relu(net.bn(torch.cat(outputs, 1), f"{name}.norm1")), f"{name}.conv1")
            outputs.append(net.conv(relu(net.bn(inner, f"{name}.norm2")), f"{name}.conv2"))
        h = torch.cat(outputs, 1)
        if block == 1:
            name = "features.transition1"
            h = F.avg_pool2d(net.conv(relu(net.bn(h, f"{name}.norm")), f"{name}.conv"), 2)
    net.compare(x, net.linear(pooled(relu(net.bn(h, "features.norm3"))), "classifier"))


def test_mobilenet_v2():
    """Table 2 of the paper: expansion, channels and stride of each of the 17 blocks, one by one."""
    net, x = Written(MobileNetV2(3, 4)), inputs(3, 3, 40, 33)

    def block(h, name, stride=1, groups=1):
        return net.bn(net.conv(h, f"{name}.0", stride, groups), f"{name}.1").clamp(0, 6)

    table = [
        (1, 16, 1), (6, 24, 2), (6, 24, 1), (6, 32, 2), (6, 32, 1), (6, 32, 1), (6, 64, 2), (6, 64, 1), (6, 64, 1),
        (6, 64, 1), (6, 96, 1), (6, 96, 1), (6, 96, 1), (6, 160, 2), (6, 160, 1), (6, 160, 1), (6, 320, 1),
    ]  # fmt: skip
    h, before = block(x, "features.0", 2), 32
    for number, (expansion, after, stride) in enumerate(table, 1):
        name, inner = f"features.{number}.conv", h
        wide, last = before * expansion, 2 if expansion > 1 else 1
        if expansion > 1:
            inner = block(inner, f"{name}.0")
        inner = block(inner, f"{name}.{last - 1}", stride, wide)
        inner = net.bn(net.conv(inner, f"{name}.{last}"), f"{name}.{last + 1}")
        h = h + inner if stride == 1 and before == after else inner
        before = after
    net.compare(x, net.linear(pooled(block(h, "features.18")), "classifier.1"))


def test_vit():
    """Patches cut by hand; attention head by head, softmax(q k^T / sqrt(d)) v."""
    model = ViT((3, 8, 12), 4, patch=4, width=10, depth=2, heads=2, hidden=7, head_width=6)
    net, x = Written(model), inputs(3, 3, 8, 12)
    rows = [x[:, :, 4 * i : 4 * i + 4, 4 * j : 4 * j + 4].reshape(3, 48) for i in range(2) for j in range(3)]
    tokens = net.ln(net.linear(net.ln(torch.stack(rows, 1), "embed.0"), "embed.1"), "embed.2")
    tokens = torch.cat([net.get("class_token").repeat(3, 1, 1), tokens], 1) + net.get("positions")
    assert tokens.shape == (3, 7, 10)
    for i in range(2):
        name = f"blocks.{i}"
        qkv = net.ln(tokens, f"{name}.norm1") @ net.get(f"{name}.attention.qkv.weight").T
        q, k, v = qkv[..., :12], qkv[..., 12:24], qkv[..., 24:]
        heads = []
        for part in (slice(0, 6), slice(6, 12)):
            scores = (q[..., part] @ k[..., part].transpose(1, 2) / math.sqrt(6)).exp()
            heads.append(scores / scores.sum(-1, keepdim=True) @ v[..., part])
        tokens = tokens + net.linear(torch.cat(heads, -1), f"{name}.attention.out")
        h = net.linear(net.ln(tokens, f"{name}.norm2"), f"{name}.mlp.0")
        tokens = tokens + net.linear(h * (1 + torch.erf(h / math.sqrt(2))) / 2, f"{name}.mlp.2")
    net.compare(x, net.linear(net.ln(tokens, "norm")[:, 0], "head"))


@pytest.mark.parametrize("size", [(8, 8), (9, 20), (3, 1)])
def test_three_convolutions(size):
    net, x = Written(ThreeConvNet((3, *size), 4)), inputs(3, 3, *size)
    h = relu(net.conv(relu(net.conv(relu(net.conv(x, "0", 2)), "2", 2)), "4", 2))
    net.compare(x, net.linear(h.flatten(1), "7"))
    assert [tuple(p.shape) for p in net.model.parameters()][:6:2] == [(32, 3, 5, 5), (64, 32, 3, 3), (128, 64, 3, 3)]


def test_dropout_of_the_mlp_follows_each_relu():
    model, x = MLP(6, 3, hidden=(1000, 2000), dropout=0.1), torch.rand(4, 6)
    assert [type(layer) for layer in model] == [nn.Flatten, *[nn.Linear, nn.ReLU, nn.Dropout] * 2, nn.Linear]
    seen = []
    for layer in (model[3], model[6]):
        layer.register_forward_hook(lambda _, given, got: seen.append(got[given[0] > 0]))
    model(x)
    for outputs in seen:
        assert float((outputs == 0).double().mean()) == pytest.approx(0.1, abs=0.03)
    layers = [layer for layer in model.eval() if not isinstance(layer, nn.Dropout)]
    assert torch.equal(model(x), nn.Sequential(*layers)(x))
