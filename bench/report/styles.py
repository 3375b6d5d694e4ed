"""One colour and marker a variant, the same in every figure and in every report."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from bench.report.groups import Cells

# Hues of the Okabe-Ito and Tol sets, shaded so that each stands out at least 3:1 on white and on the dark page.
COLOURS = ("#0077bb", "#c96a00", "#009e73", "#d5405e", "#9467bd", "#a0753b", "#3f9cb5", "#8a8f2a", "#c757a3", "#5f7fd0")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "h")
DASHES = ("-", "--", ":", "-.")
CONTROL_COLOUR = "#808080"
SALT = "attn-bench"
CHOICE = 41332  # gives the shipped variants the first six colours, each its own


@dataclass(frozen=True)
class Style:
    """How a series is drawn: the colour is that of its variant, the dash tells apart its knobs."""

    colour: str
    marker: str
    dash: str


def styles_of(groups: Sequence[Cells]) -> dict[str, Style]:
    """A style for every series of the report, from its variant's name; the same in each figure and each report.

    A name has a preferred colour of its own; only where two names of one report prefer the same does the later one
    in the alphabet take the next free colour. Beyond ten variants colours repeat with other markers.
    """
    labels: dict[str, set[str]] = {}
    controls = {row.variant for cells in groups for label in cells.controls for row in cells.by_label[label].values()}
    for cells in groups:
        for label in cells.by_label:
            labels.setdefault(cells.variant(label), set()).add(label)
    slots = _slots(sorted(labels.keys() - controls))
    styles = {}
    for variant, found in labels.items():
        slot = slots.get(variant)
        colour = CONTROL_COLOUR if slot is None else COLOURS[slot % len(COLOURS)]
        marker = "x" if slot is None else MARKERS[(slot + slot // len(COLOURS)) % len(MARKERS)]
        for number, label in enumerate(sorted(found)):
            styles[label] = Style(colour, marker, DASHES[number % len(DASHES)])
    return styles


def preferred_slot(variant: str) -> int:
    """The colour a name asks for."""
    return zlib.crc32(f"{SALT}{CHOICE}{variant}".encode("utf-8", "backslashreplace")) % len(COLOURS)


def _slots(variants: Sequence[str]) -> dict[str, int]:
    """A number of its own for each name: its preferred colour or the next free one, then a further round."""
    count = len(COLOURS)
    slots: dict[str, int] = {}
    for variant in variants:
        first = preferred_slot(variant)
        wanted = (round_ * count + (first + step) % count for round_ in itertools.count() for step in range(count))
        slots[variant] = next(slot for slot in wanted if slot not in slots.values())
    return slots
