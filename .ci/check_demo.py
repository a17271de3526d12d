"""Run the demo and check it: time, memory, every run with every metric, controls of equal cost, what must be found."""

import json
import resource
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

folder = Path(sys.argv[1])


def seconds_of_demo(out: Path) -> float:
    started = time.monotonic()
    subprocess.run(["evenly", "demo", "--out", str(out)], check=True)
    return time.monotonic() - started


seconds = seconds_of_demo(folder)
if seconds > 120:  # cores may be shared: what it takes is the better of two runs
    seconds = min(seconds, seconds_of_demo(folder.with_name("again")))
gigabytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20  # of the largest process; there are three
results = json.loads((folder / "results.json").read_text())
rows = results["rows"]
keys = [(row["data"], row["arm"], row["seed"]) for row in rows]
assert len(keys) == len(set(keys)), "a run stands twice in results.json"
for row in rows:
    for metric in ("accuracy", "worst_group", "train_weighted", "worst_class", "loss"):
        assert row["test"][metric] is not None, (row["arm"], metric)
    assert row["cost"] > 0
    assert row["cost_multiple"] > 0

summaries = {table["data"]: {entry["arm"]: entry for entry in table["summary"]} for table in results["comparisons"]}
for summary in summaries.values():
    for entry in summary.values():
        if entry["control"]:
            assert abs(entry["control_cost_multiple"] / entry["cost_multiple"] - 1) < 0.05, entry["arm"]

gain = summaries["patches"]["useful+sgd"]["accuracy"]["difference"]
assert gain["low"] > 0, f"USEFUL's gain on patch data is not clear: {gain}"
digits = summaries["shortcut-digits"]
for arm in ("pde+sgd", "group_dro+sgd", "subsample+sgd"):
    raised = digits[arm]["worst_group"]["mean"] - digits["erm+sgd"]["worst_group"]["mean"]
    assert raised > 0.1, f"{arm} raises the worst group by {raised:.3f} only"


class Page(HTMLParser):
    """Collects what the page would load from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href", "xlink:href") and value and not value.startswith(("#", "data:")):
                self.outside.append(value)


page = Page()
page.feed((folder / "report.html").read_text())
assert not page.outside, f"the page is not self-contained: {page.outside[:3]}"
golden = Path(__file__).parents[1] / "tests" / "golden"
subprocess.run([sys.executable, golden / "make.py", "--demo", folder, "--compare", golden / "numbers.json"], check=True)
assert seconds <= 120, f"the demo took {seconds:.0f} s"
assert 3 * gigabytes < 2, f"the demo's largest process took {gigabytes:.2f} GB"
print(f"demo checked: {len(rows)} runs, {seconds:.0f} s, {gigabytes:.2f} GB in the largest of three processes")
