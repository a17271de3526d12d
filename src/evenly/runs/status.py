"""What is done, under way, failed and waiting in a folder: of a run, of a comparison, or of several of these.

Nothing is locked, and nothing is written. Whether a run is under way is known from the process that holds its folder
or, where that cannot be seen from here, from when the folder was last written to.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from attrs import evolve, frozen

from evenly.errors import EvenlyError
from evenly.files import as_path, read_json
from evenly.runs.holder import lives, read_holder
from evenly.values import Value, duration

State = Literal["done", "under way", "interrupted", "failed", "waiting"]
STATES: tuple[State, ...] = ("done", "under way", "interrupted", "failed", "waiting")
SILENT = 600.0
"""Seconds without a write after which a run whose process cannot be seen counts as interrupted, unless three of its
epochs take longer."""


@frozen
class RunStatus(Value):
    """How far one run is.

    Args:
        folder: the run's folder; None while the run waits.
        epoch: the last whole one; `epochs` is None where the run ends at a cost.
        seconds_left: as its epochs have taken so far, where that can be told.
        reason: why it failed, what it waits for, or when it was last written to.
        control_of: the runs of a comparison that it is the control of.
    """

    label: str
    state: State
    folder: str | None = None
    epoch: int | None = None
    epochs: int | None = None
    seconds_left: float | None = None
    reason: str = ""
    control_of: tuple[str, ...] = ()


@frozen
class Status(Value):
    """A folder: its runs, or the folders in it.

    Args:
        running: whether a process works in it; None where that cannot be seen from here.
        resume: the command that goes on with what is unfinished, where it is known.
        page: the page of what is finished.
    """

    folder: str
    kind: Literal["run", "comparison", "improvement", "folder"]
    runs: tuple[RunStatus, ...] = ()
    parts: tuple[Status, ...] = ()
    running: bool | None = None
    resume: str = ""
    page: str = ""

    @property
    def counts(self) -> dict[State, int]:
        """How many runs there are in each state, those of the folders within included."""
        runs = [run.state for each in (self, *self.parts) for run in each.runs]
        return {state: number for state in STATES if (number := runs.count(state))}

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "counts": dict(self.counts)}


def read_status(folder: str | Path) -> Status:
    """The status of a folder that evenly wrote, or of a folder of such folders."""
    path = as_path(folder, "folder")
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise EvenlyError(f"{path} {what}; give a folder that `evenly train` or `evenly compare` left")
    if (status := _status(path)) is not None:
        return status
    parts = []
    try:
        children = sorted(each for each in path.iterdir() if each.is_dir())
    except OSError as error:
        raise EvenlyError(f"{path} cannot be read ({error.strerror}); give a folder that you may read") from None
    for child in children:
        try:
            part = _status(child)
        except EvenlyError as error:
            part = Status(str(child), "run", (RunStatus(child.name, "failed", str(child), reason=str(error)),))
        parts += [] if part is None else [part]
    if not parts:
        raise EvenlyError(f"{path} holds no run or comparison; give a folder that `evenly train` or `compare` left")
    return Status(str(path), "folder", parts=tuple(parts))


def _status(path: Path) -> Status | None:
    """Of a run's or a comparison's folder; None where it is neither."""
    config = read_json(path / "config.json", "copy the folder again, or remove it")
    if not isinstance(config, Mapping) or not {"plan", "compare", "improve"} & config.keys():
        return None
    page = str(path / "report.html") if (path / "report.html").exists() else ""
    try:
        if "improve" in config:
            page = str(path / "improve.html") if (path / "improve.html").exists() else ""
            running = lives(read_holder(path) or {"pid": None})
            return Status(str(path), "improvement", tuple(_runs(path)), running=running, page=page)
        if "compare" in config:
            trials = path / "search"
            running = lives(read_holder(path) or {"pid": None})
            return Status(str(path), "comparison", (*_runs(trials), *_runs(path)), running=running, page=page)
        words = ["evenly", "train", "--config", str(path / "config.json"), "--out", str(path)]
        resume = shlex.join(words) if config["plan"]["data"].get("kind") != "own" else ""
        run = evolve(_run(path, path.name), control_of=_arms_of(path.absolute(), config))
        return Status(str(path), "run", (run,), resume=resume, page=page)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EvenlyError(f"{path} cannot be read ({error!r}); it was written by another version of evenly") from None


def _nodes(path: Path) -> dict[str, dict[str, Any]]:
    """What the graph of a comparison names, by id."""
    graph = read_json(path / "graph.json", "run the same `evenly compare` again")
    return {} if graph is None else {node["id"]: node for node in graph["nodes"]}


def _controls(path: Path) -> dict[str, tuple[str, ...]]:
    """The arms of each run of a comparison that is the control of some, by its folder."""
    nodes, arms = _nodes(path), dict[str, tuple[str, ...]]()
    for node in nodes.values():
        if node["folder"] is not None and node["after"] in nodes:
            arms[node["folder"]] = (*arms.get(node["folder"], ()), nodes[node["after"]]["label"])
    return arms


def _arms_of(path: Path, config: Mapping[str, Any]) -> tuple[str, ...]:
    """The arms of a run that is their control: by the graph of its comparison, else by what the run was trained as."""
    arms: tuple[str, ...] = ()
    with suppress(EvenlyError, KeyError, TypeError):  # a file of that name may be anybody's
        arms = _controls(path.parent.parent).get(f"runs/{path.name}", ())
    return arms or tuple(filter(None, [str(config.get("control_of", ""))]))


def _runs(path: Path) -> Iterator[RunStatus]:
    """The runs of a comparison, none twice."""
    nodes, arms = _nodes(path), _controls(path)
    if not nodes:
        folders = sorted(each for each in (path / "runs").glob("*") if each.is_dir())
        yield from (_run(folder, folder.name) for folder in folders)
        return
    failed: set[str] = set()
    seen = set()
    for id, node in nodes.items():
        if node["folder"] is None:
            arm = nodes.get(node["after"])
            suffix = ", which failed" if node["after"] in failed else ""
            yield RunStatus(node["label"], "waiting", reason="" if arm is None else f"for {arm['label']}{suffix}")
        elif node["folder"] not in seen:
            seen.add(node["folder"])
            run = evolve(_run(path / node["folder"], node["label"]), control_of=arms.get(node["folder"], ()))
            failed |= {id} if run.state == "failed" else set()
            yield run


def _run(folder: Path, label: str) -> RunStatus:
    run = RunStatus(label, "waiting", str(folder))
    if (folder / "results.json").exists():
        return evolve(run, state="done")
    holder, failure = read_holder(folder), read_json(folder / "failed.json", "remove it")
    if failure is not None and not lives(holder):
        return evolve(run, state="failed", reason=str(failure["reason"]))
    config = read_json(folder / "config.json", "remove the folder, and the run starts over")
    return run if config is None else _begun(run, folder, config["plan"], holder)


def _begun(run: RunStatus, folder: Path, plan: Mapping[str, Any], holder: Mapping[str, Any]) -> RunStatus:
    """How far a run is that is not finished, and whether a process is at it."""
    rows, new = _rows(folder, int(holder.get("metrics_bytes", 0)))
    written = max(_written(folder / name) for name in ("config.json", "metrics.jsonl", "checkpoint"))
    examples = sum(row["examples"] for row in rows[len(rows) - new :])
    epoch_seconds = None
    if examples and (seconds := _written(folder / "metrics.jsonl") - holder.get("began", written)) > 0:
        epoch_seconds = seconds * float(rows[-1]["examples"]) / examples
    age = max(time.time() - written, 0.0)
    if (alive := lives(holder)) is None:
        alive = age < max(SILENT, 3 * (epoch_seconds or 0))
    reason = "" if alive and age < SILENT else f"last written {duration(age)} ago"
    run = evolve(run, state="under way" if alive else "interrupted", reason=reason)
    if not rows:
        return run
    last, final = rows[-1], rows[-1]["stage"] == "final"
    stage = "" if final else f"stage {last['stage']}"
    epochs = plan["settings"]["epochs"] if final and plan["budget"] is None else None
    run = evolve(run, epoch=last["epoch"], epochs=epochs, reason=", ".join(filter(None, (stage, reason))))
    left = _epochs_left(rows, plan) if final and alive else None
    if left is None or epoch_seconds is None:
        return run
    return evolve(run, seconds_left=max(epoch_seconds * left - age, 0.0))


def _epochs_left(rows: list[dict[str, Any]], plan: Mapping[str, Any]) -> float | None:
    """Epochs like the last one until the run has all of them, or has the cost that it ends at."""
    last = rows[-1]
    if plan["budget"] is None:
        return float(plan["settings"]["epochs"] - last["epoch"])
    cost = last["cost"] - (rows[-2]["cost"] if len(rows) > 1 else 0.0)
    return (plan["budget"] - last["cost"]) / cost if cost > 0 else None


def _rows(folder: Path, since: int) -> tuple[list[dict[str, Any]], int]:
    """The lines of the metrics, and how many of them the present process has written."""
    try:
        content = (folder / "metrics.jsonl").read_bytes()
    except FileNotFoundError:
        return [], 0
    rows: list[dict[str, Any]] = []
    new = place = 0
    for line in content.splitlines(keepends=True):
        place += len(line)
        try:
            rows.append(json.loads(line))
        except ValueError:  # it is being written
            break
        new += place > since
    return rows, new


def _written(path: Path) -> float:
    """When a file or folder was last written to; 0 where there is none."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
