"""Neighbourhood attention of the NATTEN package: a window that is moved inwards at the borders."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from torch import nn

from bench.pairs import window_pairs, window_pattern
from bench.variant import Ge, Shape, Unsupported, variant
from variants._fused import positive_scale
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
    devices=("cuda",),
    runs=("natten::",),
)
class Natten(nn.Module):
    """Each query sees exactly `window` neighbours around it, at the borders the first or last `window` positions.

    Where there are fewer positions it sees them all. With causality the window ends at the query and is cut short at
    the start. scale: None is head_dim ** -0.5. On a CPU the package would run torch's FlexAttention, uncompiled and
    quadratic: not what this stands for.
    """

    def __init__(self, shape: Shape, *, window: Annotated[int, Ge(2)] = 255, scale: float | None = None) -> None:
        super().__init__()
        self._call: Any = library("natten.functional", "natten", extra="natten").na1d
        if shape.value_dim != shape.head_dim or shape.head_dim % 8:
            raise Unsupported(
                "head_dim must be a multiple of 8 and value_dim equal to it, "
                f"got {shape.head_dim} and {shape.value_dim}"
            )
        self.shape = shape
        self.window = window
        self.scale = shape.scale if scale is None else scale

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B,H,N,D), (B,H,N,D), (B,H,N,D) -> (B,H,N,D); the package's layout is (B,N,H,D)."""
        if 0 in (q.shape[0], q.shape[2]):
            return nothing_seen(q, v.shape[3])
        if q.shape[2] == 1:  # the package's windows begin at 2
            return v.clone()
        window = min(self.window, q.shape[2])
        q, scale = positive_scale(q, self.scale)  # the package takes 0.0 for not given
        turned = (x.transpose(1, 2) for x in (q, k, v))
        out_BNHD: torch.Tensor = self._call(*turned, kernel_size=window, is_causal=self.shape.causal, scale=scale)
        return out_BNHD.transpose(1, 2)

    def require(self, *, dtype: str, device: str) -> None:
        """Raise `Unsupported`, with the package's own reason, unless it takes this shape and dtype."""
        length = self.window + 1  # a window of the whole length would be given to another kernel
        size = (1, self.shape.heads, length, self.shape.head_dim)
        x = torch.zeros(size, dtype=getattr(torch, dtype), device=device)
        try:
            self(x, x, x)
        except (NotImplementedError, RuntimeError, ValueError) as error:
            raise Unsupported(f"NATTEN: {' '.join(str(error).split())}") from error

    def pattern(self, query_len: int, key_len: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Allowed pairs, bool (N, N)."""
        if self.shape.causal:
            return window_pattern(query_len, key_len, self.window, True, device)
        row, column = torch.arange(query_len, device=device)[:, None], torch.arange(key_len, device=device)
        start = (row - self.window // 2).clamp(0, max(0, key_len - self.window))
        return (column >= start) & (column < start + self.window)

    def pairs(self, query_len: int, key_len: int) -> int:
        """Number of allowed pairs per head."""
        if self.shape.causal:
            return window_pairs(query_len, key_len, self.window, True)
        return query_len * min(self.window, key_len)
