"""Sliding windows as lists of key blocks: each block of queries sees the blocks around it."""

from __future__ import annotations

import torch

from bench.pairs import near
from bench.variant import check_key_mask
from variants._lists import attend_lists, others, query_blocks

BLOCK, NARROW = 64, 128  # queries of a block; half as many are faster for windows up to NARROW, forward and train


def attend_window(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    key_mask: torch.Tensor | None,
    *,
    window: int,
    causal: bool,
    scale: float,
    tokens: int = 0,
) -> torch.Tensor:
    """Softmax attention in a sliding window: (B,H,Nq,D), (B,G,Nk,D), (B,G,Nk,E), key_mask (B,Nk) -> (B,H,Nq,E).

    tokens: how many first keys are seen from outside the window too, when causal by those after them.
    """
    check_key_mask(key_mask, len(k), k.shape[2])
    unseen = 0 if tokens else max(0, k.shape[2] - q.shape[2] - window + 1)
    k, v = k[:, :, unseen:], v[:, :, unseen:]
    key_mask = None if key_mask is None else key_mask[:, unseen:]
    block = max(1, min(BLOCK // 2 if window <= NARROW else BLOCK, q.shape[2]))
    lists_bL = _window_lists(q.shape[2], k.shape[2], block, window, causal, q.device)
    if tokens:
        lists_bL = torch.cat([lists_bL, others(lists_bL, -(-tokens // block))], 1)

    def rule(p: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        allowed = near(p - j, window, causal)
        return allowed | ((j < tokens) & ((j <= p) | (not causal))) if tokens else allowed

    return attend_lists(q, k, v, key_mask, block=block, lists_bL=lists_bL, rule=rule, scale=scale)


def _window_lists(
    query_len: int, key_len: int, block: int, window: int, causal: bool, device: torch.device
) -> torch.Tensor:
    """For every block of queries the blocks that its windows touch, (b, L), in order."""
    reach = -(-(min(window, max(query_len, key_len, 1)) - 1) // block)
    offsets_L = torch.arange(-reach, 1 if causal else reach + 1, device=device)
    return query_blocks(query_len, key_len, block, device)[:, None] + offsets_L
