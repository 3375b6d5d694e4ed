"""Attention sinks of StreamingLLM: a sliding window, and the first few keys for everybody."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import nn
from torch.nn import functional as F

from bench.pairs import full_pattern, window_pairs, window_pattern
from bench.variant import Ge, Shape, variant
from variants._fused import one_width
from variants._masking import nothing_seen, zero_padding

QUERY_BLOCK = 128  # as in `local`


@variant(kind="exact", paper="Xiao et al. 2023, arXiv 2309.17453, section 3.2", time="n*w", memory="n")
class Sinks(nn.Module):
    """Sliding window plus attention sinks: each query sees the first keys and its nearest positions.

    sinks: how many first keys every query may see (when causal, those up to itself); the paper keeps 4. window: key j
    is also allowed for the query at position p when 0 <= p - j < window (causal) or |p - j| < window. Positions are
    those of the sequence: the paper's renumbering inside its cache belongs to decoding with a rotary code.
    scale: factor of the scores; None is head_dim ** -0.5.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        sinks: Annotated[int, Ge(0)] = 4,
        window: Annotated[int, Ge(1)] = 256,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        for name, value, least in (("sinks", sinks, 0), ("window", window, 1)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        self.shape = shape
        self.sinks = sinks
        self.window = window
        self.scale = shape.scale if scale is None else scale

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B,H,Nq,D), (B,Hkv,Nk,D), (B,Hkv,Nk,Dv), key_mask (B,Nk) -> (B,H,Nq,Dv)."""
        k, v = zero_padding(k, v, key_mask)
        (batch, heads, query_len, _), (kv_heads, key_len), value_dim = q.shape, k.shape[1:3], v.shape[3]
        if 0 in (batch, query_len, key_len):
            return nothing_seen(q, value_dim)
        q, k, v = one_width(q, k, v)
        # Block b holds the queries at positions first + b * rows ..., and sees `span` positions from `back` before.
        rows, first = min(QUERY_BLOCK, query_len), key_len - query_len
        blocks, groups = -(-query_len // rows), heads // kv_heads
        back = min(self.window, max(query_len, key_len)) - 1
        span = back + rows + (0 if self.shape.causal else back)
        edges = (back - first, blocks * rows - query_len + span - back - rows)  # positions that no key has

        q_BGCbrD = F.pad(q, (0, 0, 0, blocks * rows - query_len)).view(batch, kv_heads, groups, blocks, rows, -1)
        q_XbRD = q_BGCbrD.transpose(2, 3).reshape(batch * kv_heads, blocks, groups * rows, -1)
        count = min(self.sinks, key_len)
        k_XbSD, v_XbSD = (
            torch.cat([x[:, :, None, :count].expand(-1, -1, blocks, -1, -1), near.mT], 3).flatten(0, 1)
            for x, near in ((x, F.pad(x, (0, 0, *edges)).unfold(2, span, rows)) for x in (k, v))
        )

        # A sink that lies in the window counts once, as a sink.
        real_BM = torch.ones(1, key_len, dtype=torch.bool, device=q.device) if key_mask is None else key_mask
        other_BM = real_BM & (torch.arange(key_len, device=q.device) >= count)
        other_BbS = F.pad(other_BM, edges).unfold(1, span, rows)
        near_rS = window_pattern(span - back, span, self.window, self.shape.causal, q.device)[:rows]
        position_br1 = torch.arange(first, first + blocks * rows, device=q.device).view(blocks, rows, 1)
        past_brS = (position_br1 >= torch.arange(count, device=q.device)) | (not self.shape.causal)
        allowed_BbrS = torch.cat(
            [real_BM[:, None, None, :count] & past_brS, other_BbS[:, :, None] & near_rS.expand(blocks, -1, -1)], 3
        )
        allowed_XbRS = allowed_BbrS.repeat(1, 1, groups, 1).repeat_interleave(1 if key_mask is None else kv_heads, 0)
        out_XbRD = F.scaled_dot_product_attention(q_XbRD, k_XbSD, v_XbSD, attn_mask=allowed_XbRS, scale=self.scale)
        out_BGbCrD = out_XbRD.view(batch, kv_heads, blocks, groups, rows, -1).transpose(2, 3)
        return out_BGbCrD.reshape(batch, heads, blocks * rows, -1)[:, :, :query_len, :value_dim]

    def pattern(self, query_len: int, key_len: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Allowed pairs, bool (Nq, Nk)."""
        near_NM = window_pattern(query_len, key_len, self.window, self.shape.causal, device)
        sink_M = torch.arange(key_len, device=device) < self.sinks
        return near_NM | (full_pattern(query_len, key_len, self.shape.causal, device) & sink_M)

    def pairs(self, query_len: int, key_len: int) -> int:
        """Number of allowed pairs per head: those of the window, and the sinks outside it.

        The sinks that a query has left behind are as many as the keys of a causal window of that size at the position
        `window` earlier; those that are still ahead of its window, as many as such a window would miss further on.
        """
        count = min(self.sinks, key_len)
        near = window_pairs(query_len, key_len, self.window, self.shape.causal)
        if not count:
            return near
        behind = window_pairs(query_len, key_len - self.window, count, True)
        if self.shape.causal:
            return near + behind
        return near + behind + query_len * count - window_pairs(query_len, key_len + self.window - 1, count, True)
