"""Replies of workers -> the row of a cell."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from bench.cells import Cell
from bench.results import Ceiling, Memory, Row, Time
from bench.stats import interval

STABLE = 0.05  # a median change of the samples beyond this share is a drift
OVERHEAD_BOUND = 10  # a call shorter than this many empty calls measures the harness
LONGEST = 500  # characters of a reason
DISAGREE = 4  # an interval that spans more than this factor says nothing
BUSY = 0.05  # of all processors, kept busy by other processes
ENVIRONMENT = ("cpu", "cores", "os", "python", "torch", "cpu_capability", "gpu", "gpu_state", "cuda", "git")


def cell_data(cell: Cell) -> dict[str, Any]:
    """A cell as the plain data a worker takes, its source included."""
    return {**cell.model_dump(mode="json", by_alias=True), "source": cell.source}


def median_of(samples: Sequence[float]) -> float:
    """The figure of one replicate: the median of its samples."""
    return statistics.median(samples)


def _base(cell: Cell, run: str, environment: dict[str, Any]) -> dict[str, Any]:
    axes = cell.model_dump(mode="json", by_alias=True, exclude={"environment", "file", "file_hash"})
    shown = {name: environment.get(name) for name in ENVIRONMENT}
    return {"key": cell.key, "run": run, **axes, "control": cell.control, "environment": shown}


def without_figures(
    cell: Cell, run: str, status: str, reason: str, environment: dict[str, Any], wall_s: float | None = None
) -> Row:
    """The row of a cell that could not be measured; wall_s is None when it was not started."""
    outcome = {
        "status": status,
        "reason": reason[:LONGEST] or "no reason was given",
        "started_at": now(),
        "wall_s": wall_s,
    }
    return Row.model_validate({**_base(cell, run, environment), **outcome})


def now(*, ago_s: float = 0.0) -> str:
    """The time of day for a row, so many seconds ago: UTC, ISO 8601."""
    return (datetime.now(UTC) - timedelta(seconds=ago_s)).isoformat(timespec="seconds")


def measured(
    cell: Cell,
    run: str,
    replies: Sequence[dict[str, Any]],
    stop: str,
    environment: dict[str, Any],
    limits: dict[str, Any] | None,
) -> Row:
    """The row of a timed cell from its replicates: median of medians with a 95 % interval, raw samples kept."""
    medians = [median_of(reply["samples_s"]) for reply in replies]
    median = statistics.median(medians)
    low, high = interval(medians)
    first = replies[0]
    return Row.model_validate({
        **_base(cell, run, environment),
        "status": "ok",
        "flags": flags_of(replies),
        "time": Time(
            median_s=median, low_s=low, high_s=high, replicates=len(replies), stop=stop,
            first_call_s=statistics.median(reply["first_call_s"] for reply in replies),
            overhead_s=statistics.median(reply["overhead_s"] for reply in replies),
            device_s=_device_time(replies),
            others=statistics.median(reply["others"] for reply in replies),
            cache="warm",
            samples_s=[reply["samples_s"] for reply in replies],
        ),
        "tokens_per_s": first["tokens"] / median,
        "flops": first["flops"],
        "ceiling": ceiling_of(cell, first, median, limits),
        "memory": Memory.model_validate(first["memory"]),
        "error": first["error"],
        "kernels": first["kernels"],
        "started_at": first["started_at"],
        "wall_s": sum(reply["wall_s"] for reply in replies),
    })  # fmt: skip


def _device_time(replies: Sequence[dict[str, Any]]) -> float | None:
    if not all(reply["device_s"] for reply in replies):
        return None
    return statistics.median(median_of(reply["device_s"]) for reply in replies)


def ceiling_of(cell: Cell, reply: dict[str, Any], median_s: float, limits: dict[str, Any] | None) -> Ceiling | None:
    """How near the cell came to what the device can do; None when the limits could not be measured."""
    if limits is None:
        return None
    memory = reply["memory"]
    existing = memory["inputs_bytes"] + memory["params_bytes"]
    moved = existing * (2 if cell.pass_ == "train" else 1) + memory["output_bytes"]
    flops_per_s = None if reply["flops"] is None else reply["flops"] / median_s
    shares = {"memory": moved / median_s / limits["bytes_per_s"]}
    if flops_per_s is not None:
        shares["compute"] = flops_per_s / limits["flops_per_s"]
    nearer = max(shares, key=lambda name: shares[name])
    return Ceiling(
        flops_per_s=limits["flops_per_s"], bytes_per_s=limits["bytes_per_s"], achieved_flops_per_s=flops_per_s,
        achieved_bytes_per_s=moved / median_s, share=shares[nearer], nearer=nearer,
    )  # fmt: skip


def flags_of(replies: Sequence[dict[str, Any]]) -> list[str]:
    """What is odd about a cell: what most of its replicates show, so that one unlucky process is not a finding."""
    flags = []
    if abs(statistics.median(reply["trend"] for reply in replies)) > STABLE:
        flags.append("drifting")
    if 2 * sum(reply["stable"] for reply in replies) < len(replies):
        flags.append("warm-up not stable")
    if statistics.median(median_of(reply["samples_s"]) / reply["overhead_s"] for reply in replies) < OVERHEAD_BOUND:
        flags.append("overhead-bound")
    low, high = interval([median_of(reply["samples_s"]) for reply in replies])
    if low is not None and high is not None and high > DISAGREE * low:
        flags.append("replicates disagree")
    if statistics.median(reply["others"] for reply in replies) > BUSY:
        flags.append("busy machine")
    slowdowns = Counter(name for reply in replies for name in reply.get("slowdowns", []))
    flags += [f"throttled: {name}" for name, count in slowdowns.items() if 2 * count > len(replies)]
    return flags


def once(cell: Cell, run: str, reply: dict[str, Any], environment: dict[str, Any]) -> Row:
    """The row of a cell that is done once: the accuracy of a training or the errors of its numbers, or its status."""
    if reply["status"] != "ok":
        return without_figures(cell, run, reply["status"], reply["reason"], environment, reply.get("wall_s"))
    return Row.model_validate({
        **_base(cell, run, environment),
        "status": "ok",
        "accuracy": reply.get("accuracy"),
        "error": reply.get("error"),
        "started_at": now(ago_s=reply["wall_s"]),
        "wall_s": reply["wall_s"],
    })  # fmt: skip
