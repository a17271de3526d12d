"""Linear stability: the minima at which SGD, random perturbation or SAM can stay.

>>> minimum = Minimum(n=100, sigma=9, largest=2.0)      # or Minimum.of(coherence)
>>> verdict(minimum, lr=0.5, batch_size=1).answer       # by the theorems
'diverges'
>>> largest_stable_lr(Hessians.rank_one(gradients), batch_size=8)   # exact, from the Hessians
>>> phase_diagram(Axes("lr", "sigma"), batch_size=5, ascent=0.1)
"""

from __future__ import annotations

from evenly.analyses import Axes, Runs
from evenly.theory.stability.criteria import (
    Minimum,
    Threshold,
    Verdict,
    converges,
    diverges,
    largest_stable_lr,
    largest_stable_rho,
    smallest_stable_batch_size,
    verdict,
)
from evenly.theory.stability.dynamics import Simulation, normalized_sam_radius, quadratic_growth, simulate
from evenly.theory.stability.hessians import Hessians, quadratic
from evenly.theory.stability.lyapunov import Exponent, lyapunov_exponent, lyapunov_exponents
from evenly.theory.stability.mean_square import (
    mean_square_ascent,
    mean_square_batch_size,
    mean_square_growth,
    mean_square_lr,
)
from evenly.theory.stability.phases import PhaseDiagram, phase_diagram, sharp_exponent

__all__ = [
    "Axes",
    "Exponent",
    "Hessians",
    "Minimum",
    "PhaseDiagram",
    "Runs",
    "Simulation",
    "Threshold",
    "Verdict",
    "converges",
    "diverges",
    "largest_stable_lr",
    "largest_stable_rho",
    "lyapunov_exponent",
    "lyapunov_exponents",
    "mean_square_ascent",
    "mean_square_batch_size",
    "mean_square_growth",
    "mean_square_lr",
    "normalized_sam_radius",
    "phase_diagram",
    "quadratic",
    "quadratic_growth",
    "sharp_exponent",
    "simulate",
    "smallest_stable_batch_size",
    "verdict",
]
