"""Softmax attention of queries that each choose key blocks of their own, and the merging of partial results.

The queries that chose a block are brought together in tiles, so that the work is that of a block-sparse pattern. X
rows (batch and key head), N queries of a row, M keys, T blocks that a query chooses.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from variants._lists import Problem, positions, tiled
from variants._masking import group_rows, masked_softmax

ROWS = 64  # queries of a tile


def block_means(x_BGMD: torch.Tensor, key_mask: torch.Tensor | None, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the real positions of each block, (B,G,b,D), and how many there are, (B or 1, b); padding has to be 0."""
    batch, heads, length, width = x_BGMD.shape
    real_BM = torch.ones(1, length, dtype=torch.bool, device=x_BGMD.device) if key_mask is None else key_mask
    tail = -length % block
    count_Bb = F.pad(real_BM, (0, tail)).view(len(real_BM), -1, block).sum(2)
    sum_BGbD = F.pad(x_BGMD, (0, 0, 0, tail)).view(batch, heads, -1, block, width).sum(3)
    return sum_BGbD / count_Bb.clamp(min=1)[:, None, :, None], count_Bb


def best_blocks(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Numbers of the `count` largest scores of the last axis, of equal ones the first; -1 for minus infinity."""
    found, left = [], scores.clone()
    for _ in range(min(count, scores.shape[-1])):
        best = left.argmax(-1, keepdim=True)  # the first of equal ones
        found.append(best.where(left.gather(-1, best) > -torch.inf, -1))
        left.scatter_(-1, best, -torch.inf)
    return torch.cat([scores.new_empty(*scores.shape[:-1], 0, dtype=torch.int64), *found], -1)


def attend_chosen_past(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    key_mask: torch.Tensor | None,
    chosen_BHNT: torch.Tensor,
    *,
    block: int,
    scale: float,
) -> torch.Tensor:
    """Causal softmax attention to chosen blocks, (B,H,Nq,E): (B,H,Nq,D), (B,G,Nk,D), (B,G,Nk,E), key_mask (B,Nk)."""
    (batch, heads, query_len, _), (kv_heads, key_len) = q.shape, k.shape[1:3]
    parts, totals = attend_chosen(
        group_rows(q * scale, kv_heads).flatten(0, 1),
        k.flatten(0, 1),
        v.flatten(0, 1),
        group_rows(chosen_BHNT, kv_heads).flatten(0, 1),
        block=block,
        end_XN=torch.arange(key_len - query_len + 1, key_len + 1, device=q.device).repeat(
            batch * kv_heads, heads // kv_heads
        ),
        real_XM=None if key_mask is None else key_mask.repeat_interleave(kv_heads, 0),
    )
    return merge(parts, totals).view(batch, heads, query_len, -1)


def attend_chosen(
    q_XND: torch.Tensor,
    k_XMD: torch.Tensor,
    v_XME: torch.Tensor,
    chosen_XNT: torch.Tensor,
    *,
    block: int,
    end_XN: torch.Tensor,
    real_XM: torch.Tensor | None = None,
    but_XN: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """For each choice apart softmax(q k^T) v over one block, (X,N,T,E), and its totals for `merge`, (X,N,T,2).

    chosen_XNT: numbers of key blocks, -1 for none. A query sees the keys of a block before `end_XN` that are real,
    without the one at `but_XN`; where that is none, the output is 0 and the maximum minus infinity. q is scaled, all
    are float32 or wider. How the queries of other rows or later ones choose changes no result, not even its rounding.
    """
    (rows, queries, choices), keys = chosen_XNT.shape, k_XMD.shape[1]
    blocks = -(-keys // block)
    k_XMD, v_XME = (F.pad(x, (0, 0, 0, -keys % block)) for x in (k_XMD, v_XME))
    row_X11 = torch.arange(rows, device=q_XND.device)[:, None, None]
    of_P = (row_X11 * blocks + chosen_XNT).where(chosen_XNT >= 0, rows * blocks).flatten()
    tile_t, place_P = _tiles(of_P, rows * blocks)
    slots = len(tile_t) * ROWS
    # The query of each slot; the empty slots take the first one, and see nothing.
    query_P = torch.arange(len(of_P), device=of_P.device) // choices
    query_s = query_P.new_zeros(slots).scatter_(0, place_P, query_P)
    end_tr = query_P.new_zeros(slots).scatter_(0, place_P, end_XN.flatten()[query_P]).view(-1, ROWS)
    but_tr = None if but_XN is None else but_XN.flatten()[query_s].view(-1, ROWS)
    real_uS = None if real_XM is None else F.pad(real_XM, (0, -keys % block)).view(-1, block)

    def allowed(some: slice) -> torch.Tensor:
        j_t1S = positions(tile_t[some, None] % blocks, block)[:, None]
        allowed_trS = (j_t1S < end_tr[some, :, None]) & (tile_t[some] < rows * blocks)[:, None, None]
        if but_tr is not None:
            allowed_trS = allowed_trS & (j_t1S != but_tr[some, :, None])
        if real_uS is not None:
            allowed_trS = allowed_trS & real_uS[tile_t[some].clamp(max=rows * blocks - 1), None]
        return allowed_trS[None]

    problem = Problem(tile_t[:, None], block, groups=1, allowed=allowed, totals=True)
    q_1trD = q_XND.flatten(0, 1).index_select(0, query_s).view(1, -1, ROWS, q_XND.shape[2])
    out_1trE, total_1tr2 = tiled(q_1trD, k_XMD.flatten(0, 1)[None], v_XME.flatten(0, 1)[None], problem)
    out_PE, total_P2 = (x.flatten(0, 2).index_select(0, place_P) for x in (out_1trE, total_1tr2))
    return out_PE.view(rows, queries, choices, -1), total_P2.view(rows, queries, choices, 2)


def merge(parts_XNTE: torch.Tensor, totals_XNT2: torch.Tensor) -> torch.Tensor:
    """One softmax over the keys of all parts, from their outputs and totals (see `tiled`): (X,N,E), 0 without keys."""
    highest_XNT, log_sum_XNT = totals_XNT2.unbind(-1)
    highest_XNT = highest_XNT.detach()
    empty_XNT = highest_XNT == -torch.inf
    above_XNT = (highest_XNT - highest_XNT.amax(-1, keepdim=True)).masked_fill(empty_XNT, 0)
    weights_XNT, seen_XN1 = masked_softmax(above_XNT + log_sum_XNT, ~empty_XNT)
    return (weights_XNT[:, :, None] @ parts_XNTE)[:, :, 0].masked_fill(~seen_XN1, 0)


def _tiles(of_P: torch.Tensor, none: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sort choices of blocks 0..none into tiles of ROWS, each for one block: (block of each tile, place of a choice).

    There are always as many tiles as it can take, whatever is chosen; those that are left over belong to `none`.
    """
    count_u = of_P.new_zeros(none + 1).scatter_add_(0, of_P, torch.ones_like(of_P))
    tiles_u = (count_u + ROWS - 1) // ROWS
    end_u = tiles_u.cumsum(0)
    sorted_P, order_P = of_P.sort(stable=True)
    rank_P = torch.arange(len(of_P), device=of_P.device) - (count_u.cumsum(0) - count_u)[sorted_P]
    place_P = torch.empty_like(of_P).scatter_(0, order_P, (end_u - tiles_u)[sorted_P] * ROWS + rank_P)
    tile_t = torch.arange(len(of_P) // ROWS + none + 1, device=of_P.device)
    return torch.searchsorted(end_u, tile_t, right=True).clamp(max=none), place_P
