"""Random upsampling: repeat examples drawn at random, as many as USEFUL would repeat. The control that tells the
gain of choosing from the gain of taking more steps (Nguyen et al. 2024, section 5.4)."""

from __future__ import annotations

import torch

from evenly.data import Data, Upsample
from evenly.engine import Fit, Run, Selection
from evenly.errors import EvenlyError
from evenly.methods.registry import Factory, method
from evenly.randomness import generator


@method()
def random_upsample(model: Factory, data: Data, fit: Fit, *, count: int | None = None, factor: int = 2) -> Run:
    """Repeat randomly drawn examples (`count` of them; 30% where not given)."""
    total = len(data.train)
    count = round(0.3 * total) if count is None else count
    if count != int(count) or not 0 <= count <= total:
        raise EvenlyError(f"count {count} cannot be drawn from {total} examples; give a whole number in 0..{total}")
    chosen = torch.randperm(total, generator=generator(fit.seed, "random upsample"))[: int(count)].sort().values
    run = fit(model(), data, sampler=Upsample(chosen, total, factor, fit.seed))
    run.selection = Selection(chosen, torch.full_like(chosen, factor), "drawn at random")
    return run
