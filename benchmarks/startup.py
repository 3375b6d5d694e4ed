"""What starting a replicate costs beyond the variant's own set-up, and what of a run is spent in samples and training.

Start: whole requests for a cell of `none` at n=64, which has next to nothing to set up, less the time inside its
samples: an upper bound of what the harness adds to every replicate (fork, isolation, empty-call overhead, reply, end).
At most 60 ms in the median. With `--quick`: the share of the wall time of the preset that lies inside timed samples and
training; at least half. Exits 1 when a bound is broken::

    python benchmarks/startup.py --quick
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

from bench import registry, rows
from bench.cells import Cell, cells
from bench.launch import Launcher
from bench.results import Row, read_run
from bench.sweep import make_sweep

REPEATS = 40
BUDGET_S = 0.02
MOST_S = 0.060
LEAST_SHARE = 0.5


def cell(pass_: str) -> Cell:
    """The cell of a variant that does next to nothing, on one thread."""
    sweep = make_sweep({"variant": "none", "workload": "attention", "seq_len": 64, "pass": pass_, "device": "cpu"})
    return cells(sweep, registry.entries(), devices=["cpu"], threads=1, environment="startup")[0]


def start_s(launcher: Launcher, pass_: str) -> list[float]:
    """Seconds of whole requests beyond their samples."""
    request = {
        "function": "measure", "cell": rows.cell_data(cell(pass_)), "decompose": False, "budget_s": BUDGET_S,
        "memory_limit": None,
    }  # fmt: skip
    found = []
    for _ in range(REPEATS + 1):  # the first starts the server too
        start = time.perf_counter()
        reply = launcher.call(request, timeout_s=60)
        wall = time.perf_counter() - start
        if reply["status"] != "ok":
            sys.exit(f"a replicate failed: {reply['status']}: {reply['reason']}")
        found.append(wall - sum(reply["samples_s"]) * reply["calls"])
    return found[1:]


def share(folder: Path) -> float:
    """Run the preset `quick` into a folder; the share of its wall time in which samples were timed or models trained.

    Trainings run side by side: what counts is the time in which at least one ran.
    """
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "bench", "run", "quick", "--out", str(folder)], check=False)
    wall = time.perf_counter() - start
    if done.returncode != 0:
        sys.exit(f"the run ended with exit code {done.returncode}")
    lines = (folder / "replicates.jsonl").read_text(encoding="utf-8").splitlines()
    replies = [json.loads(line)["reply"] for line in lines]
    sampled = sum(sum(reply["samples_s"]) * reply["calls"] for reply in replies)
    trained = spanned([row for row in read_run(folder)[0] if row.task is not None and row.wall_s])
    print(f"{wall:.0f} s in all: {sampled:.0f} s inside samples, {trained:.0f} s training")
    return (sampled + trained) / wall


def spanned(trainings: list[Row]) -> float:
    """Seconds in which at least one of the trainings ran."""
    spans = []
    for row in trainings:
        assert row.started_at is not None
        assert row.wall_s is not None
        first = datetime.fromisoformat(row.started_at).timestamp()
        spans.append((first, first + row.wall_s))
    total, end = 0.0, 0.0
    for first, last in sorted(spans):
        total += max(0.0, last - max(first, end))
        end = max(end, last)
    return total


def main() -> int:
    """Print the figures; 1 when a bound is broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="also run the preset quick (minutes)")
    options = parser.parse_args()
    with Launcher() as launcher:
        starts = {pass_: start_s(launcher, pass_) for pass_ in ("forward", "train")}
    for pass_, found in starts.items():
        low, middle, high = (1e3 * part for part in statistics.quantiles(found, n=4))
        print(f"start of a replicate, {pass_}: {middle:.0f} ms (quartiles {low:.0f} to {high:.0f}; at most 60)")
    broken = any(statistics.median(found) > MOST_S for found in starts.values())
    if options.quick:
        with tempfile.TemporaryDirectory() as folder:
            inside = share(Path(folder) / "quick")
        print(f"inside samples and training: {100 * inside:.0f} % of the wall time (at least 50 %)")
        broken |= inside < LEAST_SHARE
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
