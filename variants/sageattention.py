"""SageAttention: queries and keys rounded to 8 bits before their product."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from bench.pairs import full_pairs
from bench.variant import Shape, Unsupported, variant
from variants._library import library
from variants._masking import nothing_seen

WIDTHS = (64, 96, 128)  # of the kernel


@variant(
    kind="approximate",
    paper="Zhang et al. 2024, arXiv 2410.02367",
    time="n^2",
    memory="n",
    cross=False,
    key_mask=False,
    decode=False,
    dtypes=("bfloat16", "float16"),
    devices=("cuda",),
    runs=("int8",),
)
class SageAttention(nn.Module):
    """Attention by the sageattention package: q k^T in int8, forward only.

    Widths between those of the kernel are padded with zeros, which changes no score. scale: factor of the scores; None
    is head_dim ** -0.5.
    """

    def __init__(self, shape: Shape, *, scale: float | None = None) -> None:
        super().__init__()
        self._call: Any = library("sageattention", "sageattention", extra="sageattention").sageattn
        widest = max(shape.head_dim, shape.value_dim)
        if widest > WIDTHS[-1]:
            raise Unsupported(f"head_dim and value_dim must be at most {WIDTHS[-1]}, got {widest}")
        self.shape = shape
        self.width = next(width for width in WIDTHS if width >= widest)
        self.scale = shape.scale if scale is None else scale

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B,H,N,D), (B,Hkv,N,D), (B,Hkv,N,Dv) -> (B,H,N,Dv)."""
        if 0 in (q.shape[0], q.shape[2]):
            return nothing_seen(q, v.shape[3])
        value_dim = v.shape[3]
        wide = (F.pad(x, (0, self.width - x.shape[3])) for x in (q, k, v))
        out: torch.Tensor = self._call(*wide, tensor_layout="HND", is_causal=self.shape.causal, sm_scale=self.scale)
        return out[..., :value_dim]

    def no_backward(self, device: str) -> str | None:
        """Why there is no backward on this device."""
        return "SageAttention is for inference only"

    def pairs(self, query_len: int, key_len: int) -> int:
        """Number of allowed pairs per head."""
        return full_pairs(query_len, key_len, self.shape.causal)
