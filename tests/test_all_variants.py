"""What holds for every variant there is, the shipped ones and those yet to come."""

from __future__ import annotations

import sys
import tracemalloc
from types import FrameType
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bench import registry
from bench.variant import Shape, Unsupported, attention_flops

ENTRIES = {entry.name: entry for entry in registry.entries()}
KNOBS: dict[str, list[dict[str, Any]]] = {
    "sparse": [{"mode": mode, "stride": stride, "summary": 2} for mode in ("strided", "fixed") for stride in (2, 3, 5)],
    "local": [{"window": window} for window in (1, 2, 3, 16, 17)],
}
CASES = [(name, knobs) for name in ENTRIES for knobs in [{}, *KNOBS.get(name, [])]]


def build(name: str, shape: Shape, **knobs: Any) -> Any:
    try:
        cls = registry.load(ENTRIES[name].source())
        if not (cls.claims.causal if shape.causal else cls.claims.bidirectional):
            pytest.skip("it does not claim this direction")
        return cls(shape, **knobs)
    except (ImportError, Unsupported) as reason:
        pytest.skip(str(reason))


class NoTensors(TorchDispatchMode):
    """Inside, every tensor operation is a failure."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{function} was called")


def lines_of(call: Any) -> int:
    """Lines of Python that a call executes: a loop over positions shows."""
    count = 0

    def follow(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return follow

    before = sys.gettrace()
    sys.settrace(follow)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("name", "knobs"), CASES)
def test_b29_flops_at_131072_positions_need_no_array_and_no_loop(name: str, knobs: dict, causal: bool) -> None:
    shape = Shape(8, 64, max_len=16, causal=causal)
    module = build(name, shape, **knobs)
    tracemalloc.start()
    try:
        with NoTensors():
            attention_flops(module, shape, 131_072, 131_072)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**20
    assert lines_of(lambda: attention_flops(module, shape, 131_072, 131_072)) < 2_000


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("name", "knobs"), CASES)
def test_b26_b29_pairs_equal_the_pattern_at_all_small_sizes(name: str, knobs: dict, causal: bool) -> None:
    module = build(name, Shape(1, 4, max_len=16, causal=causal), **knobs)
    if not (hasattr(module, "pairs") and hasattr(module, "pattern")):
        pytest.skip("it declares no pattern")
    for query_len in range(17):
        for key_len in range(17):
            if query_len == key_len or module.claims.cross:
                counted = int(module.pattern(query_len, key_len).sum())
                assert module.pairs(query_len, key_len) == counted, (query_len, key_len)


def test_the_tensor_guard_and_the_line_counter_see_what_they_should() -> None:
    with NoTensors(), pytest.raises(AssertionError, match="was called"):
        torch.ones(2)

    def loop() -> None:
        for _ in range(1000):
            pass

    assert lines_of(loop) > 1000
