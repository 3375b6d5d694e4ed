"""Which cells may stand in one table: all that agree in everything but the variant, its knobs and the length.

Causal never meets bidirectional, a device never another, a run never another run.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from bench import tasks
from bench.report.source import Source, clean
from bench.results import Row

PASSES = ("forward", "train", "decode")
WORDS = ("run", "device", "dtype", "direction")


@dataclass(frozen=True)
class Group:
    """What the cells of one table share. `length` and `text` are for tasks, `pass_` and `seed` for the others."""

    run: str
    workload: str
    preset: str | None
    device: str
    dtype: str
    causal: bool
    pass_: str | None
    length: int | None
    key_len: int | None
    batch: int | None
    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    value_dim: int | None
    threads: int | None
    compile: bool
    seed: int | None
    text: str | None = None

    @property
    def is_task(self) -> bool:
        """Whether the cells train and score a model."""
        return self.workload.startswith("task:")

    @property
    def name(self) -> str:
        """The workload in words: `block`, `mqar (tiny)`."""
        return self.workload.removeprefix("task:") + (f" ({self.preset})" if self.preset else "")

    @property
    def direction(self) -> str:
        """`causal` or `bidirectional`."""
        return "causal" if self.causal else "bidirectional"

    @property
    def title(self) -> str:
        """The heading: `block, forward, cpu, float32, causal`."""
        return ", ".join(
            part for part in (self.name, self.text, self.pass_, self.device, self.dtype, self.direction) if part
        )

    @property
    def shape(self) -> str:
        """The rest of what the cells share, in words: `batch 1, 8 heads of 64, 2 threads, seed 0`."""
        return ", ".join(self.shape_parts.values())

    @property
    def shape_parts(self) -> dict[str, str]:
        """The words of `shape` by field; what does not apply or is the usual is left out."""
        width = f" of {self.head_dim}" if self.head_dim is not None else ""
        words = {
            "length": self.length is not None and f"length {self.length}",
            "key_len": self.key_len is not None and f"key length {self.key_len}",
            "batch": self.batch is not None and f"batch {self.batch}",
            "heads": self.heads is not None and _count(self.heads, "head") + width,
            "kv_heads": self.kv_heads is not None and _count(self.kv_heads, "key-value head"),
            "value_dim": self.value_dim is not None and f"values of {self.value_dim}",
            "threads": self.threads is not None and _count(self.threads, "thread"),
            "compile": self.compile and "compiled",
            "seed": self.seed is not None and f"seed {self.seed}",
        }
        return {name: text for name, text in words.items() if text}

    def order(self) -> tuple[object, ...]:
        """Sort key within a run: costs before tasks, forward before train, null before any value."""
        place = PASSES.index(self.pass_) if self.pass_ in PASSES else len(PASSES)
        values = [getattr(self, field.name) for field in fields(self) if field.name not in {"run", "pass_"}]
        return (self.is_task, self.workload, self.device, place, *((value is not None, value or 0) for value in values))


@dataclass(frozen=True)
class Cells:
    """The cells of one group by series label and column (a length, or a seed for tasks).

    controls: labels that are shown but never ranked. notes: knobs of the variants, and what was left out.
    """

    group: Group
    slug: str
    by_label: dict[str, dict[int | None, Row]]
    controls: frozenset[str]
    notes: list[str]

    @property
    def columns(self) -> list[int | None]:
        """Lengths (seeds for tasks) in numeric order; a cell without one comes last."""
        found = {column for cells in self.by_label.values() for column in cells}
        return sorted(found, key=lambda column: (column is None, column or 0))

    def variant(self, label: str) -> str:
        """The name of the variant behind a label."""
        return next(iter(self.by_label[label].values())).variant

    @property
    def ranked(self) -> list[str]:
        """Labels of the variants under comparison, without the controls."""
        return [label for label in self.by_label if label not in self.controls]


def group_cells(sources: Sequence[Source]) -> list[Cells]:
    """Split the rows of all runs into groups: runs in the order given, groups and labels sorted, controls last."""
    slugs: set[str] = set()
    result = []
    for source in sources:
        found: dict[Group, list[Row]] = defaultdict(list)
        for row in source.rows:
            found[_group(source.run, row)].append(row)
        for group in sorted(found, key=Group.order):
            slug = _slug(group, slugs, several=len(sources) > 1)
            result.append(_cells(group, slug, found[group], source.controls))
    return result


def where(cells: Cells, alike: Sequence[Cells], without: Sequence[str] = ()) -> str:
    """The heading of a group in short: what all groups of its kind have in common is left out, and so is `without`."""
    parts = {**{name: str(getattr(cells.group, name)) for name in WORDS}, **cells.group.shape_parts}
    own = [
        text
        for name, text in parts.items()
        if name not in without and any(_part(other.group, name) != text for other in alike)
    ]
    return ", ".join([cells.group.name, *([cells.group.pass_] if cells.group.pass_ else []), *own])


def _part(group: Group, name: str) -> str | None:
    return getattr(group, name) if name in WORDS else group.shape_parts.get(name)


def length_of(row: Row) -> int | None:
    """The length a cell stands for: the context of a decode step, the query length of anything else."""
    return row.key_len if row.pass_ == "decode" and row.key_len is not None else row.seq_len


def _cells(group: Group, slug: str, rows: Sequence[Row], controls: frozenset[str]) -> Cells:
    swept = _swept_knobs(rows)
    by_label: dict[str, dict[int | None, Row]] = defaultdict(dict)
    for row in rows:
        by_label[_label(row, swept)][row.seed if group.is_task else length_of(row)] = row
    notes = _knob_notes(rows)
    control = frozenset(
        label
        for label, cells in by_label.items()
        if all(row.control or row.variant in controls for row in cells.values())
    )
    ordered = sorted(by_label, key=lambda label: (label in control, label))
    return Cells(group, slug, {label: by_label[label] for label in ordered}, control, notes)


def _label(row: Row, swept: dict[str, set[str]]) -> str:
    """The variant's name, with the knobs that take more than one value in the group: `local window=64`."""
    knobs = sorted(name for name in row.knobs if name in swept[row.variant])
    return clean(" ".join([row.variant, *(f"{name}={row.knobs[name]}" for name in knobs)]))


def _swept_knobs(rows: Iterable[Row]) -> dict[str, set[str]]:
    values: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for row in rows:
        for name, value in row.knobs.items():
            values[row.variant][name].add(repr(value))
    return defaultdict(set, {v: {name for name, seen in knobs.items() if len(seen) > 1} for v, knobs in values.items()})


def _knob_notes(rows: Iterable[Row]) -> list[str]:
    fixed = {}
    swept = _swept_knobs(rows)
    for row in rows:
        knobs = [f"{k}={v}" for k, v in sorted(row.knobs.items()) if v is not None and k not in swept[row.variant]]
        if knobs:
            fixed[clean(row.variant)] = clean(" ".join(knobs))
    return [f"Knobs: {'; '.join(f'{variant} {fixed[variant]}' for variant in sorted(fixed))}."] if fixed else []


def _preset(row: Row) -> str | None:
    """The preset of a training, with the seconds a trial was given where these were its budget."""
    if row.preset is None:
        return None
    return clean(row.preset) + (f", {row.trial_cpu_s:g} s a trial" if row.trial_cpu_s is not None else "")


def _group(run: str, row: Row) -> Group:
    task = row.workload.startswith("task:")
    crossed = row.pass_ != "decode" and row.key_len not in (None, row.seq_len)
    return Group(
        run=run,
        workload=clean(row.workload),
        preset=_preset(row),
        device=clean(row.device),
        dtype=clean(row.dtype),
        causal=row.causal,
        pass_=None if task or row.pass_ is None else clean(row.pass_),
        length=_task_length(row) if task else None,
        key_len=row.key_len if crossed else None,
        batch=row.batch,
        heads=row.heads,
        kv_heads=row.kv_heads if row.kv_heads != row.heads else None,
        head_dim=row.head_dim,
        value_dim=row.value_dim if row.value_dim != row.head_dim else None,
        threads=row.threads,
        compile=row.compile,
        seed=None if task else row.seed,
        text=_text(row),
    )


def _task_length(row: Row) -> int | None:
    """The length a task trains at: the row's own, else that of the preset as it is shipped."""
    if row.seq_len is not None or row.task not in tasks.names():
        return row.seq_len
    preset = tasks.find(row.task).presets.get(row.preset or "")
    return preset.seq_len if preset else None


def _text(row: Row) -> str | None:
    """The user's own text a model was scored on, by name and hash; None for a task's own data."""
    data = row.accuracy.data if row.accuracy is not None else {}
    name, digest = data.get("source"), data.get("sha256")
    return None if not digest or not name or str(name).startswith("standard library") else f"{clean(name)} {digest[:8]}"


def _slug(group: Group, taken: set[str], *, several: bool) -> str:
    text = f"{group.run} {group.title}" if several else group.title
    stem = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:80] or "group"
    slug, count = stem, 1
    while slug in taken:
        count += 1
        slug = f"{stem}-{count}"
    taken.add(slug)
    return slug


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
