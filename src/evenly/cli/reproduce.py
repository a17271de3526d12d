"""evenly reproduce"""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenly.cli.arguments import Json, Out, takes
from evenly.errors import EvenlyError
from evenly.settings import Execution

if TYPE_CHECKING:
    from evenly.runs.verdict import Verdict

OUT = Path("reproduced")
FEW = 20
"""Claims of which the reasons are printed, where some are not testable."""
MOST_JOBS = 4
"""Processes that are started without being asked for."""


@takes((Execution, ("device", "engine", "address", "retry")))
def reproduce(
    claims: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CLAIM]...",
            help="Claims, as useful/fig2ab, or papers: useful, balanced, stability, pde. Without any, all claims are "
            "listed with their verdicts, or run if you name a scale.",
            show_default=False,
        ),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            help="small for two cores, or paper for the paper's own setting. [default: small]",
            metavar="small|paper",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(help="Seeds, instead of each claim's own number.", metavar="N", show_default=False),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            help="A claims.json to compare with. [default: the one in the folder]", metavar="FILE", show_default=False
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            help=f"Processes that share the work; verdicts do not depend on it. [default: one for each core, at most "
            f"{MOST_JOBS}; one on a GPU]",
            metavar="N",
            show_default=False,
        ),
    ] = None,
    out: Out = None,
    as_json: Json = False,
    **settings: Any,
) -> None:
    """Run claims of the papers and judge them.

    The exit code is 1 where a claim that held before does not hold now, or could not be run.

    \b
    Examples:
      evenly reproduce
      evenly reproduce useful/fig2ab
      evenly reproduce pde --seeds 3
      evenly reproduce --scale small
    """  # fmt: skip
    folder = out or OUT
    if not claims and scale is None:
        if settings or seeds is not None or against is not None or jobs is not None:
            raise EvenlyError(
                "no CLAIM and no --scale is given, so that nothing would run; name a claim, or --scale small"
            )
        _list(folder, as_json)
        return
    from evenly.experiment.execute import device_for
    from evenly.papers.reproducing import reproduce as run_claims
    from evenly.parallel.processes import cores

    if jobs is not None:
        settings["jobs"] = jobs
    elif "engine" not in settings and device_for(Execution(**settings)).type == "cpu":
        settings["jobs"] = min(MOST_JOBS, cores())  # a computation of a claim has one thread
    outcome = run_claims(claims or (), scale=scale or "small", seeds=seeds, out=folder, against=against, **settings)
    if as_json:
        print(json.dumps(outcome.to_dict(), indent=2))
    else:
        print("\n".join(_lines(outcome.verdicts)))
        for verdict in outcome.verdicts if len(outcome.verdicts) <= FEW else ():
            if verdict.reason:
                print(f"{verdict.id}: {verdict.reason}")
        for verdict in outcome.turned:
            print(f"held before and does not now: {verdict.id}")
        for id, reason in outcome.failures.items():
            print(f"failed: {id}: {reason}")
        for paper in dict.fromkeys(verdict.statement.paper for verdict in outcome.verdicts):
            print(f"page: {folder / f'{paper}.html'}")
    raise typer.Exit(1 if outcome.turned or outcome.failures else 0)


def _list(folder: Path, as_json: bool) -> None:
    """Every claim, with the verdict that the folder has on it."""
    from evenly.papers.claims import all_claims
    from evenly.runs.verdict import Verdict, read_verdicts

    if folder.is_file():
        raise EvenlyError(f"{folder} is a file; give a folder as --out")
    there = read_verdicts(folder)
    verdicts = [
        there.get(id) or Verdict(each.statement, "", "not testable here" if each.untestable else "not run")
        for id, each in all_claims().items()
    ]
    if as_json:
        claims = [{"id": each.id, "outcome": each.outcome, **each.statement.to_dict()} for each in verdicts]
        print(json.dumps(claims, indent=2))
        return
    print("\n".join(_lines(verdicts)))
    print("Next: evenly reproduce CLAIM, or evenly reproduce --scale small for all")


def _lines(verdicts: Iterable[Verdict]) -> Iterator[str]:
    """A line per claim, in the width of the terminal, then how many hold."""
    from evenly.report.claim_pages import in_short

    verdicts = list(verdicts)
    if not verdicts:
        return
    width = shutil.get_terminal_size().columns
    first, second = (max(map(len, column)) for column in zip(*((v.outcome, v.id) for v in verdicts), strict=True))
    for verdict in verdicts:
        start = f"{verdict.outcome:<{first}}  {verdict.id:<{second}}  "
        text = f"{verdict.statement.where}. {verdict.statement.states}"
        text = textwrap.shorten(text, max(width - len(start), 20), placeholder=" …")
        yield (start + text).rstrip()
    yield in_short(verdicts)
