"""transformers: a Trainer with SAM and its kin, with evenly's samplers, with USEFUL or PDE, and worst-group metrics.

>>> trainer = SAMTrainer(model, args, train_dataset=data)                     # SAM around the optimizer of args
>>> trainer = SampledTrainer(model, args, train_dataset=data, train_sampler=evenly.GroupBalanced(groups))
>>> trainer = UsefulTrainer(model, args, train_dataset=data)
>>> trainer = PDETrainer(model, args, train_dataset=data, groups=groups)
>>> trainer = Trainer(model, args, ..., compute_metrics=worst_group_metrics(validation_groups, train_groups))

The mixins combine: ``class SAMSampled(SAMMixin, SamplerMixin, Trainer)``.
"""

from evenly.integrations.hosts import missing

try:
    import accelerate.optimizer  # noqa: F401
    import transformers  # noqa: F401
except ModuleNotFoundError as error:
    raise missing("transformers", error) from error

from evenly.integrations.transformers.metrics import worst_group_metrics
from evenly.integrations.transformers.pde_mixin import PDEMixin, PDETrainer
from evenly.integrations.transformers.sam_mixin import SAMMixin, SAMTrainer
from evenly.integrations.transformers.sampler_mixin import SampledTrainer, SamplerMixin
from evenly.integrations.transformers.useful_mixin import UsefulMixin, UsefulTrainer

__all__ = [
    "PDEMixin",
    "PDETrainer",
    "SAMMixin",
    "SAMTrainer",
    "SampledTrainer",
    "SamplerMixin",
    "UsefulMixin",
    "UsefulTrainer",
    "worst_group_metrics",
]
