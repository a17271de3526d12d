"""evenly in other training loops: Lightning, transformers' Trainer, skorch; and its metrics in other loggers.

Each library is imported by its own module and nowhere else. If it is missing, the error names it and the command that
installs it.

>>> from evenly.integrations.lightning import SAMCallback, WorstGroupAccuracy, HardExamples
>>> from evenly.integrations.transformers import SAMTrainer
>>> from evenly.integrations.skorch import SAMClassifier, sam_optimizer
>>> from evenly.integrations.loggers import log_folder
"""
