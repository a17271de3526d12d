"""Writes docs/claims.md: a row per claim of the papers, with its fidelity, and the verdict that docs/results has.

    python benchmarks/claims.py                  # after a file in docs/results, or a claim that reads one, is new
    evenly reproduce --scale small --out reproduced
    python benchmarks/claims.py reproduced       # puts its verdicts into docs/results/claims.json as well

Claims that only read files of docs/results are judged anew each time: that takes seconds.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from attrs import evolve

from evenly.papers.claims import Claim, Scale, all_claims
from evenly.papers.nodes import Stored, nodes_in
from evenly.papers.reproducing import reproduce
from evenly.report.claim_pages import measured
from evenly.runs.verdict import CLAIMS, PAPERS, Statement, Verdict, read_verdicts, write_verdicts

DOCS = Path(__file__).parents[1] / "docs"
STORED = DOCS / "results" / CLAIMS
PAGE = DOCS / "claims.md"
NUMBERS = 4
"""Measured values that a row has at most; the page of the paper has all of them."""


def kinds(statements: Iterable[Statement]) -> str:
    """How many claims have each fidelity: "61 paper, 12 reduced"."""
    counts = Counter(statement.fidelity.partition(":")[0] for statement in statements)
    return ", ".join(f"{count} {kind}" for kind, count in counts.most_common())


def stated(claim: Claim, verdict: Verdict | None) -> Statement:
    """A claim in words, with the fidelity that its verdict has: one whose files are not stored yet is not testable."""
    return claim.statement if verdict is None else evolve(claim.statement, fidelity=verdict.statement.fidelity)


def row(claim: Claim, verdict: Verdict | None) -> str:
    """A row of the table."""
    statement = stated(claim, verdict)
    numbers = []
    if verdict is not None and verdict.judgement is not None:
        for each in verdict.judgement.measurements[:NUMBERS]:
            published = f" (paper {each.published})" if each.published else ""
            numbers.append(f"{each.name} {measured(each)}{published}")
    elif statement.published:
        numbers = [f"{name}: paper {text}" for name, text in statement.published.items()][:NUMBERS]
    outcome = "not testable here" if claim.untestable else "not run" if verdict is None else verdict.outcome
    cells = (f"`{claim.id}`", statement.where, statement.states, statement.fidelity, outcome, "; ".join(numbers))
    return f"| {' | '.join(cell.replace('|', '/').replace(chr(10), ' ') for cell in cells)} |"


def page(verdicts: dict[str, Verdict]) -> Iterator[str]:
    claims = all_claims()
    statements = {id: stated(claim, verdicts.get(id)) for id, claim in claims.items()}
    yield "# Every claim of the four papers\n"
    yield (
        "`evenly reproduce` lists these claims, `evenly reproduce CLAIM` runs and judges one, and\n"
        "`evenly reproduce --scale small` all that two cores can run. Fidelity says how close the setting is\n"
        "to the paper's. Verdicts are those of docs/results/claims.json. `python benchmarks/claims.py` writes\n"
        "this page.\n"
    )
    yield f"{len(claims)} claims: {kinds(statements.values())}.\n"
    for paper, title in PAPERS.items():
        own = [claim for claim in claims.values() if claim.statement.paper == paper]
        yield f"## {title}\n"
        yield f"{len(own)} claims: {kinds(statements[claim.id] for claim in own)}.\n"
        yield "| claim | where | what it states | fidelity | verdict | ours |"
        yield "|---|---|---|---|---|---|"
        yield from (row(claim, verdicts.get(claim.id)) for claim in own)
        yield ""


def is_cheap(claim: Claim) -> bool:
    """Whether it cannot be judged, or only reads stored files."""
    return claim.uses is None or all(isinstance(node, Stored) for node in nodes_in(claim.uses(Scale())))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="of evenly reproduce; its verdicts are stored")
    folder = parser.parse_args().folder
    verdicts = read_verdicts(STORED) | (read_verdicts(folder) if folder is not None else {})
    claims = all_claims()
    with TemporaryDirectory() as scratch:
        cheap = [id for id, claim in claims.items() if is_cheap(claim)]
        outcome = reproduce(cheap, out=scratch)
    if outcome.failures:
        raise SystemExit("\n".join(f"{id}: {reason}" for id, reason in outcome.failures.items()))
    verdicts |= {verdict.id: verdict for verdict in outcome.verdicts}
    write_verdicts(STORED.parent, [verdicts[id] for id in claims if id in verdicts])
    PAGE.write_text("\n".join(page(verdicts)))


if __name__ == "__main__":
    main()
