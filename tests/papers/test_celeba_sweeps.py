"""What benchmarks/celeba_sweeps.py makes can be judged by the claims that wait for it, and the verdict turns."""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from evenly.data import Data
from evenly.papers import nodes
from evenly.papers.claims import Scale, all_claims
from evenly.papers.nodes import Stored, nodes_in
from evenly.papers.pde import sweeps
from evenly.papers.reproducing import reproduce
from evenly.runs.verdict import Judgement

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
IDS = [
    f"pde/{name}-celeba{more}"
    for name, more in (
        ("table4", ""), ("table5", ""), ("table6", ""), ("fig5", ""), ("fig4", ""), ("table9", "-recipe"),
        ("table11", ""),
    )
] + ["pde/fig1c-composite"]  # fmt: skip
Home = tuple[ModuleType, Path]


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """The script, and its files of a trial that was stopped and went on."""
    out = tmp_path_factory.mktemp("sweeps")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "select 'worst-group-argmax' goes by groups of validation")
        patch.syspath_prepend(BENCHMARKS)
        patch.setattr("evenly.report.write_report", lambda folder: None)  # half of the time
        script = importlib.import_module("celeba_sweeps")
        assert not script.run(arguments(script, out, seconds=1))
        assert (out / "home" / "celeba-pde-stages.partial.json").exists()
        assert script.run(arguments(script, out))
    return script, out / "home"


def arguments(script: ModuleType, out: Path, seconds: float = 600) -> argparse.Namespace:
    return argparse.Namespace(
        out=out, home=None, series=list(script.SERIES), commit="0123", seconds=seconds, device="cpu", side_by_side=1,
        trial=80, started=time.monotonic(),
    )  # fmt: skip


@pytest.fixture
def judge(trial: Home) -> Callable[..., Judgement]:
    def judged(id: str, change: Callable[[dict[str, Any]], None] = lambda content: None) -> Judgement:
        claim = all_claims()[id]
        assert claim.uses is not None
        assert claim.judge is not None
        (node,) = nodes_in(claim.uses(Scale()))
        assert isinstance(node, Stored)
        content = json.loads((trial[1] / node.file).read_text())
        change(content)
        return claim.judge(stored=content)

    return judged


def test_every_claim_is_judged_from_the_files_of_a_trial(
    trial: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stored = tmp_path / "stored"
    stored.mkdir()
    for file in trial[1].glob("*.json"):  # without the mark of a trial, which would be refused
        (stored / file.name).write_text(json.dumps(json.loads(file.read_text()) | {"trial": None}))
    monkeypatch.setattr(nodes, "stored_folder", lambda: stored)
    verdicts = {each.id: each for each in reproduce(IDS, out=tmp_path / "claims").verdicts}
    assert list(verdicts) == IDS
    assert all(each.judgement is not None and each.judgement.checks for each in verdicts.values())


def test_the_evaluation_that_a_claim_takes_is_the_epoch_that_was_selected(trial: Home) -> None:
    script, home = trial
    for series in script.SERIES.values():
        content = json.loads((home / f"{series.page}.json").read_text())
        for row in (row for arm in content["arms"].values() for row in arm["rows"]):
            k = sweeps.selected(row)
            assert row["epoch"][k] == row["selected"]["epoch"]
            assert row["cost_so_far"][k] / row["training_images"] == pytest.approx(row["selected"]["after_epochs"])
            assert row["test"]["groups"][k] == pytest.approx(row["selected"]["test"]["groups"], abs=1e-5)
        script.write_page(home / f"{series.page}.json")
        page = (home / f"{series.page}.md").read_text()
        assert all(f"| {arm.name} |" in page for arm in series.arms)


def test_another_machine_goes_on_from_the_rows_alone(trial: Home, tmp_path: Path) -> None:
    script, home = trial
    shutil.copytree(home / "rows", tmp_path / "home" / "rows")
    assert script.run(arguments(script, tmp_path, seconds=0))
    for series in script.SERIES.values():
        file = f"{series.page}.json"
        assert (tmp_path / "home" / file).read_text() == (home / file).read_text()


def test_the_warm_up_continued_costs_what_pde_costs(trial: Home) -> None:
    """In the sizes of CelebA: 160 of 4,999 images are balanced, and 61,600 examples are 385 epochs of them."""
    script, _ = trial
    groups = [g for g, count in enumerate((2206, 2068, 685, 40)) for _ in range(count)]
    data = Data((torch.zeros(len(groups), 1), [g // 2 for g in groups], groups))
    more = script.continued(data, script.PDE)
    assert more == {"epochs": 385, "add": [0] * 25 + [1]}


def level(content: dict[str, Any], arm: str, value: float) -> None:
    """Give an arm this worst group at every evaluation of the test set, a little more with every seed."""
    for row in content["arms"][arm]["rows"]:
        row["test"]["worst_group"] = [value + 0.01 * row["seed"]] * len(row["epoch"])


PAIRS = {
    "pde/table5-celeba": ("pde", "add 50"),
    "pde/table6-celeba": ("pde", "factor 1"),
    "pde/fig4-celeba": ("pde", "reset"),
    "pde/table11-celeba": ("pde, basic", "pde"),
}


@pytest.mark.parametrize(("id", "arms"), PAIRS.items())
def test_a_higher_worst_group_decides_and_the_other_way_round_does_not_hold(
    id: str, arms: tuple[str, str], judge: Callable[..., Judgement]
) -> None:
    def levels(better: str, worse: str) -> Callable[[dict[str, Any]], None]:
        def change(content: dict[str, Any]) -> None:
            level(content, better, 0.8)
            level(content, worse, 0.6)

        return change

    assert judge(id, levels(*arms)).outcome in ("holds", "holds in part")
    assert judge(id, levels(*reversed(arms))).outcome == "does not hold"


def test_a_network_that_looks_elsewhere_turns_figure_1c(judge: Callable[..., Judgement]) -> None:
    def share(erm: float, pde: float) -> Callable[[dict[str, Any]], None]:
        def change(content: dict[str, Any]) -> None:
            for arm, value in (("erm", erm), ("pde", pde)):
                for row in content["arms"][f"{arm} on composites"]["rows"]:
                    row |= {"attention": {"on_picture": value + 0.001 * row["seed"] * value}, "cost": 100.0}

        return change

    assert judge("pde/fig1c-composite", share(0.3, 0.7)).outcome == "holds"
    assert judge("pde/fig1c-composite", share(0.6, 0.7)).outcome == "holds in part"
    assert judge("pde/fig1c-composite", share(0.7, 0.3)).outcome == "does not hold"


def test_runs_of_unequal_cost_decide_nothing(judge: Callable[..., Judgement]) -> None:
    def longer(content: dict[str, Any]) -> None:
        level(content, "pde", 0.8)
        level(content, "factor 1", 0.6)
        for row in content["arms"]["factor 1"]["rows"]:
            row["cost"] /= 2

    broken = judge("pde/table6-celeba", longer)
    assert broken.outcome == "does not hold"
    assert [check.text[:17] for check in broken.checks if check.main and not check.met] == ["all cost the same"]


def test_a_fall_in_the_expansions_turns_table_4(judge: Callable[..., Judgement]) -> None:
    def after(value: float) -> Callable[[dict[str, Any]], None]:
        def change(content: dict[str, Any]) -> None:
            end = sweeps.warm_up(content)
            for row in content["arms"]["pde"]["rows"]:
                past = [epoch > end for epoch in row["epoch"]]
                row["validation"]["worst_group"] = [0.6 if each else 0.5 for each in past]
                row["test"]["worst_group"] = [value + 0.01 * row["seed"] if each else 0.5 for each in past]
            for row in content["arms"]["warm-up continued"]["rows"]:
                row["cost"] = content["arms"]["pde"]["rows"][0]["cost"]

        return change

    assert judge("pde/table4-celeba", after(0.7)).outcome in ("holds", "holds in part")
    assert judge("pde/table4-celeba", after(0.4)).outcome == "does not hold"
