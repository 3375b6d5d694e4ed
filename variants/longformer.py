"""Longformer attention: a sliding window, and global tokens that see all and are seen by all."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import nn

from bench.pairs import distances, full_pattern, global_pairs, window_pattern
from bench.variant import Ge, Shape, variant
from variants._lists import see_all
from variants._window import attend_window


@variant(kind="exact", paper="Beltagy et al. 2020, arXiv 2004.05150, section 3.1", time="n*(w+g)", memory="n")
class Longformer(nn.Module):
    """Longformer attention: a sliding window, and the first tokens are global.

    window: key j is allowed for the query at position p when 0 <= p - j < window (causal) or |p - j| < window.
    global_tokens: the first so many positions are seen by every query; bidirectional ones also see every key, causal
    ones (an extension: the paper is bidirectional) all before them. The paper gives global queries projections of
    their own; here the block owns the projections, and one set serves all. scale: None is head_dim ** -0.5.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        window: Annotated[int, Ge(1)] = 256,
        global_tokens: Annotated[int, Ge(0)] = 1,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        for name, value, least in (("window", window, 1), ("global_tokens", global_tokens, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        self.shape = shape
        self.window = window
        self.tokens = global_tokens
        self.scale = shape.scale if scale is None else scale

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B,H,Nq,D), (B,Hkv,Nk,D), (B,Hkv,Nk,Dv), key_mask (B,Nk) -> (B,H,Nq,Dv)."""
        causal, key_len, query_len = self.shape.causal, k.shape[2], q.shape[2]
        tokens = min(self.tokens, key_len)
        out = attend_window(q, k, v, key_mask, window=self.window, causal=causal, scale=self.scale, tokens=tokens)
        start, stop = (min(max(p - key_len + query_len, 0), query_len) for p in (0, 0 if causal else tokens))
        return see_all(out, slice(start, stop), q, k, v, key_mask, scale=self.scale)

    def pattern(self, query_len: int, key_len: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Allowed pairs, bool (Nq, Nk)."""
        j_M = torch.arange(key_len, device=device)
        p_NM = distances(query_len, key_len, device) + j_M
        near_NM = window_pattern(query_len, key_len, self.window, self.shape.causal, device)
        linked_NM = near_NM | (j_M < self.tokens) | ((p_NM >= 0) & (p_NM < self.tokens))
        return linked_NM & full_pattern(query_len, key_len, self.shape.causal, device)

    def pairs(self, query_len: int, key_len: int) -> int:
        """Number of allowed pairs per head."""
        return global_pairs(query_len, key_len, self.window, self.tokens, self.shape.causal)
