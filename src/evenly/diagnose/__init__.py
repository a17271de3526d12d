"""What a model has learned and where it stands: coherence of the minimum."""

from evenly.diagnose.coherence import coherence

__all__ = ["coherence"]
