"""Sliding-window attention in blocks of queries."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import nn

from bench.pairs import window_pairs, window_pattern
from bench.variant import Ge, Shape, variant
from variants._window import attend_window


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
        window, causal = self.window, self.shape.causal
        return attend_window(q, k, v, key_mask, window=window, causal=causal, scale=self.scale)

    def pattern(self, query_len: int, key_len: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Allowed pairs, bool (Nq, Nk)."""
        return window_pattern(query_len, key_len, self.window, self.shape.causal, device)

    def pairs(self, query_len: int, key_len: int) -> int:
        """Number of allowed pairs per head."""
        return window_pairs(query_len, key_len, self.window, self.shape.causal)
