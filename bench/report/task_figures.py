"""Figures of what was learned: scores with their intervals, by gap, against the length, and beside what they cost."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from bench.report.accuracy import (
    CURVES,
    Curve,
    bin_labels,
    bin_score,
    in_unit,
    metric_name,
    metric_of,
    results_of,
    row_name,
    score,
    seeds_of,
    write_chance,
)  # fmt: skip
from bench.report.canvas import (
    Drawing,
    draw_interval,
    draw_line,
    draw_quiet,
    new_axes,
    set_length_axis,
    set_value_axis,
    surround,
)  # fmt: skip
from bench.report.cost_figures import Frame, spread_out
from bench.report.digits import Estimate
from bench.report.groups import Cells
from bench.report.styles import CONTROL_COLOUR
from bench.report.tables import column_name, join
from bench.report.tradeoff import Quality, Trade
from bench.results import Accuracy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_NAMED = 14


def task_figures(cells: Cells, frame: Frame, alike: Sequence[Cells]) -> Iterator[Drawing]:
    """Scores, in parts, against the length. alike: the groups of the same task at all lengths, this one included."""
    known = metric_of(cells)
    if known is None:
        return
    yield _scores(cells, known, frame)
    for curve in (curve for curve in CURVES if bin_labels(cells, curve)):
        size = {label: -found.value for label in cells.by_label if (found := score(results_of(cells, label)))}
        scored = [label for label in cells.by_label if results_of(cells, label)]
        parts = spread_out(scored, size)
        for place, part in enumerate(parts, start=1):
            yield _parts(cells, curve, known, frame, part, f"{place} of {len(parts)}" if len(parts) > 1 else "")
    if len(alike) > 1 and cells is alike[0]:
        yield from _by_length(alike, known, frame)


def _scores(cells: Cells, known: Accuracy, frame: Frame) -> Drawing:
    metric, unit = known.metric, in_unit(known.metric, Estimate(0))[1]
    known_scores = {label: found for label in cells.by_label if (found := score(results_of(cells, label))) is not None}
    sign = -1 if known.higher_is_better else 1
    order = sorted(known_scores, key=lambda label: (label in cells.controls, sign * known_scores[label].value, label))
    figures = {label: known_scores[label] for label in order}
    canvas, axes = new_axes("", frame.heading, cells.group.shape, lines=len(figures))
    for place, (label, found) in enumerate(figures.items()):
        shown, style = in_unit(metric, found)[0], frame.styles[label]
        axes.plot([shown.value], [place], marker=style.marker, color=style.colour, markersize=7, linestyle="none")
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
    return Drawing(canvas, metric, title, f"{title} of each variant: {frame.heading}. In {unit}: {words}.", note)


def _parts(cells: Cells, curve: Curve, known: Accuracy, frame: Frame, labels: Sequence[str], number: str) -> Drawing:
    metric, bins = known.metric, bin_labels(cells, curve)
    canvas, axes = new_axes(_axis_name(metric), frame.heading, cells.group.shape)
    words = []
    for label in cells.by_label:
        found = [bin_score(cells, label, curve, name) for name in bins]
        shown = [None if value is None else in_unit(metric, value)[0] for value in found]
        if label in labels and any(shown):
            draw_line(axes, list(range(len(bins))), shown, label, frame.styles[label])
            places = zip(bins, shown, strict=True)
            words.append(f"{label} {', '.join(f'{value.value:.3g} at {name}' for name, value in places if value)}")
        elif any(shown):
            draw_quiet(axes, list(range(len(bins))), shown)
    axes.set_xticks(range(len(bins)), bins)
    axes.set_xlim(-0.3, len(bins) - 0.7)
    axes.set_xlabel(_axis_of(curve, metric, cells))
    unit = in_unit(metric, Estimate(0))[1]
    if unit == "%":
        axes.set_ylim(-3, 103)
    lost = "" if number else _no_score(cells, labels)
    notes = [lost, _draw_chance(axes, known, vertical=False), "Grey: all others." if number else ""]
    note = " ".join(filter(None, notes))
    surround(axes, note)
    title = f"{metric_name(metric).capitalize()} {curve.name}{f', {number}' if number else ''}"
    alt = f"{title}: {frame.heading}. In {unit}: {'; '.join(words)}."
    return Drawing(canvas, f"{metric} {curve.name} {number.split(' ')[0]}".strip(), title, alt, note)


def _axis_of(curve: Curve, metric: str, cells: Cells) -> str:
    if curve.field == "by_length":
        return f"length of the sequence (trained at {column_name(cells.group.length)})"
    return "gap between query and key (positions)" if metric == "accuracy" else "position in the context"


def _by_length(alike: Sequence[Cells], known: Accuracy, frame: Frame) -> Iterator[Drawing]:
    """Scores of the same task at several lengths; a length without a score is a gap."""
    metric, unit = known.metric, in_unit(known.metric, Estimate(0))[1]
    lengths = [cells.group.length or 0 for cells in alike]
    labels = sorted({label for cells in alike for label in cells.by_label if results_of(cells, label)})
    lines: dict[str, list[Estimate | None]] = {}
    for label in labels:
        found = [score(results_of(cells, label)) if label in cells.by_label else None for cells in alike]
        lines[label] = [None if value is None else in_unit(metric, value)[0] for value in found]
    size = {label: -line[-1].value for label, line in lines.items() if line[-1] is not None}
    parts = spread_out(labels, size)
    for place, part in enumerate(parts, start=1):
        number = f", {place} of {len(parts)}" if len(parts) > 1 else ""
        canvas, axes = new_axes(_axis_name(metric), frame.heading, "")
        for label in labels:
            if label in part:
                draw_line(axes, lengths, lines[label], label, frame.styles[label])
            else:
                draw_quiet(axes, lengths, lines[label])
        set_length_axis(axes, lengths)
        axes.set_xlabel("length")
        if unit == "%":
            axes.set_ylim(-3, 103)
        note = "Each length has a preset of its own: model and budget may differ."
        surround(axes, note)
        title = f"{metric_name(metric).capitalize()} against length{number}"
        words = "; ".join(f"{label} {_values(lines[label], lengths)}" for label in part)
        alt = f"{title}: {frame.heading}. In {unit}: {words}."
        yield Drawing(canvas, f"{metric} against length {place if number else ''}".strip(), title, alt, note)


def _values(line: Sequence[Estimate | None], lengths: Sequence[int]) -> str:
    return ", ".join(f"{found.value:.3g} at {n}" for found, n in zip(line, lengths, strict=True) if found)


def trade_figures(trade: Trade, frame: Frame) -> Iterator[Drawing]:
    """Quality against the time of a call, a figure each, with the front of time and quality."""
    for quality in trade.qualities:
        yield _trade(trade, quality, frame)


def _trade(trade: Trade, quality: Quality, frame: Frame) -> Drawing:
    canvas, axes = new_axes(quality.name, frame.heading, trade.cells.group.shape)
    labels = [label for label in sorted(quality.figures) if label in trade.times and trade.times[label].value > 0]
    places = {label: (trade.times[label].value, quality.figures[label].value) for label in labels}
    on = set(trade.front(quality, memory=False))
    many = len(labels) > MOST_NAMED
    for label, (x, y) in places.items():
        style, named = frame.styles[label], not many or label in on
        axes.plot(
            [x], [y], marker=style.marker, color=style.colour if named else "#808080", alpha=1 if named else 0.5,
            markersize=8 if label in on else 6, linestyle="none", label=label if named else None,
        )  # fmt: skip
    front = sorted(places[label] for label in on if label in places)
    axes.plot(*zip(*front, strict=True), color=CONTROL_COLOUR, linewidth=1, drawstyle="steps-post", zorder=1)
    set_value_axis(axes, [x for x, _ in places.values()], horizontal=True)
    if not quality.higher_is_better and min(y for _, y in places.values()) > 0:
        set_value_axis(axes, [y for _, y in places.values()])
    axes.set_xlabel(f"time at {column_name(trade.column)} [ms] (less is better)")
    better = "Higher" if quality.higher_is_better else "Lower"
    grey = " Grey points are beaten by one on it: see the table." if many else ""
    lost = sorted(trade.times.keys() - quality.figures.keys())
    absent = (
        f" Not drawn: {join(lost[:6])}{f' and {len(lost) - 6} more' if len(lost) > 6 else ''} (no such figure)."
        if lost
        else ""
    )
    note = f"{better} and further left is better. The line is the front of time and quality.{grey}{absent}"
    surround(axes, note)
    title = f"{quality.name.split(' [')[0]} against time"
    words = "; ".join(f"{label} {y:.3g} at {x:.3g} ms" for label, (x, y) in sorted(places.items(), key=lambda i: i[1]))
    alt = f"{title}: {frame.heading}. On the front: {join(sorted(on))}. {words}."
    return Drawing(canvas, f"tradeoff {quality.name}", title, alt, note)


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
