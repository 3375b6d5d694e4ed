"""Verdicts on the cells of two runs: what got faster or slower, larger or smaller, what vanished, what cannot be said.

A cell is matched by all its axes. Two versions of the source are compared, that is what a comparison is for, and
named; another machine, another torch, another dtype are not. A time is called faster or slower only where its interval,
corrected for the number of figures compared, lies wholly beyond the noise floor of the machine.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bench.errors import UserError
from bench.noise import NoiseFloor
from bench.results import Accuracy, Record, Row, Time
from bench.stats import CONFIDENCE, Effect, Mean, combine, geometric_mean, holm, typical
from bench.student_t import t_quantile

Quantity = Literal["time", "memory", "accuracy"]
Call = Literal[
    "vanished", "slower", "larger", "worse", "not comparable", "unsure", "new", "faster", "smaller", "better", "same"
]
QUANTITIES: tuple[Quantity, ...] = ("time", "memory", "accuracy")
WORSE: frozenset[str] = frozenset({"vanished", "slower", "larger", "worse"})

IDENTITY = ("variant", "workload", "pass", "task", "seq_len")
CONDITIONS = (
    "knobs", "preset", "trial_cpu_s", "batch", "heads", "kv_heads", "head_dim", "value_dim", "key_len", "causal",
    "dtype", "device", "threads", "compile", "seed",
)  # fmt: skip
AXES = IDENTITY + CONDITIONS
MACHINE = ("cpu", "cores", "cpu_capability", "os", "python", "torch")  # facts that must agree for any device,
ACCELERATOR = ("gpu", "cuda")  # and for any but the CPU

MEMORY_SHARE = 0.001  # peak memory is exact; this much is rounding of the allocator
SCORE_FLOOR = 0.01  # a point of accuracy, a hundredth of a bit a byte: less is no finding


class Verdict(Record):
    """What can be said about one figure of one cell. Time in seconds, memory in bytes, accuracy in its metric.

    ratio: new / baseline, for time and memory. difference: new - baseline, for accuracy. low, high: its 95 % interval,
    null where it is exact or the replicates do not tell. p_value: of a change beyond the floor, corrected for all
    figures tested. versions: hashes of the source before and after, where they differ.
    """

    cell: dict[str, Any]
    quantity: Quantity
    verdict: Call
    reason: str | None = None
    baseline: float | None = None
    new: float | None = None
    ratio: float | None = None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    versions: tuple[str | None, str | None] | None = None


def compare(rows_a: Iterable[Row], rows_b: Iterable[Row], noise_floor: NoiseFloor | None = None) -> list[Verdict]:
    """Verdicts on the new rows `rows_b` against the baseline `rows_a`, sorted by cell; the last row of a cell counts.

    `faster` or `slower`: the 95 % interval, Holm-corrected for all figures tested, lies wholly beyond the noise floor
    (5 % unless measured). `same`: the 95 % interval lies wholly within it. `unsure`: anything else. Memory is exact:
    a change of more than 0.1 % counts. `vanished`: the baseline has a figure and the new run has none. UserError when
    no cell can be compared.
    """
    before, after = _by_cell(rows_a, "baseline"), _by_cell(rows_b, "new run")
    floor = noise_floor or NoiseFloor()
    shared = [part for key, row in before.items() if key in after for part in _compare_cell(row, after[key], floor)]
    alone = [row for key, row in before.items() if key not in after and row.status == "ok"]
    added = [row for key, row in after.items() if key not in before and row.status == "ok"]
    findings = [*shared, *_unmatched(alone, added)]
    if all(finding.verdict.verdict == "not comparable" for finding in shared):
        raise UserError(f"nothing to compare: {_why_nothing(findings, before.values(), after.values())}")
    return sorted(_judge(findings), key=lambda verdict: cell_order(verdict.cell))


def exit_code(verdicts: Iterable[Verdict]) -> int:
    """1 when anything got slower, larger or worse, or vanished; else 0."""
    return int(any(verdict.verdict in WORSE for verdict in verdicts))


def mean_ratio(verdicts: Iterable[Verdict]) -> Mean:
    """Geometric mean of the time ratios new / baseline, over how many cells, and how many cells lost their time."""
    compared = [v for v in verdicts if v.quantity == "time" and v.verdict not in ("new", "not comparable")]
    return geometric_mean([verdict.ratio for verdict in compared])


def cell_order(cell: dict[str, Any]) -> tuple[Any, ...]:
    """Sort key of a cell: workload and pass, then variant, then the other axes, lengths as numbers."""
    values = [cell[name] for name in dict.fromkeys(("workload", "pass", *AXES))]
    texts = [json.dumps(value, sort_keys=True) if isinstance(value, dict) else value for value in values]
    return tuple((value is not None, 0 if value is None else value) for value in texts)


# --- cells of both runs ---


@dataclass(frozen=True)
class _Finding:
    """A verdict; final unless it has an effect to test. words: for an effect below and above the floor."""

    verdict: Verdict
    effect: Effect | None = None
    floor: float = 0.0
    words: tuple[Call, Call] = ("faster", "slower")


def _axes(row: Row) -> dict[str, Any]:
    return {name: getattr(row, "pass_" if name == "pass" else name) for name in AXES}


def _by_cell(rows: Iterable[Row], whose: str) -> dict[str, Row]:
    found = {json.dumps(_axes(row), sort_keys=True): row for row in rows}
    if not found:
        raise UserError(f"nothing to compare: the {whose} has no rows")
    return found


def _compare_cell(before: Row, after: Row, floor: NoiseFloor) -> Iterator[_Finding]:
    """The figures of one cell, or the one reason why there are none."""
    facts = MACHINE if before.device == "cpu" else MACHINE + ACCELERATOR
    surroundings = _differences(before.environment, after.environment, facts)
    if surroundings:
        yield _settled(before, after, "not comparable", f"another environment: {surroundings}")
    elif before.status == after.status == "ok":
        yield from _compare_figures(before, after, floor)
    elif before.status == "ok":
        yield _settled(before, after, "vanished", f"now {after.status}: {after.reason}")
    elif after.status == "ok":
        yield _settled(before, after, "new", f"was {before.status}: {before.reason}")
    else:
        yield _settled(before, after, "not comparable", f"no figure: {before.status} before, {after.status} now")


def _settled(before: Row | None, after: Row | None, call: Call, reason: str) -> _Finding:
    """A cell with one verdict for all its figures, at least one of the runs having it."""
    present = before or after
    assert present is not None
    quantity: Quantity = "accuracy" if present.task else "time"
    old, new = (None if row is None else _figure(row, quantity) for row in (before, after))
    about = _about(before or present, after or present)
    return _Finding(Verdict(**about, quantity=quantity, verdict=call, reason=reason, baseline=old, new=new))


def _figure(row: Row, quantity: Quantity) -> float | None:
    if quantity == "time":
        return row.time.median_s if row.time else None
    if quantity == "memory":
        return row.memory.peak_bytes if row.memory else None
    return row.accuracy.value if row.accuracy else None


def _about(before: Row, after: Row) -> dict[str, Any]:
    hashes = before.source_hash, after.source_hash
    return {"cell": _axes(before), "versions": hashes if hashes[0] != hashes[1] else None}


def _differences(before: Mapping[str, Any], after: Mapping[str, Any], names: Iterable[str]) -> str:
    """What differs, in words: `dtype float32 against bfloat16, threads 2 against 4`."""
    pairs = [(name, before.get(name), after.get(name)) for name in names]
    return ", ".join(f"{name} {_word(a)} against {_word(b)}" for name, a, b in pairs if a != b)


def _word(value: Any) -> str:
    if isinstance(value, dict):
        return "(" + " ".join(f"{name}={_word(item)}" for name, item in value.items()) + ")"
    return "unknown" if value is None else str(value)


# --- figures of one cell ---


def _compare_figures(before: Row, after: Row, floor: NoiseFloor) -> Iterator[_Finding]:
    for quantity in QUANTITIES:
        old, new = _figure(before, quantity), _figure(after, quantity)
        verdict = Verdict(**_about(before, after), quantity=quantity, verdict="unsure", baseline=old, new=new)
        if old is not None and new is not None:
            yield _judge_figure(verdict, before, after, floor)
        elif new is not None:
            yield _Finding(_amend(verdict, verdict="new", reason="no figure before"))
        elif old is not None:
            told = after.memory.reasons.get("peak_bytes") if quantity == "memory" and after.memory else None
            yield _Finding(_amend(verdict, verdict="vanished", reason=told or "no figure now"))


def _amend(verdict: Verdict, /, **fields: Any) -> Verdict:
    return verdict.model_copy(update=fields)


def _judge_figure(verdict: Verdict, before: Row, after: Row, floor: NoiseFloor) -> _Finding:
    if verdict.quantity == "accuracy":
        assert before.accuracy and after.accuracy
        return _judge_accuracy(verdict, before.accuracy, after.accuracy)
    old, new = verdict.baseline, verdict.new
    assert old is not None and new is not None
    verdict = _amend(verdict, ratio=new / old if old else None)
    if verdict.quantity == "memory":
        within = abs(new - old) <= MEMORY_SHARE * old
        return _Finding(_amend(verdict, verdict="same" if within else "larger" if new > old else "smaller"))
    assert before.time and after.time
    sides = _typical_time(before.time), _typical_time(after.time)
    if sides[0] is None or sides[1] is None:
        return _Finding(_amend(verdict, reason="one replicate says nothing about the spread"))
    return _Finding(verdict, combine([(-1.0, sides[0]), (1.0, sides[1])]), floor.log_share(before.device))


def _typical_time(time: Time) -> Effect | None:
    """Logarithm of the time with its error, from the replicates; from the interval of a row that did not keep them."""
    if time.samples_s:
        return typical([statistics.median(samples) for samples in time.samples_s], robust=True)
    if time.median_s is None or time.low_s is None or time.high_s is None or time.replicates < 2:
        return None
    freedom = time.replicates - 1
    half = math.log(time.high_s / time.low_s) / 2
    return Effect(math.log(time.median_s), half / t_quantile(1 - CONFIDENCE, freedom), freedom)


def _judge_accuracy(verdict: Verdict, before: Accuracy, after: Accuracy) -> _Finding:
    """The difference of two scores, as if of separate test sets: on one test set that is the wider, safer interval."""
    assert before.value is not None and after.value is not None
    hashes = [name for name in before.data if name.endswith("sha256")]
    old, new = ({"metric": score.metric, **score.data} for score in (before, after))
    if _differences(old, new, ["metric", *hashes]):
        told = "another metric" if before.metric != after.metric else "other data"
        return _Finding(_amend(verdict, verdict="not comparable", reason=told))
    verdict = _amend(verdict, difference=after.value - before.value)
    errors = [_score_error(score) for score in (before, after)]
    if after.value == before.value:
        return _Finding(_amend(verdict, verdict="same"))
    if errors[0] is None or errors[1] is None:
        return _Finding(_amend(verdict, reason="a score without an interval"))
    words: tuple[Call, Call] = ("worse", "better") if before.higher_is_better else ("better", "worse")
    return _Finding(
        verdict, Effect(after.value - before.value, math.hypot(errors[0], errors[1]), math.inf), SCORE_FLOOR, words
    )


def _score_error(score: Accuracy) -> float | None:
    if score.low is None or score.high is None:
        return None
    return (score.high - score.low) / 2 / t_quantile(1 - CONFIDENCE, math.inf)


# --- verdicts of all figures together ---


def _judge(findings: Sequence[_Finding]) -> list[Verdict]:
    """Final verdicts: those with an effect are tested together, so that many cells do not make a chance finding."""
    effects = [(finding.effect, finding.floor) for finding in findings if finding.effect is not None]
    p_values = [effect.p_beyond(floor) for effect, floor in effects]
    corrected = iter(zip(p_values, holm(p_values), strict=True))
    return [finding.verdict if finding.effect is None else _call(finding, *next(corrected)) for finding in findings]


def _call(finding: _Finding, p_alone: float, p_value: float) -> Verdict:
    effect, floor = finding.effect, finding.floor
    assert effect is not None
    low, high = effect.bounds()
    is_ratio = finding.verdict.difference is None
    scale = math.exp if is_ratio else float
    verdict = _amend(finding.verdict, low=scale(low), high=scale(high), p_value=p_value)
    if p_value <= 1 - CONFIDENCE:
        return _amend(verdict, verdict=finding.words[effect.value > 0])
    if -floor <= low and high <= floor:
        return _amend(verdict, verdict="same")
    if p_alone <= 1 - CONFIDENCE:
        return _amend(verdict, reason="beyond the noise floor on its own, but not among all figures compared")
    return _amend(
        verdict, reason=f"the interval reaches across the {'noise floor' if is_ratio else 'least difference'}"
    )


# --- cells of one run ---


def _unmatched(before: Sequence[Row], after: Sequence[Row]) -> Iterator[_Finding]:
    """Cells of one run only: those that differ in a condition are named, the others are vanished or new."""
    left = list(after)
    for row in before:
        near = [other for other in left if all(_axes(other)[name] == _axes(row)[name] for name in IDENTITY)]
        if not near:
            yield _settled(row, None, "vanished", "not in the new run")
            continue
        other = min(near, key=lambda other: sum(_axes(other)[name] != _axes(row)[name] for name in CONDITIONS))
        left.remove(other)
        yield _settled(row, other, "not comparable", _differences(_axes(row), _axes(other), CONDITIONS))
    for row in left:
        yield _settled(None, row, "new", "not in the baseline")


def _why_nothing(findings: Iterable[_Finding], before: Iterable[Row], after: Iterable[Row]) -> str:
    """The most frequent reason, or the axes on which the runs share no value."""
    reasons = Counter(found.verdict.reason for found in findings if found.verdict.verdict == "not comparable")
    if reasons:
        (reason, _), *others = reasons.most_common()
        return f"{reason}" + (f" (and {len(others)} more reasons)" if others else "")
    old, new = ([_axes(row) for row in rows] for rows in (before, after))
    apart = []
    for name in AXES:
        values = [list(dict.fromkeys(_word(cell[name]) for cell in cells)) for cells in (old, new)]
        if not set(values[0]) & set(values[1]):
            apart.append(f"{name} {', '.join(values[0])} against {', '.join(values[1])}")
    return "; ".join(apart) or "the runs have no cell in common"
