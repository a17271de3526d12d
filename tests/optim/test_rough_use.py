"""What users do to an optimizer that its author did not think of first."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.amp import GradScaler
from torch.distributed import HashStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

from evenly.errors import EvenlyError
from evenly.optim import ASAM, LSAM, SAM, RandomPerturbation

WRAPPERS = {
    "sam": lambda base, model: SAM(base, rho=0.1),
    "asam": lambda base, model: ASAM(base, rho=0.5),
    "lsam": lambda base, model: LSAM(base, model[-1].parameters(), rho=0.1),
    "random": lambda base, model: RandomPerturbation(base, sigma=0.1),
}


def network(*middle):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), *middle, nn.Linear(6, 1))


def closure_of(model, opt, x, scaler=None, after=lambda: None):
    def closure():
        opt.zero_grad()
        loss = model(x).square().mean()
        (loss if scaler is None else scaler.scale(loss)).backward()
        after()
        return loss

    return closure


@pytest.fixture
def x():
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_hook_that_clips_sees_unscaled_gradients(wrapper, fused, x):
    norms, ends = [], []
    for scale in (1.0, 1024.0):
        model = network()
        base = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
        opt = WRAPPERS[wrapper](base, model)
        scaler = GradScaler("cpu", init_scale=scale)
        base.register_step_pre_hook(
            lambda *_, model=model: norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1).item())
        )
        torch.manual_seed(2)
        opt.step(closure_of(model, opt, x, scaler), scaler=scaler)
        scaler.update()
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert norms[1] == pytest.approx(norms[0], rel=1e-4)
    torch.testing.assert_close(ends[1], ends[0])


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_unscaling_in_the_closure_is_refused(wrapper, x):
    model = network()
    opt = WRAPPERS[wrapper](torch.optim.SGD(model.parameters(), lr=0.1), model)
    scaler = GradScaler("cpu")
    with pytest.raises((EvenlyError, RuntimeError), match="unscale_"):
        opt.step(closure_of(model, opt, x, scaler, after=lambda: scaler.unscale_(opt)), scaler=scaler)
    assert not opt.ascended


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_step_inside_a_compiled_function_is_the_same_step(wrapper, x):
    ends = []
    for compiled in (False, True):
        model = network(nn.BatchNorm1d(6))
        opt = WRAPPERS[wrapper](torch.optim.SGD(model.parameters(), lr=0.1), model)

        def step(model=model, opt=opt):
            return opt.step(closure_of(model, opt, x))

        torch.manual_seed(3)
        run = torch.compile(step, backend="eager") if compiled else step
        for _ in range(2):
            run()
        assert not opt.ascended
        ends.append(torch.cat([p.detach().flatten() for p in model.state_dict().values()]))
    assert torch.equal(*ends)


class Reassigning(nn.Module):
    """Keeps a running mean by putting a new tensor in its place."""

    def __init__(self):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(6))

    def forward(self, x):
        self.running_mean = 0.9 * self.running_mean + 0.1 * x.detach().mean(0)
        return x - self.running_mean


def test_a_statistic_that_is_a_new_tensor_every_time_moves_once_and_is_not_hoarded(x):
    model = network(Reassigning())
    opt = SAM(torch.optim.SGD(model.parameters(), lr=0.1))
    expected = torch.zeros(6)
    for _ in range(5):
        expected = 0.9 * expected + 0.1 * model[0](x).detach().mean(0)
        opt.step(closure_of(model, opt, x))
        torch.testing.assert_close(model[1].running_mean, expected)
    assert len(opt._statistics._memory) <= 2


@pytest.mark.parametrize("make", [torch.jit.script, lambda m: torch.jit.trace(m, torch.randn(8, 4))])
@pytest.mark.filterwarnings("ignore")
def test_scripted_models_step(make, x):
    model = make(network(nn.BatchNorm1d(6)))
    opt = SAM(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
    (count,) = (buffer for name, buffer in model.named_buffers() if name.endswith("tracked"))
    before = int(count)
    opt.step(closure_of(model, opt, x))
    assert int(count) == before + 1


@pytest.mark.parametrize("wrapper", ["sam", "asam", "random"])
def test_complex_parameters_are_refused(wrapper):
    base = torch.optim.SGD([nn.Parameter(torch.zeros(2, dtype=torch.complex64))], lr=0.1)
    with pytest.raises(EvenlyError, match="parameter 0 of group 0 is complex"):
        WRAPPERS[wrapper](base, None)


def test_sparse_gradients_are_fine_where_nothing_is_perturbed():
    torch.manual_seed(0)
    embedding, head = nn.Embedding(10, 3, sparse=True), nn.Linear(3, 1)
    for check in (False, True):
        base = torch.optim.SGD([*embedding.parameters(), *head.parameters()], lr=0.1)
        opt = LSAM(base, head.parameters(), check_finite=check)
        before = embedding.weight.detach().clone()

        def closure(opt=opt):
            opt.zero_grad()
            loss = head(embedding(torch.tensor([1, 2]))).square().mean()
            loss.backward()
            return loss

        opt.step(closure)
        assert not torch.equal(embedding.weight, before)
    embedding.weight.data.fill_(torch.inf)
    with pytest.raises(EvenlyError, match="not finite"):
        opt.step(closure)


@pytest.mark.parametrize("gradient", [0.0, 1.0])
@pytest.mark.parametrize("wrapper", [SAM, ASAM])
def test_a_schedule_may_begin_with_rho_0(wrapper, gradient):
    w = nn.Parameter(torch.ones(3))
    opt = wrapper(torch.optim.SGD([w], lr=0.1))
    opt.param_groups[0]["rho"] = 0.0

    def closure():
        opt.zero_grad()
        loss = gradient * w.sum()
        loss.backward()
        return loss

    opt.step(closure)
    torch.testing.assert_close(w.detach(), torch.full((3,), 1 - 0.1 * gradient))


@pytest.mark.parametrize("rho", [None, "0.1", nn.Linear(1, 1)])
def test_rho_of_another_kind_is_refused_by_name(rho):
    with pytest.raises(EvenlyError, match="rho="):
        SAM(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1), rho)


def test_a_model_of_another_kind_is_refused():
    opt = SAM(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1))
    with pytest.raises(EvenlyError, match="model is a int"):
        opt.model = 5


@pytest.fixture
def alone():
    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("original", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_weights_split_by_fsdp_are_refused(alone, original, x):
    model = FullyShardedDataParallel(network(), device_id=torch.device("cpu"), use_orig_params=original)

    def step():
        opt = SAM(torch.optim.SGD(model.parameters(), lr=0.1))
        opt.step(closure_of(model, opt, x))

    with pytest.raises(EvenlyError, match="use DistributedDataParallel"):
        step()


@pytest.mark.filterwarnings("ignore")
def test_weights_split_by_fully_shard_are_refused(alone):
    model = fully_shard(network(), mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(EvenlyError, match=r"parameter 0 of group 0 is split over devices .* DistributedDataParallel"):
        SAM(torch.optim.SGD(model.parameters(), lr=0.1))
