"""`evenly compare`: its table, sweeps, config files, and what it refuses before any run."""

import json

import pytest

import evenly as package
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
        ("--sweep batch_size=", "sweep of batch_size has no values"),
        ("--sweep batch_size=8,,9", "--batch-size must be a whole number or full, got ''"),
        ("--sweep batch_size=8,8", "8 stands twice in the sweep of batch_size"),
        ("--sweep batchsize=8", "did you mean 'batch_size'"),
        ("--sweep factor=2,3", "write useful.factor"),
        ("--sweep lr=.1,.2 --lr 0.1", r"lr is swept and also fixed at 0\.1"),
    ],
)
def test_refusals(refused, mine, snapshot, options, message):
    before = snapshot()
    refused(f"compare {mine} {options}", message)
    assert snapshot() == before


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
