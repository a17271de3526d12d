"""Copies that are put back, and the memory of a step beside weights, gradients and the base optimizer's state."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from evenly.optim import LSAM, SAM, RandomPerturbation
from evenly.optim.snapshot import Snapshot


class Allocated(TorchDispatchMode):
    """Bytes of all storages that operations allocate."""

    def __init__(self):
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        inputs = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        out = func(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            if isinstance(t, torch.Tensor) and t.untyped_storage().data_ptr() not in inputs:
                self.total += t.untyped_storage().nbytes()
        return out


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 4))


def nbytes(params):
    return sum(p.numel() * p.element_size() for p in params)


@pytest.mark.parametrize(
    ("wrap", "perturbed", "noise"),
    [
        pytest.param(lambda base, m: SAM(base), lambda m: m.parameters(), 0.0, id="sam"),
        pytest.param(lambda base, m: LSAM(base, m[-1].parameters()), lambda m: m[-1].parameters(), 0.0, id="lsam"),
        pytest.param(lambda base, m: RandomPerturbation(base), lambda m: m.parameters(), 1.0, id="random, its noise"),
    ],
)
def test_one_copy_of_the_perturbed_parameters_made_once(wrap, perturbed, noise):
    model = network()
    opt = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
    model(torch.randn(8, 300)).square().mean().backward()
    size = nbytes(perturbed(model))
    # the small tensors are concatenated for their norm, which may take as much memory again
    small = nbytes(p for p in perturbed(model) if p.numel() <= 2**14) + 1000
    for copies in (1.0 + noise, noise):
        with Allocated() as allocated:
            opt.ascend()
            opt.restore()
        assert copies * size <= allocated.total <= copies * size + small
    held = {t.data_ptr(): nbytes([t]) for t in opt._weights._memory.values()}
    assert sum(held.values()) == size


def test_copies_are_made_once_and_again_after_a_move(monkeypatch):
    made = []
    empty_like = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda t: made.append(t.dtype) or empty_like(t))
    snapshot, p = Snapshot(), torch.ones(3)
    for value in (1.0, 2.0):
        p.fill_(value)
        snapshot.take([p])
        p.zero_()
        snapshot.put_back()
        assert p.tolist() == [value] * 3
    assert made == [torch.float32]
    p.data = p.data.double()
    snapshot.take([p])
    assert made == [torch.float32, torch.float64]


def test_other_tensors_of_the_same_layout_are_noticed():
    snapshot = Snapshot()
    for value in (1.0, 2.0):
        tensor = torch.full((3,), value)
        snapshot.take([tensor])
        tensor.zero_()
        snapshot.put_back()
        assert tensor.tolist() == [value] * 3
