"""bench.sweep: a sweep is strict, its cells are stable, and every mistake is one line before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench import registry
from bench.cells import Cell, cells
from bench.errors import UserError
from bench.sweep import make_sweep, preset_names, read_sweep


def made(values: dict[str, Any], **surroundings: Any) -> list[Cell]:
    facts = {"devices": ["cpu"], "threads": 2, "environment": "e", **surroundings}
    return cells(make_sweep(values), registry.entries(), **facts)


def test_the_product_of_the_axes() -> None:
    found = made(
        {"variant": ["full", "flash"], "seq_len": [8, 16, 32], "pass": ["forward", "train"], "causal": [True, False]}
    )
    assert len(found) == 2 * 3 * 2 * 2
    assert {(cell.seq_len, cell.pass_) for cell in found} == {(n, p) for n in (8, 16, 32) for p in ("forward", "train")}


def test_a_single_value_is_a_list_of_one() -> None:
    assert make_sweep({"seq_len": 64}).seq_len == [64]


def test_a_list_of_knob_values_is_an_axis() -> None:
    found = made({"variant": ["local"], "seq_len": [8], "pass": ["forward"], "knobs": {"local": {"window": [2, 4]}}})
    assert [cell.knobs["window"] for cell in found] == [2, 4]


def test_knobs_of_a_task_are_merged_with_those_of_the_sweep() -> None:
    found = made({
        "variant": ["local"], "workload": ["task:mqar"], "controls": [],
        "knobs": {"local": {"scale": 0.5}}, "tasks": {"mqar": {"knobs": {"local": {"window": 16}}}},
    })  # fmt: skip
    assert [cell.knobs for cell in found] == [{"window": 16, "scale": 0.5}]


def test_a_knob_given_as_a_flag_wins_over_the_presets_own_for_a_task() -> None:
    sweep = read_sweep("quick", {"variant": ["local"], "knobs": {"local": {"window": 99}}})
    found = cells(sweep, registry.entries(), devices=["cpu"], threads=2, environment="e")
    assert {cell.knobs["window"] for cell in found if cell.variant == "local"} == {99}


def test_tasks_get_their_own_knobs_and_the_controls() -> None:
    found = made({
        "variant": ["local"], "workload": ["task:mqar"], "seeds": [0, 1],
        "knobs": {"local": {"window": 256}}, "tasks": {"mqar": {"knobs": {"local": {"window": 16}}}},
    })  # fmt: skip
    assert {(cell.variant, cell.seed) for cell in found} == {(v, s) for v in ("local", "none") for s in (0, 1)}
    assert {cell.knobs["window"] for cell in found if cell.variant == "local"} == {16}


def test_controls_are_marked_and_full_among_them_gets_a_second_seed() -> None:
    values = {
        "variant": ["local", "full"],
        "workload": ["task:mqar"],
        "controls": ["none", "full", "local"],
        "seeds": 5,
    }
    found = {(cell.variant, cell.seed): cell.control for cell in made(values)}
    assert found == {("local", 5): False, ("full", 5): False, ("none", 5): True, ("full", 6): True}
    several = made({**values, "seeds": [5, 6]})
    assert {(cell.variant, cell.seed) for cell in several if cell.control} == {("none", 5), ("none", 6)}


def test_being_a_control_is_not_part_of_what_is_measured() -> None:
    values = {"workload": ["task:mqar"], "variant": ["local"], "controls": ["none"]}
    control, asked = (made(change)[-1] for change in (values, {**values, "variant": ["local", "none"]}))
    assert (control.variant, control.control, asked.variant, asked.control) == ("none", True, "none", False)
    assert control.key == asked.key


def test_a_budget_of_seconds_is_a_training_beside_that_of_the_steps() -> None:
    task = {"trial_cpu_s": [2, 30.0]}
    found = made({"variant": ["full"], "workload": ["task:mqar"], "controls": [], "tasks": {"mqar": task}})
    assert [cell.trial_cpu_s for cell in found] == [None, 2, 30]
    assert len({cell.key for cell in found}) == 3
    assert "task:mqar/quick 30 s a trial" in found[2].label()


def test_keys_are_stable_and_made_of_all_that_matters() -> None:
    base = {"variant": ["full"], "seq_len": [8], "pass": ["forward"]}
    key = made(base)[0].key
    assert made(base)[0].key == key
    others = [
        made({**base, "seq_len": [16]}), made({**base, "dtype": ["bfloat16"]}), made({**base, "causal": [False]}),
        made({**base, "heads": [4]}), made({**base, "workload": ["attention"]}), made({**base, "seeds": [1]}),
        made({**base, "knobs": {"full": {"scale": 0.0}}}), made(base, threads=1), made(base, environment="other"),
    ]  # fmt: skip
    assert len({key, *(found[0].key for found in others)}) == len(others) + 1


def test_limits_are_not_part_of_what_is_measured() -> None:
    short, long = make_sweep({"budget": 1.0}), make_sweep({"budget": 9.0, "timeout": 5.0, "memory_limit": 1.0})
    assert short.digest() == long.digest() != make_sweep({"heads": [2]}).digest()


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"seq_lens": [64]}, "unknown key 'seq_lens'; did you mean 'seq_len'?"),
        ({"varaint": ["full"]}, "unknown key 'varaint'; did you mean 'variant'?"),
        ({"window": 16}, "unknown key 'window'"),
        ({"tasks": {"mqar": {"presett": "tiny"}}}, "unknown key 'presett'; did you mean 'preset'?"),
        ({"tasks": {"mqar": {"trial_cpu_s": 0}}}, "trial_cpu_s: must be greater than 0, got 0"),
        ({"tasks": {"mqarr": {}}}, "unknown task 'mqarr'; did you mean 'mqar'?"),
        ({"tasks": {"mqar": {"preset": "tinny"}}}, "did you mean 'tiny'?"),
        ({"workload": ["blok"]}, "unknown workload 'blok'; did you mean 'block'?"),
        ({"workload": ["task:nothing"]}, "unknown task 'nothing'"),
        ({"seq_len": ["512"]}, "seq_len: must be a valid integer, got '512'"),
        ({"seq_len": [0]}, "seq_len: must be greater than or equal to 1, got 0"),
        ({"seq_len": []}, "seq_len: List should have at least 1 item"),
        ({"dtype": ["float8"]}, "dtype: must be 'float64', 'float32', 'bfloat16' or 'float16', got 'float8'"),
        ({"causal": ["yes"]}, "causal: must be a valid boolean, got 'yes'"),
        ({"tasks": {"text": {"file": "no.txt"}}}, "task 'text': the text file 'no.txt' does not exist"),
        ({"timeout": float("inf")}, "timeout: must be less than or equal to"),
        ({"seq_len": [10**20]}, "seq_len: must be less than or equal to"),
        ({"name": "../../evil"}, "name: String should match pattern"),
        ({"budget": 0}, "budget: must be greater than 0, got 0"),
        ({"heads": [8], "kv_heads": [3]}, "kv_heads must divide heads=8, got 3"),
        ({"pass": ["decode"], "workload": ["block"]}, "pass decode is measured on the operation alone"),
    ],
)
def test_c09_the_first_wrong_key_or_value_is_named(values: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError) as error:
        make_sweep(values)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"variant": ["ful"]}, "unknown variant 'ful'; did you mean 'full'?"),
        ({"device": ["gpu"]}, "unknown device 'gpu'"),
        ({"variant": ["local"], "knobs": {"local": {"window": 0}}}, "knob window must be greater than or equal to 1"),
        ({"variant": ["local"], "knobs": {"local": {"windw": 8}}}, "did you mean 'window'?"),
        (
            {"variant": ["full"], "knobs": {"full": {"scale": float("nan")}}},
            "knob scale must be a finite number, got nan",
        ),
        ({"variant": ["full"], "knobs": {"local": {"windo": 8}}}, "did you mean 'window'?"),
        ({"variant": ["full"], "knobs": {"local": {"window": []}}}, "knob window has an empty list of values"),
        ({"variant": ["full"], "tasks": {"mqar": {"knobs": {"nope": {"a": 1}}}}}, "unknown variant 'nope'"),
        ({"variant": ["full"], "controls": ["nope"]}, "unknown variant 'nope'"),
        ({"knobs": {"locl": {"window": 8}}}, "unknown variant 'locl'; did you mean 'local'?"),
    ],
)
def test_wrong_names_and_knobs_stop_before_the_first_cell(values: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError) as error:
        made(values)
    assert told in str(error.value)


def test_c12_toml_keeps_types(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text('variant = ["off"]\n[knobs.full]\nscale = 2e-5\n', encoding="utf-8")
    sweep = read_sweep(str(path), {})
    assert sweep.knobs == {"full": {"scale": 2e-5}}
    with pytest.raises(UserError, match="unknown variant 'off'"):
        cells(sweep, registry.entries(), devices=["cpu"], threads=1, environment="e")


def test_a_broken_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text("seq_len = [512\n", encoding="utf-8")
    with pytest.raises(UserError, match="is not valid TOML"):
        read_sweep(str(path), {})
    with pytest.raises(UserError, match="unknown sweep 'quik'; did you mean 'quick'"):
        read_sweep("quik", {})


def test_flags_replace_axes_and_merge_tables() -> None:
    tables = {"knobs": {"local": {"window": 8}}, "tasks": {"text": {"file": __file__}}}
    sweep = read_sweep("quick", {"seq_len": [64], **tables})
    assert sweep.seq_len == [64]
    assert sweep.knobs["local"] == {"window": 8}
    assert sweep.tasks["text"].file == __file__
    assert sweep.tasks["text"].preset == read_sweep("quick", {}).tasks["text"].preset


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_makes_cells(name: str) -> None:
    found = cells(read_sweep(name, {}), registry.entries(), devices=["cpu"], threads=2, environment="e")
    assert len({cell.key for cell in found}) == len(found) > 0
