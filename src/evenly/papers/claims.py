"""A claim: what a paper states, what has to be computed or trained for it, and how the outcome is judged.

@claim(
    "useful/fig2ab",
    where="Figure 2 (a), (b)",
    states="Gradient descent learns the easy feature at about iteration 250, SAM at about 450.",
    rule="Over 12 seeds, the median of GD is within 190 to 310, and SAM is later on every seed.",
    uses=lambda scale: {"paths": [computed(alignments, seed=seed) for seed in scale.seeds(12)]},
)
def figure_2a(paths):
    return Judgement([Check("SAM is later on every seed", ...)], [measurement("GD", ...)], [Chart(...)])

`uses` names nodes: computations, training runs, files that were measured elsewhere. The same function below is called
with their results in the same places. A node that several claims name is computed once.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, Literal

from attrs import evolve, field, frozen

from evenly.errors import EvenlyError, shortened, unknown
from evenly.runs.verdict import PAPERS, Judgement, Statement

ScaleName = Literal["small", "paper"]
SCALES: tuple[ScaleName, ...] = ("small", "paper")
GPU = "a GPU"
Judge = Callable[..., Judgement]


@frozen
class Scale:
    """How large a claim is run: the paper's setting, or a smaller one for two cores that keeps the claim's meaning.

    Args:
        count: how many seeds the user asks for; each claim's own number where not given.
    """

    name: ScaleName = "small"
    count: int | None = None

    def seeds(self, count: int, first: int = 0) -> list[int]:
        """The seeds of a claim that has so many by itself."""
        return list(range(first, first + (self.count or count)))

    def pick(self, small: Any, paper: Any) -> Any:
        """A setting at this scale."""
        return small if self.name == "small" else paper


@frozen
class Claim:
    """A claim that can be judged, or the reason why it cannot.

    Args:
        uses: from a scale to nodes, in lists and mappings of any depth; the outermost is a mapping.
        judge: called with the results in the places of their nodes, by name.
        needs: data sets by name that do not come with the package, and `GPU`.
        scales: those that it can be run at.
        fidelity: of each scale; the statement's where it is not named.
    """

    statement: Statement
    uses: Callable[[Scale], Mapping[str, Any]] | None = None
    judge: Judge | None = None
    needs: tuple[str, ...] = ()
    scales: tuple[ScaleName, ...] = ()
    fidelity: Mapping[str, str] = field(factory=dict)

    @property
    def id(self) -> str:
        return self.statement.id

    def stated(self, scale: str) -> Statement:
        """The statement with the fidelity that it is run with at a scale."""
        return evolve(self.statement, fidelity=self.fidelity.get(scale, self.statement.fidelity))

    @property
    def untestable(self) -> str:
        """Why it can be judged at no scale; empty where it can."""
        return self.statement.fidelity.partition(": ")[2] if self.judge is None else ""


_REGISTERED: dict[str, Claim] = {}


def claim(
    id: str,
    *,
    where: str,
    states: str,
    rule: str,
    uses: Callable[[Scale], Mapping[str, Any]],
    published: Mapping[str, str] | None = None,
    choices: Sequence[str] = (),
    revised: str = "",
    fidelity: str | Mapping[str, str] = "paper",
    needs: Sequence[str] = (),
    scales: Sequence[ScaleName] = SCALES,
) -> Callable[[Judge], Judge]:
    """Register the function below as the judge of a claim; see `Claim` and `evenly.runs.verdict.Statement`."""

    def registered(judge: Judge) -> Judge:
        by_scale: Mapping[str, str] = fidelity if isinstance(fidelity, Mapping) else {each: fidelity for each in scales}
        statement = Statement(
            id, where, states, rule, by_scale[scales[0]], dict(published or {}), tuple(choices), revised
        )
        _register(Claim(statement, uses, judge, tuple(needs), tuple(scales), dict(by_scale)))
        return judge

    return registered


def untestable(id: str, *, where: str, states: str, why: str, published: Mapping[str, str] | None = None) -> None:
    """Register a claim that cannot be judged here, and why."""
    _register(Claim(Statement(id, where, states, "", f"not testable: {why}", dict(published or {}))))


def _register(new: Claim) -> None:
    if new.statement.paper not in PAPERS:
        raise unknown("paper", new.statement.paper, PAPERS)
    if new.id in _REGISTERED:
        raise EvenlyError(f"two claims are called {new.id!r}; give one another id")
    _REGISTERED[new.id] = new


def all_claims() -> dict[str, Claim]:
    """Every claim by id, in the order of the papers."""
    for paper in PAPERS:
        import_module(f"evenly.papers.{paper}")
    order = list(PAPERS)
    return dict(sorted(_REGISTERED.items(), key=lambda item: order.index(item[1].statement.paper)))


def chosen_claims(names: Iterable[str]) -> list[Claim]:
    """Claims by id or by paper; all of them where no name is given."""
    known = all_claims()
    chosen: dict[str, Claim] = {}
    for name in names:
        of_name = {id: each for id, each in known.items() if name in (id, each.statement.paper)}
        if not of_name:
            ids = {id.lower(): id for id in (*known, *PAPERS)}
            near = difflib.get_close_matches(str(name).lower(), ids, n=1)
            hint = f"did you mean {ids[near[0]]!r}?" if near else "`evenly reproduce` lists them"
            raise EvenlyError(f"no claim or paper is called {shortened(name)}; {hint}")
        chosen |= of_name
    return list(chosen.values()) or list(known.values())
