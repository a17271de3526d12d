"""Claims that wait for a GPU: a unit makes every file that they wait for, and they can be judged from it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from evenly.errors import EvenlyError
from evenly.papers import nodes
from evenly.papers.claims import Scale, all_claims
from evenly.papers.nodes import Stored, is_stored, nodes_in
from evenly.papers.reproducing import reproduce
from evenly.runs.verdict import Verdict

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch):
    """The module benchmarks/gpu.py."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import gpu

    return gpu


def waiting() -> dict[str, list[Stored]]:
    """Claims that wait for files, with these."""
    files = {
        id: [node for node in nodes_in(claim.uses(Scale())) if isinstance(node, Stored) and not is_stored(node)]
        for id, claim in all_claims().items()
        if claim.uses is not None
    }
    return {id: absent for id, absent in files.items() if absent}


@cache
def readers(start: str) -> dict[str, set[str]]:
    """Claims that only read stored files, at least one of whose names starts so, with all those files."""
    uses = {id: list(nodes_in(claim.uses(Scale()))) for id, claim in all_claims().items() if claim.uses is not None}
    stored = {id: found for id, found in uses.items() if all(isinstance(node, Stored) for node in found)}
    files = {id: {node.file for node in found} for id, found in stored.items()}
    return {id: names for id, names in files.items() if any(name.startswith(start) for name in names)}


def judged(ids: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch, out: Path) -> dict[str, Verdict]:
    """Verdicts where the files are in a folder beside those of docs/results."""
    for file in RESULTS.glob("*.json"):
        if not (folder / file.name).exists():
            (folder / file.name).symlink_to(file)
    monkeypatch.setattr(nodes, "stored_folder", lambda: folder)
    outcome = reproduce(ids, out=out)
    assert not outcome.failures
    return {verdict.id: verdict for verdict in outcome.verdicts}


def test_no_trial_and_no_part_is_among_the_results() -> None:
    for file in RESULTS.glob("*.json"):
        assert not file.stem.endswith(".partial"), file.name
        assert "trial" not in json.loads(file.read_text()), file.name


def test_every_file_that_a_claim_waits_for_has_a_unit_and_minutes(gpu) -> None:
    made = {gpu.page_of(name): name for name in gpu.QUEUE}
    for id, absent in waiting().items():
        for node in absent:
            assert node.file.removesuffix(".json") in made, id
            assert 0 < node.minutes <= 25, id
    needed = set(gpu.waiting())
    for page, name in made.items():
        assert page in needed or (RESULTS / f"{page}.json").exists(), f"no claim needs {name}"


def test_every_claim_on_cifar10_can_be_judged_from_such_files(gpu, monkeypatch, tmp_path) -> None:
    """Files of other arms stand in for those that are not there yet."""
    from gpu_mlp import SERIES

    mlp = json.loads((RESULTS / "cifar10-mlp.json").read_text())
    for series in SERIES.values():
        arms = {arm.name: mlp["arms"]["useful"] for arm in series.arms}
        (tmp_path / f"{series.page}.json").write_text(json.dumps(mlp | {"arms": arms}))
    for unit in gpu.UNITS.values():
        file = json.loads((RESULTS / "cifar10-useful-8.json").read_text())
        (tmp_path / f"{unit.page}.json").write_text(json.dumps(file | {"unit": unit.page.removeprefix("cifar10-")}))
    verdicts = judged(list(readers("cifar10-")), tmp_path, monkeypatch, tmp_path / "claims")
    assert len(verdicts) > 30
    for id, verdict in verdicts.items():
        assert verdict.judgement is not None, id
        if id.startswith(("useful/table", "useful/fig3", "useful/fig4", "useful/fig5", "useful/fig7", "useful/fig10")):
            assert verdict.outcome == "does not hold" or "half" in id, id  # equal arms are not lower


def arm(better: bool) -> dict:
    """A file of an arm, good or bad in everything that is measured."""
    file = json.loads((RESULTS / "cifar10-useful-8.json").read_text()) | {"unit": ""}
    scale = 0.5 if better else 1.0
    for k, row in enumerate(file["rows"]):
        row["test_error"] = scale * (5 + 0.02 * k)
        often, never = (1000, 40_000) if better else (9000, 20_000)
        row["forgotten_times"] = {"0": never + 10 * k, "25": often + 10 * k, "3": 50_000 - never - often - 20 * k}
        row["recorded"][-1] |= {"l1_norm": scale * (37_000 + k), "lambda_1": scale * (20 + k), "lambda_5": 4.0}
    return file


BETTER = {
    "fig3-cifar10-sam": "sam-200", "fig3-cifar10-sam-useful": "sam-useful", "fig3-cifar10-ta": "sam-ta",
    "fig4-vgg19": "vgg19-useful", "fig4-vgg19-sam": "vgg19-sam-useful", "fig5-sam": "sam-200",
    "fig5-sam-useful": "sam-useful", "fig8-sam": "sam-200", "table1-sam": "sam-200", "table2": "useful-8",
    "table3": "sam-useful", "table4-asam": "asam-useful", "table4-sam-ta": "sam-ta-useful",
    "table4-asam-ta": "asam-ta-useful", "table5-sgd": "useful-8", "table5-sam": "sam-useful",
    "table6-quantile": "useful-8", "table6-misclassification": "useful-8",
}  # fmt: skip
"""The arm that is to be the better one."""


@pytest.mark.parametrize(("claim", "better"), BETTER.items())
def test_a_comparison_turns_if_its_arms_are_exchanged(claim, better, monkeypatch, tmp_path) -> None:
    id, best = f"useful/{claim}", f"cifar10-{better}.json"
    others = readers("cifar10-")[id] - {best}
    assert others
    outcomes = []
    for swapped in (False, True):
        folder = tmp_path / str(swapped)
        folder.mkdir()
        for name in (*others, best):
            (folder / name).write_text(json.dumps(arm((name == best) != swapped)))
        verdict = judged([id], folder, monkeypatch, tmp_path / f"claims-{swapped}")[id]
        outcomes.append(verdict.outcome)
    assert outcomes[0] in ("holds", "holds in part")
    assert outcomes[1] == "does not hold"


@pytest.mark.parametrize(
    ("id", "known", "outcome"),
    [("useful/fig10-left", 128.0, "holds in part"), ("useful/fig10-right", 2.0, "does not hold")],
)
def test_what_was_measured_before_does_not_decide_a_sweep(id, known, outcome, monkeypatch, tmp_path) -> None:
    """Factor 2 has to be the best, so that a bad number there decides all the same."""
    tree = all_claims()[id].uses(Scale())
    for value, node in tree["useful"].items():
        (tmp_path / node.file).write_text(json.dumps(arm(value != known)))
    for node in nodes_in(tree["sgd"]):
        (tmp_path / node.file).write_text(json.dumps(arm(False)))
    assert judged([id], tmp_path, monkeypatch, tmp_path / "claims")[id].outcome == outcome


@pytest.mark.parametrize("seeds", [[10, 11, 12], [0, 1], [0, 2, 1]])
def test_other_seeds_are_not_paired(seeds) -> None:
    file = arm(False)
    rows = [row | {"seed": seed} for row, seed in zip(file["rows"], seeds, strict=False)]
    judge = all_claims()["useful/table5-sgd"].judge
    with pytest.raises(EvenlyError, match=r"has seeds .* and not 0, 1, 2; run its unit again"):
        judge(high=file | {"rows": rows}, low=file)


def trial(gpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *arguments: str) -> int:
    line = ["gpu.py", *arguments, "--out", str(tmp_path / "out"), "--home", str(tmp_path), "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", line)
    with pytest.raises(SystemExit) as stopped:
        gpu.main()
    return stopped.value.code


def test_a_unit_is_stopped_goes_on_and_its_claims_are_judged(gpu, monkeypatch, tmp_path) -> None:
    short = ("sam-200", "--trial", "20", "--epochs", "2")
    assert trial(gpu, monkeypatch, tmp_path, *short, "--seconds", "0") == gpu.MORE_TO_DO
    assert (tmp_path / "cifar10-sam-200.partial.json").exists()
    assert not (tmp_path / "cifar10-sam-200.json").exists()
    assert trial(gpu, monkeypatch, tmp_path, *short) == 0
    assert not (tmp_path / "cifar10-sam-200.partial.json").exists()
    file = json.loads((tmp_path / "cifar10-sam-200.json").read_text())
    assert file["trial"] == 20
    assert [row["epochs"] for row in file["rows"]] == [2, 2, 2]
    with pytest.raises(AssertionError):
        judged(["useful/fig5-sam"], tmp_path, monkeypatch, tmp_path / "trial")  # it is of a trial
    (tmp_path / "cifar10-sam-200.json").write_text(json.dumps(file | {"trial": None}))
    there = {"cifar10-sam-200.json", "cifar10-sgd-200.json", "cifar10-useful-8.json"}
    ids = [id for id, files in readers("cifar10-sam-200").items() if files <= there]
    assert "useful/table1-sam" in ids
    verdicts = judged(ids, tmp_path, monkeypatch, tmp_path / "claims")
    assert all(verdict.judgement is not None for verdict in verdicts.values())


def test_a_control_has_the_cost_of_its_arm_seed_by_seed(gpu, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(gpu, "QUEUE", ("sam-useful", "sam-random"))
    early = replace(gpu.UNITS["sam-useful"], options={"separating_epoch": 1}, record_at=())
    monkeypatch.setitem(gpu.UNITS, "sam-useful", early)
    nothing = ("--results", str(tmp_path / "none"))
    assert trial(gpu, monkeypatch, tmp_path, "next", "--trial", "20", "--epochs", "2", *nothing) == 0
    arm, control = (
        json.loads((tmp_path / f"cifar10-{name}.json").read_text())["rows"] for name in ("sam-useful", "sam-random")
    )
    for row, own in zip(arm, control, strict=True):
        assert own["results"]["chosen"] == row["results"]["chosen"]
        assert own["results"]["cost"] == pytest.approx(row["results"]["cost"], rel=0.2)
