"""What a step holds beside the weights, the gradients and the base optimizer's state."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from evenly.optim import LSAM, SAM, RandomPerturbation


class Allocated(TorchDispatchMode):
    """Bytes of all storages that operations make."""

    def __init__(self):
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        out = func(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            if isinstance(t, torch.Tensor) and t.untyped_storage().data_ptr() not in given:
                self.total += t.untyped_storage().nbytes()
        return out


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 4))


def nbytes(params):
    return sum(p.numel() * p.element_size() for p in params)


@pytest.mark.parametrize(
    ("wrapper", "perturbed", "again"),
    [
        pytest.param(lambda base, m: SAM(base), lambda m: m.parameters(), 0.0, id="sam"),
        pytest.param(lambda base, m: LSAM(base, m[-1].parameters()), lambda m: m[-1].parameters(), 0.0, id="lsam"),
        pytest.param(lambda base, m: RandomPerturbation(base), lambda m: m.parameters(), 1.0, id="random, its noise"),
    ],
)
def test_one_copy_of_the_perturbed_parameters_made_once(wrapper, perturbed, again):
    model = network()
    opt = wrapper(torch.optim.SGD(model.parameters(), lr=0.1), model)
    model(torch.randn(8, 300)).square().mean().backward()
    size = nbytes(perturbed(model))
    # the small tensors are laid side by side for their norm, which may take as much again of theirs
    small = nbytes(p for p in perturbed(model) if p.numel() <= 2**14) + 1000
    for copies in (1.0 + again, again):
        with Allocated() as made:
            opt.ascend()
            opt.restore()
        assert copies * size <= made.total <= copies * size + small
    held = {t.data_ptr(): nbytes([t]) for t in opt._weights._memory.values()}
    assert sum(held.values()) == size
