"""Sparse attention of Child et al.: a near and a far pattern of about sqrt(n) keys each, in one softmax."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import nn
from torch.nn import functional as F

from bench.pairs import distances, fixed_pairs, full_pattern, strided_pairs
from bench.variant import Ge, Shape, variant
from variants._lists import Problem, Seen, join, part_of_lists, query_blocks, tiled
from variants._masking import nothing_seen, zero_padding
from variants._window import seen_in_window


@variant(kind="exact", paper="Child et al. 2019, arXiv 1904.10509, section 4.2", time="n^1.5", memory="n")
class Sparse(nn.Module):
    """Sparse attention, strided or fixed: near keys and a regular sample of far ones.

    The two patterns of the paper are merged: every head attends to their union in one softmax. For the query at
    position p and key j, l = stride, c = summary, and j <= p when causal:

    - strided: |p - j| < l, or (p - j) mod l == 0;
    - fixed: j in the block of p (j // l == p // l), or j one of the last c positions of any block (j mod l >= l - c).

    Without causality the same holds on both sides (an extension: the paper is causal). stride: about sqrt(n) gives the
    paper's cost. Near and far keys are computed apart, and their softmax is joined. scale: None is head_dim ** -0.5.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        mode: Literal["strided", "fixed"] = "strided",
        stride: Annotated[int, Ge(1)] = 64,
        summary: Annotated[int, Ge(1)] = 8,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        if stride < 1:
            raise ValueError(f"stride must be at least 1, got {stride}")
        if mode == "fixed" and not 1 <= summary <= stride:
            raise ValueError(f"summary must be from 1 to stride={stride}, got {summary}")
        self.shape = shape
        self.fixed = mode == "fixed"
        self.stride = stride
        self.summary = summary if self.fixed else 1
        self.scale = shape.scale if scale is None else scale

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B,H,Nq,D), (B,Hkv,Nk,D), (B,Hkv,Nk,Dv), key_mask (B,Nk) -> (B,H,Nq,Dv)."""
        k, v = zero_padding(k, v, key_mask)
        if 0 in (q.shape[0], q.shape[2], k.shape[2]):
            return nothing_seen(q, v.shape[3])
        near, near_totals = part_of_lists(q, k, v, key_mask, self._near(q, k), scale=self.scale)
        far, far_totals = self._far(q, k, v, key_mask)
        return join(near, far, near_totals, far_totals).to(q.dtype)

    def _near(self, q: torch.Tensor, k: torch.Tensor) -> Seen:
        """The keys around every query, itself included."""
        causal = self.shape.causal
        if not self.fixed:
            return seen_in_window(q, k, window=self.stride, causal=causal)
        own_b1 = query_blocks(q.shape[2], k.shape[2], self.stride, q.device)[:, None]
        return Seen(self.stride, own_b1, lambda p, j: j <= p if causal else j == j, (0, 0))

    def _far(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, key_mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What the keys of other blocks give, (B,H,Nq,E), and its totals (B,H,Nq,2), see `join`.

        Queries and keys are cut into blocks of absolute positions. Strided: those at the same place of their block are
        a problem of their own. Fixed: a block of queries sees the summaries of all blocks.
        """
        wide = torch.promote_types(q.dtype, torch.float32)
        (batch, heads, query_len, width), (kv_heads, key_len) = q.shape, k.shape[1:3]
        (start, ahead), tail = divmod(key_len - query_len, self.stride), -key_len % self.stride
        cut = batch, kv_heads, -1, self.stride
        k_BGmrD, v_BGmrE = (F.pad(x.to(wide), (0, 0, 0, tail)).view(*cut, x.shape[3]) for x in (k, v))
        q_BGgbrD = F.pad(q.to(wide), (0, 0, ahead, tail)).view(batch, kv_heads, heads // kv_heads, *cut[2:], width)
        groups, blocks = q_BGgbrD.shape[2:4]
        real_BM = q.new_ones(1, key_len, dtype=torch.bool) if key_mask is None else key_mask
        real_Bmr = F.pad(real_BM, (0, tail)).view(len(real_BM), -1, self.stride)
        allowed_bm = self._other_blocks(start, blocks, k_BGmrD.shape[2], q.device)
        if self.fixed:
            at = self.stride - self.summary
            q_XbRD = q_BGgbrD.transpose(2, 3).reshape(batch * kv_heads, blocks, -1, width)
            k_XMD, v_XME = (x[:, :, :, at:].reshape(batch * kv_heads, -1, x.shape[4]) for x in (k_BGmrD, v_BGmrE))
            seen_BbM = allowed_bm.repeat_interleave(self.summary, 1) & real_Bmr[:, None, :, at:].flatten(2)
            allowed_EbrM = seen_BbM[:, :, None].expand(-1, -1, self.stride, -1)
        else:
            q_XbRD = q_BGgbrD.permute(0, 4, 1, 2, 3, 5).reshape(batch * self.stride * kv_heads, 1, -1, width)
            k_XMD, v_XME = (x.permute(0, 3, 1, 2, 4).reshape(len(q_XbRD), -1, x.shape[4]) for x in (k_BGmrD, v_BGmrE))
            alike = key_mask is None and (self.shape.causal or not tail)  # causal, nothing comes after the last block
            real_Em = real_Bmr[:, :, 0] if alike else real_Bmr.mT.expand(batch, -1, -1).flatten(0, 1)
            allowed_EbrM = (allowed_bm & real_Em[:, None])[:, None]
        lists_b1 = torch.zeros(q_XbRD.shape[1], 1, dtype=torch.int64, device=q.device)
        problem = Problem(
            lists_b1, k_XMD.shape[1], groups, lambda some: allowed_EbrM[:, some], scale=self.scale, totals=True
        )

        def joined(x_XbRE: torch.Tensor) -> torch.Tensor:
            if self.fixed:
                x_BGgbrE = x_XbRE.view(batch, kv_heads, blocks, groups, self.stride, -1).transpose(2, 3)
            else:
                x_BGgbrE = x_XbRE.view(batch, self.stride, kv_heads, groups, blocks, -1).permute(0, 2, 3, 4, 1, 5)
            return x_BGgbrE.reshape(batch, heads, blocks * self.stride, -1).narrow(2, ahead, query_len)

        out_XbRE, totals_XbR2 = tiled(q_XbRD, k_XMD, v_XME, problem)
        return joined(out_XbRE), joined(totals_XbR2)

    def _other_blocks(self, start: int, blocks: int, key_blocks: int, device: torch.device) -> torch.Tensor:
        """Which blocks of keys are far from which blocks of queries, (b, m): earlier (causal) or other ones."""
        own_b1 = torch.arange(start, start + blocks, device=device)[:, None]
        other_m = torch.arange(key_blocks, device=device)
        return other_m < own_b1 if self.shape.causal else other_m != own_b1

    def pattern(self, query_len: int, key_len: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Allowed pairs, bool (Nq, Nk), the same for every head."""
        gap_NM = distances(query_len, key_len, device)
        keys_M = torch.arange(key_len, device=device)
        if self.fixed:
            same_NM = (gap_NM + keys_M) // self.stride == keys_M // self.stride
            allowed_NM = same_NM | (keys_M % self.stride >= self.stride - self.summary)
        else:
            allowed_NM = (gap_NM.abs() < self.stride) | (gap_NM % self.stride == 0)
        return allowed_NM & full_pattern(query_len, key_len, self.shape.causal, device)

    def pairs(self, query_len: int, key_len: int) -> int:
        """Number of allowed pairs per head."""
        if self.fixed:
            return fixed_pairs(query_len, key_len, self.stride, self.summary, self.shape.causal)
        return strided_pairs(query_len, key_len, self.stride, self.shape.causal)
