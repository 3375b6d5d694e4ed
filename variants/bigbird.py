"""BigBird attention: a window, global and random blocks."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import nn

from bench.variant import Ge, Shape, variant
from variants._layout import Layout


@variant(kind="exact", paper="Zaheer et al. 2020, arXiv 2007.14062, section 2 and appendix D", time="n", memory="n")
class BigBird(nn.Module):
    """BigBird attention: each block sees blocks around it, global blocks, and random blocks.

    block: positions of a block. window_blocks: the own block and as many on each side as half the rest; causal: those
    before. global_blocks: the first blocks, which see all and are seen by all; the authors' code takes the first and
    the last one, but then padding would change what is global. random_blocks: drawn once, from `seed`, for each row
    among the blocks up to max_len that it does not see otherwise, causal among those before, the same for all heads;
    those beyond the end of a sequence are missing. scale: factor of the scores; None is head_dim ** -0.5.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        block: Annotated[int, Ge(1)] = 64,
        window_blocks: Annotated[int, Ge(1)] = 3,
        global_blocks: Annotated[int, Ge(0)] = 2,
        random_blocks: Annotated[int, Ge(0)] = 3,
        seed: Annotated[int, Ge(0)] = 0,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        for name, value, least in (
            ("block", block, 1),
            ("window_blocks", window_blocks, 1),
            ("global_blocks", global_blocks, 0),
            ("random_blocks", random_blocks, 0),
            ("seed", seed, 0),
        ):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        self.shape = shape
        back = window_blocks // 2
        self.layout = Layout(
            shape,
            block=block,
            back=back,
            ahead=window_blocks - 1 - back,
            first=global_blocks,
            random=random_blocks,
            seed=seed,
        )
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
