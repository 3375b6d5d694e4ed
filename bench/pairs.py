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
    """Allowed pairs of a sliding window of `window` positions, the query included, bool (Nq, Nk)."""
    gap = distances(query_len, key_len, device)
    return (gap < window) & (gap >= 0) if causal else gap.abs() < window


def full_pairs(query_len: int, key_len: int, causal: bool) -> int:
    """Number of allowed pairs of unrestricted attention. Nq=2, Nk=5, causal: 9."""
    if not causal:
        return query_len * key_len
    return _sum_clipped(key_len - query_len + 1, key_len, key_len)


def window_pairs(query_len: int, key_len: int, window: int, causal: bool) -> int:
    """Number of allowed pairs of a sliding window. w=3, n=7, causal: 18."""
    first = key_len - query_len
    seen = _sum_clipped(first + 1, key_len, key_len)
    beyond = _sum_clipped(first + 1 - window, key_len - window, key_len)
    if causal:
        return seen - beyond
    # Symmetric: keys up to p + w - 1 less keys up to p - w, each clipped to the keys there are.
    return _sum_clipped(first + window, key_len + window - 1, key_len) - beyond


def _sum_clipped(low: int, high: int, limit: int) -> int:
    """Sum of min(max(x, 0), limit) over the integers low..high."""

    def upto(x: int) -> int:  # the same sum over 1..x
        if x <= 0:
            return 0
        inside = min(x, limit)
        return inside * (inside + 1) // 2 + max(0, x - limit) * limit

    return upto(high) - upto(low - 1)
