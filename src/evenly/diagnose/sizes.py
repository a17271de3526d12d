"""On how many training examples an audit measures curvature and importance weights, so that it ends in time."""

from __future__ import annotations

import time
from typing import NamedTuple

import torch
from torch import nn

from evenly.analyses import AuditSettings
from evenly.data.contract import Split
from evenly.diagnose.mean_hessian import MeanHessian, free_memory
from evenly.diagnose.samples import part_of, samples_of
from evenly.engine.evaluation import in_eval_mode
from evenly.errors import EvenlyError

PRODUCTS = 50
"""Hessian-vector products that five eigenvalues take, about: 34 to 60 were measured."""
TIMED = (8, 128)
"""Examples that products are timed on: few, and as many as a batch has where few are done in no time."""
NO_TIME = 0.25
FEWEST = 32
"""The fewest examples that curvature and importance weights are measured on."""
SHARES = {"importance weights": 0.2, "curvature": 0.8}
"""Of the time that is left."""


class Pace(NamedTuple):
    """Seconds that one example takes: its gradient's graph and a product with it; and the bytes of the graph."""

    gradient: float
    product: float
    bytes: int
    memory: int

    def curvature(self, n: int, top: int) -> float:
        """Seconds for the top eigenvalues over n examples; graphs that memory cannot hold are made for each product."""
        products = PRODUCTS * max(1.0, top / 5)
        made_again = max(0.0, 1 - self.memory / (n * self.bytes)) if self.bytes else 0.0
        return n * (self.gradient + products * (self.product + made_again * self.gradient))

    def importance(self, n: int) -> float:
        """Seconds for the importance weights of n examples, whose passes take about as long as a product."""
        return n * self.product


def sizes_within(
    model: nn.Module, loss: str, train: Split, ask: AuditSettings, started: float, missing: dict[str, str]
) -> tuple[dict[str, int], list[str]]:
    """How many examples each of the two is measured on, and what was shrunk, in sentences.

    Sizes are halved until they fit, so that two audits on one machine agree. Curvature that would take long on the
    fewest examples is left out, and `missing` says so.
    """
    wanted = min(ask.samples, len(train))
    sizes = {"importance weights": wanted} | ({"curvature": wanted} if ask.top else {})
    if ask.within is None or wanted <= FEWEST or not (ask.rho or ask.top):
        return sizes, []
    try:
        pace = measure_pace(model, loss, train, ask.seed)
    except EvenlyError:  # what is wrong, the measurement itself says
        return sizes, []
    # what is left of the time, but enough for a word on curvature where outputs and probes took most of it
    left, shrunk = max(ask.within - (time.perf_counter() - started), ask.within / 4), []

    def seconds(what: str, n: int) -> float:
        return pace.curvature(n, ask.top) if what == "curvature" else pace.importance(n)

    for what in list(sizes):
        size = wanted
        while size > FEWEST and seconds(what, size) > SHARES[what] * left:
            size = max(FEWEST, size // 2)
        if what == "curvature" and seconds(what, size) > 2 * ask.within:
            del sizes[what]
            missing[what] = (
                f"it would take {_about(seconds(what, size))} on {size} examples; --within none waits for it"
            )
        elif size < wanted:
            sizes[what] = size
            shrunk.append(
                f"{what[:1].upper()}{what[1:]} on {wanted:,} training examples would take "
                f"{_about(seconds(what, wanted))}. {size} of them are used to save time. For all of them: --within none"
            )
    return sizes, shrunk


def measure_pace(model: nn.Module, loss: str, train: Split, seed: int) -> Pace:
    """How long products with the Hessian take, by two of them."""
    names = [name for name, weight in model.named_parameters() if weight.requires_grad]
    for few in TIMED:
        x, y = samples_of(part_of(train, few, seed))
        with in_eval_mode(model), torch.enable_grad():
            hessian = MeanHessian(model, names, loss, x, y, batch_size=few, memory=None, seed=seed)
            start, times = hessian.random(seed), []
            for _ in range(2):
                begun = time.perf_counter()
                float(hessian.times(start)[0])  # waits for a GPU
                times.append(time.perf_counter() - begun)
        if sum(times) > NO_TIME or len(x) < few:
            break
    first, second = (each / len(x) for each in times)
    gradient = min(max(0.0, first - second), second)  # the first of all also warms up
    return Pace(gradient, second, hessian.bytes_per_sample, free_memory(hessian.device))


def _about(seconds: float) -> str:
    size, word = next((size, word) for size, word in ((3600, "hour"), (60, "minute"), (0, "second")) if seconds >= size)
    count = max(1, round(seconds / (size or 1)))
    return f"about {count:,} {word}{'' if count == 1 else 's'}"
