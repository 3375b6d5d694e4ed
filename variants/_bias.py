"""Biases of the scores by distance: what they add for p - j, one number per head."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import nn

from bench.variant import Shape

BUCKETS = 32  # T5: numbers per head
FAR = 128  # T5: all distances from here on share a bucket


class Alibi(nn.Module):
    """ALiBi (Press et al. 2021, arXiv 2108.12409): minus a slope times the distance; nothing is learned.

    Slopes are 2 ** (-8 h / H) for h = 1..H where H is a power of two; else those of the next smaller power of two P,
    then every second one of 2 P. Without causality the distance is |p - j|.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        power = 2 ** int(math.log2(shape.heads))
        self.slopes = [*_geometric(power), *_geometric(2 * power)[::2]][: shape.heads]

    def forward(self, gap_NM: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Distances (N, M) -> bias (H, N, M)."""
        slopes_H = torch.tensor(self.slopes, dtype=torch.promote_types(dtype, torch.float32), device=gap_NM.device)
        return (-slopes_H[:, None, None] * gap_NM.abs()).to(dtype)


class RelativeBias(nn.Module):
    """T5's relative position bias (Raffel et al. 2019, arXiv 1910.10683, section 2.1): one learned number per bucket.

    Of the 32 buckets half are for single distances, half for ranges that grow geometrically up to 128; without
    causality the future has buckets of its own, 16 of the 32. Drawn from N(0, 1 / C), C the width of the model.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.sides = 1 if shape.causal else 2
        drawn = torch.randn(shape.heads, BUCKETS, generator=torch.Generator().manual_seed(0))
        self.table_HK = nn.Parameter(drawn * (shape.model_dim or 1) ** -0.5)

    def forward(self, gap_NM: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Distances (N, M) -> bias (H, N, M)."""
        return self.table_HK.to(dtype)[:, self.buckets(gap_NM)]

    def buckets(self, gap_NM: torch.Tensor) -> torch.Tensor:
        """The bucket of each distance; causal: those of the future, which nobody sees, share that of distance 0."""
        count = BUCKETS // self.sides
        near = count // 2
        # A range starts at the first whole distance from near * (FAR / near) ** (i / near) on.
        starts = [math.ceil(near * (FAR / near) ** (i / near) - 1e-9) for i in range(1, near)]
        edges = torch.tensor([*range(1, near + 1), *starts], device=gap_NM.device)
        if self.sides == 1:
            return torch.bucketize(gap_NM, edges, right=True)
        return torch.bucketize(gap_NM.abs(), edges, right=True) + count * (gap_NM < 0)


def position_bias(kind: Literal["none", "alibi", "t5"], shape: Shape) -> Alibi | RelativeBias | None:
    """The module of that name; None for `none`."""
    if kind == "none":
        return None
    return Alibi(shape) if kind == "alibi" else RelativeBias(shape)


def _geometric(heads: int) -> list[float]:
    return [2.0 ** (-8 * head / heads) for head in range(1, heads + 1)]
