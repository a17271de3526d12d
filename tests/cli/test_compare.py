"""`evenly compare`: its table, sweeps, config files, and what it refuses before any run."""

import json
from pathlib import Path

import pytest

import evenly as package
from evenly.experiment import work
from evenly.files import read_json

QUICK = "--epochs 2 --batch-size 8"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--methods usefull", "did you mean 'useful'"),
        ("--methods ,", "nothing to compare"),
        ("--methods erm+", "no optimizer is called ''"),
        ("--optimizers sgdm", "did you mean 'sgd'"),
        ("-o useful.factr=3", "did you mean 'factor'"),
        ("-o usefull.factor=3", "did you mean 'useful'"),
        ("-o pde.every=2", "pde has options and is not compared; add it to methods, or leave them out"),
        ("--seeds 4,1,1", r"a seed stands twice in \[4, 1, 1\]"),
        ("--jobs 0", "--jobs must be at least 1, got 0"),
        ("--address here:1", "address 'here:1' is of a Ray cluster; give --engine ray as well"),
        ("--sweep batch_size=", "sweep of batch_size has no values"),
        ("--sweep batch_size=8,,9", "--batch-size must be a whole number or full, got ''"),
        ("--sweep batch_size=8,8", "8 stands twice in the sweep of batch_size"),
        ("--sweep batchsize=8", "did you mean 'batch_size'"),
        ("--sweep factor=2,3", "write useful.factor"),
        ("--search lr=log:0:1", "--search lr must be above 0, got 0"),
        ("--search weight_decay=log:0:1", "--search weight_decay: the low end must be above 0, got 0"),
        ("--search lr=log:0.1:0.01", r"--search lr: the high end must be above 0\.1, got 0\.01"),
        ("--search lr=log:a:1", "--search lr must be a number, got 'a'"),
        ("--search batch_size=int:1.5:8", r"--search batch_size must be a whole number"),
        ("--search lr=normal:0:1", "search lr=normal:0:1 is no space; write e.g. log:1e-4:1e-1"),
        ("--search schedule=uniform:0:1", "--search schedule must be a name or a function"),
        ("--search lr", "search 'lr' is not name=space; write e.g. lr=log:1e-4:1e-1"),
        ("--search lr=.1 --search lr=.2", "lr is searched twice"),
        ("--search lr=.1", r"search of lr has one value, 0\.1"),
        ("--search lr=.1,.1", r"0\.1 stands twice in the search of lr"),
        ("--search leaning=.1,.2", "no setting is called 'leaning'"),
        ("--search factor=2,3", "write useful.factor"),
        ("--search useful.factor=0,3", "--search useful.factor must be at least"),
        ("--search pde.every=2,3", "search 'pde.every' varies no arm"),
        ("--search rho=.1,.2", "search 'rho' varies no arm"),
        ("--search select=last,average", "select cannot be searched, one table has one selection rule"),
        ("--search model=mlp,linear", "model cannot be searched, one table has one model; sweep it instead"),
        ("--search threads=1,2", "threads cannot be searched, it decides speed and rounding, not what is learned; set"),
        ("--search useful.precision=bf16,float32", "useful.precision cannot be searched, it decides speed"),
        ("--search evaluate_every=1,2", "evaluate_every cannot be searched, it decides how often trials are scored"),
        ("--search device=cpu,cuda", "no setting is called 'device'"),
        ("--jobs 100000", "jobs 100000 are more than 8 for each of .* cores?; use jobs [0-9]+"),
        ("--search lr=.1,.2 --lr 0.1", r"lr is searched and also fixed at 0\.1"),
        ("--search useful.lr=.1,.2 --sweep lr=.1,.2", "useful.lr is searched and lr is swept; do one of the two"),
        ("--search useful.lr=.1,.2 --search lr=.1,.2", "useful.lr and lr are both searched; search one of them"),
        ("--search lr=.1,.2 --trials 0", "--trials must be at least 1, got 0"),
        ("--search lr=.1,.2 --searcher grid", "--searcher must be one of random, optuna, got 'grid'"),
        ("--trials 3", "trials is of a search; give search as well"),
        ("--search patience=1,2", "patience 1 has no validation metric to wait for"),
        ("--sweep lr=.1,.2 --lr 0.1", r"lr is swept and also fixed at 0\.1"),
    ],
)
def test_refusals(refused, mine, snapshot, options, message):
    before = snapshot()
    refused(f"compare {mine} {options}", message)
    assert snapshot() == before


def test_a_search_is_handed_on(evenly, asked, mine):
    words = "--search lr=log:1e-4:1e-1 --search useful.factor=2,3 --trials 4 --searcher optuna"
    evenly("compare", mine, *words.split())
    expected = {"search": {"lr": "log:1e-4:1e-1", "useful.factor": "2,3"}, "trials": 4, "searcher": "optuna"}
    assert {name: asked[0][name] for name in expected} == expected


def test_a_folder_that_is_taken_is_left_as_it_is(refused, done, mine, snapshot, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter1.tex").write_text("dear to somebody")
    done(f"train {mine} --out run {QUICK}")
    done(f"compare {mine} --methods erm --seeds 1 --out table {QUICK}")
    before = snapshot()
    for out, message in (("run", "run holds another run"), ("thesis", "is not empty"), ("table", "table holds another"),
                         ("/proc/nowhere/x", "/proc/nowhere")):  # fmt: skip
        refused(f"compare {mine} --methods erm --lr 1 --out {out} {QUICK}", message)
    refused("compare shortcut-digits --groups label,place", "names columns of a table, which shortcut-digits is not")
    refused("compare", "there is no DATA; give a name")
    assert snapshot() == before
    config = tmp_path / "table/config.json"
    config.write_text(config.read_text().replace('"epochs": 2', '"epochs": 3'))
    refused(f"compare {mine} --methods erm --out table {QUICK}", r"config.json is damaged \(its content does not match")


def test_it_shows_a_table_and_reads_itself_back(done, mine, tmp_path):
    command = f"compare {mine} --methods erm,useful --seeds 100,101 -o useful.factor=3 --out t {QUICK}"
    out = done(command)
    for text in ("erm", "useful", "random_upsample", "page: t/report.html"):
        assert text in out
    assert max(map(len, out.splitlines())) <= 80
    assert (tmp_path / "t/report.html").exists()
    table = json.loads(done(f"{command} --json"))
    assert table == read_json(tmp_path / "t/results.json")
    assert {row["seed"] for row in table["rows"]} == {100, 101}
    assert table["plan"]["options"] == {"useful": {"factor": 3}}


def test_a_folder_and_its_page_say_which_run_is_the_control_of_which(evenly, done, mine, tmp_path):
    _, _, err = evenly("compare", mine, *f"--methods erm,group_dro,subsample --seeds 1 --out t {QUICK}".split())
    assert err.count("1 control is a run that is already here") == 1
    nodes = {node["label"]: tmp_path / "t" / node["folder"] for node in read_json(tmp_path / "t/graph.json")["nodes"]}
    own, shared = nodes["control of subsample with sgd, seed 0"], nodes["control of group_dro with sgd, seed 0"]
    assert shared == nodes["erm with sgd, seed 0"]
    assert "Control of subsample with sgd, seed 0." in (own / "report.html").read_text()
    assert "Control of" not in (nodes["subsample with sgd, seed 0"] / "report.html").read_text()
    assert "done, control of subsample with sgd, seed 0" in done(f"status {own}").replace("\n  ", " ")
    assert "done, control of group_dro with sgd, seed 0" in done(f"status {shared}").replace("\n  ", " ")
    runs = json.loads(done("status t --json"))["runs"]
    arms = {run["folder"]: run["control_of"] for run in runs if run["control_of"]}
    assert arms == {f"t/runs/{own.name}": ["subsample with sgd, seed 0"],
                    f"t/runs/{shared.name}": ["group_dro with sgd, seed 0"]}  # fmt: skip
    own.rename(tmp_path / "alone")
    assert "control of subsample with sgd, seed 0" in done("status alone")


def test_it_shows_a_sweep(done, mine):
    command = f"compare {mine} --methods erm,useful --seeds 2 --epochs 2 --out t"
    out = done(f"{command} --sweep batch_size=8,full --sweep useful.factor=2,3")
    assert max(map(len, out.splitlines())) <= 80
    lines = [line.strip() for line in out.splitlines()]
    assert lines.count("batch_size 8") == 3  # ERM's, and one for each factor
    assert lines.count("useful.factor 3") == 2
    table = package.load_comparison("t")
    assert table.plan.sweep == {"batch_size": (8, None), "useful.factor": (2, 3)}
    assert {run.plan.settings.batch_size for run in table.runs.values()} == {8, None}


def test_a_config_file_names_what_to_compare(done, mine, tmp_path):
    (tmp_path / "a.toml").write_text(
        f'data = "{mine}"\nmethods = ["erm", "pde"]\nepochs = 3\n[options.pde]\nwarmup_epochs = 1\n[record]\nl1=true\n'
    )
    done("compare --config a.toml --seeds 1 --epochs 2 -o pde.every=1 --out t")
    table = package.load_comparison("t")
    assert table.plan.options == {"pde": {"warmup_epochs": 1, "every": 1}}
    assert (table.plan.methods, table.plan.seeds, table.plan.in_common.epochs) == (("erm", "pde"), (0,), 2)
    assert all(run.record is not None for run in table.runs.values())


def test_a_failed_run_is_named_and_the_answer_is_no(evenly, mine, monkeypatch):
    execute = work.execute

    def fails(prepared, *others, **options):
        if (plan := prepared.config.plan).method.name == "subsample" and plan.seed == 1:
            raise ValueError("it broke")
        return execute(prepared, *others, **options)

    monkeypatch.setattr(work, "execute", fails)
    ask = f"compare {mine} --methods erm,subsample --seeds 2 {QUICK} --out out"
    code, out, _ = evenly(*ask.split())
    words = " ".join(out.split())
    assert code == 1
    assert "subsample with sgd, seed 1 failed: ValueError: it broke." in words
    assert "The same command with `--retry` runs the failed ones again." in words
    assert "subsample with sgd, seed 1 failed" in Path("out/report.html").read_text()
    code, out, _ = evenly(*ask.split(), "--json")
    assert (code, json.loads(out)["failures"]) == (1, read_json(Path("out/results.json"))["failures"])
    monkeypatch.setattr(work, "execute", execute)
    assert evenly(*ask.split(), "--retry")[0] == 0


def test_what_failed_for_good_is_tried_again_on_request(refused, mine, monkeypatch):
    monkeypatch.setattr("evenly.experiment.work.read_failure", lambda folder: "it broke")
    refused(f"compare {mine} --methods erm --seeds 1 {QUICK}", "evenly: it broke; --retry runs it again$")
