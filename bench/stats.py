"""Statistics of replicates; the replicate (one fresh process) is the unit of all of them.

Times are positive and their noise multiplies, so they are treated on a logarithmic scale, where ratios are
differences. The typical value is the median, the figure that is printed. What one replicate cannot say is None.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.student_t import t_quantile, t_tail

CONFIDENCE = 0.95
LONGEST = 3  # lengths an exponent is fitted over: growth shows where the highest power rules
GROUP = 3  # replicates in a group of the noise floor: what the shortest run takes
TRIM, TRIM_FROM = 0.2, 7  # share of replicates trimmed at each end in a comparison, from so many replicates on
MEDIAN_ERROR = math.sqrt(math.pi / 2)  # standard error of a median relative to that of the mean, normal, many values


@dataclass(frozen=True)
class Effect:
    """An estimate on a scale where effects add (the logarithm of a ratio, a difference) and how sure it is.

    error: standard error. freedom: the degrees of freedom behind it, infinite where it is known.
    """

    value: float
    error: float
    freedom: float

    def bounds(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """The two-sided interval, Student's t."""
        half = t_quantile(1 - confidence, self.freedom) * self.error
        return self.value - half, self.value + half

    def p_beyond(self, floor: float) -> float:
        """p-value of `the true effect is within ±floor`; at most 1 - c where the c interval lies wholly beyond."""
        excess = abs(self.value) - floor
        if excess <= 0:
            return 1.0
        return t_tail(excess / self.error, self.freedom) if self.error > 0 else 0.0


@dataclass(frozen=True)
class Interval:
    """A figure with its 95 % interval; low and high are None when the replicates say nothing about the spread."""

    value: float
    low: float | None = None
    high: float | None = None


# --- one set of replicates ---


def interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """95 % interval of the median of positive replicates: Student's t on their logarithms, all of them counted.

    (None, None) for fewer than two values: one replicate says nothing about the spread.
    """
    effect = typical(values)
    if effect is None:
        return None, None
    low, high = effect.bounds()
    return math.exp(low), math.exp(high)


def relative_width(low: float | None, high: float | None) -> float | None:
    """Half the width of an interval relative to its (geometric) centre; None when there is no interval."""
    if low is None or high is None:
        return None
    return math.sqrt(high / low) - 1


def typical(values: Sequence[float], *, robust: bool = False) -> Effect | None:
    """Logarithm of the median of positive replicates and its error; None for fewer than two.

    robust: with seven replicates or more, the error is that of a 20 % trimmed mean (Tukey and McLaughlin 1963,
    Sankhya A 25). Either way it is raised to the error of a median: `1 + (sqrt(pi / 2) - 1) (1 - 2 / n)^2` meets the
    simulated 95 % points of normal sets of 2 to 40 values within 4 %, and never falls more than 1 % below them.
    """
    count = len(values)
    if count < 2:
        return None
    trimmed = int(TRIM * count) if robust and count >= TRIM_FROM else 0
    logs = sorted(map(math.log, values))
    inner = logs[trimmed : count - trimmed]
    winsorised = [inner[0]] * trimmed + inner + [inner[-1]] * trimmed
    kept = len(inner)
    error = statistics.stdev(winsorised) * math.sqrt((count - 1) / (kept * (kept - 1)))
    raised = 1 + (MEDIAN_ERROR - 1) * (1 - 2 / count) ** 2
    return Effect(statistics.median(logs), raised * error, kept - 1)


# --- two sets of replicates ---


def log_ratio(baseline: Sequence[float], new: Sequence[float]) -> Effect | None:
    """Logarithm of the median of `new` over that of `baseline`; None when either has fewer than two replicates.

    Welch's t (1947, Biometrika 34), from seven replicates on Yuen's trimmed form of it (1974, Biometrika 61): one slow
    process in ten, usual on a shared machine, would otherwise hide a real difference. Not a rank or permutation test:
    three against three replicates cannot reach 5 % there, nor ten against ten the level that many cells call for.
    """
    before, after = typical(baseline, robust=True), typical(new, robust=True)
    if before is None or after is None:
        return None
    return combine([(-1.0, before), (1.0, after)])


def combine(parts: Sequence[tuple[float, Effect]]) -> Effect:
    """Weighted sum of independent effects; degrees of freedom after Welch and Satterthwaite."""
    variances = [(weight * part.error) ** 2 for weight, part in parts]
    total = sum(variances)
    below = sum(variance**2 / part.freedom for variance, (_, part) in zip(variances, parts, strict=True))
    freedom = total**2 / below if below > 0 else math.inf
    return Effect(sum(weight * part.value for weight, part in parts), math.sqrt(total), freedom)


def ratio(baseline: Sequence[float], new: Sequence[float]) -> Interval:
    """Median of `new` over the median of `baseline` with its 95 % interval; the baseline's own ratio is 1."""
    value = statistics.median(new) / statistics.median(baseline)
    effect = log_ratio(baseline, new)
    if effect is None:
        return Interval(value)
    low, high = effect.bounds()
    return Interval(value, math.exp(low), math.exp(high))


def speed_up(baseline_s: float, seconds: float) -> float:
    """How many times as fast as the baseline: 2 for half its time, 1 for the baseline itself."""
    return baseline_s / seconds


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for their number (Holm 1979, Scand. J. Statist. 6); the chance of any false call stays below p.

    The i-th smallest of m counts m - i + 1 times, and never less than a smaller one.
    """
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * p_values[place]))
        adjusted[place] = highest
    return adjusted


# --- many cells ---


@dataclass(frozen=True)
class Mean:
    """A geometric mean with how many cells it is over and how many had no figure."""

    value: float | None
    count: int
    failed: int


def geometric_mean(ratios: Sequence[float | None]) -> Mean:
    """Geometric mean of the ratios there are; None is a cell that failed. 2.0, 0.5, None: 1 over 2, 1 failed."""
    found = [value for value in ratios if value is not None]
    value = math.exp(statistics.fmean(map(math.log, found))) if found else None
    return Mean(value, len(found), len(ratios) - len(found))


def pareto(points: Mapping[str, Sequence[float | None]]) -> list[str]:
    """Names on the Pareto front, all quantities minimised (time, memory, error); a point that lacks one is left out.

    A point is on it when no other is at most as large in every quantity and smaller in one.
    """
    whole = {name: tuple(point) for name, point in points.items() if None not in point}

    def beaten(point: tuple[float | None, ...]) -> bool:
        return any(
            other != point and all(a <= b for a, b in zip(other, point, strict=True))  # type: ignore[operator]
            for other in whole.values()
        )

    return [name for name, point in whole.items() if not beaten(point)]


def noise_floor(replicates_by_cell: Mapping[str, Sequence[float]], group: int = GROUP) -> float | None:
    """Share by which the same code differs from itself: replicate medians, in the order they were measured.

    The 95th percentile, over all cells, of the change between the medians of any two groups of `group` consecutive
    replicates that do not overlap: two short runs of one cell. None when no cell has two groups.
    """
    changes = []
    for values in replicates_by_cell.values():
        logs = [math.log(value) for value in values]
        medians = [statistics.median(logs[start : start + group]) for start in range(len(logs) - group + 1)]
        pairs = itertools.combinations(range(len(medians)), 2)
        changes += [abs(medians[first] - medians[second]) for first, second in pairs if second - first >= group]
    if not changes:
        return None
    if len(changes) == 1:
        return math.expm1(changes[0])
    return math.expm1(statistics.quantiles(changes, n=20, method="inclusive")[-1])


# --- along the length ---


@dataclass(frozen=True)
class Exponent:
    """p of n^p with its 95 % interval (None without replicates) and the lengths it was fitted over."""

    value: float
    low: float | None
    high: float | None
    lengths: tuple[int, ...]


def scaling_exponent(figures: Mapping[int, Sequence[float]], longest: int = LONGEST) -> Exponent | None:
    """p of n^p, least squares on logarithms over the `longest` lengths; None for fewer than two.

    figures: replicates by length (one value where there is no spread, as for memory). Every length counts alike: the
    spread of few replicates is too uncertain to weigh by. The interval carries the replicates' errors through the
    fit; that growth is no pure power is not in it. 8192 -> 4.085, 16384 -> 16.107 give 1.98.
    """
    lengths = tuple(sorted(n for n, values in figures.items() if values)[-longest:])
    if len(lengths) < 2:
        return None
    logs = [math.log(n) for n in lengths]
    centre = statistics.fmean(logs)
    square = sum((x - centre) ** 2 for x in logs)
    weights = [(x - centre) / square for x in logs]
    value = sum(w * math.log(statistics.median(figures[n])) for w, n in zip(weights, lengths, strict=True))
    effects = [typical(figures[n]) for n in lengths]
    known = [(w, effect) for w, effect in zip(weights, effects, strict=True) if effect is not None]
    low, high = combine(known).bounds() if len(known) == len(lengths) else (None, None)
    return Exponent(value, low, high, lengths)


@dataclass(frozen=True)
class Crossover:
    """The length from which `second` is faster than `first` (or the other way round: `winner`), with its 95 % interval.

    low and high are None when a length has a single replicate.
    """

    length: float
    low: float | None
    high: float | None
    winner: str


def crossover(first: Mapping[int, Sequence[float]], second: Mapping[int, Sequence[float]]) -> Crossover | None:
    """The last length at which one variant overtakes the other, within the lengths both have; None: none in range.

    first, second: replicate medians by length. Only differences whose interval excludes zero count, so noise does not
    cross. Interpolated on log-log between measured lengths; low and high are where the interval of the difference,
    interpolated alike (which is never too narrow), begins and ends to hold zero. Never extrapolated.
    """
    lengths = sorted(n for n in first.keys() & second.keys() if first[n] and second[n])
    ratios = [ratio(second[n], first[n]) for n in lengths]  # above 1: second is faster
    middle = [math.log(found.value) for found in ratios]
    lows, highs = ([math.log(bound or found.value) for found, bound in zip(ratios, bounds, strict=True)]
                   for bounds in ([r.low for r in ratios], [r.high for r in ratios]))  # fmt: skip
    signs = [1 if low > 0 else -1 if high < 0 else 0 for low, high in zip(lows, highs, strict=True)]
    sure = [place for place, sign in enumerate(signs) if sign]
    changes = [(a, b) for a, b in itertools.pairwise(sure) if signs[a] != signs[b]]
    if not changes:
        return None
    start, end = changes[-1]
    rising = signs[end] > 0
    xs = [math.log(n) for n in lengths]
    # Leaving `start`, the bound towards zero meets it first; before `end`, the other one meets it last.
    nearest, farthest = (highs, lows) if rising else (lows, highs)
    spread = all(found.low is not None for found in ratios[start : end + 1])
    return Crossover(
        length=math.exp(_zero(xs, middle, start, end, last=True)),
        low=math.exp(_zero(xs, nearest, start, end, last=False)) if spread else None,
        high=math.exp(_zero(xs, farthest, start, end, last=True)) if spread else None,
        winner="second" if rising else "first",
    )


def _zero(xs: Sequence[float], ys: Sequence[float], start: int, end: int, *, last: bool) -> float:
    """Where the line through the points start..end crosses zero, the first or the last time."""
    crossings = [
        xs[i] + (xs[i + 1] - xs[i]) * ys[i] / (ys[i] - ys[i + 1])
        for i in range(start, end)
        if ys[i] != ys[i + 1] and min(ys[i], ys[i + 1]) <= 0 <= max(ys[i], ys[i + 1])
    ]
    return crossings[-1 if last else 0]
