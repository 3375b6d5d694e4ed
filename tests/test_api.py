"""`from bench import Sweep, run, read_results`: what a notebook uses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rows import INFO, cost, score, write_run

import bench
from bench import Sweep, read_results, run
from bench.errors import UserError

TINY = {"variant": ["full"], "workload": ["attention"], "seq_len": [16, 32], "heads": [2], "head_dim": [8]}
QUICK = {"pass_": ["forward"], "device": ["cpu"], "rounds": 1, "max_rounds": 1, "budget": 60.0}


def test_public_names_are_there_and_load_no_torch() -> None:
    code = "import sys, bench\nassert 'pandas' not in sys.modules\n"
    code += "from bench import Sweep, run, read_results, __version__\nassert 'torch' not in sys.modules\n"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert dir(bench) == sorted(bench.__all__)
    with pytest.raises(AttributeError, match=r"no attribute 'runs' \(public: Sweep,"):
        bench.runs  # noqa: B018


def test_a_sweep_gives_a_tidy_table_and_resumes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sweep = Sweep(**TINY, **QUICK)
    found = run(sweep, out=tmp_path / "run")
    assert set(found["status"]) == {"ok"}
    assert sorted(zip(found["variant"], found["seq_len"], strict=True)) == [("full", 16), ("full", 32)]
    assert (found["time.median_s"] > 0).all()
    assert (found["memory.peak_bytes"] > 0).all()
    assert capfd.readouterr().out == ""  # the table is what it returns
    assert (tmp_path / "run" / "report.html").is_file()
    again = run(sweep, out=tmp_path / "run")
    assert list(again["started_at"]) == list(found["started_at"])
    told = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))["command"]
    names: dict[str, object] = {}
    exec(told.split("; ")[0], names)
    assert eval(told.split("; run(")[1][:-1], names) == sweep  # what the page says runs the same sweep again


def test_a_preset_with_axes_replaced(tmp_path: Path) -> None:
    found = run("quick", out=tmp_path, **{**TINY, "seq_len": 16}, **QUICK)
    assert list(found["pass"]) == ["forward"]
    assert list(found["seq_len"]) == [16]


def test_mistakes_stop_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown key 'seq_lens'; did you mean 'seq_len'"):
        run("quick", seq_lens=[16], out=tmp_path / "run")
    with pytest.raises(UserError, match="got a Sweep and seq_len: put them there"):
        run(Sweep(**TINY), seq_len=[16], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_results_of_one_or_more_runs_are_read_as_they_are(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", [cost("full", ms=12.5), score("x", 0.75)], INFO)
    b = write_run(tmp_path / "b", [cost("full", status="oom")], INFO)
    one, both = read_results(a), read_results([str(a), b])
    assert list(one["variant"]) == ["full", "x"]
    assert one["time.median_s"][0] == 0.0125
    assert one["accuracy.value"][1] == 0.75
    assert list(both["status"]) == ["ok", "ok", "oom"]
