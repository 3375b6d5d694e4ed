"""Top-k attention: softmax over the k largest scores of each query."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import nn

from bench.pairs import full_pairs
from bench.variant import Ge, Shape, variant
from variants._blocks import attend_in_blocks, softmax
from variants._reference import softmax_over, written_out


@variant(kind="different", paper="Gupta et al. 2021, arXiv 2106.06899, section 2", time="n^2", memory="n")
class TopK(nn.Module):
    """Softmax over the k largest scores of each query.

    k: keys kept; all of them where a query has fewer. Ties: every key whose score equals the k-th largest is kept, so
    that the order of keys does not matter. Scores are float32 or wider, for rounding would make ties. scale: factor of
    the scores; None is head_dim ** -0.5. Scores exist in blocks of queries and are computed again in the backward.
    """

    def __init__(self, shape: Shape, *, k: Annotated[int, Ge(1)] = 64, scale: float | None = None) -> None:
        super().__init__()
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        self.shape = shape
        self.kept = k
        self.scale = shape.scale if scale is None else scale

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B,H,Nq,D), (B,Hkv,Nk,D), (B,Hkv,Nk,Dv), key_mask (B,Nk) -> (B,H,Nq,Dv)."""
        sums = torch.promote_types(q.dtype, torch.float32)
        wide_q, wide_k, wide_v = (x.to(sums) for x in (q, k, v))
        return attend_in_blocks(
            self._weigh, wide_q, wide_k, wide_v, key_mask, causal=self.shape.causal, scale=self.scale
        ).to(q.dtype)

    def _weigh(self, scores: torch.Tensor, allowed: torch.Tensor | None) -> torch.Tensor:
        known = scores.detach() if allowed is None else scores.detach().masked_fill(~allowed, -torch.inf)
        least = known.topk(min(self.kept, known.shape[-1]), sorted=False).values.amin(-1, keepdim=True)
        return softmax(scores, known >= least if allowed is None else (known >= least) & allowed)

    def reference(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The same in float64 with all scores at once: a key is kept when fewer than k allowed ones score higher."""
        q, k, v, allowed = written_out(q, k, v, key_mask, self.shape.causal)
        scores_BHNM = q @ k.mT * self.scale
        higher_BHNMM = (scores_BHNM[..., None, :] > scores_BHNM[..., None]) & allowed[..., None, :]
        return softmax_over(scores_BHNM, allowed & (higher_BHNMM.sum(-1) < self.kept)) @ v

    def pairs(self, query_len: int, key_len: int) -> int:
        """Number of allowed pairs per head: all are scored, whatever is kept."""
        return full_pairs(query_len, key_len, self.shape.causal)
