"""What a cell costs: tables of time, peak memory, throughput and error, and the speed-up over the baseline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.report.digits import MIB, Estimate, number, plus_minus, rounded
from bench.report.groups import Cells
from bench.report.source import clean
from bench.report.tables import (
    ABSENT,
    NO_BASE,
    NO_FIGURE,
    Cell,
    Table,
    column_name,
    leaders,
    ok_row,
)  # fmt: skip
from bench.results import Row
from bench.stats import geometric_mean, speed_up

BASELINE = "full"
MOST = 0.75


@dataclass(frozen=True)
class Quantity:
    """One measured quantity: how it is taken from a row, in which unit, written how, and which end is good."""

    kind: str
    title: str
    unit: str
    higher_is_better: bool
    take: Callable[[Row], Estimate | None]
    write: Callable[[Estimate], str]
    reading: str
    ranked: bool = True


def take_time(row: Row) -> Estimate | None:
    """Median time of a call in ms, with its interval."""
    time = row.time
    if time is None or time.median_s is None:
        return None
    return Estimate(time.median_s, time.low_s, time.high_s).scaled(1e3)


def take_throughput(row: Row) -> Estimate | None:
    """Positions per second; the interval is that of the time."""
    return None if row.tokens_per_s is None else _by_time(row, row.tokens_per_s)


def take_peak(row: Row) -> Estimate | None:
    """Peak memory of a call above what was live before it, in MiB; an exact count has no interval."""
    if row.memory is None or row.memory.peak_bytes is None:
        return None
    return Estimate(row.memory.peak_bytes).scaled(1 / MIB)


def take_share(row: Row) -> Estimate | None:
    """Per cent of the nearer limit of the device; the interval is that of the time."""
    if row.ceiling is None or row.ceiling.share is None:
        return None
    return _by_time(row, 100 * row.ceiling.share)


def _by_time(row: Row, value: float) -> Estimate:
    """A figure that is something over the time, with the interval of the time."""
    time = take_time(row)
    if time is None or time.low is None or time.high is None or time.low <= 0:
        return Estimate(value)
    return Estimate(value, value * time.value / time.high, value * time.value / time.low)


TIME = Quantity(
    "time", "Time", "ms", False, take_time, plus_minus,
    "Milliseconds a call: median over replicates, ± the 95 % interval. Less is better.",
)  # fmt: skip
THROUGHPUT = Quantity(
    "throughput", "Throughput", "tokens/s", True, take_throughput, lambda found: rounded(found.value),
    "Positions per second (batch × length / time). More is better.",
)  # fmt: skip
MEMORY = Quantity(
    "memory", "Peak memory", "MiB", False, take_peak, lambda found: number(found.value),
    "MiB (2^20 bytes) at the peak of a call, above what was live before it. Less is better.",
)  # fmt: skip
SHARE = Quantity(
    "limit", "Share of the limit", "%", True, take_share, lambda found: number(found.value),
    "Per cent of the nearer of two limits that were measured in the same run on the same device: floating-point "
    "operations a second, and bytes a second (those that cannot be avoided).", ranked=False,
)  # fmt: skip
QUANTITIES = (TIME, MEMORY, THROUGHPUT)


def figures_at(cells: Cells, quantity: Quantity, column: int | None) -> dict[str, Estimate]:
    """The figures of one column by label, of `ok` cells and without the controls."""
    taken = {label: quantity.take(row) for label in cells.ranked if (row := ok_row(cells, label, column))}
    return {label: found for label, found in taken.items() if found is not None}


def best_at(cells: Cells, quantity: Quantity, column: int | None) -> list[str]:
    """The leaders of one column."""
    return leaders(figures_at(cells, quantity, column), higher_is_better=quantity.higher_is_better)


def common_length(cells: Cells) -> int | None:
    """The longest length at which most variants have a time: at least MOST of those at the length with the most."""
    counts = {column: len(figures_at(cells, TIME, column)) for column in cells.columns}
    enough = [column for column, count in counts.items() if count >= MOST * max(counts.values())]
    return max(enough, key=lambda column: column or 0)


def measured(cells: Cells) -> tuple[Quantity, ...]:
    """What is shown of a group: the share of the limit only where the limits were measured."""
    rows = (row for line in cells.by_label.values() for row in line.values())
    return (*QUANTITIES, SHARE) if any(take_share(row) for row in rows) else QUANTITIES


def cost_tables(cells: Cells) -> list[Table]:
    """Time, peak memory, throughput, share of the limit, speed-up and error of one group."""
    ratios = speed_ups(cells)
    tables = [_table(cells, quantity) for quantity in measured(cells)]
    return [*tables, *([ratios] if ratios else []), *(_table(cells, quantity) for quantity in _errors(cells))]


def _table(cells: Cells, quantity: Quantity) -> Table:
    best = {column: best_at(cells, quantity, column) if quantity.ranked else [] for column in cells.columns}
    rows = [
        (label, tuple(_cell(cells, quantity, label, column, best[column]) for column in cells.columns))
        for label in cells.by_label
    ]
    columns = tuple(column_name(column) for column in cells.columns)
    return Table(quantity.kind, quantity.title, quantity.reading, quantity.unit, columns, tuple(rows))


def _cell(cells: Cells, quantity: Quantity, label: str, column: int | None, best: list[str]) -> Cell:
    row = cells.by_label[label].get(column)
    if row is None:
        return Cell(ABSENT)
    if row.status != "ok":
        return Cell(row.status)
    found = quantity.take(row)
    if found is None:
        return Cell(NO_FIGURE)
    return Cell(quantity.write(found), found, best=label in best, flagged=bool(row.flags))


def _errors(cells: Cells) -> list[Quantity]:
    """One quantity for each measured error of a variant that stands in for another (row field `error`)."""
    names: dict[str, None] = {}
    for line in cells.by_label.values():
        for row in line.values():
            names.update(dict.fromkeys(row.error or {}))
    return [_error(name) for name in names]


def _error(name: str) -> Quantity:
    def take(row: Row) -> Estimate | None:
        value = (row.error or {}).get(name)
        return None if value is None else Estimate(value)

    return Quantity(
        f"error {clean(name)}", f"Error: {clean(name)}", "", False, take, lambda found: f"{found.value:.3g}",
        "Of the last queries, relative to the largest entry, "
        "against exact attention or the variant's own slow formula.", ranked=False,
    )  # fmt: skip


def speed_ups(cells: Cells) -> Table | None:
    """Ratios to the baseline; None without a baseline or without anything to compare with it."""
    bases = [label for label, line in cells.by_label.items() if any(row.variant == BASELINE for row in line.values())]
    base = bases[0] if bases else None
    times = {column: figures_at(cells, TIME, column) for column in cells.columns}
    measured = [label for label in cells.ranked if any(label in found for found in times.values())]
    if base not in measured or len(cells.ranked) < 2:
        return None
    shared = [column for column, found in times.items() if all(label in found for label in measured)]
    rows = []
    for label in cells.ranked:
        ratios = {column: _ratio(found, base, label) for column, found in times.items()}
        line = [_ratio_cell(cells, label, column, ratio) for column, ratio in ratios.items()]
        mean = _mean(cells, label, [ratio for column in shared if (ratio := ratios[column]) is not None])
        rows.append((label, (*line, mean)))
    lengths = ", ".join(column_name(column) for column in shared) or "none"
    caption = (
        f"Time of {base} / time of the variant: 2.00× takes half the time; {NO_BASE} where {base} has no time. "
        f"Mean: geometric, over the lengths that all measured variants share ({lengths})."
    )
    columns = (*(column_name(column) for column in cells.columns), "mean")
    return Table("speedup", f"Speed-up over {base}", caption, "×", columns, tuple(rows))


def _ratio(times: Mapping[str, Estimate], base: str, label: str) -> float | None:
    if base not in times or label not in times or min(times[base].value, times[label].value) <= 0:
        return None
    return speed_up(times[base].value, times[label].value)


def _ratio_cell(cells: Cells, label: str, column: int | None, ratio: float | None) -> Cell:
    if ratio is not None:
        return Cell(f"{ratio:.2f}×", Estimate(ratio))
    plain = _cell(cells, TIME, label, column, [])
    return plain if plain.estimate is None else Cell(NO_BASE)


def _mean(cells: Cells, label: str, ratios: list[float]) -> Cell:
    """Geometric mean with what it is over: `1.00× (2 of 3, 1 failed)`."""
    line = cells.by_label[label]
    lost = Counter(_loss(line.get(column)) for column in cells.columns if not ok_row(cells, label, column))
    mean = geometric_mean(ratios)
    counts = ", ".join([f"{mean.count} of {len(cells.columns)}", *(f"{n} {why}" for why, n in sorted(lost.items()))])
    if mean.value is None:
        return Cell(f"{NO_FIGURE} ({counts})")
    return Cell(f"{mean.value:.2f}× ({counts})", Estimate(mean.value))


def _loss(row: Row | None) -> str:
    if row is None:
        return ABSENT
    return row.status if row.status in {"skipped", "unsupported"} else "failed"
