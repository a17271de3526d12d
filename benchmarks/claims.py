"""Writes docs/claims.md: a row per claim of the papers, with its fidelity, and the verdict that docs/results has.

    evenly reproduce --scale small --jobs 2 --out reproduced
    python benchmarks/claims.py reproduced       # stores its claims.json in docs/results, and writes the page

Without a folder the page is written from what is stored.
"""

from __future__ import annotations

import argparse
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from evenly.papers.claims import Claim, all_claims
from evenly.report.claim_pages import measured
from evenly.runs.verdict import CLAIMS, PAPERS, Verdict, read_verdicts

DOCS = Path(__file__).parents[1] / "docs"
STORED = DOCS / "results" / CLAIMS
PAGE = DOCS / "claims.md"
NUMBERS = 4
"""Measured values that a row has at most; the page of the paper has all of them."""


def kinds(claims: Iterable[Claim]) -> str:
    """How many claims have each fidelity: "61 paper, 12 reduced"."""
    counts = Counter(claim.statement.fidelity.partition(":")[0] for claim in claims)
    return ", ".join(f"{count} {kind}" for kind, count in counts.most_common())


def row(claim: Claim, verdict: Verdict | None) -> str:
    """A row of the table."""
    statement = claim.statement
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
    yield "# Every claim of the four papers\n"
    yield (
        "`evenly reproduce` lists these claims, `evenly reproduce CLAIM` runs and judges one, and\n"
        "`evenly reproduce --scale small --jobs 2` all that two cores can run. Fidelity says how close the setting is\n"
        "to the paper's. Verdicts are those of docs/results/claims.json. `python benchmarks/claims.py` writes\n"
        "this page.\n"
    )
    yield f"{len(claims)} claims: {kinds(claims.values())}.\n"
    for paper, title in PAPERS.items():
        own = [claim for claim in claims.values() if claim.statement.paper == paper]
        yield f"## {title}\n"
        yield f"{len(own)} claims: {kinds(own)}.\n"
        yield "| claim | where | what it states | fidelity | verdict | ours |"
        yield "|---|---|---|---|---|---|"
        yield from (row(claim, verdicts.get(claim.id)) for claim in own)
        yield ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="of evenly reproduce; its verdicts are stored")
    folder = parser.parse_args().folder
    if folder is not None:
        shutil.copy(folder / CLAIMS, STORED)
    PAGE.write_text("\n".join(page(read_verdicts(STORED))))


if __name__ == "__main__":
    main()
