"""`noise`: measure how far the same code differs from itself on this machine, and store it for `compare`."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import machine, registry, rows
from bench.cells import Cell
from bench.errors import UserError
from bench.launch import Launcher
from bench.noise import NoiseFloor, noise_file, write_noise
from bench.prepare import Prepared, prepare
from bench.progress import Progress
from bench.report.digits import number
from bench.screen import Screen
from bench.stats import interval, noise_floor
from bench.sweep import make_sweep

ROUNDS = 12
SAMPLE_S = 0.3  # a replicate samples for this long
TIMEOUT_S = 120.0
MOST = 0.2  # a larger floor is a busy machine; stored, it would call every change the same
SWEEP = {
    "name": "noise",
    "variant": ["full", "flash", "linear"],
    "workload": ["attention"],
    "pass": ["forward"],
    "seq_len": [256, 1024],
}


def noise(*, out: str | None = None) -> int:
    """Measure the noise floor of this machine, print it and store it; returns the exit code.

    out: the file to write, by default results/noise/<machine>-<hash of the environment>.json. A floor above 20 % is not
    stored, and the code is 1.
    """
    messages = Console(stderr=True)
    sweep = make_sweep(SWEEP)
    with Launcher() as launcher, Progress(messages) as progress:
        prepared = prepare(sweep, registry.entries(), launcher)
        floor = measure_noise(prepared, launcher, progress, order_seed=random.SystemRandom().randrange(2**31))
    _show(floor, Screen(markup=False))
    if max(floor.shares.values()) > MOST:
        told = f"not stored: above {100 * MOST:.0f} % this machine is too busy to compare on; let it rest and try again"
        messages.print(told, markup=False, highlight=False)
        return 1
    path = Path(out) if out else noise_file(prepared.environment)
    write_noise(floor, path)
    messages.print(f"stored in {path}; compare uses it for runs of this machine", markup=False, highlight=False)
    return 0


def measure_noise(
    prepared: Prepared, launcher: Launcher, progress: Progress, *, order_seed: int, rounds: int = ROUNDS,
    sample_s: float = SAMPLE_S,
) -> NoiseFloor:  # fmt: skip
    """The noise floor from `rounds` whole replicates of each cell, every round in another random order.

    UserError when a cell cannot be measured. Fewer than six rounds give no floor.
    """
    order = random.Random(order_seed)
    cells = [cell for cell in prepared.cells if prepared.costs[cell.key]["status"] == "ok"]
    medians: dict[str, dict[str, list[float]]] = {}
    progress.expect(rounds * len(cells), len(cells))
    for _ in range(rounds):
        for cell in order.sample(cells, len(cells)):
            progress.working(cell.label())
            seconds = _replicate(cell, launcher, sample_s)
            medians.setdefault(cell.device, {}).setdefault(cell.label(), []).append(seconds)
            progress.step()
    shares = {device: noise_floor(by_cell) for device, by_cell in medians.items()}
    return NoiseFloor(
        environment_key=machine.environment_key(prepared.environment),
        environment=prepared.environment,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        shares={device: share for device, share in shares.items() if share is not None},
        cells=medians,
    )


def _replicate(cell: Cell, launcher: Launcher, sample_s: float) -> float:
    request = {
        "function": "measure", "cell": rows.cell_data(cell), "decompose": False, "budget_s": sample_s,
        "memory_limit": None,
    }  # fmt: skip
    reply = launcher.call(request, timeout_s=TIMEOUT_S)
    if reply["status"] != "ok":
        raise UserError(f"the noise floor cannot be measured: {cell.label()}: {reply['status']}: {reply['reason']}")
    return rows.median_of(reply["samples_s"])


def _show(floor: NoiseFloor, console: Console) -> None:
    table = Table("cell", "replicates", "median (ms)", "95 % interval (ms)", box=None, pad_edge=False)
    for by_cell in floor.cells.values():
        for name, medians in by_cell.items():
            bounds = " - ".join("-" if bound is None else number(bound * 1e3) for bound in interval(medians))
            table.add_row(name, str(len(medians)), number(rows.median_of(medians) * 1e3), bounds)
    console.print(table)
    for device, share in floor.shares.items():
        console.print(f"noise floor on {device}: {100 * share:.1f} %", markup=False, highlight=False, style="bold")
