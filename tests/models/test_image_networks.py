"""The networks for images in full size: parameter counts with their derivation, shapes, gradients, one step."""

import copy
import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from evenly.models import MODELS, RECIPES, DenseNet, factory
from evenly.models.densenet import LEAST_SIDE
from evenly.settings import Settings

NAMES = [
    "mlp_512", "convnet_3", "preact_resnet18", "preact_resnet34", "vgg19", "densenet121", "vit_s", "resnet18",
    "resnet50", "mobilenet_v2",
]  # fmt: skip


def images(count=4, side=32):
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(1))


# Parameter counts, each derived from the paper's table of layers


def conv(before, after, kernel=3):
    return before * after * kernel**2


def norm(channels):
    return 2 * channels


def linear(before, after):
    return before * after + after


def preact(blocks, classes):
    total, before = conv(3, 64) + norm(512) + linear(512, classes), 64
    for stage, count in enumerate(blocks):
        width = 64 * 2**stage
        total += norm(before) + conv(before, width) + norm(width) + conv(width, width)
        total += conv(before, width, 1) if stage else 0
        total += (count - 1) * 2 * (norm(width) + conv(width, width))
        before = width
    return total


def resnet(blocks, classes, bottleneck):
    total, before = conv(3, 64, 7) + norm(64), 64
    for stage, count in enumerate(blocks):
        width = 64 * 2**stage
        after = 4 * width if bottleneck else width
        for i in range(count):
            if bottleneck:
                total += conv(before, width, 1) + conv(width, width) + conv(width, after, 1) + 2 * norm(width)
                total += norm(after)
            else:
                total += conv(before, width) + conv(width, width) + 2 * norm(width)
            if i == 0 and (stage or bottleneck):
                total += conv(before, after, 1) + norm(after)
            before = after
    return total + linear(before, classes)


def vgg19(classes):
    widths = [3, 64, 64, 128, 128, 256, 256, 256, 256, 512, 512, 512, 512, 512, 512, 512, 512]
    convolutions = sum(conv(a, b) + b + norm(b) for a, b in pairwise(widths))
    return convolutions + linear(512, classes)


def densenet121(classes, stem):
    total, width = stem, 64
    for number, layers in enumerate([6, 12, 24, 16]):
        for _ in range(layers):
            total += norm(width) + conv(width, 128, 1) + norm(128) + conv(128, 32)
            width += 32
        if number < 3:
            total += norm(width) + conv(width, width // 2, 1)
            width //= 2
    assert width == 1024
    return total + norm(width) + linear(width, classes)


def vit(classes, inner):
    block = 2 * norm(768) + 3 * 768 * inner + linear(inner, 768) + linear(768, 2304) + linear(2304, 768)
    embedding = norm(48) + linear(48, 768) + norm(768) + 768 + 65 * 768
    return 8 * block + embedding + norm(768) + linear(768, classes)


def mobilenet(classes):
    total, before = conv(3, 32) + norm(32), 32
    for t, c, n in ((1, 16, 1), (6, 24, 2), (6, 32, 3), (6, 64, 4), (6, 96, 3), (6, 160, 3), (6, 320, 1)):
        for _ in range(n):
            inner = t * before
            total += (conv(before, inner, 1) + norm(inner)) * (t > 1)
            total += 9 * inner + norm(inner) + conv(inner, c, 1) + norm(c)
            before = c
    return total + conv(320, 1280, 1) + norm(1280) + linear(1280, classes)


COUNTS = [
    ("mlp_512", 10, {}, 1_841_162, linear(3072, 512) + linear(512, 512) + linear(512, 10)),
    ("convnet_3", 10, {}, 115_274, conv(3, 32, 5) + 32 + conv(32, 64) + 64 + conv(64, 128) + 128 + linear(2048, 10)),
    # 11,171,146 in code that leaves out the last BatchNorm, 2 x 512 parameters
    ("preact_resnet18", 10, {}, 11_171_146 + 1024, preact([2, 2, 2, 2], 10)),
    ("preact_resnet34", 100, {}, 21_326_500, preact([3, 4, 6, 3], 100)),
    ("vgg19", 10, {}, 20_040_522, vgg19(10)),
    # torchvision: 7,978,856; CIFAR codes: 6,956,298
    ("densenet121", 10, {}, 6_956_298, densenet121(10, conv(3, 64))),
    ("densenet121", 10, {"stem": "imagenet"}, 6_964_106, densenet121(10, conv(3, 64, 7) + norm(64))),
    ("densenet121", 1000, {"stem": "imagenet"}, 7_978_856, densenet121(1000, conv(3, 64, 7) + norm(64))),
    ("vit_s", 10, {}, 41_048_938, vit(10, inner=8 * 64)),
    ("vit_s", 10, {"head_width": 96}, 47_340_394, vit(10, inner=768)),
    # torchvision's published counts
    ("resnet18", 1000, {}, 11_689_512, resnet([2, 2, 2, 2], 1000, bottleneck=False)),
    ("resnet50", 1000, {}, 25_557_032, resnet([3, 4, 6, 3], 1000, bottleneck=True)),
    ("mobilenet_v2", 1000, {}, 3_504_872, mobilenet(1000)),
]


@pytest.mark.parametrize(("name", "classes", "options", "known", "derived"), COUNTS)
def test_parameter_count(name, classes, options, known, derived):
    with torch.device("meta"):
        model = MODELS[name][0]((3, 32, 32), classes, **options)
    assert sum(p.numel() for p in model.parameters()) == derived == known


# What every network does in full size (but two of the eight blocks of the transformer, for speed)


@pytest.fixture(scope="module", params=NAMES)
def network(request):
    fewer = {"depth": 2} if request.param == "vit_s" else {}
    return request.param, factory(request.param, (3, 32, 32), 10, seed=0, **fewer)[0]()


def test_logits_in_eval_mode_depend_neither_on_the_rest_of_the_batch_nor_on_the_memory_format(network):
    model, x = network[1].eval(), images()
    with torch.no_grad():
        together = model(x)
        alone = torch.cat([model(one[None]) for one in x])
        try:
            last = model.to(memory_format=torch.channels_last)(x.to(memory_format=torch.channels_last))
        finally:
            model.to(memory_format=torch.contiguous_format)
    assert together.shape == (4, 10)
    assert float(together.std(0).min()) > 0
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(last, together, rtol=1e-4, atol=1e-5)


def test_every_parameter_gets_a_gradient_and_a_small_step_lowers_the_loss(network):
    name, model = network[0], copy.deepcopy(network[1]).double().train()  # BatchNorm over few values needs float64
    x, y = images().double(), torch.arange(4)

    def loss():
        with torch.random.fork_rng():
            torch.manual_seed(0)  # the same dropout before and after
            return F.cross_entropy(model(x), y)

    before = loss()
    before.backward()
    norms = [i for i, m in enumerate(model.features) if isinstance(m, nn.BatchNorm2d)] if name == "vgg19" else []
    cancelled = [f"features.{i - 1}.bias" for i in norms]
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert torch.isfinite(parameter.grad).all(), key
        largest = float(parameter.grad.abs().max())
        assert largest < 1e-9 if key in cancelled else largest > 0, key
    square = sum(float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None)
    lr = 1e-6 / square
    torch.optim.SGD(model.parameters(), lr=lr).step()
    with torch.no_grad():
        lowered = float(before.detach() - loss())
    assert 0.9 < lowered / (lr * square) < 1.1  # 1 but for curvature


@pytest.mark.parametrize("name", ["preact_resnet18", "resnet18", "resnet50", "mobilenet_v2", "densenet121"])
@pytest.mark.parametrize("size", [(8, 8), (33, 20)])
def test_images_of_any_size(name, size):
    narrow = {"mobilenet_v2": {}, "densenet121": {"growth": 4}}.get(name, {"width": 4})
    model = factory(name, (1, *size), 3, 0, **narrow)[0]().eval()
    assert model(torch.zeros(2, 1, *size)).shape == (2, 3)


@pytest.mark.parametrize(
    ("name", "shape", "options", "message"),
    [
        ("vgg19", (3, 31, 40), {}, "vgg19 takes images of 32x32 or more, got 31x40; enlarge them"),
        ("densenet121", (3, 7, 7), {}, "densenet121 takes images of 8x8 or more, got 7x7"),
        ("densenet121", (3, 28, 28), {"stem": "imagenet"}, "densenet121 takes images of 29x29 or more"),
        ("vit_s", (3, 30, 32), {}, "images of 30x32 do not divide into patches of 4; resize them or set patch"),
        ("vit_s", (3, 32, 32), {"patch": 0}, "patches of 0"),
        ("preact_resnet18", (3, 32, 32), {"blocks": (1,)}, "preact_resnet18 cannot be built with options"),
        *((name, (50,), {}, rf"{name} takes images \(C, H, W\), got inputs \(50,\); use mlp") for name in NAMES[1:]),
    ],
)
def test_refusals(name, shape, options, message, refused, built):
    refused(message, built, name, shape, 10, 0, **options)


@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
def test_the_least_side_of_a_densenet_is_the_least_that_works(stem):
    model, least = DenseNet(1, 2, stem, growth=2).eval(), LEAST_SIDE[stem]
    assert model(torch.zeros(1, 1, least, least)).shape == (1, 2)
    with pytest.raises(RuntimeError, match="too small"):
        model(torch.zeros(1, 1, least - 1, least - 1))


# Initial weights


@pytest.mark.parametrize(
    ("name", "options", "fan"),
    [
        ("preact_resnet18", {"width": 32}, 0),
        ("resnet50", {"width": 32}, 0),
        ("vgg19", {"stages": ((128, 2),)}, 0),
        ("mobilenet_v2", {}, 0),
        ("densenet121", {"growth": 16}, 1),
    ],
)
def test_convolutions_start_as_he_et_al_say(name, options, fan, built):
    """The squares over 2 / fan average to 1, with a variance of 2 / count."""
    for module in built(name, (3, 32, 32), 10, 0, **options).modules():
        if isinstance(module, nn.Conv2d):
            weight = module.weight.detach().double()
            scaled = weight.square() * weight.shape[fan] * weight[0, 0].numel() / 2
            assert float(scaled.mean()) == pytest.approx(1, abs=6 * math.sqrt(2 / weight.numel()))
            assert module.bias is None or not module.bias.any()


def test_heads_start_small_and_without_a_bias_and_tokens_standard_normal(built):
    for name, head, std in (
        ("vgg19", "classifier", 0.01),
        ("mobilenet_v2", "classifier.1", 0.01),
        ("preact_resnet18", "fc", 1 / math.sqrt(3 * 512)),
        ("densenet121", "classifier", 1 / math.sqrt(3 * 1024)),
    ):
        layer = built(name, (3, 32, 32), 10, 0).get_submodule(head)
        assert float(layer.weight.detach().std()) == pytest.approx(std, rel=0.05)
        assert not layer.bias.any()
    model = built("vit_s", (3, 32, 32), 10, 0, depth=1)
    for tensor in (model.class_token, model.positions):
        assert float(tensor.detach().std()) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(("name", "rates"), [("mlp_512", [0.1, 0.1]), ("mobilenet_v2", [0.2]), ("vit_s", [])])
def test_dropout(name, rates):
    with torch.device("meta"):
        model = MODELS[name][0]((3, 32, 32), 10)
    assert [module.p for module in model.modules() if isinstance(module, nn.Dropout)] == rates


def test_recipes_are_the_papers_and_settings_of_train():
    assert set(RECIPES) <= set(MODELS)
    nguyen = {"epochs": 200, "batch_size": 128, "momentum": 0.9, "weight_decay": 0.0005, "schedule": "step"}
    rates = dict.fromkeys(("preact_resnet18", "preact_resnet34", "vgg19", "densenet121"), (0.1, 0.1))
    for name, (lr, rho) in (rates | {"mlp_512": (0.1, 0.01), "vit_s": (0.01, 0.01)}).items():
        assert RECIPES[name] == nguyen | {"lr": lr, "rho": rho}
    springer = {"epochs": 20, "batch_size": 100, "momentum": 0.9, "weight_decay": 0, "schedule": "cosine"}
    assert RECIPES["convnet_3"] == springer
    for name, recipe in RECIPES.items():
        settings = Settings(**recipe)
        assert {key: getattr(settings, key) for key in recipe} == recipe, name
