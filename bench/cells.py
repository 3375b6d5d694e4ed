"""The cells that a sweep means: every point of its axes, with a key made of all that can change its figures."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from bench import kept, registry, tasks
from bench.errors import UserError, unknown
from bench.sweep import FIDELITY, RECORDED, TASK, Knobs, Sweep, TaskOptions, digest_of, listed, merged

NOISE_FLOOR = "full"  # as a control it gets a second seed: what a seed alone changes


class Cell(BaseModel):
    """One point of a sweep. `key` is made of all that can change its figures; None means it does not apply."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    variant: str
    knobs: dict[str, Any]
    workload: str
    pass_: str | None = Field(None, alias="pass")
    task: str | None = None
    preset: str | None = None
    file: str | None = None
    file_hash: str | None = None
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
    threads: int
    compile: bool = False
    seed: int
    source_hash: str
    environment: str
    source: dict[str, str | None] = Field(exclude=True)
    control: bool = Field(False, exclude=True)

    @cached_property
    def key(self) -> str:
        """Stable key: the same for the same work, source and environment on any day."""
        return digest_of(self.model_dump(mode="json", by_alias=True))[:16]

    @cached_property
    def series(self) -> str:
        """Key of all cells that differ from this one in length alone."""
        axes = self.model_dump(mode="json", by_alias=True, exclude={"seq_len", "key_len"})
        return digest_of(axes)

    @property
    def once(self) -> bool:
        """Whether it is measured in one process, not replicated: a training, or a comparison of numbers."""
        return self.pass_ is None

    @property
    def gate(self) -> tuple[Any, ...]:
        """What one run of the conformance gate answers for."""
        return (self.variant, json.dumps(self.knobs, sort_keys=True), self.device, self.dtype, self.causal)

    def label(self) -> str:
        """The cell in a few words, for progress lines and reasons."""
        knobs = ",".join(f"{name}={value}" for name, value in self.knobs.items() if value is not None)
        name = f"{self.variant}({knobs})" if knobs else self.variant
        what = f"{self.workload} {self.pass_} n={self.seq_len}" if self.pass_ else self._what_once()
        return (
            f"{name} {what} {'causal' if self.causal else 'bidirectional'} {self.dtype} {self.device} seed={self.seed}"
        )

    def _what_once(self) -> str:
        if self.task is None:
            return f"{self.workload} n={self.seq_len}"
        budget = f" {self.trial_cpu_s:g} s a trial" if self.trial_cpu_s is not None else ""
        return f"{self.workload}/{self.preset}{budget}"


def cells(
    sweep: Sweep, known: Sequence[registry.Entry], *, devices: Sequence[str], threads: int, environment: str
) -> list[Cell]:
    """Every cell of a sweep, in a fixed order; UserError on an unknown variant or an out-of-range knob.

    known: the registry's entries. devices: what this machine has (for `auto`). threads: its default thread count.
    environment: short hash of what surrounds the measurement.
    """
    names = [Path(name).stem if registry.is_file(name) else name for name in sweep.variant]
    for name in sweep.controls:
        registry.find(name, known)
    for table in (sweep.knobs, *(options.knobs for options in sweep.tasks.values())):
        list(_variants(table, known, table))  # also those of variants that are not measured: a typo is a typo

    @cache
    def source_hash(name: str, rooms: tuple[str, ...]) -> str:
        return registry.source_hash(registry.find(name, known), rooms)

    made = list(_measured(sweep, names, known, devices, threads, environment, source_hash))
    made += _compared(sweep, names, known, devices, threads, environment, source_hash)
    made += _trained(sweep, names, known, devices, environment, source_hash)
    return list({cell.key: cell for cell in made}.values())


def _measured(
    sweep: Sweep,
    names: list[str],
    known: Sequence[registry.Entry],
    devices: Sequence[str],
    threads: int,
    environment: str,
    source_hash: Callable[[str, tuple[str, ...]], str],
) -> Iterator[Cell]:
    axes = itertools.product(
        [w for w in sweep.workload if not w.startswith((TASK, FIDELITY))],
        resolve_devices(sweep, devices),
        sweep.dtype,
        sweep.causal,
        sweep.pass_,
        sweep.batch,
        sweep.heads,
        sweep.kv_heads or [None],
        sweep.head_dim,
        sweep.value_dim or [None],
        sweep.threads or [threads],
        sweep.seeds[:1],
        sweep.seq_len,
    )
    for workload, device, dtype, causal, pass_, batch, heads, kv_heads, head_dim, value_dim, count, seed, n in axes:
        for entry, knobs in _variants(names, known, sweep.knobs):
            yield Cell(
                variant=entry.name, knobs=knobs, workload=workload, pass_=pass_, batch=batch, heads=heads,
                kv_heads=kv_heads or heads, head_dim=head_dim, value_dim=value_dim or head_dim, seq_len=n, key_len=n,
                causal=causal, dtype=dtype, device=device, threads=count, seed=seed, environment=environment,
                source_hash=source_hash(entry.name, registry.MEASURING), source=entry.source(),
            )  # fmt: skip


def _compared(
    sweep: Sweep,
    names: list[str],
    known: Sequence[registry.Entry],
    devices: Sequence[str],
    threads: int,
    environment: str,
    source_hash: Callable[[str, tuple[str, ...]], str],
) -> Iterator[Cell]:
    """The cells of workload `fidelity`, controls included: one example, as many key heads as heads."""
    drawn = itertools.product(sweep.causal, sweep.heads, sweep.head_dim, sweep.seq_len)
    inputs = [
        {"workload": FIDELITY, "causal": causal, "heads": heads, "head_dim": width, "value_dim": width, "seq_len": n}
        for causal, heads, width, n in (drawn if FIDELITY in sweep.workload else ())
    ]
    inputs += [_recorded(workload) for workload in sweep.workload if workload.startswith(RECORDED)]
    everyone = [*names, *(name for name in sweep.controls if name not in names)]
    for device, dtype, given in itertools.product(resolve_devices(sweep, devices), sweep.dtype, inputs):
        for entry, knobs in _variants(everyone, known, sweep.knobs):
            yield Cell(
                variant=entry.name, knobs=knobs, batch=1, kv_heads=given["heads"], key_len=given["seq_len"], **given,
                dtype=dtype, device=device, threads=(sweep.threads or [threads])[0], seed=sweep.seeds[0],
                environment=environment, source_hash=source_hash(entry.name, registry.MEASURING),
                source=entry.source(), control=entry.name not in names,
            )  # fmt: skip


def _recorded(workload: str) -> dict[str, Any]:
    """What a kept model says of the cells that take its q, k and v."""
    path = Path(workload.removeprefix(RECORDED)).absolute()
    of, file_hash = kept.read_about(path), tasks.fingerprint(str(path))
    return {
        "workload": f"{RECORDED}{of.task}-{of.preset}-{of.variant}-{file_hash[:6]}", "file": str(path),
        "file_hash": file_hash, "causal": of.causal, "heads": of.heads, "head_dim": of.head_dim,
        "value_dim": of.value_dim, "seq_len": of.length,
    }  # fmt: skip


def _trained(
    sweep: Sweep,
    names: list[str],
    known: Sequence[registry.Entry],
    devices: Sequence[str],
    environment: str,
    source_hash: Callable[[str, tuple[str, ...]], str],
) -> Iterator[Cell]:
    for workload, device in itertools.product(sweep.workload, resolve_devices(sweep, devices)):
        if not workload.startswith(TASK):
            continue
        task = workload.removeprefix(TASK)
        options = sweep.tasks.get(task, TaskOptions())
        preset = options.preset or next(iter(tasks.find(task).presets))
        file_hash = tasks.fingerprint(options.file) if options.file else None
        chosen = merged(sweep.knobs, options.knobs)
        budgets = [None, *options.trial_cpu_s]
        directions = options.causal or tasks.find(task).directions[:1]
        for causal, cpu_s, (name, seed) in itertools.product(directions, budgets, _scored(sweep, names)):
            for entry, knobs in _variants([name], known, chosen):
                yield Cell(
                    variant=entry.name, knobs=knobs, workload=workload, task=task, preset=preset,
                    file=options.file, file_hash=file_hash, trial_cpu_s=cpu_s,
                    causal=causal, dtype="float32", device=device, threads=1, seed=seed, environment=environment,
                    source_hash=source_hash(entry.name, registry.TRAINING), source=entry.source(),
                    control=name not in names or seed not in sweep.seeds,
                )  # fmt: skip


def _scored(sweep: Sweep, names: list[str]) -> Iterator[tuple[str, int]]:
    """(variant, seed) of every training: the variants, the controls, and a second seed for the noise floor."""
    everyone = [*names, *(name for name in sweep.controls if name not in names)]
    yield from ((name, seed) for seed in sweep.seeds for name in everyone)
    if NOISE_FLOOR in sweep.controls and len(sweep.seeds) == 1:
        yield NOISE_FLOOR, sweep.seeds[0] + 1


def resolve_devices(sweep: Sweep, devices: Sequence[str]) -> list[str]:
    """The devices asked for, with `auto` replaced by all that were found."""
    wanted = list(dict.fromkeys(d for name in sweep.device for d in (devices if name == "auto" else [name])))
    for name in wanted:
        if name not in ("cpu", "cuda", "mps"):
            raise unknown("device", name, ["auto", "cpu", "cuda", "mps"])
    return wanted


def _variants(
    names: Iterable[str], known: Sequence[registry.Entry], knobs: Knobs
) -> Iterator[tuple[registry.Entry, dict[str, Any]]]:
    """Each variant with every combination of its swept knobs (a list of values is an axis)."""
    for name in names:
        entry = registry.find(name, known)
        given = knobs.get(name, {})
        for name_of in given:
            if name_of not in entry.knobs:
                raise unknown(f"knob of variant '{name}'", name_of, entry.knobs)
            if given[name_of] == []:
                raise UserError(f"variant '{name}': knob {name_of} has an empty list of values")
        for values in itertools.product(*map(listed, given.values())):
            yield entry, registry.resolve_knobs(entry, dict(zip(given, values, strict=True)))
