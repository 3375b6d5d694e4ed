"""SageAttention: queries and keys rounded to 8 bits before their product."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bench.pairs import full_pairs
from bench.variant import Shape, Unsupported, variant
from variants._library import library
from variants._masking import nothing_seen

WIDTHS = (64, 96, 128)


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
    runs=("sage",),
)
class SageAttention(nn.Module):
    """Attention by the sageattention package: q k^T in int8, forward only. scale: None is head_dim ** -0.5."""

    def __init__(self, shape: Shape, *, scale: float | None = None) -> None:
        super().__init__()
        self._call: Any = library("sageattention", "sageattention").sageattn
        if shape.head_dim not in WIDTHS or shape.value_dim != shape.head_dim:
            raise Unsupported(f"head_dim must be one of {WIDTHS} and value_dim equal to it, got {shape.head_dim}")
        self.shape = shape
        self.scale = shape.scale if scale is None else scale

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B,H,N,D), (B,Hkv,N,D), (B,Hkv,N,Dv) -> (B,H,N,Dv)."""
        if 0 in (q.shape[0], q.shape[2]):
            return nothing_seen(q, v.shape[3])
        out: torch.Tensor = self._call(q, k, v, tensor_layout="HND", is_causal=self.shape.causal, sm_scale=self.scale)
        return out

    def no_backward(self, device: str) -> str | None:
        """Why there is no backward on this device."""
        return "SageAttention is for inference only"

    def pairs(self, query_len: int, key_len: int) -> int:
        """Number of allowed pairs per head."""
        return full_pairs(query_len, key_len, self.shape.causal)
