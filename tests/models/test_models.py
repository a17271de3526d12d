"""The papers' networks against their formulas, and the factory that builds them."""

import math
import random

import numpy as np
import pytest
import torch
from torch import nn

from evenly import Data
from evenly.experiment.execute import scaled
from evenly.models import MLP, MODELS, ConvNet, CubicCNN, factory


def cubic(bias, filters=5, dimension=4):
    model = CubicCNN(dimension, filters, bias, sigma_0=1.0, init="uniform" if bias else "normal").double()
    if bias:
        nn.init.normal_(model.bias)
    return model


def inputs(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("bias", [False, True])
def test_cubic_is_the_double_sum(bias):
    model, x = cubic(bias), inputs(6, 3, 4)
    w, b = model.filters.tolist(), model.bias.tolist() if bias else [0.0] * 5
    by_hand = [
        sum((sum(a * v for a, v in zip(w[j], patch, strict=True)) + b[j]) ** 3 for j in range(5) for patch in example)
        for example in x.tolist()
    ]
    assert model(x).tolist() == pytest.approx(by_hand, rel=1e-12)
    torch.testing.assert_close(model(x[:, [2, 0, 1]]), model(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bias", [False, True])
def test_cubic_gradient_is_the_formula(bias):
    model, x = cubic(bias), inputs(6, 3, 4)
    model(x).sum().backward()
    z = torch.einsum("jd,npd->jnp", model.filters.detach(), x)
    if bias:
        z += model.bias.detach()[:, None, None]
        torch.testing.assert_close(model.bias.grad, 3 * z.square().sum((1, 2)), rtol=1e-12, atol=0)
    expected = 3 * torch.einsum("jnp,npd->jd", z.square(), x)
    torch.testing.assert_close(model.filters.grad, expected, rtol=1e-12, atol=1e-12)


def test_two_logits_of_the_authors_code_are_this_network_up_to_signs():
    model, x = cubic(True, filters=6), inputs(6, 3, 4)
    z = (x @ model.filters.T + model.bias) ** 3
    flipped = CubicCNN(4, 6, bias=True).double()
    sign = torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0, -1.0], dtype=torch.float64)
    with torch.no_grad():
        flipped.filters.copy_(model.filters * sign[:, None])
        flipped.bias.copy_(model.bias * sign)
    difference = z[..., :3].sum((1, 2)) - z[..., 3:].sum((1, 2))
    torch.testing.assert_close(flipped(x), difference, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("sigma_0", "expected"), [(None, 0.1 / math.sqrt(50)), (0.3, 0.3)])
def test_cubic_normal_initialisation(sigma_0, expected):
    filters = CubicCNN(100, 200, sigma_0=sigma_0).filters.detach().double()
    count = filters.numel()
    assert float(filters.std()) == pytest.approx(expected, rel=5 / math.sqrt(2 * count))
    assert abs(float(filters.mean())) < 5 * expected / math.sqrt(count)
    assert float((filters**4).mean() / (filters**2).mean() ** 2) == pytest.approx(3, abs=5 * math.sqrt(24 / count))
    assert CubicCNN(100, 200, bias=True).bias.count_nonzero() == 0
    assert CubicCNN(100, 200).bias is None


@pytest.mark.parametrize(("scale", "bound"), [(None, 0.1 / 10), (0.5, 0.5 / 10)])
def test_cubic_uniform_initialisation_is_torchs_scaled(scale, bound):
    model = CubicCNN(100, 2000, bias=True, sigma_0=scale, init="uniform")
    for values in (model.filters.detach().double(), model.bias.detach().double()):
        assert 0.99 * bound < float(values.abs().max()) <= bound * (1 + 1e-6)
        assert float(values.std()) == pytest.approx(bound / math.sqrt(3), rel=5 / math.sqrt(values.numel()))


def test_mlp_is_the_composition_of_its_layers():
    model, x = MLP(6, 3, hidden=(5, 4)).double(), inputs(7, 2, 3)
    weights = list(model.parameters())
    assert [tuple(w.shape) for w in weights] == [(5, 6), (5,), (4, 5), (4,), (3, 4), (3,)]
    h = x.reshape(7, 6)
    for w, b in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        h = (h @ w.T + b).clamp(min=0)
    torch.testing.assert_close(model(x), h @ weights[-2].T + weights[-1])
    assert [tuple(w.shape) for w in MLP(6, 3, hidden=()).parameters()] == [(3, 6), (3,)]


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (4, 4), (8, 8), (7, 13)])
@pytest.mark.parametrize("batch_norm", [False, True])
def test_convnet_takes_images_of_any_size(size, batch_norm):
    model = ConvNet(3, 4, width=2, batch_norm=batch_norm).double()
    x = inputs(5, 3, *size).requires_grad_()
    outputs = model(x)
    assert outputs.shape == (5, 4)
    assert any(isinstance(m, nn.BatchNorm2d) for m in model.modules()) == batch_norm
    outputs.sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


SHAPES = {"cubic-cnn": (3, 50), "cubic-cnn-bias": (3, 50), "mlp": (5,)}
NARROW = {
    "preact_resnet18": {"width": 4},
    "preact_resnet34": {"width": 4},
    "vgg19": {"stages": ((4, 1), (8, 1))},
    "densenet121": {"growth": 4},
    "vit_s": {"width": 16, "hidden": 16},
    "resnet18": {"width": 4},
    "resnet50": {"width": 4},
}
"""Options that make the large ones small."""


@pytest.mark.parametrize("name", MODELS)
def test_the_seed_alone_decides_the_weights_of_a_named_model(name):
    def weights(seed):
        fresh, called = factory(name, SHAPES.get(name, (1, 32, 32)), 2, seed, **NARROW.get(name, {}))
        assert called == name
        first, second = (nn.utils.parameters_to_vector(fresh().parameters()) for _ in range(2))
        assert torch.equal(first, second)
        return first

    first = weights(3)
    torch.rand(5)
    assert torch.equal(weights(3), first)
    assert not torch.equal(weights(4), first)


@pytest.mark.parametrize("model", ["mlp", lambda: nn.Sequential(nn.Linear(5, 2), nn.Dropout())])
def test_building_leaves_the_global_random_state_alone(model):
    before = torch.random.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    factory(model, (5,), 2, 0)[0]()
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002
    assert random.getstate() == before[2]


def test_the_fresh_copies_of_a_given_module_share_nothing_with_it():
    module = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))
    fresh, name = factory(module, (5,), 3, seed=0)
    assert name == "Sequential as given"
    copy = fresh()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    with torch.no_grad():
        for value in copy.state_dict().values():
            value.add_(1)
    assert all(torch.equal(module.state_dict()[key], value) for key, value in before.items())
    assert all(torch.equal(fresh().state_dict()[key], value) for key, value in before.items())


def test_options_reach_a_named_model_and_hyphens_are_underscores():
    model = factory("mlp", (2, 3), 4, 0, hidden=(7,))[0]()
    assert [tuple(p.shape) for p in model.parameters()] == [(7, 6), (7,), (4, 7), (4,)]
    assert factory("cubic-cnn-bias", (3, 50), 2, 0)[0]().bias is not None
    for name, listed in (("preact-resnet18", "preact_resnet18"), ("cubic_cnn", "cubic-cnn")):
        assert factory(name, (3, 32, 32), 2, 0)[1] == listed


REFUSED = [
    ("mpl", (5,), 2, "no model is called 'mpl'; did you mean 'mlp'"),
    ("cubic-cnn", (3, 50), 3, "cubic-cnn takes patches"),
    ("cubic-cnn", (50,), 2, "cubic-cnn takes patches"),
    ("convnet", (50,), 2, r"convnet takes images \(C, H, W\), got inputs \(50,\)"),
    (3, (5,), 2, "a model must be a name, .* got a int"),
    (lambda: "a network", (5,), 2, "returned a str; it must build a torch.nn.Module"),
]
STRANGE = [
    *(("cubic-cnn", options) for options in ({"filters": -1}, {"filters": 0}, {"sigma_0": -1.0})),
    *(("mlp", options) for options in ({"dropout": 2.5}, {"hidden": [0]}, {"hiden": [3]})),
    *(("convnet", {"width": width}) for width in (0, -1, 2.5)),
    ("vgg19", {"stages": "a"}),
    ("densenet121", {"growth": 0}),
    ("vit_s", {"heads": 0}),
    ("resnet18", {"blocks": []}),
    ("mobilenet_v2", {"dropout": -1}),
]


@pytest.mark.parametrize(("model", "shape", "classes", "message"), REFUSED)
def test_refused_models(model, shape, classes, message, refused, built):
    refused(message, built, model, shape, classes, 0)


@pytest.mark.parametrize(("model", "options"), STRANGE)
def test_refused_options(model, options, refused, built):
    shape = {"cubic-cnn": (3, 5), "mlp": (3,)}.get(model, (3, 32, 32))
    refused(r"with options \{.*see its docstring", built, model, shape, 2, 0, **options)


@pytest.mark.parametrize("model", [nn.Linear(5, 2), lambda: nn.Linear(5, 2)])
def test_options_are_for_a_model_by_name(model, refused, built):
    refused("model option 'hiden' is for a model by name", built, model, (5,), 2, 0, hiden=(3,))


def test_every_model_says_in_a_line_what_it_is():
    for make, summary in MODELS.values():
        assert callable(make)
        assert summary
        assert "\n" not in summary


IMAGES = torch.randint(256, (8, 3, 8, 8), generator=torch.Generator().manual_seed(0)).to(torch.uint8)


def test_images_can_lose_their_mean_alone():
    fresh, x = factory("convnet", (3, 8, 8), 2, 5)[0], IMAGES.float() / 255
    less = x - x.double().mean((0, 2, 3), keepdim=True).float()
    outputs = scaled(fresh, "mean", Data((IMAGES, torch.arange(8) % 2)))().eval()(x)
    torch.testing.assert_close(outputs, fresh().eval()(less), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("normalise", ["none", "data"])
def test_a_seed_has_other_draws_of_the_same_network(normalise):
    data = Data((IMAGES, torch.arange(8) % 2))
    fresh = scaled(factory("convnet", (3, 8, 8), 2, 5)[0], normalise, data)
    first, again, other, same = (next(fresh(*draw).parameters()) for draw in ((), (0,), (1,), (1,)))
    assert torch.equal(first, again)
    assert torch.equal(other, same)
    assert not torch.equal(first, other)
