"""Block-sparse attention: each block of queries sees a fixed number of key blocks, by a layout."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import nn

from bench.variant import Ge, Shape, variant
from variants._layout import Layout


@variant(kind="exact", paper="Child et al. 2019, arXiv 1904.10509, section 5.5", time="n", memory="n")
class BlockSparse(nn.Module):
    """Block-sparse attention: each block of queries sees `blocks` blocks of keys, itself included.

    block: positions of a block. layout: which blocks, when causal none that come later:

    - window: the nearest ones, bidirectional as many after as before (one more before where `blocks` is even);
    - window+global: the first block, which bidirectional also sees all, and the nearest ones;
    - random: itself, and others drawn once, from `seed`, for each row among the blocks up to max_len, causal among
      those before, the same for all heads; those beyond the end of a sequence are missing.

    scale: factor of the scores; None is head_dim ** -0.5.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        block: Annotated[int, Ge(1)] = 64,
        blocks: Annotated[int, Ge(1)] = 8,
        layout: Literal["window", "window+global", "random"] = "window+global",
        seed: Annotated[int, Ge(0)] = 0,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.layout = Layout.named(layout, shape, block=block, blocks=blocks, seed=seed)
        self.scale = shape.scale if scale is None else scale

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B,H,Nq,D), (B,Hkv,Nk,D), (B,Hkv,Nk,Dv), key_mask (B,Nk) -> (B,H,Nq,Dv)."""
        return self.layout.attend(q, k, v, key_mask, scale=self.scale)

    def pattern(self, query_len: int, key_len: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Allowed pairs, bool (Nq, Nk)."""
        return self.layout.pattern(query_len, key_len, device)

    def pairs(self, query_len: int, key_len: int) -> int:
        """Number of allowed pairs per head."""
        return self.layout.pairs(query_len, key_len)
