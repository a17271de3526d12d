"""The whole of USEFUL in a Trainer: train early, choose the examples to repeat, train again from the start.

>>> trainer = UsefulTrainer(model, args, train_dataset=data, factor=2)
>>> trainer.train()
>>> trainer.selection.indices                                # the examples that every epoch had twice

``train()`` runs two trainings. The early one has its checkpoints in ``output_dir/early``, stops at the separating
epoch, and does not evaluate. The second begins as if it were the only one: initial weights, a new optimizer and
schedule, ``num_train_epochs`` on the training set with the chosen examples repeated.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import find_batch_size
from torch import Tensor, nn
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainerState, set_seed
from transformers.trainer_utils import get_last_checkpoint

from evenly.data.samplers import Upsample
from evenly.engine.trained import Selection
from evenly.errors import EvenlyError
from evenly.files import atomic
from evenly.integrations.stages import UsefulSampler, processes
from evenly.integrations.transformers.sam_mixin import WHOLE, SAMMixin
from evenly.integrations.transformers.sampler_mixin import SamplerMixin

EARLY = "early"
"""The folder of the early stage, in ``output_dir``."""
STATE = "useful.pt"
"""The file of a checkpoint with the early losses and the examples chosen."""
INITIAL = "initial.pt"
"""The weights that both stages begin with, in the folder of the early one."""


class UsefulMixin(SamplerMixin):
    """Put before ``Trainer`` or one of its subclasses; with SAM, ``class SAMUseful(UsefulMixin, SAMMixin, Trainer)``.

    - ``train(resume_from_checkpoint=True)`` goes on in the stage that the run was in. Checkpoints have the examples
      chosen; ``output_dir/selection.npz`` has them as evenly's run folders do.
    - Several processes choose the same examples. For the rest, and for what is refused, see :class:`SamplerMixin`.
    - Orders of visit and the clustering depend on ``data_seed``, or ``seed`` where there is none.
    - The early stage takes ``num_train_epochs`` at most. Loggers see its steps, from 0, before those of the second.

    Args:
        separating_epoch: how long the early stage is; None: until the drop in training loss has shrunk.
        factor: how often an epoch has the examples chosen.
        on: the early outputs to cluster, "probabilities" or "logits".
        unaugmented_dataset: the training set without augmentation, in the same order, from whose outputs the examples
            are chosen; ``train_dataset`` where not given.
    """

    model: Any
    optimizer: Any
    lr_scheduler: Any
    callback_handler: Any

    def __init__(
        self,
        *args: Any,
        separating_epoch: int | None = None,
        factor: int = 2,
        on: Any = "probabilities",
        unaugmented_dataset: Any = None,
        **kwargs: Any,
    ) -> None:
        order = type(self).__mro__
        if SAMMixin in order and order.index(SAMMixin) < order.index(UsefulMixin):
            raise EvenlyError(
                f"{type(self).__name__} has SAMMixin before UsefulMixin, which would then count the loss of both "
                "passes; put UsefulMixin first"
            )

        def sampler(data: Any) -> UsefulSampler:
            seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
            return UsefulSampler(len(data), separating_epoch=separating_epoch, factor=factor, on=on, seed=seed)

        super().__init__(*args, train_sampler=sampler, **kwargs)
        if self.args.max_steps > 0 or self.args.num_train_epochs < 1:
            raise EvenlyError(
                f"USEFUL's stages are counted in epochs, got max_steps={self.args.max_steps} and "
                f"num_train_epochs={self.args.num_train_epochs}; give num_train_epochs alone, at least 1"
            )
        kind = self.accelerator.distributed_type.name
        if kind not in WHOLE or self.args.auto_find_batch_size:
            reason = "auto_find_batch_size=True" if kind in WHOLE else kind
            raise EvenlyError(
                f"USEFUL under {reason} cannot go back to the start between its stages; train on one device or with "
                "torchrun (DDP), and give per_device_train_batch_size"
            )
        self._make_sampler = sampler
        self._useful = sampler(self.train_dataset)
        self.unaugmented_dataset = unaugmented_dataset
        self._step_loss: Tensor | float = 0.0
        self._step_examples = 0

    @property
    def selection(self) -> Selection | None:
        """The examples chosen, with how and when; None before the early stage is over."""
        return self._useful.selection

    def train(self, resume_from_checkpoint: Any = None, trial: Any = None, **kwargs: Any) -> Any:
        if trial is not None:
            raise EvenlyError(
                "USEFUL runs two trainings, so hyperparameter_search cannot follow it; loop over the values and call "
                "train() for each"
            )
        checkpoint = self._found(resume_from_checkpoint)
        self._useful = self._make_sampler(self.train_dataset)
        self.set_train_sampler(self._useful)
        self._useful.begin(self._epochs_and_steps()[0])
        if checkpoint is not None:
            self._load(checkpoint / STATE)
        if self._useful.selection is None:
            self._early_stage(checkpoint)
            checkpoint = None
        assert self._useful.selection is not None
        chosen, useful = self._useful.selection.indices, self._useful
        self.set_train_sampler(Upsample(chosen, useful.total, useful.factor, useful.seed))
        return super().train(None if checkpoint is None else str(checkpoint), **kwargs)  # type: ignore[misc]

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        examples = find_batch_size(inputs)
        loss: Tensor = super().training_step(model, inputs, num_items_in_batch)  # type: ignore[misc]
        if self._useful.selection is None:
            # Trainer divides the loss of a batch by the number of batches in a step, so their sum is the step's mean
            self._step_loss, self._step_examples = self._step_loss + loss, self._step_examples + examples
            if self.accelerator.sync_gradients:
                self._useful.observe(self._step_loss, self._step_examples)
                self._step_loss, self._step_examples = 0.0, 0
        return loss

    def _early_stage(self, checkpoint: Path | None) -> None:
        """Train until the separating epoch, choose, and put everything back to the start."""
        folder = Path(self.args.output_dir) / EARLY
        start = _Start(self, folder if checkpoint is None else checkpoint.parent, new=checkpoint is None)
        args, callbacks, metrics = self.args, self.callback_handler.callbacks, self.compute_metrics  # type: ignore[has-type]
        reduced = self.preprocess_logits_for_metrics  # type: ignore[has-type]
        patient = [each for each in callbacks if not isinstance(each, EarlyStoppingCallback)]
        try:
            self.args = _early_arguments(args, folder)
            self.callback_handler.callbacks = [*patient, _Separation(self._useful)]
            self.compute_metrics = self.preprocess_logits_for_metrics = None
            if self._useful.over:  # it was stopped between the stages
                self._load_from_checkpoint(str(checkpoint))  # type: ignore[attr-defined]
            else:
                super().train(None if checkpoint is None else str(checkpoint))  # type: ignore[misc]
            self._choose()
        finally:
            self.args, self.callback_handler.callbacks = args, callbacks
            self.compute_metrics, self.preprocess_logits_for_metrics = metrics, reduced
        start.restore(self)
        set_seed(args.seed)  # as where Trainer was made: the second stage draws what a run of its own would

    def _choose(self) -> None:
        data = self.train_dataset if self.unaugmented_dataset is None else self.unaugmented_dataset
        prediction = self.predict(data)  # type: ignore[attr-defined]
        outputs, labels = (each[0] if isinstance(each, tuple) else each for each in prediction[:2])
        if labels is None:
            raise EvenlyError("USEFUL needs the labels of the training set, and the batches have none; give 'labels'")
        self._useful.separate(torch.as_tensor(outputs), torch.as_tensor(labels))
        if self.args.should_save and self.selection is not None:
            path = Path(self.args.output_dir).parent / "selection.npz"
            path.parent.mkdir(parents=True, exist_ok=True)
            self.selection.save(path)

    def _found(self, resume_from_checkpoint: Any) -> Path | None:
        """The checkpoint to resume from: of the second stage, or else of the early one."""
        if not resume_from_checkpoint:
            return None
        if resume_from_checkpoint is not True:
            return Path(resume_from_checkpoint)
        output = Path(self.args.output_dir)
        for folder in (output, output / EARLY):
            last = get_last_checkpoint(str(folder)) if folder.is_dir() else None
            if last is not None:
                return Path(last)
        raise EvenlyError(f"there is no checkpoint in {output}, nor in {output / EARLY}; train without resuming")

    def _save_sampler(self, folder: Path) -> None:
        super()._save_sampler(folder)
        state = self._useful.state_dict()
        observed = torch.tensor(state["observed"], dtype=torch.float64, device=self.args.device)
        state["observed"] = processes().summed(observed).tolist()
        if self.args.should_save:
            with atomic(folder / STATE) as file:
                torch.save(state, file)

    def _load(self, path: Path) -> None:
        """Continue from a checkpoint's early losses and choice."""
        if not path.is_file():
            raise EvenlyError(
                f"{path.parent} has no {path.name}, so it is not of USEFUL; to start from its weights, load the model "
                "from it and train without resume_from_checkpoint"
            )
        state = torch.load(path, weights_only=True)
        if state["seed"] != self._useful.seed:
            raise EvenlyError(
                f"{path.parent} has the seed {state['seed']} and this run has {self._useful.seed}; give the same seed"
            )
        if not processes().first:  # the sum of all processes is there once
            state["observed"] = [0.0, 0.0]
        self._useful.load_state_dict(state)
        if state["selection"] is None and len(self._useful.losses) < self._early_epochs(path.parent):
            self._useful.end_epoch()  # the checkpoint is of the last step of an epoch, before its end was noted

    def _early_epochs(self, checkpoint: Path) -> int:
        """How many early epochs a checkpoint has behind it."""
        state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        return self._position(state.global_step)[0]


class UsefulTrainer(UsefulMixin, Trainer):
    """``transformers.Trainer`` with USEFUL: see :class:`UsefulMixin`."""


class _Separation(TrainerCallback):
    """Ends the early stage."""

    def __init__(self, sampler: UsefulSampler) -> None:
        self.sampler = sampler

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.sampler.end_epoch():
            control.should_training_stop = True


class _Start:
    """What both stages begin with: weights, and the state of an optimizer, a scheduler and a scaler that were given.

    Args:
        folder: where the weights are kept for a run that resumes in its early stage.
        new: whether the stage begins now; otherwise the weights are read.
    """

    def __init__(self, trainer: Any, folder: Path, *, new: bool) -> None:
        self.optimizer, self.lr_scheduler = trainer.optimizer, trainer.lr_scheduler
        parts = (self.optimizer, self.lr_scheduler, trainer.accelerator.scaler)
        self.states = [None if part is None else copy.deepcopy(part.state_dict()) for part in parts]
        path = folder / INITIAL
        self.weights: dict[str, Tensor] | None = None
        if trainer.model_init is not None:  # draws them again
            return
        if new:
            self.weights = {name: value.detach().cpu().clone() for name, value in trainer.model.state_dict().items()}
            if trainer.args.should_save and str(getattr(trainer.args.save_strategy, "value", "")) != "no":
                folder.mkdir(parents=True, exist_ok=True)
                with atomic(path) as file:
                    torch.save(self.weights, file)
        elif path.is_file():
            self.weights = torch.load(path, weights_only=True)
        else:
            raise EvenlyError(f"{path}, the weights that the run began with, is missing; start the run anew")

    def restore(self, trainer: Any) -> None:
        trainer.model_wrapped = trainer.model
        if self.weights is not None:
            trainer.model.load_state_dict(self.weights)
        trainer.optimizer, trainer.lr_scheduler = self.optimizer, self.lr_scheduler
        parts = (self.optimizer, self.lr_scheduler, trainer.accelerator.scaler)
        for part, state in zip(parts, self.states, strict=True):
            if part is not None and state is not None:
                part.load_state_dict(state)


def _early_arguments(args: Any, folder: Path) -> Any:
    """Those of the early stage: no evaluation, no selection, and whole outputs where the examples are chosen."""
    early = copy.copy(args)
    early.output_dir = str(folder)
    early.eval_strategy, early.load_best_model_at_end, early.metric_for_best_model = "no", False, None
    early.eval_on_start, early.push_to_hub = False, False
    if str(getattr(args.save_strategy, "value", args.save_strategy)) == "best":
        early.save_strategy = type(args.save_strategy)("epoch")
    early.prediction_loss_only, early.eval_do_concat_batches = False, True
    early.fp16_full_eval = early.bf16_full_eval = False  # would leave the network in half precision
    return early
