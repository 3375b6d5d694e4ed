"""The files of a run while it is made: run.json, rows.jsonl and the replicates of cells that are not finished."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any

from bench import kept
from bench.errors import UserError
from bench.results import ROWS, Row, append_line, read_lines, read_run, strict_json

REPLICATES = "replicates.jsonl"
RUN = "run.json"
LOCK = ".lock"
CHECKPOINT = "checkpoint-"


class Journal:
    """Append-only record of one run folder; opened by one process at a time.

    Nothing that was measured is lost by a kill: every replicate and every row is on the disk when it is done.
    """

    def __init__(self, folder: Path, *, fresh: bool) -> None:
        self.folder = folder
        make_folder(folder)
        self._lock = self._acquire()
        if fresh:
            self._set_aside()
        self.rows: dict[str, Row] = {}
        self.notes: list[str] = []
        if (folder / ROWS).exists():
            rows, self.notes = read_run(folder)
            self.rows = {row.key: row for row in rows}
        self._stored = dict(self.rows)
        self.replicates: dict[str, list[dict[str, Any]]] = {}
        if (folder / REPLICATES).exists():
            for number, line in read_lines(folder / REPLICATES):
                self._take(number, line)

    def _take(self, number: int, line: dict[str, Any] | None) -> None:
        """One line of the replicates file; what it does not understand is left out with a note."""
        key, reply = (line.get("key"), line.get("reply")) if line is not None else (None, None)
        if line is not None and isinstance(key, str) and "forget" in line:
            self.replicates.pop(key, None)
        elif isinstance(key, str) and isinstance(reply, dict) and reply.get("samples_s"):
            self.replicates.setdefault(key, []).append(reply)
        else:
            self.notes.append(f"{REPLICATES} line {number}: not a replicate, left out")

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._lock)

    def add_row(self, row: Row) -> None:
        """Store a finished row; a cell that is again not started for the same cause is not stored twice."""
        self.checkpoint(row.key).unlink(missing_ok=True)
        old = self._stored.get(row.key)
        self.rows[row.key] = self._stored[row.key] = row
        not_started = row.status in ("skipped", "oom") and row.wall_s is None
        if not (not_started and old is not None and (old.status, old.wall_s) == (row.status, None)):
            append_line(self.folder / ROWS, row.to_line())

    def add_replicate(self, key: str, reply: dict[str, Any]) -> None:
        """Store one replicate of a cell that may get more."""
        self.replicates.setdefault(key, []).append(reply)
        append_line(self.folder / REPLICATES, strict_json({"key": key, "reply": reply}) + "\n")

    def checkpoint(self, key: str) -> Path:
        """Where a training that has no row yet keeps what it needs to go on after a kill."""
        return self.folder.absolute() / f"{CHECKPOINT}{key}.pt"

    def reopen(self, key: str, *, keep_replicates: bool) -> None:
        """Treat a cell as not done; its stored row becomes history once it gets a new one."""
        del self.rows[key]
        if not keep_replicates and key in self.replicates:
            del self.replicates[key]
            append_line(self.folder / REPLICATES, strict_json({"key": key, "forget": True}) + "\n")

    def describe(self, facts: dict[str, Any]) -> None:
        """Write run.json, whole or not at all."""
        path = self.folder / RUN
        temporary = path.with_suffix(".tmp")
        temporary.write_text(strict_json(facts, indent=2) + "\n", encoding="utf-8")
        temporary.replace(path)

    def described(self) -> dict[str, Any]:
        """What run.json says, {} when there is none."""
        path = self.folder / RUN
        if not path.exists():
            return {}
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, OSError) as error:
            raise UserError(f"'{path}' cannot be read ({error}); remove it or choose another --out") from error
        return facts if isinstance(facts, dict) else {}

    def _acquire(self) -> int:
        try:
            handle = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise UserError(f"cannot write in '{self.folder}': {error.strerror}; choose another --out") from error
        try:
            import fcntl
        except ImportError:  # no advisory locks on this system
            return handle
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise UserError(
                f"another run is writing into '{self.folder}'; wait for it or choose another --out"
            ) from None
        return handle

    def _set_aside(self) -> None:
        """Keep the files of an earlier run under numbered names, but no checkpoints and models."""
        for path in (*self.folder.glob(f"{CHECKPOINT}*"), *self.folder.glob(f"{kept.PREFIX}*{kept.SUFFIX}")):
            path.unlink()
        for name in (ROWS, REPLICATES):
            path = self.folder / name
            if path.exists():
                number = 1 + sum(1 for _ in self.folder.glob(f"{name}.old-*"))
                path.rename(self.folder / f"{name}.old-{number}")


def make_folder(folder: Path) -> None:
    """Make the folder of a run and its parents; UserError when it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UserError(f"--out '{folder}' is a file; a run is a folder: give a folder that is not a file") from None
    except OSError as error:
        raise UserError(f"cannot make the folder '{folder}': {error.strerror}; choose another --out") from error


def check_folder(folder: Path) -> None:
    """Raise the UserError that making and writing the folder would meet, without making anything."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise UserError(f"--out '{folder}' is a file; a run is a folder: give a folder that is not a file")
    if not os.access(existing, os.W_OK | os.X_OK) or str(existing.resolve()).startswith(("/proc", "/sys")):
        raise UserError(f"cannot write in '{existing}'; choose another --out")
