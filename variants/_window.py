"""Sliding windows as lists of key blocks: each block of queries sees the blocks around it."""

from __future__ import annotations

import torch

from bench.pairs import near
from bench.variant import check_key_mask
from variants._lists import Seen, attend_lists, others, query_blocks

BLOCK = 32  # queries of a block: of 16, 32 and 64 the fastest or nearly so for windows of 32 to 512, forward and train


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
    seen = seen_in_window(q, k, window=window, causal=causal, tokens=tokens)
    return attend_lists(q, k, v, key_mask, seen, scale=scale)


def seen_in_window(q: torch.Tensor, k: torch.Tensor, *, window: int, causal: bool, tokens: int = 0) -> Seen:
    """The keys in a sliding window around every query, and the first ones."""
    block = max(1, min(BLOCK, q.shape[2]))
    back = -(-(min(window, max(q.shape[2], k.shape[2], 1)) - 1) // block)
    around = back, 0 if causal else back
    offsets_L = torch.arange(-back, around[1] + 1, device=q.device)
    lists_bL = query_blocks(q.shape[2], k.shape[2], block, q.device)[:, None] + offsets_L
    if tokens:
        lists_bL = torch.cat([lists_bL, others(lists_bL, -(-tokens // block))], 1)

    def rule(p: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        allowed = near(p - j, window, causal)
        return allowed | ((j < tokens) & ((j <= p) | (not causal))) if tokens else allowed

    return Seen(block, lists_bL, rule, None if tokens else around)
