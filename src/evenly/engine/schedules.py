"""Learning-rate schedules: functions from progress in [0, 1) to a factor on the initial rate.

Progress is the share of the epochs (or of the budget) that is done, so a schedule rescales with the length of the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable

Schedule = Callable[[float], float]


def constant(progress: float) -> float:
    """The same rate throughout."""
    return 1.0


def step(progress: float) -> float:
    """Divided by 10 at half and again at three quarters of the run (Nguyen et al. 2024, section 5)."""
    return 1.0 if progress < 0.5 else 0.1 if progress < 0.75 else 0.01


def cosine(progress: float) -> float:
    """Half a cosine from 1 to 0."""
    return 0.5 * (1 + math.cos(math.pi * progress))


SCHEDULES: dict[str, Schedule] = {"constant": constant, "step": step, "cosine": cosine}


def schedule(name_or_function: str | Schedule) -> Schedule:
    """A schedule by name, or the function itself."""
    return SCHEDULES[name_or_function] if isinstance(name_or_function, str) else name_or_function
