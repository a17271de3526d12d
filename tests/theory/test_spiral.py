"""Batched training of the disentangled network against plain autograd loops in float64."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import evenly
from evenly import EvenlyError
from evenly.data.spiral import SpiralDistribution, draw
from evenly.randomness import generator
from evenly.theory import spiral
from evenly.theory.disentangled import phantom_of

H, N, M, EPOCHS = 6, 14, 9, 3
RUNS: list[dict[str, Any]] = [
    {"seed": 3, "rho": 0.0},
    {"seed": 3, "rho": 1.5},
    {"seed": 4, "rho": 0.3, "lr": 0.3},
    {"seed": 4, "intervention": spiral.Intervention("importance", 2.0)},
    {"seed": 5, "intervention": spiral.Intervention("learning-rate", 0.5), "lr": 0.2},
    {"seed": 6, "intervention": spiral.Intervention("both", 1.7)},
    {"seed": 6, "rho": 0.8, "batch_size": 14},
    {"seed": 7, "rho": 0.2, "batch_size": 4, "lr": 0.02},
]
PLAIN = {"rho": 0.0, "lr": 0.1, "intervention": spiral.Intervention(), "batch_size": 5}


def examples(seeds: list[int], dtype: torch.dtype = torch.float64) -> tuple[Any, Any]:
    return draw(SpiralDistribution(label_noise=0.1), seeds, n=N, held_out=M, dtype=dtype)


@pytest.fixture(scope="module")
def path() -> spiral.Trajectory:
    """All runs in one call."""
    settings: dict[str, Any] = {name: [(PLAIN | run)[name] for run in RUNS] for name in PLAIN}
    seeds = [run["seed"] for run in RUNS]
    start = spiral.initial(seeds, hidden=H, dtype=torch.float64)
    return spiral.train(*examples(seeds), seeds=seeds, start=start, epochs=EPOCHS, **settings)


class Plain(nn.Module):
    """The network of Appendix B and Section 5.1, layer by layer."""

    def __init__(self, network: spiral.Networks, run: int) -> None:
        super().__init__()
        linear, norm = nn.Linear, nn.LayerNorm
        self.phi = nn.Sequential(linear(4, H), norm(H), nn.ReLU(), linear(H, H), norm(H), nn.ReLU(), linear(H, 1))
        self.phi = self.phi.double()
        self.v = nn.Parameter(network.v[run].clone())
        with torch.no_grad():
            for layer, number in ((0, 1), (3, 2), (6, 3)):
                self.phi[layer].weight.copy_(getattr(network, f"weight{number}")[run].T)
                self.phi[layer].bias.copy_(getattr(network, f"bias{number}")[run, 0])

    def representation(self, x: Tensor) -> Tensor:
        nothing = torch.zeros_like(x[:, :2])
        parts = torch.cat([x[:, :2], nothing], 1), torch.cat([nothing, x[:, 2:]], 1)
        return torch.cat([self.phi(part) for part in parts], 1)

    def parameters_of(self) -> list[Tensor]:
        """In the order and shapes of `Networks`."""
        ordered = []
        for layer in (0, 3):
            linear, norm = self.phi[layer], self.phi[layer + 1]
            ordered += [linear.weight.T, linear.bias[None], norm.weight[None], norm.bias[None]]
        return [*ordered, self.phi[6].weight.T, self.phi[6].bias[None], self.v]


def loop(run: int) -> tuple[Plain, list[tuple[Tensor, Tensor]], list[list[Tensor]]]:
    """One run by autograd, a step at a time: the network, (v, v~) of each step, what is recorded at each epoch."""
    setting = PLAIN | RUNS[run]
    ((x,), (y,)), ((x_test,), (y_test,)) = examples([setting["seed"]])
    net = Plain(spiral.initial([setting["seed"]], hidden=H, dtype=torch.float64), 0)
    effect = setting["intervention"].effect
    v_star = torch.tensor([1.0, setting["intervention"].v_hard], dtype=torch.float64)
    order = generator(setting["seed"], "order of the spiral")
    steps, records = [], []

    def record() -> None:
        with torch.no_grad():
            phi = net.representation(x_test)
            wrong = [(answer.sign() != y_test).double().mean() for answer in (*phi.T, phi @ net.v)]
            records.append([*wrong, net.representation(x), net.v.clone()])

    record()
    for _ in range(EPOCHS):
        for batch in torch.randperm(N, generator=order).split(setting["batch_size"]):
            x_b, y_b = x[batch], y[batch]
            phi = net.representation(x_b)
            loss = F.softplus(-y_b * (phi @ net.v)).mean()
            (ascent,) = torch.autograd.grad(loss, net.v, retain_graph=True)
            phantom = (net.v + setting["rho"] * ascent / ascent.norm()).detach()
            steps.append((net.v.detach().clone(), phantom))
            net.zero_grad()
            if effect == "none":
                at_phantom = phantom.clone().requires_grad_()
                F.softplus(-y_b * (phi @ at_phantom)).mean().backward()
                net.v.grad = at_phantom.grad
            else:
                # eqs 10-12: lambda at one point, the gradient of the features weighted by another
                importance, rates = net.v.detach(), net.v.detach()
                if effect in ("importance", "both"):
                    importance = v_star
                if effect in ("learning-rate", "both"):
                    rates = v_star
                weight = torch.sigmoid(-y_b * (phi.detach() @ importance))
                (-y_b * weight * (phi @ rates)).mean().backward()
                net.v.grad = ascent
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter.sub_(setting["lr"] * parameter.grad)
        record()
    return net, steps, records


@pytest.mark.parametrize("run", range(len(RUNS)), ids=[str(run) for run in RUNS])
def test_every_run_of_a_batch_is_the_run_of_a_plain_loop(path: spiral.Trajectory, run: int):
    net, steps, records = loop(run)
    exact = {"rtol": 0, "atol": 1e-12}
    for name, result, expected in zip(path.networks._fields, path.networks, net.parameters_of(), strict=True):
        torch.testing.assert_close(result[run], expected.detach(), msg=lambda m, name=name: f"{name}: {m}", **exact)
    taken = len(steps)
    for result, expected in zip((path.real, path.phantom), zip(*steps, strict=True), strict=True):
        torch.testing.assert_close(result[:taken, run], torch.stack(expected), **exact)
        assert bool(result[taken:, run].isnan().all())
    assert path.epochs.tolist() == [0, 1, 2, 3]
    columns = (path.easy_error, path.hard_error, path.test_error, path.features, path.v)
    for result, expected in zip(columns, zip(*records, strict=True), strict=True):
        torch.testing.assert_close(result[:, run], torch.stack(expected), **exact)
    assert (float(path.rho[run]), int(path.batch_size[run])) == tuple(
        (PLAIN | RUNS[run])[name] for name in ("rho", "batch_size")
    )


def test_the_step_is_that_of_the_optimizer_evenly_lsam(path: spiral.Trajectory):
    """Run 1 again, by `evenly.LSAM` around torch's SGD on the module."""
    ((x,), (y,)), _ = examples([3])
    net = spiral.initial([3], hidden=H, dtype=torch.float64).module(0)
    optimizer = evenly.LSAM(torch.optim.SGD(net.parameters(), lr=0.1), params=[net.v], rho=1.5)
    order = generator(3, "order of the spiral")
    for _ in range(EPOCHS):
        for batch in torch.randperm(N, generator=order).split(5):

            def closure(x: Tensor = x[batch], y: Tensor = y[batch]) -> Tensor:
                optimizer.zero_grad()
                loss = F.softplus(-y * net(x)).mean()
                loss.backward()
                return loss

            optimizer.step(closure)
    for result, expected in zip(path.networks, net.parameters(), strict=True):
        torch.testing.assert_close(result[1], expected[0].detach(), rtol=0, atol=1e-10)


def test_with_all_weights_perturbed_the_step_is_that_of_the_optimizer_evenly_sam():
    """Three runs of one call, one of them SGD, each by `evenly.SAM` around torch's SGD on the module."""
    seeds, radii = [3, 4, 4], [0.5, 0.0, 0.2]
    sets = examples(seeds)
    start = spiral.initial(seeds, hidden=H, dtype=torch.float64)
    path = spiral.train(*sets, seeds=seeds, rho=radii, lr=0.1, epochs=2, start=start, perturb="all")
    for run, (seed, rho) in enumerate(zip(seeds, radii, strict=True)):
        x, y = (part[run] for part in sets[0])
        net = start.module(run)
        base = torch.optim.SGD(net.parameters(), lr=0.1)
        optimizer = evenly.SAM(base, rho=rho) if rho else base
        order = generator(seed, "order of the spiral")
        for batch in [part for _ in range(2) for part in torch.randperm(N, generator=order).split(5)]:

            def closure(net: nn.Module = net, x: Tensor = x[batch], y: Tensor = y[batch]) -> Tensor:
                net.zero_grad()
                loss = F.softplus(-y * net(x)).mean()
                loss.backward()
                return loss

            optimizer.step(closure)
        for result, expected in zip(path.networks, net.parameters(), strict=True):
            torch.testing.assert_close(result[run], expected[0].detach(), rtol=0, atol=1e-10)
    assert torch.equal(path.real[:, 1], path.phantom[:, 1])


def test_the_module_is_the_network(path: spiral.Trajectory):
    (x, _), _ = examples([3, 4])
    start = spiral.initial([3, 4], hidden=H, dtype=torch.float64)
    plain, module = Plain(start, 1), start.module(1)
    torch.testing.assert_close(module.representation(x[1]), plain.representation(x[1]), rtol=0, atol=1e-13)
    torch.testing.assert_close(module(x[1]), plain.representation(x[1]) @ plain.v, rtol=0, atol=1e-13)
    torch.testing.assert_close(spiral.representation(start, x)[1], plain.representation(x[1]), rtol=0, atol=1e-13)
    assert sum(p.numel() for p in module.parameters()) == sum(p.numel() for p in plain.parameters())
    module.v.data += 1
    assert bool((start.v == 1).all())


def test_networks_start_as_torch_s_layers_do():
    start = spiral.initial([0, 1, 0])
    assert (start.weight1.shape, start.weight2.shape, start.weight3.shape) == ((3, 4, 100), (3, 100, 100), (3, 100, 1))
    for layer, inputs in ((1, 4), (2, 100), (3, 100)):
        drawn = torch.cat([start._asdict()[f"{part}{layer}"].flatten() for part in ("weight", "bias")]) * inputs**0.5
        spread = 5 / math.sqrt(2 * len(drawn) / 3)  # two of the three runs are the same
        assert drawn.abs().max() <= 1
        assert abs(drawn.mean()) < spread * 3**-0.5
        assert abs(drawn.square().mean() - 1 / 3) < spread * (4 / 45) ** 0.5
    for name, value in (("gain1", 1), ("gain2", 1), ("v", 1), ("shift1", 0), ("shift2", 0)):
        assert bool((start._asdict()[name] == value).all())
    assert torch.equal(start.weight2[0], start.weight2[2])
    assert not torch.equal(start.weight2[0], start.weight2[1])


def test_the_default_start_comes_from_the_seeds_and_the_same_seed_gives_the_same_bits():
    state = torch.get_rng_state()
    sets = examples([8, 9], torch.float32)
    path = spiral.train(*sets, seeds=[8, 9], rho=0.5, epochs=2)
    again = spiral.train(*sets, seeds=[8, 9], rho=0.5, epochs=2, start=spiral.initial([8, 9]))
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(path.networks, again.networks, strict=True))
    assert torch.equal(path.features, again.features)
    assert path.networks.weight1.shape == (2, 4, 100)
    assert path.networks.v.dtype == torch.float32


def test_recording_less_often_changes_nothing_else():
    sets = examples([8])
    full, some = (spiral.train(*sets, seeds=[8], epochs=5, every=every) for every in (1, 3))
    assert some.epochs.tolist() == [0, 3, 5]
    assert torch.equal(some.features, full.features[[0, 3, 5]])
    assert torch.equal(some.real, full.real)


def test_features_do_not_depend_on_the_size_of_chunks(monkeypatch: pytest.MonkeyPatch):
    (x, _), _ = examples([1, 2, 3])
    start = spiral.initial([1, 2, 3], dtype=torch.float64)
    expected = spiral.representation(start, x)
    for size in (1, 2 * 2 * N * 100, 10**9):
        monkeypatch.setattr(spiral, "CHUNK", size)
        torch.testing.assert_close(spiral._features(start, x), expected, rtol=0, atol=1e-13)


def test_importance_weights_are_the_factors_of_the_gradient():
    """dL/dphi_i = -y_i lambda_i v / N, at v and at the phantom, which is rho away along the gradient."""
    draws = torch.Generator().manual_seed(0)
    v, phi = (torch.randn(*shape, generator=draws, dtype=torch.float64) for shape in ((3, 2), (3, 7, 2)))
    y = torch.randint(0, 2, (3, 7), generator=draws) * 2.0 - 1
    rho = torch.tensor([0.0, 0.5, 2.0], dtype=torch.float64)
    for s in range(3):
        leaf = v[s].clone().requires_grad_()
        (ascent,) = torch.autograd.grad(F.softplus(-y[s] * (phi[s] @ leaf)).mean(), leaf)
        for point, result in (
            (v[s], spiral.importance_weights(v, phi, y)),
            (v[s] + rho[s] * ascent / ascent.norm(), spiral.importance_weights(v, phi, y, rho)),
        ):
            features = phi[s].clone().requires_grad_()
            (gradient,) = torch.autograd.grad(F.softplus(-y[s] * (features @ point)).mean(), features)
            by_weights = -y[s, :, None] * result[s, :, None] * point / 7
            torch.testing.assert_close(by_weights, gradient, rtol=1e-10, atol=1e-14)


def test_without_a_gradient_the_phantom_is_the_real_parameter():
    v, y = torch.ones(1, 2), torch.ones(1, 3)
    assert spiral.importance_weights(v, torch.zeros(1, 3, 2), y, 1.0).tolist() == [[0.5] * 3]
    small = 1e-30 * torch.tensor([-3.0, 4.0]).expand(1, 3, 2)  # its square is 0 in float32
    phantom = phantom_of(v, small.mT, y, torch.full((1,), 0.5))
    assert phantom.tolist() == [pytest.approx([1.3, 0.6], rel=1e-6)]


def test_phantom_importance_is_that_of_each_batch(path: spiral.Trajectory):
    weights = path.importance(phantom=True)
    assert weights.shape == path.importance().shape == (EPOCHS + 1, len(RUNS), N)
    for run, setting in enumerate(RUNS):
        size = (PLAIN | setting)["batch_size"]
        for epoch in (0, EPOCHS):
            v, phi, y = path.v[epoch, run], path.features[epoch, run], path.labels[run]
            real = torch.sigmoid(-y * (phi @ v))
            torch.testing.assert_close(path.importance()[epoch, run], real, rtol=1e-12, atol=0)
            for batch in torch.arange(N).split(size):
                ascent = (-y[batch] * real[batch]) @ phi[batch]
                phantom = v + (PLAIN | setting)["rho"] * ascent / ascent.norm()
                expected = torch.sigmoid(-y[batch] * (phi[batch] @ phantom))
                torch.testing.assert_close(weights[epoch, run, batch], expected, rtol=1e-10, atol=0)


def test_gini_is_half_the_relative_mean_difference():
    weights = torch.rand(3, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64) ** 4
    differences = (weights[:, :, None] - weights[:, None]).abs().mean((1, 2))
    torch.testing.assert_close(spiral.gini(weights), differences / (2 * weights.mean(1)), rtol=1e-12, atol=0)
    assert float(spiral.gini(torch.ones(9))) == pytest.approx(0, abs=1e-6)
    assert float(spiral.gini(torch.tensor([0.0, 0, 0, 5]))) == pytest.approx(0.75)


def test_ratios_and_rates_are_read_off_the_steps(path: spiral.Trajectory):
    for run in range(len(RUNS)):
        _, steps, _ = loop(run)
        real, phantom = (torch.stack(part) for part in zip(*steps, strict=True))
        taken = len(steps)
        assert float(path.real_ratio[run]) == pytest.approx(float(real[:, 1].mean() / real[:, 0].mean()), rel=1e-10)
        assert float(path.phantom_ratio[run]) == pytest.approx(
            float(phantom[:, 1].mean() / phantom[:, 0].mean()), rel=1e-10
        )
        middle = (phantom[:, 1] / phantom[:, 0]).sort().values[(taken - 1) // 2]
        assert float(path.median_ratio[run]) == pytest.approx(float(middle), rel=1e-10)
        torch.testing.assert_close(path.rate_factors[:taken, run], phantom / real, rtol=1e-10, atol=0)
        for result, v in zip(path.hard_shares, (real, phantom), strict=True):
            torch.testing.assert_close(result[:taken, run], v[:, 1] / (v[:, 0] + v[:, 1]), rtol=1e-9, atol=0)
    torch.testing.assert_close(path.contributions[1, 2, :, 1], path.labels[2] * path.features[1, 2, :, 1])


def test_effects_are_the_five_trainings_with_lsam_s_median_ratio():
    seeds, rho, options = [1, 2, 3], 0.75, {"epochs": 3, "lr": 0.05, "batch_size": 7}
    train_set, held_out = draw(SpiralDistribution(), seeds, n=28, held_out=200)
    result = spiral.effects(train_set, held_out, seeds=seeds, rho=rho, **options)
    lsam = spiral.train(train_set, held_out, seeds=seeds, rho=rho, **options)
    torch.testing.assert_close(result.v_hard, lsam.median_ratio, rtol=1e-4, atol=0)
    assert list(result.hard_error) == ["sgd", "lsam", "importance", "learning-rate", "both"]
    for name, error in result.hard_error.items():
        setting: dict[str, Any] = {"rho": rho} if name == "lsam" else {}
        if name not in ("sgd", "lsam"):
            setting = {"intervention": [spiral.Intervention(name, v) for v in result.v_hard.tolist()]}
        alone = spiral.train(train_set, held_out, seeds=seeds, **setting, **options)
        torch.testing.assert_close(error, alone.hard_error[-1], rtol=0, atol=0.0101)  # rounding may turn two points


def test_what_is_recovered_is_a_share_of_the_gain_in_mean_error():
    errors = {
        "sgd": [0.2, 0.4],
        "lsam": [0.1, 0.1],
        "importance": [0.3, 0.1],
        "learning-rate": [0.3, 0.3],
        "both": [0, 0],
    }
    table = {name: torch.tensor(error, dtype=torch.float64) for name, error in errors.items()}
    recovered = spiral.Effects(torch.ones(2), table).recovered
    assert recovered == pytest.approx({"importance": 0.5, "learning-rate": 0.0, "both": 1.5})
    assert math.isnan(spiral.Effects(torch.ones(2), table | {"lsam": table["sgd"]}).recovered["both"])


X, Y = torch.ones(2, N, 4), torch.ones(2, N)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"examples": (X[..., :3], Y)}, "examples must have shapes (S, n, 4) and (S, n), got (2, 14, 3) and (2, 14)"),
        ({"held_out": (X, Y[:, 1:])}, "held_out must have shapes (S, n, 4) and (S, n), got (2, 14, 4) and (2, 13)"),
        ({"seeds": [0]}, "examples must have 1 sets, one for each seed, got 2"),
        ({"examples": (X / 0, Y)}, "examples must be finite floating-point numbers; correct or drop the others"),
        ({"examples": (X, 0 * Y)}, "examples must have labels -1 and +1, got 0"),
        ({"seeds": []}, "seeds is empty; give one seed for each run"),
        ({"rho": [1.0]}, "rho has 1 values for 2 runs; give one, or one per run"),
        ({"rho": -1.0}, "rho must be at least 0, got -1.0"),
        (
            {"rho": 1.0, "intervention": spiral.Intervention("both")},
            "rho must be 0 with the effect 'both', as interventions are on SGD, got 1.0",
        ),
        ({"lr": 0.0}, "lr must be above 0, got 0.0"),
        ({"batch_size": 15}, "batch_size must be at most 14, the number of examples, got 15"),
        ({"batch_size": 2.5}, "batch_size must be a whole number or a list, got 2.5"),
        ({"start": spiral.initial([0])}, "start must have 2 networks, one for each run, got 1"),
        ({"lr": 1e30}, "the weights are not finite after epoch 1; train with an lr below 1e+30"),
    ],
)
def test_what_cannot_be_trained_is_refused(change, message):
    settings = {"examples": (X, Y), "held_out": (X, Y), "seeds": [0, 1], "epochs": 1} | change
    with pytest.raises(EvenlyError, match=f"^{re.escape(message)}$"):
        spiral.train(settings.pop("examples"), settings.pop("held_out"), **settings)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: spiral.gini(torch.tensor([1.0, -1.0])), "weights must be at least 0, got -1"),
        (lambda: spiral.Disentangled(spiral.initial([0, 1])), "a module is one network, got 2; take one of them"),
    ],
)
def test_other_refusals(call, message):
    with pytest.raises(EvenlyError, match=message):
        call()
