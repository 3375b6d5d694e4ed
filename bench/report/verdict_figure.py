"""The verdicts of a comparison as points on one axis: how much each cell changed, with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bench.report.canvas import INK, Drawing, draw_interval, look, new_axes, set_value_axis, surround
from bench.report.digits import Estimate
from bench.report.figures import Figure, finish
from bench.report.styles import CONTROL_COLOUR, Style

MOST = 30  # cells of one figure
LOOKS = {"worse": Style("#d5405e", "X", "-"), "better": Style("#009e73", "P", "-"), "": Style(CONTROL_COLOUR, "o", "-")}
LONGEST = 40  # characters of a cell beside the axis
WIDE = 4  # ratios that span more get a log axis


class Change(NamedTuple):
    """Of one cell: its ratio (or difference) and what the verdict makes of it, `worse`, `better` or ``."""

    label: str
    found: Estimate
    kind: str


def verdict_figure(
    title: str, changes: Sequence[Change], *, ratios: bool, floor: float | None, slug: str
) -> Figure | None:
    """The changes that are none last, and of those only as many as there is room for; None where there are none.

    ratios: whether 1 is no change, else 0. floor: share around 1 within which a change is none; drawn as a band.
    """
    drawn = sorted(changes, key=lambda change: not change.kind)[:MOST]
    if not drawn:
        return None
    with look():
        canvas, axes = new_axes("", title, "", lines=len(drawn))
        still = 1.0 if ratios else 0.0
        axes.axvline(still, color=INK, linewidth=1)
        if floor is not None:
            axes.axvspan(1 / (1 + floor), 1 + floor, color=CONTROL_COLOUR, alpha=0.15, linewidth=0)
        for place, (_, found, kind) in enumerate(drawn):
            style = LOOKS[kind]
            draw_interval(axes, [place], [found], style, vertical=False)
            axes.plot([found.value], [place], marker=style.marker, color=style.colour, markersize=7, linestyle="none")
        axes.set_yticks(range(len(drawn)), [_short(change.label) for change in drawn])
        axes.set_ylim(len(drawn) - 0.5, -0.5)
        ends = [end for change in drawn for end in change.found.interval]
        if ratios and min(ends) > 0 and max(ends) > WIDE * min(ends):
            set_value_axis(axes, [*ends, still], horizontal=True)
        axes.set_xlabel("new / baseline" if ratios else "new - baseline")
        left = len(changes) - len(drawn)
        notes = ["Red cross: worse; green plus: better; grey: neither. Bars: 95 % interval."]
        notes += ["Band: the noise floor."] if floor is not None else []
        notes += [f"{left} more are in the table."] if left else []
        surround(axes, " ".join(notes))
        words = "; ".join(f"{change.label} {change.found.value:.3g}" for change in drawn)
        alt = f"{title}: {words}."
        return finish(Drawing(canvas, "verdicts", title, alt, " ".join(notes)), slug, png=False)


def _short(label: str) -> str:
    return label if len(label) <= LONGEST else f"{label[: LONGEST // 2]}…{label[-LONGEST // 2 :]}"
