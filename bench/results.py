"""The row: the stored result of one cell, schema 1, one strict-JSON object a line in `rows.jsonl`.

Sizes are bytes, times seconds. What does not apply or could not be had is null, never 0 and never NaN. A row is
appended and flushed when its cell is done; the newest row of a key wins, older ones are history.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bench.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1
ROWS = "rows.jsonl"
Status = Literal[
    "ok", "unsupported", "oom", "timeout", "diverged", "incorrect", "fallback", "crashed", "error", "skipped"
]
FAILED: frozenset[str] = frozenset({"timeout", "diverged", "incorrect", "fallback", "crashed", "error"})


class Record(BaseModel):
    """Base of the row's parts: strict about names, so that a field nobody knows is refused."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, ser_json_inf_nan="null")


class Time(Record):
    """Time of one call in seconds: median over replicates of the median over samples, 95 % interval from replicates.

    device_s: the same figure on the device's own clock. others: share of all processors that other processes kept busy
    meanwhile. cache: `warm` means that the inputs are the same in every call and nothing is flushed between calls, for
    every variant alike.
    """

    median_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    first_call_s: float | None = None
    overhead_s: float | None = None
    device_s: float | None = None
    others: float | None = None
    cache: str | None = None
    replicates: int = 0
    stop: str | None = None
    samples_s: list[list[float]] = Field(default_factory=list)


class Memory(Record):
    """Bytes. `peak` is the highest live total of the call minus the live total before it.

    cold_peak: the same for a first call, on devices whose allocator and libraries keep memory between calls.
    """

    inputs_bytes: int | None = None
    params_bytes: int | None = None
    output_bytes: int | None = None
    saved_bytes: int | None = None
    peak_bytes: int | None = None
    cold_peak_bytes: int | None = None
    process_peak_bytes: int | None = None
    reasons: dict[str, str] = Field(default_factory=dict)


class Ceiling(Record):
    """Limits measured on the same device in the same run, and how near a cell came to the nearer one.

    flops_per_s, bytes_per_s: the limits. achieved_*: what the cell did; its bytes are those it cannot avoid to move
    (inputs, parameters, output, and the gradients of the first two in a train call). share: the larger of the two
    ratios. nearer: `compute` or `memory`.
    """

    flops_per_s: float | None = None
    bytes_per_s: float | None = None
    achieved_flops_per_s: float | None = None
    achieved_bytes_per_s: float | None = None
    share: float | None = None
    nearer: str | None = None


class Gap(Record):
    """Accuracy over the scored positions of one bin of distances (or of context positions), or of one length."""

    label: str
    value: float | None = None
    count: int = 0


class Accuracy(Record):
    """Score of a trained model on the test split, used once; `chance` is what no learning gives.

    metric: `accuracy` (higher is better) or `bits_per_byte` (lower is better). value: of the best checkpoint by
    validation, last: of the last one. low, high: 95 % interval of the test estimate of `value` from its `scored`
    positions. whole: share of the sequences in which every scored position is right, null where each has one.
    baselines: further scores that need no attention, by what they know. trials: one entry per learning rate tried, with
    its validation score. train_cpu_s: processor time of the chosen trial's steps, looks apart. steps_to_99,
    cpu_s_to_99: of the trial that took the fewest steps to show 99 % accuracy in validation. state_size: elements kept
    per example to decode the next position, null where nothing is decoded. by_gap, by_length: the score in parts, the
    latter of the same model on test sequences of other lengths.
    """

    metric: str
    higher_is_better: bool
    value: float | None = None
    low: float | None = None
    high: float | None = None
    last: float | None = None
    scored: int | None = None
    chance: float | None = None
    chance_of: str | None = None
    baselines: dict[str, float] = Field(default_factory=dict)
    whole: float | None = None
    validation: float | None = None
    learning_rate: float | None = None
    trials: list[dict[str, Any]] = Field(default_factory=list)
    steps: int | None = None
    best_step: int | None = None
    tokens: int | None = None
    train_cpu_s: float | None = None
    steps_to_99: int | None = None
    cpu_s_to_99: float | None = None
    params: int | None = None
    extra_params: int | None = None
    state_size: int | None = None
    model: dict[str, Any] = Field(default_factory=dict)
    by_gap: list[Gap] = Field(default_factory=list)
    by_length: list[Gap] = Field(default_factory=list)
    curve: list[dict[str, float | None]] = Field(default_factory=list)
    data: dict[str, Any] = Field(default_factory=dict)


class Row(Record):
    """One cell's result. Field order is the order in the file.

    trial_cpu_s: what each trial of a training was given, null for the steps of its preset. control: it stands beside
    the variants that were asked for.
    """

    schema_: int = Field(default=SCHEMA, alias="schema")
    key: str
    run: str
    variant: str
    knobs: dict[str, Any] = Field(default_factory=dict)
    workload: str
    pass_: str | None = Field(default=None, alias="pass")
    task: str | None = None
    preset: str | None = None
    trial_cpu_s: float | None = None
    batch: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    value_dim: int | None = None
    seq_len: int | None = None
    key_len: int | None = None
    causal: bool
    dtype: str
    device: str
    threads: int | None = None
    compile: bool = False
    seed: int
    control: bool = False
    status: Status
    reason: str | None = None
    flags: list[str] = Field(default_factory=list)
    time: Time | None = None
    tokens_per_s: float | None = None
    flops: int | None = None
    ceiling: Ceiling | None = None
    memory: Memory | None = None
    accuracy: Accuracy | None = None
    error: dict[str, float | None] | None = None
    kernels: list[str] = Field(default_factory=list)
    environment: dict[str, Any] = Field(default_factory=dict)
    source_hash: str | None = None
    started_at: str | None = None
    wall_s: float | None = None

    def to_line(self) -> str:
        """The row as one line of strict JSON."""
        return strict_json(self.model_dump(mode="json", by_alias=True)) + "\n"


def strict_json(value: Any, **options: Any) -> str:
    """JSON text without NaN or Infinity: what is not finite becomes null."""
    return json.dumps(_finite(value), allow_nan=False, ensure_ascii=False, **options)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def append_line(path: Path, line: str) -> None:
    """Append one line and flush it to the disk; a line cut short by an earlier kill is ended first."""
    with path.open("ab+") as file:
        if file.seek(0, os.SEEK_END) and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
            file.write(b"\n")
        file.write(line.encode("utf-8"))
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """(line number, object) of a JSON-lines file; None for a line that is not a JSON object (cut short by a kill)."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            if not raw.strip():
                continue
            try:
                value = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant)
            except ValueError:
                value = None
            yield number, value if isinstance(value, dict) else None


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def parse_row(value: dict[str, Any]) -> Row:
    """A Row from its JSON object; raises ValueError naming what is wrong (a newer schema, an unknown field)."""
    schema = value.get("schema")
    if schema != SCHEMA:
        raise ValueError(f"schema {schema!r} is not {SCHEMA}")
    if _finite(value) != value:
        raise ValueError("a number is not finite")
    try:
        return Row.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def read_run(folder: Path) -> tuple[list[Row], list[str]]:
    """The rows of a run, one a key (the newest wins), the last written last, and notes on what was left out."""
    path = folder / ROWS
    if not path.is_file():
        raise UserError(
            f"no results in '{folder}': it has no {ROWS} (make one with: python -m bench run --out {folder})"
        )
    rows: dict[str, Row] = {}
    notes = []
    for number, value in read_lines(path):
        if value is None:
            notes.append(f"{path.name} line {number}: not a whole JSON object, left out")
            continue
        try:
            row = parse_row(value)
        except ValueError as error:
            notes.append(f"{path.name} line {number}: {error}, left out")
            continue
        rows.pop(row.key, None)
        rows[row.key] = row
    return list(rows.values()), notes


def read_results(folders: Path | str | Iterable[Path | str]) -> pd.DataFrame:
    """Tidy DataFrame of one or more runs: one line a cell, plain columns, units in the names (`time.median_s`).

    What is nested gets dotted names (`knobs.window`, `error.output`, `accuracy.by_gap.1-8`), words of a list stand in
    one text (`flags`), any other list is JSON text (`time.samples_s`). A figure that is not there is NaN.
    """
    import pandas as pd

    folders = [folders] if isinstance(folders, Path | str) else folders
    rows = [row for folder in folders for row in read_run(Path(folder))[0]]
    frame = pd.DataFrame([dict(_plain_columns(flatten(row))) for row in rows])
    numbers = [name for name in _number_names() if name in frame]
    return frame.assign(**{name: pd.to_numeric(frame[name]) for name in numbers})


def _plain_columns(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(name, number, text or None) of each value, however deep it is nested."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _plain_columns(value, f"{prefix}{name}.")
        elif isinstance(value, list) and value and all(isinstance(item, Gap) for item in value):
            yield from ((f"{prefix}{name}.{gap.label}", gap.value) for gap in value)
        elif isinstance(value, list):
            words = all(isinstance(item, str) for item in value)
            yield prefix + name, "; ".join(value) if words else strict_json(value)
        else:
            yield prefix + name, value


def _number_names() -> Iterator[str]:
    """Columns that hold numbers by the schema, also where no row has one."""
    numeric = (int, float, int | None, float | None)
    for name, field in Row.model_fields.items():
        inside = NESTED[name].model_fields.items() if name in NESTED else ()
        yield from (f"{name}.{inner}" for inner, part in inside if part.annotation in numeric)
        if field.annotation in numeric:
            yield field.alias or name


def flatten(row: Row) -> dict[str, Any]:
    """One row as a flat dict: nested records become dotted names; lists and free dicts stay as they are."""
    flat: dict[str, Any] = {}
    for name, field in type(row).model_fields.items():
        label, value = field.alias or name, getattr(row, name)
        nested = NESTED.get(name)
        if nested is None:
            flat[label] = value
            continue
        for inner in nested.model_fields:
            flat[f"{label}.{inner}"] = None if value is None else getattr(value, inner)
    return flat


NESTED: dict[str, type[Record]] = {"time": Time, "memory": Memory, "ceiling": Ceiling, "accuracy": Accuracy}
