"""Intervals from replicates; the replicate (one fresh process) is the unit of all statistics."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

# Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom (tables; 1.96 beyond 30).
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """95 % interval of the typical value of positive replicates: Student's t on their logarithms.

    (None, None) for fewer than two values: one replicate says nothing about the spread.
    """
    if len(values) < 2:
        return None, None
    logs = [math.log(value) for value in values]
    freedom = len(logs) - 1
    t = _T95[freedom - 1] if freedom <= len(_T95) else 1.96
    centre = math.log(statistics.median(values))
    half = t * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(centre - half), math.exp(centre + half)


def relative_width(low: float | None, high: float | None) -> float | None:
    """Half the width of an interval relative to its (geometric) centre; None when there is no interval."""
    if low is None or high is None:
        return None
    return math.sqrt(high / low) - 1
