"""The sweep a user asks for: TOML, preset or flags, validated before anything runs."""

from __future__ import annotations

import hashlib
import itertools
import json
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, MinLen
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from bench import kept, tasks
from bench.errors import UserError, unknown

PRESETS = Path(__file__).parent / "sweeps"
TASK = "task:"
FIDELITY = "fidelity"
RECORDED = "fidelity:"  # and the file of a kept model
LIMITS = {"rounds", "max_rounds", "precision", "budget", "timeout", "memory_limit"}  # when to stop, not what to measure


def listed(value: Any) -> Any:
    """A single value stands for a list of one."""
    return value if isinstance(value, list) else [value]


def _axis(item: Any) -> Any:
    """A non-empty list of `item`; a single value stands for a list of one."""
    return Annotated[list[item], MinLen(1), BeforeValidator(listed)]


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
    trial_cpu_s: Annotated[list[Seconds], BeforeValidator(listed)] = []
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
            elif workload.startswith(RECORDED):
                kept.read_about(Path(workload.removeprefix(RECORDED)))
            elif workload not in ("attention", "block", "model", FIDELITY):
                valid = ["attention", "block", "model", FIDELITY, f"{RECORDED}MODEL", "task:NAME"]
                raise unknown("workload", workload, valid)
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
        return digest_of(axes)[:8]


def digest_of(value: Any) -> str:
    """SHA-256 of plain data, whatever the order of its names."""
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
            table["knobs"] = merged(table["knobs"], overrides.get("knobs", {}))
    return make_sweep(merged(values, overrides))


def make_sweep(values: dict[str, Any]) -> Sweep:
    """A Sweep from plain values, or a UserError of one line."""
    try:
        return Sweep.model_validate(values)
    except ValidationError as error:
        raise _first_problem(error) from error


def merged(values: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """The values with the overrides in their place; tables are merged, anything else is replaced."""
    made = dict(values)
    for key, value in overrides.items():
        old = made.get(key)
        made[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return made


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
