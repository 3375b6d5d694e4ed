"""Returns at once and writes its result 50 ms later."""

from __future__ import annotations

import threading
import time

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from bench.variant import Shape, variant


@variant(kind="exact", paper="none: a fake for tests", grouped=False, key_mask=False, cross=False)
class Fake(nn.Module):
    """Returns at once and writes its result 50 ms later."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.calls = 0

    def forward(self, q, k, v, *, key_mask=None):
        right = scaled_dot_product_attention(q, k, v, is_causal=self.shape.causal)
        out = torch.zeros_like(right)

        def finish() -> None:
            time.sleep(0.050)
            out.copy_(right)

        threading.Thread(target=finish).start()
        return out
