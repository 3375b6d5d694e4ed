"""Softmax attention with soft-capped scores."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import nn

from bench.pairs import full_pairs
from bench.variant import Gt, Shape, variant
from variants._blocks import attend_in_blocks, softmax
from variants._reference import softmax_over, written_out


@variant(kind="different", paper="Gemma Team 2024, arXiv 2408.00118, section 2", time="n^2", memory="n")
class Softcap(nn.Module):
    """Softmax of capped scores, cap * tanh(score / cap): none lies beyond +-cap.

    cap: 50 is Gemma 2's. scale: factor of the scores before the cap; None is head_dim ** -0.5. Scores exist in blocks
    of queries and are computed again in the backward.
    """

    def __init__(self, shape: Shape, *, cap: Annotated[float, Gt(0)] = 50.0, scale: float | None = None) -> None:
        super().__init__()
        if not cap > 0:
            raise ValueError(f"cap must be greater than 0, got {cap}")
        self.shape = shape
        self.cap = cap
        self.scale = shape.scale if scale is None else scale

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B,H,Nq,D), (B,Hkv,Nk,D), (B,Hkv,Nk,Dv), key_mask (B,Nk) -> (B,H,Nq,Dv)."""
        return attend_in_blocks(self._weigh, q, k, v, key_mask, causal=self.shape.causal, scale=self.scale)

    def _weigh(self, scores: torch.Tensor, allowed: torch.Tensor | None) -> torch.Tensor:
        return softmax((scores / self.cap).tanh() * self.cap, allowed)

    def reference(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The same in float64 with all scores at once."""
        q, k, v, allowed = written_out(q, k, v, key_mask, self.shape.causal)
        return softmax_over(self.cap * torch.tanh(q @ k.mT * self.scale / self.cap), allowed) @ v

    def pairs(self, query_len: int, key_len: int) -> int:
        """Number of allowed pairs per head."""
        return full_pairs(query_len, key_len, self.shape.causal)
