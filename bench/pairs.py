"""Which query may attend to which key, and how many pairs that is: each convention written once.

Query i of Nq sits at absolute position p = Nk - Nq + i (causal is aligned bottom-right). A window of w counts the
query itself: key j is allowed when 0 <= p - j < w (causal) or |p - j| < w (bidirectional). True means *may attend*.
The counts are closed forms in plain integers: no n-by-n array, exact for any length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def distances(query_len: int, key_len: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """p - j for every query and key, int64 of shape (Nq, Nk): positive towards the past."""
    import torch

    positions = torch.arange(key_len - query_len, key_len, device=device)
    return positions[:, None] - torch.arange(key_len, device=device)[None, :]


def full_pattern(query_len: int, key_len: int, causal: bool, device: torch.device | str = "cpu") -> torch.Tensor:
    """Allowed pairs of unrestricted attention, bool (Nq, Nk)."""
    gap = distances(query_len, key_len, device)
    return gap >= 0 if causal else gap == gap


def window_pattern(
    query_len: int, key_len: int, window: int, causal: bool, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """Allowed pairs of a sliding window of `window` positions, the query included, bool (Nq, Nk); 0: of no window."""
    if not window:
        return full_pattern(query_len, key_len, causal, device)
    return near(distances(query_len, key_len, device), window, causal)


def near(gap: torch.Tensor, window: int, causal: bool) -> torch.Tensor:
    """Which distances p - j lie in a sliding window, the query included."""
    return (gap < window) & (gap >= 0) if causal else gap.abs() < window


def full_pairs(query_len: int, key_len: int, causal: bool) -> int:
    """Number of allowed pairs of unrestricted attention. Nq=2, Nk=5, causal: 9."""
    if not causal:
        return query_len * key_len
    return _sum_clipped(key_len - query_len + 1, key_len, key_len)


def window_pairs(query_len: int, key_len: int, window: int, causal: bool) -> int:
    """Number of allowed pairs of a sliding window, 0: of no window. w=3, n=7, causal: 18."""
    if not window:
        return full_pairs(query_len, key_len, causal)
    return _near(key_len - query_len, key_len, key_len, window, causal)


def dilated_pairs(query_len: int, key_len: int, window: int, dilation: int, causal: bool) -> int:
    """Number of allowed pairs of a window of `window` places, `dilation` positions apart. w=3, d=2, n=7, causal: 15."""
    return sum(
        window_pairs(
            _places(key_len, rest, dilation) - _places(key_len - query_len, rest, dilation), keys, window, causal
        )
        for rest in range(min(dilation, key_len))
        if (keys := _places(key_len, rest, dilation))
    )


def global_pairs(query_len: int, key_len: int, window: int, tokens: int, causal: bool) -> int:
    """Number of allowed pairs of a window and `tokens` first keys for all; bidirectional: these see all keys."""
    first, tokens = key_len - query_len, min(tokens, key_len)

    def rows(low: int, high: int) -> int:
        behind = _sum_clipped(low - window + 1, high - window, tokens)
        reached = _sum_clipped(low + window, high + window - 1, tokens)
        ahead = 0 if causal else (high - low) * tokens - reached
        return _near(low, high, key_len, window, causal) + behind + ahead

    if causal:
        return rows(first, key_len)
    low, high = min(max(first, 0), tokens), tokens  # the queries that see all, if there are any
    return rows(first, key_len) - rows(low, high) + (high - low) * key_len


def block_pairs(query_len: int, key_len: int, block: int, before: int) -> int:
    """Number of pairs of queries with their own block up to themselves and `before` whole ones before it.

    Where there are fewer, with those. block=2, before=1, n=5: 13.
    """

    def upto(end: int) -> int:  # the queries at positions 0..end - 1
        blocks, rest = divmod(end, block)
        own = blocks * (block * (block + 1) // 2) + rest * (rest + 1) // 2
        return own + block * (block * _sum_clipped(1, blocks - 1, before) + rest * min(blocks, before))

    return upto(key_len) - upto(max(key_len - query_len, 0))


def earlier_blocks(query_len: int, key_len: int, block: int) -> int:
    """Number of whole blocks before the own one, summed over the queries. block=2, n=5: 4."""
    own = block_pairs(query_len, key_len, block, 0)
    return (block_pairs(query_len, key_len, block, key_len) - own) // block


def strided_pairs(query_len: int, key_len: int, stride: int, causal: bool) -> int:
    """Number of allowed pairs of a window of `stride` and every stride-th distance. stride=2, n=5, causal: 13."""
    blocks, rest = divmod(key_len, stride)
    near, seeing = window_pairs(query_len, key_len, stride, causal), min(query_len, key_len)
    if causal:
        return near + _blocks_below(key_len, stride) - _blocks_below(key_len - seeing, stride)
    # Every query has one key in each whole block; in the last, cut short, only those whose place is there.
    cut_short = _residues_below(key_len, stride, rest) - _residues_below(key_len - query_len, stride, rest)
    return near + query_len * blocks + cut_short - seeing


def fixed_pairs(query_len: int, key_len: int, stride: int, summary: int, causal: bool) -> int:
    """Number of allowed pairs of the own block and the last `summary` places of each. stride=2, 1, n=5, causal: 11."""
    blocks, rest = divmod(key_len, stride)
    seeing = min(query_len, key_len)  # queries at positions from 0 on
    if causal:
        places, before = (
            below(key_len, stride) - below(key_len - seeing, stride) for below in (_places_below, _blocks_below)
        )
        return places + seeing + before * summary
    last = max(0, rest - (stride - summary))  # summary places of a last block that is cut short
    in_last = min(seeing, rest)
    own = (seeing - in_last) * (stride - summary) + in_last * (rest - last)
    return query_len * (blocks * summary + last) + own


def _near(low: int, high: int, key_len: int, window: int, causal: bool) -> int:
    """Pairs of a sliding window for the queries at the positions low..high - 1."""
    beyond = _sum_clipped(low + 1 - window, high - window, key_len)
    if causal:
        return _sum_clipped(low + 1, high, key_len) - beyond
    # Symmetric: keys up to p + w - 1 less keys up to p - w, each clipped to the keys there are.
    return _sum_clipped(low + window, high + window - 1, key_len) - beyond


def _places(end: int, rest: int, size: int) -> int:
    """How many integers x < end have x % size == rest, less how many there are below 0."""
    return (end - rest + size - 1) // size


def _sum_clipped(low: int, high: int, limit: int) -> int:
    """Sum of min(max(x, 0), limit) over the integers low..high."""

    def upto(x: int) -> int:  # the same sum over 1..x
        if x <= 0:
            return 0
        inside = min(x, limit)
        return inside * (inside + 1) // 2 + max(0, x - limit) * limit

    return upto(high) - upto(low - 1)


def _places_below(stop: int, stride: int) -> int:
    """Sum of p mod stride over 0 <= p < stop."""
    whole, rest = divmod(stop, stride)
    return whole * (stride * (stride - 1) // 2) + rest * (rest - 1) // 2


def _blocks_below(stop: int, stride: int) -> int:
    """Sum of p // stride over 0 <= p < stop."""
    whole, rest = divmod(stop, stride)
    return stride * (whole * (whole - 1) // 2) + rest * whole


def _residues_below(stop: int, stride: int, rest: int) -> int:
    """How many p < stop have p mod stride < rest, counted from 0 (negative for a stop below it)."""
    whole, more = divmod(stop, stride)
    return whole * rest + min(more, rest)
