"""docs/claims.md has a row for every claim, and docs name no claim that is not there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evenly.papers.claims import SCALES, all_claims
from evenly.runs.verdict import PAPERS, read_verdicts

DOCS = Path(__file__).parents[2] / "docs"
ROW = re.compile(r"^\| `([^`]+)` \| ([^|]*) \| ([^|]*) \| ([^|]*) \| ([^|]*) \|", re.MULTILINE)
NAMED = re.compile(rf"\b(?:{'|'.join(PAPERS)})/[A-Za-z][\w.,+-]*\w")


def test_the_page_has_a_row_for_every_claim_with_its_fidelity() -> None:
    rows = {id: fidelity for id, _, _, fidelity, _ in ROW.findall((DOCS / "claims.md").read_text())}
    assert rows == {id: claim.statement.fidelity.replace("|", "/") for id, claim in all_claims().items()}


def test_every_claim_has_a_stored_verdict() -> None:
    verdicts = read_verdicts(DOCS / "results" / "claims.json")
    assert list(verdicts) == list(all_claims())
    assert {verdict.outcome for verdict in verdicts.values()} == {
        "holds",
        "holds in part",
        "does not hold",
        "not testable here",
    }


@pytest.mark.parametrize("page", ["findings.md", "audit.md", "groups.md", "stability.md"])
def test_docs_name_claims_that_there_are(page: str) -> None:
    text = (DOCS / page).read_text()
    named = {name for name in re.findall(r"`(?:evenly reproduce )?([^`]+)`", text) for name in NAMED.findall(name)}
    assert named <= set(all_claims()), named - set(all_claims())


def test_claims_say_what_they_need_to() -> None:
    for id, claim in all_claims().items():
        statement = claim.statement
        assert statement.states.endswith("."), id
        assert statement.where, id
        kind, _, why = statement.fidelity.partition(": ")
        assert kind in ("paper", "reduced", "proxy", "not testable"), id
        assert bool(why) == (kind != "paper"), id
        assert (claim.judge is None) == (kind == "not testable"), id
        assert claim.judge is None or statement.rule.endswith("."), id
        assert set(claim.scales) <= set(SCALES), id


def test_at_least_60_claims_have_the_papers_setting_on_two_cores() -> None:
    verdicts = read_verdicts(DOCS / "results" / "claims.json").values()
    assert sum(each.statement.fidelity == "paper" and each.judgement is not None for each in verdicts) >= 60
