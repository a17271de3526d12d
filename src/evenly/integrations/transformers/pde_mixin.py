"""The whole of PDE in a Trainer: a group-balanced warm-up, expansions, and the weights of the best worst group.

>>> args = TrainingArguments(..., eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True,
...                          metric_for_best_model="worst_group")
>>> trainer = PDETrainer(model, args, train_dataset=train, eval_dataset=validation, groups=train_groups,
...                      validation_groups=validation_groups)
>>> trainer.train()
>>> trainer.selection.indices                                # the examples in the set up to the epoch selected
"""

from __future__ import annotations

import math
from typing import Any

from transformers import Trainer

from evenly.engine.trained import Selection
from evenly.errors import EvenlyError
from evenly.integrations.stages import PDESampler
from evenly.integrations.transformers.metrics import worst_group_metrics
from evenly.integrations.transformers.sampler_mixin import SamplerMixin

METRIC = "worst_group"


class PDEMixin(SamplerMixin):
    """Put before ``Trainer`` or one of its subclasses; with SAM, ``class SAMPDE(PDEMixin, SAMMixin, Trainer)``.

    With ``validation_groups`` the trainer ends with the weights of the epoch whose worst group is best on
    ``eval_dataset``; ties go to the higher average, then to the earlier epoch. This is ``select="worst-group-argmax"``
    of :func:`evenly.train`. Without them it ends with the last weights. The momentum of the warm-up is kept. Orders and
    draws depend on ``data_seed``, or ``seed`` where there is none. For the rest see :class:`SamplerMixin`.

    Args:
        groups: (N,) the group of each training example.
        validation_groups: of each example of ``eval_dataset``.
        warmup_epochs, every, add, cap, draw: as in :class:`evenly.ProgressiveExpansion`; None is what evenly's method
            ``pde`` takes for ``num_train_epochs``.
    """

    def __init__(
        self,
        *args: Any,
        groups: Any,
        validation_groups: Any = None,
        warmup_epochs: int | None = None,
        every: int | None = None,
        add: Any = None,
        cap: int | None = None,
        draw: Any = "even",
        **kwargs: Any,
    ) -> None:
        if validation_groups is not None:
            if kwargs.get("compute_metrics") is not None:
                raise EvenlyError(
                    "validation_groups= makes compute_metrics; leave one out, or give worst_group_metrics in your own"
                )
            kwargs["compute_metrics"] = worst_group_metrics(validation_groups, groups)

        def sampler(data: Any) -> PDESampler:
            seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
            if len(groups) != len(data):
                raise EvenlyError(
                    f"there are {len(groups)} groups for {len(data)} training examples; give one for each"
                )
            if self.args.max_steps > 0:
                raise EvenlyError("PDE counts epochs, so max_steps cannot be used; give num_train_epochs")
            options = {"warmup_epochs": warmup_epochs, "every": every, "add": add, "cap": cap, "draw": draw}
            return PDESampler(groups, epochs=math.ceil(self.args.num_train_epochs), seed=seed, **options)

        super().__init__(*args, train_sampler=sampler, **kwargs)
        if validation_groups is not None:
            self._check_selection()

    def _check_selection(self) -> None:
        metric = (self.args.metric_for_best_model or "").removeprefix("eval_")
        if not self.args.load_best_model_at_end or metric != METRIC:
            raise EvenlyError(
                "PDE keeps the weights of the best worst group, and the arguments do not; give "
                f"load_best_model_at_end=True, metric_for_best_model={METRIC!r}, eval_strategy='epoch' and "
                "save_strategy='epoch', or leave validation_groups out"
            )

    @property
    def selection(self) -> Selection:
        """The examples in the set up to the epoch whose weights are kept, with the epoch in which each entered."""
        sampler = self.train_sampler
        assert isinstance(sampler, PDESampler)
        last, best = self.state.global_step, self.state.best_global_step
        kept = best if self.args.load_best_model_at_end and best else last
        return sampler.selection(self._begun(last), self._begun(kept))

    def _begun(self, step: int) -> int:
        """How many epochs were begun by a step."""
        epoch, left = self._position(step)
        return epoch + (left > 0)

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        if super()._determine_best_metric(metrics, trial):  # type: ignore[misc]
            return True
        best = self.state.best_global_step
        if metrics.get(f"eval_{METRIC}") != self.state.best_metric or not best:
            return False
        means = [row["eval_mean"] for row in self.state.log_history if row["step"] == best and "eval_mean" in row]
        if not means or metrics["eval_mean"] <= means[-1]:
            return False
        self.state.best_global_step = self.state.global_step
        return True


class PDETrainer(PDEMixin, Trainer):
    """``transformers.Trainer`` with PDE: see :class:`PDEMixin`."""
