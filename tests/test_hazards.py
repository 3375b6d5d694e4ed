"""Whole runs over plugins that mislead a benchmark: each has the right figure, or the right status and flag."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from bench import machine
from bench.commands.run import run
from bench.results import Row, read_run

resource = pytest.importorskip("resource")
MIB = 2**20
ODD = {"warm-up not stable", "drifting", "replicates disagree"}
OPTIONS: dict[str, Any] = {"dry_run": False, "fresh": False, "rerun_failed": False, "command": "python -m bench run"}
SMALL: dict[str, Any] = {
    "workload": ["attention"], "heads": [2], "head_dim": [16], "seq_len": [256], "pass": ["forward"], "threads": [1],
    "budget": 8.0, "timeout": 5.0, "causal": [True],
}  # fmt: skip


def measure(out: Path, *plugins: str, **more: Any) -> tuple[int, dict[str, Row]]:
    code = run("quick", {**SMALL, "variant": list(plugins), **more}, out=str(out), **OPTIONS)
    rows, notes = read_run(out)
    assert notes == []
    return code, {row.variant: row for row in rows}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Row]:
    """One run over all of them."""
    folder = Path(__file__).parent / "plugins"
    names = (
        "honest", "slow_first", "slow_start", "slows", "unstable", "hidden", "returns_early", "meddles", "aborts",
        "killed", "hangs",
    )  # fmt: skip
    code, found = measure(tmp_path_factory.mktemp("hazards") / "run", *(str(folder / f"{name}.py") for name in names))
    assert code == 1  # some failed
    assert set(found) == set(names)
    return found


def test_b02_a_slow_first_call_is_apart(rows: dict[str, Row]) -> None:
    time = rows["slow_first"].time
    assert time is not None and time.first_call_s is not None and time.median_s is not None
    assert time.first_call_s >= 0.3
    assert time.median_s < 0.1


def test_b04_twenty_slow_calls_are_warmed_past_or_flagged(rows: dict[str, Row]) -> None:
    row = rows["slow_start"]
    assert row.time is not None and row.time.median_s is not None
    assert 0.005 <= row.time.median_s < 0.008 or "warm-up not stable" in row.flags


def test_b23_slowing_by_one_percent_a_call_is_flagged(rows: dict[str, Row]) -> None:
    assert rows["slows"].status == "ok"
    assert "drifting" in rows["slows"].flags


def test_b24_where_no_sample_is_stable_the_row_says_so_and_keeps_them(rows: dict[str, Row]) -> None:
    row = rows["unstable"]
    assert row.status == "ok"
    assert ODD & set(row.flags)
    assert row.time is not None
    assert len(row.time.samples_s) == row.time.replicates >= 3
    assert all(row.time.samples_s)


def test_b01_what_returns_before_its_work_is_done_gets_no_time(rows: dict[str, Row]) -> None:
    row = rows["returns_early"]
    assert (row.status, row.time) == ("incorrect", None)


def test_b12_memory_freed_within_the_call_is_in_the_peak(rows: dict[str, Row]) -> None:
    hidden, honest = rows["hidden"].memory, rows["honest"].memory
    assert hidden is not None and honest is not None
    assert hidden.peak_bytes is not None and honest.peak_bytes is not None
    assert hidden.peak_bytes >= 64 * MIB > honest.peak_bytes


def test_b22_what_one_plugin_changes_in_its_process_reaches_no_other_cell(rows: dict[str, Row], tmp_path: Path) -> None:
    _, alone = measure(tmp_path / "run", str(Path(__file__).parent / "plugins" / "honest.py"))
    beside, memory = rows["honest"], alone["honest"].memory
    assert rows["meddles"].status in ("ok", "error")
    assert (beside.threads, beside.dtype, beside.environment) == (1, "float32", alone["honest"].environment)
    assert memory is not None and beside.memory is not None
    assert beside.memory.peak_bytes == memory.peak_bytes


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("aborts", "crashed", "SIGABRT"),
        ("killed", "crashed", "SIGKILL"),
        ("hangs", "timeout", "not done after 5 s"),
    ],
)
def test_d17_a_plugin_that_dies_costs_its_own_cell(rows: dict[str, Row], name: str, status: str, reason: str) -> None:
    assert rows[name].status == status
    assert reason in (rows[name].reason or "")
    assert rows["honest"].status == "ok"


def test_b08_the_cache_policy_is_in_the_record_and_equal_for_all(rows: dict[str, Row]) -> None:
    assert {row.time.cache for row in rows.values() if row.time is not None} == {"warm"}


def test_b31_tokens_per_second_count_positions(rows: dict[str, Row], tmp_path: Path) -> None:
    _, found = measure(tmp_path / "run", "flash", batch=[4])
    time = found["flash"].time
    assert time is not None and time.median_s is not None
    assert found["flash"].tokens_per_s == pytest.approx(4 * 256 / time.median_s)


def test_b36_an_arm_that_attends_to_padding_is_stopped_before_it_is_timed(tmp_path: Path) -> None:
    path = tmp_path / "sees_padding.py"
    source = (Path(__file__).parent / "plugins" / "honest.py").read_text(encoding="utf-8")
    path.write_text(source.replace("& key_mask[:, None, None]", "| key_mask[:, None, None]"), encoding="utf-8")
    assert path.read_text(encoding="utf-8") != source
    _, found = measure(tmp_path / "run", str(path))
    assert (found["sees_padding"].status, found["sees_padding"].time) == ("incorrect", None)


@pytest.mark.skipif(machine.keep_freed_memory() is None, reason="the C library is not glibc")
def test_freed_memory_is_kept_so_that_page_faults_do_not_come_and_go() -> None:
    machine.set_process_state(1, 0)
    faults = []
    for _ in range(5):  # the heap may have to grow first
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(10):
            torch.ones(4 * MIB)  # 16 MiB, 4096 pages
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    assert min(faults) < 4096  # 28,000 where each block comes fresh from the system
