"""`report`, `export` and `compare --out page.html` as a user calls them."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, browser
from rows import INFO, cost, quick_run, read_csv, score, write_run

from bench.commands.compare import run_compare
from bench.results import Row, Time


def bench(*words: object) -> list[str]:
    return [sys.executable, "-m", "bench", *map(str, words)]


@pytest.mark.parametrize("command", ["report", "compare"])
def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path, command: str) -> None:
    """`| head -1`: no traceback, and the exit code is that of the command."""
    folder = write_run(tmp_path / "run", quick_run(), INFO)
    words = [folder, "--format", "csv"] if command == "report" else [folder, folder]
    with subprocess.Popen(bench(command, *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as done:
        assert done.stdout is not None and done.stderr is not None
        assert done.stdout.readline()
        done.stdout.close()
        told = done.stderr.read()
    assert done.returncode == 0
    assert "Traceback" not in told and "BrokenPipe" not in told


def test_export_writes_the_rows_and_says_where(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", quick_run(), INFO)
    done = subprocess.run(
        bench("export", folder, "--out", tmp_path / "out"), capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [str(tmp_path / "out" / name) for name in ("cells.csv", "tables.csv")]
    lines = read_csv(tmp_path / "out" / "cells.csv")
    assert len(lines) == len(quick_run())
    assert {"time.median_s", "memory.peak_bytes", "tokens_per_s", "ceiling.flops_per_s"} <= lines[0].keys()
    units = {line["table"]: line["unit"] for line in read_csv(tmp_path / "out" / "tables.csv") if line["value"]}
    assert units | {"time": "ms", "memory": "MiB", "throughput": "tokens/s"} == units


# The page of verdicts

HERE = {
    "cpu": "Made-up CPU",
    "cores": 2,
    "os": "Linux",
    "python": "3.11.2",
    "torch": "2.13.0",
    "cpu_capability": "AVX2",
}


def timed(variant: str, n: int, ms: float, **changes: Any) -> Row:
    samples = [[ms / 1e3 * factor] * 3 for factor in (0.99, 0.995, 1.0, 1.005, 1.01)]
    time = Time(median_s=ms / 1e3, replicates=5, samples_s=samples)
    return cost(variant, n, **{"time": time, "environment": HERE, "source_hash": "a", **changes})


@pytest.fixture
def runs(tmp_path: Path) -> tuple[str, str]:
    before = [timed("full", 512, 10), timed("x", 512, 20), timed("gone", 512, 5), timed("<b>&", 512, 7)]
    after = [timed("full", 512, 20), timed("x", 512, 10), timed("new", 512, 5), timed("<b>&", 512, 7)]
    before.append(score("full", 0.9, environment=HERE))
    after.append(score("full", 0.5, environment=HERE))
    folders = []
    for name, rows in (("before", before), ("after", after)):
        folders.append(str(write_run(tmp_path / name, rows, {**INFO, "run": name, "environment": HERE})))
    return folders[0], folders[1]


def test_compare_writes_a_page_when_the_file_is_one(runs: tuple[str, str], tmp_path: Path) -> None:
    path = tmp_path / "verdicts.html"
    assert run_compare(*runs, out=str(path)) == 1
    page = path.read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert "<h1>after against the baseline before</h1>" in page
    for verdict in ("slower", "vanished", "worse"):
        assert f'<td class="worse">{verdict}</td>' in page
    assert '<td class="better">faster</td>' in page
    assert "&lt;b&gt;&amp; n=512" in page and "<b>&" not in page
    pictures = re.findall(r'role="img" aria-label="([^"]*)"', page)
    assert len(pictures) == page.count("<svg") == 3
    assert "full n=512 2" in pictures[0]
    assert "x n=512 0.5" in pictures[0]
    assert "gone" not in pictures[0]  # it has no ratio
    assert "full -0.4" in pictures[2]
    assert run_compare(*runs, out=str(tmp_path / "again.html")) == 1
    assert (tmp_path / "again.html").read_bytes() == path.read_bytes()


def test_the_figures_on_the_page_are_those_of_the_verdicts(runs: tuple[str, str], tmp_path: Path) -> None:
    run_compare(*runs, out=str(tmp_path / "v.json"))
    run_compare(*runs, out=str(tmp_path / "v.html"))
    verdicts = json.loads((tmp_path / "v.json").read_text(encoding="utf-8"))["verdicts"]
    page = (tmp_path / "v.html").read_text(encoding="utf-8")
    slower = next(found for found in verdicts if found["verdict"] == "slower")
    assert math.isclose(slower["ratio"], 2.0)
    for name in ("baseline", "new", "ratio"):
        assert f'data-value="{slower[name]}"' in page


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_the_page_of_verdicts_in_a_browser(runs: tuple[str, str], tmp_path: Path) -> None:
    path = tmp_path / "verdicts.html"
    run_compare(*runs, out=str(path))
    with browser() as page:
        for dark in (False, True):
            page.look(width=390, dark=dark)
            page.open(path)
            assert page.run("document.documentElement.scrollWidth") <= 390
        page.run("document.querySelector('thead th:nth-child(2) button').click()")
        order = page.run("[...document.querySelector('tbody').rows].map((row) => row.cells[1].textContent)")
        figures = [float(text) for text in order if text != "-"]
        assert figures == sorted(figures)
        assert order[len(figures) :] == ["-"] * (len(order) - len(figures))
        assert page.complaints == []
        assert page.requests == []
