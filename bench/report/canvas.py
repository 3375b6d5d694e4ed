"""Drawing with matplotlib's objects: one look for all figures, lines with gaps, ticks on log axes, a legend below."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.report.digits import Estimate
from bench.report.styles import SALT, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#262626"
SIZE = (4.5, 3.1)
LINE, FEW = 0.21, 12  # inches a line of text takes; up to so many fit the usual height
GAP = float("nan")
SANS = ("DejaVu Sans", "Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans Arabic", "Noto Sans Hebrew")


class Drawing(NamedTuple):
    """A figure before it is saved: `kind` names its file, `alt` tells it in words, `note` what is not drawn."""

    canvas: Figure
    kind: str
    title: str
    alt: str
    note: str


@contextmanager
def look() -> Iterator[None]:
    """One look for all figures; text stays text in SVG, names are never read as formulas."""
    import matplotlib
    import seaborn
    from matplotlib import font_manager

    known = set(font_manager.get_font_names())
    settings: Any = {
        **seaborn.axes_style("whitegrid"),
        **seaborn.plotting_context("notebook", font_scale=0.9),
        "font.family": [name for name in SANS if name in known],
        "text.parse_math": False,
        "text.color": INK,
        "axes.labelcolor": INK,
        "svg.fonttype": "none",
        "svg.hashsalt": SALT,
        "axes.unicode_minus": True,
    }
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # the viewer of the SVG may have it
        yield


def new_axes(label: str, heading: str, shape: str, *, lines: int = 0) -> tuple[Figure, Axes]:
    """An empty figure with its heading; everything around the axes is added when it is saved.

    lines: of text along the vertical axis, for which a figure is made higher than usual.
    """
    from matplotlib.figure import Figure as NewFigure

    canvas = NewFigure(figsize=(SIZE[0], max(SIZE[1] if lines < FEW else 0.0, LINE * lines)))
    axes = canvas.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_ylabel(label)
    title = [*textwrap.wrap(heading, 54), *textwrap.wrap(shape, 54)]
    axes.set_title("\n".join(title), loc="left", fontsize="medium")
    axes.grid(visible=True, which="major", color="#808080", alpha=0.25, linewidth=0.8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return canvas, axes


def draw_line(axes: Axes, xs: Sequence[int], values: Sequence[Estimate | None], label: str, style: Style) -> None:
    """A line with a gap where a value is missing, in a band of the intervals; a bar where a point stands alone.

    An interval that says nothing is left out: it would squeeze all others.
    """
    drawn: Any = {"color": style.colour, "marker": style.marker, "linestyle": style.dash}
    axes.plot(xs, _heights(values), **drawn, markersize=6, linewidth=1.6, label=label)
    sure = [value if value is not None and value.low is not None and not value.unsure else None for value in values]
    lone = [value if _alone(sure, place) else None for place, value in enumerate(sure)]
    joined = [None if alone else value for value, alone in zip(sure, lone, strict=True)]
    if any(joined):
        lows, highs = ([GAP if value is None else value.interval[end] for value in joined] for end in (0, 1))
        axes.fill_between(xs, lows, highs, color=style.colour, alpha=0.2, linewidth=0)
    draw_interval(axes, xs, lone, style)


def draw_quiet(axes: Axes, xs: Sequence[int], values: Sequence[Estimate | None]) -> None:
    """A line of those that are not the subject of a figure, to compare with."""
    axes.plot(xs, _heights(values), color="#808080", alpha=0.35, linewidth=0.8, zorder=1)


def _heights(values: Sequence[Estimate | None]) -> list[float]:
    return [GAP if value is None else value.value for value in values]


def _alone(values: Sequence[Estimate | None], place: int) -> bool:
    """Whether a value has no neighbour to make a band with."""
    before = place > 0 and values[place - 1] is not None
    after = place + 1 < len(values) and values[place + 1] is not None
    return values[place] is not None and not before and not after


def draw_interval(
    axes: Axes, places: Sequence[int], values: Sequence[Estimate | None], style: Style, *, vertical: bool = True
) -> None:
    """Bars over the intervals of the values that have one."""
    pairs = zip(places, values, strict=True)
    known = [(place, *value.interval) for place, value in pairs if value and value.low is not None]
    if known:
        where, lows, highs = zip(*known, strict=True)
        draw = axes.vlines if vertical else axes.hlines
        draw(where, lows, highs, color=style.colour, linewidth=4, alpha=0.4)


def draw_limit(axes: Axes, value: float, label: str) -> None:
    """A horizontal line that nothing can pass."""
    axes.axhline(value, color=INK, linestyle=(0, (5, 2)), linewidth=1.2, label=label)


def set_length_axis(axes: Axes, lengths: Sequence[int]) -> None:
    """A log axis with ticks at the lengths themselves, thinned out above ten."""
    from matplotlib.ticker import FixedLocator, NullLocator

    axes.set_xlim(lengths[0] / 1.2, lengths[-1] * 1.2)
    axes.set_xscale("log", base=2)
    step = -(-len(lengths) // 10)
    shown = lengths[::step]
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([str(length) for length in shown])


def set_value_axis(axes: Axes, values: Sequence[float], *, horizontal: bool = False) -> None:
    """A log axis around values above 0, with plain numbers, at 1, 2 and 5 when it is short."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = min(values), max(values)
    margin = max(1.25, (high / low) ** 0.05)
    axis = axes.xaxis if horizontal else axes.yaxis
    (axes.set_xlim if horizontal else axes.set_ylim)(low / margin, high * margin)
    (axes.set_xscale if horizontal else axes.set_yscale)("log")
    subs = (1.0, 2.0, 5.0) if high / low < 1e3 else (1.0,)
    axis.set_major_locator(LogLocator(base=10, subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axis.set_minor_formatter(NullFormatter())


def _short(value: float) -> str:
    """50, 0.5, 20k, 3M: tick labels without exponents."""
    for size, name in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if name == 'k' else size):g}{name}"
    return f"{value:g}"


def surround(axes: Axes, note: str) -> None:
    """Below the plot: the legend, and under it what is not drawn."""
    unit = SIZE[1] * axes.figure.dpi / axes.bbox.height  # what is below stays as far away from a higher plot
    below = -0.25 * unit
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        longest = max(map(len, labels))
        across = 4 if longest <= 8 else 3 if longest <= 12 else 2 if longest <= 24 else 1
        axes.legend(loc="upper left", bbox_to_anchor=(-0.02, below), ncols=across, frameon=False, borderaxespad=0.0)
        below -= (0.085 * -(-len(labels) // across) + 0.03) * unit
    if note:
        lines = textwrap.wrap(note, 64)
        shown = lines if len(lines) <= 4 else [*lines[:3], "… and more: see the list under the tables."]
        axes.text(0.0, below, "\n".join(shown), transform=axes.transAxes, fontsize="small", verticalalignment="top")
