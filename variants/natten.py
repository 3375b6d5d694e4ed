"""Neighbourhood attention of the NATTEN package: a window that is moved inwards at the borders."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from torch import nn

from bench.variant import Ge, Shape, Unsupported, variant
from variants._library import library
from variants._masking import nothing_seen


@variant(
    kind="exact",
    paper="Hassani et al. 2023, arXiv 2204.07143",
    time="n*w",
    memory="n",
    cross=False,
    key_mask=False,
    grouped=False,
    decode=False,
    dtypes=("float32", "bfloat16", "float16"),
    devices=("cpu", "cuda"),
)
class Natten(nn.Module):
    """Each query sees exactly `window` neighbours around it, at the borders the first or last `window` positions.

    With causality the window ends at the query and is cut short at the start. scale: None is head_dim ** -0.5.
    """

    def __init__(self, shape: Shape, *, window: Annotated[int, Ge(2)] = 255, scale: float | None = None) -> None:
        super().__init__()
        self._call: Any = library("natten.functional", "natten").na1d
        if shape.value_dim != shape.head_dim:
            raise Unsupported(f"value_dim must equal head_dim={shape.head_dim}, got {shape.value_dim}")
        self.shape = shape
        self.window = window
        self.scale = shape.scale if scale is None else scale

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B,H,N,D), (B,H,N,D), (B,H,N,D) -> (B,H,N,D); the package's layout is (B,N,H,D)."""
        if 0 in (q.shape[0], q.shape[2]):
            return nothing_seen(q, v.shape[3])
        if q.shape[2] < self.window:
            raise Unsupported(f"the length must be at least window={self.window}, got {q.shape[2]}")
        turned = (x.transpose(1, 2) for x in (q, k, v))
        out_BNHD: torch.Tensor = self._call(
            *turned, kernel_size=self.window, is_causal=self.shape.causal, scale=self.scale
        )
        return out_BNHD.transpose(1, 2)

    def no_backward(self, device: str) -> str | None:
        """Why there is no backward on this device."""
        return "NATTEN has no backward on CPUs" if device == "cpu" else None

    def pattern(self, query_len: int, key_len: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Allowed pairs, bool (N, N)."""
        row, column = torch.arange(query_len, device=device)[:, None], torch.arange(key_len, device=device)
        if self.shape.causal:
            return (column <= row) & (column > row - self.window)
        start = (row - self.window // 2).clamp(0, max(0, key_len - self.window))
        return (column >= start) & (column < start + self.window)

    def pairs(self, query_len: int, key_len: int) -> int:
        """Number of allowed pairs per head."""
        seen = min(self.window, key_len)
        if self.shape.causal:
            return seen * (seen + 1) // 2 + (key_len - seen) * seen
        return query_len * seen
