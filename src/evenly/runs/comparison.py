"""A comparison: its runs as rows, its arms as summaries, and what was asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attrs import define, field, frozen

from evenly.errors import EvenlyError
from evenly.files import as_path, read_json, write_json
from evenly.runs.arms import Arm
from evenly.runs.folder import FORMAT
from evenly.runs.results import SHOWN
from evenly.runs.run import Run, load
from evenly.runs.summary import METRICS, Row, Summary, summarise
from evenly.settings import Settings
from evenly.values import Value, html_table

if TYPE_CHECKING:
    import pandas


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


@define(repr=False)
class Comparison:
    """What came of a comparison.

    Args:
        rows: one per run, controls included.
        summary: one per arm.
        others: rows of runs that earlier calls left in the same folder and this one did not ask for.
        runs: the runs themselves, by arm and seed.
    """

    data: str
    plan: ComparisonPlan
    rows: tuple[Row, ...]
    summary: tuple[Summary, ...]
    others: tuple[Row, ...] = ()
    runs: dict[tuple[Arm, int], Run] = field(factory=dict, repr=False)
    out: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        """What `results.json` holds."""
        folders = {id(row): self._folder(row) for row in self.rows}
        return {
            "format": FORMAT,
            "data": self.data,
            "plan": self.plan.to_dict(),
            "summary": [each.to_dict() for each in self.summary],
            "rows": [{**row.to_dict(), "folder": folders[id(row)]} for row in self.rows],
            "others": [row.to_dict() for row in self.others],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Comparison:
        """Made again from `to_dict`, without the runs themselves."""
        summary = tuple(Summary.from_dict(each) for each in values["summary"])
        plan = ComparisonPlan.from_dict(values["plan"])
        return cls(values["data"], plan, _rows(values["rows"]), summary, _rows(values["others"]))

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

    def lines(self) -> Iterator[tuple[Summary, Summary | None]]:
        """Every method with its control, as tables have them; a control alone where its method is not in the table."""
        for each in self.summary:
            if self.by_arm(each.arm.control_of) is None:
                yield each, self.by_arm(each.control)

    @property
    def headline(self) -> str:
        """The metric that verdicts are about: worst-group accuracy where the selection rule goes by groups."""
        has_groups = any("worst_group" in each.metrics for each in self.summary)
        return "worst_group" if "group" in self.plan.rule and has_groups else "accuracy"

    def to_pandas(self, per: Literal["run", "method"] = "run") -> pandas.DataFrame:
        """A row per run: the arm, the seed, the cost, and the metrics of the split that is judged.

        Per method: the means, and the difference from its control in the headline metric with both intervals.
        """
        try:
            import pandas as pd
        except ImportError:
            raise EvenlyError("to_pandas needs pandas; run: pip install 'evenly[pandas]'") from None
        if per == "method":
            return pd.DataFrame([self._flat(*line) for line in self.lines()])
        return pd.DataFrame([_flat(row) for row in self.rows])

    def _flat(self, summary: Summary, control: Summary | None) -> dict[str, Any]:
        flat: dict[str, Any] = {"method": summary.arm.name, "control": None if control is None else control.arm.name}
        flat |= {name: summary.mean(name) for name in METRICS} | {"cost_multiple": summary.cost_multiple}
        difference = summary.difference(self.headline)
        if difference is None:
            return flat
        return flat | {"difference_in": self.headline, **difference.to_dict(), "outcome": difference.outcome}

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
            lines.append((each.arm.name, *shares, f"{each.cost_multiple:.2f}", *difference))
        return html_table(lines)

    def _folder(self, row: Row) -> str | None:
        run = self.runs.get((row.arm, row.seed))
        if run is None or run.folder is None or self.out is None:
            return None
        return run.folder.relative_to(self.out).as_posix()


def read_rows(folder: Path) -> tuple[Row, ...]:
    """The rows that earlier calls left in a comparison's folder."""
    again = "remove it, and the runs are read again"
    content = read_json(folder / "results.json", again)
    if content is None:
        return ()
    try:
        return _rows([*content["rows"], *content["others"]])
    except (EvenlyError, KeyError, TypeError) as error:
        raise EvenlyError(f"{folder / 'results.json'} is damaged ({error}); {again}") from None


def load_comparison(folder: str | Path) -> Comparison:
    """A comparison from its folder, with its runs."""
    path = as_path(folder, "folder")
    content = read_json(path / "results.json", "compare again")
    if not isinstance(content, dict) or "rows" not in content:
        raise EvenlyError(f"{path} holds no finished comparison; give the folder that `evenly compare` left behind")
    if content.get("format") != FORMAT:
        raise EvenlyError(f"{path} was written by evenly 0.1; compare again with this version")
    try:
        table = Comparison.from_dict(content)
    except (EvenlyError, KeyError, TypeError) as error:
        raise EvenlyError(f"{path / 'results.json'} is damaged ({error}); compare again") from None
    table.out = path
    for row, each in zip(table.rows, content["rows"], strict=True):
        if each.get("folder") and (path / each["folder"]).is_dir():
            table.runs[row.arm, row.seed] = load(path / each["folder"])
    return table


def _rows(rows: Iterable[Any]) -> tuple[Row, ...]:
    return tuple(Row.from_dict({name: value for name, value in dict(row).items() if name != "folder"}) for row in rows)


def _flat(row: Row) -> dict[str, Any]:
    result = row.result
    flat: dict[str, Any] = {"method": row.arm.method, "optimizer": row.arm.optimizer, "seed": row.seed}
    flat |= {f"swept {name}": value for name, value in row.arm.swept.items()}
    flat |= {"arm": row.arm.name, "control": None if row.control is None else row.control.name}
    flat |= {"cost": result.cost, "cost_multiple": result.cost_multiple, "split": result.judged}
    return flat | {name: result.measured.metric(name) for name in (*METRICS, "loss")}


__all__ = ["Comparison", "ComparisonPlan", "load_comparison", "read_rows", "summarise"]
