"""Multiplicative attention of Luong et al.: products of queries and keys without a scale."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from bench.pairs import full_pairs
from bench.variant import Shape, variant
from variants._reference import softmax_over, written_out
from variants._sdpa import attend


@variant(kind="different", paper="Luong et al. 2015, arXiv 1508.04025, section 3.1", time="n^2", memory="n")
class Luong(nn.Module):
    """Luong attention: softmax of unscaled scores, q . k (dot) or q W k (general), by torch's fused kernel.

    score: `general` learns one W (D, D) per head, drawn from N(0, 1/D) with a fixed seed; low precision is widened to
    float32 there, for without a scale the rounding of q W would show. The paper's third score, concat, is the variant
    `additive`.
    """

    def __init__(self, shape: Shape, *, score: Literal["dot", "general"] = "dot") -> None:
        super().__init__()
        self.shape = shape
        self.w_HDE: nn.Parameter | None = None
        if score == "general":
            size = (shape.heads, shape.head_dim, shape.head_dim)
            drawn = torch.randn(size, generator=torch.Generator().manual_seed(0))
            self.w_HDE = nn.Parameter(drawn * shape.head_dim**-0.5)

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B,H,Nq,D), (B,Hkv,Nk,D), (B,Hkv,Nk,Dv), key_mask (B,Nk) -> (B,H,Nq,Dv)."""
        if self.w_HDE is None:
            return attend(q, k, v, key_mask, causal=self.shape.causal, scale=1.0)
        sums = torch.promote_types(q.dtype, torch.float32)
        wide_q, wide_k, wide_v, w_HDE = (x.to(sums) for x in (q, k, v, self.w_HDE))
        return attend(wide_q @ w_HDE, wide_k, wide_v, key_mask, causal=self.shape.causal, scale=1.0).to(q.dtype)

    def reference(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The same in float64 with all scores at once."""
        q, k, v, allowed = written_out(q, k, v, key_mask, self.shape.causal)
        if self.w_HDE is None:
            scores_BHNM = torch.einsum("BHND,BHMD->BHNM", q, k)
        else:
            scores_BHNM = torch.einsum("BHND,HDE,BHME->BHNM", q, self.w_HDE.double(), k)
        return softmax_over(scores_BHNM, allowed) @ v

    def flops(self, query_len: int, key_len: int) -> int:
        """Per allowed pair and head 2 (D + Dv); general: 2 D^2 more per query and head."""
        width, value_dim = self.shape.head_dim, self.shape.value_dim or 0
        pairs = full_pairs(query_len, key_len, self.shape.causal)
        learned = 0 if self.w_HDE is None else query_len * 2 * width**2
        return self.shape.heads * (pairs * 2 * (width + value_dim) + learned)
