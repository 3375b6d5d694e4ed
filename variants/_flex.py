"""Masks of torch's FlexAttention: which blocks hold allowed pairs, and which hold nothing else; no n by n array.

R blocks of queries, counted from the first query, C blocks of keys.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask

from variants._layout import Layout

BLOCK = {"cpu": 64}  # positions of a block: on CPUs faster than the library's default, which GPU kernels need
BLOCK_ELSEWHERE = 128


def window_mask(query_len: int, key_len: int, window: int, causal: bool, device: torch.device) -> BlockMask:
    """A sliding window of `window` positions, the query included; 0 for no window."""
    width = window or max(query_len, key_len) + key_len
    nearest, farthest = _distances(query_len, key_len, device)
    lowest = 0 if causal else 1 - width
    some_RC = (farthest >= lowest) & (nearest < width)
    every_RC = (nearest >= lowest) & (farthest < width)

    # Numbers that change with the length are tensors here: torch 2.13 writes wrong C++ for plain ones.
    first, limit = (torch.tensor(number, device=device) for number in (key_len - query_len, width))

    def allowed(b: Any, h: Any, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
        gap = row + first - column
        return (gap < limit) & (gap >= 0) if causal else gap.abs() < limit

    return _block_mask(some_RC, every_RC, allowed, query_len, key_len)


def layout_mask(layout: Layout, query_len: int, key_len: int, device: torch.device) -> BlockMask:
    """A block layout, whose blocks need not be those of the mask."""
    first, size = key_len - query_len, layout.block
    table_bm = torch.from_numpy(layout.table(query_len, key_len)).to(device)
    sums = torch.zeros(table_bm.shape[0] + 1, table_bm.shape[1] + 1, dtype=torch.int64, device=device)
    sums[1:, 1:] = table_bm.cumsum(0).cumsum(1)
    (top, bottom), (left, right) = (
        (start // size - origin, last // size - origin + 1)
        for (start, last), origin in (
            (_borders(query_len, first, device), first // size),
            (_borders(key_len, 0, device), 0),
        )
    )
    top, bottom = top[:, None], bottom[:, None]
    count_RC = sums[bottom, right] - sums[top, right] - sums[bottom, left] + sums[top, left]
    some_RC, every_RC = count_RC > 0, count_RC == (bottom - top) * (right - left)
    if layout.causal:
        nearest, farthest = _distances(query_len, key_len, device)
        some_RC, every_RC = some_RC & (farthest >= 0), every_RC & (nearest >= 0)
    shift, origin = (torch.tensor(number, device=device) for number in (first, first // size))

    def allowed(b: Any, h: Any, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
        p = row + shift
        seen = table_bm[p.div(size, rounding_mode="floor") - origin, column.div(size, rounding_mode="floor")]
        return seen & (column <= p) if layout.causal else seen

    return _block_mask(some_RC, every_RC, allowed, query_len, key_len)


def _block(device: torch.device) -> int:
    return BLOCK.get(device.type, BLOCK_ELSEWHERE)


def _borders(length: int, first: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The first and the last position of each block of the mask, for `length` positions from `first` on."""
    block = _block(device)
    start = torch.arange(0, length, block, device=device)
    return start + first, (start + block).clamp(max=length) - 1 + first


def _distances(query_len: int, key_len: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest and the largest distance p - j within each block, (R, C)."""
    (row, last_row), (column, last_column) = (
        _borders(query_len, key_len - query_len, device),
        _borders(key_len, 0, device),
    )
    return row[:, None] - last_column, last_row[:, None] - column


def _block_mask(some_RC: torch.Tensor, every_RC: torch.Tensor, allowed: Any, query_len: int, key_len: int) -> BlockMask:
    block = _block(some_RC.device)
    cut_R, cut_C = (
        torch.arange(block, length + block, block, device=some_RC.device) > length for length in (query_len, key_len)
    )
    whole_RC = some_RC & every_RC & ~(cut_R[:, None] | cut_C)
    return BlockMask.from_kv_blocks(
        *_listed(some_RC & ~whole_RC),
        *_listed(whole_RC),
        BLOCK_SIZE=block,
        mask_mod=allowed,
        seq_lengths=(query_len, key_len),
    )


def _listed(blocks_RC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(how many columns each row has, (1,1,R); their numbers first, (1,1,R,C))."""
    order = blocks_RC.to(torch.int8).argsort(dim=1, descending=True, stable=True)
    return blocks_RC.sum(1).to(torch.int32)[None, None], order.to(torch.int32)[None, None]
