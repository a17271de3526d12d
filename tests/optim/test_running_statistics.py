"""Running statistics move once per step, with the first pass."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from evenly.optim import ASAM, LSAM, SAM

LAYERS = {
    "batch norm": lambda: nn.BatchNorm1d(4),
    "cumulative": lambda: nn.BatchNorm1d(4, momentum=None),
    "instance norm": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 2)), nn.InstanceNorm1d(2, affine=True, track_running_stats=True), nn.Flatten()
    ),
    "nested, without affine": lambda: nn.Sequential(nn.Sequential(nn.BatchNorm1d(4, affine=False))),
}


def statistics(model):
    return [b.clone() for b in model.buffers()]


def train(make_layer, wrap, steps=3):
    """The statistics after each first pass, as a plain forward at w would leave them, and after each step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), make_layer(), nn.Linear(4, 2))
    opt = wrap(torch.optim.SGD(model.parameters(), lr=0.5), model)
    expected, after, passes = [], [], []
    for _ in range(steps):
        x = torch.randn(6, 3)
        passes.clear()

        def closure(x=x):
            opt.zero_grad()
            loss = model(x).square().sum()
            loss.backward()
            passes.append(statistics(model))
            return loss

        opt.step(closure)
        assert any(not torch.equal(a, b) for a, b in zip(*passes, strict=True))
        expected.append(passes[0])
        after.append(statistics(model))
    return model, expected, after


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda base, net, **k: SAM(base, rho=0.5, **k),
        lambda base, net, **k: ASAM(base, rho=0.5, **k),
        lambda base, net, **k: LSAM(base, net[0].parameters(), rho=0.5, **k),
    ],
    ids=["sam", "asam", "lsam"],
)
def test_the_second_pass_leaves_them_alone(layer, given, wrap):
    model, expected, after = train(LAYERS[layer], lambda b, m: wrap(b, m, model=m) if given else wrap(b, m))
    for want, have in zip(expected, after, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(want, have, strict=True))
    if "instance" not in layer:  # torch's InstanceNorm does not count
        counters = [b for name, b in model.named_buffers() if name.endswith("num_batches_tracked")]
        assert [c.item() for c in counters] == [3]


def closure_for(call, opt, fail_in=None):
    x, runs = torch.randn(6, 3), []

    def closure():
        runs.append(None)
        opt.zero_grad()
        loss = call(x).square().sum()
        loss.backward()
        if len(runs) == fail_in:
            raise RuntimeError("the batch is broken")
        return loss

    return closure


def test_no_hook_stays_behind():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    for fail_in in (None, 1, 2):
        opt = SAM(torch.optim.SGD(model.parameters(), lr=0.5))
        if fail_in is None:
            opt.step(closure_for(model, opt))
        else:
            with pytest.raises(RuntimeError, match="the batch is broken"):
                opt.step(closure_for(model, opt, fail_in))
        assert not torch.nn.modules.module._has_any_global_hook()


@pytest.mark.parametrize("given", [True, False])
def test_a_second_pass_that_fails_leaves_weights_and_statistics_of_the_first(given):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    opt = SAM(torch.optim.SGD(model.parameters(), lr=0.5), rho=1.0, model=model if given else None)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(RuntimeError, match="the batch is broken"):
        opt.step(closure_for(model, opt, fail_in=2))
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    assert model[1].num_batches_tracked.item() == 1
    opt.step(closure_for(model, opt))
    assert model[1].num_batches_tracked.item() == 2


def test_networks_called_one_by_one_are_all_found():
    body, norm, head = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))
    params = [p for m in (body, norm, head) for p in m.parameters()]
    opt = SAM(torch.optim.SGD(params, lr=0.1), rho=0.5)
    opt.step(closure_for(lambda x: head(norm(body(x))), opt))
    assert [norm.num_batches_tracked.item(), head[1].num_batches_tracked.item()] == [1, 1]


def test_a_network_that_comes_with_a_new_group_is_found():
    body, head = nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))
    opt = SAM(torch.optim.SGD(body.parameters(), lr=0.1), rho=0.5)
    opt.step(closure_for(body, opt))
    opt.add_param_group({"params": list(head.parameters())})
    opt.step(closure_for(lambda x: head(body(x)), opt))
    assert head[1].num_batches_tracked.item() == 1


def test_by_hand_with_the_model_given():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    opt = SAM(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
    closure = closure_for(model, opt)
    closure()
    opt.ascend()
    closure()
    assert model[1].num_batches_tracked.item() == 2
    opt.restore()
    assert model[1].num_batches_tracked.item() == 1
