"""The two passes of SAM, ASAM and LSAM: running statistics are updated once per step, by the first pass."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from evenly.errors import EvenlyError
from evenly.optim import LSAM, SAM

LAYERS = {
    "batch norm": lambda: nn.BatchNorm1d(4),
    "cumulative": lambda: nn.BatchNorm1d(4, momentum=None),
    "instance norm": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 2)), nn.InstanceNorm1d(2, affine=True, track_running_stats=True), nn.Flatten()
    ),
    "nested, without affine": lambda: nn.Sequential(nn.Sequential(nn.BatchNorm1d(4, affine=False))),
}
two_pass = pytest.mark.parametrize("wrapper", ["sam", "asam", "lsam"], indirect=True)


def network(*middle):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), *middle, nn.Linear(4, 2))


def sgd(*modules, lr=0.5):
    return torch.optim.SGD([p for module in modules for p in module.parameters()], lr=lr)


def loss_of(call, fail_in=None):
    x, runs = torch.randn(6, 3, generator=torch.Generator().manual_seed(1)), []

    def loss():
        runs.append(None)
        if len(runs) == fail_in:
            raise RuntimeError("the batch is broken")
        return call(x).square().sum()

    return loss


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("model_given", [True, False])
@two_pass
def test_the_second_pass_leaves_running_statistics_unchanged(layer, model_given, wrapper):
    model = network(LAYERS[layer]())
    opt = wrapper(sgd(model), model)
    opt.model = model if model_given else None
    for _ in range(3):
        x, passes = torch.randn(6, 3), []

        def closure(x=x, passes=passes):
            opt.zero_grad()
            loss = model(x).square().sum()
            loss.backward()
            passes.append([b.clone() for b in model.buffers()])
            return loss

        opt.step(closure)
        assert any(not torch.equal(a, b) for a, b in zip(*passes, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(passes[0], model.buffers(), strict=True))
    if "instance" not in layer:  # torch's InstanceNorm does not count
        assert [b.item() for name, b in model.named_buffers() if name.endswith("num_batches_tracked")] == [3]


def test_no_hook_is_left_behind(closure_of):
    model = network(nn.BatchNorm1d(4))
    for fail_in in (None, 1, 2):
        opt = SAM(sgd(model))
        try:
            opt.step(closure_of(opt, loss_of(model, fail_in)))
        except RuntimeError:
            assert fail_in is not None
        assert not torch.nn.modules.module._has_any_global_hook()


@pytest.mark.parametrize("model_given", [True, False])
def test_a_second_pass_that_fails_leaves_weights_and_statistics_of_the_first(model_given, closure_of):
    model = network(nn.BatchNorm1d(4))
    opt = SAM(sgd(model), rho=1.0, model=model if model_given else None)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(RuntimeError, match="the batch is broken"):
        opt.step(closure_of(opt, loss_of(model, fail_in=2)))
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    assert model[1].num_batches_tracked.item() == 1
    opt.step(closure_of(opt, loss_of(model)))
    assert model[1].num_batches_tracked.item() == 2


def test_networks_called_one_by_one_are_all_found(closure_of):
    body, norm, head = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))
    opt = SAM(sgd(body, norm, head), rho=0.5)
    opt.step(closure_of(opt, loss_of(lambda x: head(norm(body(x))))))
    assert [norm.num_batches_tracked.item(), head[1].num_batches_tracked.item()] == [1, 1]


def test_a_network_that_comes_with_a_new_group_is_found(closure_of):
    body, head = nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))
    opt = SAM(sgd(body), rho=0.5)
    opt.step(closure_of(opt, loss_of(body)))
    opt.add_param_group({"params": list(head.parameters())})
    opt.step(closure_of(opt, loss_of(lambda x: head(body(x)))))
    assert head[1].num_batches_tracked.item() == 1


@two_pass
def test_step_is_ascend_and_restore_by_hand(wrapper, closure_of):
    ends = []
    for by_hand in (False, True):
        model = network(nn.BatchNorm1d(4))
        opt = wrapper(sgd(model, lr=0.05), model)
        opt.model = model
        closure = closure_of(opt, loss_of(model))
        for step in range(3):
            if by_hand:
                closure()
                opt.ascend()
                closure()
                assert model[1].num_batches_tracked.item() == step + 2
                opt.restore()
                opt.base.step()
            else:
                opt.step(closure)
            assert model[1].num_batches_tracked.item() == step + 1
        ends.append(model.state_dict().values())
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


class ReplacesItsBuffer(nn.Module):
    """Updates a running mean by assigning a new tensor."""

    def __init__(self):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(4))

    def forward(self, x):
        self.running_mean = 0.9 * self.running_mean + 0.1 * x.detach().mean(0)
        return x - self.running_mean


def test_a_statistic_that_is_a_new_tensor_every_time_moves_once_and_its_copies_are_freed(closure_of):
    model, inputs = network(ReplacesItsBuffer()), []
    model[0].register_forward_hook(lambda _, __, output: inputs.append(output.detach().mean(0)))
    opt = SAM(sgd(model, lr=0.01))
    expected = torch.zeros(4)
    for step in range(5):
        opt.step(closure_of(opt, loss_of(model)))
        expected = 0.9 * expected + 0.1 * inputs[2 * step]
        torch.testing.assert_close(model[1].running_mean, expected)
    assert len(opt._statistics._memory) <= 2


@pytest.mark.parametrize("make", [torch.jit.script, lambda m: torch.jit.trace(m, torch.randn(8, 3))])
@pytest.mark.filterwarnings("ignore")
def test_scripted_models_step(make, closure_of):
    model = make(network(nn.BatchNorm1d(4)))
    opt = SAM(sgd(model), model=model)
    (count,) = (buffer for name, buffer in model.named_buffers() if name.endswith("tracked"))
    before = int(count)
    opt.step(closure_of(opt, loss_of(model)))
    assert int(count) == before + 1


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")  # torch 2.11 with a GPU
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("kind", ["module", "function"])
@pytest.mark.parametrize("model_given", [True, False])
def test_a_compiled_model_trains_as_it_does_uncompiled(backend, kind, model_given, closure_of):
    torch._dynamo.reset()
    ends = []
    for compiled in (False, True):
        model = network(nn.BatchNorm1d(4), nn.Tanh())
        run = model
        if compiled:
            run = torch.compile(model if kind == "module" else lambda x, model=model: model(x), backend=backend)
        opt = SAM(sgd(model, lr=0.05), rho=0.5, model=model if model_given else None)
        for _ in range(3):
            opt.step(closure_of(opt, loss_of(run)))
        ends.append(model.state_dict())
    assert all(torch.allclose(a, b) for a, b in zip(*(end.values() for end in ends), strict=True))
    assert ends[1]["1.num_batches_tracked"] == 3
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    torch._dynamo.utils.counters.clear()


def test_sparse_gradients_are_fine_where_nothing_is_perturbed(closure_of):
    torch.manual_seed(0)
    embedding, head = nn.Embedding(10, 3, sparse=True), nn.Linear(3, 1)
    for check in (False, True):
        opt = LSAM(sgd(embedding, head, lr=0.1), head.parameters(), check_finite=check)
        closure = closure_of(opt, lambda: head(embedding(torch.tensor([1, 2]))).square().mean())
        before = embedding.weight.detach().clone()
        opt.step(closure)
        assert not torch.equal(embedding.weight, before)
    embedding.weight.data.fill_(torch.inf)
    with pytest.raises(EvenlyError, match="not finite"):
        opt.step(closure)
