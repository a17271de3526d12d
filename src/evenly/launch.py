"""Whether `torchrun`, or another launcher that sets the same variables, started this process among several.

Read from the environment alone, without torch. `evenly.engine.world` also knows of a process group that a user made.
"""

from __future__ import annotations

import os

NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Without one of these the processes could not find each other: a scheduler may export WORLD_SIZE alone."""


def is_launched() -> bool:
    """Whether there are others."""
    return all(os.environ.get(name) for name in NEEDED) and int(os.environ["WORLD_SIZE"]) > 1


def rank() -> int:
    """The number of this process among all, from 0."""
    return int(os.environ["RANK"]) if is_launched() else 0


def local_rank() -> int:
    """Its number among those of its machine."""
    return int(os.environ.get("LOCAL_RANK", "0")) if is_launched() else 0


def local_processes() -> int:
    """How many are on its machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if is_launched() else 1
