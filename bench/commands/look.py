"""`list` and `env`: what there is on this machine."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from bench import registry, tasks
from bench.errors import unknown
from bench.launch import Launcher
from bench.prepare import describe_machine
from bench.sweep import preset_names, read_sweep

IMPORT_TIMEOUT_S = 120.0
WIDE = 200


def show_list(what: str) -> None:
    """Print what there is: variants, tasks, presets or devices."""
    shown = {"variants": _variants, "tasks": _tasks, "presets": _presets, "devices": _devices}
    if what not in shown:
        raise unknown("list", what, shown)
    table, notes = shown[what]()
    console = Console(width=None if sys.stdout.isatty() else WIDE)  # a file or a pipe has room for every knob
    console.print(table)
    for note in notes:
        console.print(note, markup=False)


def _variants() -> tuple[Table, list[str]]:
    entries = registry.entries()
    foreign = {entry.name: entry for entry in entries if not entry.origin.startswith("built-in") and not entry.broken}
    failures = _import_failures(list(foreign.values()))
    table = Table("variant", "kind", "time", "memory", "causal", "both ways", "knobs", "what it is")
    notes = registry.near_miss_groups()
    for entry in entries:
        broken = entry.broken or (failures.get(entry.name) if entry.name in foreign else None)
        if broken or entry.claims is None:
            table.add_row(entry.name, "broken", "", "", "", "", "", f"{entry.origin}: {broken}")
            continue
        claims = entry.claims
        knobs = ", ".join(f"{knob.name}={knob.default}" for knob in entry.knobs.values())
        table.add_row(
            entry.name, claims.kind, claims.time, claims.memory, _yes(claims.causal), _yes(claims.bidirectional),
            knobs, entry.summary,
        )  # fmt: skip
    return table, notes


def _import_failures(entries: Sequence[registry.Entry]) -> dict[str, str | None]:
    """Why each plugin cannot be imported; asked in a worker, since the import runs foreign code."""
    if not entries:
        return {}
    with Launcher() as launcher:
        request = {"function": "import plugins", "sources": [entry.source() for entry in entries]}
        reply = launcher.call(request, timeout_s=IMPORT_TIMEOUT_S)
    if reply["status"] != "ok":
        return {entry.name: reply["reason"] for entry in entries}
    broken: dict[str, str | None] = reply["broken"]
    return broken


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _tasks() -> tuple[Table, list[str]]:
    table = Table("task", "presets", "what it is")
    for name in tasks.names():
        task = tasks.find(name)
        table.add_row(name, ", ".join(task.presets), task.summary)
    return table, []


def _presets() -> tuple[Table, list[str]]:
    table = Table("preset", "variants", "workloads", "lengths", "passes")
    for name in preset_names():
        sweep = read_sweep(name, {})
        table.add_row(
            name, ", ".join(sweep.variant), ", ".join(sweep.workload), ", ".join(map(str, sweep.seq_len)),
            ", ".join(sweep.pass_),
        )  # fmt: skip
    return table, []


def _devices() -> tuple[Table, list[str]]:
    with Launcher() as launcher:
        found = describe_machine(launcher)["devices"]
    table = Table("device", "here")
    for name, reason in found.items():
        table.add_row(name, "available" if reason is None else f"not available: {reason}")
    return table, []


def show_environment() -> None:
    """Print the fingerprint of what surrounds a measurement."""
    with Launcher() as launcher:
        facts = describe_machine(launcher)["environment"]
    packages = {f"package {name}": version for name, version in facts.pop("packages").items()}
    table = Table("what", "value")
    for name, value in {**facts, **packages}.items():
        shown = (
            f"{value / 2**30:.1f} GiB" if name == "memory_bytes" else "not available" if value is None else str(value)
        )
        table.add_row(name.removesuffix("_bytes"), shown)
    Console().print(table)
