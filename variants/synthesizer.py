"""Synthesizer: weights that are not products of queries and keys, but made from each token alone, or learned."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from bench.pairs import full_pairs, full_pattern
from bench.variant import Shape, variant
from variants._masking import masked_softmax, nothing_seen, zero_padding
from variants._reference import softmax_over, written_out


@variant(
    kind="different",
    paper="Tay et al. 2021, arXiv 2005.00743, section 3.1",
    time="n^2",
    memory="n^2",
    cross=False,
    decode=False,
    needs_x=True,
)
class Synthesizer(nn.Module):
    """Softmax over scores that know no key: B relu(A x_i) of the block's input (dense), or a learned table (random).

    A has head_dim hidden units per head, B one output per position up to max_len. Weights are drawn from N(0, 1/inputs)
    with a fixed seed, the table of `random` from N(0, 1). q and k are not read.
    """

    def __init__(self, shape: Shape, *, mode: Literal["dense", "random"] = "dense") -> None:
        super().__init__()
        self.shape = shape
        heads, hidden, longest = shape.heads, shape.head_dim, shape.max_len
        self.dense = mode == "dense"
        generator = torch.Generator().manual_seed(0)
        if self.dense:
            into = torch.randn(heads, shape.model_dim, hidden, generator=generator) * shape.model_dim**-0.5
            out = torch.randn(heads, hidden, longest, generator=generator) * hidden**-0.5
            self.into_HCD, self.out_HDM = nn.Parameter(into), nn.Parameter(out)
        else:
            self.table_HNM = nn.Parameter(torch.randn(heads, longest, longest, generator=generator))

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        x: torch.Tensor,
        key_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """x (B,N,C) and v (B,Hkv,N,Dv), key_mask (B,N) -> (B,H,N,Dv)."""
        _, v = zero_padding(k, v, key_mask)
        if 0 in (q.shape[0], q.shape[2]):
            return nothing_seen(q, v.shape[3])
        wide = torch.promote_types(q.dtype, torch.float32)
        allowed = full_pattern(q.shape[2], q.shape[2], self.shape.causal, q.device)[None, None]
        if key_mask is not None:
            allowed = allowed & key_mask[:, None, None, :]
        weights, seen = masked_softmax(self._scores(x.to(wide)).expand(len(q), -1, -1, -1).clone(), allowed)
        out = weights @ v.to(wide).repeat_interleave(q.shape[1] // v.shape[1], 1)
        return out.masked_fill(~seen, 0).to(q.dtype)

    def _scores(self, x_BNC: torch.Tensor) -> torch.Tensor:
        """(B or 1, H, N, N)."""
        length = x_BNC.shape[1]
        if not self.dense:
            return self.table_HNM[None, :, :length, :length].to(x_BNC.dtype)
        hidden_BHND = (x_BNC[:, None] @ self.into_HCD.to(x_BNC.dtype)).relu()
        return hidden_BHND @ self.out_HDM[:, :, :length].to(x_BNC.dtype)

    def reference(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        x: torch.Tensor,
        key_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The same in float64."""
        length = q.shape[2]
        _, _, v, allowed = written_out(q, k, v, key_mask, self.shape.causal)
        if self.dense:
            hidden = torch.einsum("BNC,HCD->BHND", x.double(), self.into_HCD.double()).clamp(min=0)
            scores = torch.einsum("BHND,HDM->BHNM", hidden, self.out_HDM.double()[:, :, :length])
        else:
            scores = self.table_HNM.double()[None, :, :length, :length]
        return softmax_over(scores, allowed) @ v

    def flops(self, query_len: int, key_len: int) -> int:
        """Per allowed pair and head a score (dense) and the weighing of a value; dense: the hidden units too."""
        pairs = full_pairs(query_len, key_len, self.shape.causal)
        score = 2 * self.shape.head_dim if self.dense else 0
        hidden = query_len * 2 * self.shape.model_dim * self.shape.head_dim if self.dense else 0
        return self.shape.heads * (pairs * (score + 2 * self.shape.value_dim) + hidden)
