"""Recipes of papers by name."""

from __future__ import annotations

import pytest

import evenly
from evenly.data import dataset_options
from evenly.data.benchmarks import RECIPES
from evenly.errors import EvenlyError
from evenly.experiment.recipes import recipe_of
from evenly.methods import find
from evenly.models import find as find_model
from evenly.settings import Settings

EVERY = [(data, name) for data, recipes in RECIPES.items() for name in recipes]


@pytest.fixture
def digits(monkeypatch):
    """A recipe for data that ships with evenly."""
    recipe = {
        "model": "mlp",
        "data_options": {"rate": 0.9},
        "epochs": 2,
        "momentum": 0.5,
        "options": {"pde": {"warmup_epochs": 1}},
        "sweep": {"lr": [0.01, 0.02]},
    }
    monkeypatch.setitem(RECIPES, "shortcut-digits", {"tiny": recipe})
    return recipe


@pytest.mark.parametrize(("data", "name"), EVERY)
def test_every_recipe_has_names_and_values_that_evenly_takes(data, name):
    recipe = recipe_of(data, name)
    Settings(**recipe.settings)
    assert set(recipe.data_options) <= set(dataset_options(data))
    assert set(recipe.sweep) <= {"lr", "rho"}
    for method, options in recipe.options.items():
        find(method).checked(dict(options))
    if recipe.model is not None:
        find_model(recipe.model)


def test_table_8_of_deng_et_al():
    """lr, weight decay, batch, T_0, J and m."""
    table = {
        "waterbirds": (1e-2, 1e-2, 64, 140, 10, 10),
        "celeba": (1e-2, 1e-4, 128, 16, 10, 50),
        "civilcomments": (1e-5, 1e-2, 16, 15, 2, 300),
    }
    for data, published in table.items():
        recipe = recipe_of(data, "pde-paper")
        settings, pde = recipe.settings, recipe.options["pde"]
        rates = (settings["lr"], settings["weight_decay"], settings["batch_size"])
        assert (*rates, pde["warmup_epochs"], pde["every"], pde["add"]) == published


def test_a_recipe_is_what_it_has_typed_in_full(digits):
    named = evenly.train("shortcut-digits", method="pde", recipe="tiny")
    typed = evenly.train(
        "shortcut-digits",
        method="pde",
        model="mlp",
        data_options={"rate": 0.9},
        epochs=2,
        momentum=0.5,
        warmup_epochs=1,
    )
    assert named.plan.digest == typed.plan.digest


def test_what_the_user_gives_takes_precedence(digits):
    run = evenly.train(
        "shortcut-digits", method="pde", recipe="tiny", lr=0.5, data_options={"rate": 0.8}, warmup_epochs=2
    )
    assert run.plan.settings.lr == 0.5
    assert run.plan.settings.epochs == 2
    assert run.plan.data.options["rate"] == 0.8
    assert run.plan.method.options["warmup_epochs"] == 2


def test_a_comparison_sweeps_what_the_paper_did(digits):
    table = evenly.compare("shortcut-digits", methods=["erm"], seeds=1, recipe="tiny", controls=False)
    assert [dict(summary.arm.swept) for summary in table.summary] == [{"lr": 0.01}, {"lr": 0.02}]
    table = evenly.compare("shortcut-digits", methods=["erm"], seeds=1, recipe="tiny", controls=False, lr=0.04)
    assert [dict(summary.arm.swept) for summary in table.summary] == [{}]


@pytest.mark.parametrize(
    ("data", "name", "message"),
    [
        ("waterbirds", "pde-papr", "no recipe of waterbirds is called 'pde-papr'; did you mean 'pde-paper'?"),
        ("shortcut-digits", "pde-paper", "recipe 'pde-paper' is of a published data set, and this one has none"),
        ("waterbirds", 3, "recipe must be a name, got 3"),
    ],
)
def test_refusals(data, name, message):
    with pytest.raises(EvenlyError, match=message.replace("?", r"\?")):
        evenly.train(data, recipe=name)
