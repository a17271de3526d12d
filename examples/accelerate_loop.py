"""A group-balanced sampler in a loop of accelerate.

prepare_loader takes the loader with evenly.Sharded, the one of a plain DistributedDataParallel loop, and accelerate
leaves it as it is.

    pip install 'evenly[transformers]'
    python examples/accelerate_loop.py
    accelerate launch --cpu --num_processes 2 examples/accelerate_loop.py
"""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import evenly
from evenly.data import load
from evenly.integrations.accelerate import prepare_loader

EPOCHS, TOGETHER = 5, 32

accelerator = Accelerator(cpu=True)
digits = load("partial-digits", seed=0)
train_set = TensorDataset(digits.train.inputs.float() / 255, digits.train.labels)

torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
sampler = evenly.Sharded(evenly.GroupBalanced(digits.train.groups))
loader = DataLoader(train_set, batch_size=TOGETHER // accelerator.num_processes, sampler=sampler)
loader = prepare_loader(accelerator, loader)
model, optimizer = accelerator.prepare(model, optimizer)

for epoch in range(EPOCHS):
    loader.set_epoch(epoch)
    for inputs, labels in loader:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(model(inputs), labels))
        optimizer.step()

with torch.no_grad():
    outputs = accelerator.unwrap_model(model)(digits.test.inputs.float() / 255)
result = evenly.group_accuracy(outputs, digits.test.labels, digits.test.groups, digits.train.groups)
accelerator.print(f"test accuracy {result.mean:.1%}, worst group {result.worst:.1%}")
accelerator.end_training()
