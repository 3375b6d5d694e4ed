"""Figures of a report: one colour and marker a variant, gaps where there is no figure, a note on what is left out.

Drawn through the object interface, without pyplot's global state; the same rows give the same bytes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass

from bench.report.canvas import Drawing, look
from bench.report.cost_figures import Frame, cost_figures
from bench.report.document import CHOICES, Document
from bench.report.fidelity import is_fidelity
from bench.report.groups import Cells
from bench.report.styles import styles_of
from bench.report.tables import Section
from bench.report.task_figures import task_figures, trade_figures

MOST_FIGURES = 80
MARGIN, DPI = 0.1, 200


@dataclass(frozen=True)
class Figure:
    """A drawn figure: `slug` of its section (CHOICES: of none), file `name`, `alt` in words, `note` on what is lost."""

    slug: str
    name: str
    title: str
    alt: str
    note: str
    svg: str
    png: bytes | None


def draw_figures(document: Document, *, png: bool = True) -> list[Figure]:
    """All figures of a report, up to MOST_FIGURES at the end of a section; `png` also renders pixels."""
    figures: list[Figure] = []
    with look():
        for slug, drawings in _parts(document):
            if len(figures) >= MOST_FIGURES:
                break
            figures += [finish(drawing, slug, png=png) for drawing in drawings]
    return figures


def _parts(document: Document) -> Iterator[tuple[str, Iterator[Drawing]]]:
    """(slug, what is drawn there), in the order of the report."""
    groups = [section.cells for section in document.sections]
    styles = styles_of(groups)
    for trade in document.trades:
        yield CHOICES, trade_figures(trade, Frame(styles, document.heading(trade.cells)))
    for section in document.sections:
        cells = section.cells
        frame = Frame(styles, document.heading(section), document.memory_limit(cells))
        if cells.group.is_task:
            yield cells.slug, task_figures(cells, frame, _at_other_lengths(cells, document.sections))
        elif not is_fidelity(cells):
            yield cells.slug, cost_figures(cells, frame)


def _at_other_lengths(cells: Cells, sections: list[Section]) -> list[Cells]:
    """The groups of the same task that differ in length (and so in preset), shortest first, one a length."""
    found: dict[int, Cells] = {}
    for section in sections:
        other = section.cells
        same = ("run", "workload", "device", "dtype", "causal", "text")
        if other.group.length and all(getattr(other.group, name) == getattr(cells.group, name) for name in same):
            found.setdefault(other.group.length, other)
    return [found[length] for length in sorted(found)]


def finish(drawing: Drawing, slug: str, *, png: bool) -> Figure:
    """A drawing as the text of an SVG, and with `png` as pixels."""
    vector, pixels = io.StringIO(), io.BytesIO()
    ink = drawing.canvas.get_tightbbox()  # once for both, in inches
    drawing.canvas.savefig(vector, format="svg", metadata={"Date": None}, bbox_inches=ink.padded(MARGIN))
    if png:
        drawing.canvas.savefig(pixels, format="png", dpi=DPI, bbox_inches=ink.padded(MARGIN))
    name = re.sub("[^a-z0-9]+", "-", f"{drawing.kind}-{slug}".lower())
    content = pixels.getvalue() if png else None
    return Figure(slug, name, drawing.title, drawing.alt, drawing.note, vector.getvalue(), content)
