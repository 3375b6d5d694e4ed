"""Native sparse attention (NSA): means of blocks, the blocks whose means weigh most, and a window, mixed by gates.

B examples, G key heads, g query heads of each, N positions, b blocks, T blocks that a query reads; X = B * G rows.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import nn

from bench.pairs import block_pairs, earlier_blocks, window_pairs, window_pattern
from bench.variant import Ge, Shape, variant
from variants._chosen import attend_chosen_past, best_blocks, block_means
from variants._masking import group_rows, masked_softmax, nothing_seen, zero_padding
from variants._reference import softmax_over, written_out
from variants._window import attend_window


@variant(
    kind="different",
    paper="Yuan et al. 2025, arXiv 2502.11089, section 3",
    time="n^2/b + n*(k*b+w)",
    memory="n^2/b",
    bidirectional=False,
    cross=False,
    normalised=False,
    decode=False,
    needs_x=True,
)
class NSA(nn.Module):
    """Native sparse attention: the sum of compressed, selected and window attention, each times a gate sigmoid(x W).

    Compressed: softmax over the means of keys, with the means of values, of all blocks that end before or at the
    query. Selected: softmax over the keys of `selected` blocks: the own, the one before, the first, and those that
    weigh most in the compressed attention, summed over the query heads of a key head.
    Window: the last `window` positions. The paper compresses overlapping blocks of half the size by a small network;
    here the blocks are those that are selected, and a mean is the compression. scale: None is head_dim ** -0.5.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        block: Annotated[int, Ge(1)] = 64,
        selected: Annotated[int, Ge(1)] = 16,
        window: Annotated[int, Ge(1)] = 512,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        for name, value in (("block", block), ("selected", selected), ("window", window)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.shape = shape
        self.block = block
        self.selected = selected
        self.window = window
        self.scale = shape.scale if scale is None else scale
        drawn = torch.randn(3, shape.heads, shape.model_dim, generator=torch.Generator().manual_seed(0))
        self.gates_3HC = nn.Parameter(drawn * shape.model_dim**-0.5)

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        x: torch.Tensor,
        key_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """(B,H,N,D), (B,Hkv,N,D), (B,Hkv,N,Dv), x (B,N,C), key_mask (B,N) -> (B,H,N,Dv)."""
        k, v = zero_padding(k, v, key_mask)
        if 0 in (q.shape[0], q.shape[2]):
            return nothing_seen(q, v.shape[3])
        wide = torch.promote_types(q.dtype, torch.float32)
        q_BHND, k_BGMD, v_BGME = (tensor.to(wide) for tensor in (q, k, v))
        compressed, chosen_BHNT = self._compressed(q_BHND, k_BGMD, v_BGME, key_mask)
        qkv = q_BHND, k_BGMD, v_BGME, key_mask
        selected = attend_chosen_past(*qkv, chosen_BHNT, block=self.block, scale=self.scale)
        near = attend_window(*qkv, window=self.window, causal=True, scale=self.scale)
        gates_3BHN = torch.einsum("BNC,zHC->zBHN", x.to(wide), self.gates_3HC.to(wide)).sigmoid()
        out_BHNE = (gates_3BHN[..., None] * torch.stack([compressed, selected, near])).sum(0)
        return out_BHNE.to(q.dtype)

    def _compressed(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, key_mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The output (B,H,N,E) of the first branch, and the blocks that the second reads, (B,H,N,T), -1 for none."""
        (batch, heads, length, _), kv_heads = q.shape, k.shape[1]
        k_BGbD, count_Bb = block_means(k, key_mask, self.block)
        v_BGbE, _ = block_means(v, key_mask, self.block)
        p_N1 = torch.arange(length, device=q.device)[:, None]
        ends_b = torch.arange(1, count_Bb.shape[1] + 1, device=q.device) * self.block
        ended_BNb = (ends_b <= p_N1 + 1) & (count_Bb > 0)[:, None]
        scores_BGgNb = (group_rows(q, kv_heads) @ k_BGbD.mT * self.scale).view(batch, kv_heads, -1, length, len(ends_b))
        weights_BGgNb, seen = masked_softmax(scores_BGgNb, ended_BNb[:, None, None])
        weights_BGgNb = weights_BGgNb * seen
        out_BHNE = (weights_BGgNb @ v_BGbE[:, :, None]).view(batch, heads, length, -1)
        chosen_BGNT = self._choose(weights_BGgNb.detach().sum(2), count_Bb > 0)
        return out_BHNE, chosen_BGNT.repeat_interleave(heads // kv_heads, 1)

    def _choose(self, weight_BGNb: torch.Tensor, real_Bb: torch.Tensor) -> torch.Tensor:
        """The own block, the one before, the first, and those that weigh most: (B,G,N,T), -1 for none."""
        block_b = torch.arange(real_Bb.shape[1], device=real_Bb.device)
        own_N1 = torch.arange(weight_BGNb.shape[2], device=real_Bb.device)[:, None] // self.block
        most = self.shape.heads + 1  # more than weights can sum to
        for place, forced in enumerate((block_b == 0, block_b == own_N1 - 1, block_b == own_N1), most):
            weight_BGNb = weight_BGNb.masked_fill(forced, place)
        there_BNb = (block_b == own_N1) | ((block_b < own_N1) & real_Bb[:, None])
        return best_blocks(weight_BGNb.masked_fill(~there_BNb[:, None], -torch.inf), self.selected)

    def flops(self, query_len: int, key_len: int) -> int:
        """Of the three branches and the gates."""
        shape = self.shape
        pairs = (
            earlier_blocks(query_len, key_len, self.block)
            + key_len // self.block  # the last query of a block sees its mean too
            + block_pairs(query_len, key_len, self.block, self.selected - 1)
            + window_pairs(query_len, key_len, self.window, True)
        )
        return 2 * shape.heads * (pairs * (shape.head_dim + shape.value_dim) + 3 * shape.model_dim * query_len)

    def reference(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        x: torch.Tensor,
        key_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The same in float64 over all pairs, the selection query by query."""
        kv_heads = k.shape[1]
        q, k, v, allowed = written_out(q, k, v, key_mask, True)
        batch, heads, length, _ = q.shape
        of_M = torch.arange(length) // self.block
        real_BM = allowed[:, 0, -1].expand(batch, -1)
        in_BbM = (of_M == torch.arange(int(of_M[-1]) + 1)[:, None]) & real_BM[:, None]
        count_Bb1 = in_BbM.sum(-1, keepdim=True)
        mean_B1bM = (in_BbM.double() / count_Bb1.clamp(min=1))[:, None]
        ends_b = torch.arange(1, in_BbM.shape[1] + 1) * self.block
        ended_B1Nb = (ends_b <= torch.arange(1, length + 1)[:, None]) & (count_Bb1 > 0).mT[:, None]
        weights = softmax_over(q @ (mean_B1bM @ k).mT * self.scale, ended_B1Nb)
        liked = weights.detach().view(batch, kv_heads, -1, length, weights.shape[-1]).sum(2).tolist()
        chosen = torch.zeros(batch, kv_heads, length, length, dtype=torch.bool)
        for b in range(batch):
            for g in range(kv_heads):
                for i in range(length):
                    own = i // self.block
                    there = [j for j in range(own + 1) if j == own or count_Bb1[b, j] > 0]
                    there.sort(key=lambda j: (j != own, j != own - 1, j != 0, -liked[b][g][i][j], j))
                    chosen[b, g, i] = torch.isin(of_M, torch.tensor(there[: self.selected]))
        chosen = chosen.repeat_interleave(heads // kv_heads, 1)
        scores = q @ k.mT * self.scale
        outs = (
            weights @ (mean_B1bM @ v),
            softmax_over(scores, allowed & chosen) @ v,
            softmax_over(scores, allowed & window_pattern(length, length, self.window, True)) @ v,
        )
        raw = x.double() @ self.gates_3HC.double().flatten(0, 1).mT
        gates = raw.sigmoid().view(batch, length, 3, heads).permute(2, 0, 3, 1)
        return (gates[..., None] * torch.stack(outs)).sum(0)
