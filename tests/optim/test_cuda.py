"""On a GPU: no host reads in a step, capture in a graph, parameters on two devices, fused half precision."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.amp import GradScaler

from evenly.optim import ASAM, LSAM, SAM, RandomPerturbation

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

WRAPPERS = {
    "sam": lambda base, model: SAM(base, rho=0.1, model=model),
    "asam": lambda base, model: ASAM(base, rho=0.7, model=model),
    "lsam": lambda base, model: LSAM(base, params=model[-1].parameters(), rho=0.3, model=model),
    "random": lambda base, model: RandomPerturbation(base, sigma=0.05),
}
BASES = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adam": lambda params: torch.optim.Adam(params, lr=0.01, capturable=True),
}


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    ).cuda()


def make_step(model, opt, x, y, scaler=None):
    def closure():
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        (loss if scaler is None else scaler.scale(loss)).backward()
        return loss

    return lambda: opt.step(closure, **({} if scaler is None else {"scaler": scaler}))


@pytest.fixture
def batch():
    torch.manual_seed(1)
    return torch.randn(16, 3, 8, 8, device="cuda"), torch.randint(4, (16,), device="cuda")


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("base", BASES)
def test_a_step_reads_nothing_from_the_device(wrapper, base, batch):
    model = make_model()
    step = make_step(model, WRAPPERS[wrapper](BASES[base](model.parameters()), model), *batch)
    step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("wrapper", [w for w in WRAPPERS if w != "random"])
@pytest.mark.parametrize("base", BASES)
def test_a_captured_step_replays_as_it_runs_eagerly(wrapper, base, batch):
    model = make_model()
    opt = WRAPPERS[wrapper](BASES[base](model.parameters()), model)
    step = make_step(model, opt, *batch)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    twin = copy.deepcopy(model)
    twin_opt = WRAPPERS[wrapper](BASES[base](twin.parameters()), twin)
    twin_opt.load_state_dict(copy.deepcopy(opt.state_dict()))  # loading shares the tensors
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    eager = make_step(twin, twin_opt, *batch)
    for _ in range(5):
        graph.replay()
        expected = eager()
        torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-6)
    for a, b in zip(model.state_dict().values(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
    assert model[1].num_batches_tracked.item() == 8


def test_a_captured_random_perturbation_draws_anew(batch):
    p = nn.Parameter(torch.zeros(1000, device="cuda"))
    opt = RandomPerturbation(torch.optim.SGD([p], lr=1.0), sigma=1.0)

    def closure():
        opt.zero_grad()
        loss = 0.5 * p.square().sum()
        loss.backward()
        return loss

    opt.step(closure)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        opt.step(closure)
    moves = []
    for _ in range(2):
        p.data.zero_()
        graph.replay()
        moves.append(p.detach().clone())  # -delta: the gradient at 0 + delta is delta
    assert moves[0].std().item() == pytest.approx(1, rel=0.15)
    assert torch.corrcoef(torch.stack(moves))[0, 1].abs().item() < 0.2


def test_parameters_on_two_devices_share_one_norm():
    a, b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1, device="cuda", dtype=torch.float64))
    for first, second in ((a, b), (b, a)):
        opt = SAM(torch.optim.SGD([first, second], lr=0.1), rho=5.0)
        a.grad, b.grad = torch.full_like(a, 3.0), torch.full_like(b, 4.0)
        opt.ascend()
        assert (a.item(), b.item()) == pytest.approx((3.0, 4.0))
        opt.restore()
        assert (a.item(), b.item()) == (0, 0)


@pytest.mark.parametrize("size", [1e-37, 1e-30, 1.0, 1e30])
def test_a_gradient_of_any_size_gives_a_perturbation_of_length_rho(size):
    p = nn.Parameter(torch.zeros(100, device="cuda"))
    p.grad = torch.full((100,), size, device="cuda")
    SAM(torch.optim.SGD([p], lr=0.1), rho=0.5).ascend()
    assert p.norm().item() == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize("size", [0.0, 1e-42])
def test_a_gradient_whose_norm_has_no_reciprocal_perturbs_less(size):
    p = nn.Parameter(torch.zeros(100, device="cuda"))
    p.grad = torch.full((100,), size, device="cuda")
    SAM(torch.optim.SGD([p], lr=0.1), rho=0.5).ascend()
    assert p.norm().item() == 0 if size == 0 else 0 < p.norm().item() <= 0.5


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_half_precision_recovers_from_an_overflowing_scale(wrapper, fused, batch):
    model = make_model()
    opt = WRAPPERS[wrapper](torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused), model)
    scaler = GradScaler("cuda", init_scale=2.0**40)  # far too high: the first steps overflow
    x, y = batch

    def closure():
        opt.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        return loss

    before = [p.detach().clone() for p in model.parameters()]
    losses = [opt.step(closure, scaler=scaler).item()]
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    scaler.update()
    assert scaler.get_scale() == 2.0**39
    for _ in range(60):
        losses.append(opt.step(closure, scaler=scaler).item())
        scaler.update()
    assert losses[-1] < losses[0]


def test_a_model_moved_after_the_optimizer_was_made():
    model = nn.Linear(3, 2)
    opt = SAM(torch.optim.SGD(model.parameters(), lr=0.1))
    for device in ("cpu", "cuda", "cpu"):
        model.to(device)
        make_step(model, opt, torch.randn(4, 3, device=device), torch.tensor([0, 1, 0, 1], device=device))()


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("maximize", [False, True])
def test_single_precision_ascends_by_the_formula(size, maximize):
    torch.manual_seed(0)
    params = [torch.randn(n, device="cuda", requires_grad=True) for n in (5, 70_000, 1)]
    opt = SAM(torch.optim.SGD(params, lr=0.1, maximize=maximize), rho=0.1)
    for p in params:
        p.grad = size * torch.randn_like(p)
    norm = torch.cat([p.grad.double() for p in params]).norm()
    sign = -1 if maximize else 1
    expected = [(p.detach().double() + sign * 0.1 * p.grad.double() / norm).float() for p in params]
    opt.ascend()
    for p, e in zip(params, expected, strict=True):
        torch.testing.assert_close(p.detach(), e, rtol=1e-6, atol=1e-7)


def test_a_step_needs_one_copy_of_the_parameters():
    def peak(wrap):
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(4))).cuda()
        opt = wrap(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        step = make_step(model, opt, torch.randn(4, 2048, device="cuda"), torch.zeros(4, dtype=torch.long).cuda())
        for _ in range(2):
            step()
        torch.cuda.reset_peak_memory_stats()
        step()
        return torch.cuda.max_memory_allocated(), sum(4 * p.numel() for p in model.parameters())

    (plain, size), (sam, _) = peak(lambda base: base), peak(lambda base: SAM(base, rho=0.05))
    assert 0.99 * size <= sam - plain <= 1.01 * size, (sam - plain) / size


def test_gradients_of_other_strides_than_their_weights(batch):
    model = nn.Conv2d(3, 8, 3, bias=False).cuda().to(memory_format=torch.channels_last)
    opt = SAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=0.1)
    model.weight.grad = torch.randn(8, 3, 3, 3, device="cuda")
    expected = model.weight.detach() + 0.1 * model.weight.grad / model.weight.grad.norm()
    opt.ascend()
    torch.testing.assert_close(model.weight.detach(), expected)
