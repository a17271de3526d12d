"""What an audit says of probes and curvature is true of the sets and the numbers it says it of."""

from __future__ import annotations

import dataclasses
import html
import re

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from evenly.data import Data, Split
from evenly.diagnose.auditing import audit
from evenly.diagnose.findings import Audit
from evenly.diagnose.spectrum import HessianSpectrum
from evenly.report import write_report
from evenly.report.audit_pages import HOW_TO_READ

AWAY = "on a set where a does not give it away"


class Showing(nn.Module):
    """Shows its inputs as its features."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x)


def confounded(groups: str = "", also_b: float = 0.0, n: int = 2000) -> Data:
    """The label at ±.8 and a at ±4, which follows it at 90%; b follows a at a rate and is nowhere in the features."""
    draw, parts = np.random.default_rng(0), {}
    for name in ("train", "validation", "test"):
        y = draw.integers(0, 2, n)
        a = np.where(draw.random(n) < 0.9, y, 1 - y)
        b = np.where(draw.random(n) < also_b, a, 1 - a)
        x = draw.normal(size=(n, 3)).astype(np.float32)
        x[:, 0] += 0.8 * (2 * y - 1)
        x[:, 1] += 4 * (2 * a - 1)
        g = {"": None, "label": y, "domain": draw.integers(0, 3, n), "2y+a": 2 * y + a}[groups]
        parts[name] = Split(x, y, g, {"a": a, "b": b} if also_b else {"a": a}, name=name)
    return Data(**parts, name="confounded")


def of_probes(found: Audit) -> str:
    (said,) = (line for line in found.verdict() if line.startswith("Its features tell"))
    return said


@pytest.mark.parametrize("groups", ["", "label", "domain", "2y+a"])
def test_the_label_is_not_given_away_where_that_is_said(groups: str) -> None:
    data = confounded(groups)
    found = audit(Showing(), data, top=0, samples=50)
    assert AWAY in of_probes(found)
    assert " only" not in of_probes(found)
    assert "the attribute is the easier one to read" in of_probes(found)
    held = found.probes["label"].held_out
    assert float((data.test.labels[held] == data.test.attributes["a"][held]).double().mean()) == 0.5
    assert found.probes["label"].low > 0.15  # Phi(-.8) = .21; read off a it would be .1
    assert found.to_dict()["probes"]["label"]["balanced_over"] == ["a"]


def test_what_a_set_is_not_balanced_over_is_said(tmp_path) -> None:
    many = audit(Showing(), confounded("domain", also_b=0.9), top=0, samples=50)
    assert many.probes["label"].balanced_over == ("a", "b")
    assert AWAY in of_probes(many)
    assert " only" not in of_probes(many)
    rare = audit(Showing(), confounded("domain", also_b=1.0), top=0, samples=50)
    assert rare.probes["a"].balanced_over == rare.probes["b"].balanced_over == ("label",)
    assert re.search(
        r"tell [ab] with .* guessing 50.0%\) on a set balanced over label only, "
        r"the label with .*% on a set balanced over group only",
        of_probes(rare),
    )
    page = html.unescape(write_report(rare, tmp_path / "one.html").read_text())
    assert "balanced over label and attribute" not in page
    rows = dict(re.findall(r'<th scope="row"[^>]*>(label|a|b)</th>\s*<td[^>]*>(?:<[^>]*>)*([a-z, ]+)<', page))
    assert rows == {"label": "group", "a": "label", "b": "label"}
    assert "where some configuration of these has too few examples, over the label or the groups alone" in page
    assert "An eigenvalue that occurs several times is listed once" not in page  # there are none


@pytest.fixture(scope="module")
def curved() -> Audit:
    return audit(Showing(), confounded(n=200), top=3, samples=50)


def spectrum(values: list[float], residuals: list[float], converged: list[bool]) -> HessianSpectrum:
    return HessianSpectrum(
        torch.tensor(values).double(),
        torch.tensor(residuals).double(),
        torch.tensor(converged),
        None,
        9,
        9.0,
        1,
        50,
        {},
    )


@pytest.mark.parametrize(
    ("values", "residuals", "converged", "said"),
    [
        ([8.0, 4.0, 2.0], [1e-5] * 3, [True] * 3, "is 8, 4.0 times the 3rd found."),
        ([8.0, 2.0], [1e-5] * 2, [True] * 2, "is 8, 4.0 times the 2nd found."),
        ([8.0, 4.0, 2.0], [1e-5, 1e-5, 0.1], [True, True, False], "is 8."),
        ([8.0, 4.0, 2.0], [0.5, 1e-5, 1e-5], [False, True, True], "is 8, not converged (residual 0.5)."),
        ([8.0, 0.05], [1e-5, 8e-3], [True] * 2, "is 8."),  # by 16% either way
        ([8.0, 1e-6], [1e-5, 1e-9], [True] * 2, "is 8."),
        ([8.0, -1.0], [1e-5] * 2, [True] * 2, "is 8."),
        ([-0.1, -1.0], [1e-5] * 2, [True] * 2, "is -0.1."),
        ([0.88], [1e-5], [True], "is 0.88."),
    ],
)
def test_the_largest_eigenvalue_is_compared_only_with_what_is_known(
    curved: Audit, values: list[float], residuals: list[float], converged: list[bool], said: str
) -> None:
    found = dataclasses.replace(curved, spectrum=spectrum(values, residuals, converged))
    assert f"The largest eigenvalue of the training loss's Hessian {said}" in found.verdict()


def test_the_page_says_what_a_residual_bounds_and_that_repeated_eigenvalues_are_listed_once(
    curved: Audit, tmp_path
) -> None:
    page = html.unescape(write_report(curved, tmp_path / "one.html").read_text())
    assert "An eigenvalue that occurs several times is listed once." in page
    reading = " ".join(HOW_TO_READ)
    assert reading.split("A residual")[1].startswith(" bounds the distance to an eigenvalue of the Hessian")
    assert "true one" not in reading
    assert "attribute does not go with the label" not in reading
