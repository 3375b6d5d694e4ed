"""Right at the lengths a quick check uses, wrong beyond."""

from __future__ import annotations

import torch
from torch import nn

from bench.variant import Shape, variant


@variant(kind="exact", paper="none: a fake for tests")
class Fake(nn.Module):
    """Right at the lengths a quick check uses, wrong beyond."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, q, k, v, *, key_mask=None):
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        if key_mask is not None:
            k, v = (x.masked_fill(~key_mask[:, None, :, None], 0) for x in (k, v))
        n, m = q.shape[2], k.shape[2]
        gap = torch.arange(m - n, m)[:, None] - torch.arange(m)[None]
        allowed = (gap >= 0) if self.shape.causal else torch.ones(n, m, dtype=torch.bool)
        allowed = allowed[None, None] if key_mask is None else allowed[None, None] & key_mask[:, None, None]
        seen = allowed.any(-1, keepdim=True)
        scores = (q * self.shape.scale) @ k.mT
        scores = 0 * scores if k.shape[2] > 400 else scores
        weights = scores.masked_fill(seen & ~allowed, -torch.inf).softmax(-1) if m else scores
        return (weights @ v).masked_fill(~seen, 0)
