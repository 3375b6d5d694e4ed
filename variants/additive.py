"""Additive attention of Bahdanau et al., one learned vector per head."""

from __future__ import annotations

import torch
from torch import nn

from bench.pairs import full_pairs, full_pattern
from bench.variant import Shape, variant
from variants._additive import AdditiveAttention, Problem
from variants._masking import nothing_seen, zero_padding


@variant(kind="different", paper="Bahdanau et al. 2014, arXiv 1409.0473, section A.1.2", time="n^2", memory="n")
class Additive(nn.Module):
    """Additive (Bahdanau) attention: scores u . tanh(q + k), softmax over keys.

    u is learned, one vector per head, drawn from N(0, 1/D) with a fixed seed. Scores exist in tiles only and are
    computed again in the backward, so memory grows linearly.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        drawn = torch.randn(shape.heads, shape.head_dim, generator=torch.Generator().manual_seed(0))
        self.u_HD = nn.Parameter(drawn * shape.head_dim**-0.5)

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B,H,Nq,D), (B,Hkv,Nk,D), (B,Hkv,Nk,Dv), key_mask (B,Nk) -> (B,H,Nq,Dv)."""
        k, v = zero_padding(k, v, key_mask)
        (batch, heads, query_len, width), (kv_heads, key_len) = q.shape, k.shape[1:3]
        if 0 in (batch, query_len, key_len):
            return nothing_seen(q, v.shape[3])
        problem = Problem(heads, heads // kv_heads, query_len, key_len, width, self.shape.causal, key_mask)
        sums = torch.promote_types(q.dtype, torch.float32)
        rows = (x.to(sums).flatten(0, 1) for x in (q, k, v, self.u_HD.expand(batch, -1, -1)))
        out_RNE: torch.Tensor = AdditiveAttention.apply(*rows, problem)  # type: ignore[no-untyped-call]
        return out_RNE.view(batch, heads, query_len, -1).to(q.dtype)

    def reference(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The same in float64 with all Nq * Nk * D terms at once."""
        k, v = zero_padding(k.double(), v.double(), key_mask)
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        tanh_BHNMD = torch.tanh(q.double()[:, :, :, None] + k[:, :, None])
        scores_BHNM = (tanh_BHNMD * self.u_HD.double()[:, None, None]).sum(-1)
        allowed = full_pattern(q.shape[2], k.shape[2], self.shape.causal, q.device)[None, None]
        if key_mask is not None:
            allowed = allowed & key_mask[:, None, None, :]
        seen = allowed.any(-1, keepdim=True)
        weights_BHNM = scores_BHNM.masked_fill(seen & ~allowed, -torch.inf).softmax(-1)
        return (weights_BHNM @ v).masked_fill(~seen, 0)

    def flops(self, query_len: int, key_len: int) -> int:
        """Per allowed pair and head: add q and k (D), multiply by u and sum (2 D), weigh v (2 Dv)."""
        per_pair = 3 * self.shape.head_dim + 2 * (self.shape.value_dim or 0)
        return self.shape.heads * full_pairs(query_len, key_len, self.shape.causal) * per_pair
