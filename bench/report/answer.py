"""The short answer in words, made from the figures alone: what is fastest, smallest and most accurate, and where.

A sentence is a list of parts; a `Name` is a variant. No winner is named where intervals overlap.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.report.accuracy import metric_name, metric_of, results_of, score, scores, seeds_of, write_chance, write_score
from bench.report.costs import MEMORY, TIME, Quantity, best_at, figures_at
from bench.report.digits import Estimate
from bench.report.fidelity import error_at, is_fidelity, middle_inputs, written
from bench.report.groups import Cells, where
from bench.report.scaling import overtakes, rival
from bench.report.tables import column_name, leaders


class Name(str):
    """A variant's name inside a sentence; each output sets it in its own way."""


Sentence = list[str]
MOST_NAMES = 4
MOST_SENTENCES = 16
EXACT = 1e-3  # an error below is rounding
CONTROLS = {"none": "without attention", "mean": "mean of the values"}


def short_answer(groups: Sequence[Cells]) -> list[Sentence]:
    """One to three sentences a group, in the order of the groups; many groups are cut short with a note."""
    found: list[Sentence] = []
    for cells in groups:
        alike = [other for other in groups if other.group.is_task == cells.group.is_task]
        place = where(cells, alike)
        if is_fidelity(cells):
            found += _errors(cells, place)
        else:
            found += [_accuracy(cells, place)] if cells.group.is_task else _costs(cells, place)
    more = len(found) - MOST_SENTENCES
    return (
        [*found[:MOST_SENTENCES], [f"And {more} more of this kind: see the tables of what to take."]]
        if more > 0
        else found
    )


def _costs(cells: Cells, place: str) -> list[Sentence]:
    if not any(figures_at(cells, TIME, column) for column in cells.columns):
        return [[f"{place}: nothing was measured."]]
    sentences = [[f"Fastest, {place}: ", *_walk(cells, TIME)]]
    times = [figures_at(cells, TIME, column) for column in cells.columns]
    lacking = [label for label in cells.ranked if any(label not in found for found in times)]
    if lacking:
        named = _names(lacking) if len(lacking) <= MOST_NAMES else [f"{len(lacking)} of {len(cells.ranked)} variants"]
        sentences[0] += [" Not measured at every length: ", *named, "."]
    sentences += _crossovers(cells, place)
    if any(figures_at(cells, MEMORY, column) for column in cells.columns):
        sentences.append([f"Least memory, {place}: ", *_walk(cells, MEMORY)])
    return sentences


def _walk(cells: Cells, quantity: Quantity) -> Sentence:
    """Along the lengths: who leads from where to where, with the figure at the last length of each stretch."""
    stretches: list[tuple[tuple[str, ...], list[int | None]]] = []
    for column in cells.columns:
        team = tuple(best_at(cells, quantity, column))
        if stretches and set(stretches[-1][0]) == set(team):
            stretches[-1] = (team, [*stretches[-1][1], column])
        else:
            stretches.append((team, [column]))
    parts: Sentence = []
    for team, columns in stretches:
        parts += [*(["; "] if parts else []), *_stretch(cells, quantity, team, columns)]
    return [*parts, "."]


def _stretch(cells: Cells, quantity: Quantity, team: tuple[str, ...], columns: list[int | None]) -> Sentence:
    first, last = column_name(columns[0]), column_name(columns[-1])
    where = f"at {first}" if first == last else f"from {first} to {last}"
    if not team:
        return [f"no variant has a figure {where}"]
    figures = figures_at(cells, quantity, columns[-1])
    best = figures[team[0]]
    value = f"{quantity.write(best)} {quantity.unit}" + ("" if first == last else f" at {last}")
    if len(figures) == 1:
        return ["only ", Name(team[0]), f" was measured {where} ({value})"]
    if len(team) > 1:
        same = "the same" if best.low is None else "the same within the intervals"
        return [*_names(team), f" {where}, {same} ({value})"]
    doubt = ", one replicate, no interval" if quantity is TIME and best.low is None else ""
    return [Name(team[0]), f" {where} ({value}{doubt})"]


def _crossovers(cells: Cells, place: str) -> list[Sentence]:
    """From which lengths on which variants are faster than the rival; none where nothing crosses."""
    base = rival(cells)
    if base is None:
        return []
    places = {label: overtakes(cells, base, label) for label in cells.ranked if label != base}
    crossed = {label: text for label, (text, place) in places.items() if place and place.low is not None}
    parts: Sentence = [f"Faster than {base}, {place}: "]
    for label, text in list(crossed.items())[:MOST_NAMES]:
        parts += [*([", "] if len(parts) > 1 else []), Name(label), f" {text}"]
    more = len(crossed) - MOST_NAMES
    return [[*parts, f" and {more} more (see the table of crossovers)." if more > 0 else "."]] if crossed else []


def _errors(cells: Cells, place: str) -> list[Sentence]:
    """Which of the variants that are not exact come nearest to exact attention, at the longest length."""
    inputs = middle_inputs(cells)
    if inputs is None:
        return []
    column = max(cells.columns, key=lambda column: column or 0)
    errors = error_at(cells, column, inputs)
    inexact = sorted((found.value, label) for label, found in errors.items() if found.value >= EXACT)
    if not inexact:
        return []
    parts: Sentence = [f"Nearest to exact attention among those that are not, {place} at {column_name(column)}: "]
    for value, label in inexact[:MOST_NAMES]:
        parts += [*([", "] if len(parts) > 1 else []), Name(label), f" ({written(value)})"]
    more = len(inexact) - MOST_NAMES
    tail = f" and {more} more" if more > 0 else ""
    return [[*parts, f"{tail}; error of the output, 1 is no better than averaging the values."]]


def _accuracy(cells: Cells, place: str) -> Sentence:
    known, figures = metric_of(cells), scores(cells)
    if known is None or not figures:
        return [f"{place}: no variant has a score."]
    lead = leaders(figures, higher_is_better=known.higher_is_better)
    unit = " %" if known.metric == "accuracy" else ""

    def shown(estimate: Estimate) -> str:
        return write_score(known.metric, estimate) + unit

    best = shown(figures[lead[0]])
    parts: Sentence = [f"Best {metric_name(known.metric)}, {place}: "]
    if len(figures) == 1:
        parts += ["only ", Name(lead[0]), f" was scored ({best})"]
    elif len(lead) == 1:
        parts += [Name(lead[0]), f" ({best})"]
    else:
        parts += [*_names(lead), f", the same within the intervals ({best})"]
    beside = [f"chance {write_chance(known.metric, known.chance)}{unit}"] if known.chance is not None else []
    for label in sorted(cells.controls):
        control = score(results_of(cells, label))
        if control is not None:
            beside.append(f"{CONTROLS.get(cells.variant(label), label)} {shown(control)}")
    if seeds_of(cells) == 1:
        beside.append("one seed")
    return [*parts, f"; {'; '.join(beside)}." if beside else "."]


def _names(labels: Sequence[str]) -> Sentence:
    """`a`, `b` and `c` as parts of a sentence; of many the first and how many more."""
    shown = [Name(label) for label in labels[: MOST_NAMES if len(labels) > MOST_NAMES + 1 else None]]
    ends: list[str] = [*shown, f"{len(labels) - len(shown)} more"] if len(shown) < len(labels) else list(shown)
    parts: Sentence = []
    for place, part in enumerate(ends):
        parts += [*([" and " if place == len(ends) - 1 else ", "] if place else []), part]
    return parts
