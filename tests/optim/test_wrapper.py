"""What every wrapper keeps: exact weights, one set of groups and state with the base, exact resumption."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from evenly.optim import ASAM, LSAM, SAM, RandomPerturbation
from evenly.optim.snapshot import Snapshot

WRAPPERS = {
    "sam": lambda base, model: SAM(base, rho=0.1),
    "asam": lambda base, model: ASAM(base, rho=0.7, eta=0.02, model=model),
    "lsam": lambda base, model: LSAM(base, params=model[-1].parameters(), rho=0.3),
    "random": lambda base, model: RandomPerturbation(base, sigma=0.05),
}
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


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(8, 4, generator=generator), torch.randint(3, (8,), generator=generator)


def closure_for(model, opt, step=0):
    x, y = batch(step)

    def closure():
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return closure


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("base", BASES)
def test_a_resumed_run_ends_in_the_same_bits(wrapper, base):
    def start(seed):
        model = make_model(seed)
        opt = WRAPPERS[wrapper](BASES[base](two_groups(model)), model)
        return model, opt, torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=8)

    def train(model, opt, schedule, steps):
        for step in steps:
            opt.step(closure_for(model, opt, step))
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
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_restoring_is_exact_and_memory_stays_in_place(wrapper):
    model = make_model()
    for i, p in enumerate(model.parameters()):
        p.data *= 10.0 ** (3 * (i % 3) - 4)  # sizes at which w + eps - eps is not w
    opt = WRAPPERS[wrapper](BASES["sgd"](model.parameters()), model)
    places = [p.data_ptr() for p in model.parameters()]
    closure_for(model, opt)()
    before = [p.detach().clone() for p in model.parameters()]
    for _ in range(3):
        opt.ascend()
        assert opt.ascended
        assert any(not torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
        opt.restore()
        assert not opt.ascended
        assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    for step in range(3):
        opt.step(closure_for(model, opt, step))
    assert [p.data_ptr() for p in model.parameters()] == places


def test_copies_are_made_once_and_again_after_a_move(monkeypatch):
    made = []
    empty_like = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda t: made.append(t.dtype) or empty_like(t))
    kept, p = Snapshot(), torch.ones(3)
    for value in (1.0, 2.0):
        p.fill_(value)
        kept.take([p])
        p.zero_()
        kept.put_back()
        assert p.tolist() == [value] * 3
    assert made == [torch.float32]
    p.data = p.data.double()
    kept.take([p])
    assert made == [torch.float32, torch.float64]


@pytest.mark.parametrize("wrapper", ["sam", "asam", "lsam"])
def test_step_is_ascend_and_restore_by_hand(wrapper):
    ends = []
    for by_hand in (False, True):
        model = make_model()
        model.append(nn.Linear(3, 3))
        del model[3]
        opt = WRAPPERS[wrapper](BASES["sgd"](model.parameters()), model)
        for step in range(3):
            closure = closure_for(model, opt, step)
            if by_hand:
                closure()
                opt.ascend()
                closure()
                opt.restore()
                opt.base.step()
            else:
                opt.step(closure)
        ends.append([p.detach() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_the_loss_is_the_first_passes_even_if_the_closure_writes_over_it():
    p, place = nn.Parameter(torch.tensor([2.0])), torch.zeros(())
    opt = SAM(torch.optim.SGD([p], lr=0.1), rho=1.0)

    def closure():
        opt.zero_grad()
        loss = p.square().sum()
        loss.backward()
        return place.copy_(loss.detach())

    loss = opt.step(closure)
    assert loss.item() == 4.0
    assert place.item() == 9.0
    assert not loss.requires_grad


def test_it_works_inside_no_grad():
    model = make_model()
    opt = SAM(BASES["sgd"](model.parameters()))
    with torch.no_grad():
        assert opt.step(closure_for(model, opt)) > 0


def test_groups_state_and_defaults_are_the_bases():
    model = make_model()
    base = BASES["adam"](model.parameters())
    opt = SAM(base, rho=0.2)
    opt.step(closure_for(model, opt))
    for _ in range(2):
        assert opt.param_groups is base.param_groups
        assert opt.state is base.state
        assert len(opt.state) == len(list(model.parameters()))
        assert opt.defaults is base.defaults
        base.load_state_dict(opt.state_dict())  # makes new groups and a new state


def test_schedulers_reach_the_base_and_find_its_defaults():
    model = make_model()
    base = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    opt = SAM(base)
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=1.0, total_steps=10)
    rates = []
    for step in range(9):
        opt.step(closure_for(model, opt, step))
        schedule.step()
        rates.append((base.param_groups[0]["lr"], base.param_groups[0]["momentum"]))
    assert len(set(rates)) == 9
    loaded = SAM(torch.optim.SGD(make_model().parameters(), lr=5.0, momentum=0.9))
    loaded.load_state_dict(opt.state_dict())
    assert loaded.base.param_groups[0]["lr"] == rates[-1][0]


@pytest.mark.parametrize("through", ["wrapper", "base"])
def test_a_group_added_later_trains_with_the_settings(through):
    model, head = make_model(), nn.Linear(3, 3)
    opt = SAM(BASES["sgd"](model.parameters()), rho=0.2)
    (opt if through == "wrapper" else opt.base).add_param_group({"params": list(head.parameters())})
    assert opt.param_groups[1]["rho"] == 0.2
    before = head.weight.detach().clone()
    opt.step(closure_for(nn.Sequential(model, head), opt))
    assert not torch.equal(head.weight, before)


def test_a_bare_bases_checkpoint_can_be_continued_with_sam():
    model = make_model()
    base = BASES["sgd"](two_groups(model))
    closure_for(model, base)()
    base.step()
    opt = SAM(BASES["sgd"](two_groups(model)), rho=0.2)
    opt.load_state_dict(base.state_dict())
    assert [group["rho"] for group in opt.param_groups] == [0.2, 0.2]
    assert len(opt.state) == len(base.state) > 0


def test_hooks_on_saving_and_loading_run():
    model = make_model()
    opt, ran = SAM(BASES["sgd"](model.parameters())), []
    opt.register_state_dict_post_hook(lambda *_: ran.append("save"))
    opt.register_load_state_dict_post_hook(lambda *_: ran.append("load"))
    opt.register_step_post_hook(lambda *_: ran.append("step"))
    opt.load_state_dict(opt.state_dict())
    opt.step(closure_for(model, opt))
    assert ran == ["save", "load", "step"]


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_copies_of_model_and_optimizer_train_alike(wrapper, duplicate):
    model = make_model()
    opt = WRAPPERS[wrapper](BASES["adam"](model.parameters()), model)
    opt.step(closure_for(model, opt))
    other, twin = duplicate((model, opt))
    for m, o in ((model, opt), (other, twin)):
        torch.manual_seed(3)
        o.step(closure_for(m, o, 1))
    assert twin.base is not opt.base
    assert twin.state is twin.base.state
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))


def test_repr_shows_the_settings_and_the_base():
    p = nn.Parameter(torch.ones(2, 2))
    assert repr(SAM(torch.optim.SGD([p], lr=0.5), rho=0.07)).startswith("SAM(rho=0.07, base=SGD (")
    assert "lr: 0.5" in repr(SAM(torch.optim.SGD([p], lr=0.5)))
    assert repr(ASAM(torch.optim.Adam([p]), rho=2.0)).startswith("ASAM(rho=2.0, eta=0.01, base=Adam (")


def test_zero_grad_reaches_the_parameters():
    p = nn.Parameter(torch.ones(2))
    opt = SAM(torch.optim.SGD([p], lr=0.1))
    p.grad = torch.ones(2)
    opt.zero_grad(set_to_none=False)
    assert p.grad.tolist() == [0, 0]
    opt.zero_grad()
    assert p.grad is None


def test_clipping_in_a_hook_of_the_base_sees_the_second_gradient():
    p = nn.Parameter(torch.tensor([3.0], dtype=torch.float64))
    base = torch.optim.SGD([p], lr=1.0)
    opt = SAM(base, rho=1.0)
    seen = []

    def clip(*_):
        seen.append(p.grad.item())
        nn.utils.clip_grad_norm_([p], 0.5)

    base.register_step_pre_hook(clip)

    def closure():
        opt.zero_grad()
        loss = p.square().sum()
        loss.backward()
        return loss

    opt.step(closure)
    assert seen == [8.0]
    assert p.item() == pytest.approx(2.5, abs=1e-6)


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")  # torch 2.11 with a GPU
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("what", ["module", "function"])
@pytest.mark.parametrize("given", [True, False])
def test_a_compiled_model_trains_as_it_does_uncompiled(backend, what, given):
    torch._dynamo.reset()
    ends = []
    for compiled in (False, True):
        model = make_model()
        del model[3]
        run = model
        if compiled:
            run = torch.compile(model if what == "module" else lambda x, model=model: model(x), backend=backend)
        opt = SAM(BASES["sgd"](model.parameters()), rho=0.5, model=model if given else None)
        for step in range(3):
            opt.step(closure_for(run, opt, step))
        ends.append(model.state_dict())
    assert all(torch.allclose(a, b) for a, b in zip(*(end.values() for end in ends), strict=True))
    assert ends[1]["1.num_batches_tracked"] == 3
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    torch._dynamo.utils.counters.clear()
