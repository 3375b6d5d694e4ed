"""Causal beside bidirectional: whether a variant skips the pairs that a causal mask forbids."""

from __future__ import annotations

from dataclasses import replace

from bench.report.costs import TIME
from bench.report.digits import Estimate
from bench.report.groups import Cells, Group
from bench.report.scaling import replicates
from bench.report.tables import ABSENT, Cell, Table, column_name, ok_row
from bench.stats import ratio

CAPTION = (
    "Time causal / time bidirectional, with its 95 % interval; in brackets the ratio of the FLOPs. Near the bracket: "
    "only allowed pairs are computed. Near 1 beside 0.50: those that the mask forbids are computed too. A hint, not a "
    "proof: what a mask does not shorten, such as projections, takes the same time both ways."
)


def bidirectional(group: Group) -> Group:
    """The group that differs in nothing but the direction."""
    return replace(group, causal=False)


def directions_table(cells: Cells, other: Cells | None) -> Table | None:
    """Ratio of causal cells to `other`, bidirectional ones, at each length both have; None where nothing is shared."""
    if other is None or other is cells:
        return None
    labels = [label for label in cells.ranked if label in other.by_label]
    columns = [n for n in cells.columns if n in other.columns]
    rows = [(label, tuple(_cell(cells, other, label, n) for n in columns)) for label in labels]
    if not any(found.estimate for _, line in rows for found in line):
        return None
    names = tuple(map(column_name, columns))
    return Table("directions", "Causal over bidirectional", CAPTION, "×", names, tuple(rows))


def _cell(causal: Cells, other: Cells, label: str, column: int | None) -> Cell:
    rows = [ok_row(cells, label, column) for cells in (other, causal)]
    times = [replicates(cells, label, TIME).get(column or 0) for cells in (other, causal)]
    base, new = times
    if not base or not new:
        lost = [row.status for found in (causal, other) if (row := found.by_label[label].get(column))]
        return Cell(next((status for status in lost if status != "ok"), ABSENT))
    found = ratio(base, new)
    flops = [row.flops if row is not None else None for row in rows]
    theory = f" ({flops[1] / flops[0]:.2f})" if flops[0] and flops[1] is not None else ""
    spread = "" if found.low is None or found.high is None else f" [{found.low:.2f} to {found.high:.2f}]"
    return Cell(f"{found.value:.2f}×{spread}{theory}", Estimate(found.value, found.low, found.high))
