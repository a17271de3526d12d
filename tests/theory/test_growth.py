"""The theorems on the growth of features against the noise-free dynamics and autograd."""

import math
import random

import pytest
import torch
import torch.nn.functional as F

from evenly.errors import EvenlyError
from evenly.theory import growth


def uniform(draw, low, high):
    """Log-uniform."""
    return math.exp(draw.uniform(math.log(low), math.log(high)))


# Theorems 3.2, 3.3 and 2.2: times


def test_learning_time_by_hand():
    """Eqs 28 and 54; eqs 5 and 8 lack alpha."""
    assert growth.learning_time(0.1, 2.0, 0.1, alpha=0.5) == pytest.approx(1 / (0.1 * 0.5 * 8 * 0.1) + 3)
    assert growth.learning_time(0.1, 2.0, 0.1, alpha=0.5, form="printed") == pytest.approx(1 / (0.1 * 8 * 0.1) + 3)
    sam = growth.learning_time(0.1, 2.0, 0.1, alpha=0.5, rho=0.05)
    assert sam == pytest.approx(0.1 / (0.1 * 0.5 * 8 * 0.05**2) + 0.1**2 / 0.05**2 * 3)
    printed = growth.learning_time(0.1, 2.0, 0.1, alpha=0.5, rho=0.05, form="printed")
    assert printed == pytest.approx(0.1 / (0.1 * 8 * 0.05**2) + 0.1**2 / 0.05**2 * 3)


def test_spurious_learning_time_by_hand():
    assert growth.spurious_learning_time(0.1, 2.0, 0.1, 0.75, form="stated") == pytest.approx(1 / (0.1 * 8 * 0.1))
    proved = growth.spurious_learning_time(0.1, 2.0, 0.1, 0.75)
    assert proved == pytest.approx(1 / (0.1 * 8 * 0.5 * 0.1) + 0.75 / 0.5 * 3)


def test_learning_times_are_within_their_bounds():
    """All filters ahead of rho, J = 3, the real derivatives and the early ones, GD and SAM."""
    draw = random.Random(4)
    generator = torch.Generator().manual_seed(4)
    for _ in range(8):
        beta, alpha, lr = draw.uniform(0.8, 1.5), draw.uniform(0.6, 1), draw.uniform(0.1, 0.3)
        rho = draw.choice([0.0, 0.02])
        z_e, z_d = 0.04 + 0.06 * torch.rand(2, 3, generator=generator, dtype=torch.float64)
        data = {"beta_strong": beta, "beta_weak": 0.3 * beta, "alpha": alpha, "lr": lr, "rho": rho}
        for early in (True, False):
            path = growth.two_features(z_e, z_d, steps=600, early=early, **data)
            first, learned = int(z_e.argmax()), 0.4 / beta
            t = int((path.strong[:, first] >= learned).nonzero()[0])
            # the margin of the examples with the feature is largest at the end, where the derivative is smallest
            margin = beta**3 * (path.strong[t] ** 3).sum() + (0.3 * beta) ** 3 * (path.weak[t] ** 3).sum()
            derivative = (0.5, 0.5) if early else (float(torch.sigmoid(-margin)), 0.5)
            bounds = growth.learning_time_bounds(lr, beta, float(z_e.max()), alpha, rho, learned, derivative)
            assert bounds.lower <= t <= bounds.upper
            assert early is False or rho > 0 or bounds.upper <= 1.2 * bounds.lower + 1
    default = growth.learning_time_bounds(0.1, 2.0, 0.1, 0.5)
    assert default == pytest.approx(growth.passage_time_bounds(0.1, 0.5, 0.6, 0.6))
    halves = growth.learning_time_bounds(0.1, 2.0, 0.1, 0.5, derivative=(0.25, 1.0))
    assert halves == pytest.approx(growth.passage_time_bounds(0.1, 0.5, 0.3, 1.2))


def test_which_feature_is_learned_first():
    """Theorem 2.2 against the noise-free dynamics, both features starting alike."""
    draw, seen = random.Random(5), set()
    for _ in range(60):
        beta_s, beta_c, alpha = draw.uniform(0.5, 1.5), draw.uniform(0.5, 1.5), draw.uniform(0.55, 1)
        verdict = growth.first_learned(beta_s, beta_c, alpha)
        seen.add(verdict)
        start = torch.tensor([0.1], dtype=torch.float64)
        data = {"beta_strong": beta_s, "beta_weak": beta_c, "alpha": alpha, "otherwise": "opposite"}
        path = growth.two_features(start, start, lr=0.1, steps=20, early=True, **data)
        if verdict != "undecided":
            assert (path.strong[-1] > path.weak[-1]).item() == (verdict == "spurious")
    assert seen == {"spurious", "core", "undecided"}


# the steps and the noise-free dynamics against autograd


def sample(beta_e, beta_d, alpha, *, n=10, otherwise=0.0, d=6, noise=0.0, seed=0):
    """Patches (n, 3, d) with labels ±1 and the orthonormal features (2, d); noise orthogonal to both."""
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64)).Q.T
    y = torch.randint(0, 2, (n,), generator=generator).double() * 2 - 1
    s = torch.where(torch.arange(n) < round(alpha * n), y, otherwise * y)
    xi = noise * torch.randn(n, d - 2, generator=generator, dtype=torch.float64) @ basis[2:]
    return torch.stack([beta_e * s[:, None] * basis[0], beta_d * y[:, None] * basis[1], xi], 1), y, basis[:2]


def loss_of(w, x, y):
    return F.softplus(-y * ((x @ w.T) ** 3).sum((1, 2))).mean()


def gradient_of(w, x, y):
    w = w.detach().requires_grad_()
    return torch.autograd.grad(loss_of(w, x, y), w)[0]


def sam_gradient_of(w, x, y, rho):
    g = gradient_of(w, x, y)
    return gradient_of(w + rho * g / g.norm(), x, y)


def filters(v, J, scale, seed=0, d=6):
    return scale * torch.randn(J, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("otherwise", [0.0, -1.0])
def test_one_step_of_gd_and_sam(otherwise):
    """With noise orthogonal to the features: eqs 15, 16, 40, 42, 44, 45 (N) and Lemma D.1 (D)."""
    beta_e, beta_d, alpha, lr, rho = 1.3, 0.7, 0.8, 0.1, 0.05
    x, y, v = sample(beta_e, beta_d, alpha, otherwise=otherwise, noise=0.5)
    w = filters(v, 4, 0.5)
    s = torch.where(torch.arange(10) < 8, 1.0, otherwise).double()

    def pulls(w):
        share = torch.sigmoid(-y * ((x @ w.T) ** 3).sum((1, 2))).double()
        return (s * share).mean(), share.mean()

    g = gradient_of(w, x, y)
    rho_t = rho / g.norm()
    w_eps = w + rho_t * g
    for f, beta in ((0, beta_e), (1, beta_d)):
        z = w @ v[f]
        step = -lr * g @ v[f]
        assert torch.allclose(growth.feature_growth(z, beta, pulls(w)[f], lr), step, atol=1e-12)
        perturbed = growth.perturbed_alignment(z, beta, pulls(w)[f], rho_t)
        assert torch.allclose(perturbed, w_eps @ v[f], atol=1e-12)
        step = -lr * gradient_of(w_eps, x, y) @ v[f]
        ours = growth.feature_growth(z, beta, pulls(w)[f], lr, rho_t, pulls(w_eps)[f])
        assert torch.allclose(ours, step, atol=1e-12)
        early = 3 * lr * beta**3 * 0.5 * (z - 0.45 * beta**3 * z**2) ** 2
        assert torch.allclose(growth.feature_growth(z, beta, 0.5, lr, 0.3), early, atol=1e-12)


def test_the_ascent_takes_at_most_rho_and_never_adds():
    """Eqs 41 and 43 where all alignments are at least rho."""
    for seed in range(20):
        x, y, v = sample(1.2, 0.6, 0.7, noise=0.3, seed=seed)
        w, rho = filters(v, 3, 0.3, seed), 0.05
        w = w + (rho + torch.rand(3, 2, generator=torch.Generator().manual_seed(seed)).double() - w @ v.T) @ v
        g = gradient_of(w, x, y)
        perturbed = (w + rho * g / g.norm()) @ v.T
        assert ((w @ v.T - rho <= perturbed) & (perturbed <= w @ v.T)).all()


@pytest.mark.parametrize("rho", [0.0, 0.03])
@pytest.mark.parametrize(("otherwise", "s"), [("absent", 0.0), ("opposite", -1.0)])
def test_two_features_are_the_noise_free_network(otherwise, s, rho):
    x, y, v = sample(1.0, 0.6, 0.8, otherwise=s)
    w = filters(v, 5, 0.1)
    path = growth.two_features(
        w @ v[0], w @ v[1], beta_strong=1.0, beta_weak=0.6, alpha=0.8, lr=0.3, steps=150, rho=rho, otherwise=otherwise
    )
    for t in range(150):
        assert torch.allclose(w @ v.T, torch.stack([path.strong[t], path.weak[t]], 1), atol=1e-10)
        w = w - 0.3 * (sam_gradient_of(w, x, y, rho) if rho else gradient_of(w, x, y))
    assert path.largest.shape == (151, 2)
    assert path.largest[7].tolist() == [path.strong[7].max(), path.weak[7].max()]
    assert path.strong[-1].max() > 1 or s


def test_early_dynamics_keep_the_derivatives_at_one_half():
    z = torch.tensor([[0.3, -0.2], [0.4, 0.1]], dtype=torch.float64)
    for otherwise, pull in (("absent", 0.35), ("opposite", 0.2)):
        for rho in (0.0, 0.05):
            path = growth.two_features(
                *z, beta_strong=1.1, beta_weak=0.8, alpha=0.7, lr=0.2, steps=1, rho=rho, otherwise=otherwise, early=True
            )
            norm = 3 * torch.cat([1.1**3 * pull * z[0] ** 2, 0.8**3 * 0.5 * z[1] ** 2]).norm()
            strong = z[0] + growth.feature_growth(z[0], 1.1, pull, 0.2, rho / norm)
            weak = z[1] + growth.feature_growth(z[1], 0.8, 0.5, 0.2, rho / norm)
            assert torch.allclose(path.strong[1], strong, atol=1e-14)
            assert torch.allclose(path.weak[1], weak, atol=1e-14)


def test_nothing_moves_without_a_gradient():
    zero = torch.zeros(3, dtype=torch.float64)
    path = growth.two_features(zero, zero, beta_strong=1.0, beta_weak=0.5, alpha=0.9, lr=0.1, steps=2, rho=0.1)
    assert torch.equal(path.strong, torch.zeros(3, 3))


# Theorem 3.4


def test_sam_is_more_even_under_the_proofs_preconditions():
    """Eqs 60 and 62-64 in the proof's early phase, until the easy feature is learned: no violation in 60 starts."""
    generator, draw = torch.Generator().manual_seed(6), random.Random(6)
    for _ in range(60):
        beta_e, rho = draw.uniform(0.7, 1.3), draw.uniform(0.005, 0.03)
        alpha = draw.uniform(0.5, 1)
        beta_d = alpha ** (1 / 3) * beta_e * draw.uniform(0.1, 0.99)
        z_d = rho + 0.03 * torch.rand(5, generator=generator, dtype=torch.float64)
        z_e = rho + 0.03 * torch.rand(5, generator=generator, dtype=torch.float64)
        z_e[2] = z_d.max() + rho * draw.uniform(1.001, 2)
        data = {"beta_e": beta_e, "beta_d": beta_d, "alpha": alpha}
        assert growth.preconditions(z_e, z_d, rho=rho, **data).hold
        data = {"beta_strong": beta_e, "beta_weak": beta_d, "alpha": alpha, "lr": 0.1, "steps": 200, "early": True}
        gd, sam = (growth.two_features(z_e, z_d, rho=r, **data).largest for r in (0.0, rho))
        before = gd[:, 0] < 1 / beta_e
        gd, sam = gd[before][1:], sam[before][1:]
        assert growth.more_even(gd, sam).all()
        assert (sam <= gd).all()
        assert (rho + sam[:, 1] <= sam[:, 0]).all()


def test_more_even_is_equation_11():
    gd = torch.tensor([[3.0, 1.0], [3.0, 1.0], [3.0, 1.0]])
    sam = torch.tensor([[2.5, 1.0], [3.0, 1.0], [3.0, 0.5]])
    assert growth.more_even(gd, sam).tolist() == [True, False, False]


def test_preconditions_one_by_one():
    data = {"beta_e": 1.0, "beta_d": 0.2, "alpha": 0.9, "rho": 0.1}
    z_e, z_d = torch.tensor([0.1, 0.5]), torch.tensor([0.2, 0.3])
    checks = growth.preconditions(z_e, z_d, **data)
    assert checks == growth.Preconditions(True, True, True, 4, 4)
    assert checks.hold
    weak = growth.preconditions(z_e, z_d, **data | {"beta_d": 0.97})
    assert (weak.stronger, weak.hold) == (False, False)
    behind = growth.preconditions(z_d, z_e, **data)
    assert (behind.easy_ahead, behind.filters_ready, behind.hold) == (False, True, False)
    assert not growth.preconditions(torch.tensor([0.1, 0.35]), z_d, **data).easy_ahead
    unready = growth.preconditions(torch.tensor([0.09, 0.5]), z_d, **data)
    assert (unready.filters_ready, unready.ready, unready.hold) == (False, 3, False)
    assert not growth.preconditions(z_e, z_d, **data | {"rho": 0.0}).filters_ready


def test_the_proofs_preconditions_hold_at_no_normal_start():
    for seed in range(200):
        z = 0.1 / 50**0.5 * torch.randn(2, 40, generator=torch.Generator().manual_seed(seed))
        checks = growth.preconditions(z[0], z[1], beta_e=1.0, beta_d=0.2, alpha=0.9, rho=0.02)
        assert not checks.hold
        assert checks.ready < 40 < checks.total == 80
    assert growth.precondition_probability(40, 0.014, 1e-9) == pytest.approx(2**-80, rel=1e-4)
    assert growth.precondition_probability(40, 0.014, 0.02) < 2**-80


def test_the_probability_of_the_preconditions():
    z = 0.3 * torch.randn(100_000, 4, generator=torch.Generator().manual_seed(0))
    measured = (z >= 0.1).all(1).double().mean().item()
    assert growth.precondition_probability(2, 0.3, 0.1) == pytest.approx(measured, rel=0.05)


# Theorem 3.5


def off(a, b):
    """1 - cos of the angle, without cancellation."""
    a, b = a / a.norm(), b / b.norm()
    return float((a - b).square().sum() / 2)


def single_filters(count=25, seed=7):
    """Random data and small filters; SAM reaches up to 0.45 of the easy alignment, where eq. 96 still has a value."""
    draw = random.Random(seed)
    for case in range(count):
        beta_e, alpha = draw.uniform(0.5, 1.5), draw.choice([0.5, 0.8, 0.9, 1.0])
        beta_d = alpha ** (1 / 3) * beta_e * draw.uniform(0.2, 0.9)
        x, y, v = sample(beta_e, beta_d, alpha, seed=case)
        z_e = uniform(draw, 1e-4, 1e-2)
        z = torch.tensor([[z_e, z_e * draw.uniform(0.3, 1)]], dtype=torch.float64)
        data = {"beta_e": beta_e, "beta_d": beta_d, "alpha": alpha}
        yield data, z @ v, z[0].tolist(), x, y, v, z_e * draw.uniform(0.05, 0.45), case


def upsampled(k, data, case):
    return sample(data["beta_e"], k * data["beta_d"], data["alpha"], seed=case)[:2]


def test_the_corrected_factor_recovers_sams_direction_and_the_printed_one_is_worse_than_none():
    worst, cases = 0.0, 0
    for data, w, z, x, y, _, rho, case in single_filters():
        rho_t = rho / float(gradient_of(w, x, y).norm())
        assert rho_t == pytest.approx(rho / growth.one_filter_gradient_norm(*z, **data), rel=1e-5)
        sam = sam_gradient_of(w, x, y, rho)
        corrected = growth.upsampling_factor(*z, rho_t=rho_t, **data)
        printed = growth.upsampling_factor(*z, rho_t=rho_t, form="printed", **data)
        none, ours, theirs = (off(gradient_of(w, *upsampled(k, data, case)), sam) for k in (1.0, corrected, printed))
        assert corrected > 1
        assert ours < 1e-8
        assert theirs > none > 1e3 * ours
        worst, cases = max(worst, ours), cases + 1
    assert cases == 25
    print(f"\n1 - cos of the corrected factor: at most {worst:.1e}")


def test_the_printed_factor_is_exact_for_the_simplified_gradients_norm():
    for data, _, z, _, _, _, rho, _ in single_filters():
        simplified = growth.one_filter_gradient_norm(*z, derivative=1.0, **data)
        printed = growth.upsampling_factor(*z, rho_t=rho / simplified, form="printed", **data)
        real = growth.one_filter_gradient_norm(*z, **data)
        assert printed == pytest.approx(growth.upsampling_factor(*z, rho_t=rho / real, **data), rel=1e-12)


def test_where_the_printed_factor_has_no_value_the_corrected_one_still_recovers():
    data, w, z, x, y, _, _, case = next(iter(single_filters()))
    for reach in (0.7, 1.5):  # of the easy alignment; beyond 1 the ascent turns its sign
        rho = reach * z[0]
        rho_t = rho / float(gradient_of(w, x, y).norm())
        with pytest.raises(EvenlyError, match=r"eq\. 96 as printed has a root of -"):
            growth.upsampling_factor(*z, rho_t=rho_t, form="printed", **data)
        k = growth.upsampling_factor(*z, rho_t=rho_t, **data)
        assert off(gradient_of(w, *upsampled(k, data, case)), sam_gradient_of(w, x, y, rho)) < 1e-8


def test_other_derivatives():
    """Larger weights, alpha = 1, where all examples have the same derivative: exact with that one, up to its change."""
    data = {"beta_e": 1.0, "beta_d": 0.5, "alpha": 1.0}
    x, y, v = sample(1.0, 0.5, 1.0)
    z = [1.0, 0.6]
    w = torch.tensor([z], dtype=torch.float64) @ v
    rho_t = 0.1 / float(gradient_of(w, x, y).norm())
    derivative = float(torch.sigmoid(torch.tensor(-(1.0 + 0.5**3 * 0.6**3))))
    k = growth.upsampling_factor(*z, rho_t=rho_t, derivative=derivative, **data)
    sam = sam_gradient_of(w, x, y, 0.1)
    assert off(gradient_of(w, *sample(1.0, k * 0.5, 1.0)[:2]), sam) < 1e-12
    half = growth.upsampling_factor(*z, rho_t=rho_t, **data)
    assert off(gradient_of(w, *sample(1.0, half * 0.5, 1.0)[:2]), sam) > 1e-6


def test_with_forty_filters_no_single_factor_recovers_sams_direction():
    for seed in range(5):
        data = {"beta_e": 1.0, "beta_d": 0.6, "alpha": 0.9}
        x, y, v = sample(*data.values(), seed=seed)
        w = filters(v, 40, 1e-3, seed)
        sam = sam_gradient_of(w, x, y, 1e-3)

        def far(k, w=w, sam=sam, data=data, seed=seed):
            return off(gradient_of(w, *upsampled(k, data, seed)), sam)

        # 1 - cos has one valley in k: the gradient is a + k^3 b with a and b orthogonal and fixed
        low, high = 0.0, 10.0
        for _ in range(60):
            third = (high - low) / 3
            low, high = (low, high - third) if far(low + third) < far(high - third) else (low + third, high)
        assert 1e-3 < low < 9.9 or far(0.0) <= far(low)
        assert far(low) > 1e-3
        print(f"\n40 filters: 1 - cos is {far(low):.1e} at the best k, {low:.2f}, and {far(1.0):.1e} at k = 1", end="")


DATA = {"beta_e": 1.0, "beta_d": 0.5, "alpha": 1.0}
TWO = {"beta_strong": 1.0, "beta_weak": 0.5, "alpha": 0.9, "lr": 0.1, "steps": 1}
J3 = torch.ones(3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: growth.learning_time(0.1, 1.0, 0.1, rho=0.1), "0 <= rho < sigma_0 < 1/beta"),
        (lambda: growth.learning_time(0.1, 1.0, 1.5), "0 <= rho < sigma_0 < 1/beta"),
        (lambda: growth.spurious_learning_time(0.1, 1.0, 2.0, 0.9), "sigma_0 must be below 1/beta, 1, got 2"),
        (lambda: growth.learning_time_bounds(0.1, 1.0, 0.1, derivative=(0.5, 0.4)), "derivative must be"),
        (lambda: growth.two_features(J3, torch.ones(2), **TWO), r"z_strong and z_weak must both have shape \(J,\)"),
        (lambda: growth.more_even(torch.ones(3, 2), torch.ones(4, 2)), r"must both have shape \(..., 2\)"),
        (lambda: growth.upsampling_factor(1.0, 0.1, rho_t=1 / 3, form="printed", **DATA), "cancels <w, v_e> = 1"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(EvenlyError, match=message) as refused:
        call()
    assert "\n" not in str(refused.value)


def test_the_lemmas_are_found_here_too():
    assert all(hasattr(growth, name) for name in growth.__all__)
