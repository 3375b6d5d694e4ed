"""The longest lengths on 24 GiB: `local` and `linear` forward at n = 1,048,576 and train at n = 262,144, batch 1.

Each in a process of its own, causal, float32, 8 heads of width 64, all processors: one warm call is timed after a
profiled one, whose allocator events give the peak. Exits 1 when one of them does not get through::

    python benchmarks/longest.py
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys

from bench import machine, registry
from bench.cells import Cell, cells
from bench.sweep import make_sweep

GIB = 2**30
CASES = (
    ("local", "forward", 2**20),
    ("linear", "forward", 2**20),
    ("local", "train", 2**18),
    ("linear", "train", 2**18),
)


def cell(variant: str, pass_: str, n: int) -> Cell:
    """The operation alone."""
    threads = machine.default_threads()
    sweep = make_sweep({"variant": variant, "workload": "attention", "seq_len": n, "pass": pass_, "causal": True})
    return cells(sweep, registry.entries(), devices=["cpu"], threads=threads, environment="longest")[0]


def measure(of: Cell) -> tuple[float, int, int, int]:
    """(seconds of a call, bytes of inputs, peak bytes above them, resident high-water mark of the process)."""
    from bench.measure import kernels, memory, workload
    from bench.measure import time as timing

    machine.set_process_state(of.threads, of.seed)
    built = workload.build(of, registry.load(of.source), of.device)
    inputs = memory.tensor_bytes([*built.inputs, *built.params])
    peak, _ = memory.measure_peak(built.call, of.device, kernels.profile_call(built.call, of.device))
    seconds, _ = timing.sample(built.call, machine.Watch("cpu"), 1)
    assert peak is not None
    return seconds, inputs, peak, machine.process_bytes("VmHWM")


def main() -> int:
    """Print a line for each case; 1 when one failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--shorter", type=int, default=1, help="divide all lengths by this, to see that it runs")
    options = parser.parse_args()
    failed = 0
    for variant, pass_, n in CASES:
        of = cell(variant, pass_, n // options.shorter)
        name = f"{variant} {pass_} n={of.seq_len:,}"
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            try:
                seconds, inputs, peak, process = pool.apply_async(measure, (of,)).get(timeout=1200)
            except (RuntimeError, MemoryError, multiprocessing.TimeoutError) as error:
                failed += 1
                print(f"{name:28} {type(error).__name__}: {error}", flush=True)
                continue
        print(
            f"{name:28} {seconds:8.2f} s   inputs {inputs / GIB:5.2f} GiB   peak of the call {peak / GIB:5.2f} GiB   "
            f"process {process / GIB:5.2f} GiB",
            flush=True,
        )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
