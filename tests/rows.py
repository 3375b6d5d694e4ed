"""Synthetic rows for tests of the report: made-up figures with a known shape, never stored as results."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import report
from bench.results import Accuracy, Gap, Memory, Row, Time

MIB = 2**20


def cost(
    variant: str = "full",
    seq_len: int | None = 512,
    *,
    ms: float | None = 10.0,
    spread: float | None = 0.02,
    peak: float | None = 64.0,
    replicates: int = 3,
    **changes: Any,
) -> Row:
    """A measured cell. ms: median time; spread: relative half-width of the interval, None for none; peak: MiB."""
    seconds = None if ms is None else ms / 1e3
    interval = (None, None) if seconds is None or spread is None else (seconds * (1 - spread), seconds * (1 + spread))
    fields: dict[str, Any] = {
        "run": "made-up", "variant": variant, "workload": "block", "pass_": "forward", "batch": 1, "heads": 8,
        "kv_heads": 8, "head_dim": 64, "value_dim": 64, "seq_len": seq_len, "key_len": seq_len, "causal": False,
        "dtype": "float32", "device": "cpu", "threads": 2, "seed": 0, "status": "ok",
        "time": Time(median_s=seconds, low_s=interval[0], high_s=interval[1], replicates=replicates, stop="budget"),
        "tokens_per_s": seq_len / seconds if seq_len and seconds else None,
        "memory": Memory(peak_bytes=None if peak is None else int(peak * MIB)),
    }  # fmt: skip
    fields |= changes
    if fields["status"] != "ok":
        fields |= {"time": None, "tokens_per_s": None, "memory": None}
        fields.setdefault("reason", "made up")
    fields.setdefault("key", _key(fields))
    return Row(**fields)


def score(
    variant: str = "full",
    value: float | None = 0.9,
    *,
    task: str = "mqar",
    metric: str = "accuracy",
    half: float | None = 0.01,
    chance: float | None = 0.0625,
    by_gap: dict[str, float | None] | None = None,
    by_length: dict[str, float | None] | None = None,
    **changes: Any,
) -> Row:
    """A trained cell. half: half-width of the interval of the test estimate, None for none."""
    bounds = (None, None) if value is None or half is None else (value - half, value + half)
    if metric == "accuracy" and bounds[1] is not None:
        bounds = (bounds[0], min(bounds[1], 1.0))
    fields: dict[str, Any] = {
        "run": "made-up", "variant": variant, "workload": f"task:{task}", "task": task, "preset": "tiny",
        "causal": True, "dtype": "float32", "device": "cpu", "threads": 1, "seed": 0, "status": "ok",
        "accuracy": Accuracy(
            metric=metric, higher_is_better=metric == "accuracy", value=value, low=bounds[0], high=bounds[1],
            chance=chance, chance_of="1/16 values" if metric == "accuracy" else None, learning_rate=0.003, steps=600,
            params=12_345, extra_params=0, train_cpu_s=6.5,
            by_gap=[Gap(label=name, value=found, count=100) for name, found in (by_gap or {}).items()],
            by_length=[Gap(label=name, value=found, count=100) for name, found in (by_length or {}).items()],
        ),
    }  # fmt: skip
    fields |= changes
    if fields["status"] != "ok":
        fields["accuracy"] = None
        fields.setdefault("reason", "made up")
    fields.setdefault("key", _key(fields))
    return Row(**fields)


def _key(fields: dict[str, Any]) -> str:
    """A key of all that tells cells apart."""
    names = sorted(fields.keys() - {"time", "memory", "accuracy", "status", "reason", "flags", "tokens_per_s"})
    return json.dumps([fields[name] for name in names], default=str)


def write_run(folder: Path, rows: Iterable[Row], info: dict[str, Any] | None = None) -> Path:
    """A run folder with these rows and, unless None, this `run.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows.jsonl").write_bytes("".join(row.to_line() for row in rows).encode("utf-8"))
    if info is not None:
        (folder / "run.json").write_bytes(json.dumps(info).encode("utf-8"))
    return folder


INFO: dict[str, Any] = {
    "run": "quick-made-up",
    "command": "python -m bench run quick",
    "started_at": "2026-05-04T10:00:00+00:00",
    "sweep": {"name": "quick", "controls": ["none"]},
    "environment": {
        "cpu": "Made-up CPU @ 2.0 GHz", "cores": 2, "threads": 2, "memory_bytes": 8 * 2**30, "os": "Linux",
        "python": "3.11.2", "torch": "2.13.0+cpu", "gpu": None, "git": "0123456789ab",
        "packages": {"xformers": "0.0.35", "numpy": "2.3.1"},
    },
    "order_seed": 17,
    "controls": ["none"],
}  # fmt: skip


def quick_run() -> list[Row]:
    """Rows like those of the default run on two cores: six variants, five lengths, two passes, two tasks."""
    rows: list[Row] = []
    for pass_, slower in (("forward", 1.0), ("train", 3.1)):
        for n in (512, 1024, 2048, 4096, 8192):
            x = n / 512
            costs = {
                "full": (14 * x + 5 * x * x, 8 + 16.5 * x * x),
                "additive": (14 * x + 210 * x * x, 10 + 4 * x),
                "linear": (16.5 * x, 8 + 3 * x),
                "sparse": (15 * x + 3.5 * x**1.5, 8 + 4.2 * x**1.5),
                "local": (15.5 * x + 2.5 * x, 8 + 5 * x),
                "flash": (13.6 * x + 2.1 * x * x, 8 + 2.5 * x),
            }
            for name, (ms, peak) in costs.items():
                if name == "additive" and n > (2048 if pass_ == "forward" else 1024):
                    reason = f"predicted {ms * slower / 1e3 * 9:.0f} s exceeds the budget of 12 s"
                    rows.append(cost(name, n, pass_=pass_, status="skipped", reason=reason))
                elif name == "full" and n == 8192 and pass_ == "train":
                    reason = "predicted peak 12.4 GiB exceeds the memory limit of 8.0 GiB"
                    rows.append(cost(name, n, pass_=pass_, status="oom", reason=reason))
                else:
                    flags = ["drifting"] if (name, n) == ("sparse", 1024) else []
                    knobs = {"window": 256} if name == "local" else {}
                    spread = 0.012 + 0.02 * (hash_of(name, n, pass_) % 7) / 7
                    figures = {"ms": ms * slower, "peak": peak * slower, "spread": spread}
                    rows.append(cost(name, n, **figures, pass_=pass_, flags=flags, knobs=knobs))
    gaps = ("1-8", "9-16", "17-32", "33-64")
    recall = {
        "full": (0.994, (1.0, 0.998, 0.992, 0.985)), "flash": (0.991, (1.0, 0.996, 0.990, 0.980)),
        "sparse": (0.902, (0.97, 0.93, 0.88, 0.83)), "local": (0.412, (0.99, 0.71, 0.064, 0.061)),
        "linear": (0.331, (0.34, 0.33, 0.33, 0.32)), "additive": (0.958, (0.98, 0.97, 0.95, 0.93)),
        "none": (0.063, (0.064, 0.062, 0.065, 0.061)),
    }  # fmt: skip
    for name, (value, bins) in recall.items():
        rows.append(score(name, value, by_gap=dict(zip(gaps, bins, strict=True))))
    text = {"full": 2.61, "flash": 2.612, "sparse": 2.66, "local": 2.59, "linear": 2.71, "additive": 2.68, "none": 3.12}
    for name, value in text.items():
        rows.append(score(name, value, task="text", metric="bits_per_byte", half=0.02, chance=4.85, preset="small"))
    return rows


def hash_of(*parts: object) -> int:
    """A small stable number from its parts."""
    return sum(ord(sign) * (place + 1) for place, sign in enumerate(repr(parts)))


def markdown(tmp_path: Path, *rows: Row, info: dict[str, Any] | None = INFO) -> str:
    """The Markdown of a run of these rows."""
    (path,) = report.write(write_run(tmp_path / "run", rows, info), formats=["md"])
    return path.read_text(encoding="utf-8")


def html(tmp_path: Path, *rows: Row, info: dict[str, Any] | None = INFO) -> str:
    """The page of a run of these rows."""
    (path,) = report.write(write_run(tmp_path / "run", rows, info), formats=["html"])
    return path.read_text(encoding="utf-8")


def read_csv(path: Path) -> list[dict[str, str]]:
    """The lines of a CSV file by column."""
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


def shown(folder: Path, **options: Any) -> str:
    """What a terminal shows of a run; options are those of the console."""
    out = io.StringIO()
    report.show(folder, Console(file=out, **options))
    return out.getvalue()
