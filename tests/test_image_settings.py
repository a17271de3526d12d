"""Settings: whose count where user, data and model differ; ASAM's radius; how often a checkpoint is written."""

from __future__ import annotations

import json
from itertools import product

import pytest
import torch
from PIL import Image

import evenly
from evenly.data import DATASETS, Data
from evenly.data.images.parts import FEW_STROKES, PHOTOGRAPHS
from evenly.errors import EvenlyError
from evenly.experiment import DEFAULTS, memory_explained, reopen, resolve
from evenly.models import MODELS, RECIPES, factory
from evenly.models.standardised import IMAGENET
from evenly.optim import ASAM, SAM
from evenly.optim.registry import ADAPTIVE, OPTIMIZERS, PLAIN, builder


def images(channels=3, recipe=None, count=24):
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (count, channels, 8, 8), generator=draw, dtype=torch.uint8)
    parts = {"train": (x, torch.arange(count) % 2), "test": (x[:8], torch.arange(8) % 2)}
    return Data(**parts, recipe=recipe or {})


def plan_of(recipe, model=None, method="erm", **settings):
    return resolve(images(recipe=recipe), method, settings, model)[0]


# Whose setting counts


def expected(model, data_recipe, user, named_by_user):
    """The order of precedence written out: the last one that says anything wins."""
    sources = [DEFAULTS, RECIPES.get(model, {}), data_recipe, user]
    if named_by_user:
        sources[1:3] = sources[2:0:-1]
    return {name: next(s[name] for s in reversed(sources) if name in s) for name in DEFAULTS if name != "model"}


@pytest.mark.parametrize("model", ["vit_s", "mlp_512", "preact_resnet18", "convnet_3", "mlp", "resnet18"])
@pytest.mark.parametrize("named_by_user", [False, True])
def test_precedence(model, named_by_user):
    own = {"lr": 0.7, "epochs": 11, "augment": "basic", "momentum": 0.3, "rho": 0.4, "schedule": "cosine"}
    for data_recipe, user in product([{}, {"lr": 0.7, "augment": "basic"}, own], [{}, {"lr": 0.123}, {"rho": 0.2}]):
        recipe = data_recipe if named_by_user else data_recipe | {"model": model}
        plan = plan_of(recipe, model if named_by_user else None, **user)
        assert {k: v for k, v in plan.items() if k != "model"} == expected(model, data_recipe, user, named_by_user)
        if not named_by_user:
            assert plan["model"] == model


def test_a_model_that_the_user_names_replaces_the_recipe_of_the_datas_own():
    """The data's recipe is kept where the named model says nothing, and the recipe of the other model is not."""
    recipe = {"model": "vit_s", "augment": "basic", "epochs": 7}
    assert plan_of(recipe)["lr"] == 0.01
    assert plan_of(recipe)["epochs"] == 7
    assert plan_of(recipe, "mlp")["lr"] == DEFAULTS["lr"]
    assert plan_of(recipe, "mlp")["epochs"] == 7
    assert plan_of(recipe, "preact_resnet18")["epochs"] == 200
    assert plan_of(recipe, "preact_resnet18")["augment"] == "basic"
    assert plan_of(recipe, "preact-resnet18") == plan_of(recipe, "preact_resnet18")
    assert plan_of(recipe, lambda: None)["lr"] == DEFAULTS["lr"]  # a function has no recipe of its own


def test_settings_of_single_methods_in_the_datas_recipe_go_before_a_models():
    recipe = {"lr": 0.3, "options": {"useful": {"lr": 0.02, "factor": 3}, "erm": {}}}
    for model, others in ((None, 0.3), ("vit_s", 0.01)):
        plan, options = resolve(images(recipe=recipe), "useful", {}, model)
        assert (plan["lr"], options["factor"]) == (0.02, 3)
        assert plan_of(recipe, model)["lr"] == others
        assert plan_of(recipe, model, "useful", lr=0.5)["lr"] == 0.5


def test_the_papers_own_rates():
    """Nguyen et al. 2024, App. C: lr 0.1 and rho 0.1, but lr and rho 0.01 for ViT-S and rho 0.01 for the MLP."""
    for model in ("preact_resnet18", "preact_resnet34", "vgg19", "densenet121", "mlp_512", "vit_s"):
        plan = plan_of(PHOTOGRAPHS, model)
        assert plan["lr"] == (0.01 if model == "vit_s" else 0.1)
        assert plan["rho"] == (0.01 if model in ("mlp_512", "vit_s") else 0.1)
        assert (plan["epochs"], plan["batch_size"], plan["schedule"]) == (200, 128, "step")
        assert (plan["momentum"], plan["weight_decay"]) == (0.9, 5e-4)
        assert (plan["augment"], plan["normalise"]) == ("basic", "data")
    assert set(RECIPES) < set(MODELS)
    assert plan_of(PHOTOGRAPHS) == plan_of(PHOTOGRAPHS, "preact_resnet18")
    assert plan_of(FEW_STROKES)["epochs"] == RECIPES["convnet_3"]["epochs"]
    for recipe in RECIPES.values():
        assert set(recipe) <= set(DEFAULTS)


def test_what_resolve_gives_is_what_is_trained_with(tmp_path):
    data = images(recipe={"model": "convnet_3", "augment": "basic", "normalise": "data"})
    evenly.train(None, data, epochs=1, lr=0.02, out=tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    plan = DEFAULTS | RECIPES["convnet_3"] | {"augment": "basic", "normalise": "data", "epochs": 1, "lr": 0.02}
    assert config["settings"] == {k: v for k, v in plan.items() if k not in ("model", "model_options")}
    assert config["model"]["name"] == "convnet_3"


def test_unknown_models_and_settings_are_refused():
    for given, said in (
        ({"model": "vit-x"}, "no model is called 'vit-x'"),
        ({"recipe": {"model": "resnet81"}}, "no model is called 'resnet81'; did you mean 'resnet18'"),
    ):
        with pytest.raises(EvenlyError, match=said):
            plan_of(given.get("recipe", {}), given.get("model"))
    with pytest.raises(EvenlyError, match="no setting or option of erm is called 'augmnt'; did you mean 'augment'"):
        plan_of({}, augmnt="basic")
    for name, value in (("augment", 3), ("precision", "fp8"), ("normalise", 1)):
        with pytest.raises(EvenlyError, match=f"{name} .* cannot be used; give"):
            plan_of({}, **{name: value})


# Scaling and weights from a file


def test_weights_from_a_file_bring_imagenets_scale_unless_the_user_gives_one(tmp_path):
    weights = {"weights": "somewhere.npz"}
    assert plan_of(PHOTOGRAPHS)["normalise"] == "data"
    assert plan_of(PHOTOGRAPHS, model_options=weights)["normalise"] == "imagenet"
    assert plan_of(PHOTOGRAPHS, "resnet18", model_options=weights)["normalise"] == "imagenet"
    assert plan_of(PHOTOGRAPHS, model_options=weights, normalise="data")["normalise"] == "data"
    assert plan_of(PHOTOGRAPHS, model_options=weights, normalise="none")["normalise"] == "none"
    assert plan_of({}, model_options=weights)["normalise"] == "imagenet"
    assert plan_of(PHOTOGRAPHS, model_options={"stem": "imagenet"})["normalise"] == "data"

    data = images(recipe=FEW_STROKES)
    network = factory("convnet_3", (3, 8, 8), 2, seed=9)[0]()
    torch.save(network.state_dict(), tmp_path / "weights.pt")
    options = {"weights": str(tmp_path / "weights.pt")}
    run = evenly.train(None, data, epochs=1, lr=1e-9, model_options=options, out=tmp_path / "run")
    assert run.model.mean.flatten().tolist() == pytest.approx(IMAGENET[0])
    assert run.model.std.flatten().tolist() == pytest.approx(IMAGENET[1])
    moved = torch.cat(
        [(p - q).abs().flatten() for p, q in zip(run.model.parameters(), network.parameters(), strict=True)]
    )
    assert moved.max() < 1e-6
    again, _, config = reopen(tmp_path / "run", data)
    assert config["settings"]["normalise"] == "imagenet"
    assert torch.equal(again.outputs(data.test), run.outputs(data.test))


# ASAM by name


def radius(tmp_path, optimizer, name, **settings):
    run = evenly.train("mlp", images(recipe=settings.pop("recipe", None)), optimizer=optimizer, epochs=1,
                       out=tmp_path / name, **settings)  # fmt: skip
    return run, json.loads((tmp_path / name / "config.json").read_text())["settings"]["rho"]


def test_asams_radius_is_ten_times_sams_unless_it_is_given(tmp_path):
    assert ADAPTIVE == {"asam": 10.0}
    assert radius(tmp_path, "sam", "a")[1] == DEFAULTS["rho"] == 0.05
    assert radius(tmp_path, "asam", "b")[1] == pytest.approx(0.5)
    assert radius(tmp_path, "asam", "c", rho=0.05)[1] == 0.05
    assert radius(tmp_path, "asam", "d", recipe={"rho": 0.02})[1] == pytest.approx(0.2)
    assert radius(tmp_path, "sam", "e", recipe={"rho": 0.02})[1] == 0.02


def test_the_radius_is_the_one_trained_with_and_read_back(tmp_path):
    """Against ASAM built by hand at each radius, from the same start."""

    def by_hand(rho):
        return lambda params: ASAM(torch.optim.SGD(params, lr=0.05, momentum=0.9), rho=rho)

    def weights(run):
        return torch.cat([p.detach().flatten() for p in run.model.parameters()])

    named, half = radius(tmp_path, "asam", "a")[0], evenly.train("mlp", images(), optimizer=by_hand(0.5), epochs=1)
    assert torch.equal(weights(named), weights(half))
    given = radius(tmp_path, "asam", "b", rho=0.05)[0]
    twentieth = evenly.train("mlp", images(), optimizer=by_hand(0.05), epochs=1)
    assert torch.equal(weights(given), weights(twentieth))
    assert not torch.equal(weights(half), weights(twentieth))
    for name, run in (("a", named), ("b", given)):  # the configuration has the radius itself: not ten times that
        again, _, _ = reopen(tmp_path / name, images())
        assert torch.equal(weights(again), weights(run))


def test_named_optimizers_are_what_they_are_called():
    for name in OPTIMIZERS:
        built = builder(name, rho=0.3)([torch.nn.Parameter(torch.ones(3))])
        kind = {"sam": SAM, "asam": ASAM, "sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
        assert type(built) is kind[name]
        if name in PLAIN:
            assert {group["rho"] for group in built.param_groups} == {0.3}
            assert type(built.base) is torch.optim.SGD


def test_asam_is_compared_with_sgd_for_twice_the_epochs():
    table = evenly.compare("mlp", images(), methods=["erm"], optimizers=["asam"], seeds=1, epochs=2, batch_size=8)
    rows = {row["arm"]: row for row in table.rows}
    arm, control = rows["erm+asam"], rows["erm+sgd at the cost of erm+asam"]
    assert arm["control"] == control["arm"]
    assert control["optimizer"] == "sgd"
    assert arm["cost"] == control["cost"] == 2 * 2 * 24
    assert (arm["epochs"], control["epochs"]) == (2, 4)


# Memory


def test_memory_that_does_not_suffice_is_said_in_one_line(monkeypatch):
    class Card:
        total_memory = 80 * 2**30

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Card)
    for size, said in ((64, "batch size 64"), (None, "batch size full")):
        with (
            pytest.raises(
                EvenlyError, match=f"the GPU's 80 GiB do not suffice at {said} .*lower batch_size"
            ) as refused,
            memory_explained(size),
        ):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.\nMore. And more")
        assert "\n" not in str(refused.value)
        assert "CUDA out of memory" in str(refused.value)
    with pytest.raises(RuntimeError, match="another"), memory_explained(1):
        raise RuntimeError("another")


def test_every_image_data_set_names_a_model_there_is():
    for recipe in (PHOTOGRAPHS, FEW_STROKES):
        assert recipe["model"] in MODELS
    assert {"cifar10", "fashion-mnist"} <= set(DATASETS)


def test_a_run_on_a_folder_of_images_is_reopened_with_its_options(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(8):
            shade = 40 * (name == "dog") + 5 * i
            Image.new("RGB", (10 + i, 12), (shade, shade, 90)).save(tmp_path / "photos" / name / f"{i}.png")
    options = {"size": 8, "validation": 0.25}
    run = evenly.train(
        "mlp", tmp_path / "photos", epochs=2, batch_size=4, data_options=options, device="cpu", out=tmp_path / "run"
    )
    again, data, _ = reopen(tmp_path / "run")
    assert torch.equal(again.outputs(data.test), run.outputs(data.test))
    (tmp_path / "photos").rename(tmp_path / "moved")
    again, data, _ = reopen(tmp_path / "run", tmp_path / "moved")
    assert torch.equal(again.outputs(data.test), run.outputs(data.test))
    with pytest.raises(EvenlyError, match="give that data as well"):
        reopen(tmp_path / "run")
