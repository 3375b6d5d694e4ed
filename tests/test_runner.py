"""bench.runner and `run`: every status, resume after a kill or an interrupt, nothing twice, nothing lost."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench import registry
from bench.cells import cells
from bench.commands.run import run
from bench.errors import UserError
from bench.results import ROWS, read_lines, read_run
from bench.runner import ascending_lengths
from bench.sweep import make_sweep

SMALL = {
    "workload": ["attention"], "heads": [2], "head_dim": [16], "seq_len": [64], "pass": ["forward"], "threads": [1],
    "budget": 5.0, "timeout": 30.0,
}  # fmt: skip
OPTIONS: dict[str, Any] = {"dry_run": False, "fresh": False, "rerun_failed": False, "command": "python -m bench run"}


def do(out: Path, values: dict[str, Any], **options: Any) -> int:
    return run("quick", {**SMALL, **values}, out=str(out), **{**OPTIONS, **options})


def statuses(out: Path) -> dict[tuple[str, int | None], str]:
    return {(row.variant, row.seq_len): row.status for row in read_run(out)[0]}


def keys(out: Path) -> list[str]:
    return [line["key"] for _, line in read_lines(out / ROWS) if line is not None]


def test_a_run_leaves_rows_tables_figures_and_the_page(tmp_path: Path, capsys) -> None:
    out = tmp_path / "run"
    assert do(out, {"variant": ["full", "linear"], "seq_len": [64, 128], "workload": ["block"]}) == 0
    rows, notes = read_run(out)
    assert notes == []
    assert {(row.variant, row.seq_len, row.status) for row in rows} == {
        (variant, n, "ok") for variant in ("full", "linear") for n in (64, 128)
    }
    for row in rows:
        assert row.time is not None and row.memory is not None and row.flops
        assert row.time.median_s and row.time.low_s and row.time.high_s
        assert row.time.low_s <= row.time.median_s <= row.time.high_s
        assert row.time.replicates == len(row.time.samples_s) == 3
        assert row.tokens_per_s == pytest.approx(row.seq_len / row.time.median_s)
        assert row.memory.peak_bytes and row.kernels and row.environment["torch"]
    facts = json.loads((out / "run.json").read_text(encoding="utf-8"))
    assert facts["sweep"]["seq_len"] == [64, 128]
    assert isinstance(facts["order_seed"], int)
    assert {"report.md", "report.html", "figures"} <= {path.name for path in out.iterdir()}
    assert "linear" in capsys.readouterr().out


def test_c07_c08_every_status_stays_in_the_rows_and_only_failures_are_run_again(tmp_path: Path, plugin) -> None:
    out = tmp_path / "run"
    names = ["honest", "refuses", "peeks", "raises", "aborts", "hangs", "greedy", "pretends"]
    values = {"variant": [plugin(name) for name in names], "seq_len": [64, 256, 512], "head_dim": [64], "timeout": 3.0}
    assert do(out, values) == 1
    found = statuses(out)
    assert {found["honest", n] for n in (64, 256, 512)} == {"ok"}
    assert {found["refuses", n] for n in (64, 256, 512)} == {"unsupported"}
    assert {found["peeks", n] for n in (64, 256, 512)} == {"incorrect"}
    assert {found["pretends", n] for n in (64, 256, 512)} == {"fallback"}
    assert (found["raises", 64], found["raises", 256], found["raises", 512]) == ("ok", "error", "error")
    assert (found["aborts", 64], found["aborts", 256], found["aborts", 512]) == ("ok", "crashed", "crashed")
    assert (found["hangs", 64], found["hangs", 256], found["hangs", 512]) == ("ok", "timeout", "skipped")
    assert (found["greedy", 64], found["greedy", 256], found["greedy", 512]) == ("ok", "oom", "skipped")
    rows = {(row.variant, row.seq_len): row for row in read_run(out)[0]}
    assert all(row.reason for row in rows.values() if row.status != "ok")
    assert "n=256 of the same cell was timeout" in (rows["hangs", 512].reason or "")
    assert all(row.time is None for row in rows.values() if row.status != "ok")
    before = keys(out)
    assert do(out, values, rerun_failed=True) == 1
    again = keys(out)[len(before) :]
    failed = {
        row.key for row in rows.values() if row.status in ("error", "crashed", "timeout", "incorrect", "fallback")
    }
    assert set(again) <= failed | {row.key for row in rows.values() if row.status == "skipped"}
    assert failed <= set(again)
    assert statuses(out) == found


def test_c03_a_second_run_measures_nothing_and_adds_no_row(tmp_path: Path) -> None:
    out = tmp_path / "run"
    values = {"variant": ["full"], "seq_len": [32, 64]}
    assert do(out, values) == 0
    first = (out / ROWS).read_bytes()
    assert do(out, values) == 0
    assert (out / ROWS).read_bytes() == first
    assert do(out, values, fresh=True) == 0
    assert len(keys(out)) == 2
    assert (out / f"{ROWS}.old-1").read_bytes() == first


def test_c18_two_sweeps_in_one_folder_are_kept_apart_by_key(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert do(out, {"variant": ["full"], "dtype": ["float32"]}) == 0
    assert do(out, {"variant": ["full"], "dtype": ["float64"]}) == 0
    assert {row.dtype for row in read_run(out)[0]} == {"float32", "float64"}


def test_c29_nothing_measured_is_not_a_success(tmp_path: Path, plugin) -> None:
    assert do(tmp_path / "run", {"variant": [plugin("refuses")], "head_dim": [64]}) == 1
    assert do(tmp_path / "two", {"variant": ["full", plugin("refuses")], "head_dim": [64]}) == 0


def test_a_cell_that_does_not_fit_its_budget_is_skipped_with_the_prediction(tmp_path: Path) -> None:
    out = tmp_path / "run"
    values = {"variant": ["full"], "seq_len": [256, 512, 65536, 131072], "budget": 2.0}
    assert do(out, values) == 0
    found = statuses(out)
    assert [found["full", n] for n in (256, 512, 65536, 131072)] == ["ok", "ok", "skipped", "skipped"]
    reason = next(row.reason for row in read_run(out)[0] if row.seq_len == 65536)
    assert reason is not None
    assert reason.startswith("predicted ")
    assert "exceeds the budget of 2 s a cell; raise --budget" in reason
    before = keys(out)
    assert do(out, values) == 0
    assert keys(out) == before


def test_a_cell_predicted_to_exceed_the_memory_is_oom_and_not_started(tmp_path: Path) -> None:
    out = tmp_path / "run"
    limits = {"memory_limit": 0.2, "budget": 500.0}
    assert do(out, {"variant": ["full"], "seq_len": [64, 4096, 8192], "causal": False, **limits}) == 0
    rows = {row.seq_len: row for row in read_run(out)[0]}
    assert [rows[n].status for n in (64, 4096, 8192)] == ["ok", "oom", "skipped"]
    assert rows[4096].reason == "predicted 0.25 GiB exceeds the memory limit of 0.20 GiB; not started"
    assert "n=4096 of the same cell was oom" in (rows[8192].reason or "")


def test_xformers_on_the_cpu_is_unsupported_in_its_own_words(tmp_path: Path) -> None:
    pytest.importorskip("xformers", reason="xformers has wheels for Linux x86-64 only")
    out = tmp_path / "run"
    assert do(out, {"variant": ["flash"], "knobs": {"flash": {"backend": ["flash", "xformers"]}}}) == 0
    rows = {row.knobs["backend"]: row for row in read_run(out)[0]}
    assert rows["flash"].status == "ok"
    assert rows["xformers"].status == "unsupported"
    assert "cpu" in (rows["xformers"].reason or "")


def test_b34_flash_rows_show_the_kernel_that_ran(tmp_path: Path) -> None:
    assert do(tmp_path / "run", {"variant": ["flash", "full"]}) == 0
    kernels = {row.variant: " ".join(row.kernels) for row in read_run(tmp_path / "run")[0]}
    assert "flash_attention" in kernels["flash"]
    assert "flash_attention" not in kernels["full"]


def test_c16_an_output_that_cannot_be_written_stops_before_the_first_cell(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    file.write_text("mine", encoding="utf-8")
    with pytest.raises(UserError, match="is a file; a run is a folder"):
        do(file, {"variant": ["full"]})
    assert file.read_text(encoding="utf-8") == "mine"
    with pytest.raises(UserError, match="cannot make the folder"):
        do(tmp_path / ("x" * 300), {"variant": ["full"]})


def test_two_runs_do_not_write_into_one_folder(tmp_path: Path) -> None:
    from bench.journal import Journal

    with Journal(tmp_path / "run", fresh=False), pytest.raises(UserError, match="another run is writing"):
        do(tmp_path / "run", {"variant": ["full"]})


def test_a_damaged_replicates_file_or_run_file_costs_what_is_damaged_only(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert do(out, {"variant": ["full"]}) == 0
    (out / ROWS).unlink()
    with (out / "replicates.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"key": "a"}\n{"key": ["a"], "reply": {}}\nhalf a li')
    (out / "run.json").write_text("[]", encoding="utf-8")
    assert do(out, {"variant": ["full"]}) == 0
    (row,) = read_run(out)[0]
    assert row.time is not None
    assert row.time.replicates == 3


def command(out: Path, *more: str) -> list[str]:
    flags = (
        "--budget 2 --workload attention --heads 2 --head-dim 16 --pass forward --threads 1 --variant full,linear,none"
    )
    lengths = ["--seq-len", "16,32,48,64"]
    return [sys.executable, "-m", "bench", "run", "quick", *flags.split(), *lengths, "--out", str(out), *more]


def wait_for(path: Path, lines: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while not path.exists() or path.read_bytes().count(b"\n") < lines:
        assert process.poll() is None, "the run ended too early"
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_c01_c05_kill_minus_nine_loses_only_the_replicate_in_flight(tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = subprocess.Popen(command(out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(out / "replicates.jsonl", 29, process)  # of 12 cells in 3 rounds: some cells are finished, most are not
    process.kill()
    process.wait()
    kept = (out / "replicates.jsonl").read_bytes()
    done = set(keys(out)) if (out / ROWS).exists() else set()
    assert subprocess.run(command(out), capture_output=True).returncode == 0
    assert (out / "replicates.jsonl").read_bytes().startswith(kept)
    assert (out / "replicates.jsonl").read_bytes().count(b"\n") == 36
    found = keys(out)
    assert done <= set(found)
    assert len(found) == len(set(found)) == 12
    undisturbed = cells(
        make_sweep({
            "variant": ["full", "linear", "none"], "workload": ["attention"], "seq_len": [16, 32, 48, 64],
            "pass": ["forward"], "heads": [2], "head_dim": [16], "threads": [1],
        }),
        registry.entries(), devices=["cpu"], threads=1, environment="e",
    )  # fmt: skip
    assert {(row.variant, row.seq_len) for row in read_run(out)[0]} == {(c.variant, c.seq_len) for c in undisturbed}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_is_done_and_a_second_run_goes_on(tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "run"
    heard = partial(signal.signal, number, signal.SIG_DFL)  # a suite started with & would pass on that it ignores ^C
    process = subprocess.Popen(command(out), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, preexec_fn=heard)
    wait_for(out / "replicates.jsonl", 5, process)
    process.send_signal(number)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"interrupted; what was done is kept" in told
    assert b"Traceback" not in told
    rows = read_run(out)[0]
    assert len(rows) >= 5
    assert {row.time.stop for row in rows if row.time} == {"interrupted"}
    assert (out / "report.html").exists()
    assert subprocess.run(command(out), capture_output=True).returncode == 0
    rows = read_run(out)[0]
    assert len(rows) == 12
    assert {row.time.replicates for row in rows if row.time} == {3}


@pytest.mark.skipif(os.name != "posix" or not hasattr(os, "geteuid") or os.geteuid() != 0, reason="mounting needs root")
def test_c19_a_full_disk_is_one_line_and_the_run_goes_on_after_space_is_made(tmp_path: Path) -> None:
    if shutil.which("mount") is None:
        pytest.skip("no mount command")
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24k", "tmpfs", str(small)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        out = small / "run"
        done = subprocess.run(command(out), capture_output=True, text=True)
        assert done.returncode == 1
        assert "the disk is full; free some space and run the same command again" in done.stderr
        assert "Traceback" not in done.stderr
        subprocess.run(["mount", "-o", "remount,size=64m", str(small)], check=True)
        assert subprocess.run(command(out), capture_output=True).returncode == 0
        assert len(read_run(out)[0]) == 12
        assert len(set(keys(out))) == len(keys(out)) == 12
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_order_is_random_but_short_lengths_of_a_series_come_first() -> None:
    sweep = make_sweep({"variant": ["full", "flash", "none"], "seq_len": [512, 64, 128, 256], "pass": ["forward"]})
    made = cells(sweep, registry.entries(), devices=["cpu"], threads=1, environment="e")
    orders = [ascending_lengths(made, random.Random(seed)) for seed in range(5)]
    for order in orders:
        assert sorted(c.key for c in order) == sorted(c.key for c in made)
        for variant in ("full", "flash", "none"):
            assert [c.seq_len for c in order if c.variant == variant] == [64, 128, 256, 512]
    assert len({tuple(c.key for c in order) for order in orders}) > 1
    assert ascending_lengths(made, random.Random(3)) == orders[3]
