"""The control: no mixing at all."""

from __future__ import annotations

import torch
from torch import nn

from bench.variant import Shape, variant
from variants._masking import zero_padding


@variant(
    kind="different",
    paper="control: what the block does without attention",
    time="n",
    memory="n",
    cross=False,
    decode=False,
)
class NoMixing(nn.Module):
    """No mixing: each position gets its own value (the control for accuracy and overhead)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B,H,N,D), (B,Hkv,N,D), (B,Hkv,N,Dv), key_mask (B,N) -> (B,H,N,Dv)."""
        _, v = zero_padding(k, v, key_mask)
        groups = q.shape[1] // v.shape[1]
        # Without weights q and k get no gradient: a new tensor, so that the caller's v is never handed back.
        return v.repeat_interleave(groups, 1)

    def reference(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The same in float64, position by position."""
        _, v = zero_padding(k, v.double(), key_mask)
        groups = q.shape[1] // v.shape[1]
        return torch.stack([v[:, head // groups] for head in range(q.shape[1])], 1)

    def flops(self, query_len: int, key_len: int) -> int:
        """No arithmetic."""
        return 0
