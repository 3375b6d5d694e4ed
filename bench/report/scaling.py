"""How figures grow with the length, where one variant overtakes another, and which are beaten in nothing."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import cache

from bench import registry
from bench.report.costs import MEMORY, TIME, Quantity, common_length, figures_at
from bench.report.digits import Estimate, rounded
from bench.report.groups import Cells
from bench.report.source import clean
from bench.report.tables import Cell, Table, column_name, ok_row
from bench.results import Row
from bench.stats import LONGEST, crossover, pareto, ratio, scaling_exponent

RIVALS = ("flash", "full")  # the first that was measured is what others are said to overtake
Replicates = Mapping[int, Sequence[float]]


def growth_table(cells: Cells) -> Table | None:
    """Exponents of time and memory beside what theory says; None where no variant has two lengths."""
    rows = []
    for label in cells.by_label:
        theory = _theory(cells.variant(label))
        line = [
            part
            for quantity, expected in zip((TIME, MEMORY), theory, strict=True)
            for part in (_exponent(replicates(cells, label, quantity)), Cell(expected))
        ]
        rows.append((label, tuple(line)))
    if not any(line[0].estimate or line[2].estimate for _, line in rows):
        return None
    caption = (
        f"The exponent p of n^p with its 95 % interval, fitted to the longest {LONGEST} lengths measured, beside what "
        "the variant declares for itself alone: what stands around it (projections, feed-forward) grows with n. "
        "A hint, not a proof: short lengths have not reached their power yet."
    )
    columns = ("time", "declared", "memory", "declared ")
    return Table("growth", "Growth with the length", caption, "exponent", columns, tuple(rows))


def crossover_table(cells: Cells) -> Table | None:
    """From which length on each variant is faster than the rival, and who is on the front of time and memory."""
    base = rival(cells)
    if base is None or len(cells.ranked) < 2:
        return None
    at = common_length(cells)
    front = _front(cells, at)
    rows = []
    for label in cells.ranked:
        text, found = ("–", None) if label == base else overtakes(cells, base, label)
        on_front = "" if label not in front else "yes" if front[label] else "no"
        rows.append((label, (Cell(text, found), Cell(on_front))))
    caption = (
        f"The length from which a variant is faster than {base}, interpolated between measured lengths, with its 95 % "
        "interval; only differences whose interval excludes zero count, and nothing is extrapolated. Front: no other "
        f"variant is at least as good in both time and memory at n = {column_name(at)} and better in one."
    )
    columns = (f"faster than {base}", f"front at {column_name(at)}")
    return Table("crossover", f"Crossovers with {base}", caption, "positions", columns, tuple(rows))


def rival(cells: Cells) -> str | None:
    """The label that crossovers are stated against; None when neither rival has a time."""
    for name in RIVALS:
        for label in cells.ranked:
            if cells.variant(label) == name and replicates(cells, label, TIME):
                return label
    return None


def overtakes(cells: Cells, base: str, label: str) -> tuple[str, Estimate | None]:
    """Where `label` becomes faster than `base`, in words, with the length and its interval where there is one."""
    first, second = (replicates(cells, name, TIME) for name in (base, label))
    shared = sorted(first.keys() & second.keys())
    if not shared:
        return "no length in common", None
    found = crossover(first, second)
    if found is not None:
        place = Estimate(found.length, found.low, found.high)
        low, high = place.interval
        spread = "no interval" if place.low is None else f"{rounded(low)} to {rounded(high)}"
        return f"{'from' if found.winner == 'second' else 'up to'} {rounded(place.value)} ({spread})", place
    ratios = [ratio(second[n], first[n]) for n in shared]
    if any(found.low is not None and found.low > 1 for found in ratios):
        return "none in range: faster throughout", None
    if any(found.high is not None and found.high < 1 for found in ratios):
        return "none in range: slower throughout", None
    return "none in range: not told apart", None


def replicates(cells: Cells, label: str, quantity: Quantity) -> Replicates:
    """Figures of the replicates by length, of `ok` cells with a length; a count has one."""
    found = {}
    for column in cells.columns:
        row = ok_row(cells, label, column)
        estimate = quantity.take(row) if row is not None else None
        if row is not None and column and estimate is not None and estimate.value > 0:
            found[column] = _medians(row, quantity) or [estimate.value]
    return found


def _medians(row: Row, quantity: Quantity) -> list[float]:
    if quantity is not TIME or row.time is None:
        return []
    return [1e3 * statistics.median(samples) for samples in row.time.samples_s if samples]


def _exponent(figures: Replicates) -> Cell:
    found = scaling_exponent(figures)
    if found is None:
        return Cell("")
    if found.low is None or found.high is None:
        return Cell(f"n^{found.value:.2f}", Estimate(found.value))
    half = max(found.high - found.value, found.value - found.low)
    return Cell(f"n^{found.value:.2f} ±{half:.2f}", Estimate(found.value, found.low, found.high))


@cache
def _claims() -> dict[str, tuple[str, str]]:
    """What the variants that can be found declare: growth of (time, memory)."""
    return {entry.name: (entry.claims.time, entry.claims.memory) for entry in registry.entries() if entry.claims}


def _theory(variant: str) -> tuple[str, str]:
    time, memory = _claims().get(variant, ("", ""))
    return clean(time), clean(memory)


def _front(cells: Cells, column: int | None) -> dict[str, bool]:
    """Whether each label with both figures is on the Pareto front of time and peak memory."""
    times, peaks = (figures_at(cells, quantity, column) for quantity in (TIME, MEMORY))
    points = {label: (times[label].value, peaks[label].value) for label in times.keys() & peaks.keys()}
    on = set(pareto(points))
    return {label: label in on for label in points}
