"""How much memory a call needs: one accounting for all variants, in bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from bench import machine
from bench.measure.kernels import Profile
from bench.results import Memory


def tensor_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the storages behind the tensors, each storage once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def peak_of(deltas: Sequence[int]) -> int:
    """Highest running total of allocations (+) and frees (-): peak above what was live before."""
    return max(accumulate(deltas, initial=0))


def measure_peak(call: Callable[[], Any], device: str, profile: Profile) -> tuple[int | None, str | None]:
    """(peak bytes of one call, None) or (None, why it cannot be had) on this device.

    CPU: from the allocator events of an already profiled call. CUDA: from the allocator's statistics after a reset.
    """
    if device == "cpu":
        return peak_of(profile.deltas), None
    if device == "cuda":
        return _allocator_peak(call), None
    return None, f"device {device} has no peak memory counter"


def cold_peak(call: Callable[[], Any], device: str) -> int | None:
    """Run the first call of this process; its peak bytes on CUDA, work spaces of libraries included, None elsewhere."""
    if device != "cuda":
        call()
        return None
    torch.cuda.empty_cache()
    return _allocator_peak(call)


def _allocator_peak(call: Callable[[], Any]) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = call()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    del result
    return peak


def process_peak(call: Callable[[], Any]) -> tuple[int | None, str | None]:
    """(resident high-water mark of this process during the call above its idle mark, None) or (None, reason)."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError as error:
        return None, f"the system does not reset a process's high-water mark ({error.strerror})"
    idle = machine.process_bytes("VmRSS")
    result = call()
    peak = machine.process_bytes("VmHWM") - idle
    del result
    return max(peak, 0), None


def saved_bytes(forward: Callable[[], Any], existing: Iterable[torch.Tensor]) -> int:
    """Bytes a forward call keeps for the backward, beyond the tensors that existed before it."""
    known = {tensor.untyped_storage().data_ptr() for tensor in existing}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = forward()
    del result
    return sum(kept.values())


def measure_memory(
    call: Callable[[], Any],
    forward: Callable[[], torch.Tensor],
    *,
    inputs: Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    train: bool,
    device: str,
    profile: Profile,
    cold_peak_bytes: int | None = None,
) -> Memory:
    """The whole decomposition of one cell; what cannot be had is None with a reason."""
    reasons = {}
    peak, why = measure_peak(call, device, profile)
    if why:
        reasons["peak_bytes"] = why
    high_water, why = process_peak(call)
    if why:
        reasons["process_peak_bytes"] = why
    if not train:
        reasons["saved_bytes"] = "nothing is kept for a backward in this pass"
    output = forward()
    output_bytes = output.numel() * output.element_size()
    del output
    machine.synchronize(device)
    return Memory(
        inputs_bytes=tensor_bytes(inputs),
        params_bytes=tensor_bytes(params),
        output_bytes=output_bytes,
        saved_bytes=saved_bytes(forward, [*inputs, *params]) if train else None,
        peak_bytes=peak,
        cold_peak_bytes=cold_peak_bytes,
        process_peak_bytes=high_water,
        reasons=reasons,
    )
