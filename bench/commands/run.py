"""`run`: sweep -> plan -> measure -> report, for the command line."""

from __future__ import annotations

import random
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import registry, report
from bench.errors import UserError
from bench.journal import Journal, check_folder
from bench.launch import Launcher
from bench.prepare import Prepared, prepare
from bench.progress import Progress
from bench.results import FAILED
from bench.runner import Runner
from bench.screen import Screen
from bench.sweep import Sweep, read_sweep


def run(
    name: str,
    overrides: dict[str, Any],
    *,
    out: str | None,
    dry_run: bool,
    fresh: bool,
    rerun_failed: bool,
    command: str,
) -> int:
    """Run a preset or a file with some axes replaced, as `run_sweep` does."""
    return run_sweep(
        read_sweep(name, overrides), out=out, dry_run=dry_run, fresh=fresh, rerun_failed=rerun_failed, command=command
    )


def run_sweep(
    sweep: Sweep,
    *,
    out: str | None,
    dry_run: bool,
    fresh: bool,
    rerun_failed: bool,
    command: str,
    shown: bool = True,
) -> int:
    """Run a sweep and write its report, which is also printed when `shown`; returns the exit code."""
    messages = Console(stderr=True)
    known = registry.entries(name for name in sweep.variant if registry.is_file(name))
    with Launcher() as launcher:
        messages.print("reading the machine and the sweep ...", style="dim")
        prepared = prepare(sweep, known, launcher)
        folder = run_folder(sweep, out)
        if dry_run:
            check_folder(folder)
            _show_plan(prepared)
            return 0
        with Journal(folder, fresh=fresh) as journal:
            order_seed = _describe(journal, prepared, command)
            for note in journal.notes:
                messages.print(note, markup=False)
            try:
                with Progress(messages) as progress:
                    runner = Runner(prepared, journal, launcher, progress)
                    runner.run(order_seed=order_seed, rerun_failed=rerun_failed)
            finally:
                if journal.rows and not isinstance(sys.exc_info()[1], OSError):
                    _report(journal, messages, shown=shown)
            counts, succeeded = outcome(prepared, journal)
    told = ", ".join(f"{number} {status}" for status, number in sorted(counts.items()))
    messages.print(f"{sum(counts.values())} cells: {told}", markup=False)
    return 0 if succeeded else 1


def _describe(journal: Journal, prepared: Prepared, command: str) -> int:
    """Write run.json; returns the seed of the order, kept from an earlier start of the same run."""
    before = journal.described()
    seed: int = before.get("order_seed", random.SystemRandom().randrange(2**31))
    journal.describe({
        "run": journal.folder.name,
        "command": command,
        "started_at": before.get("started_at", datetime.now(UTC).isoformat(timespec="seconds")),
        "sweep": prepared.sweep.model_dump(mode="json", by_alias=True),
        "cells": [cell.key for cell in prepared.cells],
        "environment": prepared.environment,
        "order_seed": seed,
        "controls": [name for name in prepared.sweep.controls if name not in prepared.sweep.variant],
    })  # fmt: skip
    return seed


def _report(journal: Journal, messages: Console, *, shown: bool) -> None:
    written = report.write([journal.folder])
    if shown:
        report.show([journal.folder], Screen(markup=False))
    pages = [path for path in written if path.suffix in (".html", ".md")]
    messages.print(f"rows and report in {journal.folder}: {', '.join(path.name for path in pages)}", markup=False)


def _show_plan(prepared: Prepared) -> None:
    """The cells a run would measure, with the FLOPs of one call."""
    table = Table(title=f"{len(prepared.cells)} cells")
    for heading in ("variant", "workload", "pass", "n", "device", "dtype", "GFLOP a call"):
        table.add_column(heading)
    for cell in prepared.cells:
        cost = prepared.costs.get(cell.key, {"status": "ok", "flops": None})
        flops = f"{cost['flops'] / 1e9:.3g}" if cost.get("flops") else cost.get("reason", "not known")
        table.add_row(
            cell.variant, cell.workload, cell.pass_ or "", str(cell.seq_len or ""), cell.device, cell.dtype, flops
        )
    Screen(markup=False).print(table)
    if not prepared.cells:
        raise UserError("the sweep has no cells")


def outcome(prepared: Prepared, journal: Journal) -> tuple[dict[str, int], bool]:
    """(number of this sweep's cells by status, whether the run succeeded: nothing failed, something was measured)."""
    counts: dict[str, int] = {}
    for cell in prepared.cells:
        row = journal.rows.get(cell.key)
        status = row.status if row is not None else "not done"
        counts[status] = counts.get(status, 0) + 1
    return counts, bool(counts.get("ok")) and not FAILED & counts.keys()


def run_folder(sweep: Sweep, out: str | None) -> Path:
    """Where a run is stored: --out, else results/<name>-<hash of the axes>, so that the same sweep resumes."""
    return Path(out) if out else Path("results") / f"{sweep.name}-{sweep.digest()}"
