"""`evenly.write_report`: pages from folders and results.

evenly.write_report("runs/a")                        # a folder that a command left: every page in it, anew
evenly.write_report(run, "run.html")
evenly.write_report(comparison, "comparison.html")   # or several
evenly.write_report([audit, other], "both.html")     # one audit, or two of the same data
evenly.write_report(improvement, "improve.html")
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evenly.diagnose.audit_folder import read_audits
from evenly.diagnose.findings import Audit
from evenly.diagnose.stability import CardPage
from evenly.errors import EvenlyError
from evenly.files import AGAIN, read_json
from evenly.report.audit_pages import audit_page
from evenly.report.claim_pages import write_claim_pages
from evenly.report.comparison_pages import comparison_page
from evenly.report.demo_pages import demo_page
from evenly.report.improve_pages import improve_page
from evenly.report.phase_figure import save_phase_figure
from evenly.report.rendering import write_page
from evenly.report.run_pages import run_page
from evenly.report.stability_pages import card_page, diagram_page
from evenly.runs.comparison import DAMAGED, Comparison, load_comparison
from evenly.runs.demonstration import COMPARISONS, Demo, read_demo
from evenly.runs.improvement import AUDIT, BEST, RUNS, Improvement, read_improvement
from evenly.runs.improvement import FILE as IMPROVEMENT
from evenly.runs.improvement import PAGE as IMPROVEMENT_PAGE
from evenly.runs.run import Run, load
from evenly.runs.verdict import CLAIMS
from evenly.theory.stability import PhaseDiagram

PAGE = "report.html"

Result = Run | Comparison | Audit | Improvement


def write_report(
    target: str | Path | Result | Sequence[Result], path: str | Path | None = None, *, runs: bool = True
) -> Path:
    """Write the page of a result, or every page of a folder; where the page is.

    Args:
        target: a folder that a command left behind (nothing else is needed); a run; one comparison or several; one
            audit, or two of the same data; an improvement.
        path: the HTML file; where it is left out, `report.html` in the folder of the run or the comparison,
            `improve.html` in that of an improvement.
        runs: for the folder of a comparison or an improvement, write the pages of its runs too.
    """
    if isinstance(target, str | Path):
        if path is not None:
            raise EvenlyError(f"the pages of {target} are written into it; leave out path {str(path)!r}")
        return _write_folder(Path(target), runs)
    results = list(target) if isinstance(target, Sequence) else [target]
    if len(results) == 1 and isinstance(run := results[0], Run):
        return write_page(_page_path(path, run.folder), run_page(run))
    if len(results) == 1 and isinstance(found := results[0], Improvement):
        return write_page(_page_path(path, found.out, IMPROVEMENT_PAGE), improve_page(found, found.out))
    comparisons = [each for each in results if isinstance(each, Comparison)]
    audits = [each for each in results if isinstance(each, Audit)]
    if results and len(comparisons) == len(results):
        return write_page(_page_path(path, comparisons[0].out), comparison_page(comparisons))
    if results and len(audits) == len(results):
        compared = audits[0].compared(audits[1]) if len(audits) > 1 else []
        return write_page(_page_path(path, None), audit_page([each.findings() for each in audits], compared))
    names = ", ".join(dict.fromkeys(type(each).__name__ for each in results)) or "nothing"
    raise EvenlyError(f"no page shows {names}; give a folder, a run, comparisons, one or two audits, or an improvement")


def _write_folder(folder: Path, runs: bool) -> Path:
    """The pages of a folder: of an improvement, of a comparison or the demo and their runs, of an analysis or run."""
    if os.path.exists(folder / IMPROVEMENT):  # a name that is too long does not exist
        return _write_improvement(folder, runs)
    is_comparison = os.path.exists(folder / "graph.json")
    content = read_json(folder / "results.json", DAMAGED if is_comparison else AGAIN)
    if isinstance(content, dict) and COMPARISONS in content:
        return _write_demo(read_demo(folder, content), folder, runs)
    if isinstance(content, dict) and "rows" in content:
        return _write_comparison(load_comparison(folder), runs)
    return _write_analysis(folder)


def _write_demo(demo: Demo, folder: Path, runs: bool) -> Path:
    """The page of a demo; on request those of its parts and their runs too."""
    for comparison in demo.comparisons if runs else ():
        _write_comparison(comparison, runs)
    for improvement in demo.improvements if runs else ():
        if improvement.out is not None:
            _write_improvement(improvement.out, runs)
    return write_page(folder / PAGE, demo_page(demo))


def _write_analysis(folder: Path) -> Path:
    """The pages of a folder of claims, an audit or stability; of a run where it is none of these."""
    if (folder / CLAIMS).exists():
        return write_claim_pages(folder)
    if (folder / "computations").is_dir():
        raise EvenlyError(f"{folder} holds no verdicts yet; run the same `evenly reproduce` again")
    if (folder / "audit.json").exists():
        return write_page(folder / "audit.html", audit_page(*read_audits(folder)))
    stability = read_json(folder / "stability.json", "remove it and run `evenly stability` again")
    if stability is not None:
        return _write_stability(stability, folder)
    return write_report(load(folder))


def _write_stability(content: Any, folder: Path) -> Path:
    """The page of a card, or of a phase diagram and its figure."""
    page = folder / "stability.html"
    try:
        if content["target"] is not None:
            return write_page(page, card_page(CardPage.from_dict(content["page"])))
        diagram = PhaseDiagram.from_dict(content)
        save_phase_figure(diagram, folder / "phase.svg")
        return write_page(page, diagram_page(diagram))
    except (EvenlyError, KeyError, TypeError) as error:
        why = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise EvenlyError(f"{folder / 'stability.json'} cannot be read ({why}); run `evenly stability` again") from None


def _write_comparison(comparison: Comparison, runs: bool) -> Path:
    for run in comparison.runs.values() if runs else ():
        write_report(run)
    return write_report(comparison)


def _write_improvement(folder: Path, runs: bool) -> Path:
    """The page of an improvement; on request those of its audit, of every finished run and of the model too."""
    inner = [folder / AUDIT, *sorted((folder / RUNS).glob("*")), folder / BEST]
    for each in inner if runs else ():
        if (each / "audit.json").exists() or (each / "results.json").exists():
            _write_folder(each, runs)
    return write_page(folder / IMPROVEMENT_PAGE, improve_page(read_improvement(folder), folder))


def _page_path(path: str | Path | None, folder: Path | None, name: str = PAGE) -> Path:
    """The file to write; refused where it cannot be one."""
    if path is None:
        if folder is None:
            raise EvenlyError("the result was kept in memory; give a path for its page, e.g. 'report.html'")
        return folder / name
    page = Path(path)
    if page.is_dir() or not page.parent.is_dir():
        what = "a folder" if page.is_dir() else f"in {page.parent}, which does not exist"
        raise EvenlyError(f"{page} is {what}; give a file to write, e.g. report.html")
    return page
