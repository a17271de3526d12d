"""`evenly demo`: the main job on data that ships with evenly, in about a minute on two cores.

Patch data: does SAM, does USEFUL make the difficult feature count? Shortcut digits, real images: a bright edge tells
the label on 97% of the training images; who still reads the digit where the edge is wrong?
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from evenly.comparison import Comparison, compare
from evenly.data import load
from evenly.files import write_json

COMPARISONS: list[dict[str, Any]] = [
    {
        "data": "patches",
        "data_options": {"n": 800, "beta_d": 0.4},
        "methods": ["erm", "erm+sam", "useful"],
        "epochs": 700,
        "lr": 0.3,
        "evaluate_every": 20,
        "model_options": {"sigma_0": 0.1},
    },
    {
        "data": "shortcut-digits",
        "methods": ["erm", "erm+sam", "useful", "pde", "group_dro", "subsample"],
    },
]
SEEDS = {"patches": 8, "shortcut-digits": 4}
FIRST_SEED = 10
"""The digits' recipe was chosen on the validation sets of seeds 0-9. The patches' length was picked by test accuracy on
seeds 0-3 and then held against four others on the validation sets of seeds 20-27. The patches have eight seeds because
seeds 10-13 alone left USEFUL's gain unclear, +1.6 points [-0.7, 3.9]: its interval is not that of a fixed plan."""


def demo(
    out: str | Path = "evenly-demo", seed: int = FIRST_SEED, device: str = "cpu", jobs: int = 2
) -> list[Comparison]:
    """Run both comparisons on seeds from `seed` on; leaves `results.json` and `report.html`, and resumes."""
    from evenly.report import comparison_page

    out, started = Path(out), time.perf_counter()
    tables = []
    for settings in COMPARISONS:
        seeds = range(seed, seed + SEEDS[settings["data"]])
        tables.append(compare(**settings, seeds=seeds, device=device, jobs=jobs, out=out / settings["data"]))
    write_json(out / "results.json", {
        "rows": [row for table in tables for row in table.rows],
        "comparisons": [{key: value for key, value in table.as_json().items() if key != "rows"} for table in tables],
    })  # fmt: skip
    data = [load(settings["data"], seed=seed, **settings.get("data_options", {})) for settings in COMPARISONS]
    comparison_page(tables, out / "report.html", data, title="evenly demo", seconds=time.perf_counter() - started)
    return tables
