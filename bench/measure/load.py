"""How busy everybody else keeps the processors while a measurement runs."""

from __future__ import annotations

import os
import time

import psutil


class Load:
    """Watches from its making on. Processor time is counted for the whole system, less what this process used."""

    def __init__(self) -> None:
        self._start, self._busy, self._own = time.perf_counter(), _busy(), time.process_time()

    def others(self) -> float:
        """Share of all processors that other processes kept busy since the start, 0 to 1."""
        elapsed = time.perf_counter() - self._start
        others = (_busy() - self._busy) - (time.process_time() - self._own)
        return min(1.0, max(0.0, others / (elapsed * (os.cpu_count() or 1))))


def _busy() -> float:
    """Processor seconds the system has spent at work since it started."""
    times = psutil.cpu_times()
    return sum(getattr(times, name, 0.0) for name in ("user", "system", "nice", "irq", "softirq", "steal"))
