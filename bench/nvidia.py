"""What NVIDIA's driver tells about the first visible GPU: power cap, clocks, and why it runs slower than it could.

Read through nvidia-ml-py where that is installed; everything is None or empty where it is not, or has no driver.
"""

from __future__ import annotations

import importlib
from typing import Any

SLOWDOWNS = {  # bits of nvmlClocksEventReasons that mean a GPU is held back from outside the work it does
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


def describe() -> dict[str, Any] | None:
    """Driver version, power cap in watts and highest SM clock in MHz of the GPU that torch calls cuda:0."""
    library, gpu = _open()
    if gpu is None:
        return None
    return {
        "driver": _ask(library, "nvmlSystemGetDriverVersion"),
        "power_cap_w": _scaled(_ask(library, "nvmlDeviceGetEnforcedPowerLimit", gpu), 1e-3),
        "sm_clock_mhz": _ask(library, "nvmlDeviceGetMaxClockInfo", gpu, 1),
    }


def slowdowns() -> list[str]:
    """Why the clocks of the GPU are lower than they could be now; ask right after work: idling is no fault."""
    library, gpu = _open()
    mask = None if gpu is None else _ask(library, "nvmlDeviceGetCurrentClocksThrottleReasons", gpu)
    return [name for bit, name in SLOWDOWNS.items() if (mask or 0) & bit]


def _open() -> tuple[Any, Any]:
    """(the library, a handle of the GPU), or (None, None) without library, driver or GPU."""
    try:
        library = importlib.import_module("pynvml")
    except ImportError:
        return None, None
    if _ask(library, "nvmlInit", failed=False) is False:
        return None, None
    import torch

    # torch counts the GPUs that CUDA_VISIBLE_DEVICES leaves, the driver counts all: the UUID names one for both.
    uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}" if torch.cuda.is_available() else ""
    gpu = _ask(library, "nvmlDeviceGetHandleByUUID", uuid.encode()) if uuid else None
    return (library, gpu) if gpu is not None else (None, None)


def _ask(library: Any, function: str, *arguments: Any, failed: Any = None) -> Any:
    """The answer of one function of the driver's library; `failed` where this driver or GPU does not know."""
    try:
        return getattr(library, function)(*arguments)
    except library.NVMLError:
        return failed


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
