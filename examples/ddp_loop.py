"""PDE in a plain DistributedDataParallel loop: evenly.Sharded divides every epoch among the processes.

The set grows at an expansion, and so does the number of steps. The last lines of an epoch write what a run needs to go
on, with any number of processes.

    python examples/ddp_loop.py
    torchrun --nproc-per-node 2 examples/ddp_loop.py
"""

import os

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import evenly
from evenly.data import load

EPOCHS, TOGETHER = 20, 32

processes = int(os.environ.get("WORLD_SIZE", "1"))
if processes > 1:
    distributed.init_process_group("gloo")
first = int(os.environ.get("RANK", "0")) == 0

digits = load("partial-digits", seed=0)
train_set = TensorDataset(digits.train.inputs.float() / 255, digits.train.labels)

torch.manual_seed(0)
network = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
model = DistributedDataParallel(network) if processes > 1 else network
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

expansion = evenly.ProgressiveExpansion(digits.train.groups, warmup_epochs=10, every=2, add=101)
sampler = evenly.Sharded(expansion)
loader = DataLoader(train_set, batch_size=TOGETHER // processes, sampler=sampler)

for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    if first and epoch in (0, 10, 19):
        print(f"epoch {epoch}: {len(expansion)} examples, {len(sampler.padding())} of them once more")
    for inputs, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    checkpoint = {"model": network.state_dict(), "optimizer": optimizer.state_dict(), "sampler": sampler.state_dict()}

if first:
    with torch.no_grad():
        outputs = network(digits.test.inputs.float() / 255)
    result = evenly.group_accuracy(outputs, digits.test.labels, digits.test.groups, digits.train.groups)
    print(f"test accuracy {result.mean:.1%}, worst group {result.worst:.1%}")
    print(f"a run that goes on begins with epoch {checkpoint['sampler']['epoch']}")
if processes > 1:
    distributed.destroy_process_group()
