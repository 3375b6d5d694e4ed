"""Mixture of block attention (MoBA): each query attends to its own block and to those whose mean key it likes best."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import nn

from bench.pairs import block_pairs, earlier_blocks
from bench.variant import Ge, Shape, variant
from variants._chosen import attend_chosen_past, best_blocks, block_means
from variants._masking import group_rows, nothing_seen, zero_padding
from variants._reference import softmax_over, written_out


@variant(
    kind="different",
    paper="Lu et al. 2025, arXiv 2502.13189, eq. 2-6",
    time="n^2/b + n*k*b",
    memory="n",
    bidirectional=False,
)
class MoBA(nn.Module):
    """Mixture of block attention: softmax over the own block and the chosen past blocks of each query.

    block: positions of a block. topk: blocks that a query attends to, the own one included, up to itself. The others
    are the past blocks with the largest product of the query and the mean of the (real) keys, of equal ones the
    first. No block of the future is looked at. scale: factor of the scores; None is head_dim ** -0.5.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        block: Annotated[int, Ge(1)] = 64,
        topk: Annotated[int, Ge(1)] = 4,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        for name, value in (("block", block), ("topk", topk)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.shape = shape
        self.block = block
        self.topk = topk
        self.scale = shape.scale if scale is None else scale

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B,H,Nq,D), (B,Hkv,Nk,D), (B,Hkv,Nk,Dv), key_mask (B,Nk) -> (B,H,Nq,Dv)."""
        k, v = zero_padding(k, v, key_mask)
        if 0 in (q.shape[0], q.shape[2], k.shape[2]):
            return nothing_seen(q, v.shape[3])
        wide = torch.promote_types(q.dtype, torch.float32)
        q_BHND, k_BGMD, v_BGME = (x.to(wide) for x in (q, k, v))
        with torch.no_grad():
            chosen_BHNT = self._choose(q_BHND, k_BGMD, key_mask)
        out = attend_chosen_past(q_BHND, k_BGMD, v_BGME, key_mask, chosen_BHNT, block=self.block, scale=self.scale)
        return out.to(q.dtype)

    def _choose(self, q: torch.Tensor, k: torch.Tensor, key_mask: torch.Tensor | None) -> torch.Tensor:
        """Numbers of the blocks of each query, (B,H,Nq,T), the own one first; -1 for none."""
        mean_BGbD, count_Bb = block_means(k, key_mask, self.block)
        scores_BHNb = (group_rows(q, k.shape[1]) @ mean_BGbD.mT).view(*q.shape[:3], -1)
        own_N1 = torch.arange(k.shape[2] - q.shape[2], k.shape[2], device=q.device)[:, None] // self.block
        past_BNb = (torch.arange(count_Bb.shape[1], device=q.device) < own_N1) & (count_Bb > 0)[:, None]
        others_BHNT = best_blocks(scores_BHNb.masked_fill_(~past_BNb[:, None], -torch.inf), self.topk - 1)
        return torch.cat([own_N1.clamp(min=-1).expand(*q.shape[:3], 1), others_BHNT], -1)

    def flops(self, query_len: int, key_len: int) -> int:
        """Of the scores of blocks, all past ones, and of the attention to those chosen."""
        scored = earlier_blocks(query_len, key_len, self.block)
        pairs = block_pairs(query_len, key_len, self.block, self.topk - 1)
        widths = self.shape.head_dim + self.shape.value_dim
        return 2 * self.shape.heads * (scored * self.shape.head_dim + pairs * widths)

    def reference(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The same in float64 over all pairs, query by query and block by block."""
        q, k, v, allowed = written_out(q, k, v, key_mask, True)
        batch, heads, query_len, key_len = *q.shape[:3], k.shape[2]
        first = key_len - query_len
        chosen_BHNM = torch.zeros(batch, heads, query_len, key_len, dtype=torch.bool, device=q.device)
        real = torch.ones(batch, key_len, dtype=torch.bool) if key_mask is None else key_mask
        for b in range(batch):
            blocks = [slice(j, j + self.block) for j in range(0, key_len, self.block)]
            means = [(k[b, :, at][:, real[b, at]].mean(1), at) for at in blocks if real[b, at].any()]
            for h in range(heads):
                for i in range(query_len):
                    own = (first + i) // self.block * self.block
                    liked = [
                        (-float((q[b, h, i] @ mean[h]).detach()), at.start) for mean, at in means if at.start < own
                    ]
                    for start in [own, *(start for _, start in sorted(liked)[: self.topk - 1])]:
                        chosen_BHNM[b, h, i, max(start, 0) : max(start + self.block, 0)] = True
        return softmax_over(q @ k.mT * self.scale, allowed & chosen_BHNM) @ v
