"""Which packages a plan's method, data set, optimizer and model come from, where they are not evenly's own."""

from __future__ import annotations

import warnings
from collections.abc import Collection

from attrs import evolve

from evenly.data import DATASETS
from evenly.errors import EvenlyWarning
from evenly.methods import METHODS
from evenly.models import MODELS
from evenly.optim.registry import packages_of as packages_of_optimizer
from evenly.plugins import missing
from evenly.runs.plan import DataSpec, ModelSpec, OptimizerSpec, Plan


def packages_used(data: DataSpec, model: ModelSpec, method: str, optimizer: OptimizerSpec) -> dict[str, str]:
    """The package and version of each kind of thing that is not evenly's own."""
    packages = {
        "method": METHODS.package(method),
        "data set": DATASETS.package(data.name) if data.kind == "named" else None,
        "optimizer": packages_of_optimizer(optimizer.name) if optimizer.given is None else None,
        "model": None if model.own else MODELS.package(model.name),
    }
    return {kind: package for kind, package in packages.items() if package is not None}


def packages_of_plan(plan: Plan) -> dict[str, str]:
    """Those that a plan uses, as they are installed here."""
    return packages_used(plan.data, plan.model, plan.method.name, plan.optimizer)


def check_packages(plan: Plan, *kinds: str) -> None:
    """Refuse a plan whose packages are not here in its versions, as on another machine of a cluster.

    Args:
        kinds: those to look at; all where none is named.
    """
    here = packages_of_plan(plan) if plan.packages else {}
    for kind, packages in plan.packages.items():
        if (not kinds or kind in kinds) and here.get(kind) != packages:
            raise missing(kind, _names(plan)[kind], packages, here.get(kind))


def with_installed_packages(plan: Plan, given: Collection[str] = ()) -> Plan:
    """A plan of an earlier run with the packages as they are here; another version is a warning.

    Args:
        given: kinds that the user gives anew.
    """
    here = packages_of_plan(plan)
    for kind, packages in plan.packages.items():
        name = _names(plan)[kind]
        if kind in given or here.get(kind) == packages:
            continue
        if kind not in here:
            raise missing(kind, name, packages)
        warnings.warn(
            f"the {kind} {name!r} was of {packages} in that run and is of {here[kind]} now; the numbers may differ",
            EvenlyWarning,
            stacklevel=3,
        )
    return evolve(plan, packages=here)


def _names(plan: Plan) -> dict[str, str]:
    return {
        "method": plan.method.name,
        "data set": plan.data.name,
        "optimizer": plan.optimizer.name,
        "model": plan.model.name,
    }
