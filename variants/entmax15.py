"""1.5-entmax attention: like softmax, with weights that can be exactly 0."""

from __future__ import annotations

import torch
from torch import nn

from bench.pairs import full_pairs
from bench.variant import Shape, variant
from variants._blocks import attend_in_blocks
from variants._entmax import entmax15
from variants._reference import written_out


@variant(kind="different", paper="Peters et al. 2019, arXiv 1905.05702, eq. 6", time="n^2", memory="n")
class Entmax(nn.Module):
    """1.5-entmax in place of softmax: weights max(score / 2 - tau, 0) ** 2, tau such that they sum to 1.

    scale: factor of the scores; None is head_dim ** -0.5. Weights exist in blocks of queries and are computed again in
    the backward.
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
        """The same in float64 by sorting: algorithm 2 of the paper, all thresholds at once."""
        q, k, v, allowed = written_out(q, k, v, key_mask, self.shape.causal)
        seen = allowed.any(-1, keepdim=True)
        z_BHNM = (q @ k.mT * self.scale / 2).masked_fill(seen & ~allowed, -torch.inf)
        z_BHNM = z_BHNM - z_BHNM.amax(-1, keepdim=True) if k.shape[2] else z_BHNM
        size_M = torch.arange(1, k.shape[2] + 1, device=q.device)
        sorted_BHNM = z_BHNM.sort(-1, descending=True).values.clamp(min=-2)  # no threshold lies below -1
        mean_BHNM = sorted_BHNM.cumsum(-1) / size_M
        spread_BHNM = sorted_BHNM.square().cumsum(-1) - size_M * mean_BHNM.square()
        tau_BHNM = mean_BHNM - ((1 - spread_BHNM) / size_M).clamp(min=0).sqrt()
        last_BHN1 = (tau_BHNM <= sorted_BHNM).sum(-1, keepdim=True) - 1
        tau_BHN1 = tau_BHNM.gather(-1, last_BHN1.clamp(min=0)) if k.shape[2] else z_BHNM.sum(-1, keepdim=True)
        return (z_BHNM - tau_BHN1).clamp(min=0).square().masked_fill(~seen, 0) @ v

    def pairs(self, query_len: int, key_len: int) -> int:
        """Number of allowed pairs per head."""
        return full_pairs(query_len, key_len, self.shape.causal)


def weigh(scores: torch.Tensor, allowed: torch.Tensor | None) -> torch.Tensor:
    """1.5-entmax over the allowed scores (..., M); all 0 where there are none."""
    if allowed is None:
        return entmax15(scores)
    seen = allowed.any(-1, keepdim=True)
    return entmax15(scores.masked_fill_(seen & ~allowed, -torch.inf)).masked_fill(~seen, 0)
