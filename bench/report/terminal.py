"""The report in a terminal: tables that fit the window, plain text when piped, readable under any code page."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from bench.report.answer import Name
from bench.report.document import Document, counts_line
from bench.report.tables import Cell, Section, Table

PADDING = 2
PLAIN_SIGNS = str.maketrans({"±": "+-", "×": "x", "–": "-", "†": "!"})
PLAIN = box.Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)  # a rule under the head, no lines


def print_document(document: Document, console: Console) -> None:
    """Print tables, what is missing and why, what to take, and last the short answer."""
    for section in document.sections:
        _print_section(document.heading(section), section, console)
    for table in document.choices:
        _print_table(table, console)
    for found in document.provenance:
        console.print(_text(f"{found.run}: {counts_line(found.counts)}", console, "bold"))
        for note in found.notes:
            console.print(_text(f"  {note}", console))
    console.print()
    console.print(_text("Short answer", console, "bold"))
    for sentence in document.answer:
        line = Text("- ")
        for part in sentence:
            line.append_text(_text(part, console, "cyan" if isinstance(part, Name) else ""))
        console.print(line)


def _print_section(heading: str, section: Section, console: Console) -> None:
    console.print(_text(heading, console, "bold underline"))
    console.print(_text(section.cells.group.shape, console, "dim"))
    console.print()
    for table in section.tables:
        _print_table(table, console)
    if any(cell.best for table in section.tables for _, cells in table.rows for cell in cells):
        console.print(_text("* best in its column within the intervals", console))
    for line in (*section.reasons, *section.notes):
        console.print(_text(line, console))
    console.print()


def _print_table(table: Table, console: Console) -> None:
    unit = f" [{table.unit}]" if table.unit else ""
    console.print(_text(f"{table.title}{unit}", console, "bold"))
    for part in _parts(table, console.width):
        console.print(_rich(part, console))
    console.print(_text(table.caption, console, "dim"))
    console.print()


def _parts(table: Table, width: int) -> Iterator[Table]:
    """The table cut into runs of columns that fit the width; each part repeats the names of the rows."""
    room = width - PADDING - min(width // 2, max([len(table.head), *(cell_len(label) for label, _ in table.rows)]))
    wide = [
        PADDING + max([cell_len(name), *(cell_len(_shown(cells[index])) for _, cells in table.rows)])
        for index, name in enumerate(table.columns)
    ]
    start = 0
    while start < len(wide):
        end = start + 1
        while end < len(wide) and sum(wide[start : end + 1]) <= room:
            end += 1
        rows = tuple((label, cells[start:end]) for label, cells in table.rows)
        yield Table(table.kind, table.title, table.caption, table.unit, table.columns[start:end], rows, table.head)
        start = end


def _shown(cell: Cell) -> str:
    return cell.text + ("†" if cell.flagged else "") + ("*" if cell.best else "")


def _rich(table: Table, console: Console) -> RichTable:
    shown = RichTable(box=PLAIN, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    shown.add_column(_text(table.head, console), max_width=console.width // 2)
    for name in table.columns:
        shown.add_column(_text(name, console), justify="right")
    for label, cells in table.rows:
        styles = ["bold green" if cell.best else "dim" if cell.missing else "" for cell in cells]
        values = [_text(_shown(cell), console, style) for cell, style in zip(cells, styles, strict=True)]
        shown.add_row(_text(label, console), *values)
    return shown


def _text(text: str, console: Console, style: str = "") -> Text:
    """Literal text, never markup; signs the terminal's code page lacks become plain ones or a question mark."""
    encoding = console.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(PLAIN_SIGNS).encode(encoding, "replace").decode(encoding)
    return Text(text, style=style)
