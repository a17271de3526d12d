"""The worst group's accuracy in skorch: a score of every epoch, by which a checkpoint is selected.

pip install 'evenly[skorch]'
python examples/skorch_worst_group.py
"""

import tempfile

import torch
from skorch import NeuralNetClassifier
from skorch.callbacks import Checkpoint, EpochScoring
from skorch.dataset import Dataset
from skorch.helper import predefined_split
from torch import nn

import evenly
from evenly.data import load
from evenly.integrations.skorch import worst_group_scorer

digits = load("partial-digits", seed=0)
splits = {"train": digits.train, "validation": digits.validation, "test": digits.test}
x = {name: split.inputs.float().flatten(1) / 255 for name, split in splits.items()}
y = {name: split.labels for name, split in splits.items()}

torch.manual_seed(0)
with tempfile.TemporaryDirectory() as folder:
    best = Checkpoint(monitor="valid_worst_group_best", dirname=folder, load_best=True)
    net = NeuralNetClassifier(
        nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)), criterion=nn.CrossEntropyLoss, max_epochs=20,
        optimizer=torch.optim.SGD, optimizer__momentum=0.9, lr=0.05, batch_size=32, verbose=0,
        iterator_train__shuffle=True, train_split=predefined_split(Dataset(x["validation"], y["validation"])),
        callbacks=[
            EpochScoring(
                worst_group_scorer(digits.validation.groups), lower_is_better=False, name="valid_worst_group"
            ),
            best,
        ],
    )  # fmt: skip
    net.fit(x["train"], y["train"])

values = net.history[:, "valid_worst_group"]
print(f"the worst group of validation is best after epoch {values.index(max(values)) + 1}, at {max(values):.1%}")
result = evenly.group_accuracy(net.predict(x["test"]), y["test"], digits.test.groups)
print(f"test accuracy {result.mean:.1%}, worst group {result.worst:.1%}")
