"""Sparse attention of Child et al.: a near and a far pattern of about sqrt(n) keys each, in one softmax."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import nn
from torch.nn import functional as F

from bench.pairs import distances, fixed_pairs, full_pattern, strided_pairs, window_pattern
from bench.variant import Ge, Shape, variant
from variants._masking import masked_softmax, nothing_seen, zero_padding


@variant(kind="exact", paper="Child et al. 2019, arXiv 1904.10509, section 4.2", time="n^1.5", memory="n^1.5")
class Sparse(nn.Module):
    """Sparse attention, strided or fixed: near keys and a regular sample of far ones.

    The two patterns of the paper are merged: every head attends to their union in one softmax. For the query at
    position p and key j, l = stride, c = summary, and j <= p when causal:

    - strided: |p - j| < l, or (p - j) mod l == 0;
    - fixed: j in the block of p (j // l == p // l), or j one of the last c positions of any block (j mod l >= l - c).

    Without causality the same holds on both sides (an extension: the paper is causal). stride: about sqrt(n) gives the
    paper's cost; memory is n * (l + n / l), for fixed n * (l + c * n / l). scale: None is head_dim ** -0.5.
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
        (batch, heads, query_len, _), (kv_heads, key_len) = q.shape, k.shape[1:3]
        if 0 in (batch, query_len, key_len):
            return nothing_seen(q, v.shape[3])
        # Queries in blocks of absolute positions: `ahead` empty places come before the first one.
        start, ahead = divmod(key_len - query_len, self.stride)
        q_BHPD = F.pad(q * self.scale, (0, 0, ahead, -key_len % self.stride))
        q_BGgbrD = q_BHPD.view(batch, kv_heads, heads // kv_heads, -1, self.stride, q.shape[3])
        blocks = q_BGgbrD.shape[3]
        real_B1M1 = q.new_ones(1, 1, key_len, 1, dtype=torch.bool) if key_mask is None else key_mask[:, None, :, None]
        k_BGbsD, v_BGbsE, real_B1bs1 = (self._near(x, start, blocks) for x in (k, v, real_B1M1))
        k_BGrfD, v_BGrfE, real_B1rf1 = (self._far(x) for x in (k, v, real_B1M1))

        near_BGgbrs = torch.einsum("BGgbrD,BGbsD->BGgbrs", q_BGgbrD, k_BGbsD)
        far_BGgbrf = torch.einsum("BGgbrD,BGrfD->BGgbrf", q_BGgbrD, k_BGrfD)
        near_B11brs = real_B1bs1.mT[:, :, None] & self._near_pattern(q.device)
        far_B11brf = real_B1rf1[:, :, None, None, ..., 0] & self._far_pattern(start, blocks, key_len, q.device)
        weights, seen_B11br1 = masked_softmax(
            torch.cat([near_BGgbrs, far_BGgbrf], -1),
            torch.cat([near_B11brs, far_B11brf.expand(-1, -1, -1, -1, self.stride, -1)], -1),
        )
        near_BGgbrs, far_BGgbrf = torch.split(weights, [near_BGgbrs.shape[-1], far_BGgbrf.shape[-1]], -1)
        out_BGgbrE = torch.einsum("BGgbrs,BGbsE->BGgbrE", near_BGgbrs, v_BGbsE)
        out_BGgbrE = out_BGgbrE + torch.einsum("BGgbrf,BGrfE->BGgbrE", far_BGgbrf, v_BGrfE)
        out_BHPE = out_BGgbrE.masked_fill(~seen_B11br1, 0).reshape(batch, heads, blocks * self.stride, -1)
        return out_BHPE.narrow(2, ahead, query_len)

    def _near(self, x_BGMD: torch.Tensor, start: int, blocks: int) -> torch.Tensor:
        """For every block of queries the keys around it, (B, G, blocks, span, D): a view of a padded copy."""
        back, after = self._reach()
        edges = (0, 0, back - start * self.stride, (start + blocks) * self.stride + after - x_BGMD.shape[2])
        return F.pad(x_BGMD, edges).unfold(2, back + self.stride + after, self.stride).mT

    def _far(self, x_BGMD: torch.Tensor) -> torch.Tensor:
        """Keys by place in their block, (B, G, stride, blocks, D); fixed: the summaries, the same for all places."""
        batch, heads, length, width = x_BGMD.shape
        x_BGPD = F.pad(x_BGMD, (0, 0, 0, -length % self.stride))
        x_BGbrD = x_BGPD.view(batch, heads, -(-length // self.stride), self.stride, width)
        if self.fixed:
            return x_BGbrD[:, :, :, self.stride - self.summary :].flatten(2, 3)[:, :, None]
        return x_BGbrD.transpose(2, 3)

    def _reach(self) -> tuple[int, int]:
        """How far the near keys of a block go beyond it, to the past and to the future."""
        back = 0 if self.fixed else self.stride
        return back, 0 if self.shape.causal else back

    def _near_pattern(self, device: torch.device) -> torch.Tensor:
        """(stride, span): which of the keys around its block a query may see."""
        if self.fixed:
            return full_pattern(self.stride, self.stride, self.shape.causal, device)
        back, after = self._reach()
        # After the block's own rows come `after` more positions: they are keys only.
        keys = self.stride + after
        return window_pattern(keys, back + keys, self.stride, self.shape.causal, device)[: self.stride]

    def _far_pattern(self, start: int, blocks: int, key_len: int, device: torch.device) -> torch.Tensor:
        """(blocks, 1, far keys): those of earlier (causal) or other blocks; the own block is near."""
        own_b1 = torch.arange(start, start + blocks, device=device)[:, None]
        count = -(-key_len // self.stride) * self.summary
        of_f = torch.arange(count, device=device) // self.summary
        return (of_f < own_b1 if self.shape.causal else of_f != own_b1)[:, None]

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
