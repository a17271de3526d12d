"""The contract of every wrapper: exact weights, groups and state shared with the base, exact resumption, refusals."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from evenly.errors import EvenlyError
from evenly.optim import ASAM, LSAM, SAM, RandomPerturbation

BASES = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda params: torch.optim.Adam(params, lr=0.01, amsgrad=True),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01, weight_decay=0.1),
    "fused adam": lambda params: torch.optim.Adam(params, lr=0.01, fused=True),
    "rmsprop": lambda params: torch.optim.RMSprop(params, lr=0.01, momentum=0.5, centered=True),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=0.05),
    "rprop": lambda params: torch.optim.Rprop(params, lr=0.01),
}


def make_model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.2), nn.Linear(6, 3))


def two_groups(model: nn.Sequential) -> list[dict]:
    return [{"params": list(model[:2].parameters())}, {"params": list(model[2:].parameters()), "lr": 0.02}]


def loss_of(model, step=0):
    generator = torch.Generator().manual_seed(step)
    x, y = torch.randn(8, 4, generator=generator), torch.randint(3, (8,), generator=generator)
    return lambda: nn.functional.cross_entropy(model(x), y)


def same_state(a, b):
    return all(torch.equal(p, q) for p, q in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


@pytest.mark.parametrize("base", BASES)
def test_a_resumed_run_ends_in_the_same_bits(wrapper, base, closure_of):
    def start(seed):
        model = make_model(seed)
        opt = wrapper(BASES[base](two_groups(model)), model)
        return model, opt, torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=8)

    def train(model, opt, schedule, steps):
        for step in steps:
            opt.step(closure_of(opt, loss_of(model, step)))
            opt.param_groups[0][opt.settings[0]] *= 0.9  # a schedule of the radius is part of the state
            schedule.step()

    model, opt, schedule = start(0)
    train(model, opt, schedule, range(3))
    file = io.BytesIO()
    torch.save([model.state_dict(), opt.state_dict(), schedule.state_dict(), torch.get_rng_state()], file)
    train(model, opt, schedule, range(3, 6))

    other, resumed, other_schedule = start(1)
    file.seek(0)
    weights, state, schedule_state, rng = torch.load(file, weights_only=True)
    other.load_state_dict(weights)
    resumed.load_state_dict(state)
    other_schedule.load_state_dict(schedule_state)
    torch.set_rng_state(rng)
    train(other, resumed, other_schedule, range(3, 6))
    assert same_state(model, other)


def test_restoring_is_exact_and_memory_stays_in_place(wrapper, closure_of):
    model = make_model()
    for i, p in enumerate(model.parameters()):
        p.data *= 10.0 ** (3 * (i % 3) - 4)  # sizes at which w + eps - eps is not w
    opt = wrapper(BASES["sgd"](model.parameters()), model)
    addresses = [p.data_ptr() for p in model.parameters()]
    closure_of(opt, loss_of(model))()
    before = [p.detach().clone() for p in model.parameters()]
    for _ in range(3):
        opt.ascend()
        assert opt.ascended
        assert any(not torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
        opt.restore()
        assert not opt.ascended
        assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    for step in range(3):
        opt.step(closure_of(opt, loss_of(model, step)))
    assert [p.data_ptr() for p in model.parameters()] == addresses


def test_the_loss_returned_is_the_first_pass_and_is_not_overwritten(wrapper):
    model, buffer, values = make_model(), torch.zeros(()), []
    opt, loss = wrapper(BASES["sgd"](model.parameters()), model), loss_of(model)

    def closure():
        opt.zero_grad()
        value = loss()
        value.backward()
        values.append(value.item())
        return buffer.copy_(value.detach())

    returned = opt.step(closure)
    assert (len(values), len(set(values))) == ((1, 1) if isinstance(opt, RandomPerturbation) else (2, 2))
    assert buffer.item() == values[-1]
    buffer.fill_(-1.0)
    assert returned.item() == values[0]
    assert not returned.requires_grad


def test_it_works_inside_no_grad(closure_of):
    model = make_model()
    opt = SAM(BASES["sgd"](model.parameters()))
    with torch.no_grad():
        assert opt.step(closure_of(opt, loss_of(model))) > 0


def test_groups_state_and_defaults_are_the_bases(closure_of):
    model = make_model()
    base = BASES["adam"](model.parameters())
    opt = SAM(base, rho=0.2)
    opt.step(closure_of(opt, loss_of(model)))
    for _ in range(2):
        assert opt.param_groups is base.param_groups
        assert opt.state is base.state
        assert len(opt.state) == len(list(model.parameters()))
        assert opt.defaults is base.defaults
        base.load_state_dict(opt.state_dict())  # makes new groups and a new state


def test_schedulers_reach_the_base_and_find_its_defaults(closure_of):
    model = make_model()
    base = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    opt = SAM(base)
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=1.0, total_steps=10)
    rates = []
    for step in range(9):
        opt.step(closure_of(opt, loss_of(model, step)))
        schedule.step()
        rates.append((base.param_groups[0]["lr"], base.param_groups[0]["momentum"]))
    assert len(set(rates)) == 9
    loaded = SAM(torch.optim.SGD(make_model().parameters(), lr=5.0, momentum=0.9))
    loaded.load_state_dict(opt.state_dict())
    assert loaded.base.param_groups[0]["lr"] == rates[-1][0]


@pytest.mark.parametrize("through", ["wrapper", "base"])
def test_a_group_added_later_trains_with_the_settings(through, closure_of):
    model, head = make_model(), nn.Linear(3, 3)
    opt = SAM(BASES["sgd"](model.parameters()), rho=0.2)
    (opt if through == "wrapper" else opt.base).add_param_group({"params": list(head.parameters())})
    assert opt.param_groups[1]["rho"] == 0.2
    before = head.weight.detach().clone()
    opt.step(closure_of(opt, loss_of(nn.Sequential(model, head))))
    assert not torch.equal(head.weight, before)


def test_a_checkpoint_of_the_base_alone_can_be_continued_with_sam(closure_of):
    model = make_model()
    base = BASES["sgd"](two_groups(model))
    base.step(closure_of(base, loss_of(model)))
    opt = SAM(BASES["sgd"](two_groups(model)), rho=0.2)
    opt.load_state_dict(base.state_dict())
    assert [group["rho"] for group in opt.param_groups] == [0.2, 0.2]
    assert len(opt.state) == len(base.state) > 0


def test_hooks_on_saving_and_loading_run(closure_of):
    model = make_model()
    opt, ran = SAM(BASES["sgd"](model.parameters())), []
    opt.register_state_dict_post_hook(lambda *_: ran.append("save"))
    opt.register_load_state_dict_post_hook(lambda *_: ran.append("load"))
    opt.register_step_post_hook(lambda *_: ran.append("step"))
    opt.load_state_dict(opt.state_dict())
    opt.step(closure_of(opt, loss_of(model)))
    assert ran == ["save", "load", "step"]


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_copies_of_model_and_optimizer_train_alike(wrapper, duplicate, closure_of):
    model = make_model()
    opt = wrapper(BASES["adam"](model.parameters()), model)
    opt.step(closure_of(opt, loss_of(model)))
    other, twin = duplicate((model, opt))
    for m, o in ((model, opt), (other, twin)):
        torch.manual_seed(3)
        o.step(closure_of(o, loss_of(m, 1)))
    assert twin.base is not opt.base
    assert twin.state is twin.base.state
    assert same_state(model, other)


def test_repr_shows_the_settings_and_the_base():
    p = nn.Parameter(torch.ones(2, 2))
    base = torch.optim.SGD([{"params": [p], "rho": 0.7}], lr=0.5)
    assert repr(SAM(base, rho=0.07)).startswith("SAM(rho=0.07, base=SGD (")
    assert "lr: 0.5" in repr(SAM(torch.optim.SGD([p], lr=0.5)))
    assert repr(ASAM(torch.optim.Adam([p]), rho=2.0)).startswith("ASAM(rho=2.0, eta=0.01, base=Adam (")


def test_zero_grad_reaches_the_parameters(p):
    opt = SAM(sgd(p))
    p.grad = torch.ones(2)
    opt.zero_grad(set_to_none=False)
    assert p.grad.tolist() == [0, 0]
    opt.zero_grad()
    assert p.grad is None


def test_clipping_in_a_hook_of_the_base_sees_the_second_gradient(closure_of):
    p = nn.Parameter(torch.tensor([3.0], dtype=torch.float64))
    base, seen = torch.optim.SGD([p], lr=1.0), []
    opt = SAM(base, rho=1.0)

    def clip(*_):
        seen.append(p.grad.item())
        nn.utils.clip_grad_norm_([p], 0.5)

    base.register_step_pre_hook(clip)
    opt.step(closure_of(opt, lambda: p.square().sum()))
    assert seen == [8.0]
    assert p.item() == pytest.approx(2.5, abs=1e-6)


def test_a_step_inside_a_compiled_function_is_the_same_step(wrapper, closure_of):
    ends = []
    for compiled in (False, True):
        model = make_model()
        opt = wrapper(torch.optim.SGD(model.parameters(), lr=0.1), model)

        def step(model=model, opt=opt):
            return opt.step(closure_of(opt, loss_of(model)))

        torch.manual_seed(3)
        run = torch.compile(step, backend="eager") if compiled else step
        for _ in range(2):
            run()
        assert not opt.ascended
        ends.append(model)
    assert same_state(*ends)


# Refusals: the value, the cause, the way out.


@pytest.fixture
def p():
    return nn.Parameter(torch.ones(2))


def sgd(*params, **settings):
    return torch.optim.SGD(list(params), lr=0.1, **settings)


def refused(match):
    return pytest.raises(EvenlyError, match=match)


@pytest.mark.parametrize("value", [0.0, -0.1, float("nan"), float("inf"), None, "0.1"])
@pytest.mark.parametrize(
    ("name", "wrapper_name", "make"),
    [
        ("rho", "SAM", lambda p, value: SAM(sgd(p), rho=value)),
        ("rho", "ASAM", lambda p, value: ASAM(sgd(p), rho=value)),
        ("eta", "ASAM", lambda p, value: ASAM(sgd(p), eta=value)),
        ("rho", "LSAM", lambda p, value: LSAM(sgd(p), [p], rho=value)),
        ("sigma", "RandomPerturbation", lambda p, value: RandomPerturbation(sgd(p), sigma=value)),
        ("rho", "SAM", lambda p, value: SAM(sgd({"params": [p], "rho": value}))),
        (
            "rho",
            "SAM",
            lambda p, value: SAM(sgd(nn.Parameter(torch.ones(1)))).add_param_group({"params": [p], "rho": value}),
        ),
    ],
)
def test_a_setting_that_is_no_positive_number(p, name, wrapper_name, make, value):
    with refused(f"`{name}` of {wrapper_name} must be a finite number above 0, got {value}; for no perturbation"):
        make(p, value)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda p: SAM(torch.optim.SGD), r"got the class SGD; give an instance: torch.optim.SGD\(model.parameters\(\)"),
        (
            lambda p: SAM([p], torch.optim.SGD, rho=0.05, lr=0.1),
            r"SAM wraps an optimizer, got the class SGD; "
            r"write SAM\(torch\.optim\.SGD\(model\.parameters\(\), lr=0\.1\), rho=0\.05\)$",
        ),
        (
            lambda p: ASAM([p], base_optimizer=torch.optim.AdamW, adaptive=True),
            r"write ASAM\(torch\.optim\.AdamW\(model\.parameters\(\)\)\)$",
        ),
        (lambda p: LSAM(torch.optim.SGD, [p]), "`base` must be an optimizer, got the class SGD"),
        (lambda p: SAM(q for q in [p]), "`base` must be a torch optimizer, got a generator"),
        (lambda p: ASAM(SAM(sgd(p))), "`base` is a SAM, which already perturbs; wrap a SGD instead"),
        (lambda p: SAM(torch.optim.LBFGS([p])), "LBFGS, which runs the closure itself"),
        (lambda p: SAM(torch.optim.Adadelta([p])), "Adadelta already has a setting 'rho'"),
        (lambda p: [SAM(base) for base in [sgd(p)] * 2], "SGD already has a setting 'rho', its own or an earlier wrap"),
        (lambda p: LSAM(sgd(p), []), "`params` must hold at least one parameter"),
        (
            lambda p: LSAM(sgd(p), [p, nn.Parameter(torch.ones(3))]),
            r"parameter 1 of `params`, of shape \(3,\), is not in the base optimizer; give it to SGD",
        ),
        (lambda p: SAM(sgd(p), local=True), "`model` must be the DistributedDataParallel .*, got None"),
        (lambda p: SAM(sgd(p), local=True, model=nn.Linear(1, 1)), "`model` must be the Distributed.* got a Linear"),
        (lambda p: setattr(SAM(sgd(p)), "model", 5), "`model` must be a torch.nn.Module or None, got a int"),
        (lambda p: SAM(sgd(p)).ascend(), "no parameter of the optimizer has a gradient; call loss.backward"),
    ],
)
def test_what_cannot_be_wrapped(p, make, match):
    with refused(match):
        make(p)


@pytest.mark.parametrize("wrapper", ["sam", "asam", "random"], indirect=True)
def test_complex_parameters_are_refused(wrapper):
    with refused("parameter 0 of group 0 is complex"):
        wrapper(sgd(nn.Parameter(torch.zeros(2, dtype=torch.complex64))), None)


def test_a_refused_base_can_be_used_afterwards(p):
    base = sgd(p)
    for wrong in (lambda: SAM(base, rho=-1), lambda: LSAM(base, []), lambda: SAM(base, local=True)):
        with pytest.raises(EvenlyError):
            wrong()
    assert SAM(base, rho=0.3).param_groups[0]["rho"] == 0.3
    RandomPerturbation(torch.optim.Adadelta([p]))  # whose rho is no setting of this one


def test_closures(wrapper, p):
    opt = wrapper(sgd(p), nn.ModuleList([nn.ParameterList([p])]))

    def without_return():
        p.sum().backward()

    for closure, match in (
        (None, "needs a closure, got None"),
        (torch.tensor(1.0), r"needs a closure, got tensor\(1.\)"),
        (p.sum, r"no parameter of the optimizer has a gradient after the closure ran; call loss.backward\(\)"),
        (without_return, "the closure returned None; end it with `return loss`"),
    ):
        with refused(match):
            opt.step(closure)
    assert torch.equal(p, torch.ones(2))
    assert not opt.ascended


@pytest.mark.parametrize("wrapper", ["sam", "random"], indirect=True)
def test_ascend_and_restore_out_of_order(p, wrapper):
    opt = wrapper(sgd(p), None)
    p.grad = torch.ones(2)
    with refused(r"restore\(\) called without ascend\(\)"):
        opt.restore()
    opt.ascend()
    perturbed = p.detach().clone()
    with refused(r"ascend\(\) called twice.*call restore\(\) first"):
        opt.ascend()
    with refused(r"step\(\) called after ascend\(\)"):
        opt.step(lambda: 1.0)
    assert torch.equal(p, perturbed)
    opt.restore()
    assert torch.equal(p, torch.ones(2))


def test_sparse_gradients_are_named(p, closure_of):
    embedding = nn.Embedding(5, 3, sparse=True)
    opt = SAM(sgd({"params": [p]}, {"params": [nn.Parameter(torch.ones(1)), embedding.weight]}))
    with refused(r"parameter 1 of group 1, of shape \(5, 3\), has a sparse gradient.*sparse=False"):
        opt.step(closure_of(opt, lambda: embedding(torch.tensor([1, 2])).sum() + p.sum()))


def test_a_negative_rho_in_a_group_is_refused(p, closure_of):
    opt = SAM(sgd(p))
    opt.param_groups[0]["rho"] = -0.1
    with refused("`rho` of a parameter group must be at least 0, got -0.1"):
        opt.step(closure_of(opt, lambda: p.square().sum()))
    assert not opt.ascended


@pytest.mark.parametrize("wrapper", ["sam", "asam", "random"], indirect=True)
def test_a_closure_that_raises_leaves_the_weights_as_they_were(p, wrapper):
    opt, runs = wrapper(sgd(p), None), []

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
