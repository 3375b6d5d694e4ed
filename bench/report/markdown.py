"""The report as Markdown: for pull requests, issues and plain reading."""

from __future__ import annotations

import re
from collections.abc import Sequence

from bench.report.answer import Name, Sentence
from bench.report.document import CHOICES, METHOD, STATUSES, Document, Provenance, counts_line
from bench.report.tables import Cell, Section, Table


def to_markdown(document: Document, figures: Sequence[tuple[str, str, str]] = ()) -> str:
    """The whole report. figures: (slug of its section, path of the picture, alternative text)."""
    lines = [f"# {escape(document.title)}", ""]
    lines += [f"{escape(found.run)}: {counts_line(found.counts)}.  " for found in document.provenance]
    lines += ["", "## Short answer", ""]
    lines += [f"- {sentence_text(sentence)}" for sentence in document.answer] or ["- There is nothing to compare."]
    if document.choices:
        lines += ["", "## What to take"]
        lines += [line for table in document.choices for line in _table(table)]
        lines += _pictures(figures, CHOICES)
    for section in document.sections:
        lines += ["", f"## {escape(document.heading(section))}", ""]
        lines += [
            f"{escape(section.cells.group.shape.capitalize())}. **Bold**: best in its column within the intervals."
        ]
        lines += [line for table in section.tables for line in _table(table)]
        lines += _below(section) + _pictures(figures, section.cells.slug)
    for found in document.provenance:
        lines += _origin(found, several=document.several)
    lines += ["", "## How it was measured", "", *(f"- {escape(text)}" for text in METHOD)]
    return "\n".join(lines) + "\n"


def _table(table: Table) -> list[str]:
    return ["", f"### {escape(_title(table))}", "", *table_lines(table), "", escape(table.caption)]


def _pictures(figures: Sequence[tuple[str, str, str]], slug: str) -> list[str]:
    return [line for where, path, text in figures if where == slug for line in ("", f"![{escape(text)}]({path})")]


def table_lines(table: Table) -> list[str]:
    """A table in pipes, figures aligned right."""
    head = [table.head, *table.columns]
    rows = [[escape(label), *map(_cell, cells)] for label, cells in table.rows]
    return [
        _row([escape(name) for name in head]),
        _row([":--", *["--:" for _ in table.columns]]),
        *(_row(row) for row in rows),
    ]


def sentence_text(sentence: Sentence) -> str:
    """A sentence with the variants' names as code."""
    return "".join(_code(part) if isinstance(part, Name) else escape(part) for part in sentence)


def escape(text: str) -> str:
    """Text that Markdown shows as it is: no markup, no HTML, no new column."""
    safe = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*|\[\]])", r"\\\1", safe)


def _title(table: Table) -> str:
    return f"{table.title} [{table.unit}]" if table.unit else table.title


def _cell(cell: Cell) -> str:
    text = escape(cell.text) + ("†" if cell.flagged else "")
    return f"**{text}**" if cell.best else text


def _code(text: str) -> str:
    return f"`{text}`" if re.fullmatch(r"[\w .=,:-]+", text) else escape(text)


def _row(values: Sequence[str]) -> str:
    return f"| {' | '.join(values)} |"


def _below(section: Section) -> list[str]:
    lines = []
    if section.reasons:
        lines += ["", "Without a figure:", "", *(f"- {escape(text)}" for text in section.reasons)]
    if section.notes:
        lines += ["", *(f"- {escape(text)}" for text in section.notes)]
    return lines


def _origin(found: Provenance, *, several: bool) -> list[str]:
    lines = ["", f"## Where the figures come from{f': {escape(found.run)}' if several else ''}", ""]
    lines += ["| status | cells | meaning |", "| :-- | --: | :-- |"]
    lines += [_row([status, str(n), STATUSES[status]]) for status, n in found.counts.items()]
    if found.notes:
        lines += ["", "Left out or not known:", "", *(f"- {escape(text)}" for text in found.notes)]
    if found.command:
        lines += ["", "Run it again:", "", f"    {found.command}"]
    facts = [*found.facts, *found.environment]
    if facts:
        lines += ["", "| fact | value |", "| :-- | :-- |", *(_row([escape(a), escape(b)]) for a, b in facts)]
    return lines
