"""Tables of what was learned: the score of each variant on a task, and its accuracy by gap.

A column of cells is a seed. Several seeds give their mean with the range of the seeds; one seed gives its score with
the interval of the test estimate, and the table says that it is one seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.report.digits import Estimate, brackets, number
from bench.report.groups import Cells
from bench.report.source import clean
from bench.report.tables import ABSENT, NO_FIGURE, Cell, Section, Table, flag_notes, join, leaders, reasons
from bench.results import Accuracy, Gap, Row

CHANCE = "chance"
BASELINE = "baseline"  # what it is made of needs no attention


@dataclass(frozen=True)
class Curve:
    """A score in parts. field: of the row; name: after the metric in titles; meaning: of the parts, for the caption."""

    field: Literal["by_gap", "by_length"]
    name: str
    meaning: str


CURVES = (
    Curve(
        "by_gap", "by gap",
        "over the scored positions of each bin: the distance from a query to the key it must recall, or the position "
        "in the context. A cliff shows the reach of a variant.",
    ),
    Curve(
        "by_length", "by length",
        "on test sequences of each length, by the model trained at one of them. What falls beyond it does not carry on "
        "to longer sequences; positions count in that as much as attention.",
    ),
)  # fmt: skip


def accuracy_section(cells: Cells) -> Section:
    """Tables of the scores and their curves of one task, and why scores are missing."""
    tables = [_scores(cells), *filter(None, (_curve(cells, curve) for curve in CURVES))]
    notes = (*_noise_notes(cells), *_baseline_notes(cells), *flag_notes(cells), *cells.notes)
    return Section(cells, tuple(tables), tuple(reasons(cells)), notes)


def results_of(cells: Cells, label: str) -> list[Accuracy]:
    """The scores of one variant, one a seed, of the seeds that ended well; of a variant without its control seeds."""
    return [found for row, found in _scored(cells, label) if label in cells.controls or not row.control]


def _scored(cells: Cells, label: str) -> list[tuple[Row, Accuracy]]:
    rows = [row for _, row in sorted(cells.by_label[label].items(), key=lambda item: item[0] or 0)]
    return [
        (row, row.accuracy)
        for row in rows
        if row.status == "ok" and row.accuracy is not None and row.accuracy.value is not None
    ]


def _noise_notes(cells: Cells) -> list[str]:
    """What another seed alone changes, for variants that were trained once more to show it."""
    notes = []
    for label in cells.ranked:
        again = [found for row, found in _scored(cells, label) if row.control]
        first, second = score(results_of(cells, label)), score(again)
        if first is not None and second is not None:
            unit = in_unit(again[0].metric, first)[1]
            one, other = (write_score(again[0].metric, Estimate(found.value)) for found in (first, second))
            notes.append(
                f"What a seed alone changes: {label} scored {one} {unit}, with another seed {other} {unit}; smaller "
                "differences between variants are within that."
            )
    return notes


def _baseline_notes(cells: Cells) -> list[str]:
    """Which variants are no better, within their interval, than the best of what needs no attention."""
    known = metric_of(cells)
    if known is None:
        return []
    bars = {clean(name): value for name, value in known.baselines.items()}
    if known.chance is not None:
        bars[clean(known.chance_of or CHANCE)] = known.chance
    if not bars:
        return []
    more = known.higher_is_better
    name = (max if more else min)(bars, key=lambda name: bars[name])
    ends = {label: found.interval[0 if more else 1] for label, found in scores(cells).items()}
    beaten = [label for label, end in ends.items() if not (end > bars[name] if more else end < bars[name])]
    bar, unit = write_score(known.metric, Estimate(bars[name])), in_unit(known.metric, Estimate(0))[1]
    return [f"No better than {name}, which needs no attention ({bar} {unit}): {join(beaten)}."] if beaten else []


def score(results: Sequence[Accuracy]) -> Estimate | None:
    """Mean score with the range of the seeds; of one seed its score with the interval of the test estimate."""
    values = [result.value for result in results if result.value is not None]
    if not values:
        return None
    if len(values) == 1:
        return Estimate(values[0], results[0].low, results[0].high)
    return Estimate(sum(values) / len(values), min(values), max(values))


def scores(cells: Cells) -> dict[str, Estimate]:
    """Scores by label, without the controls."""
    found = {label: score(results_of(cells, label)) for label in cells.ranked}
    return {label: value for label, value in found.items() if value is not None}


def metric_of(cells: Cells) -> Accuracy | None:
    """A score that tells the metric, its direction and its chance level; None when no cell has one."""
    return next((found[0] for label in cells.by_label if (found := results_of(cells, label))), None)


def metric_name(metric: str) -> str:
    """`bits_per_byte` -> `bits per byte`."""
    return clean(metric.replace("_", " "))


def in_unit(metric: str, estimate: Estimate) -> tuple[Estimate, str]:
    """The figure as shown, and its unit: accuracy in per cent, any other metric as it is."""
    return (estimate.scaled(100), "%") if metric == "accuracy" else (estimate, metric_name(metric))


def write_score(metric: str, estimate: Estimate) -> str:
    """`99.1 [98.7, 99.4]` per cent for accuracy, `2.345 [2.331, 2.360]` for any other metric."""
    return brackets(in_unit(metric, estimate)[0], ".1f" if metric == "accuracy" else ".3f")


def write_chance(metric: str, chance: float) -> str:
    """`6.25` per cent for accuracy, `4.85` for any other metric."""
    return f"{in_unit(metric, Estimate(chance))[0].value:.3g}"


def seeds_of(cells: Cells) -> int:
    """The most seeds any variant was scored with."""
    return max((len(results_of(cells, label)) for label in cells.by_label), default=0)


@dataclass(frozen=True)
class Detail:
    """A column beside the score: how it is taken, what it means; shown where any variant has it, or always."""

    heading: str
    take: Callable[[Accuracy], str | None]
    meaning: str = ""
    always: bool = True


def _whole(value: int | None) -> str | None:
    return None if value is None else f"{value:,}"


DETAILS = (
    Detail(
        "last", lambda r: None if r.last is None else write_score(r.metric, Estimate(r.last)),
        "Last: the score at the last step; the first column is that of the best checkpoint by validation.", False,
    ),
    Detail(
        "whole", lambda r: None if r.whole is None else f"{100 * r.whole:.1f}",
        "Whole: per cent of the sequences in which every scored position is right.", False,
    ),
    Detail(
        "rate", lambda r: None if r.learning_rate is None else f"{r.learning_rate:g}",
        "Rate: the learning rate, chosen for each variant by validation.",
    ),
    Detail("steps", lambda r: _whole(r.steps)),
    Detail("to 99 %", lambda r: _whole(r.steps_to_99), "To 99 %: steps until validation showed 99 %.", False),
    Detail("params", lambda r: _whole(r.params)),
    Detail("extra", lambda r: _whole(r.extra_params), "Extra: parameters of the attention itself."),
    Detail("state", lambda r: _whole(r.state_size), "State: numbers kept to decode the next position.", False),
)  # fmt: skip


def _details(cells: Cells) -> list[Detail]:
    everything = [result for label in cells.by_label for result in results_of(cells, label)]
    return [detail for detail in DETAILS if detail.always or any(detail.take(result) for result in everything)]


def _scores(cells: Cells) -> Table:
    known = metric_of(cells)
    metric = known.metric if known else "score"
    unit = in_unit(metric, Estimate(0))[1]
    best = leaders(scores(cells), higher_is_better=known.higher_is_better) if known else []
    first = f"{metric_name(metric)} [%]" if unit == "%" else metric_name(metric)
    details = _details(cells)
    columns = (first, "seeds", *(detail.heading for detail in details), "CPU s")
    rows = [(row_name(cells, label), _score_row(cells, label, metric, best, details)) for label in cells.by_label]
    if known and known.chance is not None:
        shown = write_chance(metric, known.chance) + (f" ({clean(known.chance_of)})" if known.chance_of else "")
        chance = Cell(shown, in_unit(metric, Estimate(known.chance))[0])
        rows.append((CHANCE, (chance, *[Cell("")] * (len(columns) - 1))))
    for name, value in sorted(known.baselines.items()) if known else ():
        known_score = Cell(write_score(metric, Estimate(value)), in_unit(metric, Estimate(value))[0])
        rows.append((f"{BASELINE}: {clean(name)}", (known_score, *[Cell("")] * (len(columns) - 1))))
    title = metric_name(metric).capitalize()
    return Table("accuracy", title, _caption(cells, known, details), unit, columns, tuple(rows))


def row_name(cells: Cells, label: str) -> str:
    """The label of a row or point, marked when it is a control."""
    return f"{label} (control)" if label in cells.controls else label


def _caption(cells: Cells, known: Accuracy | None, details: Sequence[Detail]) -> str:
    if known is None:
        return "No cell has a score."
    seeds = seeds_of(cells)
    spread = (
        "One seed: the interval is that of the test estimate; another seed may differ by more."
        if seeds == 1
        else f"Mean of up to {seeds} seeds; in brackets the lowest and the highest seed."
    )
    better = "More" if known.higher_is_better else "Less"
    told = " ".join(detail.meaning for detail in details if detail.meaning)
    return (
        f"Score on the test split, used once. {better} is better. {spread} {told} CPU s: training time of the process."
    )


def _score_row(
    cells: Cells, label: str, metric: str, best: Sequence[str], details: Sequence[Detail]
) -> tuple[Cell, ...]:
    results = results_of(cells, label)
    found = score(results)
    if found is None:
        statuses = dict.fromkeys(row.status for row in cells.by_label[label].values())
        shown = ", ".join(status if status != "ok" else NO_FIGURE for status in statuses) or ABSENT
        return (Cell(shown), *[Cell("")] * (len(details) + 2))
    flagged = any(row.flags for row in cells.by_label[label].values())
    return (
        Cell(write_score(metric, found), in_unit(metric, found)[0], best=label in best, flagged=flagged),
        Cell(_seed_count(cells, label, len(results))),
        *(Cell(_several(filter(None, map(detail.take, results)))) for detail in details),
        Cell(_cpu_seconds(results)),
    )


def _seed_count(cells: Cells, label: str, scored: int) -> str:
    asked = sum(label in cells.controls or not row.control for row in cells.by_label[label].values())
    return str(scored) if asked == scored else f"{scored} of {asked}"


def _several(texts: Iterable[str]) -> str:
    return " / ".join(dict.fromkeys(texts)) or NO_FIGURE


def _cpu_seconds(results: Sequence[Accuracy]) -> str:
    spent = [result.train_cpu_s for result in results if result.train_cpu_s is not None]
    return number(sum(spent) / len(spent)) if spent else NO_FIGURE


def bin_labels(cells: Cells, curve: Curve) -> list[str]:
    """The bins of a curve, in the order in which the task gives them."""
    found: dict[str, None] = {}
    for label in cells.by_label:
        for result in results_of(cells, label):
            found.update(dict.fromkeys(clean(part.label) for part in getattr(result, curve.field)))
    return list(found)


def bin_score(cells: Cells, label: str, curve: Curve, bin_label: str) -> Estimate | None:
    """Score of one bin: the mean over the seeds, weighted by the number of scored positions."""
    bins: list[Gap] = [part for result in results_of(cells, label) for part in getattr(result, curve.field)]
    scored = [part for part in bins if clean(part.label) == bin_label and part.value is not None and part.count > 0]
    total = sum(gap.count for gap in scored)
    if total == 0:
        return None
    return Estimate(sum((gap.value or 0.0) * gap.count for gap in scored) / total)


def _curve(cells: Cells, curve: Curve) -> Table | None:
    bins = bin_labels(cells, curve)
    known = metric_of(cells)
    if not bins or known is None:
        return None
    rows = []
    for label in cells.by_label:
        if results_of(cells, label):
            found = [bin_score(cells, label, curve, name) for name in bins]
            rows.append((row_name(cells, label), tuple(_bin_cell(known.metric, value) for value in found)))
    unit = in_unit(known.metric, Estimate(0))[1]
    name = metric_name(known.metric).capitalize()
    caption = f"{name} [{unit}] {curve.meaning}"
    return Table(f"accuracy {curve.name}", f"{name} {curve.name}", caption, unit, tuple(bins), tuple(rows))


def _bin_cell(metric: str, value: Estimate | None) -> Cell:
    return Cell(NO_FIGURE) if value is None else Cell(write_score(metric, value), in_unit(metric, value)[0])
