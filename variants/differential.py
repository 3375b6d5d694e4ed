"""Differential attention: the difference of two softmax maps, which cancels what both attend to by accident."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import nn
from torch.nn import functional as F

from bench.pairs import full_pairs
from bench.variant import Ge, Lt, Shape, Unsupported, variant
from variants._reference import softmax_over, written_out
from variants._sdpa import attend

EPS = 1e-5  # of the norm, as published


@variant(
    kind="different",
    paper="Ye et al. 2024, arXiv 2410.05258, section 2.1",
    time="n^2",
    memory="n",
    normalised=False,
)
class Differential(nn.Module):
    """Differential attention: (softmax(q1 k1) - lambda softmax(q2 k2)) v, normalised per head.

    Pairing: q1 and k1 are the first half of a head's width, q2 and k2 the second; v keeps its whole width. So D must
    be even, and a head has the paper's two maps. lambda = exp(a1 . b1) - exp(a2 . b2) + lambda_init, one for all heads,
    a and b learned, drawn from N(0, 0.1^2) with a fixed seed; then RMSNorm over Dv with learned gains, times
    1 - lambda_init. lambda_init: the paper has 0.8 - 0.6 exp(-0.3 (l - 1)) in layer l, or 0.8 in all. scale: factor of
    the scores; None is (D / 2) ** -0.5. Both maps go through torch's fused kernel; low precision is widened to float32,
    for the norm magnifies what rounding leaves of the difference.
    """

    def __init__(
        self, shape: Shape, *, lambda_init: Annotated[float, Ge(0), Lt(1)] = 0.8, scale: float | None = None
    ) -> None:
        super().__init__()
        if shape.head_dim % 2:
            raise Unsupported(f"head_dim must be even (two maps of half the width), got {shape.head_dim}")
        if not 0 <= lambda_init < 1:
            raise ValueError(f"lambda_init must be at least 0 and less than 1, got {lambda_init}")
        half = shape.head_dim // 2
        self.shape = shape
        self.lambda_init = lambda_init
        self.scale = half**-0.5 if scale is None else scale
        self.ab_22D = nn.Parameter(torch.randn(2, 2, half, generator=torch.Generator().manual_seed(0)) * 0.1)
        self.gain_E = nn.Parameter(torch.ones(shape.value_dim or half * 2))

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B,H,Nq,D), (B,Hkv,Nk,D), (B,Hkv,Nk,Dv), key_mask (B,Nk) -> (B,H,Nq,Dv)."""
        sums = torch.promote_types(q.dtype, torch.float32)
        wide_q, wide_k, wide_v, ab_22D, gain_E = (x.to(sums) for x in (q, k, v, self.ab_22D, self.gain_E))
        first, second = (
            attend(*halves, wide_v, key_mask, causal=self.shape.causal, scale=self.scale)
            for halves in zip(wide_q.chunk(2, -1), wide_k.chunk(2, -1), strict=True)
        )
        plus, minus = ab_22D.prod(1).sum(-1).exp()
        mixed = first - (plus - minus + self.lambda_init) * second
        return (F.rms_norm(mixed, mixed.shape[-1:], gain_E, EPS) * (1 - self.lambda_init)).to(q.dtype)

    def reference(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The same in float64, with both maps written out and subtracted before they meet the values."""
        half, ((a1, b1), (a2, b2)) = q.shape[3] // 2, self.ab_22D.double()
        q, k, v, allowed = written_out(q, k, v, key_mask, self.shape.causal)
        first, second = (
            softmax_over(self.scale * q[..., part] @ k[..., part].mT, allowed)
            for part in (slice(0, half), slice(half, None))
        )
        weight = torch.exp(a1 @ b1) - torch.exp(a2 @ b2) + self.lambda_init
        mixed = (first - weight * second) @ v
        square = (mixed * mixed).mean(-1, keepdim=True)
        return (1 - self.lambda_init) * self.gain_E.double() * mixed / (square + EPS).sqrt()

    def flops(self, query_len: int, key_len: int) -> int:
        """Per allowed pair and head: two products of half the width (2 D) and two weighted sums of v (4 Dv)."""
        per_pair = 2 * self.shape.head_dim + 4 * (self.shape.value_dim or 0)
        return self.shape.heads * full_pairs(query_len, key_len, self.shape.causal) * per_pair
