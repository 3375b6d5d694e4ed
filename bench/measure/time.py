"""How long a call takes: warm-up until stable, batched samples well above the timer, nothing else inside the clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.machine import Watch

STABLE = 0.05  # warm-up ends when its two halves agree within this share
TIMER_SHARE = 100  # a sample lasts at least this many times the timer's resolution and overhead
MIN_SAMPLES = 5
MAX_SAMPLES = 1000
IDLE_CALLS = 50
WARM_UP_SHARE = 0.25  # of the sampling budget, at most


@dataclass
class Timing:
    """Seconds of one replicate. samples_s: time of one call, per sample. device_s: the same on the device's
    clock, empty where it has none. first_call_s: the first call, apart.

    overhead_s: what an empty call costs in this loop. calls: calls in one sample. trend: relative change from the first
    to the last third of the samples. stable: whether the warm-up settled.
    """

    samples_s: list[float]
    device_s: list[float]
    first_call_s: float
    overhead_s: float
    calls: int
    trend: float
    stable: bool


def measure(
    call: Callable[[], Any],
    watch: Watch,
    *,
    budget_s: float,
    first_s: float | None = None,
    idle: Callable[[], Any] = lambda: None,
) -> Timing:
    """Time `call` until the budget is spent; at least one sample, MIN_SAMPLES where they fit twice the budget.

    first_s: time of the first call, where it was made already. idle: a call that does nothing, made like `call`.
    """
    floor = TIMER_SHARE * timer_cost()
    overhead = statistics.median(sample(idle, Watch("cpu"), IDLE_CALLS)[0] for _ in range(MIN_SAMPLES))
    first = sample(call, watch, 1)[0]
    first_s = first if first_s is None else first_s
    estimate, stable = _warm_up(call, watch, first, budget_s * WARM_UP_SHARE)
    calls = max(1, round(max(floor, min(1e-3, budget_s / MIN_SAMPLES)) / estimate))
    samples: list[float] = []
    device: list[float] = []
    start = time.perf_counter()
    while len(samples) < MAX_SAMPLES:
        spent = time.perf_counter() - start
        if samples and spent + estimate * calls > (budget_s if len(samples) >= MIN_SAMPLES else 2 * budget_s):
            break
        host_s, device_s = sample(call, watch, calls)
        samples.append(host_s)
        device += [] if device_s is None else [device_s]
    return Timing(samples, device, first_s, overhead, calls, _trend(samples), stable)


def timer_cost() -> float:
    """Seconds: the larger of the clock's smallest step and the cost of reading it."""
    steps = []
    for _ in range(50):
        start = now = time.perf_counter()
        while now == start:
            now = time.perf_counter()
        steps.append(now - start)
    return statistics.median(steps)


def sample(call: Callable[[], Any], watch: Watch, calls: int) -> tuple[float, float | None]:
    """(host seconds, device seconds or None) of a call, over `calls` in a row; the device is idle at both ends."""
    watch.synchronize()
    start, first = time.perf_counter(), watch.mark()
    for _ in range(calls):
        call()
    last = watch.mark()
    watch.synchronize()
    host_s, device_s = time.perf_counter() - start, watch.between(first, last)
    return host_s / calls, None if device_s is None else device_s / calls


def _warm_up(call: Callable[[], Any], watch: Watch, first: float, cap_s: float) -> tuple[float, bool]:
    """(seconds of one call, whether the second half agreed with the first) after warming up for at most `cap_s`.

    A call longer than the cap is not warmed up further than by its first call; its stability is left to the trend.
    """
    if first > cap_s:
        return first, True
    times = [sample(call, watch, 1)[0]]
    spent = times[0]
    while True:
        half = len(times) // 2
        if half >= 2:
            early, late = statistics.median(times[:half]), statistics.median(times[half:])
            if abs(late - early) <= STABLE * early:
                return late, True
        if spent >= cap_s:
            return statistics.median(times[half:]), half < 2
        times.append(sample(call, watch, 1)[0])
        spent += times[-1]


def _trend(samples: list[float]) -> float:
    """Relative change from the first to the last third of the samples, by their medians; 0 under six samples."""
    third = len(samples) // 3
    if third < 2:
        return 0.0
    early, late = statistics.median(samples[:third]), statistics.median(samples[-third:])
    return (late - early) / early
