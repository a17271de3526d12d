"""Settings of the analyses: an audit, the stability of a minimum, a phase diagram. As with the settings of training,
the functions, the command line and the refusals are made from these classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from attrs import frozen

from evenly.errors import EvenlyError
from evenly.settings import FLOAT32, Constraint, above, at_least, at_most, setting
from evenly.values import Value

MODERATE = Constraint(
    "0 or of a size between 1e-100 and 1e+100", lambda value: value == 0 or 1e-100 <= abs(value) <= 1e100
)
"""Products of a few such numbers stay within the range of float64."""
MOST_STEPS = 200
"""The default number of Hessian-vector products in a run of Lanczos' method at most, and so of eigenvalues."""
Axis = Literal["batch_size", "sigma", "lr", "ascent"]


@frozen(kw_only=True)
class AuditSettings(Value):
    """What an audit measures, on which examples, and how long it may take."""

    split: Literal["train", "validation", "test"] | None = setting(
        None, help="split to judge the model on: test, validation or train; auto is the first of these", none="auto"
    )
    rho: float = setting(0.05, at_least(0), FLOAT32, help="radius of SAM, for the importance weights")
    batch_size: int | None = setting(
        None,
        at_least(1),
        help="examples whose gradient SAM's step uphill follows, for the importance weights; auto is the run's own, "
        "or 128",
        none="auto",
    )
    top: int = setting(5, at_least(0), at_most(MOST_STEPS), help="eigenvalues of the Hessian; 0 leaves curvature out")
    samples: int = setting(
        1000, at_least(1), help="training examples to measure curvature and importance weights on, at most"
    )
    within: float | None = setting(
        60.0,
        above(0),
        help="seconds for the audit of a model, about; curvature and importance weights use fewer examples where all "
        "would take longer; none for no limit",
        none="none",
    )
    seed: int = setting(0, help="decides which examples are sampled")


@frozen(kw_only=True)
class CardSettings:
    """How the stability of a minimum is judged; what is not given is the run's own."""

    lr: float | None = setting(
        None, above(0), MODERATE, help="learning rate; auto is RUN's own, 0.5 in a diagram", none="auto"
    )
    batch_size: int | None = setting(
        None, at_least(1), help="examples per step; auto is RUN's own, 5 in a diagram", none="auto"
    )
    rho: float | None = setting(
        None,
        at_least(0),
        MODERATE,
        help="for RUN: radius of SAM; auto is RUN's own where it was trained by SAM",
        none="auto",
    )
    samples: int = setting(2000, at_least(1), help="for RUN: training examples to use, at most")
    seed: int = setting(0, at_least(0), help="decides every random draw")


@frozen
class Axes:
    """The two of batch_size, sigma, lr and ascent that vary, and their values."""

    x: Axis = setting("batch_size", help="for a diagram: the axis across, batch_size, sigma, lr or ascent")
    y: Axis = setting("sigma", help="for a diagram: the axis upwards, another of these")
    x_values: Sequence[float] | None = setting(None, help="for a diagram: the values on the axis across", none="auto")
    y_values: Sequence[float] | None = setting(None, help="for a diagram: the values on the axis upwards", none="auto")

    def __attrs_post_init__(self) -> None:
        if self.x == self.y:
            raise EvenlyError(f"both axes are {self.x!r}; give two different ones of batch_size, sigma, lr, ascent")


@frozen(kw_only=True)
class Quadratic:
    """The loss and the optimizer of a phase diagram; the two settings that its axes vary are not used."""

    batch_size: int = setting(5, help="for a diagram: examples per step, where no axis has it")
    sigma: int = setting(9, help="for a diagram: coherence, where no axis has it")
    lr: float = setting(0.5, help="for a diagram: learning rate, where no axis has it")
    ascent: float = setting(0.0, help="for a diagram: rho/alpha of SAM, where no axis has it")
    optimizer: Literal["sgd", "random_perturbation", "sam"] | None = setting(
        None,
        help="for a diagram: sgd, random_perturbation or sam; auto is sam where there is an ascent, else sgd",
        none="auto",
    )
    n: int = setting(100, at_least(1), help="for a diagram: examples")
    largest: float = setting(2.0, above(0), MODERATE, help="for a diagram: largest eigenvalue of the Hessian")


@frozen(kw_only=True)
class Runs:
    """The runs of one cell of a simulation."""

    steps: int = setting(1000, at_least(1), help="for a diagram: steps of every run")
    repeats: int = setting(10, at_least(1), help="for a diagram: runs in every cell")
    seed: int = setting(0, at_least(0), help="decides the start, the batches and the noise")
    noise: float = setting(0.01, at_least(0), MODERATE, help="the scale of random perturbation's delta; our choice")
    threshold: float = setting(1000.0, above(0), MODERATE, help="a run diverged if its norm grew by more than this")
