"""What is typed becomes values, and every setting is an option."""

import json

import pytest

from evenly.cli.arguments import config_values, merged, names, pairs, pairs_by_method, seeds_of, sweep_values
from evenly.errors import EvenlyError
from evenly.settings import Execution, Option, Settings, settings_of


@pytest.mark.parametrize("text", ["[" * 10**5, "9" * 5000, '{"a":' * 10**5])
def test_json_without_end_is_text(text):
    assert pairs([f"a={text}"]) == {"a": text}
    assert sweep_values([f"a={text}"]) == {"a": [text]}


def test_pairs_are_read_as_json_where_they_are_json():
    typed = ["a=True", "b=FALSE", "c=Truely", "d=1", "e=.5", "f=[1,2]", "g=x=y", 'h={"k":1}']
    values = {"a": True, "b": False, "c": "Truely", "d": 1, "e": 0.5, "f": [1, 2], "g": "x=y", "h": {"k": 1}}
    assert pairs(typed) == values
    assert pairs_by_method(["pde.add=3", "pde.every=2", "useful.on=logits"]) == {
        "pde": {"add": 3, "every": 2}, "useful": {"on": "logits"},
    }  # fmt: skip
    assert names("erm, pde,,") == ["erm", "pde"]
    assert (seeds_of("3"), seeds_of("3,4")) == (3, [3, 4])


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["batch_size=128,256,full"], {"batch_size": [128, 256, "full"]}),
        (["lr=.1,0.2,1e-3,-.5e-1"], {"lr": [0.1, 0.2, 0.001, -0.05]}),
        (["useful.factor=2,3", "augment=none, basic+trivial"],
         {"useful.factor": [2, 3], "augment": ["none", "basic+trivial"]}),
        (["pde.add=[1,2],[3,4]"], {"pde.add": [[1, 2], [3, 4]]}),
        ([], {}),
    ],
)  # fmt: skip
def test_a_sweep_is_a_list_of_values(words, values):
    assert repr(sweep_values(words)) == repr(values)  # 2 is not 2.0


@pytest.mark.parametrize(
    ("read", "typed", "message"),
    [
        (pairs, ["factor"], "option 'factor' is not name=value; write e.g. factor=3"),
        (pairs, ["=3"], "is not name=value"),
        (Option("factor", int).checked, "9" * 5000, r"factor must be a whole number, got '9+\.\.\.$"),
        (Option("factor", int).checked, 10**30, r"factor must be a whole number below 2\*\*63, got 10+"),
        (Option("lr", float).checked, -(10**400), r"lr must be a finite number, got -10+\.\.\."),
        (Option("lr", float).checked, float("inf"), "lr must be a finite number, got inf"),
        (pairs_by_method, ["factor=3"], "option 'factor' does not say whose it is; write method.factor=..."),
        (sweep_values, ["batch_size"], "sweep 'batch_size' is not name=value,value"),
        (sweep_values, ["=3"], "sweep '=3' is not name=value,value"),
        (sweep_values, ["lr=1", "lr=2"], "lr is swept twice"),
        (seeds_of, "three", r"--seeds must be how many \(3\) or which \(100,101,102\), got 'three'"),
        (seeds_of, "1,two", "got '1,two'"),
        (seeds_of, "0", "got '0'"),
        (seeds_of, "-2", "got '-2'"),
    ],
)
def test_what_cannot_be_read_is_refused(read, typed, message):
    with pytest.raises(EvenlyError, match=message):
        read(typed)


def test_config_files_are_toml_or_json_and_what_is_typed_takes_precedence(tmp_path):
    (tmp_path / "a.toml").write_text('epochs = 3\nlr = 0.1\n[options]\nfactor = 3\non = "logits"\n')
    (tmp_path / "a.json").write_text(json.dumps(config_values(tmp_path / "a.toml")))
    config = config_values(tmp_path / "a.json")
    assert config == {"epochs": 3, "lr": 0.1, "options": {"factor": 3, "on": "logits"}}
    assert merged(config, {"lr": 0.2, "options": {"factor": 2}}) == {
        "epochs": 3, "lr": 0.2, "options": {"factor": 2, "on": "logits"},
    }  # fmt: skip
    (tmp_path / "b.json").write_text("[1]")
    (tmp_path / "c.toml").write_text("epochs =")
    for name, message in (("b.json", "holds no names and values; write"), ("c.toml", "cannot be read .*Invalid"),
                          ("d.toml", "cannot be read .*No such file")):  # fmt: skip
        with pytest.raises(EvenlyError, match=message):
            config_values(tmp_path / name)


@pytest.mark.parametrize("verb", ["train", "compare"])
def test_every_setting_is_an_option_that_is_handed_on_where_it_is_typed(evenly, asked, verb):
    options = settings_of(Settings) | {name: settings_of(Execution)[name] for name in ("device", "workers")}
    words, expected = [], {}
    for name, option in options.items():
        value = {"schedule": "cosine", "select": "average", "augment": "basic"}.get(name, option.default)
        value = 3 if name == "patience" else value
        words += [f"--{name.replace('_', '-')}", option.text(value)]
        expected[name] = value
    evenly(verb, "x.npz", *words, "--no-capture", "--model-option", "width=.5", "-d", "n=3")
    expected |= {"capture": False, "model_options": {"width": 0.5}, "data_options": {"n": 3}}
    assert {name: asked[0][name] for name in expected} == expected
    evenly(verb, "x.npz")
    assert asked[1].keys().isdisjoint(expected)
    text = " ".join(evenly(verb, "--help")[1].split())
    for name, option in options.items():
        assert f"{option.help[1:]}. [default: {option.text(option.default)}]" in text, name
