"""bench.nvidia: what the driver tells, and nothing where there is no library, no driver or no GPU."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench import nvidia


class NoAnswer(Exception):
    """What the library raises."""


def refuse(*arguments: Any) -> Any:
    raise NoAnswer


def library(**functions: Any) -> Any:
    """A driver's library; what is not given cannot be answered."""
    names = (
        "nvmlInit", "nvmlDeviceGetHandleByUUID", "nvmlSystemGetDriverVersion", "nvmlDeviceGetEnforcedPowerLimit",
        "nvmlDeviceGetMaxClockInfo", "nvmlDeviceGetCurrentClocksThrottleReasons",
    )  # fmt: skip
    return SimpleNamespace(NVMLError=NoAnswer, **{**dict.fromkeys(names, refuse), **functions})


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch):
    """Pretends that torch sees one GPU with this UUID, and that the given library is installed."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid="1234"))

    def install(**functions: Any) -> None:
        opens = {"nvmlInit": lambda: None, "nvmlDeviceGetHandleByUUID": {b"GPU-1234": "handle"}.get}
        monkeypatch.setitem(sys.modules, "pynvml", library(**{**opens, **functions}))

    return install


def test_a_gpu_is_described_by_its_driver(gpu) -> None:
    gpu(
        nvmlSystemGetDriverVersion=lambda: "570.1",
        nvmlDeviceGetEnforcedPowerLimit={"handle": 350_000}.get,
        nvmlDeviceGetMaxClockInfo=lambda handle, kind: {("handle", 1): 1980}[handle, kind],
    )
    assert nvidia.describe() == {"driver": "570.1", "power_cap_w": 350.0, "sm_clock_mhz": 1980}


def test_what_one_gpu_cannot_tell_is_null(gpu) -> None:
    gpu(nvmlSystemGetDriverVersion=lambda: "570.1")
    assert nvidia.describe() == {"driver": "570.1", "power_cap_w": None, "sm_clock_mhz": None}
    assert nvidia.slowdowns() == []


def test_b23_what_holds_a_gpu_back_is_named_and_idling_is_not(gpu) -> None:
    gpu(nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x1 | 0x4 | 0x40)
    assert nvidia.slowdowns() == ["power cap", "hardware thermal slowdown"]


def test_without_a_library_a_driver_or_a_gpu_there_is_nothing_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # importing it is an ImportError
    assert (nvidia.describe(), nvidia.slowdowns()) == (None, [])
    monkeypatch.setitem(sys.modules, "pynvml", library())
    assert (nvidia.describe(), nvidia.slowdowns()) == (None, [])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setitem(sys.modules, "pynvml", library(nvmlInit=lambda: None))
    assert (nvidia.describe(), nvidia.slowdowns()) == (None, [])
