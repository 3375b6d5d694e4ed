"""The short answer in words, made from the figures alone: what is fastest, smallest and most accurate, and where.

A sentence is a list of parts; a `Name` is a variant. No winner is named where intervals overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bench.report.accuracy import metric_name, metric_of, results_of, score, scores, seeds_of, write_chance, write_score
from bench.report.costs import MEMORY, TIME, Quantity, best_at, figures_at
from bench.report.digits import Estimate
from bench.report.fidelity import is_fidelity
from bench.report.groups import Cells
from bench.report.scaling import overtakes, rival
from bench.report.tables import column_name, leaders


class Name(str):
    """A variant's name inside a sentence; each output sets it in its own way."""


Sentence = list[str]
MOST_NAMES = 4


def short_answer(groups: Sequence[Cells]) -> list[Sentence]:
    """One or two sentences a group, in the order of the groups."""
    found: list[Sentence] = []
    for cells in groups:
        if is_fidelity(cells):
            continue
        alike = [other for other in groups if other.group.is_task == cells.group.is_task]
        where = _where(cells, alike)
        found += [_accuracy(cells, where)] if cells.group.is_task else _costs(cells, where)
    return found


def _where(cells: Cells, alike: Sequence[Cells]) -> str:
    """The heading of the group, without what all groups of its kind have in common."""
    group = cells.group
    parts = [group.name, *([group.pass_] if group.pass_ else [])]
    for name in ("run", "device", "dtype", "direction", "shape"):
        if len({getattr(other.group, name) for other in alike}) > 1:
            parts.append(getattr(group, name))
    return ", ".join(parts)


def _costs(cells: Cells, where: str) -> list[Sentence]:
    if not any(figures_at(cells, TIME, column) for column in cells.columns):
        return [[f"{where}: nothing was measured."]]
    sentences = [[f"Fastest, {where}: ", *_walk(cells, TIME)]]
    lacking = [label for label in cells.ranked if any(label not in figures_at(cells, TIME, n) for n in cells.columns)]
    if lacking:
        named = _names(lacking) if len(lacking) <= MOST_NAMES else [f"{len(lacking)} of {len(cells.ranked)} variants"]
        sentences[0] += [" Not measured at every length: ", *named, "."]
    sentences += _crossovers(cells, where)
    if any(figures_at(cells, MEMORY, column) for column in cells.columns):
        sentences.append([f"Least memory, {where}: ", *_walk(cells, MEMORY)])
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


def _crossovers(cells: Cells, where: str) -> list[Sentence]:
    """From which lengths on which variants are faster than the rival; none where nothing crosses."""
    base = rival(cells)
    if base is None:
        return []
    places = {label: overtakes(cells, base, label) for label in cells.ranked if label != base}
    crossed = {label: text for label, (text, place) in places.items() if place and place.low is not None}
    parts: Sentence = [f"Faster than {base}, {where}: "]
    for label, text in list(crossed.items())[:MOST_NAMES]:
        parts += [*([", "] if len(parts) > 1 else []), Name(label), f" {text}"]
    more = len(crossed) - MOST_NAMES
    return [[*parts, f" and {more} more (see the table of crossovers)." if more > 0 else "."]] if crossed else []


def _accuracy(cells: Cells, where: str) -> Sentence:
    known, figures = metric_of(cells), scores(cells)
    if known is None or not figures:
        return [f"{where}: no variant has a score."]
    lead = leaders(figures, higher_is_better=known.higher_is_better)
    unit = " %" if known.metric == "accuracy" else ""

    def shown(estimate: Estimate) -> str:
        return write_score(known.metric, estimate) + unit

    best = shown(figures[lead[0]])
    parts: Sentence = [f"Best {metric_name(known.metric)}, {where}: "]
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
            beside.append(f"without attention {shown(control)}")
    if seeds_of(cells) == 1:
        beside.append("one seed")
    return [*parts, f"; {'; '.join(beside)}." if beside else "."]


def _names(labels: Iterable[str]) -> Sentence:
    """`a`, `b` and `c` as parts of a sentence."""
    *head, last = labels
    parts: Sentence = []
    for label in head:
        parts += [*([", "] if parts else []), Name(label)]
    return [*parts, " and ", Name(last)] if parts else [Name(last)]
