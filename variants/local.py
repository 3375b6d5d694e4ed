"""Sliding-window attention in blocks of queries, each with a view of the keys in reach."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import nn
from torch.nn import functional as F

from bench.pairs import window_pairs, window_pattern
from bench.variant import Ge, Shape, variant
from variants._fused import one_width
from variants._masking import nothing_seen, zero_padding

QUERY_BLOCK = 128  # 64 to 256 measured: 128 trains fastest at 1k and 4k, within 15 % of the best forward


@variant(kind="exact", paper="Beltagy et al. 2020, arXiv 2004.05150, section 3.1", time="n*w", memory="n")
class Local(nn.Module):
    """Sliding-window attention: each query sees its `window` nearest positions, itself included.

    window: key j is allowed for the query at position p when 0 <= p - j < window (causal) or |p - j| < window.
    scale: factor of the scores; None is head_dim ** -0.5.
    """

    def __init__(self, shape: Shape, *, window: Annotated[int, Ge(1)] = 256, scale: float | None = None) -> None:
        super().__init__()
        if window < 1:
            raise ValueError(f"window must be at least 1, got {window}")
        self.shape = shape
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
        k_XbSD, v_XbSD = (F.pad(x, (0, 0, *edges)).unfold(2, span, rows).mT.flatten(0, 1) for x in (k, v))

        real_BM = torch.ones(1, key_len, dtype=torch.bool, device=q.device) if key_mask is None else key_mask
        real_BbS = F.pad(real_BM, edges).unfold(1, span, rows)
        near_rS = window_pattern(span - back, span, self.window, self.shape.causal, q.device)[:rows]
        allowed_XbRS = (real_BbS[:, :, None] & near_rS.repeat(groups, 1)).repeat_interleave(
            1 if key_mask is None else kv_heads, 0
        )
        out_XbRD = F.scaled_dot_product_attention(q_XbRD, k_XbSD, v_XbSD, attn_mask=allowed_XbRS, scale=self.scale)
        out_BGbCrD = out_XbRD.view(batch, kv_heads, blocks, groups, rows, -1).transpose(2, 3)
        return out_BGbCrD.reshape(batch, heads, blocks * rows, -1)[:, :, :query_len, :value_dim]

    def pattern(self, query_len: int, key_len: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Allowed pairs, bool (Nq, Nk)."""
        return window_pattern(query_len, key_len, self.window, self.shape.causal, device)

    def pairs(self, query_len: int, key_len: int) -> int:
        """Number of allowed pairs per head."""
        return window_pairs(query_len, key_len, self.window, self.shape.causal)
