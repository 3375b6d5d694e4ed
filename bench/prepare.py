"""A sweep made concrete: the cells it means on this machine and what each would cost, before anything is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bench import machine, registry, rows
from bench.cells import Cell, cells
from bench.launch import Launcher
from bench.sweep import Sweep

PLAN_TIMEOUT_S = 120.0


@dataclass
class Prepared:
    """A sweep made concrete on this machine: cells, environment, devices, and the cost of each cell."""

    sweep: Sweep
    cells: list[Cell]
    environment: dict[str, Any]
    devices: dict[str, str | None]
    costs: dict[str, dict[str, Any]] = field(default_factory=dict)


def describe_machine(launcher: Launcher) -> dict[str, Any]:
    """Devices and environment of this machine, asked in a worker so that torch stays out of this process."""
    reply = launcher.call({"function": "describe machine"}, timeout_s=PLAN_TIMEOUT_S)
    if reply["status"] != "ok":
        raise RuntimeError(f"the machine cannot be described: {reply['reason']}")
    return reply


def prepare(sweep: Sweep, known: Sequence[registry.Entry], launcher: Launcher) -> Prepared:
    """The cells of a sweep with the predicted FLOPs of each; UserError when the sweep is wrong for this registry."""
    facts = describe_machine(launcher)
    found = [name for name, reason in facts["devices"].items() if reason is None]
    made = cells(
        sweep, known, devices=found, threads=machine.default_threads(),
        environment=machine.environment_key(facts["environment"]),
    )  # fmt: skip
    prepared = Prepared(sweep, made, facts["environment"], facts["devices"])
    by_variant: dict[str, list[Cell]] = {}
    for cell in made:
        if not cell.once:
            by_variant.setdefault(cell.variant, []).append(cell)
    for group in by_variant.values():
        prepared.costs.update(_costs(group, prepared.devices, launcher))
    return prepared


def _costs(group: list[Cell], devices: dict[str, str | None], launcher: Launcher) -> dict[str, dict[str, Any]]:
    """Key -> {"status", "flops"} or why the cell cannot run, for the cells of one variant, asked in one worker."""
    costs = {}
    usable = []
    for cell in group:
        reason = devices[cell.device]
        if reason is None:
            usable.append(cell)
        else:
            costs[cell.key] = {"status": "unsupported", "reason": f"device {cell.device} is not available: {reason}"}
    if usable:
        reply = launcher.call(
            {"function": "costs", "cells": list(map(rows.cell_data, usable))}, timeout_s=PLAN_TIMEOUT_S
        )
        answers = reply["costs"] if reply["status"] == "ok" else [reply] * len(usable)
        costs.update({cell.key: answer for cell, answer in zip(usable, answers, strict=True)})
    return costs
