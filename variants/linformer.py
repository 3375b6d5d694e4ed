"""Linformer: keys and values of all positions mixed down to a few before softmax attention."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import nn

from bench.variant import Ge, Shape, variant
from variants._masking import nothing_seen, zero_padding
from variants._sdpa import attend


@variant(
    kind="approximate",
    paper="Wang et al. 2020, arXiv 2006.04768, eq. 7",
    time="n*rank",
    memory="n",
    causal=False,
    normalised=False,
)
class Linformer(nn.Module):
    """Softmax attention over `rank` learned mixtures of keys and of values: softmax(q (E k)^T / sqrt(D)) (F v).

    E and F (rank, max_len) are shared by the heads, drawn from N(0, 1/rank) with a fixed seed; a shorter sequence uses
    their first columns. Padded positions are 0 before the mixing. Bidirectional only: a mixture contains the future.
    """

    def __init__(self, shape: Shape, *, rank: Annotated[int, Ge(1)] = 256) -> None:
        super().__init__()
        self.shape = shape
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randn(2, rank, shape.max_len, generator=generator) * rank**-0.5
        self.mix_k_RM, self.mix_v_RM = nn.Parameter(drawn[0].clone()), nn.Parameter(drawn[1].clone())

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B,H,Nq,D), (B,Hkv,Nk,D), (B,Hkv,Nk,Dv), key_mask (B,Nk) -> (B,H,Nq,Dv)."""
        k, v = zero_padding(k, v, key_mask)
        if 0 in (q.shape[0], q.shape[2], k.shape[2]):
            return nothing_seen(q, v.shape[3])
        wide = torch.promote_types(q.dtype, torch.float32)
        mixed_k, mixed_v = (
            mix[:, : k.shape[2]].to(wide) @ x.to(wide) for mix, x in ((self.mix_k_RM, k), (self.mix_v_RM, v))
        )
        return attend(q.to(wide), mixed_k, mixed_v, None, causal=False, scale=self.shape.scale).to(q.dtype)

    def flops(self, query_len: int, key_len: int) -> int:
        """Mixing of keys and values, then attention to `rank` of them."""
        per_row = 2 * len(self.mix_k_RM) * (self.shape.head_dim + self.shape.value_dim)
        return per_row * (self.shape.heads * query_len + self.shape.kv_heads * key_len)
