"""A comparison: its runs as rows, its arms as summaries, and what was asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from evenly.errors import EvenlyError
from evenly.files import as_path, atomic, make_folder, read_json, write_json
from evenly.runs import tables
from evenly.runs.arms import Arm
from evenly.runs.folder import FORMAT
from evenly.runs.results import SHOWN
from evenly.runs.run import Run, load
from evenly.runs.search import Search
from evenly.runs.summary import METRICS, Row, Summary, headline
from evenly.settings import Settings
from evenly.values import Value, html_table

if TYPE_CHECKING:
    import pandas

DAMAGED = "remove it and compare again, which reads the runs"
"""The way out where a comparison's results are damaged."""


@frozen
class ComparisonPlan(Value):
    """What was asked for.

    Args:
        options: what single methods have of their own, from the data's recipe and from the user.
        in_common: the settings of ERM; a name in `differs` has another value in some arm.
        rule: which epoch's weights are used.
        judged: the split that arms are judged on.
    """

    methods: tuple[str, ...]
    optimizers: tuple[str, ...]
    seeds: tuple[int, ...]
    model: str
    rule: str
    judged: str
    in_common: Settings
    differs: tuple[str, ...] = ()
    model_options: Mapping[str, Any] = field(factory=dict)
    options: Mapping[str, Mapping[str, Any]] = field(factory=dict)
    sweep: Mapping[str, tuple[Any, ...]] = field(factory=dict)
    data_options: Mapping[str, Any] = field(factory=dict)


@frozen
class Failure(Value):
    """A run that failed: its name to the user, and the reason in one line."""

    label: str
    seed: int
    reason: str


@define(repr=False)
class Comparison:
    """What came of a comparison.

    Args:
        rows: one per run, controls included, also those of earlier calls in the same folder.
        summary: one per arm.
        others: rows that earlier calls left in the same folder and that answer another question: their weights were
            chosen by another rule, or other names were swept.
        runs: the runs themselves, by arm and seed.
        failures: the runs that this call asked for and that failed.
        search: how the values of its arms and controls were chosen, where they were searched.
    """

    data: str
    plan: ComparisonPlan
    rows: tuple[Row, ...]
    summary: tuple[Summary, ...] = ()
    others: tuple[Row, ...] = ()
    runs: dict[tuple[Arm, int], Run] = field(factory=dict, repr=False)
    out: Path | None = None
    failures: tuple[Failure, ...] = ()
    search: Search | None = None

    def to_dict(self) -> dict[str, Any]:
        """What `results.json` holds."""
        return {
            "format": FORMAT,
            "data": self.data,
            "plan": self.plan.to_dict(),
            "summary": [each.to_dict() for each in self.summary],
            "rows": [row.to_dict() for row in self.rows],
            "others": [row.to_dict() for row in self.others],
            **({"failures": [each.to_dict() for each in self.failures]} if self.failures else {}),
            **({} if self.search is None else {"search": self.search.to_dict()}),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Comparison:
        """Made again from `to_dict`, without the runs themselves."""
        summary = tuple(Summary.from_dict(each) for each in values["summary"])
        plan = ComparisonPlan.from_dict(values["plan"])
        rows, others = (tuple(Row.from_dict(row) for row in values[name]) for name in ("rows", "others"))
        failures = tuple(Failure.from_dict(each) for each in values.get("failures", ()))
        search = None if "search" not in values else Search.from_dict(values["search"])
        return cls(values["data"], plan, rows, summary, others, failures=failures, search=search)

    def save(self, path: str | Path) -> None:
        write_json(Path(path), self.to_dict())

    def __repr__(self) -> str:
        arms = ", ".join(each.arm.name for each in self.arms)
        return f"Comparison({len(self.rows)} runs on {self.data}: {arms})"

    def by_arm(self, arm: Arm | None) -> Summary | None:
        """An arm's summary."""
        return next((each for each in self.summary if each.arm == arm), None)

    @property
    def arms(self) -> list[Summary]:
        """The summaries of all arms that are no control of another."""
        return [each for each in self.summary if each.arm.control_of is None]

    def fewer_seeds(self, summary: Summary) -> str:
        """Of an arm with fewer seeds than another, their number in words."""
        seeds = summary.seeds
        return "" if seeds == max(each.seeds for each in self.summary) else f"{seeds} seed{'s' * (seeds != 1)}"

    @property
    def averaged(self) -> str:
        """What the numbers of an arm are, in words."""
        seeds = [each.seeds for each in self.summary]
        averaged = f"mean ± standard deviation over {max(seeds)} seeds" if max(seeds) > 1 else "one seed"
        return averaged + (", or as many as stand beside a method" if min(seeds) < max(seeds) else "")

    def lines(self) -> Iterator[tuple[Summary, Summary | None]]:
        """Every method with its control, as tables have them; a control alone where its method is not in the table."""
        for each in self.summary:
            if self.by_arm(each.arm.control_of) is None:
                yield each, self.by_arm(each.control)

    @property
    def headline(self) -> str:
        """The metric that verdicts are about: worst-group accuracy where the selection rule goes by groups."""
        return headline(self.plan.rule, self.summary)

    def to_pandas(self, per: tables.Per = "run") -> pandas.DataFrame:
        """A row per run: the arm, the seed, the cost, and the metrics of the split that is judged.

        Per method: the means, and the difference from its control in the headline metric with both intervals.
        """
        try:
            import pandas as pd
        except ImportError:
            raise EvenlyError("to_pandas needs pandas; run: pip install 'evenly[pandas]'") from None
        return pd.DataFrame(tables.rows(self, per))

    def to_csv(self, path: str | Path | None = None, per: tables.Per = "run") -> str:
        """What `to_pandas` has, as the text of a csv file; also written to a path, where one is given."""
        return _written(tables.csv_text(tables.rows(self, per)), path)

    def to_latex(self, path: str | Path | None = None, per: tables.Per = "method") -> str:
        """A table for LaTeX with the package booktabs; also written to a path, where one is given.

        Every method has its control of equal cost under it. The best in the headline metric is bold where it is
        clearly above its control.
        """
        return _written(tables.latex(self, per), path)

    def _repr_html_(self) -> str:
        against = f"{self.headline.replace('_', ' ')} against control, points"
        over = f"over {SHOWN[self.plan.judged]} examples"
        lines: list[Sequence[str]] = [
            ("method", "accuracy, %", "worst group, %", "cost, × ERM", against, over, "over seeds")
        ]
        for each in (each for line in self.lines() for each in line if each is not None):
            shares = ("–" if (m := each.mean(name)) is None else f"{100 * m:.1f}" for name in METRICS[:2])
            d = each.difference(self.headline)
            difference = ("", "", "") if d is None else (d.points, d.over_examples, d.over_seeds)
            name = ", ".join(filter(None, (each.arm.name, self.fewer_seeds(each))))
            lines.append((name, *shares, f"{each.cost_multiple:.2f}", *difference))
        return html_table(lines)


def read_content(folder: Path) -> dict[str, Any] | None:
    """What `results.json` in a folder holds, its checksum and its format checked; None where there is none."""
    content = read_json(folder / "results.json", DAMAGED)
    if content is None:
        return None
    if not isinstance(content, dict) or "rows" not in content:
        raise EvenlyError(f"{folder} holds no finished comparison; give the folder that `evenly compare` left behind")
    if content.get("format") != FORMAT:
        raise EvenlyError(f"{folder} was written by evenly 0.1; compare again with this version")
    return content


def read_comparison(folder: Path) -> Comparison | None:
    """The comparison that is in a folder, without the runs themselves; None where there is none."""
    if (content := read_content(folder)) is None:
        return None
    try:
        return Comparison.from_dict(content)
    except (EvenlyError, KeyError, TypeError) as error:
        raise EvenlyError(f"{folder / 'results.json'} is damaged ({error}); {DAMAGED}") from None


def load_comparison(folder: str | Path) -> Comparison:
    """A comparison from its folder, with its runs."""
    path = as_path(folder, "folder")
    if (table := read_comparison(path)) is None:
        raise EvenlyError(f"{path} holds no finished comparison; give the folder that `evenly compare` left behind")
    table.out = path
    for row in table.rows:
        if row.folder is not None and (path / row.folder).is_dir():
            table.runs[row.arm, row.seed] = load(path / row.folder)
    return table


def _written(text: str, path: str | Path | None) -> str:
    if path is not None:
        place = as_path(path, "path")
        make_folder(place.parent)
        with atomic(place) as file:
            file.write(text.encode())
    return text


__all__ = ["Comparison", "ComparisonPlan", "load_comparison", "read_comparison", "read_content"]
