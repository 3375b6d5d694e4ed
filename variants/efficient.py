"""Efficient attention: a softmax of queries over features and of keys over positions, in place of one over pairs."""

from __future__ import annotations

import torch
from torch import nn

from bench.variant import Shape, variant
from variants._masking import group_rows, nothing_seen, zero_padding
from variants._reference import written_out


@variant(kind="different", paper="Shen et al. 2021, arXiv 1812.01243, eq. 4", time="n", memory="n", causal=False)
class Efficient(nn.Module):
    """Efficient attention: softmax_D(q) (softmax_N(k)^T v), linear in the length.

    Each of the D features of the keys is a distribution over positions, which each query mixes. Bidirectional only:
    the softmax over positions is one over the whole sequence.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B,H,Nq,D), (B,Hkv,Nk,D), (B,Hkv,Nk,Dv), key_mask (B,Nk) -> (B,H,Nq,Dv)."""
        k, v = zero_padding(k, v, key_mask)
        if 0 in (q.shape[0], q.shape[2], k.shape[2]):
            return nothing_seen(q, v.shape[3])
        wide = torch.promote_types(q.dtype, torch.float32)
        k, v = k.to(wide), v.to(wide)
        if key_mask is not None:
            real_B1M1 = key_mask[:, None, :, None]
            k = k.masked_fill(~real_B1M1 & real_B1M1.any(2, keepdim=True), -torch.inf)
        context_BGDE = k.softmax(2).mT @ v
        rows = group_rows(q.to(wide).softmax(-1), k.shape[1]) @ context_BGDE
        out_BHNE = rows.view(*q.shape[:3], -1)
        if key_mask is not None:
            out_BHNE = out_BHNE.masked_fill(~key_mask.any(1)[:, None, None, None], 0)
        return out_BHNE.to(q.dtype)

    def reference(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The weight of every pair in float64."""
        q, k, v, allowed = written_out(q, k, v, key_mask, False)
        e_BHMD = (k - k.amax(2, keepdim=True)).exp() * allowed[:, :, :1].mT
        total = e_BHMD.sum(2, keepdim=True)
        share_BHMD = e_BHMD / total.masked_fill(total == 0, 1)
        e_BHND = (q - q.amax(-1, keepdim=True)).exp()
        return (e_BHND / e_BHND.sum(-1, keepdim=True)) @ share_BHMD.mT @ v

    def flops(self, query_len: int, key_len: int) -> int:
        """Every key is added to its head's D by Dv context once, every query reads one."""
        per_row = 2 * self.shape.head_dim * self.shape.value_dim
        return per_row * (self.shape.heads * query_len + self.shape.kv_heads * key_len)
