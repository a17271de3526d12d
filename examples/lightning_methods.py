"""USEFUL and PDE in Lightning, each in one fit; with several devices the lines are the same.

The loader takes the callback's sampler. UsefulCallback trains twice: until the drop in training loss has shrunk, then
from the initial weights with the examples repeated that the early network found hard. PDECallback begins with a
group-balanced subset, adds the rest a little at a time, and ends with the weights that were best for the worst group.

    pip install 'evenly[lightning]'
    python examples/lightning_methods.py
"""

import logging
import warnings

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from evenly.data import load
from evenly.integrations.lightning import PDECallback, UsefulCallback, WorstGroupAccuracy

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")

digits = load("partial-digits", seed=0)
train_set, validation_set, test_set = (
    TensorDataset(split.inputs.float() / 255, split.labels) for split in (digits.train, digits.validation, digits.test)
)


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        return {"outputs": self(x), "labels": y}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def fit(method):
    """Train with a callback; the accuracies on the test set."""
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    worst = WorstGroupAccuracy(digits.validation.groups)
    loader = DataLoader(train_set, batch_size=32, sampler=method.sampler)
    trainer = pl.Trainer(max_epochs=15, callbacks=[method, worst], accelerator="cpu", **quiet)
    net = Net()
    trainer.fit(net, loader, DataLoader(validation_set, batch_size=256))
    measured = WorstGroupAccuracy(digits.test.groups)
    pl.Trainer(callbacks=[measured], accelerator="cpu", **quiet).validate(
        net, DataLoader(test_set, batch_size=256), verbose=False
    )
    return f"test accuracy {measured.result.mean:.1%}, worst group {measured.result.worst:.1%}"


useful = UsefulCallback(train_set)
accuracy = fit(useful)
chosen, epoch = len(useful.selection.indices), useful.selection.details["separating_epoch"]
print(f"USEFUL repeated {chosen} of {len(train_set)} examples after epoch {epoch}: {accuracy}")

pde = PDECallback(digits.train.groups)
accuracy = fit(pde)
print(f"PDE used {len(pde.selection.indices)} of them up to epoch {pde.selected_epoch}: {accuracy}")
