"""Whether a paper's claim was seen to hold: what it states, the rule, the measured values, the lines of its figure.

`claims.json` in a folder of `evenly reproduce` holds these values. The pages are made from it alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from attrs import field, frozen

from evenly.errors import EvenlyError
from evenly.files import read_json, write_json
from evenly.runs.differences import mean as mean_of
from evenly.runs.differences import paired, sd
from evenly.runs.folder import FORMAT
from evenly.values import Value

CLAIMS = "claims.json"
PAPERS = {
    "useful": "Nguyen et al. 2024: Make the Most of Your Data",
    "balanced": "Springer et al. 2024: Sharpness-Aware Minimization Enhances Feature Quality via Balanced Learning",
    "stability": "Linear stability and coherence of SGD, random perturbation and SAM",
    "pde": "Deng et al. 2023: Robust Learning with Progressive Data Expansion",
}
"""The papers by the name that their claims begin with."""
Outcome = Literal["holds", "holds in part", "does not hold", "not testable here", "not run"]


@frozen
class Statement(Value):
    """A claim in words.

    Args:
        id: the paper and the place, as "useful/fig2ab".
        where: the place in the paper, as "Figure 2 (a), (b)".
        states: what the paper says, in our words.
        rule: how it is judged, written before it is run.
        fidelity: "paper" where what is run has the paper's setting, else "reduced: ...", "proxy: ..." or "not testable:
            ...", each with the reason.
        published: the paper's values by name.
        choices: settings that the paper leaves open, and what they are here.
        revised: what of the rule was changed, or known, after something had been measured; empty where nothing was.
    """

    id: str
    where: str
    states: str
    rule: str = ""
    fidelity: str = "paper"
    published: Mapping[str, str] = field(factory=dict)
    choices: tuple[str, ...] = ()
    revised: str = ""

    @property
    def paper(self) -> str:
        return self.id.partition("/")[0]


@frozen
class Check(Value):
    """A condition of the rule, and whether it was met. Without a main one a claim does not hold."""

    text: str
    met: bool
    main: bool = True


@frozen
class Measurement(Value):
    """A quantity over seeds: its mean and t-interval; the published value beside it, as the paper prints it.

    There is no mean where there are no values, or one of them is not finite.
    """

    name: str
    mean: float | None
    sd: float | None = 0.0
    low: float | None = None
    high: float | None = None
    seeds: int = 1
    published: str = ""
    unit: str = ""


@frozen
class Line(Value):
    """A line of a chart, or its dots: (x, y) averaged over seeds, with the spread where it is known."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    dots: bool = False


@frozen
class Chart(Value):
    """A chart like the paper's. `y_name` is its title; `marks` are places on x, as a separating epoch."""

    y_name: str
    x_name: str
    lines: Sequence[Line]
    log_x: bool = False
    log_y: bool = False
    marks: tuple[float, ...] = ()


@frozen
class HeatMap(Value):
    """Shares in [0, 1] over two axes: `cells` has a row per value of y."""

    title: str
    x_name: str
    y_name: str
    x_values: tuple[float, ...]
    y_values: tuple[float, ...]
    cells: tuple[tuple[float, ...], ...]


@frozen
class Judgement(Value):
    """What came of a claim: its checks, the measured values and what its figure draws."""

    checks: Sequence[Check]
    measurements: Sequence[Measurement] = ()
    charts: Sequence[Chart] = ()
    maps: Sequence[HeatMap] = ()

    @property
    def outcome(self) -> Outcome:
        """It holds where all checks are met, and in part where all main ones are."""
        if not any(check.main for check in self.checks):
            raise EvenlyError("a claim has no main check, so that nothing decides it; give it one")
        if not all(check.met for check in self.checks if check.main):
            return "does not hold"
        return "holds" if all(check.met for check in self.checks) else "holds in part"


@frozen
class Verdict(Value):
    """A claim, judged.

    Args:
        scale: "small" or "paper".
        reason: why it is not testable here.
        measured_on: the machine, and where it was measured at another time also the commit.
        seeds: how many were asked for, instead of the claim's own number; None also where that number is fixed.
    """

    statement: Statement
    scale: str
    outcome: Outcome
    judgement: Judgement | None = None
    reason: str = ""
    measured_on: str = ""
    seeds: int | None = None
    seconds: float = field(default=0.0, eq=False)

    @property
    def id(self) -> str:
        return self.statement.id


def measurement(name: str, values: Iterable[float], published: str = "", unit: str = "") -> Measurement:
    """A quantity from its value on each seed; the t-interval is there from three seeds on."""
    values = [float(value) for value in values]
    if not values or not all(map(math.isfinite, values)):
        return Measurement(name, None, None, seeds=len(values), published=published, unit=unit)
    interval = paired(values)
    return Measurement(name, mean_of(values), sd(values), interval.low, interval.high, len(values), published, unit)


def line(name: str, x: Sequence[Any], y: Sequence[Any], *, dots: bool = False) -> Line:
    """A line of a chart from any numbers."""
    return Line(name, tuple(map(float, x)), tuple(map(float, y)), dots)


def read_verdicts(folder: Path) -> dict[str, Verdict]:
    """The verdicts in a folder by claim; none where there is no `claims.json`."""
    path = folder / CLAIMS if folder.is_dir() or not folder.suffix else folder
    content = read_json(path, "remove it and run `evenly reproduce` again")
    if content is None:
        return {}
    if not isinstance(content, dict) or content.get("format") != FORMAT or "verdicts" not in content:
        raise EvenlyError(f"{path} holds no verdicts of this version; give another file or folder")
    return {verdict.id: verdict for verdict in map(Verdict.from_dict, content["verdicts"])}


def write_verdicts(folder: Path, verdicts: Iterable[Verdict]) -> None:
    write_json(folder / CLAIMS, {"format": FORMAT, "verdicts": [verdict.to_dict() for verdict in verdicts]})


def turned(before: Mapping[str, Verdict], now: Iterable[Verdict]) -> list[Verdict]:
    """The verdicts on claims that held before, whole or in part, and are judged worse now, or cannot be judged.

    Only those of one scale and of one number of seeds are compared.
    """
    rank = {"holds": 2, "holds in part": 1}
    return [
        verdict
        for verdict in now
        if (earlier := before.get(verdict.id)) is not None
        and (verdict.scale, verdict.seeds) == (earlier.scale, earlier.seeds)
        and rank.get(verdict.outcome, 0) < rank.get(earlier.outcome, 0)
    ]
