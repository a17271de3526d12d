"""transformers: a Trainer with SAM and its kin, with evenly's samplers, with USEFUL or PDE, and worst-group metrics.

>>> trainer = SAMTrainer(model, args, train_dataset=data)                     # SAM around the optimizer of args
>>> trainer = SampledTrainer(model, args, train_dataset=data, train_sampler=evenly.GroupBalanced(groups))
>>> trainer = Trainer(model, args, ..., compute_metrics=worst_group_metrics(validation_groups, train_groups))

The mixins combine: ``class SAMSampled(SAMMixin, SamplerMixin, Trainer)``.
"""

from evenly.integrations.hosts import missing

try:
    import accelerate.optimizer
    import transformers  # noqa: F401
except ModuleNotFoundError as error:
    raise missing("transformers", error) from error

from evenly.integrations.transformers.metrics import worst_group_metrics
from evenly.integrations.transformers.sam_mixin import SAMMixin, SAMTrainer
from evenly.integrations.transformers.sampler_mixin import SampledTrainer, SamplerMixin

__all__ = ["SAMMixin", "SAMTrainer", "SampledTrainer", "SamplerMixin", "worst_group_metrics"]
