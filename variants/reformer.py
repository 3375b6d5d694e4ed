"""Reformer's LSH attention: a query attends to keys that fall into its own bucket of a random hash.

X rows (batch and key head), N queries and M keys of a row, u a bucket, S slots of sorted keys.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import nn

from bench.variant import Ge, Shape, variant
from variants._chosen import attend_chosen, merge
from variants._masking import group_rows, nothing_seen, zero_padding
from variants._shelf import shelve


@variant(kind="approximate", paper="Kitaev et al. 2020, arXiv 2001.04451, section 2", time="n*log(n)", memory="n")
class Reformer(nn.Module):
    """LSH attention of Reformer: softmax over the keys of the same bucket that are near in order, and over itself.

    Queries and keys are hashed alike, to the largest of R x and -R x with random R. The keys of a bucket stand in the
    order of positions and are cut into chunks: a query attends to the chunk in which it would stand and the one
    before (section 2, chunk and look-back of the paper), when causal to no later key, and always to its own.

    hashes: rounds with an R of their own; a key counts once for each round that finds it. buckets: of a round, whatever
    the length; about n / chunk gives the paper's cost. chunk: keys of a chunk. seed: of all R. scale: None is
    head_dim ** -0.5. Unlike the paper's, queries and keys are different vectors here, as the block projects them, so
    that a query is not always in the bucket of its own key; and chunks are cut within a bucket, not across, for else
    later keys would move them.
    """

    rotations: torch.Tensor

    def __init__(
        self,
        shape: Shape,
        *,
        hashes: Annotated[int, Ge(1)] = 2,
        buckets: Annotated[int, Ge(1)] = 32,
        chunk: Annotated[int, Ge(1)] = 64,
        seed: Annotated[int, Ge(0)] = 0,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        for name, value in (("hashes", hashes), ("buckets", buckets), ("chunk", chunk)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.shape = shape
        self.hashes = hashes
        self.buckets = buckets
        self.chunk = chunk
        self.scale = shape.scale if scale is None else scale
        size = (hashes, shape.head_dim, -(-buckets // 2))
        rotations = torch.randn(size, generator=torch.Generator().manual_seed(seed))
        self.register_buffer("rotations", rotations, persistent=False)

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B,H,Nq,D), (B,Hkv,Nk,D), (B,Hkv,Nk,Dv), key_mask (B,Nk) -> (B,H,Nq,Dv)."""
        k, v = zero_padding(k, v, key_mask)
        (batch, heads, query_len, _), (kv_heads, key_len) = q.shape, k.shape[1:3]
        if 0 in (batch, query_len, key_len):
            return nothing_seen(q, v.shape[3])
        wide = torch.promote_types(q.dtype, torch.float32)
        q_XND = group_rows(q.to(wide), kv_heads).flatten(0, 1)
        k_XMD, v_XME = (x.to(wide).flatten(0, 1) for x in (k, v))
        real_XM = torch.ones_like(k_XMD[..., 0], dtype=torch.bool)
        if key_mask is not None:
            real_XM = key_mask.repeat_interleave(kv_heads, 0)
        p_XN = torch.arange(key_len - query_len, key_len, device=q.device).repeat(len(k_XMD), heads // kv_heads)
        rounds = [self._round(q_XND, k_XMD, v_XME, real_XM, p_XN, R_DU.to(wide)) for R_DU in self.rotations]
        parts, totals = zip(*rounds, self._own(q_XND, k_XMD, v_XME, real_XM, p_XN), strict=True)
        return merge(torch.cat(parts, 2), torch.cat(totals, 2)).view(batch, heads, query_len, -1).to(q.dtype)

    def _own(
        self,
        q_XND: torch.Tensor,
        k_XMD: torch.Tensor,
        v_XME: torch.Tensor,
        real_XM: torch.Tensor,
        p_XN: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What a query gets from the key at its own position: found in every round."""
        at_XN = p_XN.clamp(min=0)
        k_XND, v_XNE = (x.gather(1, at_XN[..., None].expand(-1, -1, x.shape[2])) for x in (k_XMD, v_XME))
        score_XN = (q_XND * k_XND).sum(-1) * self.scale
        highest_XN = score_XN.detach().masked_fill(~(real_XM.gather(1, at_XN) & (p_XN >= 0)), -torch.inf)
        log_sum_XN = score_XN - score_XN.detach() + math.log(self.hashes)
        return v_XNE[:, :, None], torch.stack([highest_XN, log_sum_XN], -1)[:, :, None]

    def _round(
        self,
        q_XND: torch.Tensor,
        k_XMD: torch.Tensor,
        v_XME: torch.Tensor,
        real_XM: torch.Tensor,
        p_XN: torch.Tensor,
        rotation_DU: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One hash: the outputs of two chunks, (X,N,2,E), and their totals; the own key is left out."""
        of_XN, of_XM = (self._hash(x, rotation_DU) for x in (q_XND, k_XMD))
        shelf = shelve(of_XM.masked_fill(~real_XM, self.buckets), self.buckets, self.chunk)
        k_XSD, v_XSE = (x.gather(1, shelf.key_XS[..., None].expand(-1, -1, x.shape[2])) for x in (k_XMD, v_XME))
        known_XN, first_XN = shelf.known(of_XN, p_XN), shelf.first_Xu.gather(1, of_XN)
        seen_XN = known_XN if self.shape.causal else shelf.count_Xu.gather(1, of_XN)
        stands_XN1 = ((known_XN - 1).clamp(min=0) // self.chunk)[..., None]
        chosen_XN2 = torch.cat([stands_XN1, stands_XN1 - 1], -1)
        is_there_XN2 = (chosen_XN2 >= 0) & (seen_XN > 0)[..., None]
        return attend_chosen(
            q_XND * self.scale,
            k_XSD,
            v_XSE,
            (chosen_XN2 + first_XN[..., None]).where(is_there_XN2, -1),
            block=self.chunk,
            end_XN=first_XN * self.chunk + seen_XN,
            real_XM=shelf.real_XS,
            but_XN=shelf.slot_XM.gather(1, p_XN.clamp(min=0)).where(p_XN >= 0, -1),
        )

    def _hash(self, x_XND: torch.Tensor, rotation_DU: torch.Tensor) -> torch.Tensor:
        """Numbers of buckets, (X, N)."""
        turned_XNU = x_XND.detach() @ rotation_DU
        return torch.cat([turned_XNU, -turned_XNU], -1)[..., : self.buckets].argmax(-1)
