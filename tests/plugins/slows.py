"""Takes 1 % longer with every call."""

from __future__ import annotations

import time

from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from bench.variant import Shape, variant


@variant(kind="exact", paper="none: a fake for tests", grouped=False, key_mask=False, cross=False)
class Fake(nn.Module):
    """Takes 1 % longer with every call."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.calls = 0

    def forward(self, q, k, v, *, key_mask=None):
        if q.shape[2] == 256:  # where it is timed, not where it is checked
            time.sleep(0.002 * 1.01**self.calls)
            self.calls += 1
        return scaled_dot_product_attention(q, k, v, is_causal=self.shape.causal)
