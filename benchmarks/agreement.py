"""Do our times agree with `torch.utils.benchmark` on the same calls, from 50 microseconds to 1 second?

The same call object is timed by both, alternating in one process: median of samples here, `blocked_autorange` there,
on one thread. Per size the median over the alternations of ours / theirs; at most 3 % off. Takes about 5 minutes; exits
1 when the bound is broken::

    python benchmarks/agreement.py
"""

from __future__ import annotations

import argparse
import statistics
import sys

from torch.utils.benchmark import Timer

from bench import machine, registry
from bench.cells import Cell, cells
from bench.measure import time as timing
from bench.measure import workload
from bench.sweep import make_sweep

WITHIN = 0.03
# (variant, pass, length): about 50 us, 200 us, 1 ms, 5 ms, 25 ms, 150 ms and 1 s on one core
CASES = (
    ("flash", "forward", 32),
    ("flash", "forward", 96),
    ("flash", "train", 96),
    ("full", "forward", 256),
    ("flash", "train", 512),
    ("full", "train", 1024),
    ("flash", "train", 4096),
)


def cell(variant: str, pass_: str, n: int) -> Cell:
    """A cell of the operation alone, on one thread."""
    sweep = make_sweep({"variant": variant, "workload": "attention", "seq_len": n, "pass": pass_, "causal": True})
    return cells(sweep, registry.entries(), devices=["cpu"], threads=1, environment="agreement")[0]


def ratios(of: Cell, rounds: int, budget_s: float) -> tuple[float, list[float]]:
    """(our median seconds, ours over theirs in each alternation)."""
    machine.set_process_state(1, 0)
    call = workload.build(of, registry.load(of.source), "cpu").call
    watch = machine.Watch("cpu")
    ours, found = [], []
    for turn in range(rounds):
        timer = Timer("call()", globals={"call": call}, num_threads=1)
        for side in ("ours", "theirs") if turn % 2 else ("theirs", "ours"):
            if side == "ours":
                ours.append(statistics.median(timing.measure(call, watch, budget_s=budget_s).samples_s))
            else:
                theirs = timer.blocked_autorange(min_run_time=budget_s).median
        found.append(ours[-1] / theirs)
    return statistics.median(ours), found


def main() -> int:
    """Print a line for each size; 1 when one is further off than allowed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=11, help="alternations per size")
    parser.add_argument("--budget-s", type=float, default=0.5, help="seconds either side samples for in each of them")
    options = parser.parse_args()
    worst = 0.0
    for case in CASES:
        seconds, found = ratios(cell(*case), options.rounds, options.budget_s)
        ratio = statistics.median(found)
        worst = max(worst, abs(ratio - 1))
        name = f"{case[0]} {case[1]} n={case[2]}"
        print(f"{name:24} {1e3 * seconds:10.3f} ms   ours / theirs {ratio:.4f}  ({min(found):.3f} to {max(found):.3f})")
    print(f"largest difference {100 * worst:.1f} % (at most {100 * WITHIN:.0f} %)")
    return int(worst > WITHIN)


if __name__ == "__main__":
    sys.exit(main())
