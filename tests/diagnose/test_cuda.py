"""The Hessian's spectrum on a GPU: the same eigenvalues as on the CPU, in float64, and everything where it was."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from evenly.diagnose.mean_hessian import MeanHessian
from evenly.diagnose.spectrum import hessian_spectrum

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 3)
        ).double()


def data(n: int = 60) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    return torch.randn(n, 1, 6, 6, generator=draw, dtype=torch.float64), torch.arange(n) % 3


@pytest.mark.parametrize("which", ["largest", "magnitude"])
def test_the_eigenvalues_are_those_of_the_cpu(which):
    x, y = data()
    options = {"which": which, "tolerance": 1e-8, "batch_size": 16, "vectors": True}
    on_cpu = hessian_spectrum(network(), "cross-entropy", (x, y), **options)
    model = network().cuda()
    loader = DataLoader(TensorDataset(x, y), batch_size=16)
    for given in ((x, y), (x.cuda(), y.cuda()), loader):
        found = hessian_spectrum(model, "cross-entropy", given, **options)
        torch.testing.assert_close(found.eigenvalues, on_cpu.eigenvalues, rtol=1e-7, atol=1e-10)
        assert bool(found.converged.all())
        assert found.eigenvalues.device.type == found.density.nodes.device.type == "cpu"
        assert found.vectors.device.type == "cuda"
        alike = (found.vectors.cpu() * on_cpu.vectors).sum(1).abs()
        torch.testing.assert_close(alike, torch.ones(5, dtype=torch.float64), rtol=0, atol=1e-6)
    assert all(w.is_cuda and w.grad is None for w in model.parameters())


def test_graphs_are_kept_by_what_the_gpu_has_free_and_change_nothing():
    model, (x, y) = network().cuda(), data()
    names = [name for name, _ in model.named_parameters()]
    hessians = [
        MeanHessian(model.eval(), names, "cross-entropy", x, y, batch_size=16, memory=memory, seed=0)
        for memory in (0, None)
    ]
    assert hessians[1].bytes_left <= torch.cuda.mem_get_info()[1] // 2
    v = hessians[0].random(0)
    assert v.is_cuda
    torch.testing.assert_close(hessians[0].times(v), hessians[1].times(v), rtol=1e-10, atol=1e-12)
    assert [len(h.graphs) for h in hessians] == [0, 4]


def test_dropout_masks_stay_between_products_and_the_state_is_left():
    model, given = network().cuda(), data()
    before = torch.cuda.get_rng_state()
    found = [hessian_spectrum(model, "cross-entropy", given, mode="train", memory=memory) for memory in (0, None)]
    assert bool(found[0].converged.all())  # masks that change between products would not let it
    torch.testing.assert_close(found[0].eigenvalues, found[1].eigenvalues, rtol=1e-6, atol=1e-9)
    assert torch.equal(torch.cuda.get_rng_state(), before)
