"""The flash-linear-attention package: Triton kernels of linear attention and retention."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional as F

from bench.variant import Shape, variant
from variants._library import library
from variants._masking import nothing_seen
from variants._reference import written_out

MODULES = {
    "linear": ("fla.ops.linear_attn", "chunk_linear_attn"),
    "retention": ("fla.ops.retention", "chunk_retention"),
}
EPS = 1e-10  # what the package adds to the total weight


@variant(
    kind="different",
    paper="Yang and Zhang 2024, flash-linear-attention",
    time="n",
    memory="n",
    bidirectional=False,
    cross=False,
    key_mask=False,
    grouped=False,
    normalised=False,
    decode=False,
    dtypes=("float32", "bfloat16", "float16"),
    devices=("cuda",),
    runs=("chunk",),
)
class Fla(nn.Module):
    """Chunked kernels by the flash-linear-attention package, with q / sqrt(D).

    op: `linear` with features elu(x) + 1, divided by the total weight; `retention` with decays 1 - 2^(-5 - h), not
    normalised.
    """

    def __init__(self, shape: Shape, *, op: Literal["linear", "retention"] = "linear") -> None:
        super().__init__()
        module, function = MODULES[op]
        self._call: Any = getattr(library(module, "flash-linear-attention"), function)
        self.shape = shape
        self.linear = op == "linear"

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B,H,N,D), (B,H,N,D), (B,H,N,Dv) -> (B,H,N,Dv); the package's layout is (B,N,H,D)."""
        if 0 in (q.shape[0], q.shape[2]):
            return nothing_seen(q, v.shape[3])
        if self.linear:
            q, k = (F.elu(x.float()).add(1).to(x.dtype) for x in (q, k))
        turned = (x.transpose(1, 2).contiguous() for x in (q, k, v))
        more = {"normalize": True} if self.linear else {}
        out_BNHE: torch.Tensor = self._call(*turned, scale=self.shape.scale, **more)[0]
        return out_BNHE.transpose(1, 2)

    def reference(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The quadratic form in float64."""
        q, k, v, allowed = written_out(q, k, v, key_mask, True)
        if self.linear:
            q, k = (torch.where(x > 0, x + 1, x.clamp(max=0).exp()) for x in (q, k))
            weights = (q @ k.mT * self.shape.scale).masked_fill(~allowed, 0)
            return weights @ v / (weights.sum(-1, keepdim=True) + EPS)
        kept_H11 = (1 - 2.0 ** (-5 - torch.arange(self.shape.heads, dtype=torch.float64)))[:, None, None]
        position = torch.arange(q.shape[2], dtype=torch.float64)
        decay_HNN = kept_H11 ** (position[:, None] - position).clamp(min=0)
        return (q @ k.mT * self.shape.scale * decay_HNN).masked_fill(~allowed, 0) @ v

    def flops(self, query_len: int, key_len: int) -> int:
        """Of the recurrent form: every key is added to its head's state once, every query reads one."""
        return 2 * self.shape.heads * self.shape.head_dim * self.shape.value_dim * (query_len + key_len)
