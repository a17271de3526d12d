"""Random upsampling: repeat examples drawn at random, as many as USEFUL would repeat. The control that tells the
gain of choosing from the gain of taking more steps (Nguyen et al. 2024, section 5.4)."""

from __future__ import annotations

from typing import Annotated

import torch

from evenly.data import Data, Upsample
from evenly.engine import Fit, Selection, Trained
from evenly.errors import SettingError
from evenly.methods.early import Factor
from evenly.methods.registry import Factory, method
from evenly.randomness import generator
from evenly.settings import Settings, at_least


def check(data: Data, settings: Settings, count: int | None, **_: object) -> None:
    """Refuse to draw more examples than there are."""
    if count is not None and count > len(data.train):
        raise SettingError("count", count, f"at most {len(data.train)}, the number of training examples")


@method(check=check)
def random_upsample(
    model: Factory, data: Data, fit: Fit, *, count: Annotated[int | None, at_least(0)] = None, factor: Factor = 2
) -> Trained:
    """Repeat randomly drawn examples (`count` of them; 30% where not given)."""
    total = len(data.train)
    count = round(0.3 * total) if count is None else count
    chosen = torch.randperm(total, generator=generator(fit.seed, "random upsample"))[:count].sort().values
    trained = fit(model(), data, sampler=Upsample(chosen, total, factor, fit.seed))
    trained.selection = Selection(chosen, torch.full_like(chosen, factor), "drawn at random")
    return trained
