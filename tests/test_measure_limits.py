"""bench.measure.limits and load: what the device can do at most, and how busy everybody else is."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
import torch

from bench.cells import Cell
from bench.measure import limits
from bench.measure.load import Load
from bench.rows import ceiling_of


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_limits_are_above_what_ordinary_calls_reach(monkeypatch, dtype: str) -> None:
    monkeypatch.setitem(limits.SIDES, "cpu", 512)
    monkeypatch.setitem(limits.COPY_BYTES, "cpu", 2**24)
    found = limits.measure_limits("cpu", dtype)
    a = torch.ones(128, 128, dtype=getattr(torch, dtype))
    start = time.perf_counter()
    for _ in range(20):
        a @ a
    achieved = 20 * 2 * 128**3 / (time.perf_counter() - start)
    assert found.flops_per_s > achieved / 4
    assert 1e8 < found.bytes_per_s < 1e13


def test_b17_a_busy_neighbour_is_seen_and_own_work_is_not() -> None:
    def spin(seconds: float) -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass

    load = Load()
    spin(0.5)
    alone = load.others()
    code = "import time; end = time.perf_counter() + 3\nwhile time.perf_counter() < end: pass"
    neighbour = subprocess.Popen([sys.executable, "-c", code])
    time.sleep(0.3)
    load = Load()
    time.sleep(1.0)
    beside = load.others()
    neighbour.wait()
    assert 0 <= alone <= 1
    assert beside > 0.5 / (os.cpu_count() or 1)


def cell(pass_: str) -> Cell:
    return Cell.model_validate({
        "variant": "full", "knobs": {}, "workload": "attention", "pass": pass_, "causal": True, "dtype": "float32",
        "device": "cpu", "threads": 1, "seed": 0, "source_hash": "", "environment": "", "source": {},
    })  # fmt: skip


def test_the_share_is_of_the_nearer_limit() -> None:
    memory = {"inputs_bytes": 600, "params_bytes": 200, "output_bytes": 200}
    bounds = {"flops_per_s": 1e9, "bytes_per_s": 1e6}
    found = ceiling_of(cell("forward"), {"flops": 5e5, "memory": memory}, 1e-3, bounds)
    assert found is not None
    assert (found.nearer, found.share) == ("memory", pytest.approx(1.0))  # 1000 bytes a ms against 1000
    assert found.achieved_flops_per_s == pytest.approx(5e8)
    train = ceiling_of(cell("train"), {"flops": None, "memory": memory}, 1e-3, bounds)
    assert train is not None
    assert train.achieved_bytes_per_s == pytest.approx(1.8e6)  # gradients of inputs and parameters are moved too
    assert train.achieved_flops_per_s is None
    assert ceiling_of(cell("forward"), {"flops": 1, "memory": memory}, 1e-3, None) is None
