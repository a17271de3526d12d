"""`evenly demo`: the main job on data that ships with evenly, in about a minute on two cores.

Patch data: does SAM, does USEFUL make the difficult feature count? Shortcut digits, real images: a bright edge gives
the label away on 97% of the training images. Which method still reads the digit where the edge is wrong?
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from evenly.errors import EvenlyError
from evenly.experiment.comparing import compare
from evenly.files import holds_something, write_json
from evenly.report import write_report
from evenly.runs.comparison import Comparison
from evenly.runs.folder import FORMAT

COMPARISONS: dict[str, dict[str, Any]] = {
    "patches": {
        "data_options": {"n": 800, "beta_d": 0.4},
        "methods": ["erm", "erm+sam", "useful"],
        "epochs": 700,
        "lr": 0.3,
        "evaluate_every": 20,
        "model_options": {"sigma_0": 0.1},
    },
    "shortcut-digits": {"methods": ["erm", "erm+sam", "useful", "pde", "group_dro", "subsample"]},
}
SEEDS = {"patches": 8, "shortcut-digits": 4}
PAGES = ("results.json", "report.html")
FIRST_SEED = 10
"""The digits' recipe was chosen on the validation sets of seeds 0-9. The patches' length was picked by test accuracy on
seeds 0-3 and then held against four others on the validation sets of seeds 20-27. The patches have eight seeds because
seeds 10-13 alone left USEFUL's gain unclear, +1.6 points [-0.7, 3.9]: its interval is not that of a fixed plan."""


def demo(
    out: str | Path = "evenly-demo", seed: int = FIRST_SEED, device: str = "cpu", jobs: int = 2
) -> list[Comparison]:
    """Run both comparisons on seeds from `seed` on; leaves `results.json` and `report.html`, and resumes."""
    out, started = Path(out), time.perf_counter()
    if holds_something(out) and not all(path.name in (*COMPARISONS, *PAGES) for path in out.iterdir()):
        raise EvenlyError(f"{out} holds something else than a demo; choose another out")
    tables = [
        compare(data, **settings, seeds=range(seed, seed + SEEDS[data]), device=device, jobs=jobs, out=out / data)
        for data, settings in COMPARISONS.items()
    ]
    seconds = time.perf_counter() - started
    write_json(out / "results.json", {"format": FORMAT, "comparisons": list(COMPARISONS), "seconds": seconds})
    write_report(out, runs=False)
    return tables
