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
from evenly.optim.registry import builder

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


def test_every_tensor_gets_noise_of_its_own():
    params = [nn.Parameter(torch.zeros(50)) for _ in range(3)]
    RandomPerturbation(torch.optim.SGD(params, lr=0.1), sigma=0.1).ascend()
    assert not torch.equal(params[0], params[1])
    assert not torch.equal(params[1], params[2])


class Named(nn.Module):
    """A bias by the name of its layer only, and one that is called so."""

    def __init__(self):
        super().__init__()
        self.bias_layer = nn.Linear(2, 1)


def test_asam_tells_a_bias_by_the_last_part_of_its_name():
    model, stranger = Named(), nn.Parameter(torch.full((2,), 3.0))
    weight, bias = model.bias_layer.weight, model.bias_layer.bias
    weight.data.fill_(2.0)
    for given in (model, None):
        opt = ASAM(torch.optim.SGD([weight, bias, stranger], lr=0.1), rho=1.0, eta=0.5, model=given)
        for p in (weight, bias, stranger):
            p.grad = torch.ones_like(p)
        before = [p.detach().clone() for p in (weight, bias, stranger)]
        opt.ascend()
        moved = [p.detach() - b for p, b in zip((weight, bias, stranger), before, strict=True)]
        opt.restore()
        # T = 2.5 on the weight, 1 on the bias and on a vector that the model does not name
        norm = (2 * 2.5**2 + 1 + 2) ** 0.5
        for got, scale in zip(moved, (2.5**2, 1.0, 1.0), strict=True):
            torch.testing.assert_close(got, torch.full_like(got, scale / norm))


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_disabled_scaler_is_none(wrapper, x):
    model = network()
    opt = WRAPPERS[wrapper](torch.optim.SGD(model.parameters(), lr=0.1), model)
    loss = opt.step(closure_of(model, opt, x), scaler=GradScaler("cpu", enabled=False))
    assert not loss.requires_grad
    assert not opt.ascended


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_the_loss_returned_is_not_written_over(wrapper, x):
    model, kept = network(), torch.zeros(())
    opt = WRAPPERS[wrapper](torch.optim.SGD(model.parameters(), lr=0.1), model)

    def closure():
        opt.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return kept.copy_(loss.detach())

    returned = opt.step(closure)
    value = returned.item()
    kept.fill_(-1.0)
    assert returned.item() == value != -1


def test_negative_rho_in_a_group_is_refused(x):
    model = network()
    opt = SAM(torch.optim.SGD(model.parameters(), lr=0.1))
    opt.param_groups[0]["rho"] = -0.1
    with pytest.raises(EvenlyError, match=r"rho=-0.1 in a parameter group"):
        opt.step(closure_of(model, opt, x))
    assert not opt.ascended


def test_local_with_a_static_graph_is_refused(alone):
    ddp = nn.parallel.DistributedDataParallel(network(), static_graph=True)
    with pytest.raises(EvenlyError, match="leave static_graph out"):
        SAM(torch.optim.SGD(ddp.parameters(), lr=0.1), model=ddp, local=True)
    ddp = nn.parallel.DistributedDataParallel(network())
    state = SAM(torch.optim.SGD(ddp.parameters(), lr=0.1), model=ddp, local=True).__getstate__()
    assert state["local"] is True
    assert state["_model"] is ddp


def test_repr_shows_the_settings_it_was_given():
    base = torch.optim.SGD([{"params": [nn.Parameter(torch.zeros(1))], "rho": 0.7}], lr=0.1)
    assert repr(SAM(base, rho=0.2)).startswith("SAM(rho=0.2, base=SGD")


def test_sam_by_name_keeps_the_base_settings():
    opt = builder("sam", lr=0.3, momentum=0.8, weight_decay=0.01, rho=0.2)([nn.Parameter(torch.zeros(1))])
    group = opt.param_groups[0]
    assert (group["lr"], group["momentum"], group["weight_decay"], group["rho"]) == (0.3, 0.8, 0.01, 0.2)
