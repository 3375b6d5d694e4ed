"""What the device can do at most: a large matrix product and a large copy, measured, never taken from a data sheet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from bench.machine import Watch
from bench.measure.time import sample

SIDES = {"cpu": 2048, "cuda": 8192, "mps": 4096}  # of the square matrices: large enough to be bound by arithmetic
COPY_BYTES = {"cpu": 2**28, "cuda": 2**31, "mps": 2**29}  # far beyond any cache
REPEATS = 5


@dataclass(frozen=True)
class Limits:
    """flops_per_s of a matrix product; bytes_per_s of a copy, what is read and what is written both counted."""

    flops_per_s: float
    bytes_per_s: float


def measure_limits(device: str, dtype: str) -> Limits:
    """The best of a few calls of each, on this device and dtype, with the thread count of this process."""
    kind, side = getattr(torch, dtype), SIDES[device]
    a, b = (torch.full((side, side), 0.5, dtype=kind, device=device) for _ in range(2))
    out = torch.empty_like(a)
    product_s = _best(lambda: torch.mm(a, b, out=out), device)
    source = torch.ones(COPY_BYTES[device], dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    copy_s = _best(lambda: target.copy_(source), device)
    return Limits(2 * side**3 / product_s, 2 * source.numel() / copy_s)


def _best(call: Callable[[], Any], device: str) -> float:
    watch = Watch(device)
    sample(call, watch, 1)
    return min(sample(call, watch, 1)[0] for _ in range(REPEATS))
