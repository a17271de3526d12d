"""USEFUL and SAM in Lightning: a short run finds the hard examples, a second one repeats them and steps with SAM.

The optimizer comes from configure_optimizers as any other; SAMCallback makes logging, clipping and accumulation act
once per step, WorstGroupAccuracy logs what a checkpoint could be selected by.

    pip install 'evenly[lightning]'
    python examples/lightning_sam.py
"""

import logging
import warnings

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import evenly
from evenly.data import load
from evenly.integrations.lightning import HardExamples, SAMCallback, WorstGroupAccuracy

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")

digits = load("partial-digits", seed=0)
train_set = TensorDataset(digits.train.inputs.float() / 255, digits.train.labels)
test_set = TensorDataset(digits.test.inputs.float() / 255, digits.test.labels)


class Net(pl.LightningModule):
    def __init__(self, sam):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
        self.sam = sam

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        return {"outputs": self(x), "labels": y}

    def configure_optimizers(self):
        sgd = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        return evenly.SAM(sgd, rho=0.05) if self.sam else sgd


def trainer(epochs, *callbacks):
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return pl.Trainer(max_epochs=epochs, callbacks=list(callbacks), accelerator="cpu", gradient_clip_val=5.0, **quiet)


torch.manual_seed(0)
hard = HardExamples(train_set, epoch=3)
trainer(3, hard).fit(Net(sam=False), DataLoader(train_set, batch_size=32, shuffle=True))
print(f"{len(hard.hard)} of {len(train_set)} examples are hard")

worst = WorstGroupAccuracy(digits.test.groups, train_groups=digits.train.groups)
net = Net(sam=True)
run = trainer(10, SAMCallback(), worst)
run.fit(net, DataLoader(train_set, batch_size=32, sampler=hard.sampler()))
run.validate(net, DataLoader(test_set, batch_size=256), verbose=False)
print(f"test accuracy {worst.result.mean:.1%}, worst group {worst.result.worst:.1%}")
