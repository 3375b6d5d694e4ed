"""Does `compare` call a difference real only when it is? Measured on this machine, with real processes.

A/A: the same plugin against itself, 40 times; at most 1 comparison may call it faster or slower. Power: a plugin that
does 10 % more work is called slower in at least 19 of 20 comparisons, one that does 3 % more is never called faster.
The replicates of all sides are interleaved in random order. Takes about 4 minutes; exits 1 when a bound is broken::

    python benchmarks/aa_and_power.py
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import registry, rows
from bench.cells import Cell, cells
from bench.compare import Verdict, compare
from bench.launch import Launcher
from bench.machine import environment_key
from bench.noise import NoiseFloor, noise_file, read_noise
from bench.prepare import describe_machine
from bench.results import Row, Time
from bench.sweep import make_sweep

UNITS = 100  # attentions in one call: 10 % and 3 % more are whole numbers of them
AA, POWER = 40, 20
FALSE_CALLS, MISSES = 1, 1  # at most
TIMEOUT_S = 60.0
PLUGIN = '''
"""A fixed number of attentions in a row."""

from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from bench.variant import Shape, variant


@variant(kind="exact", paper="none: made for the proof of power")
class Attention(nn.Module):
    """A fixed number of attentions in a row."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()

    def forward(self, q, k, v, *, key_mask=None):
        for _ in range({units}):
            out = scaled_dot_product_attention(q, k, v)
        return out
'''


class Bench:
    """Measures versions of the plugin; a version is named by the number of its units of work."""

    def __init__(self, launcher: Launcher, folder: Path, *, replicates: int, sample_s: float, seed: int) -> None:
        self._launcher, self._folder = launcher, folder
        self._replicates, self._sample_s = replicates, sample_s
        self._order = random.Random(seed)
        self.environment: dict[str, Any] = describe_machine(launcher)["environment"]
        self.spreads: list[float] = []
        self.others: list[float] = []

    def cell(self, units: int) -> Cell:
        """The cell of one version: one thread, 64 positions, two heads."""
        path = self._folder / str(units) / "worker_of_known_length.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(PLUGIN.format(units=units), encoding="utf-8")
        sweep = make_sweep({
            "variant": str(path), "workload": "attention", "pass": "forward", "seq_len": 64, "heads": 2,
            "causal": False, "threads": 1, "device": "cpu",
        })  # fmt: skip
        key = environment_key(self.environment)
        (made,) = cells(sweep, registry.entries([str(path)]), devices=["cpu"], threads=1, environment=key)
        return made

    def rows(self, *units: int) -> list[Row]:
        """A row for each version, the same version twice if asked; their replicates interleaved in random order."""
        sides = [self.cell(number) for number in units]
        samples: list[list[list[float]]] = [[] for _ in sides]
        for _ in range(self._replicates):
            for side in self._order.sample(range(len(sides)), len(sides)):
                samples[side].append(self._replicate(sides[side]))
        return [self._row(cell, found) for cell, found in zip(sides, samples, strict=True)]

    def _replicate(self, cell: Cell) -> list[float]:
        request = {
            "function": "measure", "cell": rows.cell_data(cell), "decompose": False, "budget_s": self._sample_s,
            "memory_limit": None,
        }  # fmt: skip
        reply = self._launcher.call(request, timeout_s=TIMEOUT_S)
        if reply["status"] != "ok":
            sys.exit(f"a replicate failed: {reply['status']}: {reply['reason']}")
        self.others.append(reply["others"])
        found: list[float] = reply["samples_s"]
        return found

    def _row(self, cell: Cell, samples: list[list[float]]) -> Row:
        medians = [rows.median_of(found) for found in samples]
        self.spreads.append(statistics.stdev(medians) / statistics.median(medians))
        time = Time(median_s=statistics.median(medians), replicates=len(medians), samples_s=samples)
        empty = rows.without_figures(cell, "power", "ok", "", self.environment)
        return empty.model_copy(update={"time": time, "reason": None})


def floor_of(environment: dict[str, Any]) -> NoiseFloor:
    """The stored noise floor of this machine, else the default: what `compare` would use."""
    path = noise_file(environment)
    floor = read_noise(path) if path.is_file() else NoiseFloor()
    origin = str(path) if path.is_file() else "by default; measure it with: python -m bench noise"
    print(f"noise floor {100 * floor.share('cpu'):.1f} % ({origin})")
    return floor


def false_calls(bench: Bench, floor: NoiseFloor, count: int) -> int:
    """Comparisons of the same code that call a difference."""
    pairs = [bench.rows(UNITS, UNITS) for _ in range(count)]
    found = [compare([before], [after], floor)[0] for before, after in pairs]
    called = sum(verdict.verdict in ("faster", "slower") for verdict in found)
    print(f"A/A: {called} of {count} comparisons of the same code call a difference (at most {FALSE_CALLS})")
    show(found)
    return called


def power(bench: Bench, floor: NoiseFloor, count: int) -> tuple[int, int]:
    """(comparisons that miss 10 % more work, comparisons that call 3 % more work faster)."""
    ten, three = [], []
    for _ in range(count):
        base, *others = bench.rows(UNITS, UNITS * 110 // 100, UNITS * 103 // 100)
        ten.append(compare([base], [others[0]], floor)[0])
        three.append(compare([base], [others[1]], floor)[0])
    missed = sum(verdict.verdict != "slower" for verdict in ten)
    print(f"10 % slower: found in {count - missed} of {count} comparisons (at least {count - MISSES})")
    show(ten)
    inverted = sum(verdict.verdict == "faster" for verdict in three)
    print(f"3 % slower: called faster in {inverted} of {count} comparisons (never)")
    show(three)
    return missed, inverted


def show(found: list[Verdict]) -> None:
    """The ratios and verdicts behind a count."""
    ratios = [verdict.ratio for verdict in found if verdict.ratio is not None]
    calls = {name: sum(verdict.verdict == name for verdict in found) for name in ("faster", "slower", "same", "unsure")}
    told = ", ".join(f"{number} {name}" for name, number in calls.items())
    print(
        f"  {told}; ratios {min(ratios):.3f} to {max(ratios):.3f}, median {statistics.median(ratios):.3f}", flush=True
    )


def main() -> int:
    """Run both proofs and print the counts; 1 when a bound is broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the comparisons, to see that it runs")
    parser.add_argument("--replicates", type=int, default=10, help="of each side; what a run takes at most by default")
    parser.add_argument("--sample-s", type=float, default=0.12, help="seconds a replicate samples for")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the replicates")
    options = parser.parse_args()
    share = 10 if options.quick else 1
    with Launcher() as launcher, tempfile.TemporaryDirectory() as folder:
        bench = Bench(
            launcher, Path(folder), replicates=options.replicates, sample_s=options.sample_s, seed=options.seed
        )
        floor = floor_of(bench.environment)
        called = false_calls(bench, floor, AA // share)
        missed, inverted = power(bench, floor, POWER // share)
    print(f"spread of the replicates of one row: median {100 * statistics.median(bench.spreads):.1f} %")
    print(f"other processes kept {100 * statistics.mean(bench.others):.0f} % of all processors busy")
    return int(called > FALSE_CALLS or missed > MISSES or inverted > 0)


if __name__ == "__main__":
    sys.exit(main())
