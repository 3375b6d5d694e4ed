"""Figures of a report: one colour and marker a variant, gaps where there is no figure, a note on what is left out.

Drawn through the object interface, without pyplot's global state; the same rows give the same bytes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from bench.report.accuracy import (
    gap_labels,
    gap_score,
    in_unit,
    metric_name,
    metric_of,
    results_of,
    row_name,
    score,
    seeds_of,
    write_chance,
)  # fmt: skip
from bench.report.canvas import draw_interval, draw_line, look, new_axes, set_length_axis, set_value_axis, surround
from bench.report.costs import QUANTITIES, Quantity
from bench.report.digits import Estimate
from bench.report.document import Document
from bench.report.fidelity import is_fidelity
from bench.report.groups import Cells
from bench.report.styles import CONTROL_COLOUR, Style, styles_of
from bench.report.tables import ABSENT, NO_FIGURE, column_name, join, ok_row
from bench.results import Accuracy, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

MOST_SECTIONS = 12
MOST_NOTES = 6


@dataclass(frozen=True)
class Figure:
    """A drawn figure: `slug` of its section, file `name`, `alt` text in words, `note` on what is not drawn."""

    slug: str
    name: str
    title: str
    alt: str
    note: str
    svg: str
    png: bytes | None


def draw_figures(document: Document, *, png: bool = True) -> list[Figure]:
    """All figures of a report, those of the first MOST_SECTIONS sections; `png` also renders pixels."""
    styles = styles_of([section.cells for section in document.sections])
    figures = []
    with look():
        for section in document.sections[:MOST_SECTIONS]:
            cells, heading = section.cells, document.heading(section)
            if is_fidelity(cells):
                continue
            drawings = _tasks(cells, styles, heading) if cells.group.is_task else _costs(cells, styles, heading)
            figures += [_finish(drawing, cells.slug, png=png) for drawing in drawings]
    return figures


class Drawing(NamedTuple):
    """A figure before it is saved."""

    canvas: Canvas
    kind: str
    title: str
    alt: str
    note: str


def _finish(drawing: Drawing, slug: str, *, png: bool) -> Figure:
    vector, pixels = io.StringIO(), io.BytesIO()
    drawing.canvas.savefig(vector, format="svg", metadata={"Date": None}, bbox_inches="tight")
    if png:
        drawing.canvas.savefig(pixels, format="png", dpi=200, bbox_inches="tight")
    name = f"{re.sub('[^a-z0-9]+', '-', drawing.kind.lower())}-{slug}"
    content = pixels.getvalue() if png else None
    return Figure(slug, name, drawing.title, drawing.alt, drawing.note, vector.getvalue(), content)


def _costs(cells: Cells, styles: Mapping[str, Style], heading: str) -> Iterator[Drawing]:
    for quantity in QUANTITIES:
        if any(_points(cells, quantity, label) for label in cells.by_label):
            yield _cost(cells, quantity, styles, heading)


def _cost(cells: Cells, quantity: Quantity, styles: Mapping[str, Style], heading: str) -> Drawing:
    canvas, axes = new_axes(f"{quantity.title} [{quantity.unit}]", heading, cells.group.shape)
    columns = [column for column in cells.columns if column]
    for label in cells.by_label:
        points = _points(cells, quantity, label)
        if points:
            draw_line(axes, columns, [points.get(column) for column in columns], label, styles[label])
    set_length_axis(axes, columns)
    set_value_axis(axes, [bound for label in cells.by_label for bound in _bounds(cells, quantity, label)])
    axes.set_xlabel("length")
    note = _not_drawn(cells, quantity)
    surround(axes, note)
    title = f"{quantity.title} against length"
    alt = f"{title}, both on log axes: {heading}. {_in_words(cells, quantity)}"
    return Drawing(canvas, quantity.kind, title, alt, note)


def _points(cells: Cells, quantity: Quantity, label: str) -> dict[int, Estimate]:
    """What can be drawn on log axes: figures above 0 at a length above 0."""
    points = {}
    for column in cells.columns:
        row = ok_row(cells, label, column)
        found = quantity.take(row) if row is not None else None
        if column and found is not None and found.value > 0:
            points[column] = found
    return points


def _bounds(cells: Cells, quantity: Quantity, label: str) -> list[float]:
    return [bound for found in _points(cells, quantity, label).values() for bound in found.interval if bound > 0]


def _not_drawn(cells: Cells, quantity: Quantity) -> str:
    """`Not drawn: additive at 4096 (skipped); ...`, or only how many; empty when every point is there."""
    missing: list[str] = []
    count = 0
    for label, line in cells.by_label.items():
        points = _points(cells, quantity, label)
        why: dict[str, list[str]] = {}
        for column in cells.columns:
            if column not in points:
                count += 1
                why.setdefault(_no_point(quantity, line.get(column)), []).append(column_name(column))
        missing += [f"{label} at {join(places)} ({reason})" for reason, places in why.items()]
    if len(missing) > MOST_NOTES:
        return f"Not drawn: {count} points that have no figure; the table shows why."
    return f"Not drawn: {'; '.join(missing)}." if missing else ""


def _no_point(quantity: Quantity, row: Row | None) -> str:
    if row is None or row.status != "ok":
        return ABSENT if row is None else row.status
    found = quantity.take(row)
    return NO_FIGURE if found is None else f"{found.value:g} on a log axis"


def _in_words(cells: Cells, quantity: Quantity) -> str:
    """The ends of each line, for those who cannot see it."""
    words = []
    for label in cells.by_label:
        points = _points(cells, quantity, label)
        if points:
            ends = dict.fromkeys((min(points), max(points)))
            words.append(f"{label} {', '.join(f'{quantity.write(points[n])} at {n}' for n in ends)}")
    return f"In {quantity.unit}: {'; '.join(words)}."


def _tasks(cells: Cells, styles: Mapping[str, Style], heading: str) -> Iterator[Drawing]:
    known = metric_of(cells)
    if known is None:
        return
    yield _scores(cells, known, styles, heading)
    if gap_labels(cells):
        yield _by_gap(cells, known, styles, heading)


def _scores(cells: Cells, known: Accuracy, styles: Mapping[str, Style], heading: str) -> Drawing:
    metric, unit = known.metric, in_unit(known.metric, Estimate(0))[1]
    figures = {label: found for label in cells.by_label if (found := score(results_of(cells, label))) is not None}
    canvas, axes = new_axes("", heading, cells.group.shape)
    for place, (label, found) in enumerate(figures.items()):
        shown, style = in_unit(metric, found)[0], styles[label]
        axes.plot([shown.value], [place], marker=style.marker, color=style.colour, markersize=8, linestyle="none")
        draw_interval(axes, [place], [shown], style, vertical=False)
    axes.set_yticks(range(len(figures)), [row_name(cells, label) for label in figures])
    axes.set_ylim(len(figures) - 0.5, -0.5)
    better = "more" if known.higher_is_better else "less"
    axes.set_xlabel(f"{_axis_name(metric)} ({better} is better)")
    if unit == "%":
        axes.set_xlim(-2, 102)
    one = seeds_of(cells) == 1
    notes = [_no_score(cells, figures), _draw_chance(axes, known, vertical=True)]
    notes.append("One seed: bars are the interval of the test estimate." if one else "Bars are the range of the seeds.")
    note = " ".join(filter(None, notes))
    surround(axes, note)
    words = "; ".join(f"{label} {in_unit(metric, found)[0].value:.3g}" for label, found in figures.items())
    title = metric_name(metric).capitalize()
    return Drawing(canvas, metric, title, f"{title} of each variant: {heading}. In {unit}: {words}.", note)


def _by_gap(cells: Cells, known: Accuracy, styles: Mapping[str, Style], heading: str) -> Drawing:
    metric, bins = known.metric, gap_labels(cells)
    canvas, axes = new_axes(_axis_name(metric), heading, cells.group.shape)
    words = []
    for label in cells.by_label:
        found = [gap_score(cells, label, name) for name in bins]
        shown = [None if value is None else in_unit(metric, value)[0] for value in found]
        if any(shown):
            draw_line(axes, list(range(len(bins))), shown, label, styles[label])
            places = zip(bins, shown, strict=True)
            words.append(f"{label} {', '.join(f'{value.value:.3g} at {name}' for name, value in places if value)}")
    axes.set_xticks(range(len(bins)), bins)
    axes.set_xlim(-0.3, len(bins) - 0.7)
    axes.set_xlabel("gap between query and key (positions)" if metric == "accuracy" else "position in the context")
    unit = in_unit(metric, Estimate(0))[1]
    if unit == "%":
        axes.set_ylim(-3, 103)
    scored = [label for label in cells.by_label if results_of(cells, label)]
    note = " ".join(filter(None, [_no_score(cells, scored), _draw_chance(axes, known, vertical=False)]))
    surround(axes, note)
    title = f"{metric_name(metric).capitalize()} by gap"
    return Drawing(canvas, f"{metric} by gap", title, f"{title}: {heading}. In {unit}: {'; '.join(words)}.", note)


def _axis_name(metric: str) -> str:
    return f"{metric_name(metric)}{' [%]' if metric == 'accuracy' else ''}"


def _no_score(cells: Cells, drawn: Collection[str]) -> str:
    lost = [label for label in cells.by_label if label not in drawn]
    return f"Not drawn: {join(lost)} (no score)." if lost else ""


def _draw_chance(axes: Axes, known: Accuracy, *, vertical: bool) -> str:
    """A line at chance where the axis has a natural end; elsewhere it would squeeze the points, and a note says it."""
    if known.chance is None:
        return ""
    if known.metric != "accuracy":
        return f"Chance is {write_chance(known.metric, known.chance)}."
    draw = axes.axvline if vertical else axes.axhline
    draw(known.chance * 100, color=CONTROL_COLOUR, linestyle=":", linewidth=1.5, label="chance")
    return ""
