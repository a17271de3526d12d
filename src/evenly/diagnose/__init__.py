"""What a model has learned and where it stands, in training and after."""

from evenly.diagnose.auditing import audit
from evenly.diagnose.features import embedding, representations
from evenly.diagnose.findings import Audit
from evenly.diagnose.forgetting import ForgettingTracker, forgetting_scores
from evenly.diagnose.importance import ImportanceMap, gini, importance_map, importance_weights, lorenz
from evenly.diagnose.model_coherence import coherence
from evenly.diagnose.norms import l1_norm
from evenly.diagnose.probing import Probe, probe, probes
from evenly.diagnose.recording import Recorder, record_checkpoints
from evenly.diagnose.saliency import grad_cam
from evenly.diagnose.spectrum import HessianSpectrum, hessian_spectrum
from evenly.diagnose.stability import StabilityCard, judge, stability_card
from evenly.diagnose.tracking import CoherenceTracker

__all__ = [
    "Audit",
    "CoherenceTracker",
    "ForgettingTracker",
    "HessianSpectrum",
    "ImportanceMap",
    "Probe",
    "Recorder",
    "StabilityCard",
    "audit",
    "coherence",
    "embedding",
    "forgetting_scores",
    "gini",
    "grad_cam",
    "hessian_spectrum",
    "importance_map",
    "importance_weights",
    "judge",
    "l1_norm",
    "lorenz",
    "probe",
    "probes",
    "record_checkpoints",
    "representations",
    "stability_card",
]
