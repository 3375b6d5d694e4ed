"""The tables as LaTeX with booktabs, for papers."""

from __future__ import annotations

from bench.report.document import Document
from bench.report.tables import Cell, Table

SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "×": r"$\times$", "†": r"\dag{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "–": "--",
}  # fmt: skip


def to_latex(document: Document) -> str:
    """Every table of the report as a `table` float; the preamble needs booktabs."""
    parts = ["% needs \\usepackage{booktabs}; for names in other scripts compile with lualatex or xelatex\n"]
    parts += [_float(table, document.title) for table in document.choices]
    for section in document.sections:
        where = f"{document.heading(section)}; {section.cells.group.shape}"
        parts += [_float(table, where) for table in section.tables]
    return "\n".join(parts)


def escape(text: str) -> str:
    """Text that LaTeX sets as it is."""
    return "".join(SPECIAL.get(sign, sign) for sign in text)


def _float(table: Table, where: str) -> str:
    unit = f" [{table.unit}]" if table.unit else ""
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape(f'{table.title}{unit}: {where}. {table.caption}')}}}",
        rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        r"\toprule",
        " & ".join(escape(name) for name in (table.head, *table.columns)) + r" \\",
        r"\midrule",
        *(" & ".join([escape(label), *map(_cell, cells)]) + r" \\" for label, cells in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _cell(cell: Cell) -> str:
    text = escape(cell.text + ("†" if cell.flagged else ""))
    return rf"\textbf{{{text}}}" if cell.best else text
