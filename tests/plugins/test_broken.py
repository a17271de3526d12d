"""Packages that cannot be used: a line each that names the package, the cause and the way out; the rest works."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

METHOD = """import sys
print("imported", __name__, file=sys.stderr)
from evenly.methods.registry import method

@method()
def {name}(model, data, fit):
    "Train."
    return fit(model(), data)
"""
QUICK = "--epochs 1 --device cpu -d n=100"


def swapped(line: str) -> str:
    """Which of two packages with one name comes first is the file system's choice."""
    return line.replace("left", "LEFT").replace("right", "left").replace("LEFT", "right")


def test_each_is_one_line_and_the_rest_works(package: Any, shell: Any, tmp_path: Path) -> None:
    package("lacks", "import nowhere", methods="lacking=lacks:lacking")
    package("exits", "raise SystemExit(3)", methods="exiting=exits:exiting")
    package("wrong-kind", "number = 3", methods="number=wrong_kind:number", datasets="numbers=wrong_kind:number",
            optimizers="number=wrong_kind:number", models="number=wrong_kind:number")  # fmt: skip
    package("misnamed", METHOD.format(name="one"), methods="other=misnamed:one")
    package("claims", METHOD.format(name="erm"), methods="erm=claims:erm")
    package("left", METHOD.format(name="twice"), methods="twice=left:twice")
    package("right", METHOD.format(name="twice"), methods="twice=right:twice")
    package("odd", METHOD.format(name="plus"), methods="a+b=odd:plus")
    site = package("good", METHOD.format(name="plain"), methods="plain=good:plain")
    methods, asked, both, erm, plain, data, optimizer, model, unknown = shell(
        "methods", "train spiral --method lacking", "train spiral --method twice", f"train spiral {QUICK} --out erm",
        f"train spiral --method plain {QUICK} --out plain", "train numbers", "train spiral --optimizer sam:number",
        "train spiral --model number", "train spiral --method nothing", sites=(site,), cwd=tmp_path,
    )  # fmt: skip
    assert methods[0] == 0
    assert "Train (of good 1.0)" in methods[1]
    lines = [line for line in methods[2].splitlines() if not line.startswith("imported")]
    reasons = {
        "'lacking' of lacks 1.0": "ModuleNotFoundError: No module named 'nowhere'",
        "'exiting' of exits 1.0": "SystemExit: 3",
        "'number' of wrong-kind 1.0": "it is no function with @evenly.methods.registry.method(...) on it",
        "'other' of misnamed 1.0": "its function is called 'one'; give the entry point that name",
        "'erm' of claims 1.0": "evenly has one of this name",
        "'twice' of left 1.0": "right 1.0 has one of this name",
        "'a+b' of odd 1.0": "a name is letters, digits, - and _, and begins with a letter",
    }
    expected = {
        f"evenly: the method {whose} cannot be used ({why}); update the package, or run: pip uninstall "
        f"{whose.split()[-2]}"
        for whose, why in reasons.items()
    }
    assert len(lines) == len(reasons)
    assert {line if line in expected else swapped(line) for line in lines} == expected
    assert [each[0] for each in (asked, both, data, optimizer, model, unknown)] == [2] * 6
    assert asked[2].splitlines()[-1] in expected
    assert both[2].splitlines()[-1] in lines
    assert erm[0] == plain[0] == 0, (erm, plain)
    assert "imported" not in erm[2].replace("imported good", "")
    assert "the data set 'numbers' of wrong-kind 1.0 cannot be used (it is a int, not a function" in data[2]
    assert "the optimizer 'number' of wrong-kind 1.0 cannot be used (it is neither a function of" in optimizer[2]
    assert "the model 'number' of wrong-kind 1.0 cannot be used (it is a int, not a function" in model[2]
    assert "no method is called 'nothing'; there are: " in unknown[2]


def test_nothing_is_imported_before_it_is_asked_for(package: Any, python: Any, tmp_path: Path) -> None:
    site = package("good", METHOD.format(name="plain"), methods="plain=good:plain")
    script = """import sys, evenly
from evenly.cli.app import app
heavy = {"torch", "numpy", "good"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
from evenly.methods import METHODS
assert "plain" in METHODS and "plain" in list(METHODS) and METHODS.package("plain") == "good 1.0"
assert "good" not in sys.modules
assert METHODS["plain"].summary == "Train" and "good" in sys.modules
"""
    done: subprocess.CompletedProcess[str] = python("-c", script, sites=(site,), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for command in (("--help",), ("train", "--help")):
        done = python("-X", "importtime", "-m", "evenly", *command, sites=(site,), cwd=tmp_path)
        assert done.returncode == 0
        assert not [
            line for line in done.stderr.splitlines() if line.split("|")[-1].strip() in ("torch", "numpy", "good")
        ]
