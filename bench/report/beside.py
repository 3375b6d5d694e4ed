"""Several runs beside each other: machines or dates in columns, one table for each group that more than one run has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bench.report.accuracy import in_unit, metric_of, scores, write_score
from bench.report.costs import MEMORY, TIME, figures_at
from bench.report.digits import Estimate
from bench.report.fidelity import is_fidelity
from bench.report.groups import Cells, Group
from bench.report.tables import ABSENT, Cell, Table, column_name

CAPTION = "One column a run, each measured by itself; `compare` says which differences are real."


def beside_tables(groups: Sequence[Cells]) -> list[Table]:
    """For groups that differ in their run alone: time and memory at the longest length all share, or the scores."""
    alike: dict[Group, list[Cells]] = {}
    for cells in groups:
        if not is_fidelity(cells):
            alike.setdefault(replace(cells.group, run=""), []).append(cells)
    several = [(group, found) for group, found in alike.items() if len(found) > 1]
    tables = [_scores(group, found) if group.is_task else _costs(group, found) for group, found in several]
    return [table for table in tables if table]


def _costs(group: Group, runs: Sequence[Cells]) -> Table | None:
    shared = [n for n in runs[0].columns if all(figures_at(cells, TIME, n) for cells in runs)]
    if not shared:
        return None
    figures = {
        f"{cells.group.run} [{quantity.unit}]": (quantity.write, figures_at(cells, quantity, shared[-1]))
        for quantity in (TIME, MEMORY)
        for cells in runs
    }
    labels = sorted({label for cells in runs for label in cells.ranked})
    rows = []
    for label in labels:
        found = [(write, values.get(label)) for write, values in figures.values()]
        rows.append(
            (label, tuple(Cell(ABSENT) if value is None else Cell(write(value), value) for write, value in found))
        )
    title = f"Runs beside each other at {column_name(shared[-1])}"
    return Table("runs", title, f"{group.title}: time and peak memory. {CAPTION}", "", tuple(figures), tuple(rows))


def _scores(group: Group, runs: Sequence[Cells]) -> Table | None:
    known = next((found for cells in runs if (found := metric_of(cells))), None)
    if known is None:
        return None
    labels = sorted({label for cells in runs for label in cells.ranked})
    figures = [scores(cells) for cells in runs]
    rows = [(label, tuple(_score(known.metric, found.get(label)) for found in figures)) for label in labels]
    unit = in_unit(known.metric, Estimate(0))[1]
    columns = tuple(f"{cells.group.run} [{unit}]" for cells in runs)
    return Table("runs", "Runs beside each other", f"{group.title}: score. {CAPTION}", "", columns, tuple(rows))


def _score(metric: str, found: Estimate | None) -> Cell:
    return Cell(ABSENT) if found is None else Cell(write_score(metric, found), in_unit(metric, found)[0])
