"""USEFUL and SAM in a plain PyTorch loop: train briefly, find the hard examples, repeat them, train again with SAM.

python examples/own_loop.py
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import evenly
from evenly.data import load

digits = load("partial-digits", seed=0)
x, y = digits.train.inputs.float() / 255, digits.train.labels
dataset = TensorDataset(x, y)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


def train(model, opt, loader, epochs):
    for _ in range(epochs):
        for inputs, labels in loader:

            def closure(inputs=inputs, labels=labels):
                opt.zero_grad()
                loss = nn.functional.cross_entropy(model(inputs), labels)
                loss.backward()
                return loss

            opt.step(closure)
    return model


def accuracy(model):
    with torch.no_grad():
        test = digits.test
        outputs = model(test.inputs.float() / 255)
    return evenly.group_accuracy(outputs, test.labels, test.groups, digits.train.groups)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


model = network()
train(model, sgd(model), DataLoader(dataset, batch_size=32, shuffle=True), epochs=3)
with torch.no_grad():
    hard = evenly.hard_examples(model(x), y)
lacking = digits.train.groups[hard] % 2 == 1
print(f"{len(hard)} of {len(y)} examples are hard; {int(lacking.sum())} of them have no bright edge")

model = network()
sampler = evenly.Upsample(hard, total=len(dataset), factor=2)
train(model, evenly.SAM(sgd(model), rho=0.05), DataLoader(dataset, batch_size=32, sampler=sampler), epochs=20)
result = accuracy(model)
print(f"test accuracy {result.mean:.1%}, worst group {result.worst:.1%}")
