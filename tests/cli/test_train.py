"""`evenly train`: what it leaves and prints, config files, and what it refuses before anything is written."""

import json
import re
import tomllib

import numpy as np
import pytest
from PIL import Image

import evenly as package
from evenly.engine.checkpoints import Checkpoints
from evenly.runs.folder import read_config
from evenly.settings import Settings

QUICK = "--epochs 2 --batch-size 8"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--method usefull", "no method is called 'usefull'; did you mean 'useful'"),
        ("--model mpl", "no model is called 'mpl'; did you mean 'mlp'"),
        ("--optimizer sgdm", "no optimizer is called 'sgdm'; did you mean 'sgd'"),
        ("--schedule cosin", "--schedule must be one of constant, step, cosine, got 'cosin'"),
        ("--epochs 2.5", "--epochs must be a whole number, got '2.5'"),
        ("--epochs two", "--epochs must be a whole number, got 'two'"),
        ("--lr nan", "--lr must be a finite number, got 'nan'"),
        ("--lr 1e400", "--lr must be a finite number, got '1e400'"),
        ("--batch-size ²", "--batch-size must be a whole number or full, got '²'"),
        ("--device abacus", "device 'abacus' cannot be used"),
        ("--lr 1e30 --out x", "NaN or infinite in epoch 1 .* lower the learning rate"),
        ("--method useful -o factr=3", "no .*option of useful is called 'factr'; did you mean 'factor'"),
        ("--method useful -o factor=0", r"factor \(option of useful\) must be at least 1, got 0"),
        (
            "--method useful -o separating_epoch=9 --epochs 3",
            "separating_epoch must be at most 3, the number of epochs, got 9",
        ),
        ("--method pde -o warmup_epochs=9 --epochs 3", "warmup_epochs must be at most 3, the number of epochs"),
        ("--groups infer", "groups 'infer' would not be used by erm; give --select worst-group, or a"),
        ("--infer eiil", "infer 'eiil' is how groups are inferred; give --groups infer as well"),
        (
            "--groups label,place",
            "'label,place' names columns of a table and mine.npz holds arrays; .* --groups infer$",
        ),
        ("--normalise data", "use --normalise none and scale"),
        ("--model-option weights", "'weights' is not name=value"),
        ("--record forgeting=true", "no option of record is called 'forgeting'; did you mean 'forgetting'"),
        ("--record importance=abc", "importance"),
        ("--record spectrum=100000", "more eigenvalues than are searched for in .*; give 200 or fewer"),
    ],
)
def test_refusals(refused, mine, snapshot, options, message):
    before = snapshot()
    refused(f"train {mine} {options}", message)
    if "--out" not in options:
        assert snapshot() == before


def test_refusals_of_data(refused, npz, tmp_path):
    for command, message in (
        ("", "there is no DATA; give a name from `evenly datasets`, a file or a folder, or --config FILE"),
        ("shortcut-digit", "no file, folder or data set 'shortcut-digit'; did you mean 'shortcut-digits'"),
        ("nowhere.npz", "there is no file 'nowhere.npz'"),
        ("shortcut-digits -d rat=0.9", "no option of shortcut-digits is called 'rat'; did you mean 'rate'"),
        (f"{npz('nan.npz', x=np.full((40, 3), np.nan), split=['train'] * 40)}", "40 of 40 train inputs hold NaN"),
        (f"{npz('none.npz', groups=None)} --method pde", "pde needs groups and the data has none"),
        (
            f"{npz('test.npz', split=['train', 'train', 'test', 'test'] * 10)} --method dfr -o on=validation",
            "use on=train$",
        ),
    ):
        refused(f"train {command}", message)
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_is_taken_is_left_as_it_is(refused, done, mine, snapshot, tmp_path):
    (tmp_path / "two\nlines").mkdir()
    (tmp_path / "two\nlines/chapter1.tex").write_text("dear to somebody")
    done(f"train {mine} --out run {QUICK}")
    done(f"compare {mine} --methods erm --seeds 1 --out table {QUICK}")
    before = snapshot()
    for out, message in (
        (
            "run",
            r"run holds another run \(its lr is 0.05, not 0.01\); give --out run-2, and to start from its weights "
            "--model-option weights=run/model.safetensors$",
        ),
        ("two\nlines", "two lines is not empty and holds no run"),
        ("mine.npz", "mine.npz is a file"),
        ("mine.npz/below", "mine.npz"),
        ("table", "table"),
        ("/proc/nowhere/run", "/proc/nowhere"),
    ):
        refused(["train", mine, *QUICK.split(), "--lr", "0.01", "--out", out], message)
    assert snapshot() == before


def test_the_command_that_a_refusal_names_works(evenly, done, mine):
    done(f"train {mine} --out run {QUICK}")
    err = evenly("train", mine, "--out", "run", *QUICK.split(), "--lr", "0.01")[2]
    out, weights = re.search("give (--out .*), and to start from its weights (--model-option .*)", err).groups()
    done(f"train {mine} {QUICK} --lr 0.01 {out} {weights}")


def test_what_it_prints_and_leaves(done, mine, snapshot, tmp_path):
    command = f"train {mine} --method pde --optimizer sam {QUICK} --select worst-group"
    out = done(command)
    (folder,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch("mine-pde-sam-seed0-epochs2-batch_size8-[0-9a-f]{6}", folder.name)  # pde prefers worst-group
    result = package.load(folder).results
    test = result.splits["test"]
    for text in (
        f"{test.accuracy:.1%}", f"{test.worst_group:.1%}", f"{result.cost_multiple:.2f}x", "rule: worst-group",
        f"another {result.evaluation_cost_multiple:.2f}x, not included above",
    ):  # fmt: skip
        assert text in out
    worst = test.groups.index(test.worst_group)
    assert f"{result.data.group_names[worst]}: {test.group_counts[worst]} example" in out
    page = tmp_path / re.search(r"page\s+(\S+)", out)[1]
    assert page.read_text().lstrip().lower().startswith("<!doctype html>")
    assert {path.name for path in folder.iterdir()} == {
        "config.json", "metrics.jsonl", "model.safetensors", "predictions.npz", "results.json", "selection.npz",
        "report.html", "examples",
    }  # fmt: skip
    before = snapshot()
    assert done(command) == out
    assert done(f"{command} --lr 5e-2 --model mlp -o draw=even") == out  # the defaults
    assert json.loads(done(f"{command} --json")) == result.to_dict()
    assert snapshot() == before
    done(f"{command} --lr 0.01")
    np.savez(mine, x=np.zeros((40, 3)), y=np.arange(40) % 2, groups=np.arange(40) % 2)
    done(command)
    assert len(list((tmp_path / "runs").iterdir())) == 3, "other settings or other data are another run"


def test_every_setting_goes_into_the_plan(done, mine, tmp_path):
    done(
        f"train {mine} --method useful --optimizer sam --model mlp --epochs 3 --batch-size full --lr 0.2 "
        "--momentum 0.5 --weight-decay 0.001 --rho 0.1 --schedule cosine --select average --patience 2 "
        "-o factor=3 -o on=logits --seed 5 --device cpu --out deep/run --precision float32 --workers 1 --no-capture"
    )
    plan = read_config(tmp_path / "deep/run").plan
    assert (plan.seed, plan.optimizer.name, plan.model.name) == (5, "sam", "mlp")
    assert plan.method.to_dict() == {
        "name": "useful",
        "options": {"separating_epoch": None, "factor": 3, "on": "logits"},
    }
    assert plan.settings == Settings(
        epochs=3, batch_size=None, lr=0.2, momentum=0.5, weight_decay=0.001, rho=0.1, schedule="cosine",
        select="average", patience=2, precision="float32",
    )  # fmt: skip


def test_a_config_file_and_what_is_typed_beside_it(done, refused, mine, tmp_path):
    (tmp_path / "a.toml").write_text(
        f'data = "{mine}"\nmethod = "useful"\nepochs = 2\nlr = 0.3\n[options]\nfactor = 3\n'
    )
    done("train --config a.toml --out file")
    done("train --config a.toml --lr 0.1 -o on=logits --out typed")
    plans = [read_config(tmp_path / name).plan for name in ("file", "typed")]
    assert [plan.settings.lr for plan in plans] == [0.3, 0.1]
    assert [plan.method.options["factor"] for plan in plans] == [3, 3]
    assert [plan.method.options["on"] for plan in plans] == ["probabilities", "logits"]
    (tmp_path / "b.json").write_text(json.dumps(tomllib.loads((tmp_path / "a.toml").read_text()) | {"speed": 3}))
    refused("train --config b.json --out b", "no setting in b.json is called 'speed'; did you mean 'seed'")
    refused("train --config c.toml --out b", "c.toml cannot be read")
    for text, message in (
        ("sed = 3", "'sed'; did you mean 'seed'?"),
        ("[option]\nfactor = 3", "'option'; did you mean 'options'?"),
        ("[options]\nfactr = 3", "no option of erm is called 'factr'"),
    ):
        (tmp_path / "d.toml").write_text(f'data = "{mine}"\n{text}')
        refused("train --config d.toml --out b", re.escape(message))
    (tmp_path / "mark.json").write_text(f'\ufeff{{"data": "{mine}", "epochs": 1}}')
    done("train --config mark.json --out mark")
    refused(["train", ""], "there is no DATA; give a name")
    (tmp_path / "old.json").write_text(json.dumps({"evenly": "0.1.0", "data": {"name": "mine"}, "settings": {}}))
    refused("train --config old.json --out b", "old.json was written by evenly 0.1; remove the folder and train again")
    assert not (tmp_path / "b").exists()


def test_the_config_of_a_run_repeats_it(done, evenly, refused, mine, tmp_path):
    done(f"train {mine} --method useful --optimizer sam -o factor=3 --seed 2 {QUICK} --device cpu --out a")
    weights = (tmp_path / "a/model.safetensors").read_bytes()
    done("train --config a/config.json --out b")
    assert (tmp_path / "b/model.safetensors").read_bytes() == weights
    assert package.load(tmp_path / "b").plan == package.load(tmp_path / "a").plan
    done("train --config a/config.json --out longer --epochs 3 --seed 4")
    assert (package.load("longer").results.epochs, package.load("longer").plan.seed) == (3, 4)
    (tmp_path / "a/config.json").write_text(
        (tmp_path / "a/config.json").read_text().replace('"lr": 0.05', '"lr": 0.06')
    )
    code, _, err = evenly("train", "--config", "a/config.json", "--out", "edited")
    assert (code, err.splitlines()[0]) == (
        0,
        "evenly: a/config.json has changed since a run wrote it; it is used as it is now",
    )
    assert package.load("edited").plan.settings.lr == 0.06
    refused("predict a moved.npz", "a/config.json is damaged .*; copy .* or remove it and train again")
    (tmp_path / "a/config.json").write_bytes((tmp_path / "b/config.json").read_bytes())
    (tmp_path / mine).rename(tmp_path / "moved.npz")
    (tmp_path / "a/config.json").rename(tmp_path / "again.json")
    refused("train --config again.json --out c", r"trained on .*mine.npz, which is not there; give where it is now")
    done("train moved.npz --config again.json --out c")
    assert (tmp_path / "c/model.safetensors").read_bytes() == weights
    done("audit c --top 0 --device cpu")  # the new place is noted
    refused("train --config again.json", "is the config of a run; give --out, a folder for the run that repeats it")
    refused("train --config again.json --out d --method erm", "method is set by the run's config; leave it out")
    refused("compare --config again.json", "is the config of a run; give it to `evenly train`")


def test_ctrl_c_is_one_line_and_the_same_command_goes_on(evenly, done, mine, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", interrupt)
        code, out, err = evenly("train", mine, "--out", "run", *QUICK.split())
    assert (code, out) == (130, "")
    assert err.endswith("thread\nevenly: stopped; the same command goes on where it stopped\n")
    done(f"train {mine} --out run {QUICK}")


def test_a_refused_command_can_be_mended_and_a_diverged_run_keeps_its_folder(refused, done, mine, tmp_path):
    refused(f"train {mine} --method pde --out run {QUICK} -o warmup_epochs=9", "warmup_epochs must be at most 2")
    done(f"train {mine} --method pde --out run {QUICK} -o warmup_epochs=1")
    refused(f"train {mine} --out diverged --lr 1e30 {QUICK}", "lower the learning rate")
    assert (tmp_path / "diverged/config.json").exists()
    assert not (tmp_path / "diverged/results.json").exists()


def test_many_groups_of_few_examples_are_warned_of_in_a_line(evenly, done, npz):
    code, _, err = evenly("train", npz(groups=np.arange(40)), "--out", "a", *QUICK.split())
    many = r"evenly: \d+ training examples are in (\d+) groups, the smallest of 1 example: .*; group by fewer .*\n"
    assert code == 0
    assert int(re.match(many, err)[1]) > 20
    rows = np.tile(np.arange(40), 11)  # as many groups, of enough examples
    x = np.random.default_rng(0).normal(size=(440, 3))
    done(f"train {npz(x=x, y=rows % 2, groups=rows, split=['train'] * 440)} --out b {QUICK}")


def test_what_is_recorded_is_in_the_metrics_and_the_audit(done, refused, mine, tmp_path):
    command = f"train {mine} {QUICK} --device cpu --record forgetting=true --record l1=true --record"
    done(f"{command} every=2 --out run")
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert ["l1_norm" in row for row in rows] == [False, True]
    refused(f"{command} every=3 --out run", r"holds another run \(its record's every is 2, not 3\)")
    assert "nothing was recorded: none of the 2 epochs was asked for" in done(f"{command} every=3 --out late")
    audits = json.loads(done("audit run --top 0 --device cpu --json"))["audits"]
    assert sum(audits[0]["forgetting"].values()) == 24  # 60% of 40
    assert "Times forgotten" in (tmp_path / "audits/run/audit.html").read_text()


def test_synthetic_data_with_options(done):
    result = json.loads(done("train patches -d n=50 -d beta_d=0.4 --epochs 2 --json"))
    assert sum(result["splits"]["train"]["group_counts"]) == 50


def test_results_are_not_put_among_the_images(done, refused, tmp_path, monkeypatch):
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(6):
            Image.new("RGB", (6, 6), (9 * i, 60 * (name == "dog"), 0)).save(tmp_path / "photos" / name / f"{i}.png")
    monkeypatch.chdir(tmp_path / "photos")
    refused("train . --epochs 1", "taken for a class; give --out elsewhere")
    assert "photos: erm with sgd" in done(f"train . --epochs 1 --device cpu --out {tmp_path / 'run'}")
