"""What only a CUDA device can show: every variant's gate there, the kernels that run, device time and cold memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bench import registry, rows
from bench.cells import Cell, cells
from bench.conformance import Subject, gate
from bench.launch import Launcher
from bench.sweep import make_sweep
from bench.variant import Unsupported

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
ENTRIES = {entry.name: entry for entry in registry.entries()}


@pytest.fixture(scope="module")
def launcher():
    with Launcher() as made:
        yield made


def measure(launcher: Launcher, variant: str, n: int, pass_: str = "forward", **more: Any) -> dict[str, Any]:
    sweep = make_sweep({
        "variant": variant, "workload": "attention", "seq_len": n, "pass": pass_, "device": "cuda",
        "dtype": "bfloat16", "causal": True, **more,
    })  # fmt: skip
    of: Cell = cells(sweep, registry.entries(), devices=["cuda"], threads=1, environment="gpu")[0]
    request = {"function": "measure", "cell": rows.cell_data(of), "decompose": True, "budget_s": 0.2}
    return launcher.call(request, timeout_s=300)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_every_variant_passes_the_gate_or_says_why_it_cannot_run(name: str, dtype: str, causal: bool) -> None:
    cls = registry.load(ENTRIES[name].source())
    try:
        Subject(cls, {}, "cuda", dtype, causal).admit()
    except Unsupported as reason:
        pytest.skip(str(reason))
    findings = gate(cls, {}, device="cuda", dtype=dtype, causal=causal)
    assert not [finding for finding in findings if finding.status == "fail"]


@pytest.mark.parametrize("pass_", ["forward", "train"])
def test_b34_flash_runs_a_flash_kernel(launcher: Launcher, pass_: str) -> None:
    reply = measure(launcher, "flash", 2048, pass_)
    assert reply["status"] == "ok", reply.get("reason")
    assert any("flash" in name for name in reply["kernels"])


def test_b01_device_time_stands_beside_host_time_and_is_no_longer(launcher: Launcher) -> None:
    reply = measure(launcher, "flash", 4096)
    assert reply["status"] == "ok", reply.get("reason")
    assert len(reply["device_s"]) == len(reply["samples_s"])
    assert all(0 < device <= 1.05 * host for device, host in zip(reply["device_s"], reply["samples_s"], strict=True))


def test_naive_softmax_needs_what_is_computed_by_hand_and_at_least_as_much_when_cold(launcher: Launcher) -> None:
    reply = measure(launcher, "full", 4096, dtype="float32")
    assert reply["status"] == "ok", reply.get("reason")
    memory = reply["memory"]
    assert memory["peak_bytes"] >= 2 * 8 * 4096 * 4096 * 4
    assert memory["cold_peak_bytes"] >= memory["peak_bytes"]


def test_b33_causal_flash_grows_linearly(launcher: Launcher) -> None:
    peaks = [measure(launcher, "flash", n)["memory"]["peak_bytes"] for n in (4096, 8192)]
    assert peaks[1] < 2.5 * peaks[0]
