"""How far the numbers of each variant are from exact softmax attention: one table a length."""

from __future__ import annotations

from bench.report.digits import Estimate
from bench.report.groups import Cells
from bench.report.tables import ABSENT, NO_FIGURE, Cell, Section, Table, column_name, ok_row, reasons
from bench.results import Row

OUTPUT = "output_vs_mean"
SHOWN = {  # metric of the row field `error`: heading; the others are in the exports
    OUTPUT: "output",
    "gradient": "gradient",
    "top1": "top 1",
}
DRAWN = (
    "Errors without training, on normal q, k and v; the number in a heading is the spread of q and k (0.5: nearly even "
    "rows, 2: rows of a few keys). "
)
RECORDED = "Errors on the q, k and v that the layers of a trained model were given on a sequence of its test split. "
CAPTION = (
    "output: relative to the distance of exact attention from the average of the values, "
    "so 1 is no better than averaging. gradient: relative, the worst of q, k and v. top 1: share of queries whose "
    "heaviest key is the right one. Variants with a seed are averaged over 5 draws."
)


def is_fidelity(cells: Cells) -> bool:
    """Whether a group compares numbers."""
    return cells.group.workload.partition(":")[0] == "fidelity"


def fidelity_section(cells: Cells) -> Section:
    """A table for each length, metrics by inputs in its columns."""
    inputs = _inputs(cells)
    tables = tuple(_table(cells, column, inputs) for column in cells.columns)
    return Section(cells, tables, tuple(reasons(cells)), tuple(cells.notes))


def _inputs(cells: Cells) -> list[str]:
    """What the numbers were taken on: `spread 0.5`, `spread 1`, ... or `layer 1`, ..."""
    names = {name for line in cells.by_label.values() for row in line.values() for name in row.error or {}}
    inputs = {name.partition(", ")[2] for name in names}
    return sorted(inputs, key=lambda name: float(name.split()[1]))


def middle_inputs(cells: Cells) -> str | None:
    """The inputs that stand for all in one figure: those in the middle."""
    inputs = _inputs(cells)
    return inputs[len(inputs) // 2] if inputs else None


def error_at(cells: Cells, column: int | None, inputs: str) -> dict[str, Estimate]:
    """Error of the output relative to averaging, by label, of the variants without the controls."""
    name = f"{OUTPUT}, {inputs}"
    rows = {label: ok_row(cells, label, column) for label in cells.ranked}
    values = {label: (row.error or {}).get(name) for label, row in rows.items() if row is not None}
    return {label: Estimate(value) for label, value in values.items() if value is not None}


def _table(cells: Cells, column: int | None, inputs: list[str]) -> Table:
    asked = [(metric, name) for metric in SHOWN for name in inputs]
    rows = tuple(
        (label, tuple(_cell(cells, label, column, f"{metric}, {name}") for metric, name in asked))
        for label in cells.by_label
    )
    at = column_name(column)
    headings = tuple(f"{SHOWN[metric]} {name.removeprefix('spread ')}" for metric, name in asked)
    caption = (DRAWN if cells.group.workload == "fidelity" else RECORDED) + CAPTION
    return Table(f"fidelity {at}", f"Error against exact attention at n = {at}", caption, "", headings, rows)


def _cell(cells: Cells, label: str, column: int | None, name: str) -> Cell:
    row: Row | None = cells.by_label[label].get(column)
    if row is None:
        return Cell(ABSENT)
    if ok_row(cells, label, column) is None:
        return Cell(row.status)
    value = (row.error or {}).get(name)
    return Cell(NO_FIGURE) if value is None else Cell(written(value), Estimate(value))


def written(value: float) -> str:
    """Two digits are enough for an error; below a thousandth its size alone."""
    return f"{value:.2f}" if value >= 0.095 else f"{value:.1g}" if value >= 1e-3 else f"{value:.0e}"
