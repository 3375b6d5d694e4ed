"""Dilated sliding-window attention: one window problem for each residue of the positions."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import nn
from torch.nn import functional as F

from bench.pairs import dilated_pairs, distances, window_pattern
from bench.variant import Ge, Shape, check_key_mask, variant
from variants._masking import nothing_seen
from variants._window import attend_window


@variant(kind="exact", paper="Beltagy et al. 2020, arXiv 2004.05150, section 3.1", time="n*w", memory="n")
class Dilated(nn.Module):
    """Dilated sliding window: each query sees `window` positions, `dilation` apart, itself included.

    window: key j is allowed for the query at position p when p - j is one of 0, d, 2 d, ... below window * d (causal)
    or |p - j| is, with d = dilation. Positions with equal rest modulo d never meet others: they are a sequence of
    their own with a plain window. scale: factor of the scores; None is head_dim ** -0.5.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        window: Annotated[int, Ge(1)] = 128,
        dilation: Annotated[int, Ge(1)] = 4,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        for name, value in (("window", window), ("dilation", dilation)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.shape = shape
        self.window = window
        self.dilation = dilation
        self.scale = shape.scale if scale is None else scale

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B,H,Nq,D), (B,Hkv,Nk,D), (B,Hkv,Nk,Dv), key_mask (B,Nk) -> (B,H,Nq,Dv)."""
        batch, heads, query_len, _ = q.shape
        key_len, causal = k.shape[2], self.shape.causal
        check_key_mask(key_mask, batch, key_len)
        if 0 in (batch, query_len, key_len):
            return nothing_seen(q, v.shape[3])
        steps = min(self.dilation, max(query_len, key_len))
        ahead, tail = (key_len - query_len) % steps, -key_len % steps
        if key_mask is None and tail and not causal:  # causal queries see none of the places that fill up the end
            key_mask = torch.ones(batch, key_len, dtype=torch.bool, device=q.device)
        mask_YM = None if key_mask is None else F.pad(key_mask, (0, tail)).view(batch, -1, steps).mT.flatten(0, 1)
        q_YHND = _fold(q, steps, ahead, tail)
        k_YGMD, v_YGME = (_fold(x, steps, 0, tail) for x in (k, v))
        out_YHNE = attend_window(q_YHND, k_YGMD, v_YGME, mask_YM, window=self.window, causal=causal, scale=self.scale)
        out_BHNE = (
            out_YHNE.view(batch, steps, heads, -1, v.shape[3])
            .permute(0, 2, 3, 1, 4)
            .reshape(batch, heads, -1, v.shape[3])
        )
        return out_BHNE.narrow(2, ahead, query_len)

    def pattern(self, query_len: int, key_len: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Allowed pairs, bool (Nq, Nk)."""
        reach_NM = window_pattern(query_len, key_len, self.window * self.dilation, self.shape.causal, device)
        return reach_NM & (distances(query_len, key_len, device) % self.dilation == 0)

    def pairs(self, query_len: int, key_len: int) -> int:
        """Number of allowed pairs per head."""
        return dilated_pairs(query_len, key_len, self.window, self.dilation, self.shape.causal)


def _fold(x_BHND: torch.Tensor, steps: int, ahead: int, tail: int) -> torch.Tensor:
    """Positions by their rest: (B * steps, H, N / steps, D), after so many empty places at both ends."""
    batch, heads, _, width = x_BHND.shape
    x_BHNsD = F.pad(x_BHND, (0, 0, ahead, tail)).view(batch, heads, -1, steps, width)
    return x_BHNsD.permute(0, 3, 1, 2, 4).flatten(0, 1)
