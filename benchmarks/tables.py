"""How long reading a csv file takes, how much memory, and whether time grows with the number of rows only.

    python benchmarks/tables.py                 # writes about 600 MB to a temporary folder
    python benchmarks/tables.py --folder DIR --rows 100000

Numbers have 6 decimals. Each file is read by a process of its own, so that its peak of memory is its own; the time
includes splitting and standardising, not the imports.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

READ = """
import json, resource, sys, time
import pyarrow.compute, pyarrow.csv
from evenly.data import load
start = time.perf_counter()
data = load(sys.argv[1])
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
print(json.dumps({"seconds": seconds, "gib": peak, "rows": sum(map(len, data.splits.values()))}))
"""
BLOCK = 10_000


def written(path: Path, rows: int, columns: int) -> Path:
    """A file of numbers and two classes; the same block of rows over and over."""
    block = min(rows, BLOCK)
    x = np.random.default_rng(0).normal(size=(block, columns))
    lines = [",".join([*(f"{number:.6f}" for number in row), "ab"[i % 2]]) for i, row in enumerate(x)]
    text = "\n".join(lines) + "\n"
    with path.open("w") as file:
        file.write(",".join([*(f"x{j}" for j in range(columns)), "label"]) + "\n")
        for _ in range(rows // block):
            file.write(text)
    return path


def measured(path: Path) -> dict[str, float]:
    done = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where the files are written; a temporary folder without it")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the longest file")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        results = {}
        for name, rows, columns in (("short", args.rows // 10, 50), ("long", args.rows, 50), ("wide", 200, 40_000)):
            path = written(Path(folder) / f"{name}.csv", rows, columns)
            results[name] = measured(path)
            size = path.stat().st_size / 2**20
            print(
                f"{rows:>9,} rows x {columns:>6,} columns, {size:4.0f} MiB: {results[name]['seconds']:6.2f} s, "
                f"peak {results[name]['gib']:.2f} GiB",
                flush=True,
            )
            path.unlink()
    per_row = {name: each["seconds"] / each["rows"] for name, each in results.items()}
    for what, value, limit in (
        ("seconds of the long file, of 30", results["long"]["seconds"] / 30, 1),
        ("GB of the long file, of 2", results["long"]["gib"] * 2**30 / 2e9, 1),
        ("seconds of the wide file, of 10", results["wide"]["seconds"] / 10, 1),
        ("time per row, long over short", per_row["long"] / per_row["short"], 1.2),
    ):
        print(f"{what:<34}{value:6.2f}   at most {limit:g}{'' if value <= limit else '   EXCEEDED'}")


if __name__ == "__main__":
    main()
