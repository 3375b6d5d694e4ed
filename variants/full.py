"""Softmax attention written out: every score and every weight is stored."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from bench.pairs import distances, full_pairs, full_pattern
from bench.variant import Shape, variant
from variants._bias import position_bias
from variants._masking import group_rows, zero_padding


@variant(kind="exact", paper="Vaswani et al. 2017, arXiv 1706.03762, eq. 1", time="n^2", memory="n^2")
class Full(nn.Module):
    """Softmax attention written out: two n-by-n matrices in memory.

    scale: factor of the scores; None is head_dim ** -0.5, and 0.0 averages the allowed values. bias: what is added to
    them by distance: `alibi`, or `t5` (learned buckets; T5 itself has scale 1.0 beside it).
    """

    def __init__(
        self, shape: Shape, *, scale: float | None = None, bias: Literal["none", "alibi", "t5"] = "none"
    ) -> None:
        super().__init__()
        self.shape = shape
        self.scale = shape.scale if scale is None else scale
        self.position_bias = position_bias(bias, shape)

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B,H,Nq,D), (B,Hkv,Nk,D), (B,Hkv,Nk,Dv), key_mask (B,Nk) -> (B,H,Nq,Dv)."""
        k, v = zero_padding(k, v, key_mask)
        q_XRD, k_XMD, v_XME = (x.flatten(0, 1) for x in (group_rows(q, k.shape[1]), k, v))
        added, seen_B1N1 = self._added(q, k, key_mask)
        # The scale is a factor inside the product, before rounding: low precision does not overflow, and neither a
        # scaled copy of q nor a second one of the scores is kept.
        scores_XRM = torch.baddbmm(added, q_XRD, k_XMD.mT, alpha=self.scale)
        del added  # n by n when anything is masked, and not needed further
        out_BHNE = (scores_XRM.softmax(-1) @ v_XME).view(*q.shape[:3], v.shape[3])
        return out_BHNE if seen_B1N1 is None else out_BHNE.masked_fill(~seen_B1N1, 0)

    def _added(
        self, q: torch.Tensor, k: torch.Tensor, key_mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What is added to the scores, by position and minus infinity, and which queries see any key; None means all.

        The bias of a query that sees none is finite: its weights and gradients stay so, and its output is set to 0.
        """
        masked = key_mask is not None or self.shape.causal
        if not masked and self.position_bias is None:
            return q.new_zeros(1, 1, 1), None
        (batch, heads, query_len, _), (kv_heads, key_len) = q.shape, k.shape[1:3]
        bias_BHNM, seen_B1N1 = q.new_zeros(1, 1, 1, 1), None
        if self.position_bias is not None:
            bias_BHNM = self.position_bias(distances(query_len, key_len, q.device), q.dtype)[None]
        if masked:
            allowed_B1NM = self.pattern(query_len, key_len, q.device)[None, None]
            if key_mask is not None:
                allowed_B1NM = allowed_B1NM & key_mask[:, None, None]
            seen_B1N1 = allowed_B1NM.any(-1, keepdim=True)
            bias_BHNM = bias_BHNM.masked_fill(seen_B1N1 & ~allowed_B1NM, -torch.inf)
        if bias_BHNM.shape[:2] != (1, 1):  # else one matrix serves all
            bias_BHNM = bias_BHNM.expand(batch, heads, -1, -1)
            return bias_BHNM.reshape(batch * kv_heads, heads // kv_heads * query_len, key_len), seen_B1N1
        return bias_BHNM[0].repeat(1, heads // kv_heads, 1), seen_B1N1

    def bias(self, query_len: int, key_len: int) -> torch.Tensor | None:
        """What is added to the scores, float64 (H, Nq, Nk); None for nothing."""
        gap_NM = distances(query_len, key_len)
        return None if self.position_bias is None else self.position_bias(gap_NM, torch.float64)

    def pattern(self, query_len: int, key_len: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Allowed pairs, bool (Nq, Nk)."""
        return full_pattern(query_len, key_len, self.shape.causal, device)

    def pairs(self, query_len: int, key_len: int) -> int:
        """Number of allowed pairs per head."""
        return full_pairs(query_len, key_len, self.shape.causal)
