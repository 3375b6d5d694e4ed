"""What to take: at each length and on each device the fastest, the smallest and the most accurate, with intervals."""

from __future__ import annotations

from collections.abc import Sequence

from bench.report.accuracy import in_unit, metric_name, metric_of, scores, write_chance, write_score
from bench.report.costs import MEMORY, TIME, Quantity, best_at, figures_at
from bench.report.digits import Estimate
from bench.report.fidelity import is_fidelity
from bench.report.groups import Cells, where
from bench.report.tables import NO_BASE, Cell, Table, column_name, join, leaders

MOST_NAMES = 3
COSTS_CAPTION = (
    "Where several are named, their 95 % intervals overlap: the figures do not tell them apart. The figure is that of "
    "the first."
)
SCORES_CAPTION = "Each model was trained on the task and scored once on its test split; names as above."


def decision_tables(groups: Sequence[Cells]) -> list[Table]:
    """One table of time and memory by length and device, one of accuracy by task; only those with a figure."""
    costs = [cells for cells in groups if not cells.group.is_task and not is_fidelity(cells)]
    trained = [cells for cells in groups if cells.group.is_task]
    return [table for table in (_costs(costs), _scores(trained)) if table.rows]


def _costs(groups: Sequence[Cells]) -> Table:
    rows = [
        (where(cells, groups, without=("device",)), _cost_row(cells, column))
        for cells in groups
        for column in cells.columns
        if figures_at(cells, TIME, column)
    ]
    columns = ("length", "device", "fastest", "time [ms]", "least memory", "peak [MiB]")
    return Table("decision", "Fastest and smallest", COSTS_CAPTION, "", columns, tuple(rows), head="workload")


def _cost_row(cells: Cells, column: int | None) -> tuple[Cell, ...]:
    length = Cell(column_name(column), None if column is None else Estimate(column))
    return (length, Cell(cells.group.device), *_best(cells, TIME, column), *_best(cells, MEMORY, column))


def _best(cells: Cells, quantity: Quantity, column: int | None) -> tuple[Cell, Cell]:
    best = best_at(cells, quantity, column)
    if not best:
        return Cell(NO_BASE), Cell(NO_BASE)
    figure = figures_at(cells, quantity, column)[best[0]]
    return Cell(named(best)), Cell(quantity.write(figure), figure)


def _scores(groups: Sequence[Cells]) -> Table:
    rows = [
        (where(cells, groups, without=("device", "length")), line) for cells in groups if (line := _score_row(cells))
    ]
    columns = ("length", "device", "most accurate", "score", "metric", "chance")
    return Table("decision accuracy", "Most accurate", SCORES_CAPTION, "", columns, tuple(rows), head="task")


def _score_row(cells: Cells) -> tuple[Cell, ...] | None:
    known, figures = metric_of(cells), scores(cells)
    if known is None or not figures:
        return None
    lead = leaders(figures, higher_is_better=known.higher_is_better)
    length = cells.group.length
    shown, unit = in_unit(known.metric, figures[lead[0]])
    chance = None if known.chance is None else in_unit(known.metric, Estimate(known.chance))[0]
    return (
        Cell(NO_BASE if length is None else str(length), None if length is None else Estimate(length)),
        Cell(cells.group.device),
        Cell(named(lead)),
        Cell(write_score(known.metric, figures[lead[0]]), shown),
        Cell(f"{metric_name(known.metric)} [%]" if unit == "%" else unit),
        Cell(NO_BASE if known.chance is None else write_chance(known.metric, known.chance), chance),
    )


def named(labels: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b, c and 4 more`."""
    more = len(labels) - MOST_NAMES
    return join([*labels[:MOST_NAMES], f"{more} more"] if more > 0 else labels)
