"""On a GPU audits, spectra and records are those of the CPU, and everything stays where it was."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import evenly
from evenly import Data, Split
from evenly.diagnose.auditing import audit
from evenly.diagnose.findings import Audit
from evenly.diagnose.mean_hessian import MeanHessian
from evenly.diagnose.recording import Recorder
from evenly.diagnose.spectrum import hessian_spectrum

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def images(n: int, seed: int, device: str = "cpu") -> Split:
    draw = torch.Generator().manual_seed(seed)
    y, a = (torch.randint(2, (n,), generator=draw) for _ in range(2))
    x = torch.randint(0, 120, (n, 3, 8, 8), generator=draw, dtype=torch.uint8)
    x[y == 1, 0] += 50
    x[a == 1, :, 0] += 100
    return Split(x.to(device), y, 2 * y + a, {"edge": a})


def data(device: str = "cpu") -> Data:
    return Data(images(200, 0, device), images(160, 1, device), images(160, 2, device))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 2)
    )


def alike(one: Audit, other: Audit, tolerance: float) -> None:
    assert [(g.name, g.n, g.right) for g in one.groups] == [(g.name, g.n, g.right) for g in other.groups]
    assert torch.equal(one.predicted, other.predicted)
    assert one.heat.keys() == other.heat.keys()
    pairs = [(getattr(one, name), getattr(other, name)) for name in ("losses", "importance", "phantom")]
    for expected, found in (*pairs, *((heat, other.heat[i]) for i, heat in one.heat.items())):
        assert found.device.type == "cpu"
        torch.testing.assert_close(expected, found, rtol=tolerance, atol=tolerance)
    assert one.probes.keys() == other.probes.keys() == {"label", "edge"}
    for name, found in one.probes.items():
        assert abs(found.error - other.probes[name].error) <= 2 / found.n  # an example on the border, or two
    assert one.spectrum is not None
    assert other.spectrum is not None
    ours, theirs = one.spectrum.eigenvalues.double().cpu(), other.spectrum.eigenvalues.double().cpu()
    torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=2e-3 * float(ours[0]))  # each converged to 1e-3


@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_an_audit_on_a_gpu_finds_what_it_finds_on_the_cpu(tmp_path: Path, where: str) -> None:
    """In float64, since convolutions in float32 are rounded to TF32 on a GPU; with the data in either memory."""
    model = network().double()
    before = copy.deepcopy(model.state_dict())
    scores = torch.arange(200) % 5
    expected = audit(model, data(), top=3, samples=100, forgetting=scores)
    on_gpu = model.cuda()
    found = audit(on_gpu, data(where), top=3, samples=100, forgetting=scores.cuda())
    alike(expected, found, 1e-6)
    assert all(torch.equal(value.cpu(), before[name]) for name, value in on_gpu.state_dict().items())
    json.dumps(found.to_dict(), allow_nan=False)
    text = evenly.write_report([found, expected], tmp_path / "audit.html").read_text()
    assert "Grad-CAM" in text
    assert "Times forgotten" in text


def test_float32_agrees_within_its_rounding() -> None:
    allowed = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        model = network()
        expected = audit(model, data(), top=2, samples=100)
        alike(expected, audit(model.cuda(), data(), top=2, samples=100), 1e-3)
    finally:
        torch.backends.cudnn.allow_tf32 = allowed


def test_a_run_on_a_gpu_records_what_a_recorder_finds_and_goes_on_from_its_folder(tmp_path: Path) -> None:
    what: dict[str, Any] = {"forgetting": True, "probes": ["edge"], "importance": 0.05, "spectrum": 1, "every": 2}
    settings: dict[str, Any] = {"epochs": 4, "batch_size": 50, "lr": 0.1, "device": "cuda", "precision": "float32"}
    run = evenly.train(data(), model=network, record=what, out=tmp_path / "run", **settings)
    assert [row["epoch"] for row in run.record.history] == [2, 4]
    last = Recorder(data(), **{**what, "forgetting": False, "every": 1})(run.model)
    for name, value in last.items():
        assert run.record.history[-1][name] == pytest.approx(value, rel=2e-2, abs=2e-2)
    read_back = evenly.train(data(), model=network, record=what, out=tmp_path / "run", **settings)
    assert torch.equal(read_back.record.forgetting_scores, run.record.forgetting_scores)
    plain = evenly.train(data(), model=network, **settings)
    assert plain.results.step == run.results.step  # recording does not keep a step from being captured
    for ours, theirs in zip(plain.model.parameters(), run.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)  # sums on a GPU have no one order


def small_network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 3)
        ).double()


def samples(n: int = 60) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    return torch.randn(n, 1, 6, 6, generator=draw, dtype=torch.float64), torch.arange(n) % 3


@pytest.mark.parametrize("which", ["largest", "magnitude"])
def test_the_eigenvalues_are_those_of_the_cpu(which):
    x, y = samples()
    options = {"which": which, "tolerance": 1e-8, "batch_size": 16, "vectors": True}
    on_cpu = hessian_spectrum(small_network(), "cross-entropy", (x, y), **options)
    model = small_network().cuda()
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
    model, (x, y) = small_network().cuda(), samples()
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
    model, given = small_network().cuda(), samples()
    before = torch.cuda.get_rng_state()
    found = [hessian_spectrum(model, "cross-entropy", given, mode="train", memory=memory) for memory in (0, None)]
    assert bool(found[0].converged.all())  # masks that change between products would not let it
    torch.testing.assert_close(found[0].eigenvalues, found[1].eigenvalues, rtol=1e-6, atol=1e-9)
    assert torch.equal(torch.cuda.get_rng_state(), before)
