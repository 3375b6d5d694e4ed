"""bench.measure.time: the right figure or the right flag for every hazard of a timing loop."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from bench.measure.time import measure, timer_cost


class Clock:
    """A clock that only moves when somebody works: timing tests without waiting and without noise."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 1e-8
        return self.now

    def work(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr("bench.measure.time.time", fake)
    return fake


class FakeWatch:
    """A device that is idle, or whose work is done when it is waited for; its own clock is optional."""

    def __init__(self, wait: Callable[[], None] = lambda: None, mark: Callable[[], float] | None = None) -> None:
        self.synchronize = wait
        self.mark = mark or (lambda: None)

    def between(self, start: float | None, stop: float | None) -> float | None:
        return None if start is None or stop is None else stop - start


IDLE = FakeWatch()


def nothing() -> None:
    pass


def calls(clock: Clock, cost: Callable[[int], float]) -> Callable[[], None]:
    count = 0

    def call() -> None:
        nonlocal count
        clock.work(cost(count))
        count += 1

    return call


def median(samples: list[float]) -> float:
    return sorted(samples)[len(samples) // 2]


def test_b02_the_first_call_is_apart(clock: Clock) -> None:
    found = measure(calls(clock, lambda i: 1.0 if i == 0 else 0.005), IDLE, budget_s=0.5)
    assert found.first_call_s == pytest.approx(1.0)
    assert median(found.samples_s) == pytest.approx(0.005, rel=1e-3)
    assert found.stable
    assert found.trend == pytest.approx(0, abs=1e-3)


def test_b04_warms_up_past_slow_calls(clock: Clock) -> None:
    found = measure(calls(clock, lambda i: 0.010 if i < 20 else 0.005), IDLE, budget_s=2.0)
    assert median(found.samples_s) == pytest.approx(0.005, rel=1e-3) or not found.stable


def test_b04_a_warm_up_that_never_settles_is_flagged(clock: Clock) -> None:
    found = measure(calls(clock, lambda i: 0.010 / (i + 1)), IDLE, budget_s=0.05)
    assert not found.stable


def test_b23_slowing_by_one_percent_a_call_is_flagged(clock: Clock) -> None:
    found = measure(calls(clock, lambda i: 0.005 * 1.01**i), IDLE, budget_s=1.0)
    assert found.trend > 0.05


def test_a_steady_call_has_no_flag_and_the_right_time(clock: Clock) -> None:
    found = measure(calls(clock, lambda i: 0.003), IDLE, budget_s=0.3)
    assert found.stable
    assert abs(found.trend) < 1e-3
    assert all(sample == pytest.approx(0.003, rel=1e-3) for sample in found.samples_s)
    assert 80 <= len(found.samples_s) <= 100


def test_c30_short_calls_are_batched_well_above_the_timer(clock: Clock) -> None:
    found = measure(calls(clock, lambda i: 1e-7), IDLE, budget_s=0.2)
    assert found.calls * 1e-7 >= 100 * 1e-8
    assert median(found.samples_s) == pytest.approx(1e-7, rel=0.02)


def test_a_call_longer_than_the_budget_is_sampled_once(clock: Clock) -> None:
    found = measure(calls(clock, lambda i: 3.0), IDLE, budget_s=0.5)
    assert len(found.samples_s) == 1
    assert found.samples_s[0] == pytest.approx(3.0)


def test_b01_work_that_finishes_later_is_waited_for(clock: Clock) -> None:
    pending = 0.0

    def launch() -> None:
        nonlocal pending
        pending += 0.050

    def synchronize() -> None:
        nonlocal pending
        clock.work(pending)
        pending = 0.0

    found = measure(launch, FakeWatch(synchronize), budget_s=1.0)
    assert min(found.samples_s) >= 0.050


def test_the_devices_own_clock_stands_beside_the_hosts(clock: Clock) -> None:
    work = calls(clock, lambda i: 0.004)
    device = FakeWatch(mark=lambda: clock.now * 0.5)
    found = measure(work, device, budget_s=0.2)
    assert len(found.device_s) == len(found.samples_s)
    assert found.device_s[0] == pytest.approx(0.002, rel=1e-2)
    assert measure(work, IDLE, budget_s=0.2).device_s == []


def test_b07_the_cost_of_an_empty_call_is_stated() -> None:
    found = measure(nothing, IDLE, budget_s=0.05)
    assert median(found.samples_s) < 10 * found.overhead_s
    assert 0 < found.overhead_s < 1e-5


def test_real_sleep_is_measured() -> None:
    found = measure(lambda: time.sleep(0.002), IDLE, budget_s=0.1)
    assert 0.002 <= median(found.samples_s) < 0.02


def test_the_timer_cost_is_positive() -> None:
    assert 0 < timer_cost() < 1e-3
