"""A search: on validation alone, one budget for all, the same choice however it is run or interrupted."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from evenly import Data, EvenlyError, compare, load_comparison
from evenly.data import load
from evenly.errors import EvenlyWarning
from evenly.experiment import work
from evenly.experiment.arms import Asked
from evenly.experiment.request import Source
from evenly.experiment.search import _warn_of_new_splits, searched_arms, with_values
from evenly.experiment.searchers import BATCH, SEED, OptunaSearcher, RandomSearcher
from evenly.experiment.spaces import space_of
from evenly.files import read_json
from evenly.runs.search import Search
from evenly.runs.status import read_status
from evenly.settings import Settings, settings_of

QUICK = {"model": "mlp", "epochs": 2, "batch_size": 8, "device": "cpu", "seeds": 1}
LR = {"lr": "log:1e-4:1e-1"}


def _empty_page(folder, **options):
    (Path(folder) / "report.html").touch()


@pytest.fixture(autouse=True)
def _empty_pages(monkeypatch):
    """A run is finished when its page is there; drawing it takes longer than training here."""
    monkeypatch.setattr("evenly.report.pages.write_report", _empty_page)


def space(name: str, written: object):
    return space_of(name, written, settings_of(Settings)[name])


def trials(folder: Path) -> dict[str, dict]:
    return {path.parent.name: read_json(path) for path in (folder / "search/runs").glob("*/results.json")}


def test_spaces():
    lr, size, decay = space("lr", "log:1e-4:1e-1"), space("batch_size", "log:16:256"), space("rho", "uniform:0.01:0.2")
    assert [lr.at(place) for place in (0, 1 / 3, 2 / 3, 0.12345, 1)] == [1e-4, 1e-3, 1e-2, 0.000235, 0.1]
    assert [size.at(place) for place in (0, 0.5, 1)] == [16, 64, 256]
    assert isinstance(size.at(0.3), int)
    assert [decay.at(place) for place in (0, 0.5, 1)] == [0.01, 0.105, 0.2]
    whole = [space("batch_size", "int:2:4").at(k / 300) for k in range(300)]
    assert [whole.count(value) for value in (2, 3, 4)] == [100, 100, 100]
    assert space("batch_size", "8,full").choices == space("batch_size", [8, None]).choices == (8, None)
    assert [str(each) for each in (lr, size, space("batch_size", [8, None]))] == [
        "log:0.0001:0.1",
        "log:16:256",
        "8,full",
    ]


@pytest.mark.parametrize("searcher", [RandomSearcher, OptunaSearcher])
def test_proposals_fill_the_space_and_come_again(searcher):
    spaces = {"lr": space("lr", "log:1e-4:1e-1"), "batch_size": space("batch_size", "8,16")}

    def proposals():
        made = searcher(spaces)
        values = []
        for _ in range(5):
            batch = [made.propose() for _ in range(BATCH)]
            for each in batch:
                made.learn(each, -abs(np.log10(each["lr"]) + 2) if each["batch_size"] == 8 else None)
            values += batch
        return values

    first = proposals()
    assert first == proposals()
    assert min(each["lr"] for each in first) < 1e-3
    assert max(each["lr"] for each in first) > 1e-2
    assert {each["batch_size"] for each in first} == {8, 16}


@pytest.mark.parametrize("searcher", ["random", "optuna"])
def test_the_one_learning_rate_that_learns_is_found(arrays, searcher):
    data = Data(train=arrays(40), validation=arrays(40, seed=1), test=arrays(40, seed=2), recipe={"lr": 1e-6})
    options = {"methods": ["erm", "useful"], "search": {"lr": [1e-7, 1e-5, 0.3]}, "trials": 12, "searcher": searcher}
    table = compare(data, **QUICK, **options)
    assert [each.arm.pair for each in table.search.searched] == ["erm+sgd", "useful+sgd", "random_upsample+sgd"]
    assert all(each.values == {"lr": 0.3} for each in table.search.searched)
    assert {run.plan.settings.lr for run in table.runs.values()} == {0.3}
    assert all(each.chosen.score > each.trials[0].score for each in table.search.searched)


def test_the_test_set_is_withheld_and_the_budget_is_kept(data, tmp_path):
    ask = {"methods": ["erm", "group_dro"], "optimizers": ["sgd", "sam"], "search": LR, "trials": 5}
    table = compare(data, **QUICK, **ask, select="worst-group", out=tmp_path)
    runs = trials(tmp_path)
    assert all(set(each["splits"]) == {"train", "validation"} for each in runs.values())
    for folder in (tmp_path / "search/runs").iterdir():
        assert not [name for name in np.load(folder / "predictions.npz").files if name.startswith("test")]
    assert all("test" in row.result.splits for row in table.rows)
    search, seeds = table.search, {each["seed"] for each in runs.values()}
    assert seeds == {search.seed}
    assert {row.seed for row in table.rows}.isdisjoint(seeds)
    counts = {each.arm.name: len(each.trials) for each in search.searched}
    assert counts == {"erm+sgd": 5, "group_dro+sgd": 5, "erm+sam": 2, "group_dro+sam": 2} | {
        "erm+sgd at the cost of group_dro+sgd": 5,
        "erm+sgd at the cost of erm+sam": 2,
        "erm+sam at the cost of group_dro+sam": 2,
    }
    # ERM for all its epochs is the control of group_dro: the same trials, the same values, run once
    assert len(runs) == sum(counts.values()) - 5 - 2
    costs = sorted(each["cost"] for each in runs.values())
    served = ("erm+sgd at the cost of group_dro+sgd", "erm+sam at the cost of group_dro+sam")
    alone = [each for each in search.searched if each.arm.name not in served]
    assert sorted(trial.cost for each in alone for trial in each.trials) == costs
    for each in search.searched:
        assert each.unit == 2 * 24
        assert each.cost_multiple <= 5
        assert each.metric == "worst_group"
        scored = {trial.score for trial in each.trials}
        assert scored <= {result["splits"]["validation"]["worst_group"] for result in runs.values()}
        assert each.chosen.score == max(scored)
        assert each.trials[0].values == {"lr": 0.05}
    best = {each.arm: each.values["lr"] for each in search.searched}
    for (arm, _), run in table.runs.items():
        assert run.plan.settings.lr == best[arm]
    assert load_comparison(tmp_path).search == search
    states = [each.state for each in read_status(tmp_path).runs]
    assert states == ["done"] * (len(runs) + len(table.runs))


def test_a_search_does_not_depend_on_jobs(data, tmp_path):
    ask = {"methods": ["erm"], "search": LR | {"momentum": "0,0.5,0.9"}, "trials": 4} | QUICK
    one, two = (compare(data, **ask, jobs=jobs, out=tmp_path / str(jobs)) for jobs in (1, 2))
    assert one.search == two.search
    assert [row.result.splits for row in one.rows] == [row.result.splits for row in two.rows]
    assert trials(tmp_path / "1").keys() == trials(tmp_path / "2").keys()


@pytest.mark.parametrize(("searcher", "methods"), [("random", ["erm", "useful"]), ("optuna", ["erm"])])
def test_a_search_goes_on_where_it_stopped_and_chooses_once(data, tmp_path, monkeypatch, executed, searcher, methods):
    ask = {"methods": methods, "search": LR, "trials": 6, "searcher": searcher} | QUICK
    whole = compare(data, **ask).search
    count = len(executed)
    executed.clear()
    execute = work.execute

    def interrupted(*arguments, **options):
        if len(executed) in (2, 6):
            executed.append(None)
            raise KeyboardInterrupt
        return execute(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(work, "execute", interrupted)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                compare(data, **ask, out=tmp_path)
        assert not (tmp_path / "search.json").exists()
        assert compare(data, **ask, out=tmp_path).search == whole
    plans = [call[0].digest for call in executed if call is not None]
    assert len(plans) == len(set(plans)) == count
    stored = (tmp_path / "search.json").read_bytes()
    assert "crc32" in json.loads(stored)
    shutil.rmtree(tmp_path / "search")
    assert compare(data, **ask, out=tmp_path).search == whole
    assert len(executed) == count + 2
    more = compare(data, **{**ask, "methods": ["erm", "group_dro"]}, out=tmp_path).search
    assert [each.arm.method for each in more.searched[len(whole.searched) :]] == ["group_dro", "erm"]
    assert more.searched[: len(whole.searched)] == whole.searched
    assert Search.from_dict({k: v for k, v in read_json(tmp_path / "search.json").items() if k != "format"}) == more
    with pytest.raises(EvenlyError, match="its trials are 6, not 3"):
        compare(data, **{**ask, "trials": 3}, out=tmp_path)


def test_costs_that_vary_keep_to_the_budget(data):
    """Every value is tried once: a space of few values ends before the budget does."""
    ask = {"methods": ["erm"], "search": {"erm.epochs": [1, 4, 6]}, **QUICK}
    (few,) = compare(data, **ask, trials=40).search.searched
    assert sorted(trial.values["epochs"] for trial in few.trials) == [1, 2, 4, 6]
    (some,) = compare(data, **ask, trials=4).search.searched
    assert some.cost_multiple == sum(trial.values["epochs"] for trial in some.trials) / 2 <= 4
    (one,) = compare(data, **ask, trials=1).search.searched
    assert [dict(trial.values) for trial in one.trials] == [{"epochs": 2}]


def test_a_trial_that_fails_is_not_chosen(data):
    table = compare(data, **QUICK, methods=["erm"], search={"lr": [1e30, 0.1]}, trials=3)
    (found,) = table.search.searched
    failed = [trial for trial in found.trials if trial.score is None]
    assert [trial.values["lr"] for trial in failed] == [1e30]
    assert "became NaN or infinite" in failed[0].reason
    assert found.cost_multiple == 3
    assert found.values["lr"] < 1


def test_where_every_trial_fails_nothing_is_decided(arrays, tmp_path):
    data = Data(train=arrays(), validation=arrays(seed=1), recipe={"lr": 1e28})
    with pytest.raises(EvenlyError, match="became NaN or infinite"):
        compare(data, **QUICK, methods=["erm"], search={"lr": [1e29, 1e30]}, trials=3, out=tmp_path)
    assert len(list((tmp_path / "search/runs").iterdir())) == 3
    assert not (tmp_path / "search.json").exists()


def test_a_control_is_searched_like_its_arm(data):
    """Settings of one method are searched for its control too; its options, and lengths, are not."""
    search = {"useful.lr": "log:1e-3:1", "useful.factor": "2,3", "epochs": "2,4"}
    methods = ("erm", "useful", "group_dro")
    asked = Asked(Source(data, {}), None, methods, ("sgd",), (0,), {}, {}, {}, None, True).checked({}, search)
    searched = searched_arms(asked)
    names = {each.arm.method: [*each.spaces] for each in searched}
    assert names == {"erm": ["epochs"], "useful": ["lr", "factor", "epochs"], "group_dro": ["epochs"]}
    controls = {each.arm.method: each.control for each in searched if each.control is not None}
    assert [*controls["useful"].spaces] == ["lr"]
    assert [*controls["group_dro"].spaces] == []
    apart = with_values(asked, Search(asked.spaces, 1, "random", 0)).searched_apart
    assert apart == {control.arm for control in controls.values()}  # ERM has epochs of its own


def test_data_that_every_seed_splits_anew_are_warned_of(arrays):
    ask = {"methods": ["erm"], "search": LR, "trials": 1} | QUICK
    with pytest.warns(EvenlyWarning, match="every seed splits these data anew"):
        compare(arrays(60), **ask)


def test_optuna_is_named_where_it_is_missing(data, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(EvenlyError, match=r"searcher 'optuna' needs optuna; run: pip install 'evenly\[optuna\]'"):
        compare(data, **QUICK, search=LR, searcher="optuna")


def test_without_validation_there_is_no_search(arrays):
    with pytest.raises(EvenlyError, match="a search goes by the validation set and there is none"):
        compare(Data(train=arrays(), test=arrays(seed=2)), **QUICK, search=LR)


def test_a_search_that_sees_test_examples_of_a_seed_is_warned_of():
    with pytest.warns(EvenlyWarning, match="every seed splits these data anew"):
        _warn_of_new_splits(load("shortcut-digits", seed=0), load("shortcut-digits", seed=SEED))
    _warn_of_new_splits(load("patches", seed=0, n=50), load("patches", seed=SEED, n=50))  # every seed draws others
