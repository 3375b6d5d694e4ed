"""bench.compare, bench.noise and the command: verdicts on made-up rows, rates by simulation from seeded generators."""

from __future__ import annotations

import json
import math
import random
import statistics
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from rows import INFO, cost, score, write_run

from bench import machine, registry
from bench.commands import compare as command
from bench.commands import noise as noise_command
from bench.commands.noise import measure_noise
from bench.compare import Verdict, compare, exit_code, mean_ratio
from bench.errors import UserError
from bench.launch import Launcher
from bench.noise import DEFAULT_SHARE, NoiseFloor, noise_file, read_noise, write_noise
from bench.prepare import prepare
from bench.progress import Progress
from bench.results import Row, Time
from bench.sweep import make_sweep

HERE: dict[str, Any] = {
    "cpu": "Made-up CPU", "cores": 2, "os": "Linux", "python": "3.11.2", "torch": "2.13.0", "cpu_capability": "AVX2",
    "gpu": None, "cuda": None, "git": "0123456789ab",
}  # fmt: skip
STEADY = (-0.01, 0.01, 0.0, 0.005, -0.005)


def timed(
    variant: str = "full", seq_len: int = 512, ms: float = 10.0, *, noise: tuple[float, ...] = STEADY, **changes: Any
) -> Row:
    """A row of replicates with these relative deviations, three samples each."""
    medians = [ms / 1e3 * math.exp(step) for step in noise]
    time = Time(
        median_s=statistics.median(medians),
        replicates=len(medians),
        samples_s=[[0.9 * value, value, 1.3 * value] for value in medians],
    )
    return cost(variant, seq_len, **{"time": time, "environment": HERE, "source_hash": "a", **changes})


def random_row(generator: random.Random, count: int, spread: float, ms: float = 10.0, **changes: Any) -> Row:
    return timed(ms=ms, noise=tuple(generator.gauss(0, spread) for _ in range(count)), **changes)


def times(before: Row | list[Row], after: Row | list[Row], floor: float | None = None) -> list[Verdict]:
    """The verdicts on time alone."""
    rows = [[value] if isinstance(value, Row) else value for value in (before, after)]
    found = compare(*rows, None if floor is None else NoiseFloor(shares={"cpu": floor}))
    return [verdict for verdict in found if verdict.quantity == "time"]


# --- time ---


def test_b37_the_ratio_is_new_over_baseline_and_the_columns_are_not_swapped() -> None:
    (verdict,) = times(timed(ms=10), timed(ms=5))
    assert verdict.verdict == "faster"
    assert (verdict.baseline, verdict.new) == pytest.approx((10e-3, 5e-3))
    assert verdict.ratio == pytest.approx(0.5)
    assert verdict.low is not None and verdict.high is not None
    assert 0.48 < verdict.low < 0.5 < verdict.high < 0.52
    (turned,) = times(timed(ms=5), timed(ms=10))
    assert (turned.verdict, turned.ratio) == ("slower", pytest.approx(2.0))
    (itself,) = times(timed(ms=10), timed(ms=10))
    assert (itself.verdict, itself.ratio) == ("same", 1.0)


@pytest.mark.parametrize(
    ("ms", "noise", "floor", "expected"),
    [
        (10.2, STEADY, None, "same"),  # the whole interval lies within 5 %
        (10.2, STEADY, 0.001, "slower"),  # small, but beyond a floor of 0.1 %
        (10.1, STEADY, 0.001, "unsure"),  # the interval spans that floor
        (11.0, STEADY, None, "slower"),  # the whole interval lies beyond
        (11.0, STEADY, 0.12, "same"),
        (10.6, STEADY, None, "unsure"),  # the interval spans the floor
        (9.0, STEADY, None, "faster"),
        (13.0, (-0.2, 0.0, 0.2), None, "unsure"),  # 30 % within the noise of its replicates
        (10.0, (-0.2, 0.0, 0.2), None, "unsure"),  # no difference, but the replicates cannot tell
    ],
)
def test_a_verdict_is_where_the_interval_lies_to_the_floor(
    ms: float, noise: tuple[float, ...], floor: float | None, expected: str
) -> None:
    (verdict,) = times(timed(ms=10, noise=noise), timed(ms=ms, noise=noise), floor)
    assert verdict.verdict == expected
    assert (verdict.reason is not None) == (expected == "unsure")


def test_the_statistics_of_one_replicate_are_null() -> None:
    (verdict,) = times(timed(ms=10, noise=(0.0,)), timed(ms=90, noise=(0.0,)))
    assert verdict.verdict == "unsure"
    assert verdict.ratio == pytest.approx(9.0)
    assert (verdict.low, verdict.high, verdict.p_value) == (None, None, None)
    assert verdict.reason == "one replicate says nothing about the spread"


def test_a_row_without_its_samples_is_compared_by_its_interval() -> None:
    before, after = cost(ms=10, spread=0.01, environment=HERE), cost(ms=12, spread=0.01, environment=HERE)
    (verdict,) = times(before, after)
    assert verdict.verdict == "slower"
    assert verdict.low is not None and verdict.high is not None
    # Two intervals of ±1 % from two degrees of freedom each: together four, and sqrt(2) times the error.
    half = 0.01 / 4.3027 * math.sqrt(2) * 2.7764
    assert (math.log(verdict.low / 1.2), math.log(verdict.high / 1.2)) == pytest.approx((-half, half), rel=1e-2)
    assert times(cost(spread=None, environment=HERE), after)[0].verdict == "unsure"


def test_many_cells_are_corrected_for() -> None:
    """A difference that is called alone is not called among 200 cells: one of those would show it by chance."""
    noise = (-0.02, 0.0, 0.02)
    before, after = timed(ms=10, noise=noise), timed(ms=11.8, noise=noise)
    (alone,) = times(before, after)
    assert alone.verdict == "slower"
    others = [timed(seq_len=n, noise=noise) for n in range(1000, 1200)]
    among = next(found for found in times([before, *others], [after, *others]) if found.cell["seq_len"] == 512)
    assert among.verdict == "unsure"
    assert (among.low, among.high) == (alone.low, alone.high)
    assert among.p_value is not None and alone.p_value is not None
    assert among.p_value == pytest.approx(201 * alone.p_value)
    assert "not among all figures" in (among.reason or "")


def test_the_same_against_itself_is_never_called_and_often_the_same() -> None:
    generator = random.Random(1)
    calls = Counter(
        times(random_row(generator, 6, 0.015), random_row(generator, 6, 0.015))[0].verdict for _ in range(400)
    )
    assert calls["faster"] + calls["slower"] == 0
    assert calls["same"] > 300


def test_a_family_of_same_cells_rarely_holds_a_false_call_even_without_a_floor() -> None:
    generator = random.Random(2)
    families = 0
    for _ in range(60):
        runs = [[random_row(generator, 5, 0.02, seq_len=n) for n in range(100, 120)] for _ in range(2)]
        families += exit_code(times(*runs, floor=1e-9)) or any(v.verdict == "faster" for v in times(*runs, floor=1e-9))
    assert families <= 6


@pytest.mark.parametrize(("slower", "least", "most"), [(1.10, 95, 100), (1.03, 0, 2)])
def test_ten_per_cent_is_found_and_three_are_not(slower: float, least: int, most: int) -> None:
    generator = random.Random(3)
    pairs = [(random_row(generator, 8, 0.015), random_row(generator, 8, 0.015, ms=10 * slower)) for _ in range(100)]
    calls = Counter(times(*pair)[0].verdict for pair in pairs)
    assert least <= calls["slower"] <= most
    assert calls["faster"] == 0


# --- memory, accuracy ---


@pytest.mark.parametrize(
    ("peak", "expected"),
    [(64.0, "same"), (64.05, "same"), (64.1, "larger"), (65.0, "larger"), (63.9, "smaller"), (0.0, "smaller")],
)
def test_memory_is_exact_beyond_a_thousandth(peak: float, expected: str) -> None:
    found = compare([timed(peak=64.0)], [timed(peak=peak)])
    memory = next(verdict for verdict in found if verdict.quantity == "memory")
    assert memory.verdict == expected
    assert memory.ratio == pytest.approx(peak / 64, abs=1e-6)
    assert exit_code(found) == (expected == "larger")


def test_memory_from_nothing_is_larger_and_has_no_ratio() -> None:
    found = compare([timed(peak=0.0)], [timed(peak=1.0)])
    assert [(v.verdict, v.ratio) for v in found if v.quantity == "memory"] == [("larger", None)]


def test_b15_a_figure_that_went_missing_has_vanished_and_null_in_both_is_no_figure() -> None:
    found = compare([timed(peak=64.0)], [timed(peak=None)])
    assert [verdict.verdict for verdict in found] == ["same", "vanished"]
    assert [verdict.quantity for verdict in compare([timed(peak=None)], [timed(peak=None)])] == ["time"]
    assert [verdict.verdict for verdict in compare([timed(peak=None)], [timed(peak=64.0)])] == ["same", "new"]


@pytest.mark.parametrize(
    ("before", "after", "metric", "expected"),
    [
        (0.90, 0.80, "accuracy", "worse"), (0.80, 0.90, "accuracy", "better"), (0.90, 0.90, "accuracy", "same"),
        (0.90, 0.895, "accuracy", "unsure"),
        (2.5, 2.4, "bits_per_byte", "better"), (2.5, 2.6, "bits_per_byte", "worse"),
    ],
)  # fmt: skip
def test_scores_are_compared_by_their_difference(before: float, after: float, metric: str, expected: str) -> None:
    rows = [score("full", value, metric=metric, environment=HERE) for value in (before, after)]
    (verdict,) = compare(rows[:1], rows[1:])
    assert (verdict.quantity, verdict.verdict) == ("accuracy", expected)
    assert verdict.ratio is None
    assert verdict.difference == pytest.approx(after - before)
    assert exit_code([verdict]) == (expected == "worse")


def test_scores_on_other_data_are_not_comparable() -> None:
    before, after = (score("full", 0.9, environment=HERE) for _ in range(2))
    assert before.accuracy and after.accuracy
    before.accuracy.data, after.accuracy.data = {"sha256": "1"}, {"sha256": "2"}
    with pytest.raises(UserError, match="nothing to compare: other data"):
        compare([before], [after])


# --- exit codes, statuses ---


def lost(status: str, reason: str = "made up", **changes: Any) -> Row:
    return cost(**{"status": status, "reason": reason, "environment": HERE, "source_hash": "a", **changes})


def test_one_cell_that_got_slower_is_enough_for_exit_code_1() -> None:
    assert exit_code(compare([timed(ms=10)], [timed(ms=12)])) == 1
    assert exit_code(compare([timed(ms=12)], [timed(ms=10)])) == 0
    assert exit_code(compare([timed(ms=10)], [timed(ms=10.6)])) == 0


@pytest.mark.parametrize("status", ["oom", "timeout", "incorrect", "fallback", "crashed", "error", "skipped"])
def test_a_cell_that_failed_has_vanished_and_says_why(status: str) -> None:
    found = compare([timed()], [lost(status, "it broke")])
    assert [(v.verdict, v.reason, v.new) for v in found] == [("vanished", f"now {status}: it broke", None)]
    assert found[0].baseline == pytest.approx(10e-3)
    assert exit_code(found) == 1


def test_a_cell_that_is_not_in_the_new_run_has_vanished() -> None:
    found = compare([timed(), timed(seq_len=1024)], [timed()])
    assert [(v.verdict, v.reason) for v in found if v.cell["seq_len"] == 1024] == [("vanished", "not in the new run")]
    assert exit_code(found) == 1


def test_a_cell_that_works_now_is_new_and_two_failures_are_no_figure() -> None:
    before = [timed(), lost("oom", seq_len=1024), lost("oom", seq_len=2048), lost("oom", seq_len=4096)]
    after = [timed(), timed(seq_len=1024), lost("timeout", seq_len=2048), timed(seq_len=9000)]
    found = [verdict for verdict in compare(before, after) if verdict.quantity == "time"]
    told = {verdict.cell["seq_len"]: (verdict.verdict, verdict.reason) for verdict in found}
    assert told == {
        512: ("same", None),
        1024: ("new", "was oom: made up"),
        2048: ("not comparable", "no figure: oom before, timeout now"),
        9000: ("new", "not in the baseline"),
    }
    assert exit_code(found) == 0


def test_b39_the_mean_counts_the_cells_that_failed() -> None:
    before = [timed(seq_len=n) for n in (512, 1024, 2048)]
    after = [timed(seq_len=512, ms=20), timed(seq_len=1024, ms=5), lost("oom", seq_len=2048)]
    found = compare(before, after)
    mean = mean_ratio(found)
    assert mean.value == pytest.approx(1.0)
    assert (mean.count, mean.failed) == (2, 1)
    assert "Time, geometric mean of new / baseline: 1.00 over 2 of 3 cells, 1 failed." in command.summary(found)


def test_c25_a_variant_measured_at_half_of_the_lengths_shows_no_false_regression() -> None:
    before = [timed(v, n, ms=n / 100) for v in ("full", "linear") for n in (512, 1024, 2048, 4096)]
    after = [timed("full", n, ms=n / 100) for n in (512, 1024, 2048, 4096)]
    after += [timed("linear", n, ms=n / 100) for n in (2048, 4096)]
    found = times(before, after)
    assert Counter(verdict.verdict for verdict in found) == {"same": 6, "vanished": 2}
    mean = mean_ratio(found)
    assert mean.value == pytest.approx(1.0)
    assert (mean.count, mean.failed) == (6, 2)


def test_lengths_sort_as_numbers() -> None:
    rows = [timed(seq_len=n) for n in (10000, 512, 2048, 1024)]
    assert [verdict.cell["seq_len"] for verdict in times(rows, rows)] == [512, 1024, 2048, 10000]


# --- what is not comparable ---


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dtype": "bfloat16"}, "dtype float32 against bfloat16"),
        ({"causal": True}, "causal False against True"),
        ({"threads": 4}, "threads 2 against 4"),
        ({"batch": 2, "heads": 4}, "batch 1 against 2, heads 8 against 4"),
        ({"knobs": {"window": 8}}, "knobs () against (window=8)"),
        ({"environment": {**HERE, "torch": "2.12.0"}}, "another environment: torch 2.13.0 against 2.12.0"),
        (
            {"environment": {**HERE, "cpu": "Other", "os": "macOS"}},
            "another environment: cpu Made-up CPU against Other, os Linux against macOS",
        ),
        ({"environment": {}}, "another environment: cpu Made-up CPU against unknown, cores 2 against unknown"),
        ({"seq_len": 1024, "key_len": 1024}, "seq_len 512 against 1024; key_len 512 against 1024"),
        ({"variant": "flash"}, "variant full against flash"),
    ],
)
def test_what_differs_is_named_and_nothing_to_compare_is_an_error(changes: dict[str, Any], reason: str) -> None:
    other = timed(**{"noise": STEADY, "ms": 50, **changes})
    with pytest.raises(UserError) as caught:
        compare([timed()], [other])
    assert str(caught.value).startswith(f"nothing to compare: {reason}")
    assert "\n" not in str(caught.value)


def test_beside_comparable_cells_what_is_not_is_a_verdict_and_no_failure() -> None:
    found = times([timed(), timed("linear")], [timed(), timed("linear", ms=50, dtype="bfloat16")])
    told = {verdict.cell["variant"]: (verdict.verdict, verdict.reason) for verdict in found}
    assert told == {"full": ("same", None), "linear": ("not comparable", "dtype float32 against bfloat16")}
    assert exit_code(found) == 0


def test_the_nearest_cell_is_named_once() -> None:
    after = [timed(), timed(seq_len=9, dtype="bfloat16", causal=True), timed(seq_len=9, dtype="bfloat16")]
    found = times([timed(), timed(seq_len=9)], after)
    told = {(v.verdict, v.reason, v.cell["causal"]) for v in found if v.cell["seq_len"] == 9}
    assert told == {
        ("not comparable", "dtype float32 against bfloat16", False),
        ("new", "not in the baseline", True),
    }


def test_another_version_of_the_source_is_compared_and_named() -> None:
    (verdict,) = times(timed(source_hash="a"), timed(source_hash="b", ms=12))
    assert verdict.verdict == "slower"
    assert verdict.versions == ("a", "b")
    assert times(timed(), timed())[0].versions is None


def test_the_git_state_and_a_gpu_that_is_not_used_do_not_matter() -> None:
    elsewhere = {**HERE, "git": "fedcba", "gpu": "Made-up GPU", "cuda": "13.0"}
    assert times(timed(), timed(environment=elsewhere))[0].verdict == "same"
    with pytest.raises(UserError, match="gpu unknown against Made-up GPU"):
        compare([timed(device="cuda")], [timed(device="cuda", environment=elsewhere)])


@pytest.mark.parametrize(("before", "after", "whose"), [([], ["x"], "baseline"), (["x"], [], "new run")])
def test_a_run_without_rows_is_an_error(before: list[str], after: list[str], whose: str) -> None:
    with pytest.raises(UserError, match=f"nothing to compare: the {whose} has no rows"):
        compare([timed() for _ in before], [timed() for _ in after])


def test_of_two_versions_of_a_cell_in_one_run_the_last_counts() -> None:
    older, newer = timed(ms=99, key="1"), timed(ms=10, key="2")
    assert times(timed(ms=10), [older, newer])[0].verdict == "same"


# --- noise floor ---


def test_the_floor_is_kept_by_device_and_5_per_cent_where_it_was_not_measured() -> None:
    floor = NoiseFloor(shares={"cuda": 0.01})
    assert (floor.share("cuda"), floor.share("cpu")) == (0.01, DEFAULT_SHARE)
    assert floor.log_share("cpu") == pytest.approx(math.log(1.05))


def test_a_floor_survives_its_file(tmp_path: Path) -> None:
    floor = NoiseFloor(environment_key="k", measured_at="now", shares={"cpu": 0.02}, cells={"cpu": {"full": [1.0]}})
    path = tmp_path / "deep" / "floor.json"
    write_noise(floor, path)
    assert read_noise(path) == floor
    assert [entry.name for entry in path.parent.iterdir()] == ["floor.json"]


@pytest.mark.parametrize(
    ("text", "told"), [(None, "no noise floor in"), ("{", "is not a noise floor"), ("[1]", "is not")]
)
def test_a_floor_that_cannot_be_read_is_one_line(tmp_path: Path, text: str | None, told: str) -> None:
    path = tmp_path / "floor.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=told) as caught:
        read_noise(path)
    assert "python -m bench noise" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_file_of_a_machine_names_it_and_its_environment() -> None:
    facts = {**INFO["environment"]}
    key = machine.environment_key(facts)
    assert noise_file(facts).as_posix() == f"results/noise/made-up-cpu-2-0-ghz-{key}.json"
    assert noise_file({**facts, "torch": "9"}) != noise_file(facts)


def test_the_noise_of_this_machine_is_measured_with_whole_replicates() -> None:
    sweep = make_sweep(
        {"variant": "full", "workload": "attention", "pass": "forward", "seq_len": 16, "heads": 1, "device": "cpu"}
    )
    with Launcher() as launcher, Progress(Console(quiet=True)) as progress:
        prepared = prepare(sweep, registry.entries(), launcher)
        floor = measure_noise(prepared, launcher, progress, order_seed=1, rounds=6, sample_s=0.01)
    assert floor.environment_key == machine.environment_key(prepared.environment)
    (medians,) = floor.cells["cpu"].values()
    assert len(medians) == 6
    first, second = (statistics.median(medians[part]) for part in (slice(0, 3), slice(3, 6)))
    assert floor.shares["cpu"] == pytest.approx(max(first / second, second / first) - 1)


@pytest.mark.parametrize(("share", "code"), [(0.02, 0), (0.5, 1)])
def test_the_floor_of_a_busy_machine_is_not_stored(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    share: float,
    code: int,
) -> None:
    floor = NoiseFloor(shares={"cpu": share}, cells={"cpu": {"full n=256": [1.0, 1.0, 1.1]}})
    monkeypatch.setattr(noise_command, "Launcher", nullcontext)
    monkeypatch.setattr(noise_command, "prepare", lambda *_: SimpleNamespace(environment=INFO["environment"]))
    monkeypatch.setattr(noise_command, "measure_noise", lambda *_, **__: floor)
    path = tmp_path / "floor.json"
    assert noise_command.noise(out=str(path)) == code
    assert path.exists() == (code == 0)
    shown = capsys.readouterr()
    assert "median (ms)" in shown.out
    assert f"noise floor on cpu: {100 * share:.1f} %" in shown.out
    assert ("too busy to compare on" in shown.err) == (code == 1)


# --- the command ---


@pytest.fixture
def runs(tmp_path: Path) -> tuple[str, str]:
    before = [timed(v, n, ms=n / 50) for v in ("full", "local") for n in (512, 1024)]
    after = [timed("full", n, ms=n / 50, source_hash="b") for n in (512, 1024)]
    after += [timed("local", 512, ms=20.0), lost("oom", "predicted 9 GiB | limit", variant="local", seq_len=1024)]
    folders = []
    for name, rows in (("before", before), ("after", after)):
        folders.append(str(write_run(tmp_path / name, rows, {**INFO, "run": name})))
    return folders[0], folders[1]


def test_the_table_fits_80_columns_and_says_all(
    runs: tuple[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert command.run_compare(*runs) == 1
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    words = " ".join(text.split())
    assert "after against the baseline before" in words
    assert "full n=512 10.2 10.2 1.000" in words
    assert "local n=512 10.2 20.0" in words
    assert "vanished: now oom: predicted 9 GiB | limit: local n=1024" in words
    assert "noise floor: 5.0 % on cpu; assumed, not measured on cpu (python -m bench noise)" in words
    assert "another version of the source than in the baseline: full" in words
    assert "7 figures: 1 vanished, 1 slower, 5 same." in words
    assert "over 3 of 4 cells, 1 failed" in words


def test_json_is_strict_and_has_every_verdict(runs: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run_compare(*runs, format="json") == 1

    def refuse(name: str) -> float:
        raise AssertionError(f"{name} is not JSON")

    found = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert found["counts"] == {"same": 5, "slower": 1, "vanished": 1}
    assert found["noise_floor"] == {"cpu": 0.05}
    assert found["time_ratio"]["failed"] == 1
    assert [Verdict.model_validate(value).verdict for value in found["verdicts"]].count("slower") == 1
    assert found["verdicts"][0]["cell"]["seq_len"] == 512


def test_markdown_is_written_to_a_file_and_what_got_worse_is_bold(runs: tuple[str, str], tmp_path: Path) -> None:
    path = tmp_path / "verdicts.md"
    assert command.run_compare(*runs, format="md", out=str(path)) == 1
    text = path.read_text(encoding="utf-8")
    assert "**slower** |" in text
    assert "predicted 9 GiB \\| limit" in text
    assert all(line.count(" | ") in (0, 4) for line in text.splitlines())
    with pytest.raises(UserError, match="choose another --out"):
        command.run_compare(*runs, format="md", out=str(tmp_path))


def test_an_unknown_format_is_refused(runs: tuple[str, str]) -> None:
    with pytest.raises(UserError, match="unknown format 'jsn'; did you mean 'json'"):
        command.run_compare(*runs, format="jsn")


def test_the_stored_floor_of_the_machine_is_used(
    runs: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    facts = INFO["environment"]
    floor = NoiseFloor(environment_key=machine.environment_key(facts), measured_at="2026-05-04", shares={"cpu": 2.0})
    write_noise(floor, noise_file(facts))
    assert command.run_compare(*runs, format="json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["noise_floor"] == {"cpu": 2.0}
    assert "slower" not in found["counts"]
    assert "measured 2026-05-04" in found["notes"][0]
    other = tmp_path / "other.json"
    write_noise(floor.model_copy(update={"environment_key": "other"}), other)
    with pytest.raises(UserError, match="was measured in another environment"):
        command.run_compare(*runs, noise_path=str(other))


def test_compare_starts_without_torch_and_pandas(runs: tuple[str, str]) -> None:
    code = (
        "import sys\nfrom bench.commands.compare import run_compare\n"
        f"assert run_compare({runs[0]!r}, {runs[1]!r}, format='md') == 1\n"
        "heavy = {'torch', 'pandas', 'numpy', 'matplotlib'} & set(sys.modules)\nassert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
