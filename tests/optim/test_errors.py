"""Every mistake gets one line: the value, the cause, the way out."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from evenly.errors import EvenlyError
from evenly.optim import ASAM, LSAM, SAM, RandomPerturbation


@pytest.fixture
def p():
    return nn.Parameter(torch.ones(2))


def sgd(*params, **settings):
    return torch.optim.SGD(list(params), lr=0.1, **settings)


def refused(match):
    return pytest.raises(EvenlyError, match=match)


@pytest.mark.parametrize("value", [0.0, -0.1, float("nan"), float("inf")])
def test_a_radius_that_is_none(p, value):
    with refused(f"rho={value} for SAM: it must be a finite number > 0"):
        SAM(sgd(p), rho=value)
    with refused(f"rho={value} for ASAM"):
        ASAM(sgd(p), rho=value)
    with refused(f"eta={value} for ASAM"):
        ASAM(sgd(p), eta=value)
    with refused(f"rho={value} for LSAM"):
        LSAM(sgd(p), [p], rho=value)
    with refused(f"sigma={value} for RandomPerturbation"):
        RandomPerturbation(sgd(p), sigma=value)
    with refused(f"rho={value} for SAM"):
        SAM(torch.optim.SGD([{"params": [p], "rho": value}], lr=0.1))
    with refused(f"rho={value} for SAM"):
        SAM(sgd(p)).add_param_group({"params": [nn.Parameter(torch.ones(1))], "rho": value})


def test_a_base_that_is_no_optimizer(p):
    with refused(r"base is the class SGD, .* give an instance: torch.optim.SGD\(model.parameters\(\)"):
        SAM(torch.optim.SGD)
    with refused("base is a generator, not a torch optimizer"):
        SAM(q for q in [p])
    with refused("base is itself a SAM .* give a SGD of its own"):
        ASAM(SAM(sgd(p)))
    with refused("LBFGS, which runs the closure by itself"):
        SAM(torch.optim.LBFGS([p]))
    with refused("base is the class SGD"):
        LSAM(torch.optim.SGD, [p])


def test_a_base_whose_setting_has_the_same_name(p):
    with refused("Adadelta has a setting 'rho' already"):
        SAM(torch.optim.Adadelta([p]))
    RandomPerturbation(torch.optim.Adadelta([p]))
    base = sgd(p)
    SAM(base, rho=0.05)
    with refused("SGD has a setting 'rho' already, its own or an earlier wrapper's"):
        SAM(base, rho=0.5)


def test_a_refused_base_can_be_used_afterwards(p):
    base = sgd(p)
    for wrong in (lambda: SAM(base, rho=-1), lambda: LSAM(base, []), lambda: SAM(base, local=True)):
        with pytest.raises(EvenlyError):
            wrong()
    assert SAM(base, rho=0.3).param_groups[0]["rho"] == 0.3


def test_lsam_parameters(p):
    with refused(r"parameter 1 of params, of shape \(3,\), is not the base optimizer's; give it to SGD"):
        LSAM(sgd(p), [p, nn.Parameter(torch.ones(3))])
    with refused("params is empty"):
        LSAM(sgd(p), [])
    q = nn.Parameter(torch.ones(2))
    opt = LSAM(sgd(p, q), [q])

    def closure():
        opt.zero_grad()
        loss = p.sum()
        loss.backward()
        return loss

    with refused("no parameter chosen for the perturbation has a gradient"):
        opt.step(closure)


@pytest.mark.parametrize("wrap", [SAM, ASAM, RandomPerturbation, lambda b: LSAM(b, b.param_groups[0]["params"])])
def test_closures(p, wrap):
    opt = wrap(sgd(p))
    with refused("step got None as its closure"):
        opt.step()
    with refused(r"step got tensor\(1.\) as its closure"):
        opt.step(torch.tensor(1.0))
    with refused("no parameter of the optimizer has a gradient after the closure ran; call loss.backward()"):
        opt.step(p.sum)

    def silent():
        p.sum().backward()

    with refused("the closure returned None; end it with `return loss`"):
        opt.step(silent)
    assert torch.equal(p, torch.ones(2))
    assert not opt.ascended


@pytest.mark.parametrize("wrap", [SAM, RandomPerturbation])
def test_ascend_and_restore_out_of_turn(p, wrap):
    opt = wrap(sgd(p))
    p.grad = torch.ones(2)
    with refused(r"restore\(\) without ascend\(\)"):
        opt.restore()
    opt.ascend()
    up = p.detach().clone()
    with refused(r"ascend\(\) was called twice.*call restore\(\) first"):
        opt.ascend()
    with refused(r"step\(\) after ascend\(\)"):
        opt.step(lambda: 1.0)
    assert torch.equal(p, up)
    opt.restore()
    assert torch.equal(p, torch.ones(2))


def test_ascend_before_any_gradient(p):
    with refused("no parameter of the optimizer has a gradient; call loss.backward"):
        SAM(sgd(p)).ascend()


def test_sparse_gradients_are_named(p):
    embedding = nn.Embedding(5, 3, sparse=True)
    base = torch.optim.SGD([{"params": [p]}, {"params": [nn.Parameter(torch.ones(1)), embedding.weight]}], lr=0.1)
    opt = SAM(base)

    def closure():
        opt.zero_grad()
        loss = embedding(torch.tensor([1, 2])).sum() + p.sum()
        loss.backward()
        return loss

    with refused(r"parameter 1 of group 1, of shape \(5, 3\), has a sparse gradient.*sparse=False"):
        opt.step(closure)


def test_local_needs_distributed_data_parallel(p):
    with refused("local=True, but model is None; pass the DistributedDataParallel"):
        SAM(sgd(p), local=True)
    with refused("local=True, but model is a Linear"):
        SAM(sgd(p), local=True, model=nn.Linear(1, 1))


@pytest.mark.parametrize("wrap", [SAM, ASAM, RandomPerturbation])
def test_a_closure_that_raises_leaves_the_weights_as_they_were(p, wrap):
    opt = wrap(sgd(p))
    runs = []

    def closure():
        runs.append(p.detach().clone())
        opt.zero_grad()
        loss = p.square().sum()
        loss.backward()
        if not torch.equal(p, torch.ones(2)):
            raise KeyboardInterrupt
        return loss

    with pytest.raises(KeyboardInterrupt):
        opt.step(closure)
    assert not torch.equal(runs[-1], torch.ones(2))
    assert torch.equal(p, torch.ones(2))
    assert not opt.ascended
