"""How figures are written: three significant digits, more only where the interval is finer, units in the caption."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bench.rows import DISAGREE

MIB = 2**20


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % interval; null where there is none (one replicate, a count)."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def interval(self) -> tuple[float, float]:
        """(low, high); a figure without an interval is a point."""
        if self.low is None or self.high is None:
            return self.value, self.value
        return self.low, self.high

    @property
    def unsure(self) -> bool:
        """Whether the interval spans so much that the figure says nothing."""
        return self.low is not None and self.high is not None and 0 < DISAGREE * self.low < self.high

    def scaled(self, factor: float) -> Estimate:
        """The same figure in another unit."""
        low, high = (None if bound is None else bound * factor for bound in (self.low, self.high))
        return Estimate(self.value * factor, low, high)


def decimals(value: float, significant: int) -> int:
    """Decimals needed to show `significant` digits of a value, never fewer than 0."""
    if value == 0 or not math.isfinite(value):
        return 0
    return max(0, significant - 1 - math.floor(math.log10(abs(value))))


def number(value: float, significant: int = 3) -> str:
    """A figure with thousands marks: 0.0123, 1.23, 12.3, 1,234 (never an exponent, whole digits are never cut)."""
    return f"{value:,.{decimals(value, significant)}f}"


def plus_minus(estimate: Estimate) -> str:
    """`12.3 ±0.4`: the larger of the two distances to the ends of the interval; without an interval just `12.3`.

    `12.3 ±?` where the replicates disagree so much that the interval says nothing.
    """
    if estimate.low is None or estimate.high is None:
        return number(estimate.value)
    if estimate.unsure:
        return f"{number(estimate.value)} ±?"
    half = max(estimate.value - estimate.low, estimate.high - estimate.value)
    places = max(decimals(estimate.value, 3), min(decimals(half, 1), decimals(estimate.value, 4)))
    least = 10.0**-places
    margin = f"{half:,.{places}f}" if half == 0 or half >= least / 2 else f"<{least:.{places}f}"
    return f"{estimate.value:,.{places}f} ±{margin}"


def brackets(estimate: Estimate, text: str) -> str:
    """`99.1 [98.7, 99.4]` by one format (`.1f`) for all three; without an interval just the figure."""
    if estimate.low is None or estimate.high is None:
        return format(estimate.value, text)
    return f"{estimate.value:{text}} [{estimate.low:{text}}, {estimate.high:{text}}]"


def rounded(value: float, significant: int = 3) -> str:
    """A whole number to three significant digits with thousands marks: 52,300."""
    if value == 0 or abs(value) < 100:
        return number(value, significant)
    places = significant - 1 - math.floor(math.log10(abs(value)))
    return f"{round(value, places):,.0f}"
