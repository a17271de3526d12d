"""A package of its own with a method, a data set, optimizers and a model: installed by pip, used as evenly's own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = Path(__file__).parent / "example"
PACKAGE = "evenly-example 1.0"
QUICK = "--epochs 3 --device cpu"
TRAIN = f"train two-features --method highest_loss --optimizer sam:lion --model linear -o share=0.1 {QUICK}"
COMPARE = f"compare two-features --methods erm,highest_loss --optimizers sgd,usam --seeds 1 --jobs 2 {QUICK}"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def used(installed: Path, work: Path, shell: Any) -> dict[str, tuple[int, str, str]]:
    """What evenly does where the package is installed."""
    commands = {
        **{verb: f"{verb} --json" for verb in ("methods", "datasets", "optimizers", "models")},
        "train": f"{TRAIN} --out whole",
        "compare": f"{COMPARE} --out table",
        "report": "report table",
        "wrong": "train two-features --method highest_loss -o share=2",
        "near": "train two-features --method highest_los",
        "rate": "train two-features -d rate=2",
        "stopped": f"stopped: {TRAIN} --out parts",
    }
    np.savez(work / "new.npz", x=np.zeros((2, 2), np.float32), y=np.array([0, 1]))
    done = shell(*commands.values(), sites=(installed,), cwd=work)
    return dict(zip(commands, done, strict=True))


@pytest.mark.parametrize(
    ("verb", "names"),
    [("methods", ["highest_loss"]), ("datasets", ["two-features"]), ("optimizers", ["lion", "usam"]),
     ("models", ["linear"])],
)  # fmt: skip
def test_lists_name_it_and_its_package(used: Any, verb: str, names: list[str]) -> None:
    code, out, err = used[verb]
    rows = json.loads(out)
    assert (code, err) == (0, "")
    assert [name for name, text in rows.items() if PACKAGE in text] == names
    assert all(rows[name].endswith(f" (of {PACKAGE})") for name in names)


def test_it_trains_and_the_run_names_the_package(used: Any, work: Path) -> None:
    code, _, err = used["train"]
    assert code == 0, err
    packages = dict.fromkeys(("method", "data set", "optimizer", "model"), PACKAGE)
    assert json.loads((work / "whole/config.json").read_text())["plan"]["packages"] == packages
    assert json.loads((work / "whole/results.json").read_text())["packages"] == packages
    page = (work / "whole/report.html").read_text()
    assert f"highest_loss is of {PACKAGE}; two-features is of {PACKAGE}; sam:lion is of {PACKAGE}" in page


def test_it_is_compared_in_several_processes_with_controls_of_its_cost(used: Any, work: Path) -> None:
    code, _, err = used["compare"]
    assert code == 0, err
    assert used["report"][0] == 0
    rows = json.loads((work / "table/results.json").read_text())["rows"]
    pairs = {f"{row['arm']['method']}+{row['arm']['optimizer']}" for row in rows if row["arm"]["control_of"] is None}
    assert pairs == {"erm+sgd", "erm+usam", "highest_loss+sgd", "highest_loss+usam"}
    controls = {f"{row['arm']['method']}+{row['arm']['optimizer']}" for row in rows if row["arm"]["control_of"]}
    assert {"random_upsample+sgd", "random_upsample+usam", "erm+sgd"} >= controls >= {"random_upsample+usam"}
    assert f"highest_loss is of {PACKAGE}" in (work / "table/report.html").read_text()


def test_interrupted_after_each_checkpoint_it_ends_in_the_same_bytes(
    used: Any, work: Path, shell: Any, installed: Path
) -> None:
    assert [code for code, *_ in used["stopped"]] == [130] * 4
    assert all("the same command goes on where it stopped" in err for *_, err in used["stopped"])
    assert (work / "parts/checkpoint").is_dir()
    ((code, _, err),) = shell(f"{TRAIN} --out parts", sites=(installed,), cwd=work)
    assert code == 0, err
    for name in ("model.safetensors", "metrics.jsonl", "selection.npz"):
        assert (work / "parts" / name).read_bytes() == (work / "whole" / name).read_bytes(), name


def test_its_options_are_refused_as_evenlys_own(used: Any) -> None:
    assert used["wrong"][2] == "evenly: share (option of highest_loss) must be at most 1, got 2\n"
    assert used["near"][2] == "evenly: no method is called 'highest_los'; did you mean 'highest_loss'?\n"
    assert used["rate"][2] == "evenly: rate (option of two-features) must be at most 1, got 2\n"
    assert [used[each][0] for each in ("wrong", "near", "rate")] == [2, 2, 2]


def test_without_the_package_its_runs_are_read_and_a_repeat_names_it(used: Any, work: Path, shell: Any) -> None:
    run = next((work / "table/runs").glob("highest_loss-sgd-seed0-*")).relative_to(work)
    for page in ("whole/report.html", "table/report.html"):
        (work / page).unlink()
    *read, again, predict, lists = shell(
        "report whole", "report table", "status table", f"predict {run} new.npz --out answers.csv",
        "train --config whole/config.json --out again", "predict whole new.npz", "methods --json", cwd=work,
    )  # fmt: skip
    assert [each[0] for each in read] == [0, 0, 0, 0], read
    assert (work / "whole/report.html").exists()
    assert len((work / "answers.csv").read_text().splitlines()) == 3
    way = f"is of {PACKAGE}, which is not installed here; run: pip install evenly-example==1.0\n"
    assert again == (2, "", f"evenly: the method 'highest_loss' {way}")
    assert predict == (2, "", f"evenly: the model 'linear' {way}")
    assert "highest_loss" not in lists[1]
    assert not (work / "again").exists()


def test_another_version_is_another_run(used: Any, work: Path, shell: Any, installed: Path, tmp_path: Path) -> None:
    shutil.copytree(installed, newer := tmp_path / "newer")
    (info,) = newer.glob("*.dist-info")
    metadata = (info / "METADATA").read_text()
    (info / "METADATA").write_text(metadata.replace("Version: 1.0", "Version: 1.1"))
    same, again = shell(
        f"{TRAIN} --out whole", "train --config whole/config.json --out again", sites=(newer,), cwd=work
    )
    assert same[0] == 2
    assert "whole holds another run (its data set is of evenly-example 1.0, not of evenly-example 1.1)" in same[2]
    assert again[0] == 0
    assert "'highest_loss' was of evenly-example 1.0 in that run and is of evenly-example 1.1 now" in again[2]


def test_its_own_tests_of_the_contract_pass(installed: Path, tmp_path: Path, python: Any) -> None:
    shutil.copy(EXAMPLE / "tests/test_contract.py", tmp_path)
    options = ("-q", "-p", "no:cacheprovider", "-W", "error", "--rootdir", tmp_path)
    done = python("-m", "pytest", *options, "test_contract.py", sites=(installed,), cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout


def test_the_page_shows_the_package_as_it_is() -> None:
    page = (ROOT / "docs/plugins.md").read_text()
    for file in ("pyproject.toml", "src/evenly_example/methods.py", "tests/test_contract.py"):
        assert (EXAMPLE / file).read_text() in page, file
