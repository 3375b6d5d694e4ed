"""The pages that are made from the source are those that the source makes; the others name all that there is."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from bench.report.accuracy import DETAILS
from bench.report.costs import QUANTITIES, SHARE
from bench.report.document import STATUSES
from bench.report.tables import FLAGS
from bench.results import NESTED, Row

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


@pytest.mark.parametrize("name", ["variants", "tasks"])
def test_a_page_that_is_made_is_up_to_date(name: str) -> None:
    made = runpy.run_path(str(DOCS / f"make_{name}.py"))["page"]()
    written = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    assert written == made, f"run: python docs/make_{name}.py"


def lines_of_tables(page: Path) -> dict[str, str]:
    """First cell -> second cell of every line of every table of a page."""
    lines = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {first: rest[0] for first, *rest in cells}


def test_every_status_and_flag_is_explained_in_the_words_of_the_report() -> None:
    told = lines_of_tables(DOCS / "reading-a-report.md")
    for name, meaning in {**STATUSES, **FLAGS}.items():
        assert told[f"`{name}`"] == meaning


def test_every_column_of_the_report_is_explained() -> None:
    page = DOCS / "reading-a-report.md"
    told = lines_of_tables(page)
    assert {quantity.title: quantity.unit for quantity in (*QUANTITIES, SHARE)}.items() == {
        name: unit.split(" (")[0] for name, unit in told.items() if name in {q.title for q in (*QUANTITIES, SHARE)}
    }.items()
    columns = {name for first in told for name in re.findall(r"`([^`]+)`", first)}
    assert {detail.heading for detail in DETAILS} <= columns


def test_every_field_of_the_row_is_described_and_no_other() -> None:
    """A cell `time.low_s`, `high_s` means both of `time`; `ceiling.*` means every field of `ceiling`."""
    there = {(field.alias or name) for name, field in Row.model_fields.items() if name not in NESTED}
    there |= {f"{name}.{inner}" for name, record in NESTED.items() for inner in record.model_fields}
    described = set()
    for first in lines_of_tables(ROOT / "results/README.md"):
        parent = ""
        for name in re.findall(r"`([^`]+)`", first):
            parent = name.rpartition(".")[0] or parent
            described.add(name if "." in name or not parent else f"{parent}.{name}")
    described = {name for name in described if not name.endswith(".*")} | {
        name for name in there if f"{name.partition('.')[0]}.*" in described
    }
    assert described == there
