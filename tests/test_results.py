"""bench.results: rows are strict JSON, survive a kill, and what cannot be read is told, not dropped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.errors import UserError
from bench.results import (
    ROWS,
    Accuracy,
    Gap,
    Memory,
    Row,
    Time,
    append_line,
    flatten,
    parse_row,
    read_results,
    read_run,
    strict_json,
)


def row(**changes: Any) -> Row:
    values = {
        "key": "k", "run": "r", "variant": "full", "workload": "block", "causal": True, "dtype": "float32",
        "device": "cpu", "seed": 0, "status": "ok", **changes,
    }  # fmt: skip
    return Row.model_validate(values)


def refuse(name: str) -> float:
    raise AssertionError(f"{name} in the file")


def test_c14_no_nan_or_infinity_in_the_file() -> None:
    line = row(time=Time(median_s=float("nan"), samples_s=[[1.0, float("inf")]]), tokens_per_s=float("inf")).to_line()
    value = json.loads(line, parse_constant=refuse)
    assert value["time"]["median_s"] is None
    assert value["time"]["samples_s"] == [[1.0, None]]
    assert value["tokens_per_s"] is None
    assert strict_json({"a": [float("-inf")]}) == '{"a": [null]}'


def test_the_schema_comes_first_and_the_pass_has_its_name() -> None:
    value = json.loads(row(**{"pass": "train"}).to_line())
    assert next(iter(value.items())) == ("schema", 1)
    assert value["pass"] == "train"


def test_a_row_reads_back_equal() -> None:
    made = row(time=Time(median_s=0.1, replicates=1), flags=["drifting"])
    assert parse_row(json.loads(made.to_line())) == made


def test_c03_the_newest_row_of_a_key_wins(tmp_path: Path) -> None:
    for key, status in (("a", "error"), ("b", "ok"), ("a", "ok")):
        append_line(tmp_path / ROWS, row(key=key, status=status).to_line())
    rows, notes = read_run(tmp_path)
    assert [(r.key, r.status) for r in rows] == [("b", "ok"), ("a", "ok")]
    assert notes == []


def test_c19_a_line_cut_by_a_kill_costs_that_line_only(tmp_path: Path) -> None:
    path = tmp_path / ROWS
    append_line(path, row(key="a").to_line())
    with path.open("ab") as file:
        file.write(row(key="b").to_line().encode()[:50])
    append_line(path, row(key="c").to_line())
    rows, notes = read_run(tmp_path)
    assert [r.key for r in rows] == ["a", "c"]
    assert notes == [f"{ROWS} line 2: not a whole JSON object, left out"]


def test_c26_foreign_and_newer_rows_are_told(tmp_path: Path) -> None:
    path = tmp_path / ROWS
    append_line(path, row(key="a").to_line())
    append_line(path, json.dumps({**json.loads(row(key="b").to_line()), "schema": 2}) + "\n")
    append_line(path, json.dumps({**json.loads(row(key="c").to_line()), "colour": "red"}) + "\n")
    append_line(path, '{"hello": 1}\n[1]\nNaN\n')
    rows, notes = read_run(tmp_path)
    assert [r.key for r in rows] == ["a"]
    assert len(notes) == 5
    assert "schema 2 is not 1" in notes[0]
    assert "colour" in notes[1]


def test_a_folder_without_rows_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no rows\.jsonl .*python -m bench run --out"):
        read_run(tmp_path)


def test_flat_columns_exist_whatever_the_row_has(tmp_path: Path) -> None:
    timed, refused = row(key="a", time=Time(median_s=0.5)), row(key="b", status="unsupported", reason="no")
    assert flatten(timed).keys() == flatten(refused).keys()
    append_line(tmp_path / ROWS, timed.to_line() + refused.to_line())
    frame = read_results([tmp_path])
    assert frame["time.median_s"].tolist()[0] == 0.5
    assert frame["time.median_s"].isna().tolist() == [False, True]


def test_the_table_of_results_is_plain(tmp_path: Path) -> None:
    """Numbers are numbers and nothing is nested, so that any tool takes the table as it is."""
    timed = row(
        key="a", knobs={"window": 64, "mode": "fixed"}, flags=["drifting", "busy machine"], kernels=[],
        time=Time(median_s=0.5, samples_s=[[0.5, 0.25]]), memory=Memory(reasons={"peak": "no counter"}),
        error={"output": 0.125, "top1, spread 2": None}, environment={"gpu_state": {"driver": "1"}, "cores": 2},
    )  # fmt: skip
    gaps = [Gap(label="1-8", value=0.75, count=4), Gap(label="9-16")]
    trained = row(
        key="b",
        accuracy=Accuracy(
            metric="accuracy", higher_is_better=True, value=0.5, by_gap=gaps, trials=[{"learning_rate": 0.1}]
        ),
    )
    append_line(tmp_path / ROWS, timed.to_line() + trained.to_line())
    frame = read_results(tmp_path)
    assert not {type(value) for name in frame for value in frame[name]} & {dict, list, Gap}
    first, second = frame.to_dict("records")
    assert first["knobs.window"] == 64
    assert first["flags"] == "drifting; busy machine"
    assert first["kernels"] == ""
    assert first["time.samples_s"] == "[[0.5, 0.25]]"
    assert first["memory.reasons.peak"] == "no counter"
    assert first["environment.gpu_state.driver"] == "1"
    assert second["accuracy.by_gap.1-8"] == 0.75
    assert second["accuracy.trials"] == '[{"learning_rate": 0.1}]'
    numbers = ["time.median_s", "time.device_s", "memory.peak_bytes", "accuracy.value", "error.output", "flops"]
    assert {str(frame[name].dtype) for name in numbers} == {"float64"}  # also where no row has one
    assert frame[numbers].mean().to_dict()["time.median_s"] == 0.5
