"""memory_efficient_attention of the xformers package, with its causal and local biases."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import nn
from torch.nn import functional as F

from bench.pairs import window_pairs, window_pattern
from bench.variant import Ge, Shape, Unsupported, variant
from variants._fused import one_width, positive_scale
from variants._library import library
from variants._masking import nothing_seen
from variants._xformers import memory_efficient


@variant(
    kind="exact",
    paper="Rabe and Staats 2021, arXiv 2112.05682; Lefaudeux et al. 2022, xformers",
    time="n^2",
    memory="n",
    key_mask=False,
    dtypes=("float32", "bfloat16", "float16"),
    devices=("cuda",),
)
class Xformers(nn.Module):
    """Softmax attention by xformers' memory_efficient_attention, all pairs or a sliding window.

    kernel: strictly that one, `cutlass` (any dtype; windows only when causal) or `flash` (bfloat16 and float16).
    window: 0 for none; else each query sees that many positions, itself included (in both directions without
    causality). scale: None is head_dim ** -0.5.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        kernel: Literal["cutlass", "flash"] = "cutlass",
        window: Annotated[int, Ge(0)] = 0,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        if window < 0:
            raise ValueError(f"window must be at least 0, got {window}")
        self.shape = shape
        self.kernel: Literal["cutlass", "flash"] = kernel
        self.window = window
        self.scale = shape.scale if scale is None else scale
        self.runs = {"cutlass": ("efficient_attention_forward",), "flash": ("flash_fwd",)}[kernel]

    def require(self, *, dtype: str, device: str) -> None:
        """Raise `Unsupported`, with the package's own reason, unless the kernel takes this shape, dtype and bias."""
        library("xformers.ops", "xformers")
        q, k, v = (
            torch.zeros(1, heads, 8, width, dtype=getattr(torch, dtype), device=device)
            for heads, width in (
                (self.shape.heads, self.shape.head_dim),
                (self.shape.kv_heads, self.shape.head_dim),
                (self.shape.kv_heads, self.shape.value_dim),
            )
        )
        try:
            self(q, k, v)
        except (NotImplementedError, RuntimeError, ValueError) as error:
            raise Unsupported(f"kernel '{self.kernel}' of xformers: {' '.join(str(error).split())}") from error

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B,H,Nq,D), (B,Hkv,Nk,D), (B,Hkv,Nk,Dv) -> (B,H,Nq,Dv)."""
        (batch, _, query_len, _), (key_len, value_dim) = q.shape, v.shape[2:]
        if 0 in (batch, query_len, key_len):
            return nothing_seen(q, value_dim)
        causal = self.shape.causal
        reach = 0 if causal else self.window - 1  # how far before key 0 a query still sees it
        blind = max(0, query_len - key_len - reach) if causal or self.window else 0
        if blind == query_len:
            return nothing_seen(q, value_dim)
        q, k, v = one_width(q[:, :, blind:], k, v)
        q, scale = positive_scale(q, self.scale)
        out = memory_efficient(q, k, v, causal=causal, scale=scale, window=self.window, kernel=self.kernel)
        return F.pad(out[..., :value_dim], (0, 0, blind, 0))

    def pattern(self, query_len: int, key_len: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Allowed pairs, bool (Nq, Nk)."""
        return window_pattern(query_len, key_len, self.window, self.shape.causal, device)

    def pairs(self, query_len: int, key_len: int) -> int:
        """Number of allowed pairs per head."""
        return window_pairs(query_len, key_len, self.window, self.shape.causal)
