"""Device facts and verbs: what there is, how to wait for it, and the fingerprint of what surrounds a measurement."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import json
import os
import platform
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from bench import nvidia

PACKAGES = ("torch", "xformers", "numpy", "triton")
KEPT_BLOCK = 2**25  # bytes; the largest block that glibc keeps, and the threshold it ends at by itself
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # names and numbers of glibc's malloc.h


def devices() -> dict[str, str | None]:
    """Every device the harness knows -> None when it can be used here, else the reason why not. Imports torch."""
    import torch

    found: dict[str, str | None] = {"cpu": None, "cuda": None, "mps": None}
    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        found["cuda"] = "no CUDA device is visible" if built else "this torch build has no CUDA support"
    if not torch.backends.mps.is_available():
        found["mps"] = "no Apple GPU" if sys.platform == "darwin" else "Apple GPUs exist on macOS only"
    return found


def synchronize(device: str) -> None:
    """Wait until the device has done all it was given."""
    import torch

    if device == "cuda":
        torch.cuda.synchronize()
    elif device == "mps":
        torch.mps.synchronize()


class Watch:
    """The device's side of a timing: waiting for it, and its own clock where it has one."""

    def __init__(self, device: str) -> None:
        self.device = device

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        synchronize(self.device)

    def mark(self) -> Any:
        """A point in the device's stream of work; None where the device has no clock of its own."""
        if self.device != "cuda":
            return None
        import torch

        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def between(self, start: Any, stop: Any) -> float | None:
        """Seconds on the device's clock between two marks it has passed."""
        return None if start is None else float(start.elapsed_time(stop)) / 1e3


def default_threads() -> int:
    """Processors this process may use: the thread count of a measurement unless the sweep says another."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_memory(device: str) -> int:
    """Bytes that can still be had on the device (for the CPU: of this machine, or of its control group)."""
    if device == "cuda":
        import torch

        return int(torch.cuda.mem_get_info()[0])
    free = int(psutil.virtual_memory().available)
    limit, used = (_number(Path("/sys/fs/cgroup") / name) for name in ("memory.max", "memory.current"))
    return min(free, limit - used) if limit is not None and used is not None else free


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def process_bytes(field: str) -> int:
    """A size of this process by its name in Linux's /proc/self/status (VmRSS, VmHWM, VmData), in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{field} is not in /proc/self/status")


def set_process_state(threads: int, seed: int) -> None:
    """Put all process-wide state that could change a figure where every replicate has it."""
    import torch

    torch.set_num_threads(threads)
    if hasattr(os, "sched_setaffinity"):  # as many processors as threads, so that no thread wanders
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    torch.set_default_dtype(torch.float32)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.use_deterministic_algorithms(False)
    torch.manual_seed(seed)
    random.seed(seed)
    keep_freed_memory()


def keep_freed_memory() -> str | None:
    """Let the C library keep freed blocks up to 32 MiB for the next call; says so, or None where it has no such switch.

    By default it gives the top of its heap back after some calls and not after others, as chance placed the blocks:
    one and the same call of `full` at n=512 then takes 8 or 16 ms, the rest being page faults. Larger blocks come fresh
    from the system in every call, as in any long-running process.
    """
    name, release = platform.libc_ver()
    if name != "glibc":
        return None
    library = ctypes.CDLL(None)
    done = library.mallopt(M_MMAP_THRESHOLD, KEPT_BLOCK) and library.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    return f"glibc {release}, freed blocks up to {KEPT_BLOCK // 2**20} MiB are kept" if done else None


def fingerprint() -> dict[str, Any]:
    """What surrounds a measurement, as plain data: hardware, system, versions, git state. Imports torch."""
    import torch

    return {
        "cpu": _cpu_model(),
        "cores": psutil.cpu_count(logical=False),
        "threads": default_threads(),
        "memory_bytes": psutil.virtual_memory().total,
        "os": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpu_flags": _cpu_flags(),
        "blas": _build_setting("BLAS_INFO"),
        "allocator": keep_freed_memory(),
        "openmp": torch.backends.openmp.is_available(),  # type: ignore[no-untyped-call]
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "gpu_state": nvidia.describe(),
        "cuda": torch.version.cuda,
        "packages": {name: _version(name) for name in PACKAGES},
        "git": _git_state(),
    }


def environment_key(facts: dict[str, Any]) -> str:
    """Short hash of the facts that can change a figure (not of the git state, which source hashes cover)."""
    parts = {name: value for name, value in facts.items() if name != "git"}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


def _cpu_model() -> str:
    return _cpu_info("model name") or platform.processor() or platform.machine()


def _cpu_flags() -> list[str]:
    """The instruction sets that decide how fast matrix code is."""
    flags = (_cpu_info("flags") or "").split()
    return [flag for flag in flags if flag.startswith(("avx", "amx", "fma", "f16c"))]


def _cpu_info(field: str) -> str | None:
    """A field of the first processor in Linux's /proc/cpuinfo; None where there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.split(":", 1)[1].strip() for line in lines if line.split(":")[0].strip() == field), None)


def _build_setting(name: str) -> str | None:
    """A setting this torch was built with."""
    import torch

    found = re.search(rf"\b{name}=(\w+)", torch.__config__.show())
    return found.group(1) if found else None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git_state() -> str | None:
    """Commit of the source tree, with `-dirty` when files differ from it; None outside a git checkout."""
    root = Path(__file__).parent.parent
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
