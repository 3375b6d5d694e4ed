"""What a report is made from: the rows of one or more runs, kept apart, and what their folders say about them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.journal import REPLICATES, RUN
from bench.results import ROWS, Row, read_run

CONTROL = "none"


@dataclass(frozen=True)
class Source:
    """One run: its name in the report, its rows (one a cell), notes on what was left out, and `run.json` or {}."""

    run: str
    folder: Path
    rows: list[Row]
    notes: list[str]
    info: dict[str, Any]

    def part(self, name: str) -> dict[str, Any]:
        """A table of `run.json` (`environment`, `sweep`), empty when it is absent or something else."""
        value = self.info.get(name)
        return value if isinstance(value, dict) else {}

    @property
    def controls(self) -> frozenset[str]:
        """Names that stand beside the variants that were asked for: shown, never ranked among them."""
        named = self.info.get("controls", self.part("sweep").get("controls"))
        asked = self.part("sweep").get("variant")
        found = {name for name in named if isinstance(name, str)} if isinstance(named, list) else set()
        return frozenset({CONTROL, *(found - set(asked if isinstance(asked, list) else ()))})


# What makes two rows the same point of a sweep, whatever source and machine they come from.
POINT = {
    "variant", "knobs", "workload", "pass_", "task", "preset", "trial_cpu_s", "batch", "heads", "kv_heads", "head_dim",
    "value_dim", "seq_len", "key_len", "causal", "dtype", "device", "threads", "compile", "seed",
}  # fmt: skip


def read_sources(folders: Path | str | Iterable[Path | str]) -> list[Source]:
    """Read one or more run folders; two runs of one name become `name` and `name (2)`. UserError: no rows file."""
    paths = [Path(folders)] if isinstance(folders, Path | str) else [Path(folder) for folder in folders]
    seen: Counter[str] = Counter()
    sources = []
    for path in paths:
        rows, notes = read_run(path)
        info, complaints = _read_info(path / RUN)
        name = clean(info.get("run") or path.resolve().name)
        seen[name] += 1
        if seen[name] > 1:
            name = f"{name} ({seen[name]})"
        planned = _planned(info)
        current, superseded = _current(rows, planned)
        left_out = [*notes, *complaints, *superseded, *_unfinished(planned, current), *_foreign(path)]
        sources.append(Source(name, path, current, [clean(note) for note in left_out], info))
    return sources


def clean(value: object) -> str:
    """Text on one line that every output can hold: no control characters, no lone surrogates, no line breaks."""
    text = " ".join(str(value).split())
    return "".join(sign if sign.isprintable() or sign in "\u200c\u200d" else "?" for sign in text)


def status_counts(rows: Sequence[Row]) -> dict[str, int]:
    """Number of cells of each status that occurs, `ok` first, then by name."""
    counts = Counter(row.status for row in rows)
    return {status: counts[status] for status in sorted(counts, key=lambda status: (status != "ok", status))}


def _read_info(path: Path) -> tuple[dict[str, Any], list[str]]:
    if not path.is_file():
        return {}, [f"{RUN} is missing: the command, the sweep and the environment of the run are not known"]
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        return {}, [f"{RUN} cannot be read ({error}): the command and the environment of the run are not known"]
    if not isinstance(info, dict):
        return {}, [f"{RUN} is not a JSON object: the command and the environment of the run are not known"]
    return info, []


def _planned(info: dict[str, Any]) -> frozenset[str]:
    """Keys of the cells of the sweep that was run last."""
    keys = info.get("cells")
    return frozenset(key for key in keys if isinstance(key, str)) if isinstance(keys, list) else frozenset()


def _current(rows: Sequence[Row], planned: frozenset[str]) -> tuple[list[Row], list[str]]:
    """One row for each point of a sweep, and a note on the others: the last sweep's own, else the last one written.

    The others were made by an earlier version of a variant or of the harness, or on another machine.
    """
    chosen: dict[str, Row] = {}
    for row in rows:
        point = json.dumps(row.model_dump(include=POINT), sort_keys=True)
        known = chosen.get(point)
        if known is None or row.key in planned or known.key not in planned:
            chosen[point] = row
    left_out = len(rows) - len(chosen)
    what = "older row" if left_out == 1 else "older rows"
    note = f"{left_out} {what} of another version of the source or of another machine, left out"
    return list(chosen.values()), [note] if left_out else []


def _unfinished(planned: frozenset[str], rows: Sequence[Row]) -> list[str]:
    missing = len(planned - {row.key for row in rows})
    if not missing:
        return []
    return [f"{missing} of {len(planned)} cells of the sweep have no result yet: the run was not finished"]


def _foreign(folder: Path) -> list[str]:
    names = sorted(path.name for path in folder.iterdir() if path.suffix in {".json", ".jsonl"} and path.is_file())
    return [f"{name}: not a file of the run, left out" for name in names if name not in {ROWS, RUN, REPLICATES}]
