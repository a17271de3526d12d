"""evenly in the loops people already have: Lightning, transformers' Trainer, skorch.

Each host is imported by its own module and nowhere else; a host that is missing is named, with the command that
brings it.

>>> from evenly.integrations.lightning import SAMCallback, WorstGroupAccuracy, HardExamples
>>> from evenly.integrations.transformers import SAMTrainer
>>> from evenly.integrations.skorch import SAMClassifier, sam_optimizer
"""
