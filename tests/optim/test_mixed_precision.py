"""GradScaler and autocast: a pass that overflows costs the step and nothing else."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.amp import GradScaler

from evenly.errors import EvenlyError
from evenly.optim import SAM, RandomPerturbation

BASES = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
    "adam": lambda params: torch.optim.Adam(params, lr=0.05),
    "fused": lambda params: torch.optim.AdamW(params, lr=0.05, fused=True),
}
PASSES = [
    (wrapper, n) for wrapper in ("sam", "asam", "lsam", "random") for n in (1, 2) if (wrapper, n) != ("random", 2)
]
passes = pytest.mark.parametrize(("wrapper", "overflow_in"), PASSES, indirect=["wrapper"])


class Trial:
    """A small problem whose gradient can be made infinite in a chosen run of the closure."""

    def __init__(self, wrapper, base="sgd", **options):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
        self.opt = wrapper(BASES[base](self.model.parameters()), self.model, **options)
        self.x = torch.randn(5, 3).double()
        self.runs = 0
        self.factor = float("inf")

    def step(self, scaler=None, overflow_in=None, seed=0, after=lambda: None):
        self.runs = 0

        def closure():
            self.runs += 1
            self.opt.zero_grad()
            loss = self.model(self.x).square().mean() * (self.factor if self.runs == overflow_in else 1.0)
            (loss if scaler is None else scaler.scale(loss)).backward()
            after()
            return loss

        torch.manual_seed(seed)
        return self.opt.step(closure, scaler=scaler)

    def snapshot(self):
        return copy.deepcopy([[p.detach() for p in self.model.parameters()], self.opt.state_dict()["state"]])


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("enabled", [True, False])
def test_a_scaled_run_is_the_unscaled_one(wrapper, base, enabled):
    plain, scaled = Trial(wrapper, base), Trial(wrapper, base)
    scaler = GradScaler("cpu", init_scale=2.0**10, enabled=enabled)
    for step in range(4):
        loss = plain.step(seed=step)
        scaled_loss = scaled.step(scaler, seed=step)
        assert scaled_loss.item() == pytest.approx(loss.item(), abs=1e-12)
        assert not scaled_loss.requires_grad
        scaler.update()
    for p, q in zip(plain.model.parameters(), scaled.model.parameters(), strict=True):
        assert torch.allclose(p, q, rtol=0, atol=1e-12)


@passes
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("factor", [float("inf"), float("nan")])
def test_an_overflow_in_either_pass_skips_the_step_and_lowers_the_scale(wrapper, base, overflow_in, factor):
    trial = Trial(wrapper, base)
    trial.factor = factor
    scaler = GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    for _ in range(2):  # so that there is momentum to lose
        trial.step(scaler)
        scaler.update()
    before = trial.snapshot()
    trial.step(scaler, overflow_in=overflow_in)
    scaler.update()
    assert trial.runs == overflow_in
    assert same(trial.snapshot(), before)
    assert scaler.get_scale() == 512.0
    assert not trial.opt.ascended
    trial.step(scaler)
    scaler.update()
    assert not same(trial.snapshot(), before)
    assert all(p.isfinite().all() for p in trial.model.parameters())
    assert scaler.get_scale() == 512.0


@pytest.mark.parametrize("wrapper", ["lsam"], indirect=True)
def test_a_single_infinite_element_outside_lsams_layer_skips_too(wrapper):
    trial = Trial(wrapper)
    before = trial.snapshot()
    scaler = GradScaler("cpu", init_scale=1024.0)
    first = trial.model[0].weight
    handle = first.register_hook(lambda g: g.index_fill(0, torch.tensor(1), float("inf")))
    trial.step(scaler)
    handle.remove()
    scaler.update()
    assert trial.runs == 1
    assert scaler.get_scale() == 512.0
    assert same(trial.snapshot()[0], before[0])


@passes
def test_check_finite_names_the_pass_and_keeps_the_weights(wrapper, overflow_in):
    trial = Trial(wrapper, check_finite=True)
    trial.step()
    before = trial.snapshot()
    name = "only" if isinstance(trial.opt, RandomPerturbation) else ("first", "second")[overflow_in - 1]
    with pytest.raises(EvenlyError, match=f"the {name} pass is not finite"):
        trial.step(overflow_in=overflow_in)
    assert same(trial.snapshot(), before)
    trial.step()


@pytest.mark.parametrize("wrapper", ["sam"], indirect=True)
def test_without_check_finite_nothing_is_checked(wrapper):
    trial = Trial(wrapper)
    trial.step(overflow_in=1)
    assert trial.runs == 2


@pytest.mark.parametrize("fused", [False, True])
def test_a_hook_that_clips_sees_unscaled_gradients(wrapper, fused):
    norms, trials = [], []
    for scale in (1.0, 1024.0):
        trial = Trial(wrapper, "fused" if fused else "sgd")
        trial.opt.base.register_step_pre_hook(
            lambda *_, trial=trial: norms.append(nn.utils.clip_grad_norm_(trial.model.parameters(), 0.1).item())
        )
        trial.step(GradScaler("cpu", init_scale=scale))
        trials.append(trial)
    assert norms[1] == pytest.approx(norms[0], rel=1e-4)
    for p, q in zip(*(trial.model.parameters() for trial in trials), strict=True):
        torch.testing.assert_close(p, q)


def test_unscaling_in_the_closure_is_refused(wrapper):
    trial, scaler = Trial(wrapper), GradScaler("cpu")
    with pytest.raises((EvenlyError, RuntimeError), match="unscale_"):
        trial.step(scaler, after=lambda: scaler.unscale_(trial.opt))
    assert not trial.opt.ascended


def test_autocast_around_whole_steps_sees_the_weights_move(closure_of):
    """Autocast keeps its half-precision copies of the weights until its outermost region ends."""
    ends = []
    for around in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
        opt = SAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=2.0)
        x = torch.randn(5, 3)

        def loss(model=model, x=x):
            with torch.autocast("cpu", torch.bfloat16):
                return model(x).float().square().mean()

        with torch.autocast("cpu", torch.bfloat16) if around else nullcontext():
            for _ in range(2):
                opt.step(closure_of(opt, loss))
        ends.append([p.detach() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
