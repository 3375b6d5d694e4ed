"""The report as data frames: one of all cells, one of all table entries; units stand in the columns."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from bench.report.document import Document
from bench.report.source import clean
from bench.results import flatten, strict_json

if TYPE_CHECKING:
    import pandas as pd

TOO_LONG = {"time.samples_s"}


def cells_frame(document: Document) -> pd.DataFrame:
    """One line a cell: the row's fields under dotted names, nested values as JSON text; null stays null."""
    import pandas as pd

    lines = []
    for section in document.sections:
        for cells in section.cells.by_label.values():
            for row in cells.values():
                flat = {name: _plain(value) for name, value in flatten(row).items() if name not in TOO_LONG}
                lines.append({**flat, "run": section.cells.group.run})
    return pd.DataFrame(lines, dtype=object)


def tables_frame(document: Document) -> pd.DataFrame:
    """One line a place in a table: what its group shares, variant, column, figure with interval, unit."""
    import pandas as pd

    lines: list[dict[str, Any]] = []
    for section in document.sections:
        group = section.cells.group
        shared = {field.name.rstrip("_"): getattr(group, field.name) for field in fields(group)}
        for table in section.tables:
            for label, cells in table.rows:
                for column, cell in zip(table.columns, cells, strict=True):
                    found = cell.estimate
                    lines.append(
                        {
                            **shared,
                            "table": table.kind,
                            "variant": label,
                            "column": column,
                            "value": found.value if found else None,
                            "low": found.low if found else None,
                            "high": found.high if found else None,
                            "unit": table.unit if found else None,
                            "text": cell.text,
                            "best": cell.best,
                            "flagged": cell.flagged,
                        }
                    )
    return pd.DataFrame(lines, dtype=object)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        value = [item.model_dump() if isinstance(item, BaseModel) else item for item in value]
    if isinstance(value, list | dict):
        return strict_json(value)
    return clean(value) if isinstance(value, str) else value
