"""Cost beside quality: time, peak memory, error and accuracy of each variant on one line, and who is beaten in nothing.

For each run and device the timed group with the most figures stands for the cost, at its longest length that most
variants share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.report.accuracy import in_unit, metric_of, scores, write_score
from bench.report.costs import MEMORY, TIME, common_length, figures_at
from bench.report.digits import Estimate
from bench.report.fidelity import error_at, is_fidelity, middle_inputs, written
from bench.report.groups import Cells, where
from bench.report.tables import Cell, Table, column_name
from bench.stats import pareto

HERE = (
    "run",
    "device",
    "length",
    "threads",
)  # what the qualities beside a cost share, or what does not tell them apart


@dataclass(frozen=True)
class Quality:
    """One measure of quality: figures by label as shown (text and value in the unit of the name)."""

    name: str
    higher_is_better: bool
    figures: Mapping[str, Estimate]
    texts: Mapping[str, str]


@dataclass(frozen=True)
class Trade:
    """The cost of one group at one length beside what is known of quality in the same run and on the same device."""

    cells: Cells
    column: int | None
    times: Mapping[str, Estimate]
    peaks: Mapping[str, Estimate]
    qualities: tuple[Quality, ...]

    def front(self, quality: Quality, *, memory: bool = True) -> list[str]:
        """Labels that no other is at least as good as in time, memory and this quality, and better than in one.

        memory: without it, time and quality alone. A device without a memory counter has no peaks to look at either.
        """
        sign = -1 if quality.higher_is_better else 1
        points: dict[str, tuple[float | None, ...]] = {}
        for label in sorted(self.times.keys() & quality.figures.keys()):
            peak = self.peaks.get(label)
            third = (peak.value if peak else None,) if memory and self.peaks else ()
            points[label] = (self.times[label].value, sign * quality.figures[label].value, *third)
        return pareto(points)


def trades(groups: Sequence[Cells]) -> list[Trade]:
    """One a run and device where both a time and a quality are known."""
    found = []
    for place in dict.fromkeys((cells.group.run, cells.group.device) for cells in groups):
        here = [cells for cells in groups if (cells.group.run, cells.group.device) == place]
        timed = [cells for cells in here if not cells.group.is_task and not is_fidelity(cells)]
        if not timed:
            continue
        cells = max(timed, key=_count)  # of several the first, in the order of the report
        column = common_length(cells)
        times, peaks = (figures_at(cells, quantity, column) for quantity in (TIME, MEMORY))
        known = tuple(quality for quality in _qualities(here, cells) if quality.figures.keys() & times.keys())
        if times and known:
            found.append(Trade(cells, column, times, peaks, known))
    return found


def _count(cells: Cells) -> int:
    return sum(len(figures_at(cells, TIME, column)) for column in cells.columns)


def _qualities(groups: Sequence[Cells], timed: Cells) -> Iterator[Quality]:
    trained = [cells for cells in groups if cells.group.is_task]
    for cells in groups:
        names = _names(cells, timed)
        if is_fidelity(cells) and (inputs := middle_inputs(cells)) is not None:
            column = max(cells.columns, key=lambda column: column or 0)
            errors = {names[label]: found for label, found in error_at(cells, column, inputs).items() if label in names}
            texts = {label: written(found.value) for label, found in errors.items()}
            yield Quality(f"error at {column_name(column)}, {inputs}", False, errors, texts)
        elif cells.group.is_task and (known := metric_of(cells)) is not None:
            found = {names[label]: value for label, value in scores(cells).items() if label in names}
            shown = {label: in_unit(known.metric, value)[0] for label, value in found.items()}
            texts = {label: write_score(known.metric, value) for label, value in found.items()}
            unit = in_unit(known.metric, Estimate(0))[1]
            yield Quality(f"{where(cells, trained, HERE)} [{unit}]", known.higher_is_better, shown, texts)


def _names(cells: Cells, timed: Cells) -> dict[str, str]:
    """Label in one group -> label in the timed one: the same, or the only one of the variant in both."""
    names = {label: label for label in cells.ranked if label in timed.by_label}
    count, timed_count = (Counter(map(group.variant, group.ranked)) for group in (cells, timed))
    only = {timed.variant(label): label for label in timed.ranked if timed_count[timed.variant(label)] == 1}
    for label in cells.ranked:
        variant = cells.variant(label)
        if label not in names and variant in only and count[variant] == 1:
            names[label] = only[variant]
    return names


def tradeoff_table(trade: Trade, heading: str) -> Table:
    """One line a variant: time, peak memory, each quality, and on which fronts it is."""
    at = column_name(trade.column)
    fronts = {quality.name: trade.front(quality) for quality in trade.qualities}
    rows = []
    for label in sorted(trade.times, key=lambda label: trade.times[label].value):
        line = [_cell(TIME.write, trade.times.get(label)), _cell(MEMORY.write, trade.peaks.get(label))]
        for quality in trade.qualities:
            found = quality.figures.get(label)
            line.append(Cell("") if found is None else Cell(quality.texts[label], found))
        rows.append((label, (*line, Cell("; ".join(_short(name) for name, on in fronts.items() if label in on)))))
    caption = (
        f"Time and peak memory of one call: {heading}, n = {at}. Front: no other variant is at least as good in time, "
        "memory and that quality, and better in one. Knobs of a task may differ from those that were timed: see the "
        "notes of each part. Error: of the output against exact attention, 1 is no better than averaging."
    )
    columns = (
        f"time at {at} [ms]",
        f"peak at {at} [MiB]",
        *(quality.name for quality in trade.qualities),
        "on the front of",
    )
    return Table("tradeoff", "Cost beside quality", caption, "", columns, tuple(rows))


def _cell(write: Callable[[Estimate], str], found: Estimate | None) -> Cell:
    return Cell("") if found is None else Cell(write(found), found)


def _short(name: str) -> str:
    return "error" if name.startswith("error") else name.split(" [")[0]
