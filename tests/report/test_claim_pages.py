"""Pages of `evenly reproduce`: how measured values are written."""

from __future__ import annotations

import pytest

from evenly.report.claim_pages import claim_page, measured
from evenly.report.rendering import write_page
from evenly.runs.verdict import Check, Judgement, Measurement, Statement, Verdict, measurement


@pytest.mark.parametrize(
    ("mean", "sd", "text"),
    [
        (4.96, 0.0651, "4.96 ± 0.07"),
        (37027, 121.4, "37,027 ± 121"),
        (1, 0, "1 ± 0"),
        (0, 0.3, "0 ± 0.3"),
        (1.49e-8, 5.49e-9, "1.49e-08 ± 5e-09"),
        (99.97, 0.0447, "100.0 ± 0.04"),
        (2.5, 12.3, "2.5 ± 12.3"),
    ],
)
def test_a_spread_has_the_decimals_of_its_mean(mean: float, sd: float, text: str) -> None:
    assert measured(Measurement("error", mean, sd, seeds=3)) == text


def test_a_published_value_stands_beside_ours_and_not_again(tmp_path) -> None:
    published = {"SGD": "5.07", "USEFUL": "4.79", "cost": "1.3x"}
    statement = Statement("useful/table2", "Table 2", "USEFUL is lower.", "It is.", published=published)
    numbers = [
        measurement("test error, SGD", [5.0, 5.1], "5.07", "%"),
        measurement("test error, USEFUL", [4.8], "4.79", "%"),
    ]
    verdict = Verdict(statement, "small", "holds", Judgement([Check("it is", True)], numbers))
    page = write_page(tmp_path / "useful.html", claim_page([verdict], "A paper")).read_text()
    assert page.count("5.07") == page.count("4.79") == page.count("1.3x") == 1


def test_a_reason_is_part_of_the_text_that_wraps(tmp_path) -> None:
    """A cell of a table does not wrap, so that a long reason was cut off there."""
    statement = Statement("pde/table2", "Table 2", "It gains.", fidelity="not testable: Waterbirds is not here")
    verdict = Verdict(statement, "small", "not testable here", reason="Waterbirds is not here")
    page = write_page(tmp_path / "pde.html", claim_page([verdict], "A paper")).read_text()
    assert "Table 2. It gains. Reason: Waterbirds is not here." in page
