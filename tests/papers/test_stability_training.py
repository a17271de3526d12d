"""The experiment in small: arms against loops by hand, one start for all, the contrastive loss against its sums."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from torch import Tensor

from evenly import EvenlyError
from evenly.papers.stability.coherence_in_training import (
    ARMS_OF_C_4,
    C_4,
    C_5,
    FIGURE_3,
    FIGURE_4_LEFT,
    FIGURE_4_MIDDLE,
    FIGURE_4_RIGHT,
    Arm,
    Outcome,
    Setting,
    Track,
    boolean_data,
    compare,
    contrastive_loss,
    network,
    train,
)
from evenly.randomness import generator

TINY = Setting(d=5, hidden=4, n=12, batch_size=5, lr=0.05, epochs=3)
RHO = 0.2


def by_hand(arm: Arm, setting: Setting, seed: int) -> list[Tensor]:
    """The weights after training, from gradients written out; batches of 5, 5 and 2."""
    x, y = boolean_data(setting, seed)
    W1, b1, W2, b2 = (w.detach().clone() for w in network(setting, seed).parameters())

    def gradient(weights: list[Tensor], batch: Tensor) -> list[Tensor]:
        W1, b1, W2, b2 = weights
        before = x[batch] @ W1.T + b1
        hidden = before.clamp(min=0)
        error = 2 * ((hidden @ W2.T + b2)[:, 0] - y[batch]) / len(batch)
        back = error[:, None] * W2 * (before > 0)
        return [back.T @ x[batch], back.sum(0), error[None] @ hidden, error.sum()[None]]

    weights = [W1, b1, W2, b2]
    for epoch in range(setting.epochs):
        order = torch.randperm(setting.n, generator=generator(seed, "order", epoch))
        for batch in order.split(setting.batch_size):
            g = gradient(weights, batch)
            if arm.optimizer == "sam":
                length = math.sqrt(sum(float((each**2).sum()) for each in g))
                g = gradient([w + arm.rho * each / length for w, each in zip(weights, g, strict=True)], batch)
            rate = setting.lr if arm.lr is None else arm.lr
            weights = [w - rate * each for w, each in zip(weights, g, strict=True)]
    return weights


@pytest.mark.parametrize("arm", [Arm(), Arm(lr=0.2), Arm("sam", rho=RHO)], ids=str)
def test_arms_are_their_updates(arm: Arm) -> None:
    track = train(arm, TINY, seed=4)
    for ours, wanted in zip(track.model.parameters(), by_hand(arm, TINY, 4), strict=True):
        torch.testing.assert_close(ours.detach(), wanted, rtol=1e-4, atol=1e-6)


def test_all_arms_have_one_start_and_part_ways() -> None:
    arms = (Arm(), Arm("random_perturbation", rho=RHO), Arm("sam", rho=RHO), Arm(contrast=0.5))
    outcome = compare(arms, TINY, seeds=[1, 2])
    for seed in (0, 1):
        rows = [outcome.tracks[arm][seed].history for arm in arms]
        assert all(row[0] == rows[0][0] for row in rows)
        assert len({row[-1]["sample_sharpness"] for row in rows}) == len(arms)
        assert [row["step"] for row in rows[0]] == [0, 1, 2, 3]
    first, second = outcome.tracks[arms[0]]
    assert first.history[0] != second.history[0]


def test_random_perturbations_are_as_long_as_sams() -> None:
    model = network(C_5)
    p = sum(w.numel() for w in model.parameters())
    assert p == 171
    optimizer = Arm("random_perturbation", rho=0.3).wrap(torch.optim.SGD(model.parameters(), lr=0.1))
    assert optimizer.param_groups[0]["sigma"] == pytest.approx(0.3 / math.sqrt(171))


def test_a_run_is_a_function_of_its_seed_and_leaves_the_random_state() -> None:
    runs = []
    for _ in range(2):
        torch.rand(1)  # the global state moves on between the runs
        before = torch.get_rng_state()
        runs.append(train(Arm("random_perturbation", rho=RHO), TINY, seed=5).history)
        assert torch.equal(before, torch.get_rng_state())
    assert runs[0] == runs[1]


def test_the_data_are_the_products_of_two_inputs() -> None:
    x, y = boolean_data(C_4, seed=3)
    assert x.shape == (500, 100)
    assert x.unique().tolist() == [-1, 1]
    assert abs(float(x.mean())) < 0.03
    assert torch.equal(y, x[:, 0] * x[:, 1])
    assert not torch.equal(x, boolean_data(C_4, seed=4)[0])


def test_the_contrastive_loss_is_its_sums() -> None:
    draw = torch.Generator().manual_seed(0)
    hidden, y = torch.randn(7, 3, generator=draw, dtype=torch.float64), torch.tensor([1, -1, 1, 1, -1, 0, 1])
    total, anchors = 0.0, 0
    z = [(h / h.norm()).tolist() for h in hidden]

    def similar(i: int, k: int) -> float:
        return math.exp(sum(a * b for a, b in zip(z[i], z[k], strict=True)) / 0.5)

    for i in range(7):
        partners = [k for k in range(7) if k != i and y[k] == y[i]]
        if partners:
            below = sum(similar(i, k) for k in range(7) if k != i)
            total += sum(-math.log(similar(i, k) / below) for k in partners) / len(partners)
            anchors += 1
    assert anchors == 6
    assert contrastive_loss(hidden, y, temperature=0.5).item() == pytest.approx(total / anchors, rel=1e-12)


def test_the_contrastive_loss_bears_silent_units_and_lonely_labels() -> None:
    hidden = torch.zeros(4, 3, requires_grad=True)
    loss = contrastive_loss(hidden, torch.tensor([1.0, 1.0, -1.0, -1.0]))
    loss.backward()
    assert loss.item() == pytest.approx(math.log(3), rel=1e-6)
    assert bool(hidden.grad.isfinite().all())  # type: ignore[union-attr]
    for y in (torch.tensor([1.0]), torch.tensor([1.0, -1.0])):
        assert contrastive_loss(torch.ones(len(y), 3), y).item() == 0


def test_contrast_pulls_the_activations_of_a_label_together() -> None:
    setting = Setting(d=5, hidden=8, n=16, batch_size=16, lr=0.1, epochs=60, every=60)
    x, y = boolean_data(setting, 0)
    after = [
        contrastive_loss(train(arm, setting, 0).model[:2](x), y).item()  # type: ignore[index]
        for arm in (Arm(), Arm(contrast=1.0))
    ]
    assert after[1] < after[0] - 0.3


def test_a_run_that_diverges_says_so_and_is_left_out_of_the_ratios() -> None:
    arms = (Arm(), Arm(lr=50.0))
    outcome = compare(arms, Setting(d=5, hidden=4, n=12, batch_size=4, lr=0.05, epochs=60, every=20), seeds=[0])
    assert [outcome.tracks[arm][0].diverged for arm in arms] == [False, True]
    calm, wild = outcome.summary()
    assert (calm["diverged"], wild["diverged"], wild["ratios"]) == (0, 1, [])
    assert math.isnan(wild["ratio"])
    assert "1 diverged" in outcome.table()


def track(arm: Arm, seed: int, values: list[float]) -> Track:
    history = [
        {"step": k, "coherence": v * v, "sample_sharpness": v, "sharpness": v, "sigma": v, "loss": 0.0}
        for k, v in enumerate(values)
    ]
    return Track(arm, seed, history, network(TINY))


def test_ratios_are_to_the_first_arm_seed_by_seed() -> None:
    sgd, sam = Arm(), Arm("sam", rho=0.1)
    outcome = Outcome(TINY, {
        sgd: [track(sgd, 0, [1, 2, 4]), track(sgd, 1, [1, 3, 10])],
        sam: [track(sam, 0, [1, 2, 2]), track(sam, 1, [1, 2, 20])],
    })  # fmt: skip
    assert outcome.ratios(sam) == [0.5, 2.0]
    row = outcome.summary()[1]
    assert (row["arm"], row["ratio"], row["below"], row["runs"]) == ("SAM, rho 0.1", 1.25, 1, 2)
    assert row["final"]["coherence"] == statistics.fmean([4, 400])
    assert row["r_squared"][0] == pytest.approx(1)
    assert outcome.table().splitlines()[2].split()[:4] == ["SAM,", "rho", "0.1", "11.00"]
    assert outcome.pooled_r_squared(0) == pytest.approx(
        torch.corrcoef(torch.tensor([[1.0, 2, 4, 1, 2, 2], [1, 4, 16, 1, 4, 4]], dtype=torch.float64))[0, 1].item() ** 2
    )


def test_the_settings_are_the_papers() -> None:
    assert (C_5.d, C_5.hidden, C_5.n, C_5.batch_size, C_5.lr) == (15, 10, 50, 10, 0.1)
    assert (C_4.d, C_4.hidden, C_4.batch_size, C_4.lr, C_4.epochs) == (100, 50, 10, 0.01, 50)
    assert [arm.rho for arm in FIGURE_4_LEFT] == [0, 0.01, 0.05, 0.1]
    assert [(arm.rho, arm.lr) for arm in FIGURE_4_MIDDLE] == [(0, 0.3), (0.01, 0.3), (0.05, 0.3), (0.1, 0.3)]
    assert [arm.contrast for arm in FIGURE_4_RIGHT] == [0, 0.01, 0.1]
    assert [str(arm) for arm in ARMS_OF_C_4] == ["SGD", "random perturbation, rho 0.01", "SAM, rho 0.01"]
    assert {arm.optimizer for arm in FIGURE_3} == {"sgd", "random_perturbation", "sam"}


REFUSED = {
    "no arm is called 'adam'": lambda: Arm("adam"),  # type: ignore[arg-type]
    "rho must be 0 for sgd and above 0 for others, got 0.0 for sam": lambda: Arm("sam"),
    "rho must be 0 for sgd and above 0 for others, got 0.1 for sgd": lambda: Arm(rho=0.1),
    "rho must be 0 for sgd and above 0 for others, got -1 for sam": lambda: Arm("sam", rho=-1),
    "contrast -1 must be at least 0": lambda: Arm(contrast=-1),
    "contrast 0.0 must be at least 0 and lr 0 above 0": lambda: Arm(lr=0),
    "a comparison needs at least one arm and one seed, got 0 and 10": lambda: compare([]),
    "a comparison needs at least one arm and one seed, got 4 and 0": lambda: compare(seeds=[]),
    "n must be above 0, got 0": lambda: Setting(5, 4, 0, 5, 0.1, 3),
    "epochs must be above 0, got 0": lambda: Setting(5, 4, 12, 5, 0.1, 0),
    "d must be at least 2, as y = x_1 x_2, got 1": lambda: Setting(1, 4, 12, 5, 0.1, 3),
    "every must divide epochs, 3, so that the end is recorded, got 2": lambda: Setting(5, 4, 12, 5, 0.1, 3, every=2),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refusals_in_one_line(message: str) -> None:
    with pytest.raises(EvenlyError) as refused:
        REFUSED[message]()
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)
