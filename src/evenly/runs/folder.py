"""A run's folder, opened to run a plan in: new, continued where it stopped, or finished.

config.json         what was asked: the plan, what rebuilds the network, how raw inputs become its inputs, names
metrics.jsonl       one line per stage and epoch
checkpoint/         only while the run goes on, and .lock, which names the process that writes
model.safetensors   the weights used, with what prediction needs beside it (vocabulary.json or network/)
predictions.npz     outputs and labels of validation and test
selection.npz       which training examples the method selected, how often it showed them, why
record.npz          what was recorded in training
examples/           what the page shows of the examples selected
failed.json         why a run failed; the next one that is begun here removes it
results.json        written last: the run is finished
report.html         made from all of the above

Every write is atomic. A kill at any moment loses at most the epoch under way.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from attrs import evolve, field, frozen

from evenly import __version__
from evenly.errors import EvenlyError, may_pass, reason_of
from evenly.files import AGAIN, holds_something, make_folder, read_json, remove_partial, unused, write_json
from evenly.runs.holder import LOCK, leave, locked
from evenly.runs.network import NetworkSpec
from evenly.runs.plan import Plan, PlanId, digest_of
from evenly.runs.results import RunResult
from evenly.values import Value

FORMAT = 2
FAILED = "failed.json"
FINGERPRINTS = {
    "data": "its data differ (other rows, splits, groups or columns)",
    "model": "its model starts from other weights",
}


@frozen
class Config(Value):
    """What `config.json` holds: the plan, and all that it takes to use the trained network without the data.

    `threads` are those that the run computes on, also where the plan leaves them open. `control_of` names the run of a
    comparison that this one was trained as the control of.
    """

    plan: Plan
    network: NetworkSpec
    preprocessing: Mapping[str, Any]
    class_names: tuple[str, ...]
    group_names: tuple[str, ...] = ()
    fingerprints: Mapping[str, str] = field(factory=dict)
    threads: int = 1
    control_of: str = ""
    evenly: str = __version__
    format: int = FORMAT

    @property
    def digest(self) -> str:
        """Sixteen hex digits of the plan, the data and the network's initial weights."""
        content = json.dumps([self.plan.digest, dict(self.fingerprints)], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]


class RunFolder:
    """A folder opened for writing; no other process writes into it while this object lives."""

    def __init__(self, path: str | Path, config: Config) -> None:
        self.path, self.config = Path(path), config
        self._lock: int | None = None
        self._begun = False
        try:
            json.dumps(config.to_dict(), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise EvenlyError(f"what was asked cannot be kept with the run ({error}); give numbers and names") from None
        if self.path.exists() and not self.path.is_dir():
            raise EvenlyError(f"{self.path} is a file; give a folder as out")
        if (self.path / "config.json").exists():
            there = read_config(self.path)
            if config.plan.settings.threads is None:
                self.config = evolve(config, threads=there.threads)
            self._check(there)
        elif holds_something(self.path) and not (self.path / FAILED).exists():  # its workers died on another disk
            raise EvenlyError(f"{self.path} is not empty and holds no run; choose another out")

    def _check(self, there: Config) -> None:
        """Refuse a folder of another plan or other data; where the data lies does not matter."""
        before, now = (_identity(config) for config in (there, self.config))
        if before != now:
            weights = self.path / "model.safetensors"
            start = f", and to start from its weights model_options={{'weights': {str(weights)!r}}}"
            raise EvenlyError(
                f"{self.path} holds another run ({difference(before, now)}); "
                f"give out={str(unused(self.path))!r}{start if weights.exists() else ''}"
            )

    def prepare(self) -> None:
        """Make the folder and hold it, before the first write: a run that is refused at its start leaves none."""
        if self._begun:
            return
        make_folder(self.path)
        self._lock = locked(self.path)
        if self.finished:  # its files must not be written again while others read them
            raise EvenlyError(f"{self.path} was finished by another process meanwhile; run the same command to read it")
        if (self.path / "config.json").exists():
            self._check(read_config(self.path))  # another process may have begun a run of its own meanwhile
        else:
            write_json(self.path / "config.json", self.config.to_dict())
        (self.path / FAILED).unlink(missing_ok=True)
        remove_partial(self.path, self.path / "checkpoint")
        self._begun = True

    def close(self) -> None:
        """Let others write: an error that is kept, as in a notebook, must not hold the folder."""
        if (lock := getattr(self, "_lock", None)) is not None:
            leave(lock)
            os.close(lock)
        self._lock = None

    __del__ = close

    @property
    def finished(self) -> bool:
        return (self.path / "results.json").exists()

    def finish(self, results: RunResult) -> None:
        """Write the results: from now on the run is finished."""
        write_json(self.path / "results.json", {"format": FORMAT, **results.to_dict()})

    def fail(self, error: Exception) -> None:
        """Write why a run that was begun here failed, unless the same call may succeed later."""
        if self._begun and not self.finished and not may_pass(error):
            write_failure(self.path, reason_of(error), "".join(traceback.format_exception(error)))

    def remove_checkpoint(self) -> None:
        """Remove what only a run under way needs."""
        shutil.rmtree(self.path / "checkpoint", ignore_errors=True)
        with suppress(OSError):  # of a folder that can only be read
            (self.path / LOCK).unlink(missing_ok=True)


def write_failure(folder: Path, reason: str, trace: str) -> None:
    """Keep the reason of a failure with the run; where the disk takes nothing, the next call tries the run again."""
    with suppress(EvenlyError):
        make_folder(folder)
        write_json(folder / FAILED, {"format": FORMAT, "reason": reason, "traceback": trace})


def read_failure(folder: Path) -> str | None:
    """Why a run failed, in one line; None where it did not, or nothing can be read of it."""
    with suppress(EvenlyError, AttributeError):
        content = read_json(folder / FAILED)
        return None if content is None else str(content.get("reason", ""))
    return None


def read_config(folder: Path, known: Mapping[PlanId, Plan] = MappingProxyType({})) -> Config:
    """The configuration in a folder; refused in one line where there is none or it is of another format.

    Args:
        known: plans by digest, to be taken for the one in the file; they may hold objects of this process.
    """
    file = folder / "config.json"
    content = read_json(file, AGAIN)
    if content is None:
        what = "holds no run of evenly" if folder.exists() else "does not exist"
        raise EvenlyError(f"{folder} {what}; give the folder that `evenly train` left behind")
    if isinstance(content, dict) and "compare" in content:
        raise EvenlyError(f"{folder} holds a comparison, not a run; its runs are in {folder / 'runs'}")
    if isinstance(content, dict) and "improve" in content:
        raise EvenlyError(f"{folder} holds an improvement, not a run; its model is in {folder / 'best'}")
    with suppress(TypeError, KeyError, ValueError):
        content["plan"] = known.get(digest_of(content["plan"]), content["plan"]) if known else content["plan"]
    return config_from(content, file)


def config_from(content: Any, file: Path) -> Config:
    """The configuration that a file holds."""
    _check_format(file, content)
    try:
        return Config.from_dict(content)
    except (EvenlyError, TypeError, ValueError) as error:
        raise EvenlyError(f"{file} is damaged ({error}); {AGAIN}") from None


def read_results(folder: Path) -> RunResult:
    """The results of a finished run."""
    content = read_json(folder / "results.json", AGAIN)
    if content is None:
        raise EvenlyError(f"{folder} holds a run that is not finished; run the same command again to finish it")
    _check_format(folder / "results.json", content)
    try:
        return RunResult.from_dict({name: value for name, value in content.items() if name != "format"})
    except (EvenlyError, TypeError, ValueError) as error:
        raise EvenlyError(f"{folder / 'results.json'} is damaged ({error}); {AGAIN}") from None


def _check_format(path: Path, content: Any) -> None:
    if not isinstance(content, dict):
        raise EvenlyError(f"{path} is damaged (it holds no names and values); {AGAIN}")
    if content.get("format") != FORMAT:
        written = "evenly 0.1" if "format" not in content else f"another version (format {content['format']!r})"
        raise EvenlyError(f"{path} was written by {written}; remove the folder and train again")


def _identity(config: Config) -> dict[str, Any]:
    plan = config.plan.to_dict()
    plan["data"].pop("place")
    if plan["data"]["seed"] is None:
        del plan["data"]["seed"]
    plan["settings"]["threads"] = config.threads
    plan["packages"] = dict(config.plan.packages)
    found: dict[str, Any] = json.loads(json.dumps({**plan, "fingerprints": dict(config.fingerprints)}))
    return found


def difference(there: Mapping[str, Any], asked: Mapping[str, Any], part: str = "") -> str:
    """The first thing that differs, in the user's words: a setting before what only follows from it."""
    for key in sorted(set(there) | set(asked), key=lambda key: (key.startswith(("fingerprint", "reference")), key)):
        then, now = there.get(key), asked.get(key)
        if then == now or (part == "data" and isinstance(then, list)):  # names of columns follow from the rows
            continue
        if isinstance(then, Mapping) and isinstance(now, Mapping):
            return difference(then, now, part if part == "record" else key)
        if part == "fingerprints" or key == "fingerprint":
            return FINGERPRINTS[key if part == "fingerprints" else part]
        if part == "packages":
            return f"its {key} is of {then or 'evenly'}, not of {now or 'evenly'}"
        names = {"name": part, "defaults": part, "reference_epochs": "epochs", "compare": "data"}
        name = f"record's {key}" if part == "record" else names.get(key, key)
        then, now = (f"{value!r:.60} ..." if isinstance(value, list) else repr(value) for value in (then, now))
        return f"its {name} {'are' if name.endswith('s') else 'is'} {then}, not {now}"
    return "settings differ"
