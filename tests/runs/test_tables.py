"""A comparison as csv and LaTeX: read back by other readers, and in the form that LaTeX needs."""

from __future__ import annotations

import csv
import io
import re

import pytest
from attrs import evolve

from evenly import EvenlyError
from evenly.runs.arms import Arm
from evenly.runs.comparison import Comparison, ComparisonPlan
from evenly.runs.summary import Row, summarise
from evenly.runs.tables import BOOKTABS, escaped
from evenly.settings import Settings

ERM, PDE, USEFUL = Arm("erm", "sgd"), Arm("pde", "sgd"), Arm("useful", "sgd", {"useful.factor": 3, "note": 'a,"b"\n_&'})
UPSAMPLED = Arm("random_upsample", "sgd", USEFUL.swept, control_of=USEFUL)


@pytest.fixture
def table(result):
    """USEFUL is clearly above its control in accuracy; in the worst group PDE is the best, and not clearly."""
    rows = []
    for seed in range(3):
        shift = 0.01 * (seed - 1) ** 2
        rows += [
            Row(ERM, seed, result(0.8, (0.9, 0.7))),
            Row(USEFUL, seed, result(0.9 + shift, (0.9, 0.75 + shift), cost=96.0), UPSAMPLED),
            Row(UPSAMPLED, seed, result(0.7, (0.9, 0.75 - shift), cost=98.0)),
            Row(PDE, seed, result(0.85, (0.99, 0.72 + 0.1 * seed)), ERM),
        ]
    plan = ComparisonPlan(("erm", "useful"), ("sgd",), (0, 1, 2), "mlp", "last", "test", Settings())
    return Comparison("100% of a_b", plan, tuple(rows), summarise(rows))


@pytest.mark.parametrize("per", ["run", "method"])
def test_csv_reads_back_equal(table, per, tmp_path):
    pandas = pytest.importorskip("pandas", reason="needs pandas: pip install 'evenly[pandas]'")
    text = table.to_csv(tmp_path / "new" / "table.csv", per=per)
    assert (tmp_path / "new" / "table.csv").read_bytes().decode() == text == table.to_csv(per=per)
    again = pandas.read_csv(io.StringIO(text))
    expected = table.to_pandas(per)
    assert list(again.columns) == list(expected.columns)
    again, missing = (each.astype(object).where(each.notna(), None) for each in (again, expected))
    pandas.testing.assert_frame_equal(again, missing, rtol=1e-14)
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == (12 if per == "run" else 3)
    names = {row["arm" if per == "run" else "method"] for row in rows}
    assert names == ({ERM.name, PDE.name, USEFUL.name} | ({UPSAMPLED.name} if per == "run" else set()))
    assert [float(row["accuracy"]) for row in rows] == expected["accuracy"].tolist()


def body(text):
    """The caption, the heading and the lines of a LaTeX table, which has to be whole."""
    unescaped = re.sub(r"\\[{}$&#_%]", "", text.removeprefix(BOOKTABS))
    depth = 0
    for each in unescaped:
        depth += {"{": 1, "}": -1}.get(each, 0)
        assert depth >= 0
    assert depth == 0
    assert not set("%#_") & set(unescaped)
    for environment in ("table", "tabular"):
        assert text.count(f"\\begin{{{environment}}}") == text.count(f"\\end{{{environment}}}") == 1
    rows = [line for line in unescaped.splitlines() if line.endswith(" \\\\")]
    columns = re.search(r"\\begin{tabular}{(l?r+)}", text).group(1)
    assert {row.count("&") + 1 for row in rows} == {len(columns)}
    for line in text.splitlines():
        assert line.count("$") % 2 == line.count("\\$") % 2
    assert text.index("\\toprule") < text.index("\\midrule") < text.index("\\bottomrule")
    lines = text[text.index("\\toprule") : text.index("\\bottomrule")].splitlines()
    return re.search(r"\\caption{(.*)}\n", text).group(1), lines[1], lines[3:]


def test_latex_per_method_has_means_costs_and_what_is_clear_in_bold(table):
    caption, heading, lines = body(table.to_latex())
    assert heading == "Method & Accuracy & Worst group & Cost & Difference \\\\"
    assert len(lines) == 5
    assert lines[0] == "erm+sgd & $80.0 \\pm 0.0$ & $70.0 \\pm 0.0$ & $1.00$ &  \\\\"
    assert "$\\mathbf{90.7 \\pm 0.6}$ & $75.7 \\pm 0.6$ & $2.00$ & $+20.7\\;[19.2, 22.1]$" in lines[1]
    assert lines[2].startswith("\\quad control: random\\_upsample+sgd & $70.0 \\pm 0.0$ &")
    assert "$82.0 \\pm 10.0$" in lines[3]  # the best worst group, and not clearly above its control
    for part in ("100\\% of a\\_b", "test set", "over 3 seeds", "Selection rule: last", "Bold: the best accuracy,"):
        assert part in caption
    by_worst_group = evolve(table, plan=evolve(table.plan, rule="worst-group")).to_latex()
    assert "\\mathbf" not in by_worst_group  # accuracy, still clear, is not what several methods are corrected for
    assert "Bold: the best worst group," in by_worst_group
    table.summary = tuple(evolve(each, seeds=1) for each in table.summary)
    assert "one seed" in body(table.to_latex())[0]


def test_latex_per_run(table, tmp_path):
    _, heading, lines = body(table.to_latex(tmp_path / "table.tex", per="run"))
    assert heading == "Method & Seed & Accuracy & Worst group & Cost \\\\"
    assert len(lines) == 12
    assert lines[0] == "erm+sgd & 0 & $80.0$ & $70.0$ & $1.00$ \\\\"
    assert (tmp_path / "table.tex").read_text() == table.to_latex(per="run")
    with pytest.raises(EvenlyError, match="per must be"):
        table.to_latex(per="arm")


def test_names_are_escaped():
    assert escaped("a_b{c}%$&#") == "a\\_b\\{c\\}\\%\\$\\&\\#"
    assert escaped("\\x~^") == "\\textbackslash{}x\\textasciitilde{}\\textasciicircum{}"
    assert escaped("[*]\n<±") == "{[}{*}{]} $<$$\\pm$"
