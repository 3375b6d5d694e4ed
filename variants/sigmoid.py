"""Sigmoid attention: every key is weighed for itself, and the weights of a query do not sum to 1."""

from __future__ import annotations

import math

import torch
from torch import nn

from bench.pairs import full_pairs
from bench.variant import Shape, variant
from variants._blocks import attend_in_blocks
from variants._reference import written_out


@variant(
    kind="different",
    paper="Ramapuram et al. 2024, arXiv 2409.04431, eq. 3",
    time="n^2",
    memory="n",
    normalised=False,
)
class Sigmoid(nn.Module):
    """Sigmoid attention: out = sigmoid(scale * q k^T + b) v with b = -log of the number of keys a query may attend to.

    The paper's b is -log n for a sequence of n. Here n counts the allowed keys of each query, without padding: the same
    without causality; with it, position p has b = -log(p + 1), what the paper gives to the sequence that ends there,
    so that an output does not depend on how much comes after it, and decoding equals training.
    scale: None is head_dim ** -0.5. Weights exist in blocks of queries and are computed again in the backward.
    """

    def __init__(self, shape: Shape, *, scale: float | None = None) -> None:
        super().__init__()
        self.shape = shape
        self.scale = shape.scale if scale is None else scale

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B,H,Nq,D), (B,Hkv,Nk,D), (B,Hkv,Nk,Dv), key_mask (B,Nk) -> (B,H,Nq,Dv)."""
        return attend_in_blocks(weigh, q, k, v, key_mask, causal=self.shape.causal, scale=self.scale)

    def reference(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The same in float64 with all weights at once: 1 / (1 + n exp(-score))."""
        q, k, v, allowed = written_out(q, k, v, key_mask, self.shape.causal)
        count_BHN1 = allowed.expand(-1, -1, -1, k.shape[2]).sum(-1, keepdim=True)
        return (allowed / (1 + count_BHN1 * torch.exp(-self.scale * (q @ k.mT)))) @ v

    def pairs(self, query_len: int, key_len: int) -> int:
        """Number of allowed pairs per head."""
        return full_pairs(query_len, key_len, self.shape.causal)


def weigh(scores: torch.Tensor, allowed: torch.Tensor | None) -> torch.Tensor:
    """Sigmoid of the scores (..., M) less the logarithm of how many are allowed; 0 for the others."""
    if allowed is None:
        return (scores - math.log(scores.shape[-1])).sigmoid()
    count = allowed.sum(-1, keepdim=True).clamp(min=1).to(scores.dtype)
    return (scores - count.log()).sigmoid().masked_fill(~allowed, 0)
