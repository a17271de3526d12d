"""Runs command lines of evenly one after the other in one process and prints [exit code, stdout, stderr] of each.

An argument "stopped: COMMAND" runs a command four times, interrupted after its next checkpoint each time.
"""

import io
import json
import shlex
import sys
from contextlib import redirect_stderr, redirect_stdout

from evenly.cli import main
from evenly.engine.checkpoints import Checkpoints

save, stops = Checkpoints.save, set()


def run(command: str) -> tuple[int, str, str]:
    sys.argv = ["evenly", *shlex.split(command)]
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        try:
            main()
        except SystemExit as ended:
            return ended.code or 0, out.getvalue(), err.getvalue()
    raise AssertionError("main exits")


def stopping(self: Checkpoints, stage: str, state: dict) -> None:
    save(self, stage, state)
    if (place := (stage, len(self.rows()))) not in stops:
        stops.add(place)
        raise KeyboardInterrupt


if __name__ == "__main__":
    done = []
    for each in sys.argv[1:]:
        command = each.removeprefix("stopped: ")
        if command != each:
            Checkpoints.save, Checkpoints.due = stopping, property(lambda self: True)
            done += [[run(command) for _ in range(4)]]
            Checkpoints.save = save
        else:
            done.append(run(command))
    print(json.dumps(done))
