"""The report: right tables, nothing mixed, nothing filled in, no claim beyond the rows."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from rows import INFO, MIB, cost, html, markdown, quick_run, read_csv, score, shown, write_run

from bench import report
from bench.errors import UserError
from bench.report.answer import short_answer
from bench.report.digits import Estimate, number, plus_minus, rounded
from bench.report.document import Document, read_document
from bench.report.tables import Cell, Table, leaders
from bench.results import FAILED, Ceiling, Gap, Memory, Row, Time
from bench.stats import interval

TEXT_ONLY = ("md", "html", "csv")


def document(tmp_path: Path, *rows: Row, info: dict[str, Any] | None = INFO) -> Document:
    return read_document(write_run(tmp_path / "run", rows, info))


def table(found: Document, kind: str, section: int = 0) -> Table:
    return next(table for table in found.sections[section].tables if table.kind == kind)


def cell(found: Table, label: str, column: str) -> Cell:
    return dict(found.rows)[label][found.columns.index(column)]


def texts(found: Table, label: str) -> list[str]:
    return [cell.text for cell in dict(found.rows)[label]]


# Figures in words and digits


@pytest.mark.parametrize(
    ("value", "text"), [(0.012345, "0.0123"), (1.2345, "1.23"), (12.345, "12.3"), (1234.5, "1,234"), (0, "0")]
)
def test_three_significant_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_digits_follow_the_interval() -> None:
    assert plus_minus(Estimate(12.3456, 12.3426, 12.3476)) == "12.35 ±<0.01"
    assert plus_minus(Estimate(12.3, 11.9, 12.6)) == "12.3 ±0.4"
    assert plus_minus(Estimate(12.3)) == "12.3"
    assert rounded(52_345.6) == "52,300"


def test_leaders_are_the_best_and_all_that_overlap_it() -> None:
    figures = {"a": Estimate(10, 9, 11), "b": Estimate(11.5, 10.9, 12), "c": Estimate(13, 12.5, 14)}
    assert leaders(figures, higher_is_better=False) == ["a", "b"]
    assert leaders(figures, higher_is_better=True) == ["c"]
    assert leaders({}, higher_is_better=True) == []


# Tables


def test_b21_oom_shows_its_status_and_is_left_out_of_means(tmp_path: Path) -> None:
    rows = [cost("full", n, ms=10) for n in (512, 1024)]
    rows += [cost("x", 512, ms=5), cost("x", 1024, status="oom", reason="asked for 12.0 GiB of 8.0 GiB")]
    found = document(tmp_path, *rows)
    for kind in ("time", "memory", "throughput", "speedup"):
        lost = cell(table(found, kind), "x", "1024")
        assert lost.text == "oom"
        assert lost.estimate is None
    assert cell(table(found, "speedup"), "x", "mean").text == "2.00× (1 of 2, 1 failed)"
    assert found.sections[0].reasons == ("x at 1024: oom – asked for 12.0 GiB of 8.0 GiB",)


def test_b37_baseline_is_one_and_faster_is_more(tmp_path: Path) -> None:
    speed_up = table(document(tmp_path, cost("full", ms=10), cost("x", ms=5)), "speedup")
    assert cell(speed_up, "x", "512").text == "2.00×"
    assert cell(speed_up, "full", "512").text == "1.00×"
    assert speed_up.title == "Speed-up over full"


def test_b39_mean_says_over_how_many_and_how_many_failed(tmp_path: Path) -> None:
    rows = [cost("full", n, ms=10) for n in (512, 1024, 2048)]
    rows += [cost("x", 512, ms=5), cost("x", 1024, ms=20), cost("x", 2048, status="error")]
    mean = cell(table(document(tmp_path, *rows), "speedup"), "x", "mean")
    assert mean.text == "1.00× (2 of 3, 1 failed)"
    assert mean.estimate is not None
    assert math.isclose(mean.estimate.value, 1.0)


def test_c25_means_are_over_lengths_that_all_share(tmp_path: Path) -> None:
    rows = [cost("full", n, ms=10) for n in (512, 1024, 2048, 4096)]
    rows += [cost("half", n, ms=10) for n in (512, 1024)]
    rows += [cost("x", n, ms=10 if n < 2048 else 1) for n in (512, 1024, 2048, 4096)]
    speed_up = table(document(tmp_path, *rows), "speedup")
    assert cell(speed_up, "x", "mean").text == "1.00× (2 of 4)"
    assert cell(speed_up, "half", "mean").text == "1.00× (2 of 4, 2 not run)"
    assert "share (512, 1024)" in speed_up.caption
    assert texts(speed_up, "half")[2:4] == ["not run", "not run"]


def test_b46_causal_over_bidirectional_beside_that_of_the_flops(tmp_path: Path) -> None:
    def both(name: str, n: int, ms: float, flops: int, **changes: Any) -> list[Row]:
        wide = Time(median_s=0.01, replicates=2, stop="budget", samples_s=[[0.0099], [0.0101]])
        seconds = [[ms / 1e3 * 0.99], [ms / 1e3 * 1.01]]
        narrow = Time(median_s=ms / 1e3, replicates=2, stop="budget", samples_s=seconds)
        return [
            cost(name, n, causal=False, flops=1000, time=wide),
            cost(name, n, causal=True, **({"flops": flops, "time": narrow} | changes)),
        ]

    rows = [*both("skips", 512, 5.5, 501), *both("masks", 512, 10, 501), *both("masks", 1024, 10, 501, status="oom")]
    found = document(tmp_path, *rows)
    assert [section.cells.group.causal for section in found.sections] == [False, True]
    assert not [table for table in found.sections[0].tables if table.kind == "directions"]
    ratios = table(found, "directions", 1)
    half = 0.55 * (1.01 / 0.99), 0.55 * (0.99 / 1.01)  # the extremes; the interval of two replicates is wider
    shown = cell(ratios, "skips", "512")
    assert re.fullmatch(r"0\.55× \[.* to .*\] \(0\.50\)", shown.text)
    assert shown.estimate is not None
    assert shown.estimate.low is not None
    assert shown.estimate.high is not None
    assert shown.estimate.low < half[1] < 0.55 < half[0] < shown.estimate.high
    assert cell(ratios, "masks", "512").text.startswith("1.00×")
    assert cell(ratios, "masks", "1024").text == "oom"
    assert cell(ratios, "skips", "1024").text == "not run"


def test_a_ratio_needs_the_baseline_at_that_length(tmp_path: Path) -> None:
    rows = [cost("full", 512), cost("full", 1024, status="oom"), cost("x", 512), cost("x", 1024)]
    speed_up = table(document(tmp_path, *rows), "speedup")
    assert cell(speed_up, "x", "1024") == Cell("–")
    no_base = document(tmp_path, cost("x"), cost("y"))
    assert [found.kind for found in no_base.sections[0].tables] == ["time", "memory", "throughput"]


def test_b44_causal_is_never_beside_bidirectional(tmp_path: Path) -> None:
    found = document(tmp_path, cost("full", causal=True, ms=5), cost("full", causal=False, ms=10))
    assert [section.cells.group.causal for section in found.sections] == [False, True]
    assert ["bidirectional" in found.heading(s) for s in found.sections] == [True, False]
    for section in found.sections:
        assert [found.kind for found in section.tables][:2] == ["time", "memory"]  # always side by side
        assert all(len(found.rows) == 1 for found in section.tables)


@pytest.mark.parametrize(
    "change",
    [
        {"device": "cuda"}, {"dtype": "bfloat16"}, {"pass_": "train"}, {"workload": "attention"}, {"batch": 2},
        {"heads": 4}, {"kv_heads": 2}, {"head_dim": 32}, {"value_dim": 32}, {"threads": 1}, {"compile": True},
        {"seed": 1}, {"key_len": 2048},
    ],
)  # fmt: skip
def test_what_changes_figures_makes_a_table_of_its_own(tmp_path: Path, change: dict[str, Any]) -> None:
    found = document(tmp_path, cost("full"), cost("full", **change))
    assert len(found.sections) == 2
    assert len({(found.heading(s), s.cells.group.shape) for s in found.sections}) == 2
    assert len({section.cells.slug for section in found.sections}) == 2


def test_b45_units_are_binary_and_growth_is_fitted(tmp_path: Path) -> None:
    rows = [cost("full", 8192, peak=4.085 * 1024), cost("full", 16384, peak=16.107 * 1024)]
    found = document(tmp_path, *rows)
    memory = table(found, "memory")
    assert memory.unit == "MiB"
    assert "2^20 bytes" in memory.caption
    assert texts(memory, "full") == ["4,183", "16,494"]
    assert texts(table(found, "growth"), "full")[2:] == ["n^1.98", "n^2"]


def test_memory_is_read_back_from_bytes(tmp_path: Path) -> None:
    row = cost("full", memory=Memory(peak_bytes=1032 * MIB))
    assert texts(table(document(tmp_path, row), "memory"), "full") == ["1,032"]


def test_no_memory_counter_gives_no_figure_and_its_reason(tmp_path: Path) -> None:
    row = cost("full", memory=Memory(reasons={"peak_bytes": "mps has no counter"}))
    found = document(tmp_path, row)
    assert texts(table(found, "memory"), "full") == ["n/a"]
    assert found.sections[0].reasons == ("full at 512: no peak memory – mps has no counter",)


def test_c27_lengths_are_sorted_as_numbers(tmp_path: Path) -> None:
    found = document(tmp_path, *(cost("full", n) for n in (1024, 128, 2048, 256, 512)))
    assert table(found, "throughput").columns == ("128", "256", "512", "1024", "2048")


def test_decode_stands_under_its_context_length(tmp_path: Path) -> None:
    found = document(tmp_path, *(cost("full", 1, key_len=n, pass_="decode") for n in (1024, 512)))
    assert table(found, "throughput").columns == ("512", "1024")


def test_c08_partly_unsupported_grid_keeps_every_cell(tmp_path: Path) -> None:
    rows = [cost("full", n) for n in (512, 1024)]
    rows += [cost("none-at-all", n, status="unsupported", reason="causal only") for n in (512, 1024)]
    rows += [cost("some", 512), cost("some", 1024, status="unsupported", reason="head_dim must be at most 32, got 64")]
    found = document(tmp_path, *rows)
    assert texts(table(found, "throughput"), "none-at-all") == ["unsupported", "unsupported"]
    assert found.sections[0].reasons == (
        "none-at-all at 512, 1024: unsupported – causal only",
        "some at 1024: unsupported – head_dim must be at most 32, got 64",
    )
    assert cell(table(found, "speedup"), "some", "mean").text == "1.00× (1 of 2, 1 unsupported)"
    assert "unsupported" in shown(tmp_path / "run")


def test_c30_one_replicate_has_no_interval(tmp_path: Path) -> None:
    rows = [cost("full", spread=None, replicates=1), cost("x", ms=20, spread=None, replicates=1)]
    found = document(tmp_path, *rows)
    assert texts(table(found, "time"), "full") == ["10.0"]
    assert "full at 512 (10.0 ms, one replicate, no interval)" in "".join(found.answer[0])
    for path in report.write(tmp_path / "run", formats=TEXT_ONLY):
        assert not re.search(r"\b(nan|null|None)\b", path.read_text(encoding="utf-8")), path


def measured(variant: str, n: int, ms: float, half: float = 0.01, **changes: Any) -> Row:
    """A cell with three replicates around its median."""
    samples = [[ms / 1e3 * factor] * 3 for factor in (1 - half, 1, 1 + half)]
    low, high = interval([one[0] for one in samples])
    time = Time(median_s=ms / 1e3, low_s=low, high_s=high, replicates=3, samples_s=samples)
    return cost(variant, n, ms=ms, time=time, **changes)


def test_c30_growth_is_left_out_with_one_length(tmp_path: Path) -> None:
    kinds = [found.kind for found in document(tmp_path, cost("full")).sections[0].tables]
    assert "growth" not in kinds


def test_b46_exponents_have_an_interval_and_stand_beside_what_is_declared(tmp_path: Path) -> None:
    lengths = (512, 1024, 2048, 4096)
    rows = [measured("full", n, ms=n**2 / 1e5, peak=64 * n) for n in lengths]
    rows += [measured(name, n, ms=n / 100, peak=n) for n in lengths for name in ("local", "mine")]
    growth = table(document(tmp_path, *rows), "growth")
    assert texts(growth, "full")[:2] == ["n^2.00 ±0.02", "n^2"]
    assert texts(growth, "local")[:3] == ["n^1.00 ±0.02", "n*w", "n^1.00"]
    assert texts(growth, "mine")[1::2] == ["", ""]
    exponent = cell(growth, "full", "time").estimate
    assert exponent is not None and exponent.low is not None and exponent.high is not None
    assert exponent.low < 2 < exponent.high


def test_b41_crossovers_have_an_interval_or_none_in_range(tmp_path: Path) -> None:
    lengths = (512, 1024, 2048, 4096)
    rows = [measured("flash", n, ms=n**2 / 1e5) for n in lengths]
    rows += [measured("local", n, ms=n * 1500 / 1e5) for n in lengths]
    rows += [measured("linear", n, ms=n / 1e4) for n in lengths]
    rows += [measured("full", n, ms=n**2 / 1e4) for n in lengths]
    rows += [measured("twin", n, ms=n**2 / 1e5) for n in lengths]
    found = document(tmp_path, *rows)
    crossovers = table(found, "crossover")
    local = cell(crossovers, "local", "faster than flash")
    assert local.text.startswith("from 1,500 (1,4")
    assert local.estimate is not None and local.estimate.low is not None and local.estimate.high is not None
    assert local.estimate.low < 1500 < local.estimate.high
    for label, text in (("linear", "faster throughout"), ("full", "slower throughout"), ("twin", "not told apart")):
        assert cell(crossovers, label, "faster than flash") == Cell(f"none in range: {text}")
    assert cell(crossovers, "flash", "faster than flash").text == "–"
    told = ["".join(sentence) for sentence in found.answer]
    assert any(one.startswith("Faster than flash, block, forward: local from 1,500 (1,4") for one in told)
    assert not any("linear none" in one for one in told)


def test_a_crossover_without_replicates_is_no_headline(tmp_path: Path) -> None:
    rows = [cost("flash", 512, ms=10), cost("x", 512, ms=20), cost("flash", 2048, ms=40), cost("x", 2048, ms=20)]
    found = document(tmp_path, *rows)
    assert cell(table(found, "crossover"), "x", "faster than flash").text == "from 1,020 (no interval)"
    assert not any("Faster than" in "".join(sentence) for sentence in found.answer)


def test_the_front_of_time_and_memory(tmp_path: Path) -> None:
    rows = [cost("flash", ms=10, peak=10), cost("small", ms=20, peak=5), cost("worse", ms=20, peak=20)]
    crossovers = table(document(tmp_path, *rows, cost("lost", status="oom")), "crossover")
    front = {label: texts(crossovers, label)[1] for label in ("flash", "small", "worse", "lost")}
    assert front == {"flash": "yes", "small": "yes", "worse": "no", "lost": ""}


def test_swept_knobs_name_the_series_and_fixed_ones_stand_below(tmp_path: Path) -> None:
    rows = [cost("local", knobs={"window": w, "sink": 4}) for w in (64, 128)]
    section = document(tmp_path, *rows).sections[0]
    assert [label for label, _ in section.tables[0].rows] == ["local window=128", "local window=64"]
    assert section.notes == ("Knobs: local sink=4.",)


def test_a_figure_whose_replicates_disagree_leads_nobody(tmp_path: Path) -> None:
    wild = cost("wild", ms=5.0).model_copy(
        update={"time": cost("wild").time.model_copy(update={"low_s": 1e-9, "high_s": 9.0})}
    )
    found = document(tmp_path, wild, cost("full", ms=10)).sections[0].tables[0]
    assert texts(found, "wild")[0].endswith("±?")
    assert [label for label, cells in found.rows if cells[0].best] == ["full"]


def test_an_older_row_of_the_same_cell_is_named_not_mixed(tmp_path: Path) -> None:
    old = cost("full", ms=99, key="old", source_hash="a")
    new = cost("full", ms=10, key="new", source_hash="b")
    found = document(tmp_path, old, new)
    assert texts(found.sections[0].tables[0], "full")[0] == "10.0 ±0.2"
    note = "1 older row of another version of the source or of another machine, left out"
    assert note in found.provenance[0].notes


def test_the_row_of_the_source_that_was_run_last_counts(tmp_path: Path) -> None:
    """Changed and changed back: the row written first is the current one. A row without figures counts as well."""
    first, second = cost("full", ms=10, key="first"), cost("full", ms=99, key="second", source_hash="b")
    wrong = cost("full", key="wrong", status="incorrect", reason="off", time=None, started_at=None)
    for planned, told in (("first", "10.0 ±0.2"), ("second", "99.0 ±2.0"), ("wrong", "incorrect")):
        folder = write_run(tmp_path / planned, [first, second, wrong], info={**INFO, "cells": [planned]})
        found = read_document([folder])
        assert texts(found.sections[0].tables[0], "full")[0] == told


def test_flags_are_marked_and_explained(tmp_path: Path) -> None:
    flags = ["overhead-bound", "odd", "throttled: power cap"]
    section = document(tmp_path, cost("full", flags=flags), cost("x")).sections[0]
    assert [cells[0].flagged for _, cells in section.tables[0].rows] == [True, False]
    assert section.notes[0].startswith("† overhead-bound (the call lasts less than 10 times an empty call")
    assert section.notes[1] == "† odd: full at 512."
    assert section.notes[2].startswith("† throttled: power cap (the driver held the clocks of the GPU back")


def test_measured_error_stands_beside_the_time(tmp_path: Path) -> None:
    found = document(tmp_path, cost("full", error={"output": 0.0}), cost("x", error={"output": 0.0123}))
    assert texts(table(found, "error output"), "x") == ["0.0123"]


# Accuracy


def test_accuracy_has_interval_chance_and_control(tmp_path: Path) -> None:
    found = document(tmp_path, score("full", 0.99, half=0.004), score("none", 0.99), score("linear", 0.33))
    accuracy = table(found, "accuracy")
    assert [label for label, _ in accuracy.rows] == ["full", "linear", "none (control)", "chance"]
    assert texts(accuracy, "full") == ["99.0 [98.6, 99.4]", "1", "0.003", "600", "12,345", "0", "6.50"]
    assert texts(accuracy, "chance")[0] == "6.25 (1/16 values)"
    assert "One seed" in accuracy.caption
    assert [cells[0].best for _, cells in accuracy.rows] == [True, False, False, False]  # a control is never best


def test_e20_baselines_of_the_split_and_whole_sequences_stand_in_the_table(tmp_path: Path) -> None:
    row = score("full", 0.61)
    assert row.accuracy is not None
    row.accuracy.baselines, row.accuracy.whole = {"root operator": 0.358, "bag of tokens": 0.4}, 0.125
    accuracy = table(document(tmp_path, row), "accuracy")
    assert [label for label, _ in accuracy.rows] == [
        "full",
        "chance",
        "baseline: bag of tokens",
        "baseline: root operator",
    ]
    assert texts(accuracy, "baseline: root operator")[0] == "35.8"
    assert cell(accuracy, "full", "whole").text == "12.5"
    assert "every scored position is right" in accuracy.caption


def test_seeds_give_their_mean_and_range(tmp_path: Path) -> None:
    rows = [score("full", value, seed=seed) for seed, value in enumerate((0.90, 0.93, 0.99))]
    rows += [
        score("x", 0.95),
        score("x", seed=1, status="diverged", reason="loss is not finite"),
        score("x", 0.97, seed=2),
    ]
    found = document(tmp_path, *rows)
    accuracy = table(found, "accuracy")
    assert texts(accuracy, "full")[:2] == ["94.0 [90.0, 99.0]", "3"]
    assert texts(accuracy, "x")[:2] == ["96.0 [95.0, 97.0]", "2 of 3"]
    assert "lowest and the highest seed" in accuracy.caption
    assert found.sections[0].reasons == ("x at seed 1: diverged – loss is not finite",)
    assert "full and x" in "".join(found.answer[0]).replace("x and full", "full and x")


def test_bits_per_byte_less_is_better(tmp_path: Path) -> None:
    rows = [
        score(name, value, task="text", metric="bits_per_byte", half=0.02)
        for name, value in {"a": 2.5, "b": 2.9}.items()
    ]
    found = document(tmp_path, *rows)
    accuracy = table(found, "accuracy")
    assert texts(accuracy, "a")[0] == "2.500 [2.480, 2.520]"
    assert [cells[0].best for _, cells in accuracy.rows[:2]] == [True, False]
    assert "".join(found.answer[0]).startswith("Best bits per byte, text (tiny): a (2.500")


def test_e20_what_is_no_better_than_reading_little_is_said(tmp_path: Path) -> None:
    rows = [score("full", 0.60), score("local", 0.37), score("mean", 0.36), score("sparse", 0.20)]
    for row in rows:
        assert row.accuracy is not None
        row.accuracy.chance, row.accuracy.baselines = 0.17, {"root operator": 0.358}
        row.accuracy.low, row.accuracy.high = row.accuracy.value - 0.02, row.accuracy.value + 0.02
    (note,) = [note for note in document(tmp_path, *rows).sections[0].notes if "needs no attention" in note]
    assert note == "No better than root operator, which needs no attention (35.8 %): local, mean and sparse."


def test_accuracy_at_other_lengths_is_a_table_of_its_own(tmp_path: Path) -> None:
    by_length = table(document(tmp_path, score("full", by_length={"64": 1.0, "512": 0.25})), "accuracy by length")
    assert by_length.columns == ("64", "512")
    assert texts(by_length, "full") == ["100.0", "25.0"]


def test_accuracy_by_gap_weights_by_count_and_keeps_the_order_of_the_bins(tmp_path: Path) -> None:
    first, second = score("full", by_gap={"9-16": 0.5, "1-8": 1.0, "17-32": None}), score("full", seed=1)
    assert second.accuracy is not None
    second.accuracy.by_gap = [Gap(label="9-16", value=0.8, count=300), Gap(label="17-32", value=None, count=0)]
    by_gap = table(document(tmp_path, first, second), "accuracy by gap")
    assert by_gap.columns == ("9-16", "1-8", "17-32")
    assert texts(by_gap, "full") == ["72.5", "100.0", "n/a"]


def test_task_without_any_score_says_so(tmp_path: Path) -> None:
    found = document(tmp_path, score("full", status="timeout", reason="longer than 60 s"))
    assert texts(table(found, "accuracy"), "full")[0] == "timeout"
    assert "".join(found.answer[0]) == "mqar (tiny): no variant has a score."


# The short answer


def answer(tmp_path: Path, *rows: Row) -> list[str]:
    return ["".join(sentence) for sentence in document(tmp_path, *rows).answer]


def test_answer_names_a_winner_only_where_intervals_are_apart(tmp_path: Path) -> None:
    rows = [cost("full", 512, ms=10), cost("x", 512, ms=10.1), cost("full", 1024, ms=40), cost("x", 1024, ms=20)]
    time, memory = answer(tmp_path, *rows)
    assert time == (
        "Fastest, block, forward: full and x at 512, the same within the intervals (10.0 ±0.2 ms); "
        "x at 1024 (20.0 ±0.4 ms)."
    )
    assert memory == "Least memory, block, forward: full and x from 512 to 1024, the same (64.0 MiB at 1024)."


def test_answer_with_one_variant_compares_nothing(tmp_path: Path) -> None:
    assert answer(tmp_path, cost("full"))[0] == "Fastest, block, forward: only full was measured at 512 (10.0 ±0.2 ms)."


def test_answer_says_which_variants_lack_lengths(tmp_path: Path) -> None:
    time = answer(tmp_path, cost("full"), cost("full", 1024), cost("x"), cost("x", 1024, status="skipped"))[0]
    assert time.endswith(" Not measured at every length: x.")


def test_answer_counts_the_variants_when_many_lack_lengths(tmp_path: Path) -> None:
    rows = [cost("full"), cost("full", 1024), *(cost(f"v{i}") for i in range(5))]
    assert answer(tmp_path, *rows)[0].endswith(" Not measured at every length: 5 of 6 variants.")


def test_answer_names_what_differs_between_groups(tmp_path: Path) -> None:
    found = answer(tmp_path, cost("full"), cost("full", device="cuda"))
    assert found[0].startswith("Fastest, block, forward, cpu: ")
    assert found[2].startswith("Fastest, block, forward, cuda: ")


def test_c29_answer_when_nothing_was_measured(tmp_path: Path) -> None:
    rows = [cost("full", n, status="unsupported") for n in (512, 1024)]
    assert answer(tmp_path, *rows) == ["block, forward: nothing was measured."]
    text = markdown(tmp_path, *rows)
    assert "2 cells: 2 unsupported" in text
    assert short_answer([]) == []


# What the report says about itself


def test_c26_left_out_lines_and_foreign_files_are_listed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [cost("full")], INFO)
    old = json.dumps({"schema": 0, "variant": "full"})
    with (folder / "rows.jsonl").open("ab") as file:
        file.write(f'{old}\n{{"cut short'.encode())
    (folder / "other.json").write_text("{}", encoding="utf-8")
    (folder / "replicates.jsonl").write_text("{}", encoding="utf-8")  # a file of the run, read by nobody here
    (provenance,) = read_document(folder).provenance
    assert provenance.counts == {"ok": 1}
    assert provenance.notes == [
        "rows.jsonl line 2: schema 0 is not 1, left out",
        "rows.jsonl line 3: not a whole JSON object, left out",
        "other.json: not a file of the run, left out",
    ]
    for path in report.write(folder, formats=["md", "html"]):
        assert "schema 0 is not 1" in path.read_text(encoding="utf-8")
    assert "schema 0 is not 1" in shown(folder, width=200)


def test_c26_cells_in_the_report_are_the_cells_of_the_input(tmp_path: Path) -> None:
    rows = quick_run()
    folder = write_run(tmp_path / "run", rows, INFO)
    found = read_document(folder)
    assert sum(found.provenance[0].counts.values()) == len(rows)
    in_sections = [row.key for s in found.sections for line in s.cells.by_label.values() for row in line.values()]
    assert sorted(in_sections) == sorted(row.key for row in rows)


def test_an_unfinished_run_says_how_many_cells_are_missing(tmp_path: Path) -> None:
    (provenance,) = document(
        tmp_path, cost("full"), info={**INFO, "cells": [f"k{i}" for i in range(11)] + [cost("full").key]}
    ).provenance
    assert provenance.notes == ["11 of 12 cells of the sweep have no result yet: the run was not finished"]


@pytest.mark.parametrize("content", [None, b"{", b"[]", b'{"environment": [], "run": null, "sweep": 3, "controls": 7}'])
def test_run_json_may_be_missing_or_odd(tmp_path: Path, content: bytes | None) -> None:
    folder = write_run(tmp_path / "run", [cost("full")])
    if content is not None:
        (folder / "run.json").write_bytes(content)
    (provenance,) = read_document(folder).provenance
    assert provenance.run == "run"
    assert provenance.environment == []
    assert any("run.json" in note for note in provenance.notes) == (content is None or not content.startswith(b'{"'))


def test_environment_command_and_method_are_on_the_page(tmp_path: Path) -> None:
    for text in (markdown(tmp_path, cost("full")), html(tmp_path, cost("full"))):
        for expected in ("python -m bench run quick", "8.0 GiB", "xformers 0.0.35", "Made-up CPU", "seed of the order"):
            assert expected in text
        assert "95 % interval" in text


@pytest.mark.parametrize("status", sorted(FAILED | {"oom", "skipped", "unsupported"}))
def test_c07_every_status_is_shown_and_explained(tmp_path: Path, status: str) -> None:
    rows = [cost("full"), cost("x", status=status, reason=f"because of {status}")]
    for text in (markdown(tmp_path, *rows), html(tmp_path, *rows), shown(tmp_path / "run")):
        assert f"because of {status}" in text
        assert f"1 {status}" in text


def test_runs_are_kept_apart(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", [cost("full", ms=10)], INFO)
    b = write_run(tmp_path / "b", [cost("full", ms=20)], INFO)
    found = read_document([a, b])
    names = ["quick-made-up", "quick-made-up (2)"]
    assert [found.heading(section).split(":")[0] for section in found.sections] == names
    written = report.write([a, b], formats=["csv"], out=tmp_path / "both")
    assert [path.name for path in written] == ["cells.csv", "tables.csv"]
    assert [line["run"] for line in read_csv(written[0])] == names
    with pytest.raises(UserError, match="--out DIR"):
        report.write([a, b])


# What to take


def choices(found: Document, title: str) -> Table:
    return next(table for table in found.choices if table.title == title)


def test_what_to_take_names_the_best_by_length_and_device(tmp_path: Path) -> None:
    rows = [cost("full", 512, ms=10, peak=9), cost("x", 512, ms=10.1, peak=64), cost("y", 512, status="oom")]
    rows += [cost("full", 1024, ms=40), cost("x", 1024, ms=20), cost("full", 1024, ms=1, device="cuda")]
    rows += [score("full", 0.9), score("x", 0.5), score("none", 0.99)]
    found = document(tmp_path, *rows)
    best = choices(found, "Fastest and smallest")
    assert best.columns == ("length", "device", "fastest", "time [ms]", "least memory", "peak [MiB]")
    assert [[cell.text for cell in cells] for _, cells in best.rows] == [
        ["512", "cpu", "full and x", "10.0 ±0.2", "full", "9.00"],
        ["1024", "cpu", "x", "20.0 ±0.4", "full and x", "64.0"],
        ["1024", "cuda", "full", "1.00 ±0.02", "full", "64.0"],
    ]
    ((label, cells),) = choices(found, "Most accurate").rows
    assert label == "mqar (tiny)"
    assert [cell.text for cell in cells] == ["64", "cpu", "full", "90.0 [89.0, 91.0]", "accuracy [%]", "6.25"]


def test_many_that_are_the_same_are_counted(tmp_path: Path) -> None:
    found = document(tmp_path, *(cost(f"v{number}") for number in range(9)))
    assert choices(found, "Fastest and smallest").rows[0][1][2].text == "v0, v1, v2 and 6 more"
    assert "v0, v1, v2, v3 and 5 more at 512, the same" in "".join(found.answer[0])


def test_where_nothing_was_measured_nothing_is_recommended(tmp_path: Path) -> None:
    assert document(tmp_path, cost("full", status="oom"), score("full", status="error")).choices == []


ERRORS = {"output_vs_mean, spread 0.5": 0.9, "output_vs_mean, spread 1": 0.25, "output_vs_mean, spread 2": 0.1}


def fidelity(variant: str, error: dict[str, float | None], n: int = 1024, **changes: Any) -> Row:
    nothing = {"time": None, "memory": None, "tokens_per_s": None}
    return cost(variant, n, workload="fidelity", pass_=None, error=error, **nothing, **changes)


def test_error_and_accuracy_stand_beside_the_speed(tmp_path: Path) -> None:
    rows = [cost("full", ms=20, peak=9), cost("x", ms=10, peak=5), cost("slow", ms=30, peak=99)]
    exact = dict.fromkeys(ERRORS, 1e-7)
    rows += [fidelity("full", exact), fidelity("x", ERRORS), fidelity("slow", dict.fromkeys(ERRORS, 0.5))]
    rows += [score("full", 0.9), score("x", 0.8), score("none", 0.06)]
    found = document(tmp_path, *rows)
    beside = choices(found, "Cost beside quality")
    assert beside.columns == (
        "time at 512 [ms]", "peak at 512 [MiB]", "error at 1024, spread 1", "mqar (tiny) [%]", "on the front of",
    )  # fmt: skip
    assert texts(beside, "x") == ["10.0 ±0.2", "5.00", "0.25", "80.0 [79.0, 81.0]", "error; mqar (tiny)"]
    assert texts(beside, "full")[2:] == ["1e-07", "90.0 [89.0, 91.0]", "error; mqar (tiny)"]
    assert texts(beside, "slow")[2:] == ["0.50", "", ""]
    told = ["".join(sentence) for sentence in found.answer]
    assert any(
        "Nearest to exact attention among those that are not, fidelity at 1024: x (0.25), slow (0.50);" in one
        for one in told
    )


def test_a_task_with_other_knobs_meets_the_timed_variant_when_there_is_one_of_each(tmp_path: Path) -> None:
    rows = [cost("local", knobs={"window": 256}), cost("full")]
    found = document(tmp_path, *rows, score("local", 0.5, knobs={"window": 16}), score("full", 0.9))
    assert texts(choices(found, "Cost beside quality"), "local")[2] == "50.0 [49.0, 51.0]"
    swept = [cost("local", knobs={"window": w}) for w in (128, 256)]
    found = document(tmp_path / "two", *swept, cost("full"), score("local", 0.5, knobs={"window": 16}), score("full"))
    assert texts(choices(found, "Cost beside quality"), "local window=128")[2] == ""


def test_a_device_without_a_memory_counter_has_a_front_of_time_and_quality(tmp_path: Path) -> None:
    rows = [cost("full", ms=20, peak=None), cost("x", ms=10, peak=None), score("full", 0.9), score("x", 0.8)]
    beside = choices(document(tmp_path, *rows), "Cost beside quality")
    assert texts(beside, "x") == ["10.0 ±0.2", "", "80.0 [79.0, 81.0]", "mqar (tiny)"]


def test_two_runs_stand_beside_each_other_and_are_never_mixed(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", [cost("full", ms=10), cost("x", ms=5), score("full", 0.9)], {**INFO, "run": "monday"})
    b = write_run(tmp_path / "b", [cost("full", ms=20), score("full", 0.8)], {**INFO, "run": "friday"})
    found = read_document([a, b])
    beside = choices(found, "Runs beside each other at 512")
    assert beside.columns == ("monday [ms]", "friday [ms]", "monday [MiB]", "friday [MiB]")
    assert texts(beside, "full") == ["10.0 ±0.2", "20.0 ±0.4", "64.0", "64.0"]
    assert texts(beside, "x") == ["5.00 ±0.10", "not run", "64.0", "not run"]
    scores = choices(found, "Runs beside each other")
    assert texts(scores, "full") == ["90.0 [89.0, 91.0]", "80.0 [79.0, 81.0]"]
    assert {label for label, _ in choices(found, "Fastest and smallest").rows} == {
        "block, forward, monday", "block, forward, friday",
    }  # fmt: skip


def test_other_machines_do_not_meet_where_they_measured_different_things(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", [cost("full", 512)], INFO)
    b = write_run(tmp_path / "b", [cost("full", 1024), cost("x", dtype="bfloat16")], INFO)
    assert not [table for table in read_document([a, b]).choices if table.kind == "runs"]


# Controls, checkpoints and limits


def test_a_control_is_what_its_row_or_the_run_says_and_a_variant_that_was_asked_for_is_none(tmp_path: Path) -> None:
    info = {**INFO, "controls": ["none", "full", "mean"], "sweep": {"variant": ["full", "x"]}}
    rows = [score(name, value) for name, value in {"full": 0.9, "x": 0.5, "mean": 0.95, "none": 0.96}.items()]
    rows.append(score("lstm", 0.97, control=True))
    accuracy = table(document(tmp_path, *rows, info=info), "accuracy")
    assert [label for label, _ in accuracy.rows[:5]] == [
        "full", "x", "lstm (control)", "mean (control)", "none (control)",
    ]  # fmt: skip
    assert [cells[0].best for _, cells in accuracy.rows[:5]] == [True, False, False, False, False]


def test_a_second_seed_shows_what_a_seed_changes_and_is_in_no_mean(tmp_path: Path) -> None:
    rows = [score("full", 0.90), score("full", 0.98, seed=1, control=True), score("x", 0.93)]
    section = document(tmp_path, *rows).sections[0]
    assert texts(section.tables[0], "full")[:2] == ["90.0 [89.0, 91.0]", "1"]
    assert "One seed" in section.tables[0].caption
    assert section.notes[0].startswith("What a seed alone changes: full scored 90.0 %, with another seed 98.0 %;")


def test_best_and_last_checkpoint_state_and_steps_are_shown_where_they_are_known(tmp_path: Path) -> None:
    row = score("full", 0.9)
    assert row.accuracy is not None
    row.accuracy.last, row.accuracy.steps_to_99, row.accuracy.state_size = 0.85, 400, 8192
    accuracy = table(document(tmp_path, row, score("x")), "accuracy")
    assert accuracy.columns == (
        "accuracy [%]", "seeds", "last", "rate", "steps", "to 99 %", "params", "extra", "state", "CPU s",
    )  # fmt: skip
    assert texts(accuracy, "full")[2:6] == ["85.0", "0.003", "600", "400"]
    assert [cell(accuracy, "x", column).text for column in ("last", "to 99 %", "state")] == ["n/a"] * 3


def test_share_of_the_limit_where_limits_were_measured(tmp_path: Path) -> None:
    limit = Ceiling(flops_per_s=1e11, bytes_per_s=1e10, share=0.4312, nearer="compute")
    shares = table(document(tmp_path, cost("full", ceiling=limit), cost("x")), "limit")
    assert texts(shares, "full") == ["43.1"]
    assert texts(shares, "x") == ["n/a"]
    estimate = cell(shares, "full", "512").estimate
    assert estimate is not None and estimate.low is not None and estimate.high is not None
    assert math.isclose(estimate.low, 43.12 / 1.02) and math.isclose(estimate.high, 43.12 / 0.98)
    assert not [found for found in document(tmp_path / "b", cost("full")).sections[0].tables if found.kind == "limit"]


def test_an_answer_to_very_many_groups_stays_short(tmp_path: Path) -> None:
    found = document(tmp_path, *(cost("full", batch=batch) for batch in range(1, 31)))
    assert len(found.answer) == 17
    assert "".join(found.answer[-1]) == "And 44 more of this kind: see the tables of what to take."
