"""The lemmas on the tensor power recursion against its iteration."""

import math
import random

import pytest

from evenly.errors import EvenlyError
from evenly.theory import recursion


def uniform(draw, low, high):
    """Log-uniform."""
    return math.exp(draw.uniform(math.log(low), math.log(high)))


def starts(count, seed=0, with_rho=True):
    """Random (draw, z0, threshold, m, M, rho) of the tensor power recursion, steps large and small."""
    draw = random.Random(seed)
    for _ in range(count):
        z0 = uniform(draw, 1e-3, 1)
        rho = z0 * draw.choice([0.0, draw.uniform(0, 0.9)]) if with_rho else 0.0
        threshold = z0 * uniform(draw, 1.001, 100)
        m = uniform(draw, 0.03, 10) / threshold
        yield draw, z0, threshold, m, m * draw.choice([1.0, draw.uniform(1, 4)]), rho


def run(draw, z, threshold, m, M, rho, slow=False):
    """The first passage time of a sequence with m (z - rho)^2 <= growth <= M z^2: random, or the slowest."""
    t = 0
    while z < threshold:
        low, high = m * (z - rho) ** 2, M * z**2
        z, t = z + (low if slow else draw.uniform(low, high)), t + 1
    return t


def test_tensor_power_is_the_recursion():
    assert recursion.tensor_power(1.0, 0.5, 2) == [1.0, 1.5, 1.5 + 0.5 * 1.5**2]
    assert recursion.tensor_power(1.0, [0.5, 2.0], 2, rho=0.5) == [1.0, 1.125, 1.125 + 2 * 0.625**2]
    with pytest.raises(EvenlyError, match="rate has 1 values for 2 steps"):
        recursion.tensor_power(1.0, [0.5], 2)


def test_passage_time_is_the_first():
    for _, z0, v, m, _, rho in starts(50):
        t = recursion.passage_time(z0, m, v, rho)
        z = recursion.tensor_power(z0, m, t, rho)
        assert z[t] >= v > z[t - 1]
    with pytest.raises(EvenlyError, match="after 10 steps, below the threshold 1; give a larger limit"):
        recursion.passage_time(0.001, 0.1, 1.0, limit=10)


def test_passage_times_are_within_their_bounds():
    for draw, z0, v, m, M, rho in starts(150):
        ours = recursion.passage_time_bounds(z0, v, m, M, rho)
        lemma = recursion.passage_time_limit(z0, v, m, M, rho)
        for slow in (True, False):
            assert ours.lower <= run(draw, z0, v, m, M, rho, slow) <= min(ours.upper, lemma)
        assert recursion.passage_time(z0, M, v) >= ours.lower
        assert ours.upper <= lemma
        if rho == 0:
            assert recursion.passage_time_limit(z0, v, m, M, lemma="G.2") >= lemma


def test_our_passage_bounds_are_sharp_where_steps_are_small():
    for z0, v in ((0.01, 1.0), (0.2, 0.3), (0.5, 50.0)):
        rate = 1e-4 / v
        lower, upper = recursion.passage_time_bounds(z0, v, rate, rate)
        assert lower <= recursion.passage_time(z0, rate, v) <= upper <= 1.001 * lower + 1
        slower = recursion.passage_time_bounds(z0, v, rate, rate, rho=z0 / 2).upper
        assert recursion.passage_time(z0, rate, v, rho=z0 / 2) == pytest.approx(slower, rel=1e-3, abs=1)


def test_lemma_limits_by_hand():
    assert recursion.passage_time_limit(0.5, 3.0, 0.1, 0.2, 0.25) == pytest.approx((1 + 0.2 * 3) / (0.1 * 0.0625))
    assert recursion.passage_time_limit(0.5, 3.0, 0.1, 0.2, lemma="G.2") == pytest.approx(60 + 16 * 3)


def accumulated(draw, x, A, rate, rho):
    total = 0.0
    while x < A:
        step = rate * draw.choice([1.0, draw.uniform(0.3, 1)])
        total, x = total + step, x + step * (x - rho) ** 2
    return total


def test_lemma_b1_bounds_the_accumulated_rate():
    for draw, x0, A, rate, _, rho in starts(150, seed=1):
        delta = draw.uniform(0.05, 0.95)
        total = accumulated(draw, x0, A, rate, rho)
        lower, upper = recursion.accumulated_rate_bounds(x0, A, rate, delta, rho)
        assert lower <= total <= upper
        assert recursion.accumulated_rate_bounds(x0, A, rate, delta, rho, form="printed").lower <= total
    for delta in (0.1, 0.5, 0.9):
        for rho in (0.0, 0.05):
            lower, upper = recursion.accumulated_rate_bounds(0.1, 1.0, 1e-4, delta, rho)
            assert 1 < lower <= accumulated(draw, 0.1, 1.0, 1e-4, rho) <= upper < 2.5 / (0.1 - rho)


def test_lemma_b1_is_the_papers_where_rho_is_zero_and_fails_where_it_is_not():
    both = [recursion.accumulated_rate_bounds(0.1, 1.0, 1e-4, 0.2, form=form) for form in ("printed", "corrected")]
    levels = math.ceil(math.log(10) / math.log(1.2))
    assert both[0] == both[1]
    assert both[0].upper == pytest.approx(1.2 / 0.1 + levels * 1e-4 / 0.01)
    assert both[0].lower == pytest.approx((1 - 1.2 * 0.1) / (0.1 * 1.2) - levels * 1e-4 / 0.01)

    total = accumulated(random.Random(0), 0.1, 1.0, 1e-4, rho=0.09)
    assert total > 5 * recursion.accumulated_rate_bounds(0.1, 1.0, 1e-4, 0.2, 0.09, form="printed").upper
    assert total <= recursion.accumulated_rate_bounds(0.1, 1.0, 1e-4, 0.2, 0.09).upper


def slow_when_fast_has_passed(draw, x, y, A, rate, ratio, rho, boost=0.0):
    while x < A and y < 1e100:
        step = rate * draw.choice([1.0, draw.uniform(0.3, 1)])
        x, y = x + step * (x - rho) ** 2 * (1 + draw.uniform(0, boost)), y + ratio * step * y**2
    return y


def test_the_slow_sequence_stays_within_its_limit():
    finite = 0
    for draw, x0, A, rate, _, rho in starts(200, seed=2):
        y0, ratio = x0 * uniform(draw, 0.1, 2), uniform(draw, 0.01, 1)
        limit = recursion.slow_sequence_limit(x0, y0, A, rate, ratio, rho)
        for boost in (0.0, 2.0):
            assert slow_when_fast_has_passed(draw, x0, y0, A, rate, ratio, rho, boost) <= limit
        finite += limit < math.inf
    assert finite >= 100
    y = slow_when_fast_has_passed(random.Random(0), 0.1, 0.1, 1.0, 1e-4, 0.5, 0.0)
    assert y == pytest.approx(recursion.slow_sequence_limit(0.1, 0.1, 1.0, 1e-4, 0.5), rel=1e-3)


def test_the_slow_sequence_has_no_limit_where_it_is_first():
    assert recursion.slow_sequence_limit(0.1, 0.2, 1.0, 1e-4, 1.0) == math.inf
    assert slow_when_fast_has_passed(random.Random(0), 0.1, 0.2, 1.0, 1e-4, 1.0, 0.0) > 1e6


def test_lemma_b2_holds_with_the_lead_of_x0_minus_rho_and_fails_as_printed():
    draw, G = random.Random(3), 0.2
    for _ in range(20):
        ratio, y0 = draw.uniform(0.1, 0.9), uniform(draw, 0.03, 0.1)
        rho = draw.uniform(0, 0.02)
        x0 = rho + y0 * ratio * (1 + 2 * G) / (1 - 3 * G) * draw.uniform(1, 2)
        eta = 0.999 * G**2 * min(x0 / math.log(1 / x0), y0 / math.log(1 / G))
        holds = recursion.race_preconditions(x0, y0, 1.0, eta, ratio, G, rho)
        assert all(holds.values())
        assert slow_when_fast_has_passed(draw, x0, y0, 1.0, eta, ratio, rho) <= y0 / G

    x0, y0, ratio, rho, eta = 0.2, 0.1, 0.5, 0.17, 1e-3
    holds = recursion.race_preconditions(x0, y0, 1.0, eta, ratio, G, rho)
    assert list(holds.values()) == [True, True, True, False]
    assert slow_when_fast_has_passed(draw, x0, y0, 1.0, eta, ratio, rho) > 100 * y0 / G


def test_lemma_b2_conditions_one_by_one():
    good = {"x0": 0.1, "y0": 0.1, "threshold": 1.0, "eta": 1e-4, "ratio": 0.5, "G": 0.1}
    assert all(recursion.race_preconditions(**good).values())
    assert list(recursion.race_preconditions(**good | {"y0": 0.2}).values()) == [False, True, True, False]
    edge = 0.01 * 0.1 / math.log(10)
    assert list(recursion.race_preconditions(**good | {"eta": 1.01 * edge}).values()) == [True, False, False, True]
    below = recursion.race_preconditions(**good | {"eta": 0.99 * edge, "y0": 0.09})
    assert list(below.values()) == [True, True, False, True]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: recursion.passage_time(0.0, 0.1, 1.0), "0 <= rho < start < threshold"),
        (lambda: recursion.passage_time_bounds(2.0, 1.0, 0.1, 0.1), "start 2, threshold 1 must satisfy"),
        (lambda: recursion.passage_time_bounds(0.1, 1.0, 0.2, 0.1), "rates m 0.2 and M 0.1 must satisfy 0 < m <= M"),
        (lambda: recursion.passage_time_limit(0.1, 1.0, 0.1, 0.1, rho=0.1), "rho 0.1, start 0.1"),
        (lambda: recursion.passage_time_limit(0.1, 1.0, 0.1, 0.1, rho=0.05, lemma="G.2"), "use lemma='B.3'"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(EvenlyError, match=message):
        call()
