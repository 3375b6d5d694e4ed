"""Figures of what a cell costs: lines against the length on log axes, and the speed-up as a map of colours.

More series than eyes can follow are spread over several figures: each shows a few in colour before all others in grey.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.report.canvas import (
    INK,
    Drawing,
    draw_limit,
    draw_line,
    draw_quiet,
    new_axes,
    set_length_axis,
    set_value_axis,
    surround,
)  # fmt: skip
from bench.report.costs import MEMORY, THROUGHPUT, TIME, Quantity, common_length, measured, speed_ups
from bench.report.digits import MIB, Estimate
from bench.report.groups import Cells
from bench.report.scaling import replicates
from bench.report.styles import Style
from bench.report.tables import ABSENT, NO_FIGURE, Table, column_name, join, ok_row
from bench.results import Row
from bench.stats import scaling_exponent

MOST_NOTES = 6
MOST_LINES = 10  # in one figure; of more, AT_ONCE in each of several
AT_ONCE = 8
GROWING = (TIME, MEMORY)  # quantities whose exponent stands in the legend
WIDEST = 16.0  # ratios beyond it have the colour of it


@dataclass(frozen=True)
class Frame:
    """What all figures of a group share: styles by label, the heading, the memory a call may take in bytes."""

    styles: Mapping[str, Style]
    heading: str
    memory_limit: int | None = None


def cost_figures(cells: Cells, frame: Frame) -> Iterator[Drawing]:
    """Time, memory, throughput and share of the limit against the length, and the speed-up.

    Throughput is the time turned round: of many series the time alone is drawn.
    """
    for quantity in measured(cells):
        labels = [label for label in cells.by_label if _points(cells, quantity, label)]
        if quantity is THROUGHPUT and len(labels) > MOST_LINES:
            continue
        parts = spread_out(labels, _size(cells, quantity))
        for place, part in enumerate(parts, start=1):
            number = f"{place} of {len(parts)}" if len(parts) > 1 else ""
            yield _lines(cells, quantity, frame, part, number)
    ratios = speed_ups(cells)
    if ratios is not None and len(ratios.columns) > 2:
        yield _map(ratios, cells, frame)


def spread_out(labels: Sequence[str], size: Mapping[str, float]) -> list[list[str]]:
    """The series of each figure: all in one, or when they are many, from the smallest to the largest in even parts."""
    if len(labels) <= MOST_LINES:
        return [list(labels)] if labels else []
    ordered = sorted(labels, key=lambda label: (size.get(label, math.inf), label))
    count = -(-len(ordered) // AT_ONCE)
    each = -(-len(ordered) // count)
    return [ordered[start : start + each] for start in range(0, len(ordered), each)]


def _size(cells: Cells, quantity: Quantity) -> dict[str, float]:
    """Figures at the longest length that the most variants share, by which series are put beside each other."""
    at = common_length(cells) or 0
    points = {label: _points(cells, quantity, label) for label in cells.by_label}
    return {label: found[at].value for label, found in points.items() if at in found}


def _lines(cells: Cells, quantity: Quantity, frame: Frame, labels: Sequence[str], number: str) -> Drawing:
    canvas, axes = new_axes(f"{quantity.title} [{quantity.unit}]", frame.heading, cells.group.shape)
    columns = [column for column in cells.columns if column]
    for label in cells.by_label:
        points = _points(cells, quantity, label)
        values = [points.get(column) for column in columns]
        if label in labels:
            draw_line(axes, columns, values, _legend(cells, quantity, label), frame.styles[label])
        elif points and number:
            draw_quiet(axes, columns, values)
    set_length_axis(axes, columns)
    bounds = [bound for label in cells.by_label for bound in _bounds(cells, quantity, label)]
    limit = frame.memory_limit / MIB if frame.memory_limit and quantity is MEMORY else None
    near = limit is not None and limit <= 4 * max(bounds)
    set_value_axis(axes, [*bounds, limit] if limit is not None and near else bounds)
    notes = [_not_drawn(cells, quantity, labels, lost=not number or number.startswith("1 "))]
    if limit is not None and near:
        draw_limit(axes, limit, "memory limit")
    elif limit is not None:
        notes.append(f"The memory limit, {limit:,.0f} MiB, is above the figure.")
    axes.set_xlabel("length")
    note = " ".join(filter(None, [*notes, "Grey: all others." if number else ""]))
    surround(axes, note)
    title = f"{quantity.title} against length{f', {number}' if number else ''}"
    alt = f"{title}, both on log axes: {frame.heading}. {_in_words(cells, quantity, labels)}"
    return Drawing(canvas, f"{quantity.kind} {number.split(' ')[0]}".strip(), title, alt, note)


def _legend(cells: Cells, quantity: Quantity, label: str) -> str:
    """The label with its fitted exponent, where there is one."""
    found = scaling_exponent(replicates(cells, label, quantity)) if quantity in GROWING else None
    return label if found is None else f"{label} n^{found.value:.2f}"


def _points(cells: Cells, quantity: Quantity, label: str) -> dict[int, Estimate]:
    """What can be drawn on log axes: figures above 0 at a length above 0."""
    points = {}
    for column in cells.columns:
        row = ok_row(cells, label, column)
        found = quantity.take(row) if row is not None else None
        if column and found is not None and found.value > 0:
            points[column] = found
    return points


def _bounds(cells: Cells, quantity: Quantity, label: str) -> list[float]:
    points = _points(cells, quantity, label).values()
    return [bound for found in points for bound in ((found.value,) if found.unsure else found.interval) if bound > 0]


def _not_drawn(cells: Cells, quantity: Quantity, labels: Sequence[str], *, lost: bool) -> str:
    """`Not drawn: additive at 4096 (skipped); ...`, or only how many; empty when every point is there.

    lost: also of those that have no point at all.
    """
    missing: list[str] = []
    count = 0
    for label, line in cells.by_label.items():
        points = _points(cells, quantity, label)
        if label not in labels and (points or not lost):
            continue
        why: dict[str, list[str]] = {}
        for column in cells.columns:
            if column not in points:
                count += 1
                why.setdefault(_no_point(quantity, line.get(column)), []).append(column_name(column))
        missing += [f"{label} at {join(places)} ({reason})" for reason, places in why.items()]
    if len(missing) > MOST_NOTES:
        return f"Not drawn: {count} points that have no figure; the table shows why."
    return f"Not drawn: {'; '.join(missing)}." if missing else ""


def _no_point(quantity: Quantity, row: Row | None) -> str:
    if row is None or row.status != "ok":
        return ABSENT if row is None else row.status
    found = quantity.take(row)
    return NO_FIGURE if found is None else f"{found.value:g} on a log axis"


def _in_words(cells: Cells, quantity: Quantity, labels: Sequence[str]) -> str:
    """The ends of each line, for those who cannot see it."""
    words = []
    for label in labels:
        points = _points(cells, quantity, label)
        ends = dict.fromkeys((min(points), max(points)))
        words.append(f"{label} {', '.join(f'{quantity.write(points[n])} at {n}' for n in ends)}")
    return f"In {quantity.unit}: {'; '.join(words)}."


def _map(ratios: Table, cells: Cells, frame: Frame) -> Drawing:
    """Speed-up over the baseline: one place a variant and length, blue where faster, orange where slower."""
    import seaborn
    from matplotlib.colors import TwoSlopeNorm

    rows = sorted(
        ratios.rows, key=lambda row: [-(cell.estimate.value if cell.estimate else 0) for cell in row[1][-2::-1]]
    )
    lengths = ratios.columns[:-1]
    canvas, axes = new_axes("", frame.heading, cells.group.shape, lines=len(rows))
    widest = math.log2(WIDEST)
    values = [[math.log2(cell.estimate.value) if cell.estimate else math.nan for cell in line[:-1]] for _, line in rows]
    norm = TwoSlopeNorm(0, -widest, widest)
    shades = seaborn.diverging_palette(40, 240, s=85, l=60, as_cmap=True)
    axes.pcolormesh(values, cmap=shades, norm=norm, edgecolors="#ffffff", linewidth=0.5)
    for place, (_, line) in enumerate(rows):
        for column, cell in enumerate(line[:-1]):
            ink = "#010101" if cell.estimate else INK  # black on any shade; the ink of the page where there is none
            axes.text(
                column + 0.5,
                place + 0.5,
                cell.text.rstrip("×"),
                ha="center",
                va="center",
                fontsize="x-small",
                color=ink,
            )
    axes.set_xticks([place + 0.5 for place in range(len(lengths))], lengths)
    axes.set_yticks([place + 0.5 for place in range(len(rows))], [label for label, _ in rows])
    axes.set_ylim(len(rows), 0)
    axes.set_xlabel("length")
    axes.grid(visible=False)
    note = "2.00 takes half the time. Blue: faster, orange: slower. A word: the status of the cell."
    surround(axes, note)
    words = "; ".join(
        f"{label} {', '.join(f'{cell.text} at {n}' for n, cell in zip(lengths, line, strict=False))}"
        for label, line in rows
    )
    return Drawing(canvas, "speedup", ratios.title, f"{ratios.title} as a map: {frame.heading}. {words}.", note)
