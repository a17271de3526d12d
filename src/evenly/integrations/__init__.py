"""evenly in other training loops (Lightning, transformers' Trainer, accelerate, skorch), and its metrics in loggers.

Each library is imported by its own module and nowhere else. If it is missing, the error names it and the command that
installs it.

>>> from evenly.integrations.lightning import PDECallback, SAMCallback, SamplerCallback, UsefulCallback
>>> from evenly.integrations.transformers import PDETrainer, SAMTrainer, SampledTrainer, UsefulTrainer
>>> from evenly.integrations.accelerate import prepare_loader
>>> from evenly.integrations.skorch import SAMClassifier, sam_optimizer, worst_group_scorer
>>> from evenly.integrations.loggers import log_folder
"""
