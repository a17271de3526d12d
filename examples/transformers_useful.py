"""USEFUL and PDE in transformers' Trainer, on handwritten digits of which most have a bright edge that gives the label.

UsefulTrainer finds the digits without the edge by itself and repeats them. PDETrainer is given the groups, trains on a
balanced set first, and keeps the weights of the best worst group. Trainer takes any module that returns a loss.

    pip install 'evenly[transformers]'
    python examples/transformers_useful.py
"""

import tempfile

import torch
import transformers
from torch import nn

from evenly.data import load
from evenly.integrations.transformers import PDETrainer, UsefulTrainer, worst_group_metrics

digits = load("partial-digits", seed=0)


def rows(split):
    pixels = split.inputs.float() / 255
    return [{"pixels": x, "labels": int(y)} for x, y in zip(pixels, split.labels, strict=True)]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, pixels, labels):
        logits = self.net(pixels)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def arguments(folder, **options):
    return transformers.TrainingArguments(
        folder, num_train_epochs=15, per_device_train_batch_size=32, optim="sgd", optim_args="momentum=0.9",
        learning_rate=0.05, lr_scheduler_type="constant", report_to=[], logging_strategy="no", use_cpu=True,
        disable_tqdm=True, dataloader_pin_memory=False, **options,
    )  # fmt: skip


def run(trainer, name):
    """Train, and print the accuracy on the test set."""
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    trainer.compute_metrics = worst_group_metrics(digits.test.groups, digits.train.groups)
    measured = trainer.evaluate(test)
    print(f"{name}: test accuracy {measured['eval_mean']:.1%}, worst group {measured['eval_worst_group']:.1%}")


transformers.utils.logging.disable_progress_bar()
train, validation, test = map(rows, (digits.train, digits.validation, digits.test))

with tempfile.TemporaryDirectory() as folder:
    last = arguments(f"{folder}/last", save_strategy="no")
    run(transformers.Trainer(Net(), last, train_dataset=train), "plain training")

    useful = UsefulTrainer(Net(), last, train_dataset=train)
    run(useful, "USEFUL")
    chosen = useful.selection.indices
    lacking = int((digits.train.groups[chosen] % 2).sum())
    print(f"  {len(chosen)} of {len(train)} digits repeated; {lacking} of them have no bright edge")

    best = arguments(
        f"{folder}/best", eval_strategy="epoch", save_strategy="epoch", save_total_limit=1, load_best_model_at_end=True,
        metric_for_best_model="worst_group",
    )  # fmt: skip
    groups = {"groups": digits.train.groups, "validation_groups": digits.validation.groups}
    pde = PDETrainer(Net(), best, train_dataset=train, eval_dataset=validation, **groups)
    run(pde, "PDE")
    print(f"  trained on {len(pde.selection.indices)} of {len(train)} digits up to the epoch selected")
