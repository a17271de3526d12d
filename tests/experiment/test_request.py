"""What becomes of a request: whose value counts where user, data and model differ, and what is refused."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from attrs import evolve
from torch import nn

from evenly.data import Data, Texts
from evenly.data.images.parts import FEW_STROKES, PHOTOGRAPHS
from evenly.errors import EvenlyError, EvenlyWarning
from evenly.experiment.request import (
    Request,
    Source,
    check_inference,
    erm_settings,
    plan_for,
    recording,
    source,
    split_arguments,
    warn_of_many_groups,
    warn_of_small_groups,
    without_unused_groups,
)
from evenly.methods import METHODS
from evenly.models import MODELS, RECIPES
from evenly.optim.registry import OPTIMIZERS, rho_factor
from evenly.runs.plan import DataSpec
from evenly.settings import Execution, Recording, Settings, settings_of

DEFAULTS = Settings()


def planned(data, model=None, method="erm", optimizer="sgd", **values):
    return plan_for(Request(method, optimizer, model, values), data, DataSpec("toy"), 0)


# Whose value counts


def expected(model, recipe, user, named_by_user):
    """The order of precedence written out: the last one that has a value wins."""
    sources = [RECIPES.get(model, {}), recipe]
    return Settings(**{**sources[named_by_user], **sources[not named_by_user], **user})


@pytest.mark.parametrize("model", ["vit_s", "mlp_512", "preact_resnet18", "convnet_3", "mlp", "resnet18"])
@pytest.mark.parametrize("named_by_user", [False, True])
def test_the_user_then_data_and_model_then_the_default(images, model, named_by_user):
    """A model that the user names has its recipe before the data's; one that the data names after it."""
    own = {"lr": 0.7, "epochs": 11, "augment": "basic", "momentum": 0.3, "rho": 0.4, "schedule": "cosine"}
    for recipe, user in product([{}, {"lr": 0.7, "augment": "basic"}, own], [{}, {"lr": 0.123}, {"rho": 0.2}]):
        data = images(recipe=recipe if named_by_user else recipe | {"model": model})
        plan = planned(data, model if named_by_user else None, **user)
        assert plan.settings == expected(model, recipe, user, named_by_user)
        assert plan.model.name == model


def test_a_model_that_the_user_names_replaces_the_recipe_of_the_datas_own(images):
    data = images(recipe={"model": "vit_s", "augment": "basic", "epochs": 7})
    assert (planned(data).settings.lr, planned(data).settings.epochs) == (0.01, 7)
    for model in ("mlp", lambda: nn.Linear(3, 2)):  # neither has a recipe
        settings = planned(data, model).settings
        assert (settings.lr, settings.epochs, settings.augment) == (DEFAULTS.lr, 7, "basic")
    assert planned(data, "preact_resnet18").settings.epochs == 200
    assert planned(data, "preact-resnet18") == planned(data, "preact_resnet18")


def test_a_recipe_may_suit_single_methods(images):
    """With options of their own and with settings, which go before a model's recipe."""
    of_pde = {"decay": 0.1, "every": 2, "lr": 0.75, "rho": 0.5}
    data = images(recipe={"epochs": 7, "lr": 0.5, "options": {"pde": of_pde, "useful": {"lr": 0.02, "factor": 3}}})
    plan = planned(data, method="pde", lr=0.25, every=3)
    assert plan.settings == Settings(epochs=7, lr=0.25, rho=0.5)
    own = {name: option.default for name, option in METHODS["pde"].options.items()}
    assert plan.method.options == own | {"decay": 0.1, "every": 3}  # with the defaults: another version may have others
    assert planned(data).settings == Settings(epochs=7, lr=0.5)
    for model in (None, "vit_s"):
        assert planned(data, model, "useful").settings.lr == 0.02
        assert planned(data, model, "useful", lr=0.5).settings.lr == 0.5
    assert planned(data, "vit_s").settings.lr == 0.01
    assert data.recipe["options"]["pde"] is of_pde  # read, not used up


def test_the_papers_own_rates(images):
    """Nguyen et al. 2024, App. C: lr 0.1 and rho 0.1, but lr and rho 0.01 for ViT-S and rho 0.01 for the MLP."""
    data = images(recipe=PHOTOGRAPHS)
    shared = {"epochs": 200, "batch_size": 128, "schedule": "step", "momentum": 0.9, "weight_decay": 5e-4}
    shared |= {"augment": "basic", "normalise": "data"}
    for model in ("preact_resnet18", "preact_resnet34", "vgg19", "densenet121", "mlp_512", "vit_s"):
        lr = 0.01 if model == "vit_s" else 0.1
        rho = 0.01 if model in ("mlp_512", "vit_s") else 0.1
        assert planned(data, model).settings == Settings(lr=lr, rho=rho, **shared)
    assert planned(data) == planned(data, "preact_resnet18")
    assert planned(images(recipe=FEW_STROKES)).settings.epochs == RECIPES["convnet_3"]["epochs"]
    assert {*RECIPES, PHOTOGRAPHS["model"], FEW_STROKES["model"]} <= set(MODELS)
    assert all(set(recipe) <= {*settings_of(Settings), "model_options"} for recipe in RECIPES.values())


def test_asams_radius_is_ten_times_sams_unless_it_is_given(images):
    adaptive = {name for name in OPTIMIZERS if rho_factor(name) != 1}
    assert adaptive == {name for name in OPTIMIZERS if name.startswith(("asam", "local_asam"))}
    assert rho_factor("asam:adamw") == 10
    assert planned(images(), optimizer="sam").settings.rho == DEFAULTS.rho == 0.05
    assert planned(images(), optimizer="asam").settings.rho == pytest.approx(0.5)
    assert planned(images(), optimizer="asam:sgd") == planned(images(), optimizer="asam")
    assert planned(images(), optimizer="asam", rho=0.05).settings.rho == 0.05
    data = images(recipe={"rho": 0.02})
    assert planned(data, optimizer="asam").settings.rho == pytest.approx(0.2)
    assert planned(data, optimizer="sam").settings.rho == 0.02


def test_weights_from_a_file_bring_imagenets_scale_unless_the_user_gives_one(images):
    def scaling(recipe, model=None, channels=3, **values):
        return planned(images(channels, recipe), model, **values).settings.normalise

    weights = {"model_options": {"weights": "somewhere.npz"}}
    assert scaling(PHOTOGRAPHS) == "data"
    for recipe, model in ((PHOTOGRAPHS, None), (PHOTOGRAPHS, "resnet18"), ({}, None), ({}, "mobilenet_v2")):
        assert scaling(recipe, model, **weights) == "imagenet"
    for given in ("data", "none"):
        assert scaling(PHOTOGRAPHS, normalise=given, **weights) == given
    assert scaling(PHOTOGRAPHS, model_options={"stem": "imagenet"}) == "data"
    assert scaling({}, "mobilenet_v2", channels=1, **weights) == "none"
    texts = Data(train=(Texts(["a", "b"]), [0, 1]))
    assert planned(texts, "bag_of_words", model_options={"weights": "x.pt"}).settings.normalise == "none"


def test_a_module_of_the_users_scales_its_own_inputs(images):
    own = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    assert planned(images(recipe={"normalise": "data"}), own).settings.normalise == "none"
    with pytest.raises(EvenlyError, match="normalise 'imagenet' is for a model by name"):
        planned(images(), own, normalise="imagenet")


# Models and optimizers by name and by object


def test_objects_of_the_users_are_named_and_described(images):
    def small():
        return nn.Linear(3, 2)

    module = small()
    for model, name in ((module, "Linear as given"), (small, small.__qualname__)):
        spec = planned(images(), model).model
        assert (spec.name, spec.own, spec.model) == (name, True, model)
    assert planned(images(), "mlp").model.model == "mlp"

    def rate(lr):
        return lambda params: torch.optim.RMSprop(params, lr=lr)

    one, same, other = (planned(images(), optimizer=rate(lr)) for lr in (0.1, 0.1, 0.2))
    assert one.optimizer.defaults.startswith("RMSprop ")
    assert one.digest == same.digest != other.digest
    with pytest.raises(EvenlyError, match="a model is a name, a function that builds one, or a module, not a int"):
        planned(images(), 3)


def test_the_unit_of_cost_is_what_erm_would_take(images):
    """PDE may have epochs of its own in a recipe; what the user sets is set for both."""
    data = images(recipe={"epochs": 7, "options": {"pde": {"epochs": 40}, "erm": {"lr": 0.3}}})
    plan = planned(data, method="pde")
    assert (plan.settings.epochs, plan.reference_epochs) == (40, 7)
    assert planned(data, method="pde", epochs=30, warmup_epochs=5).reference_epochs == 30
    assert erm_settings(Request("pde", "sam", None, {}), data) == Settings(epochs=7, lr=0.3)


# Data, groups, execution


def test_groups_may_name_columns_of_a_table(tmp_path):
    table = tmp_path / "own.csv"
    assert source(table, None, {"groups": "place", "lr": 0.1}) == (Source(table, {"groups": "place"}), {"lr": 0.1})
    assert source(table, {"groups": "place"}, {"groups": "place"})[0].options == {"groups": "place"}
    for groups in ("given", "infer"):
        assert source(table, None, {"groups": groups}) == (Source(table, {}), {"groups": groups})
    for data, options, message in (
        ("own.npz", {}, "groups 'place' names columns of a table and own.npz holds arrays"),
        ("shortcut-digits", {}, "names columns of a table, which shortcut-digits is not"),
        (table, {"groups": "label"}, "groups are 'place' and, of the data, 'label'; name the columns once"),
    ):
        with pytest.raises(EvenlyError, match=message):
            source(data, options, {"groups": "place"})


def test_the_data_of_a_plan(data, arrays, tmp_path):
    drawn = Source(lambda seed: Data(train=arrays(seed=seed), name=f"drawn {seed}"), {})
    assert drawn.spec(drawn.data(3)) == DataSpec("drawn 3")
    assert Source(data, {}).spec(data) == DataSpec("toy", fingerprint=data.fingerprint())
    named = Source("patches", {"n": 40})
    spec = named.spec(named.data(0))
    assert (spec.name, spec.place, spec.options["n"]) == ("patches", None, 40)
    assert len(spec.options) > 1  # with the defaults: another version may have others
    (tmp_path / "own.csv").write_text("a,label\n" + "1,x\n2,y\n" * 10)
    file = Source(tmp_path / "own.csv", {})
    assert file.spec(file.data(0)) == DataSpec("own", place=str(tmp_path / "own.csv"), kind="file")
    assert named.fingerprint(named.data(0), 0) is None
    for own in (file, Source(arrays(), {})):
        assert own.fingerprint(own.data(3), 3) == own.fingerprint(own.data(0), 0) == own.data(0).fingerprint()
    divided = Source(arrays(60), {})
    assert divided.spec(divided.data(3)) == divided.spec(divided.data(0))  # each seed divides them anew
    changed = Source((*arrays(60)[:2], arrays(60, seed=1)[2]), {})
    assert changed.spec(changed.data(0)) != divided.spec(divided.data(0))
    with pytest.raises(EvenlyError, match="there is no data; give a Data, a name"):
        Source(None, {}).data(0)


def test_inference_is_refused_where_nothing_would_use_it(data):
    erm, rule, dro = (
        planned(data, method=method, groups="infer", **values)
        for method, values in (("erm", {}), ("erm", {"select": "worst-group"}), ("group_dro", {}))
    )
    with pytest.raises(EvenlyError, match="groups 'infer' would not be used by erm; give select='worst-group', or"):
        check_inference([erm])
    for plans in ([erm, dro], [rule], [planned(data)]):
        check_inference(plans)
    assert without_unused_groups(erm) == planned(data)
    assert without_unused_groups(rule) == rule
    assert without_unused_groups(dro) == dro
    by_eiil = evolve(erm, settings=evolve(erm.settings, infer="eiil"))
    assert without_unused_groups(by_eiil) == planned(data)
    with pytest.raises(EvenlyError, match="infer 'eiil' is how groups are inferred; give groups='infer' as well"):
        planned(data, infer="eiil")


def test_many_groups_of_a_few_examples_each_are_worth_a_warning():
    x, y = torch.randn(60, 2), torch.arange(60) % 2
    with pytest.warns(EvenlyWarning, match="60 training examples are in 30 groups, the smallest of 2 examples"):
        warn_of_many_groups(Data(train=(x, y, torch.arange(60) % 30)))
    for groups in (torch.arange(60) % 20, torch.arange(60) // 60, torch.ones(60, 30, dtype=torch.bool)):
        warn_of_many_groups(Data(train=(x, y, groups)))
    warn_of_many_groups(Data(train=(x, y)))


def grouped(counts=(60, 60), **more):
    """Two groups, which are the classes; `counts` of them in validation."""
    groups = torch.arange(40) % 2
    held = torch.arange(2).repeat_interleave(torch.tensor(counts))
    parts = [(torch.randn(len(each), 2), each, each) for each in (groups, held)]
    return Data(train=parts[0], validation=parts[1], **more)


@pytest.mark.parametrize(
    ("data", "values", "rule"),
    [
        (grouped(), {}, "worst-group"),
        (grouped(), {"select": "average"}, "average"),
        (grouped(recipe={"select": "worst-class"}), {}, "worst-class"),
        (grouped(recipe={"select": "worst-class"}), {"select": "last"}, "last"),
        (grouped(), {"patience": 3}, "worst-group"),
        (grouped((60, 0)), {}, "last"),  # a group that validation lacks
        (grouped(), {"evaluate_every": None}, "last"),
        (Data(train=(torch.randn(4, 2), [0, 1, 0, 1], [0, 1, 0, 1])), {}, "last"),
        (Data(*[(torch.randn(40, 2), torch.arange(40) % 2)] * 2), {}, "last"),
        (Data(*[(torch.randn(40, 2), torch.arange(40) % 2)] * 2), {"groups": "infer"}, "worst-group"),
    ],
)
def test_a_method_may_prefer_a_selection_rule_for_all(data, values, rule):
    """The user's, else the recipe's, else the one that a method prefers where the data allows it, else the last."""
    assert [method for method in METHODS.values() if method.prefers] == [METHODS["pde"]]
    for method in ("pde", "erm"):
        request = Request(method, "sgd", None, values, prefers=METHODS["pde"].prefers)
        assert plan_for(request, data, DataSpec("toy"), 0).settings.select == rule
        assert erm_settings(request, data).select == rule
    if "patience" not in values:
        assert planned(data, **values).settings.select in (values.get("select"), data.recipe.get("select"), "last")


def test_small_validation_groups_are_worth_a_warning():
    rule, other = Settings(select="worst-group"), Settings(select="worst-class")
    said = "where 'group 1' has 20 examples: the standard error of its accuracy is up to 10 points; hold out more"
    with pytest.warns(EvenlyWarning, match=said):
        warn_of_small_groups(grouped((60, 20)), rule)
    for data, settings in ((grouped((60, 50)), rule), (grouped((60, 20)), other), (grouped((60, 0)), rule)):
        warn_of_small_groups(data, settings)


def test_how_to_execute_is_no_part_of_the_settings():
    assert split_arguments({"lr": 0.1, "device": "cpu", "workers": 3, "factor": 2}) == (
        {"lr": 0.1, "factor": 2},
        Execution(device="cpu", workers=3),
    )


def test_what_to_record():
    assert recording(None) is None
    assert recording({"l1": True, "every": 2}) == recording(Recording(l1=True, every=2)) == Recording(l1=True, every=2)
    with pytest.raises(EvenlyError, match="no option of record is called 'forgeting'; did you mean 'forgetting'"):
        recording({"forgeting": True})
    with pytest.raises(EvenlyError, match="record is a list; give what to record by name"):
        recording(["l1"])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"method": "usefull"}, "did you mean 'useful'"),
        ({"method": "pde", "warmup": 3}, "did you mean 'warmup_epochs'"),
        ({"learning_rate": 3}, "no setting or option of erm is called 'learning_rate'"),
        ({"augmnt": "basic"}, "no setting or option of erm is called 'augmnt'; did you mean 'augment'"),
        ({"factor": 2}, "no setting or option of erm is called 'factor'"),
        ({"model": "vit-x"}, "no model is called 'vit-x'"),
        ({"recipe": {"model": "resnet81"}}, "no model is called 'resnet81'; did you mean 'resnet18'"),
        ({"recipe": {"options": {"erm": {"factr": 3}}}}, "no setting or option of erm is called 'factr'"),
    ],
    ids=str,
)
def test_names_that_are_not_there(images, values, message):
    with pytest.raises(EvenlyError, match=message):
        planned(images(recipe=values.pop("recipe", {})), **values)
