"""bench.launch and bench.worker: whatever a worker does, its request gets a reply and the next one is not touched."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench import registry, rows
from bench.cells import Cell, cells
from bench.launch import Launcher
from bench.sweep import make_sweep

HERE = Path(__file__).parent
SERVICES = {"forkserver", "resource_tracker"}  # what multiprocessing keeps for the next worker


@pytest.fixture(scope="module")
def launcher():
    with Launcher() as made:
        yield made


def cell(path: str, n: int = 256, pass_: str = "forward", **more: Any) -> Cell:
    values = {
        "variant": [path],
        "workload": ["attention"],
        "seq_len": [n],
        "pass": [pass_],
        "heads": [2],
        "head_dim": [16],
    }
    known = registry.entries([path] if registry.is_file(path) else [])
    return cells(make_sweep({**values, **more}), known, devices=["cpu"], threads=1, environment="e")[0]


def request(of: Cell, **more: Any) -> dict[str, Any]:
    return {"function": "measure", "cell": rows.cell_data(of), "decompose": True, "budget_s": 0.05, **more}


def test_an_honest_plugin_is_measured(launcher: Launcher, plugin) -> None:
    reply = launcher.call(request(cell(plugin("honest"))), timeout_s=60)
    assert reply["status"] == "ok"
    assert reply["samples_s"]
    assert reply["memory"]["peak_bytes"] > 2 * 256 * 256 * 4
    assert "aten::bmm" in reply["kernels"]


@pytest.mark.parametrize(
    ("name", "status", "told"),
    [
        ("aborts", "crashed", "killed by signal 6 (SIGABRT)"),
        ("killed", "crashed", "killed by signal 9 (SIGKILL)"),
        ("exits", "crashed", "exit code 3 and no result"),
        ("raises", "error", "KeyError: 'a bug in the plugin'"),
        ("greedy", "oom", "allocate"),
        ("pretends", "fallback", "flash_attention did not run"),
        ("broken_import_late", "error", "No such file"),
    ],
)
def test_d17_a_plugin_that_dies_costs_its_request_only(
    launcher: Launcher, plugin, name: str, status: str, told: str
) -> None:
    of = cell(plugin("honest" if name.startswith("broken") else name))
    if name.startswith("broken"):  # the file vanished between the reading of the sweep and the measurement
        of = of.model_copy(update={"source": {**of.source, "path": "/nowhere/mine.py"}})
    reply = launcher.call(request(of), timeout_s=60)
    assert reply["status"] == status
    assert told in reply["reason"]
    assert "\n" not in reply["reason"]
    assert launcher.call(request(cell(plugin("honest"))), timeout_s=60)["status"] == "ok"


def test_f10_a_hang_is_a_timeout_and_leaves_no_process(launcher: Launcher, plugin) -> None:
    reply = launcher.call(request(cell(plugin("hangs"))), timeout_s=1.5)
    assert reply["status"] == "timeout"
    assert reply["reason"] == "not done after 1.5 s"
    deadline = time.monotonic() + 10
    while busy := [
        p
        for p in psutil.Process().children(recursive=True)
        if not SERVICES & set(" ".join(p.cmdline()).replace(".", " ").split())
    ]:
        assert time.monotonic() < deadline, busy
        time.sleep(0.05)


def test_what_a_dead_worker_started_does_not_outlive_it(launcher: Launcher, plugin) -> None:
    reply = launcher.call(request(cell(plugin("leaves_child"))), timeout_s=60)
    assert "SIGABRT" in reply["reason"]
    deadline = time.monotonic() + 10
    while any(p.info["cmdline"] == ["sleep", "317"] for p in psutil.process_iter(["cmdline"])):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("threads", [1, 2])
def test_b22_a_cell_runs_with_its_own_thread_count(launcher: Launcher, plugin, threads: int) -> None:
    reply = launcher.call(request(cell(plugin("tells_threads"), threads=[threads])), timeout_s=60)
    assert (reply["status"], reply["reason"]) == ("unsupported", f"threads: {threads}")


def test_a_source_that_changes_during_a_run_is_not_measured(launcher: Launcher, tmp_path: Path, plugin) -> None:
    path = tmp_path / "mine.py"
    path.write_text(Path(plugin("honest")).read_text(encoding="utf-8"), encoding="utf-8")
    of = cell(str(path))
    path.write_text(path.read_text(encoding="utf-8") + "# changed", encoding="utf-8")
    reply = launcher.call(request(of), timeout_s=60)
    assert reply["status"] == "error"
    assert "changed meanwhile; run again" in reply["reason"]


@pytest.mark.parametrize(("name", "pass_"), [("wrong_when_long", "forward"), ("wrong_in_training", "train")])
def test_a_variant_that_is_wrong_only_where_it_is_timed_gets_no_time(launcher: Launcher, plugin, name, pass_) -> None:
    reply = launcher.call(request(cell(plugin(name), n=512, pass_=pass_)), timeout_s=60)
    assert reply["status"] == "incorrect"
    assert "at n=512 the output is off by" in reply["reason"]


def test_a_refusal_of_the_variant_is_unsupported_in_its_own_words(launcher: Launcher, plugin) -> None:
    reply = launcher.call(request(cell(plugin("refuses"), head_dim=[64])), timeout_s=60)
    assert (reply["status"], reply["reason"]) == ("unsupported", "head_dim must be at most 32, got 64")


def test_b21_out_of_memory_under_a_limit_says_what_was_asked(launcher: Launcher) -> None:
    reply = launcher.call(request(cell("full", 8192), memory_limit=2**30), timeout_s=60)
    assert reply["status"] == "oom"
    assert "allocate" in reply["reason"]


def test_d19_b22_process_state_does_not_leak_to_the_next_request(launcher: Launcher, plugin) -> None:
    before = launcher.call({"function": "describe machine"}, timeout_s=60)["environment"]
    honest = request(cell(plugin("honest"), pass_="train"))
    first = launcher.call(honest, timeout_s=60)
    assert launcher.call(request(cell(plugin("meddles"))), timeout_s=60)["status"] in ("ok", "error")
    second = launcher.call(honest, timeout_s=60)
    for name in ("memory", "kernels", "flops"):
        kept = {key: value for key, value in second.items() if key == name}
        assert {key: value for key, value in first.items() if key == name} == kept or name == "memory"
    assert first["memory"]["peak_bytes"] == second["memory"]["peak_bytes"]
    assert launcher.call({"function": "describe machine"}, timeout_s=60)["environment"] == before


def test_b17_memory_of_a_neighbour_does_not_count(launcher: Launcher, plugin) -> None:
    alone = launcher.call(request(cell(plugin("honest"))), timeout_s=60)["memory"]
    neighbour = bytearray(200 * 2**20)
    beside = launcher.call(request(cell(plugin("honest"))), timeout_s=60)["memory"]
    del neighbour
    assert alone["peak_bytes"] == beside["peak_bytes"]
    assert abs(alone["process_peak_bytes"] - beside["process_peak_bytes"]) < 20 * 2**20


def test_b02_the_first_call_of_a_plugin_is_apart(launcher: Launcher, plugin) -> None:
    reply = launcher.call(request(cell(plugin("slow_first")), decompose=False), timeout_s=60)
    assert reply["first_call_s"] >= 0.3
    assert max(reply["samples_s"]) < 0.3


def test_broken_plugins_are_told_apart(launcher: Launcher, plugin) -> None:
    sources = [registry.entries([plugin(name)])[-1].source() for name in ("honest", "broken_import")]
    reply = launcher.call({"function": "try out", "sources": sources}, timeout_s=60)
    assert reply["broken"] == {"honest": None, "broken_import": "RuntimeError: the library libfoo.so is missing"}


def test_unsupported_cells_are_known_before_anything_runs(launcher: Launcher, plugin) -> None:
    wanted = [cell(plugin("refuses"), head_dim=[d]) for d in (16, 64)]
    reply = launcher.call({"function": "costs", "cells": list(map(rows.cell_data, wanted))}, timeout_s=60)
    assert [cost["status"] for cost in reply["costs"]] == ["ok", "unsupported"]
    assert reply["costs"][0]["flops"] == 2 * 256 * 257 // 2 * 2 * 32


def test_workers_end_with_the_process_that_started_them(plugin) -> None:
    script = (
        "import time\nfrom bench.launch import Launcher\nfrom test_launch import cell, request\n"
        f"launcher = Launcher()\njob = launcher.start(request(cell({plugin('hangs')!r})), timeout_s=99)\n"
        "time.sleep(1)\nprint(job.process.pid, flush=True)\ntime.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=HERE)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert psutil.pid_exists(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)
