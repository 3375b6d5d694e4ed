"""bench.pairs: every convention counted pair by pair, with loops that share nothing with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench.pairs import (
    block_pairs,
    dilated_pairs,
    distances,
    earlier_blocks,
    fixed_pairs,
    full_pairs,
    full_pattern,
    global_pairs,
    strided_pairs,
    window_pairs,
    window_pattern,
)

SIZES = [(n, m) for n in range(17) for m in range(17)]


def may(query: int, key: int, query_len: int, key_len: int, causal: bool, window: int | None = None) -> bool:
    """The rule in words: bottom-right, and a window counts the query itself."""
    position = key_len - query_len + query
    if causal and key > position:
        return False
    return window is None or abs(position - key) < window


def brute(query_len: int, key_len: int, causal: bool, window: int | None = None) -> list[list[bool]]:
    return [[may(i, j, query_len, key_len, causal, window) for j in range(key_len)] for i in range(query_len)]


def count(rows: list[list[bool]]) -> int:
    return sum(map(sum, rows))


@pytest.mark.parametrize("causal", [True, False])
def test_full_attention_counts_like_loops(causal: bool) -> None:
    for n, m in SIZES:
        rows = brute(n, m, causal)
        assert full_pattern(n, m, causal).tolist() == rows, (n, m)
        assert full_pairs(n, m, causal) == count(rows), (n, m)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [1, 2, 3, 5, 8, 16, 40])
def test_windows_count_like_loops(window: int, causal: bool) -> None:
    for n, m in SIZES:
        rows = brute(n, m, causal, window)
        assert window_pattern(n, m, window, causal).tolist() == rows, (n, m)
        assert window_pairs(n, m, window, causal) == count(rows), (n, m)


@pytest.mark.parametrize("causal", [True, False])
def test_a_window_of_0_is_no_window(causal: bool) -> None:
    for n, m in SIZES:
        assert window_pattern(n, m, 0, causal).tolist() == full_pattern(n, m, causal).tolist()
        assert window_pairs(n, m, 0, causal) == full_pairs(n, m, causal)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("stride", "summary"), [(1, 1), (2, 1), (3, 2), (5, 5), (20, 3)])
def test_b29_strided_and_fixed_count_like_loops(stride: int, summary: int, causal: bool) -> None:
    for n, m in SIZES:
        near_or_far = tally(n, m, causal, lambda p, j: abs(p - j) < stride or (p - j) % stride == 0)
        assert strided_pairs(n, m, stride, causal) == near_or_far, (n, m)
        own_or_last = tally(n, m, causal, lambda p, j: p // stride == j // stride or j % stride >= stride - summary)
        assert fixed_pairs(n, m, stride, summary, causal) == own_or_last, (n, m)


def tally(query_len: int, key_len: int, causal: bool, rule: Callable[[int, int], bool]) -> int:
    """Pairs (position, key) that a rule in words allows."""
    positions = range(key_len - query_len, key_len)
    return sum(rule(p, j) for p in positions for j in range(key_len) if not causal or j <= p)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [1, 2, 3, 5, 20])
def test_b29_dilated_and_global_windows_count_like_loops(window: int, causal: bool) -> None:
    for n, m in SIZES:
        for step in (1, 2, 3, 7):
            wanted = tally(n, m, causal, lambda p, j, d=step: (p - j) % d == 0 and abs(p - j) < window * d)
            assert dilated_pairs(n, m, window, step, causal) == wanted, (n, m, step)
        for tokens in (0, 1, 3, 30):
            wanted = tally(n, m, causal, lambda p, j, g=tokens: abs(p - j) < window or j < g or 0 <= p < g)
            assert global_pairs(n, m, window, tokens, causal) == wanted, (n, m, tokens)


@pytest.mark.parametrize("block", [1, 2, 3, 5, 20])
def test_b29_blocks_count_like_loops(block: int) -> None:
    for n, m in SIZES:
        for before in (0, 1, 3, 30):
            wanted = tally(n, m, True, lambda p, j, t=before: p // block - j // block <= t)
            assert block_pairs(n, m, block, before) == wanted, (n, m, before)
        assert earlier_blocks(n, m, block) == sum(p // block for p in range(max(m - n, 0), m)), (n, m)


def test_a01_causal_is_bottom_right() -> None:
    assert full_pairs(2, 5, True) == 9
    assert full_pattern(2, 5, True).tolist() == [[True] * 4 + [False], [True] * 5]


def test_a04_one_query_sees_all_keys() -> None:
    assert full_pattern(1, 9, True).tolist() == [[True] * 9]


def test_a23_a_window_counts_the_query_itself() -> None:
    assert window_pairs(7, 7, 3, True) == 18
    assert window_pairs(7, 7, 4, True) == 22  # three earlier keys and itself


def test_a25_only_causal_windows_hide_the_future() -> None:
    assert not window_pattern(7, 7, 3, True).triu(1).any()
    assert window_pattern(7, 7, 3, False).triu(1).sum() == window_pattern(7, 7, 3, False).tril(-1).sum() == 11


def test_a26_each_row_of_a_window_of_4_sees_at_most_4() -> None:
    assert window_pattern(12, 12, 4, True).sum(1).tolist() == [1, 2, 3, *[4] * 9]


def test_a28_a_window_after_a_cache_is_measured_from_the_absolute_position() -> None:
    pattern = window_pattern(3, 8, 2, True)
    assert [row.nonzero().flatten().tolist() for row in pattern] == [[4, 5], [5, 6], [6, 7]]


def test_distances_are_positive_towards_the_past() -> None:
    assert distances(2, 4).tolist() == [[2, 1, 0, -1], [3, 2, 1, 0]]


def test_counts_need_no_array() -> None:
    n = 10**9
    assert full_pairs(n, n, True) == n * (n + 1) // 2
    assert window_pairs(n, n, 256, True) == n * 256 - 255 * 256 // 2
    assert dilated_pairs(n, n, 256, 4, True) == n * 256 - 4 * (255 * 256 // 2)
    assert global_pairs(n, n, 256, 1, True) == n * 256 - 255 * 256 // 2 + n - 256
    assert block_pairs(n, n, 10, 0) == n // 10 * 55
