"""Settings as names and values that people can read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evenly.data.contract import Data
from evenly.report.words import RULE_NAMES

NAMES = {
    "epochs": "epochs",
    "batch_size": "batch size",
    "lr": "learning rate",
    "momentum": "momentum",
    "weight_decay": "weight decay",
    "rho": "SAM's rho",
    "schedule": "schedule",
    "augment": "augmentation",
    "normalise": "normalisation",
    "precision": "precision",
    "patience": "patience, in epochs",
    "groups": "groups",
    "infer": "groups inferred by",
    "model_options": "model options",
}


def setting_pairs(settings: Mapping[str, Any], rule: str) -> list[tuple[str, str]]:
    """The settings of training, in a fixed order; then the selection rule."""
    pairs = [(name, as_text(settings[key], key)) for key, name in NAMES.items() if key in settings]
    return [*pairs, ("selection rule", f"{rule}: {RULE_NAMES[rule]}" if rule in RULE_NAMES else rule)]


def size_pairs(data: Data | None) -> list[tuple[str, str]]:
    """How many examples each split has, how many classes and groups."""
    if data is None:
        return []
    spoken = {"train": "training"}
    pairs = [(f"{spoken.get(name, name)} examples", f"{len(split):,}") for name, split in data.splits.items()]
    pairs.append(("classes", f"{data.classes:,}"))
    if data.group_count:
        pairs.append(("groups", f"{data.group_count:,}"))
    if data.train.evaluation_groups is not None:
        pairs.append(("groups measured by", f"{len(data.measured_names):,}"))
    return pairs


def as_text(value: Any, key: str = "") -> str:
    """A setting's value: mappings as "name = value", None as what it means."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} = {as_text(inner)}" for name, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(as_text(inner) for inner in value)
    if value is None:
        return "full batch" if key == "batch_size" else "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
