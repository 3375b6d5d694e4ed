"""FlexAttention: torch's compiler makes a kernel for the mask; forward only on CPUs."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from torch import nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from bench.pairs import full_pairs, full_pattern, window_pairs, window_pattern
from bench.variant import Ge, Shape, variant
from variants._masking import nothing_seen

BLOCK = 128  # positions of a block of the mask, the library's default
RECOMPILES = 1000  # the compiler's limit of 8 shapes would end in another, much slower form


@variant(
    kind="exact",
    paper="Dong et al. 2024, arXiv 2412.05496",
    time="n^2",
    memory="n",
    key_mask=False,
    dtypes=("float32", "bfloat16", "float16"),
    devices=("cpu", "cuda"),
)
class Flex(nn.Module):
    """torch's FlexAttention, compiled for shapes that may change; blocks that the mask hides are skipped.

    window: 0 for none; else each query sees that many positions, itself included (in both directions without
    causality). The compilation falls into the first call. On a CPU there is no backward: a train pass is refused.
    scale: None is head_dim ** -0.5.
    """

    def __init__(self, shape: Shape, *, window: Annotated[int, Ge(0)] = 0, scale: float | None = None) -> None:
        super().__init__()
        self.shape = shape
        self.window = window
        self.scale = shape.scale if scale is None else scale
        self._compiled: Any = torch.compile(flex_attention, dynamic=True, fullgraph=True)
        self._masks: dict[tuple[int, int, torch.device], BlockMask] = {}

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B,H,Nq,D), (B,Hkv,Nk,D), (B,Hkv,Nk,Dv) -> (B,H,Nq,Dv)."""
        query_len, key_len = q.shape[2], k.shape[2]
        if 0 in (q.shape[0], query_len, key_len):
            return nothing_seen(q, v.shape[3])
        at = (query_len, key_len, q.device)
        if at not in self._masks:
            self._masks[at] = self._block_mask(*at)
        with torch._dynamo.config.patch(recompile_limit=RECOMPILES, accumulated_recompile_limit=RECOMPILES):
            out: torch.Tensor = self._compiled(
                q, k, v, block_mask=self._masks[at], scale=self.scale, enable_gqa=q.shape[1] != k.shape[1]
            )
        return out

    def no_backward(self, device: str) -> str | None:
        """Why there is no backward on this device."""
        return "FlexAttention has no backward on CPUs" if device == "cpu" else None

    def pattern(self, query_len: int, key_len: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Allowed pairs, bool (Nq, Nk)."""
        if not self.window:
            return full_pattern(query_len, key_len, self.shape.causal, device)
        return window_pattern(query_len, key_len, self.window, self.shape.causal, device)

    def pairs(self, query_len: int, key_len: int) -> int:
        """Number of allowed pairs per head."""
        if not self.window:
            return full_pairs(query_len, key_len, self.shape.causal)
        return window_pairs(query_len, key_len, self.window, self.shape.causal)

    def _block_mask(self, query_len: int, key_len: int, device: torch.device) -> BlockMask:
        """Which blocks hold allowed pairs, and which hold nothing else; from their borders, without an n by n array."""
        first, causal, window = key_len - query_len, self.shape.causal, self.window or max(query_len, key_len) + key_len
        rows, columns = (torch.arange(0, length, BLOCK, device=device) for length in (query_len, key_len))
        last_row, last_column = (rows + BLOCK).clamp(max=query_len) - 1, (columns + BLOCK).clamp(max=key_len) - 1
        farthest = first + last_row[:, None] - columns  # the largest and the smallest distance within a block
        nearest = first + rows[:, None] - last_column
        lowest = 0 if causal else 1 - window
        some = (farthest >= lowest) & (nearest < window)
        every = (nearest >= lowest) & (farthest < window)
        cut = (columns + BLOCK > key_len) | (rows[:, None] + BLOCK > query_len)
        whole, partly = some & every & ~cut, some & ~(every & ~cut)

        # Numbers that change with the length are tensors here: torch 2.13 writes wrong C++ for plain ones.
        shift, width = (torch.tensor(number, device=device) for number in (first, window))

        def allowed(b: Any, h: Any, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
            gap = row + shift - column
            return (gap < width) & (gap >= 0) if causal else gap.abs() < width

        return BlockMask.from_kv_blocks(
            *_listed(partly), *_listed(whole), BLOCK_SIZE=BLOCK, mask_mod=allowed, seq_lengths=(query_len, key_len)
        )


def _listed(blocks_RC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(how many columns each row has, (1,1,R); their numbers first, (1,1,R,C))."""
    order = blocks_RC.to(torch.int8).argsort(dim=1, descending=True, stable=True)
    return blocks_RC.sum(1).to(torch.int32)[None, None], order.to(torch.int32)[None, None]
