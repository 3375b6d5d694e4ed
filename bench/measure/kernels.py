"""What really ran: the operators and kernels of one call, and every allocation they made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from bench import machine


@dataclass(frozen=True)
class Profile:
    """One profiled call. operators: names in order of first use. deltas: bytes allocated (+) and freed (-) on the
    CPU in order of time, from the allocator's own events, those inside fused operators included."""

    operators: list[str]
    deltas: list[int]


def profile_call(call: Callable[[], Any], device: str) -> Profile:
    """Run the call once under the profiler; its result stays alive until the end."""
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    with profile(activities=activities, profile_memory=True) as profiler:
        result = call()
        machine.synchronize(device)
    del result
    assert profiler.profiler is not None and profiler.profiler.kineto_results is not None
    events = sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    operators = dict.fromkeys(event.name() for event in events if event.name() != "[memory]")
    on_cpu = torch._C._autograd.DeviceType.CPU
    deltas = [event.nbytes() for event in events if event.name() == "[memory]" and event.device_type() == on_cpu]
    return Profile([name for name in operators if not name.startswith(("[", "PyTorch"))], deltas)


def missing(operators: Sequence[str], runs: Sequence[str]) -> list[str]:
    """The name fragments a variant stands for that appear in no operator that ran."""
    return [fragment for fragment in runs if not any(fragment in name for name in operators)]
