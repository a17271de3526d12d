"""LSAM against its formula written out: only the chosen parameters enter the norm and the perturbation."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from evenly.errors import EvenlyError
from evenly.optim import LSAM, SAM


@pytest.mark.parametrize("seed", range(30))
def test_equals_the_written_formula(draw_case, seed):
    case = draw_case(seed, rho=10 ** (-2 + seed % 5 / 2))
    params = dict(case.model.named_parameters())
    chosen = set(list(params)[-1 - seed % 3 :])

    def eps(w, g, settings):
        norm = sum(g[n].square().sum() for n in chosen).sqrt()
        return {n: settings[n]["rho"] * g[n] / norm if n in chosen else torch.zeros_like(g[n]) for n in w}

    w, losses = case.by_hand(eps)
    opt = LSAM(case.make_base(), (params[n] for n in params if n in chosen), rho=case.defaults["rho"])
    assert case.train(opt) == pytest.approx(losses, abs=1e-12)
    assert case.worst_difference(w) < 1e-12


def test_on_all_parameters_it_is_sam(draw_case):
    a, b = draw_case(5, rho=0.2), draw_case(5, rho=0.2)
    a.train(SAM(a.make_base(), rho=0.2))
    b.train(LSAM(b.make_base(), params=b.model.parameters(), rho=0.2))
    assert all(torch.equal(p, q) for p, q in zip(a.model.parameters(), b.model.parameters(), strict=True))


def test_the_other_parameters_stay_where_they_are_during_the_ascent():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    opt = LSAM(torch.optim.SGD(model.parameters(), lr=0.1), params=model[1].parameters(), rho=1.0)
    before = [p.detach().clone() for p in model.parameters()]
    model(torch.randn(5, 3)).square().sum().backward()
    opt.ascend()
    moved = [not torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True)]
    assert moved == [False, False, True, True]


def test_a_loss_that_misses_the_chosen_parameters_is_refused(closure_of):
    p, q = (nn.Parameter(torch.ones(2)) for _ in range(2))
    opt = LSAM(torch.optim.SGD([p, q], lr=0.1), [q])
    with pytest.raises(EvenlyError, match="no parameter chosen for the perturbation has a gradient"):
        opt.step(closure_of(opt, p.sum))
