"""The sweep a user asks for and the cells it means: TOML, preset or flags, validated before anything runs."""

from __future__ import annotations

import hashlib
import itertools
import json
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, MinLen
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from bench import registry, tasks
from bench.errors import UserError, unknown

PRESETS = Path(__file__).parent / "sweeps"
TASK = "task:"
FIDELITY = "fidelity"
NOISE_FLOOR = "full"  # as a control it gets a second seed: what a seed alone changes
LIMITS = {"rounds", "max_rounds", "precision", "budget", "timeout", "memory_limit"}  # when to stop, not what to measure


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _axis(item: Any) -> Any:
    """A non-empty list of `item`; a single value stands for a list of one."""
    return Annotated[list[item], MinLen(1), BeforeValidator(_listed)]


Count = Annotated[int, Ge(1), Le(2**31)]
Seconds = Annotated[float, Gt(0), Le(1e7)]
Knobs = dict[str, dict[str, Any]]


class Strict(BaseModel):
    """Refuses unknown keys and does not convert types."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)


class TaskOptions(Strict):
    """What a sweep may say about one task: its preset, directions, knobs of the variants, the user's file or folder.

    trial_cpu_s: seconds of processor time a trial, each a training of its own beside the one of the preset's steps.
    """

    preset: str | None = None
    causal: _axis(bool) | None = None  # type: ignore[valid-type]
    file: str | None = None
    trial_cpu_s: Annotated[list[Seconds], BeforeValidator(_listed)] = []
    knobs: Knobs = Field(default_factory=dict)


class Sweep(Strict):
    """The axes a user asks for. Every list is an axis; a single value stands for a list of one."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}$")] = "custom"
    variant: _axis(str) = ["full", "additive", "linear", "sparse", "local", "flash"]  # type: ignore[valid-type]
    workload: _axis(str) = ["block"]  # type: ignore[valid-type]
    pass_: _axis(Literal["forward", "train", "decode"]) = Field(["forward", "train"], alias="pass")  # type: ignore[valid-type]
    seq_len: _axis(Count) = [512, 1024, 2048]  # type: ignore[valid-type]
    causal: _axis(bool) = [True]  # type: ignore[valid-type]
    batch: _axis(Count) = [1]  # type: ignore[valid-type]
    heads: _axis(Count) = [8]  # type: ignore[valid-type]
    kv_heads: _axis(Count) | None = None  # type: ignore[valid-type]
    head_dim: _axis(Count) = [64]  # type: ignore[valid-type]
    value_dim: _axis(Count) | None = None  # type: ignore[valid-type]
    dtype: _axis(Literal["float64", "float32", "bfloat16", "float16"]) = ["float32"]  # type: ignore[valid-type]
    device: _axis(str) = ["auto"]  # type: ignore[valid-type]
    threads: _axis(Annotated[int, Ge(1), Le(1024)]) | None = None  # type: ignore[valid-type]
    seeds: _axis(Annotated[int, Ge(0), Le(2**62)]) = [0]  # type: ignore[valid-type]
    controls: list[str] = ["none"]
    knobs: Knobs = Field(default_factory=dict)
    tasks: dict[str, TaskOptions] = Field(default_factory=dict)
    rounds: Count = 3
    max_rounds: Count = 10
    precision: Annotated[float, Gt(0)] = 0.02
    budget: Seconds = 60.0
    timeout: Seconds = 600.0
    memory_limit: Annotated[float, Gt(0), Le(1e6)] | None = None

    @field_validator("workload")
    @classmethod
    def _known_workload(cls, value: list[str]) -> list[str]:
        for workload in value:
            if workload.startswith(TASK):
                tasks.find(workload.removeprefix(TASK))
            elif workload not in ("attention", "block", "model", FIDELITY):
                raise unknown("workload", workload, ["attention", "block", "model", FIDELITY, "task:NAME"])
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Sweep:
        for name, options in self.tasks.items():
            task = tasks.find(name)
            if options.preset is not None and options.preset not in task.presets:
                raise unknown(f"preset of task '{name}'", options.preset, task.presets)
            wrong = [causal for causal in options.causal or [] if causal not in task.directions]
            if wrong:
                raise UserError(f"task '{name}' cannot be trained with causal = {str(wrong[0]).lower()}; leave it out")
        for name in {*self.tasks, *(w.removeprefix(TASK) for w in self.workload if w.startswith(TASK))}:
            task, options = tasks.find(name), self.tasks.get(name, TaskOptions())
            preset = task.presets[options.preset or next(iter(task.presets))]
            if reason := task.absent(preset, options.file):
                raise UserError(f"task '{name}': {reason}")
        if "decode" in self.pass_ and set(self.workload) & {"block", "model"}:
            raise UserError("pass decode is measured on the operation alone: use workload = ['attention']")
        for heads, kv_heads in itertools.product(self.heads, self.kv_heads or []):
            if heads % kv_heads:
                raise UserError(f"kv_heads must divide heads={heads}, got {kv_heads}")
        return self

    def digest(self) -> str:
        """Short hash of the axes; names the default output folder."""
        axes = self.model_dump(mode="json", by_alias=True, exclude=LIMITS)
        return _digest(axes)[:8]


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
        return _digest(self.model_dump(mode="json", by_alias=True))[:16]

    @cached_property
    def series(self) -> str:
        """Key of all cells that differ from this one in length alone."""
        axes = self.model_dump(mode="json", by_alias=True, exclude={"seq_len", "key_len"})
        return _digest(axes)

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


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def preset_names() -> list[str]:
    """The names of the shipped presets."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def read_sweep(name: str, overrides: dict[str, Any]) -> Sweep:
    """The sweep of a preset or a TOML file with the given axes replaced; UserError names the first thing wrong.

    An override of `knobs` or `tasks` is merged into the table, any other replaces its axis. An overridden knob is
    overridden in tasks too.
    """
    path = PRESETS / f"{name}.toml" if name in preset_names() else Path(name)
    if not path.is_file():
        raise unknown("sweep", name, [*preset_names(), "a path to a .toml file"])
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"'{path}' is not valid TOML: {error}") from error
    values.setdefault("name", path.stem)
    for table in values.get("tasks", {}).values():
        if isinstance(table, dict) and isinstance(table.get("knobs"), dict):
            table["knobs"] = _merged(table["knobs"], overrides.get("knobs", {}))
    return make_sweep(_merged(values, overrides))


def make_sweep(values: dict[str, Any]) -> Sweep:
    """A Sweep from plain values, or a UserError of one line."""
    try:
        return Sweep.model_validate(values)
    except ValidationError as error:
        raise _first_problem(error) from error


def _merged(values: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    merged = dict(values)
    for key, value in overrides.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _first_problem(error: ValidationError) -> UserError:
    problem = error.errors()[0]
    path = [part for part in problem["loc"] if isinstance(part, str) and not part.startswith(("function-", "list["))]
    cause = problem.get("ctx", {}).get("error")
    if isinstance(cause, UserError):
        return cause
    if problem["type"] == "extra_forbidden":
        model = TaskOptions if path[0] == "tasks" and len(path) > 2 else Sweep
        valid = [field.alias or name for name, field in model.model_fields.items()]
        return unknown("key", ".".join(path), valid) if len(path) == 1 else unknown("key", path[-1], valid)
    message = problem["msg"].replace("Input should", "must")
    return UserError(f"{'.'.join(path)}: {message}, got {problem['input']!r}")


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
        [w for w in sweep.workload if not w.startswith(TASK) and w != FIDELITY],
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
    axes = itertools.product(
        resolve_devices(sweep, devices), sweep.dtype, sweep.causal, sweep.heads, sweep.head_dim, sweep.seq_len
    )
    everyone = [*names, *(name for name in sweep.controls if name not in names)]
    for device, dtype, causal, heads, head_dim, n in axes if FIDELITY in sweep.workload else ():
        for entry, knobs in _variants(everyone, known, sweep.knobs):
            yield Cell(
                variant=entry.name, knobs=knobs, workload=FIDELITY, batch=1, heads=heads, kv_heads=heads,
                head_dim=head_dim, value_dim=head_dim, seq_len=n, key_len=n, causal=causal, dtype=dtype,
                device=device, threads=(sweep.threads or [threads])[0], seed=sweep.seeds[0], environment=environment,
                source_hash=source_hash(entry.name, registry.MEASURING), source=entry.source(),
                control=entry.name not in names,
            )  # fmt: skip


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
        chosen = _merged(sweep.knobs, options.knobs)
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
        for values in itertools.product(*map(_listed, given.values())):
            yield entry, registry.resolve_knobs(entry, dict(zip(given, values, strict=True)))
