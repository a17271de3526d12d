"""Optimizers by name."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from evenly.errors import EvenlyError
from evenly.models import MODELS, factory
from evenly.optim import ASAM, LSAM, SAM, RandomPerturbation
from evenly.optim.registry import BASES, OPTIMIZERS, builder, known_name, last_layer, passes


def test_sam_by_name_passes_the_settings_to_its_base():
    opt = builder("sam", lr=0.3, momentum=0.8, weight_decay=0.01, rho=0.2)([nn.Parameter(torch.zeros(1))])
    group = opt.param_groups[0]
    assert (group["lr"], group["momentum"], group["weight_decay"], group["rho"]) == (0.3, 0.8, 0.01, 0.2)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_name_is_the_wrapper_and_the_base_it_says_and_takes_its_passes(name):
    model = nn.Linear(3, 2)
    opt = builder(name, lr=0.01, rho=0.2)(model.parameters())
    wrapper, _, base = name.partition(":")
    kinds = {"sam": SAM, "asam": ASAM, "lsam": LSAM, "random_perturbation": RandomPerturbation}
    kinds |= {"local_sam": SAM, "local_asam": ASAM}
    if wrapper in kinds:
        assert type(opt) is kinds[wrapper]
        assert type(opt.base).__name__.lower() == (base or "sgd")
    else:
        assert type(opt).__name__.lower() == name in BASES
    calls = []

    def closure():
        calls.append(opt.zero_grad())
        loss = model(torch.ones(4, 3)).square().sum()
        loss.backward()
        return loss

    opt.step(closure)
    assert len(calls) == passes(name)


def test_random_noise_is_as_long_as_sams_perturbation():
    opt = builder("random_perturbation", rho=0.3)([nn.Parameter(torch.zeros(100, 100)), nn.Parameter(torch.zeros(50))])
    opt.ascend()
    assert math.sqrt(sum(float(p.detach().square().sum()) for p in opt.param_groups[0]["params"])) == pytest.approx(
        0.3, rel=0.03
    )


@pytest.mark.parametrize("name", sorted(name for name in MODELS if "cubic" not in name))  # these have one layer
def test_the_last_layer_of_every_model_gives_its_outputs(name):
    model = factory(name, (3, 32, 32), 7, 0)[0]()
    matrix, *rest = last_layer(list(model.parameters()))
    assert len(matrix) == 7
    assert [tuple(bias.shape) for bias in rest] in ([], [(len(matrix),)])


def test_a_perturbation_over_sgd_has_one_name_and_unknown_names_are_refused():
    assert known_name("lsam:sgd") == "lsam"
    for name, hint in (("sgd:sgd", "sgd"), ("sam:adagrad", "sam:adam"), ("lsma", "lsam")):
        with pytest.raises(EvenlyError, match=f"no optimizer is called '{name}'; did you mean '{hint}"):
            known_name(name)


def test_a_perturbation_of_radius_0_is_refused():
    with pytest.raises(EvenlyError, match="rho must be above 0 with random_perturbation, got 0"):
        builder("random_perturbation", rho=0.0)
    builder("adam", rho=0.0)
