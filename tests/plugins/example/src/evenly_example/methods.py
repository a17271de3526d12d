"""Repeat the examples that a short first training leaves with the highest loss."""

from typing import Annotated

from torch import Tensor
from torch.nn.functional import cross_entropy

from evenly.data import Data, Upsample
from evenly.engine import FORWARD, Fit, Selection, Trained
from evenly.methods.registry import Factory, method
from evenly.settings import above, at_least, at_most


@method(control="random_upsample")
def highest_loss(
    model: Factory,
    data: Data,
    fit: Fit,
    *,
    share: Annotated[float, above(0), at_most(1)] = 0.2,
    factor: Annotated[int, at_least(1), at_most(100)] = 3,
) -> Trained:
    """Repeat the share of examples with the highest loss after a third of the epochs, train again."""
    total = len(data.train)
    early = fit(model(), data, stage="early", epochs=max(1, fit.epochs // 3), select="last", patience=None)

    def choose() -> dict[str, Tensor]:
        losses = cross_entropy(early.outputs(data.train), data.train.labels, reduction="none")
        return {"indices": losses.topk(max(1, round(share * total))).indices.sort().values}

    chosen = fit.load_or_compute("chosen", choose)["indices"]
    spent = early.cost + FORWARD * total
    trained = fit(model(), data, sampler=Upsample(chosen, total, factor, fit.seed), spent=spent)
    trained.selection = Selection(chosen, chosen.new_full((len(chosen),), factor), "the highest losses early on")
    return trained
