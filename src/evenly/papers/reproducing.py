"""`evenly.reproduce`: run claims of the papers and judge them. What is computed is kept, and read by the next call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen

from evenly.engine.progress import log
from evenly.errors import EvenlyError, reason_of
from evenly.experiment.execute import device_for
from evenly.experiment.graph import RunNode
from evenly.experiment.request import split_arguments
from evenly.files import as_path, holds_something, make_folder
from evenly.papers.claims import GPU, SCALES, Claim, Scale, chosen_claims
from evenly.papers.nodes import (
    ClaimWork,
    Computation,
    Result,
    Stored,
    StoredResult,
    filled,
    machine,
    nodes_in,
    read_stored,
    why_not_stored,
)
from evenly.parallel.executors import executor_for
from evenly.parallel.graph import Event, Shared, Walked, walk
from evenly.parallel.progress import GraphProgress
from evenly.randomness import on_threads
from evenly.runs.holder import held
from evenly.runs.verdict import CLAIMS, Verdict, read_verdicts, turned, write_verdicts
from evenly.settings import Option, at_least, at_most, one_of

MOST_SEEDS = 1000


@frozen
class Reproduction:
    """Verdicts in the order of the papers; claims that held before and do not now; claims that could not be run."""

    verdicts: tuple[Verdict, ...]
    turned: tuple[Verdict, ...] = ()
    failures: Mapping[str, str] = field(factory=dict)
    out: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON has them."""
        verdicts = [verdict.to_dict() for verdict in self.verdicts]
        return {"verdicts": verdicts, "turned": [each.id for each in self.turned], "failures": dict(self.failures)}


@on_threads(1)
def reproduce(
    claims: str | Sequence[str] = (),
    *,
    scale: str = "small",
    seeds: int | None = None,
    out: str | Path = "reproduced",
    against: str | Path | None = None,
    **settings: Any,
) -> Reproduction:
    """Run claims of the papers and judge them.

    Args:
        claims: ids, or papers; all where not given.
        scale: "small" for two cores, or "paper".
        seeds: how many, instead of each claim's own number.
        out: the folder. Work that was interrupted there goes on. Verdicts of earlier calls stay.
        against: a `claims.json`, or a folder that has one, to compare with; by default what was in `out` before.
        settings: any of `evenly.settings.Execution`: device, jobs, engine.
    """
    arguments, execution = split_arguments(settings)
    if arguments:
        raise EvenlyError(f"reproduce takes no {next(iter(arguments))}; settings are those of each claim")
    Option("claims", str | Sequence[str]).checked(claims)
    Option("scale", str, (one_of(*SCALES),)).checked(scale)
    Option("seeds", int | None, (at_least(1), at_most(MOST_SEEDS))).checked(seeds)
    chosen = chosen_claims([claims] if isinstance(claims, str) else claims)
    folder = as_path(out, "out")
    if folder.is_file():
        raise EvenlyError(f"{folder} is a file; give a folder as out")
    if not (folder / CLAIMS).exists() and holds_something(folder) and not (folder / "computations").exists():
        raise EvenlyError(f"{folder} is not empty and holds no claims; choose another out")
    before = read_verdicts(folder)
    reference = before if against is None else _reference(as_path(against, "against"))
    make_folder(folder / "computations")
    at = Scale(scale, seeds)  # type: ignore[arg-type]
    device = device_for(execution)
    with held(folder):
        asked, judged, failures = _asked(chosen, at, device.type)
        walked = _walked(asked.values(), ClaimWork(execution, folder), device)
        verdicts = dict(judged)
        for each in chosen:
            if each.id in asked:
                try:
                    verdicts[each.id] = judged_by(each, at, asked[each.id], _result_in(walked))
                except Exception as error:  # of one claim; the others are judged all the same
                    failures[each.id] = reason_of(error)
        now = [verdicts[each.id] for each in chosen if each.id in verdicts]
        kept = {id: verdict for id, verdict in before.items() if id not in failures}
        write_verdicts(folder, _in_order({**kept, **{verdict.id: verdict for verdict in now}}.values()))
        if now or kept:
            from evenly.report import write_report

            write_report(folder, runs=False)
    return Reproduction(tuple(now), tuple(turned(reference, now)), failures, folder)


def judged_by(each: Claim, scale: Scale, tree: Mapping[str, Any], result: Callable[[Any], Any]) -> Verdict:
    """The verdict on a claim, given the result of each of its nodes."""
    results = filled(tree, result)
    assert each.judge is not None
    measured = [node for node in _leaves(results) if isinstance(node, Result | StoredResult)]
    places = [node.measured_on if isinstance(node, StoredResult) else node.machine for node in measured]
    judgement = each.judge(**filled_values(results))
    seconds = sum(node.seconds for node in measured if isinstance(node, Result))
    assert each.uses is not None
    has_seeds = scale.count is not None and tree != each.uses(Scale(scale.name))
    return Verdict(
        each.stated(scale.name), scale.name, judgement.outcome, judgement,
        measured_on="; ".join(dict.fromkeys(places)) or machine(), seconds=round(seconds, 3),
        seeds=scale.count if has_seeds else None,
    )  # fmt: skip


def filled_values(results: Any) -> Any:
    """Results without what they are wrapped in: plain values of computations and files, runs as they are."""
    if isinstance(results, Result):
        return results.value
    if isinstance(results, StoredResult):
        return results.content
    if isinstance(results, Mapping):
        return {name: filled_values(each) for name, each in results.items()}
    return [filled_values(each) for each in results] if isinstance(results, list) else results


def _leaves(results: Any) -> list[Any]:
    if isinstance(results, dict | list):
        return [leaf for each in (results.values() if isinstance(results, dict) else results) for leaf in _leaves(each)]
    return [results]


def _reference(path: Path) -> dict[str, Verdict]:
    named = path.is_dir() or path.name == CLAIMS or path.suffix == ".json"
    if not named or not (verdicts := read_verdicts(path)):
        raise EvenlyError(f"{path} holds no verdicts; give a claims.json, or a folder of `evenly reproduce`")
    return verdicts


def _asked(
    claims: Sequence[Claim], scale: Scale, device: str
) -> tuple[dict[str, Mapping[str, Any]], dict[str, Verdict], dict[str, str]]:
    """What the nodes of each claim are, the verdicts on claims that cannot be judged here, and what failed."""
    asked: dict[str, Mapping[str, Any]] = {}
    judged: dict[str, Verdict] = {}
    failures: dict[str, str] = {}
    for each in claims:
        why = _why_not(each, scale, device)
        if not why:
            assert each.uses is not None
            try:
                asked[each.id] = each.uses(scale)
            except EvenlyError as error:
                if not each.needs:
                    failures[each.id] = str(error)
                    continue
                why = str(error)
            else:
                why = why_not_stored(node for node in nodes_in(asked[each.id]) if isinstance(node, Stored))
                if not why:
                    continue
                del asked[each.id]
        stated = evolve(each.statement, fidelity=f"not testable: {why}")
        judged[each.id] = Verdict(stated, scale.name, "not testable here", reason=why, seeds=scale.count)
    return asked, judged, failures


def _why_not(each: Claim, scale: Scale, device: str) -> str:
    if each.untestable:
        return each.untestable
    if scale.name not in each.scales:
        return f"it has no {scale.name} scale"
    return f"it needs {GPU}" if GPU in each.needs and device != "cuda" else ""


def _walked(trees: Iterable[Mapping[str, Any]], work: ClaimWork, device: Any) -> Walked[Any]:
    """Run what has not run yet: every node once, a control after its arm."""
    nodes: dict[str, RunNode | Computation] = {}
    for tree in trees:
        nodes |= {node.id: node for node in nodes_in(tree) if not isinstance(node, Stored)}
    if not nodes:
        return Walked()
    progress = GraphProgress(len(nodes), "reproducing")

    def report(event: Event | Shared, node: Any) -> None:
        work.keep_failure(event, node)
        progress(event, node)

    with executor_for(work.execution, work, device, progress) as executor:
        progress.slots = executor.slots
        with progress:
            return walk(nodes.values(), executor, report, work.known)


def _result_in(walked: Walked[Any]) -> Callable[[Any], Any]:
    def result(node: RunNode | Computation | Stored) -> Any:
        if isinstance(node, Stored):
            return read_stored(node)
        if (failure := walked.failure(node.id)) is not None:
            log.info("  %s: %s", node.label, failure.reason)
            raise EvenlyError(f"{node.label} failed: {failure.reason}")
        return walked.result(node.id)

    return result


def _in_order(verdicts: Iterable[Verdict]) -> list[Verdict]:
    order = {each.id: k for k, each in enumerate(chosen_claims(()))}
    return sorted(verdicts, key=lambda verdict: order.get(verdict.id, len(order)))
