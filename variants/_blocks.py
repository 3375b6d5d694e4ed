"""Attention by a weighing of the scores, in blocks of queries: nothing that grows with Nq * Nk is stored.

g query heads share one of G key heads; R queries of a block, M keys that any of them may see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from bench.pairs import full_pattern
from variants._masking import group_rows, masked_softmax, nothing_seen, zero_padding

# (scores (B,G,g,R,M), which of them are allowed, broadcastable, or None for all) -> weights; may overwrite the scores.
# The weights of a query to which nothing is allowed are 0.
Weigh = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]

TILE = {"cpu": 2**20}  # scores that exist at a time: 4 MiB of float32 stay near the cache
TILE_ELSEWHERE = 2**24  # enough to fill an accelerator
FEWEST = 16  # queries of a block, however long the keys: below, the products are slow


def attend_in_blocks(
    weigh: Weigh,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    key_mask: torch.Tensor | None,
    *,
    causal: bool,
    scale: float,
) -> torch.Tensor:
    """weigh(scale * q k^T) v: (B,H,Nq,D), (B,G,Nk,D), (B,G,Nk,E), key_mask (B,Nk) -> (B,H,Nq,E).

    Scores are weighed in float32 or wider, and computed again in the backward; causal blocks leave out the future.
    """
    k, v = zero_padding(k, v, key_mask)
    blind = max(0, q.shape[2] - k.shape[2]) if causal else 0
    if 0 in (q.shape[0], q.shape[2], k.shape[2]):
        return nothing_seen(q, v.shape[3])
    out: torch.Tensor = _Blocks.apply(q[:, :, blind:] * scale, k, v, weigh, key_mask, causal)  # type: ignore[no-untyped-call]
    return F.pad(out, (0, 0, blind, 0)) if blind else out


def softmax(scores: torch.Tensor, allowed: torch.Tensor | None) -> torch.Tensor:
    """A `Weigh`: softmax over what is allowed."""
    if allowed is None:
        return scores.softmax(-1)
    weights, seen = masked_softmax(scores, allowed)
    return weights * seen


class _Blocks(torch.autograd.Function):
    """Keeps q, k and v only."""

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        weigh: Weigh,
        key_mask: torch.Tensor | None,
        causal: bool,
    ) -> torch.Tensor:
        """Block by block of queries."""
        ctx.save_for_backward(q, k, v)
        ctx.how = weigh, key_mask, causal
        out = q.new_empty(*q.shape[:3], v.shape[3])
        for rows, seen, allowed in _strips(q, k, key_mask, causal):
            out[:, :, rows] = _mix(weigh, q[:, :, rows], k[:, :, :seen], v[:, :, :seen], allowed)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Each block once more, on a graph of its own; sums over blocks are float32 or wider."""
        q, k, v = ctx.saved_tensors
        weigh, key_mask, causal = ctx.how
        dq = torch.empty_like(q)
        dk, dv = (torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32)) for x in (k, v))
        for rows, seen, allowed in _strips(q, k, key_mask, causal):
            q_block, k_seen, v_seen = (x.detach() for x in (q[:, :, rows], k[:, :, :seen], v[:, :, :seen]))
            leaves = [x.requires_grad_() for x in (q_block, k_seen, v_seen)]
            with torch.enable_grad():
                out = _mix(weigh, q_block, k_seen, v_seen, allowed)
            dq[:, :, rows], dk_seen, dv_seen = torch.autograd.grad(out, leaves, grad[:, :, rows])
            dk[:, :, :seen] += dk_seen
            dv[:, :, :seen] += dv_seen
        return dq, dk.to(k.dtype), dv.to(v.dtype), None, None, None


def _strips(
    q: torch.Tensor, k: torch.Tensor, key_mask: torch.Tensor | None, causal: bool
) -> Iterator[tuple[slice, int, torch.Tensor | None]]:
    """(queries, number of keys that they may see, which: (B or 1, 1, 1, R, M) or None); no query comes before key 0."""
    (batch, heads, query_len, _), key_len = q.shape, k.shape[2]
    tile = TILE.get(q.device.type, TILE_ELSEWHERE)
    rows = max(FEWEST, tile // (batch * heads * key_len))
    for start in range(0, query_len, rows):
        end = min(start + rows, query_len)
        seen = key_len - query_len + end if causal else key_len
        allowed = full_pattern(end - start, seen, True, q.device)[None, None, None] if causal else None
        if key_mask is not None:
            real = key_mask[:, None, None, None, :seen]
            allowed = real if allowed is None else real & allowed
        yield slice(start, end), seen, allowed


def _mix(
    weigh: Weigh, q_BHRD: torch.Tensor, k_BGMD: torch.Tensor, v_BGME: torch.Tensor, allowed: torch.Tensor | None
) -> torch.Tensor:
    (batch, heads, rows, _), kv_heads = q_BHRD.shape, k_BGMD.shape[1]
    scores_BGXM = group_rows(q_BHRD, kv_heads) @ k_BGMD.mT
    scores_BGgRM = scores_BGXM.to(torch.promote_types(q_BHRD.dtype, torch.float32)).view(
        batch, kv_heads, heads // kv_heads, rows, -1
    )
    weights_BGgRM = weigh(scores_BGgRM, allowed).to(v_BGME.dtype)
    return (weights_BGgRM.flatten(2, 3) @ v_BGME).view(batch, heads, rows, -1)
