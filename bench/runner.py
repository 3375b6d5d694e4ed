"""Runs a sweep: in which order, in how many rounds, what is skipped and why; resumes where an earlier run stopped."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

from bench import kept, machine, rows
from bench.cells import Cell
from bench.journal import Journal
from bench.launch import Job, Launcher
from bench.prepare import Prepared
from bench.progress import Progress
from bench.results import FAILED, Row
from bench.stats import interval, relative_width
from bench.sweep import FIDELITY

SAMPLE_SHARE = 24  # a replicate samples for this part of its cell's budget,
SAMPLE_MAX_S = 1.0  # at most this long
CALLS_FIRST, CALLS_MORE = 7, 2  # calls the first replicate needs at least (decomposition included), and each later one
PREDICT_TIMEOUT_S = 20.0
GATE_TIMEOUT_S = 600.0
MEMORY_SHARE = 0.9  # of what is available when the run starts, unless --memory-limit says otherwise


class Runner:
    """Measures the cells of a prepared sweep into a journal; one object a run."""

    def __init__(self, prepared: Prepared, journal: Journal, launcher: Launcher, progress: Progress) -> None:
        self._prepared, self._sweep = prepared, prepared.sweep
        self._journal, self._launcher, self._progress = journal, launcher, progress
        limit = self._sweep.memory_limit
        available = int(MEMORY_SHARE * machine.available_memory("cpu"))
        self._memory_limit = int(limit * 2**30) if limit is not None else available
        self._limits: dict[tuple[str, str, int], dict[str, Any] | None] = {}
        self._gates: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._measured: dict[str, dict[int, Cell]] = {}
        self._series: dict[str, list[Cell]] = {}
        for cell in prepared.cells:
            self._series.setdefault(cell.series, []).append(cell)

    def run(self, *, order_seed: int, rerun_failed: bool) -> None:
        """Do all that is not done. On KeyboardInterrupt what was measured becomes rows, and the interrupt passes on."""
        todo = [cell for cell in self._prepared.cells if self._is_open(cell, rerun_failed)]
        timed = [cell for cell in todo if not cell.once]
        once = [cell for cell in todo if cell.once]
        self._progress.expect(self._sweep.rounds * len(timed) + len(once), len(todo))
        try:
            self._measure(timed, random.Random(order_seed), len(once))
            self._do_once(once)
        except KeyboardInterrupt:
            for cell in timed:
                if self._replicates(cell) and not self._done(cell):
                    self._finish(cell, "interrupted")
            raise

    def _is_open(self, cell: Cell, rerun_failed: bool) -> bool:
        """Whether a cell is still to do. What was not started is decided anew: the limits may be others."""
        row = self._journal.rows.get(cell.key)
        if row is None:
            return True
        interrupted = row.time is not None and row.time.stop == "interrupted"
        not_started = row.status == "skipped" or (row.status == "oom" and row.wall_s is None)
        if interrupted or not_started or (rerun_failed and row.status in FAILED):
            self._journal.reopen(cell.key, keep_replicates=interrupted)
            return True
        if row.status == "ok":
            self._remember(cell)
        return False

    def _replicates(self, cell: Cell) -> list[dict[str, Any]]:
        return self._journal.replicates.get(cell.key, [])

    def _done(self, cell: Cell) -> bool:
        return cell.key in self._journal.rows

    def _remember(self, cell: Cell) -> None:
        self._measured.setdefault(cell.series, {})[cell.seq_len or 0] = cell

    # --- timed cells ---

    def _measure(self, timed: list[Cell], order: random.Random, others: int) -> None:
        """Rounds over all open cells, each in another random order, until every cell has stopped."""
        for cell in timed:
            if self._replicates(cell):
                self._remember(cell)
                self._finish_if_stopped(cell)
        while open_cells := [cell for cell in timed if not self._done(cell)]:
            left = sum(max(1, self._sweep.rounds - len(self._replicates(cell))) for cell in open_cells)
            self._progress.expect(left + others, len(open_cells) + others)
            for cell in ascending_lengths(open_cells, order, started=lambda cell: bool(self._replicates(cell))):
                self._visit(cell)

    def _visit(self, cell: Cell) -> None:
        """One replicate of a cell, or the reason why it gets none."""
        self._progress.working(cell.label())
        if not self._replicates(cell):
            refused = self._refuse(cell)
            if refused is not None:
                self._progress.step()
                self._decide(cell, *refused)
                return
        reply = self._replicate(cell)
        self._progress.step()
        if reply["status"] != "ok":
            self._decide(cell, reply["status"], reply["reason"], reply["wall_s"])
            return
        self._journal.add_replicate(cell.key, reply)
        self._remember(cell)
        self._finish_if_stopped(cell)

    def _finish_if_stopped(self, cell: Cell) -> None:
        stop = self._stop(cell)
        if stop is not None:
            self._finish(cell, stop)

    def _replicate(self, cell: Cell) -> dict[str, Any]:
        request = {
            "function": "measure",
            "cell": rows.cell_data(cell),
            "decompose": not self._replicates(cell),
            "budget_s": min(SAMPLE_MAX_S, self._sweep.budget / SAMPLE_SHARE),
            "memory_limit": self._limit(cell),
        }
        self._limits_of(cell)
        started = rows.now()
        return {**self._launcher.call(request, timeout_s=self._sweep.timeout), "started_at": started}

    def _limit(self, cell: Cell) -> int | None:
        """Bytes a worker may take; accelerators map far more than they use, so only CPU cells are limited."""
        return self._memory_limit if cell.device == "cpu" else None

    def _refuse(self, cell: Cell) -> tuple[str, str] | None:
        """(status, reason) when the cell must not start: not supported, not right, too long or too large."""
        cost = self._prepared.costs[cell.key]
        if cost["status"] != "ok":
            return cost["status"], cost["reason"]
        return (
            self._after_shorter(cell)
            or self._gate(cell)
            or self._too_long(cell, cost["flops"])
            or self._too_large(cell)
        )

    def _after_shorter(self, cell: Cell) -> tuple[str, str] | None:
        """Longer lengths of a cell that did not fit are skipped, naming the cell that decided it."""
        for other in self._series[cell.series]:
            if (other.seq_len or 0) < (cell.seq_len or 0):
                row = self._journal.rows.get(other.key)
                if row is not None and row.status in ("oom", "timeout"):
                    return "skipped", f"n={other.seq_len} of the same cell was {row.status}: {row.reason}"
                if row is not None and row.status == "skipped":
                    return "skipped", row.reason or ""
        return None

    def _gate(self, cell: Cell) -> tuple[str, str] | None:
        """A variant that is wrong has no time: the conformance gate, once for each (knobs, device, dtype, causal)."""
        if cell.gate not in self._gates:
            self._progress.working(f"checking {cell.variant} on {cell.device}, {cell.dtype}")
            request = {"function": "gate", "cell": rows.cell_data(cell), "memory_limit": self._limit(cell)}
            self._gates[cell.gate] = self._launcher.call(request, timeout_s=GATE_TIMEOUT_S)
        reply = self._gates[cell.gate]
        if reply["status"] != "ok":
            return reply["status"], f"conformance gate: {reply['reason']}"
        if reply["failed"]:
            more = f" (and {len(reply['failed']) - 1} more)" if len(reply["failed"]) > 1 else ""
            return "incorrect", f"conformance gate: {reply['failed'][0]}{more}; see: python -m bench check"
        return None

    def _too_long(self, cell: Cell, flops: int | None) -> tuple[str, str] | None:
        """Time predicted from the nearest shorter length by the ratio of FLOPs, against the cell's budget."""
        base = self._nearest_shorter(cell)
        if base is None:
            return None
        seconds, base_flops = self._known_time(base)
        ratio = flops / base_flops if flops and base_flops else ((cell.seq_len or 0) / (base.seq_len or 1)) ** 2
        call = seconds * ratio
        total = call * (CALLS_FIRST + CALLS_MORE * (self._sweep.rounds - 1))
        if total <= self._sweep.budget:
            return None
        return "skipped", (
            f"predicted {total:.0f} s ({call:.1f} s a call, from {seconds:.2g} s at n={base.seq_len}) "
            f"exceeds the budget of {self._sweep.budget:g} s a cell; raise --budget"
        )

    def _nearest_shorter(self, cell: Cell) -> Cell | None:
        """The longest measured cell of the same series that is shorter than this one."""
        measured = self._measured.get(cell.series, {})
        return measured.get(max((n for n in measured if n < (cell.seq_len or 0)), default=0))

    def _known_time(self, cell: Cell) -> tuple[float, int | None]:
        """(shortest seconds of a call, FLOPs): one disturbed sample must not decide that longer cells are skipped."""
        row = self._journal.rows.get(cell.key)
        if row is not None and row.time is not None and row.time.samples_s:
            return min(map(min, row.time.samples_s)), row.flops
        replies = self._replicates(cell)
        return min(min(reply["samples_s"]) for reply in replies), replies[0]["flops"]

    def _too_large(self, cell: Cell) -> tuple[str, str] | None:
        """Memory predicted on fake tensors, against the limit; a prediction that cannot be had stops nothing.

        Not asked for where the nearest shorter length, grown with the square of the length, fits by far.
        """
        if cell.device != "cpu" or self._fits_surely(cell):
            return None
        request = {"function": "predict", "cell": rows.cell_data(cell)}
        reply = self._launcher.call(request, timeout_s=min(PREDICT_TIMEOUT_S, self._sweep.timeout))
        limit = self._memory_limit
        if reply["status"] != "ok" or reply["total_bytes"] <= limit:
            return None
        return "oom", (
            f"predicted {reply['total_bytes'] / 2**30:.2f} GiB exceeds "
            f"the memory limit of {limit / 2**30:.2f} GiB; not started"
        )

    def _fits_surely(self, cell: Cell) -> bool:
        base = self._nearest_shorter(cell)
        if base is None or not self._replicates(base):
            return False
        memory = self._replicates(base)[0]["memory"]
        parts = [memory[f"{part}_bytes"] for part in ("inputs", "params", "output", "peak")]
        ratio = (cell.seq_len or 0) / (base.seq_len or 1)
        return None not in parts and sum(parts) * ratio**2 <= self._memory_limit

    def _stop(self, cell: Cell) -> str | None:
        """Why a cell gets no further replicate, None while it should get one."""
        replies = self._replicates(cell)
        spent = sum(reply["wall_s"] for reply in replies)
        if len(replies) < self._sweep.rounds:
            return "budget" if spent > self._sweep.budget else None
        widths = [
            relative_width(*interval([rows.median_of(r["samples_s"]) for r in part]))
            for part in (replies, replies[:-1])
        ]
        if widths[0] is not None and widths[0] <= self._sweep.precision:
            return "precise"
        if len(replies) >= self._sweep.max_rounds:
            return "rounds"
        if spent * (len(replies) + 1) / len(replies) > self._sweep.budget:
            return "budget"
        if len(replies) > self._sweep.rounds and widths[0] and widths[1] and widths[0] > 0.95 * widths[1]:
            return "no longer narrows"
        return None

    def _decide(self, cell: Cell, status: str, reason: str, wall_s: float | None = None) -> None:
        run, environment = self._journal.folder.name, self._prepared.environment
        self._add(rows.without_figures(cell, run, status, reason, environment, wall_s))

    def _finish(self, cell: Cell, stop: str) -> None:
        run, environment = self._journal.folder.name, self._prepared.environment
        self._add(rows.measured(cell, run, self._replicates(cell), stop, environment, self._limits_of(cell)))

    def _limits_of(self, cell: Cell) -> dict[str, Any] | None:
        """What the cell's device can do at most, measured once a run for each (device, dtype, threads)."""
        key = (cell.device, cell.dtype, cell.threads)
        if key not in self._limits:
            self._progress.working(f"measuring the limits of {cell.device}, {cell.dtype}")
            request = {"function": "limits", "device": cell.device, "dtype": cell.dtype, "threads": cell.threads}
            reply = self._launcher.call(request, timeout_s=self._sweep.timeout)
            self._limits[key] = reply if reply["status"] == "ok" else None
        return self._limits[key]

    def _add(self, row: Row) -> None:
        self._journal.add_row(row)
        if row.status not in ("ok", "skipped"):
            self._progress.note(
                f"{row.status}: {row.variant} {row.workload} {row.pass_ or ''} n={row.seq_len}: {row.reason}"
            )

    # --- cells that are done once: trainings, comparisons of numbers ---

    def _do_once(self, cells: list[Cell]) -> None:
        """Side by side, one processor each, as many as there are processors."""
        waiting = [cell for cell in cells if not self._refuse_once(cell)]
        slots = list(range(machine.default_threads()))
        running: list[tuple[Job, Cell, int]] = []
        while waiting or running:
            self._progress.expect(len(waiting) + len(running), len(waiting) + len(running))
            while waiting and slots:
                cell, slot = waiting.pop(0), slots.pop()
                self._progress.working(cell.label())
                running.append((self._start_once(cell, slot), cell, slot))
            job, reply = self._launcher.collect([job for job, _, _ in running])
            done = next(item for item in running if item[0] is job)
            running.remove(done)
            slots.append(done[2])
            self._progress.step()
            self._add(rows.once(done[1], self._journal.folder.name, reply, self._prepared.environment))

    def _start_once(self, cell: Cell, slot: int) -> Job:
        request = {
            "function": FIDELITY,
            "cell": rows.cell_data(cell),
            "memory_limit": self._limit(cell),
            "processor": slot,
        }
        if cell.task is not None:
            name = kept.file_name(cell.task, cell.variant, cell.seed, cell.key)
            kept_as, checkpoint = self._journal.folder.absolute() / name, self._journal.checkpoint(cell.key)
            request |= {"function": "train", "checkpoint": str(checkpoint), "model": str(kept_as)}
        return self._launcher.start(request, timeout_s=self._sweep.timeout)

    def _refuse_once(self, cell: Cell) -> bool:
        reason = self._prepared.devices[cell.device]
        refused = ("unsupported", f"device {cell.device} is not available: {reason}") if reason else self._gate(cell)
        if refused is not None:
            self._progress.step()
            self._decide(cell, *refused)
        return refused is not None


def ascending_lengths(
    open_cells: Iterable[Cell], order: random.Random, started: Callable[[Cell], bool] = lambda cell: False
) -> list[Cell]:
    """The cells in random order, but those of one series not yet started by ascending length: short predicts long."""
    shuffled = list(open_cells)
    order.shuffle(shuffled)
    series: dict[str, list[Cell]] = {}
    for cell in sorted(shuffled, key=lambda cell: -(cell.seq_len or 0)):
        if not started(cell):
            series.setdefault(cell.series, []).append(cell)
    return [cell if started(cell) else series[cell.series].pop() for cell in shuffled]
