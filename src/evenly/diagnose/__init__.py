"""What a model has learned and where it stands: the coherence of its minimum, in training and after; its stability."""

from evenly.diagnose.coherence import coherence
from evenly.diagnose.stability_card import StabilityCard, judge, stability_card
from evenly.diagnose.tracking import CoherenceTracker

__all__ = ["CoherenceTracker", "StabilityCard", "coherence", "judge", "stability_card"]
