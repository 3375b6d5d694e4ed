"""`list` and `env`: what there is on this machine."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.table import Column, Table

from bench import registry, tasks
from bench.errors import unknown
from bench.launch import Launcher
from bench.prepare import describe_machine
from bench.screen import Screen
from bench.sweep import preset_names, read_sweep
from bench.variant import Claims

IMPORT_TIMEOUT_S = 120.0
WIDE = 200


def show_list(what: str) -> None:
    """Print what there is: variants, tasks, presets or devices."""
    shown = {"variants": _variants, "tasks": _tasks, "presets": _presets, "devices": _devices}
    if what not in shown:
        raise unknown("list", what, shown)
    table, notes = shown[what]()
    console = Screen(
        markup=False, width=None if sys.stdout.isatty() else WIDE
    )  # a file or a pipe has room for every knob
    console.print(table)
    for note in notes:
        console.print(note, markup=False)


def _variants() -> tuple[Table, list[str]]:
    entries = registry.entries()
    broken, refused = _tried_out([entry for entry in entries if not entry.broken])
    heads = ("variant", "kind", "time", "memory", "does", "knobs", "what it is", "paper", "here")
    table = Table(*(Column(head, overflow="fold") for head in heads))  # what to install is read to its end
    for entry in entries:
        why = entry.broken or broken.get(entry.name)
        if why or entry.claims is None:
            table.add_row(entry.name, "broken", "", "", "", "", f"{entry.origin}: {why}", "", "no")
            continue
        claims = entry.claims
        knobs = ", ".join(f"{knob.name}={knob.default}" for knob in entry.knobs.values())
        reason = refused.get(entry.name)
        table.add_row(
            entry.name, claims.kind, claims.time, claims.memory, _abilities(claims), knobs, entry.summary,
            claims.paper, "yes" if reason is None else f"no: {reason}",
        )  # fmt: skip
    return table, registry.near_miss_groups()


def _abilities(claims: Claims) -> str:
    """What a variant supports, in a few words."""
    able = {
        "causal": claims.causal, "both ways": claims.bidirectional, "cross": claims.cross, "padding": claims.key_mask,
        "grouped heads": claims.grouped, "decode": claims.decode,
    }  # fmt: skip
    return ", ".join(name for name, yes in able.items() if yes)


def _tried_out(entries: Sequence[registry.Entry]) -> tuple[dict[str, str | None], dict[str, str | None]]:
    """(why each variant cannot be imported, why it cannot run here); asked in a worker: building runs its code."""
    with Launcher() as launcher:
        request = {"function": "try out", "sources": [entry.source() for entry in entries]}
        reply = launcher.call(request, timeout_s=IMPORT_TIMEOUT_S)
    if reply["status"] != "ok":
        return {}, {entry.name: reply["reason"] for entry in entries}
    return reply["broken"], reply["refused"]


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
    Screen(markup=False).print(table)
