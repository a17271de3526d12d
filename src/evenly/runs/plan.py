"""A plan: one run as it was asked for, with every setting resolved. Its digest is its identity.

A plan names things. The objects that a name cannot bring back (a module of the user's own, a function that builds an
optimizer) ride along as live fields; they are no part of the digest, and their fingerprints are kept with the run.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

from attrs import evolve, field, frozen
from torch import nn
from torch.optim import Optimizer

from evenly.runs.results import RunResult
from evenly.settings import Recording, Settings, settings_of
from evenly.values import Value, live

Model = str | nn.Module | Callable[[], nn.Module]
PlanId = str
FLOATS = frozenset(name for name, option in settings_of(Settings).items() if option.kind is float)


@frozen
class DataSpec(Value):
    """Which data: its name, what made it, where it lies, and, of an object given in Python, its fingerprint.

    `kind` says what brings it back: a name of `evenly datasets`, a file or folder, or only the user. `seed` draws or
    divides it where that is not the run's own.
    """

    name: str
    options: Mapping[str, Any] = field(factory=dict)
    place: str | None = None
    fingerprint: str | None = None
    kind: Literal["named", "file", "own"] = "own"
    seed: int | None = None


@frozen
class ModelSpec(Value):
    """Which network: its name and options; `given` is a module or function of the user's own."""

    name: str
    options: Mapping[str, Any] = field(factory=dict)
    own: bool = False
    given: nn.Module | Callable[[], nn.Module] | None = live()

    @property
    def model(self) -> Model:
        return self.name if self.given is None else self.given


@frozen
class MethodSpec(Value):
    """Which method, with the options that were given or that a recipe has."""

    name: str
    options: Mapping[str, Any] = field(factory=dict)


@frozen
class OptimizerSpec(Value):
    """Which optimizer; of a function of the user's own, `defaults` says what it builds."""

    name: str
    defaults: str | None = None
    given: Callable[[Any], Optimizer] | None = live()


@frozen
class Plan(Value):
    """One run.

    Args:
        reference_epochs: the epochs of ERM whose cost is called 1.00x.
        budget: example-gradients to stop at, instead of epochs.
        after: the plan of the arm that this one is the control of. Until that arm has run, this plan lacks its budget.
        full_cost: what this plan costs without a budget. An arm of that cost needs no shortened control.
        packages: where the method, the data set, the optimizer or the model is another package's, that package and its
            version: another version is another plan.
    """

    data: DataSpec
    model: ModelSpec
    method: MethodSpec
    optimizer: OptimizerSpec
    settings: Settings
    record: Recording | None = None
    seed: int = 0
    reference_epochs: int = 1
    budget: float | None = None
    after: PlanId | None = None
    full_cost: float | None = None
    packages: Mapping[str, str] = field(factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; without packages where all is evenly's own."""
        values = super().to_dict()
        return values if self.packages else {name: value for name, value in values.items() if name != "packages"}

    @property
    def digest(self) -> PlanId:
        """Sixteen hex digits of everything but where the data lies, and the threads where they are left open."""
        return digest_of(self.to_dict())

    @property
    def folder_name(self) -> str:
        """A name for its folder: method, optimizer and seed for the reader, the digest for its identity."""
        return self.folder_name_of(self.digest)

    def folder_name_of(self, digest: PlanId) -> str:
        """The same where the digest is known, which takes longer to compute than the rest."""
        optimizer = self.optimizer.name.replace(":", "-")  # sam:adamw; not every system has colons in names
        return f"{self.method.name}-{optimizer}-seed{self.seed}-{digest[:8]}"

    def completed(self, arm: RunResult) -> Plan:
        """A control's plan once its arm has run: cut to the arm's cost, repeating as many examples as the arm did.

        Where the arm cost what this plan costs anyway, it is this plan without a budget. That may be one of the
        comparison's other plans, which then serves as the control.
        """
        plan = evolve(self, after=None, full_cost=None)
        if self.full_cost is not None and math.isclose(arm.cost, self.full_cost):
            return plan
        if self.method.name == "random_upsample":
            repeats = {"count": arm.chosen, "factor": arm.factor}
            plan = evolve(plan, method=evolve(self.method, options={**self.method.options, **repeats}))
        return evolve(plan, budget=arm.cost)


def digest_of(plan: Mapping[str, Any]) -> PlanId:
    """The digest of a plan from its plain values; a learning rate of 1 is one of 1.0."""
    data = {name: value for name, value in plan["data"].items() if name not in ("place", "seed")}
    if plan["data"].get("seed") is not None:
        data["seed"] = plan["data"]["seed"]
    settings = {name: float(value) if name in FLOATS else value for name, value in plan["settings"].items()}
    if settings["threads"] is None:
        del settings["threads"]
    costs = {name: None if plan[name] is None else float(plan[name]) for name in ("budget", "full_cost")}
    values = {**plan, "data": data, "settings": settings, **costs}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
