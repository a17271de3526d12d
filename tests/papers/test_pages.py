"""docs/claims.md has a row for every claim, and docs name no claim that is not there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from attrs import evolve

from evenly.errors import EvenlyError
from evenly.papers import nodes
from evenly.papers.claims import SCALES, Scale, all_claims
from evenly.papers.nodes import Stored, nodes_in, why_not_stored
from evenly.papers.reproducing import reproduce
from evenly.runs.verdict import PAPERS, read_verdicts

DOCS = Path(__file__).parents[2] / "docs"
ROW = re.compile(r"^\| `([^`]+)` \| ([^|]*) \| ([^|]*) \| ([^|]*) \| ([^|]*) \|", re.MULTILINE)
NAMED = re.compile(rf"\b(?:{'|'.join(PAPERS)})/[A-Za-z][\w.,+-]*\w")


def test_the_page_has_a_row_for_every_claim_with_its_fidelity() -> None:
    rows = {id: (fidelity, outcome) for id, _, _, fidelity, outcome in ROW.findall((DOCS / "claims.md").read_text())}
    verdicts = read_verdicts(DOCS / "results" / "claims.json")
    assert rows == {id: (each.statement.fidelity.replace("|", "/"), each.outcome) for id, each in verdicts.items()}


def test_every_claim_has_a_stored_verdict_with_its_own_words() -> None:
    verdicts = read_verdicts(DOCS / "results" / "claims.json")
    assert list(verdicts) == list(all_claims())
    for id, claim in all_claims().items():
        fidelity = verdicts[id].statement.fidelity
        assert verdicts[id].statement == evolve(claim.statement, fidelity=fidelity), id
        assert fidelity == claim.statement.fidelity or verdicts[id].judgement is None, id
    assert {verdict.outcome for verdict in verdicts.values()} == {
        "holds",
        "holds in part",
        "does not hold",
        "not testable here",
    }


def test_verdicts_on_stored_files_are_those_of_the_files_that_are_here(tmp_path: Path) -> None:
    """After a new file in docs/results, or a change of a judge, `python benchmarks/claims.py` stores the verdicts."""
    only_stored = [
        id
        for id, claim in all_claims().items()
        if claim.uses is not None and all(isinstance(node, Stored) for node in nodes_in(claim.uses(Scale())))
    ]
    stored = read_verdicts(DOCS / "results" / "claims.json")
    reproduce(only_stored, out=tmp_path)
    assert len(only_stored) > 20
    assert read_verdicts(tmp_path) == {id: stored[id] for id in only_stored}, "run python benchmarks/claims.py"


def test_a_claim_may_be_there_before_its_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    waits = Stored("a.json", minutes=3), Stored("b.json", minutes=4), Stored("a.json", minutes=3)
    monkeypatch.setattr(nodes, "stored_folder", lambda: tmp_path)
    assert why_not_stored(waits) == "not run yet: benchmarks/gpu.py needs about 7 minutes of a GPU for a, b"
    (tmp_path / "a.json").write_text("{}")
    assert why_not_stored(waits) == "not run yet: benchmarks/gpu.py needs about 4 minutes of a GPU for b"
    (tmp_path / "b.json").write_text("{}")
    assert why_not_stored(waits) == ""
    monkeypatch.setattr(nodes, "stored_folder", lambda: None)
    assert "from a clone" in why_not_stored(waits)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"rows": [', "cannot be read"),
        ("[]", "holds no results"),
        ('{"trial": 20}', "is of a trial"),
        ('{"unit": "vgg19"}', "holds the results of vgg19"),
        ('{"unit": "200"}', "holds the results of 200"),  # a name that ends alike, as random and sam-random
    ],
)
def test_a_stored_file_that_is_not_what_it_should_be(content, message, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(nodes, "stored_folder", lambda: tmp_path)
    (tmp_path / "cifar10-sam-200.json").write_text(content)
    with pytest.raises(
        EvenlyError, match=rf"docs/results/cifar10-sam-200.json .*{message}.*; restore the file, or run"
    ):
        nodes.read_stored(Stored("cifar10-sam-200.json"))


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
