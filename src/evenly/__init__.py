"""evenly makes a network learn every predictive feature in its data, not only the easy ones, and shows if it did."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_HOMES = {
    "Data": "evenly.data",
    "Split": "evenly.data",
    "Texts": "evenly.data",
    "Upsample": "evenly.data",
    "ProgressiveExpansion": "evenly.data",
    "GroupBalanced": "evenly.data",
    "Sharded": "evenly.data",
    "SAM": "evenly.optim",
    "ASAM": "evenly.optim",
    "LSAM": "evenly.optim",
    "RandomPerturbation": "evenly.optim",
    "EvenlyError": "evenly.errors",
    "group_accuracy": "evenly.engine",
    "worst_group_accuracy": "evenly.engine.scoring",
    "hard_examples": "evenly.methods",
    "coherence": "evenly.diagnose.model_coherence",
    "CoherenceTracker": "evenly.diagnose.tracking",
    "stability_card": "evenly.diagnose.stability",
    "audit": "evenly.diagnose.auditing",
    "probe": "evenly.diagnose.probing",
    "probes": "evenly.diagnose.probing",
    "importance_weights": "evenly.diagnose.importance",
    "importance_map": "evenly.diagnose.importance",
    "lorenz": "evenly.diagnose.importance",
    "gini": "evenly.diagnose.importance",
    "hessian_spectrum": "evenly.diagnose.spectrum",
    "forgetting_scores": "evenly.diagnose.forgetting",
    "ForgettingTracker": "evenly.diagnose.forgetting",
    "grad_cam": "evenly.diagnose.saliency",
    "representations": "evenly.diagnose.features",
    "embedding": "evenly.diagnose.features",
    "l1_norm": "evenly.diagnose.norms",
    "Recorder": "evenly.diagnose.recording",
    "record_checkpoints": "evenly.diagnose.recording",
    "Classifier": "evenly.experiment.classifier",
    "train": "evenly.experiment.training",
    "compare": "evenly.experiment.comparing",
    "improve": "evenly.experiment.improving",
    "reproduce": "evenly.papers.reproducing",
    "load": "evenly.runs.run",
    "load_comparison": "evenly.runs.comparison",
    "Run": "evenly.runs.run",
    "Comparison": "evenly.runs.comparison",
    "write_report": "evenly.report.pages",
}
_ROOMS = ("diagnose", "theory", "integrations", "testing")
"""Packages that are named through evenly: ``evenly.theory.stability.diverges(...)``."""
__all__ = [*_HOMES, "__version__"]  # noqa: PLE0604

if TYPE_CHECKING:
    from evenly.data import Data as Data
    from evenly.data import GroupBalanced as GroupBalanced
    from evenly.data import ProgressiveExpansion as ProgressiveExpansion
    from evenly.data import Sharded as Sharded
    from evenly.data import Split as Split
    from evenly.data import Texts as Texts
    from evenly.data import Upsample as Upsample
    from evenly.diagnose.auditing import audit as audit
    from evenly.diagnose.features import embedding as embedding
    from evenly.diagnose.features import representations as representations
    from evenly.diagnose.forgetting import ForgettingTracker as ForgettingTracker
    from evenly.diagnose.forgetting import forgetting_scores as forgetting_scores
    from evenly.diagnose.importance import gini as gini
    from evenly.diagnose.importance import importance_map as importance_map
    from evenly.diagnose.importance import importance_weights as importance_weights
    from evenly.diagnose.importance import lorenz as lorenz
    from evenly.diagnose.model_coherence import coherence as coherence
    from evenly.diagnose.norms import l1_norm as l1_norm
    from evenly.diagnose.probing import probe as probe
    from evenly.diagnose.probing import probes as probes
    from evenly.diagnose.recording import Recorder as Recorder
    from evenly.diagnose.recording import record_checkpoints as record_checkpoints
    from evenly.diagnose.saliency import grad_cam as grad_cam
    from evenly.diagnose.spectrum import hessian_spectrum as hessian_spectrum
    from evenly.diagnose.stability import stability_card as stability_card
    from evenly.diagnose.tracking import CoherenceTracker as CoherenceTracker
    from evenly.engine import group_accuracy as group_accuracy
    from evenly.engine.scoring import worst_group_accuracy as worst_group_accuracy
    from evenly.errors import EvenlyError as EvenlyError
    from evenly.experiment.classifier import Classifier as Classifier
    from evenly.experiment.comparing import compare as compare
    from evenly.experiment.improving import improve as improve
    from evenly.experiment.training import train as train
    from evenly.methods import hard_examples as hard_examples
    from evenly.optim import ASAM as ASAM
    from evenly.optim import LSAM as LSAM
    from evenly.optim import SAM as SAM
    from evenly.optim import RandomPerturbation as RandomPerturbation
    from evenly.papers.reproducing import reproduce as reproduce
    from evenly.report.pages import write_report as write_report
    from evenly.runs.comparison import Comparison as Comparison
    from evenly.runs.comparison import load_comparison as load_comparison
    from evenly.runs.run import Run as Run
    from evenly.runs.run import load as load


def __getattr__(name: str) -> Any:
    """Names are looked up where they live when first used, so that ``import evenly`` stays light."""
    if name in _ROOMS:
        return importlib.import_module(f"evenly.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'evenly' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
