"""Trains in forked children, kills them at random moments and damages their files; prints what was hit. Started by
test_kill.py.

The parent has trained once, so that all is imported, and runs a single thread: a child begins to train at once.

    kill_server.py FOLDER KILLS_PER_METHOD DAMAGED_FILES_PER_METHOD SEED
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import nn

from evenly import EvenlyError, train
from evenly.data import load

DATA = load("shortcut-digits")
SETTINGS: dict[str, Any] = {"batch_size": 32, "select": "worst-group", "schedule": "cosine", "seed": 3}
METHODS: dict[str, dict[str, Any]] = {
    "erm": {"epochs": 24, "optimizer": "sam"},
    "useful": {"epochs": 18, "separating_epoch": 15},
    "pde": {"epochs": 80, "warmup_epochs": 40, "every": 4},
}
REFUSED = 3


def net() -> nn.Module:
    """With dropout: what is random within an epoch has to resume as well."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 2))


def start(method: str, out: Path) -> int:
    """Fork a child that trains into `out` and leaves its weights beside it."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        run = train(DATA, model=net, method=method, out=out, **SETTINGS, **METHODS[method])
        torch.save(run.model.state_dict(), out.with_suffix(".weights"))
        code = 0
    except EvenlyError as error:
        out.with_suffix(".refused").write_text(str(error))
        code = REFUSED
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def finish(child: int) -> int:
    """Wait for a child; its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def lines(out: Path) -> list[str]:
    """The whole lines of a run's metrics."""
    path = out / "metrics.jsonl"
    return path.read_text().split("\n")[:-1] if path.exists() else []


def strike(child: int, out: Path, epochs: int, delay: float) -> None:
    """Kill a child some time after it has done so many epochs, of all stages together, unless it has died itself."""
    while len(lines(out)) < epochs or not out.exists():
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return
        time.sleep(0.0005)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)


def torment(folder: Path, method: str, kills: int, draw: random.Random) -> dict[str, Any]:
    """Kill and resume until `kills` kills have hit a run under way; every run is seen through to its end."""
    started = time.perf_counter()
    if finish(start(method, folder / "whole")):
        sys.exit(f"the uninterrupted run of {method} failed")
    total = len(lines(folder / "whole"))
    epoch = (time.perf_counter() - started) / total
    hits: list[str] = []
    attempts = runs = 0
    while len(hits) < kills:
        moments = sorted(draw.uniform(0, total) for _ in range(kills - len(hits)))
        out = folder / f"killed{runs}"
        runs += 1
        code = None
        while code != 0:
            child = start(method, out)
            if moments:
                attempts += 1
                strike(child, out, int(moments.pop(0)), draw.uniform(0, 2 * epoch))
            code = finish(child)
            if code == -signal.SIGKILL:
                hits.append("{stage} {epoch}".format(**json.loads(lines(out)[-1])) if lines(out) else "start")
            elif code:
                sys.exit(f"{method} did not resume after kills at {hits}")
    return {"hits": hits, "attempts": attempts, "runs": runs, "epoch": epoch}


def damaged(content: bytes, draw: random.Random) -> bytes:
    """A file's content with a bit flipped, a part zeroed or overwritten, cut short, or followed by something else."""
    place = draw.randrange(max(1, len(content)))
    noise = draw.randbytes(draw.randrange(1, 64))
    flipped = content[:place] + bytes([content[place] ^ (1 << draw.randrange(8))]) + content[place + 1 :]
    zeroed = content[:place] + bytes(len(noise)) + content[place + len(noise) :]
    other = content[:place] + noise + content[place + len(noise) :]
    return draw.choice([flipped, flipped, flipped, zeroed, other, content[:place], content + noise, b""])


def spoil(folder: Path, method: str, count: int, draw: random.Random) -> list[dict[str, str]]:
    """Kill runs, damage one file of each and go on. Where that is refused, the file is put back first."""
    total, spoiled = len(lines(folder / "whole")), []
    for number in range(count):
        out = folder / f"spoiled{number}"
        child = start(method, out)
        strike(child, out, draw.randrange(1, total + 1), draw.uniform(0, 0.02))
        finish(child)
        files = [path for path in out.rglob("*") if path.is_file() and not path.name.startswith(".")]
        file = draw.choice(sorted(files))
        whole = file.read_bytes()
        file.write_bytes(damaged(whole, draw))
        code, message = finish(start(method, out)), ""
        if code == REFUSED:
            message = out.with_suffix(".refused").read_text()
            file.write_bytes(whole)
            code = finish(start(method, out))
        if code:
            sys.exit(f"{method} ended with {code} after {file} was damaged; {message}")
        spoiled.append({"file": str(file.relative_to(out)), "refused": message})
    return spoiled


def main(folder: Path, kills: int, spoils: int, seed: int) -> None:
    torch.set_num_threads(1)
    for optimizer in ("sgd", "sam"):
        train(DATA, model=net, method="useful", optimizer=optimizer, epochs=1, out=folder / "warm" / optimizer)
    if threading.active_count() > 1 or len(list(Path("/proc/self/task").glob("*"))) > 1:
        sys.exit("more than one thread; forking is not safe")
    draw = random.Random(seed)
    told = {}
    for method in METHODS:
        (folder / method).mkdir()
        told[method] = torment(folder / method, method, kills, draw)
        told[method]["spoiled"] = spoil(folder / method, method, spoils, draw)
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
