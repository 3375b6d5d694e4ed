"""Tables as data: built once from the rows, then written as text, Markdown, HTML, LaTeX or CSV without retyping.

Best means: best in its column or not told apart from it, because the 95 % intervals overlap. A cell without a figure
shows its status; means and ratios are taken only over cells that all measured variants share, and say how many.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import get_args

from bench.report.digits import Estimate
from bench.report.groups import Cells
from bench.report.source import clean
from bench.results import Row, Status

ABSENT = "not run"
NO_FIGURE = "n/a"
NO_BASE = "–"
WITHOUT = {ABSENT, NO_FIGURE, NO_BASE, *get_args(Status)}
FLAGS = {
    "overhead-bound": "the call lasts less than 10 times an empty call: overhead is a good part of the figure",
    "drifting": "the samples rose or fell by more than 5 % while it was measured",
    "warm-up not stable": "the warm-up ended at its cap before its two halves agreed within 5 %",
    "replicates disagree": "the interval spans more than a factor of 4: measure it again on a quiet machine",
    "busy machine": "other processes kept more than 5 % of all processors busy while it was measured",
    "throttled": "the driver held the clocks of the GPU back for the cause named, in most replicates",
}


@dataclass(frozen=True)
class Cell:
    """One place in a table: what is shown, the figure behind it (null where there is none), and why it is marked."""

    text: str
    estimate: Estimate | None = None
    best: bool = False
    flagged: bool = False

    @property
    def missing(self) -> bool:
        """Whether it stands where a figure should be."""
        return self.estimate is None and self.text in WITHOUT


@dataclass(frozen=True)
class Table:
    """A table of one quantity. `rows` are (label, one cell a column); `unit` is that of the stored figures."""

    kind: str
    title: str
    caption: str
    unit: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    head: str = "variant"


@dataclass(frozen=True)
class Section:
    """All that is said of one group of cells: its tables, the reasons of missing figures, notes."""

    cells: Cells
    tables: tuple[Table, ...]
    reasons: tuple[str, ...]
    notes: tuple[str, ...]


def leaders(figures: Mapping[str, Estimate], *, higher_is_better: bool) -> list[str]:
    """The best label first, then those whose interval overlaps its interval; empty when there are no figures.

    A figure whose interval says nothing leads only where no other is there.
    """
    if not figures:
        return []
    sign = -1 if higher_is_better else 1
    figures = {label: found for label, found in figures.items() if not found.unsure} or figures
    first = min(figures, key=lambda label: (sign * figures[label].value, label))
    low, high = figures[first].interval
    same = [label for label, found in figures.items() if found.interval[0] <= high and low <= found.interval[1]]
    return [first, *sorted(label for label in same if label != first)]


def ok_row(cells: Cells, label: str, column: int | None) -> Row | None:
    """The row of a cell that has figures, or None."""
    row = cells.by_label[label].get(column)
    return row if row is not None and row.status == "ok" else None


def column_name(column: int | None) -> str:
    """The heading of a length."""
    return "no length" if column is None else str(column)


def reasons(cells: Cells) -> list[str]:
    """One line for each reason a figure is missing, with the cells it concerns."""
    found: dict[tuple[str, str, str], list[str]] = {}
    where = "seed " if cells.group.is_task else ""
    for label, line in cells.by_label.items():
        for column in cells.columns:
            row = line.get(column)
            for what, why in _missing(row) if row is not None else ():
                found.setdefault((label, what, clean(why)), []).append(where + column_name(column))
    return [f"{label} at {', '.join(places)}: {status} – {reason}" for (label, status, reason), places in found.items()]


def _missing(row: Row) -> Iterator[tuple[str, str]]:
    """What a row lacks, and why."""
    if row.status != "ok":
        yield row.status, row.reason or "no reason was recorded"
    elif row.memory is not None and row.memory.peak_bytes is None:
        yield "no peak memory", "; ".join(row.memory.reasons.values()) or "no reason was recorded"


def flag_notes(cells: Cells) -> list[str]:
    """One line for each flag that occurs: what it means and which cells carry it."""
    found: dict[str, dict[str, list[str]]] = {}
    where = "seed " if cells.group.is_task else ""
    for label, line in cells.by_label.items():
        for column in cells.columns:
            for flag in line[column].flags if column in line else ():
                found.setdefault(clean(flag), {}).setdefault(label, []).append(where + column_name(column))
    notes = []
    for flag, cells_of in found.items():
        kind = flag.partition(":")[0]  # `throttled: power cap` names its cause
        meaning = f" ({FLAGS[kind]})" if kind in FLAGS else ""
        places = "; ".join(f"{label} at {join(columns)}" for label, columns in cells_of.items())
        notes.append(f"† {flag}{meaning}: {places}.")
    return notes


def join(words: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *head, last = words
    return f"{', '.join(head)} and {last}" if head else last
