"""`show`: the pattern that is drawn is what the variant does, not what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bench import registry
from bench.commands.show import show
from bench.errors import UserError
from bench.measure.seen import seen
from bench.variant import Shape


def rows(name: str, length: int, causal: bool, **knobs: object) -> list[str]:
    entry = registry.find(name, registry.entries())
    shape = Shape(2, 16, max_len=length, causal=causal)
    module = registry.load(entry.source())(shape, **registry.resolve_knobs(entry, knobs))
    return seen(module, shape, length)


def test_a23_a_window_counts_the_query_itself() -> None:
    assert rows("local", 5, True, window=2) == ["10000", "11000", "01100", "00110", "00011"]
    assert rows("local", 4, False, window=2) == ["1100", "1110", "0111", "0011"]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("name", "knobs"), [("full", {}), ("sparse", {"stride": 4}), ("dilated", {}), ("sinks", {"window": 3})]
)
def test_what_is_seen_is_what_is_declared(name: str, knobs: dict[str, object], causal: bool) -> None:
    entry = registry.find(name, registry.entries())
    shape = Shape(2, 16, max_len=13, causal=causal)
    if not (entry.claims and (entry.claims.causal if causal else entry.claims.bidirectional)):
        pytest.skip("not claimed")
    module = registry.load(entry.source())(shape, **registry.resolve_knobs(entry, knobs))
    declared = (
        module.pattern(13, 13) if hasattr(module, "pattern") else torch.ones(13, 13).tril(0 if causal else 13).bool()
    )
    declared = declared if declared.dim() == 2 else declared.any(0)
    assert rows(name, 13, causal, **knobs) == ["".join(str(int(one)) for one in line) for line in declared.tolist()]


def test_a_variant_without_weights_is_shown_too() -> None:
    assert rows("lstm", 3, True) == ["100", "110", "111"]


def test_it_prints_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"local": {"window": 3}}
    assert show("local", length=7, causal=None, settings=settings, out=None) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "local (window=3), causal: 18 of 49 pairs"
    assert [len(line) for line in told[2:]] == [14] * 7
    path = tmp_path / "local.svg"
    assert show("local", length=7, causal=False, settings=settings, out=str(path)) == 0
    text = path.read_text(encoding="utf-8")
    assert "local (window=3), bidirectional: 29 of 49 pairs" in text
    assert show("local", length=7, causal=False, settings=settings, out=str(tmp_path / "again.svg")) == 0
    assert (tmp_path / "again.svg").read_text(encoding="utf-8") == text


def test_what_cannot_run_says_why(capsys: pytest.CaptureFixture[str], plugin) -> None:  # type: ignore[no-untyped-def]
    name = next(entry.name for entry in registry.entries() if entry.claims and not entry.claims.bidirectional)
    assert show(name, length=4, causal=False, settings={}, out=None) == 1
    assert f"{name}: unsupported: bidirectional attention is not supported" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"length": 100}, "--length takes 1 to 72 positions, got 100"),
        ({"out": "a.pdf"}, "--out takes a file that ends in .svg or .png, got 'a.pdf'"),
        ({"name": "lokal"}, "unknown variant 'lokal'; did you mean 'local'"),
        ({"settings": {"full": {}}}, "--set names variant 'full', which is not shown here"),
        ({"settings": {"local": {"window": 0}}}, "knob window must be greater than or equal to 1, got 0"),
        ({"out": "/proc/a.svg"}, "cannot write '/proc/a.svg'"),
    ],
)
def test_a_mistake_is_told_with_its_value(change: dict, told: str) -> None:
    asked = {"name": "local", "length": 8, "causal": None, "settings": {}, "out": None} | change
    with pytest.raises(UserError, match=told.replace("(", r"\(").replace(".", r"\.")):
        show(asked.pop("name"), **asked)
