"""Based: linear attention whose features are the Taylor series of the exponential to second order."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import nn

from bench.variant import Ge, Shape, variant
from variants._linear import fold, linear_attention, read
from variants._reference import written_out


@variant(kind="different", paper="Arora et al. 2024 (Based), arXiv 2402.18668, eq. 2", time="n", memory="n")
class Taylor(nn.Module):
    """Weights 1 + s + s^2 / 2 with s = q' . k' / sqrt(f), divided by their sum: exp(s) to second order.

    q' and k' are learned projections of each head to f = `width` numbers (Based projects to 16), drawn from N(0, 1/D)
    with a fixed seed. Equal products are kept once: 1 + f + f (f + 1) / 2 features, 153 for 16. The sliding window that
    Based adds beside it is the variant `local`.
    """

    def __init__(self, shape: Shape, *, width: Annotated[int, Ge(1)] = 16) -> None:
        super().__init__()
        self.shape = shape
        self.width = width
        generator = torch.Generator().manual_seed(0)
        sizes = [(heads, shape.head_dim, width) for heads in (shape.heads, shape.kv_heads)]
        q_HDF, k_GDF = (torch.randn(size, generator=generator) * shape.head_dim**-0.5 for size in sizes)
        self.q_HDF, self.k_GDF = nn.Parameter(q_HDF), nn.Parameter(k_GDF)

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B,H,Nq,D), (B,Hkv,Nk,D), (B,Hkv,Nk,Dv), key_mask (B,Nk) -> (B,H,Nq,Dv)."""
        small_q, small_k = _project(q, self.q_HDF), _project(k, self.k_GDF)
        return linear_attention(small_q, small_k, v, key_mask, series, series, causal=self.shape.causal).to(q.dtype)

    def prefill(self, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None) -> torch.Tensor:
        """The state (B, Hkv, features, Dv + 1) after these keys and values."""
        return fold(_project(k, self.k_GDF), v, key_mask, series)

    def step(
        self, state: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The output (B,H,1,Dv) for one more position, which sees itself, and the state after it (a new tensor)."""
        state = state + self.prefill(k, v)
        return read(_project(q, self.q_HDF), state, series).to(q.dtype), state

    def state_size(self, n: int) -> int:
        """Elements of the state per example: the same for every length n."""
        return self.shape.kv_heads * self._features() * (self.shape.value_dim + 1)

    def flops(self, query_len: int, key_len: int) -> int:
        """Of the recurrent form: project every query and key, add every key to a state, read one for every query."""
        per_row = 2 * self.shape.head_dim * self.width + 2 * self._features() * (self.shape.value_dim + 1)
        return per_row * (self.shape.heads * query_len + self.shape.kv_heads * key_len)

    def reference(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The quadratic form in float64, from the scores themselves."""
        groups = q.shape[1] // k.shape[1]
        q, k, v, allowed = written_out(q, k, v, key_mask, self.shape.causal)
        small_q = torch.einsum("BHND,HDF->BHNF", q, self.q_HDF.double())
        small_k = torch.einsum("BHMD,HDF->BHMF", k, self.k_GDF.double().repeat_interleave(groups, 0))
        s = small_q @ small_k.mT * self.width**-0.5
        weights = (1 + s + s**2 / 2).masked_fill(~allowed, 0)
        total = weights.sum(-1, keepdim=True)
        out: torch.Tensor = weights @ v / total.masked_fill(total == 0, 1)
        return out

    def _features(self) -> int:
        return 1 + self.width + self.width * (self.width + 1) // 2


def series(x: torch.Tensor) -> torch.Tensor:
    """(..., f) to (..., 1 + f + f (f + 1) / 2): 1, x and all x_i x_j, so weighed that products are 1 + s + s^2 / 2."""
    width = x.shape[-1]
    x = x * width**-0.25
    row, column = torch.triu_indices(width, width, device=x.device)
    weight = torch.ones_like(x[..., row]).masked_fill(row == column, 0.5**0.5)
    return torch.cat([torch.ones_like(x[..., :1]), x, x[..., row] * x[..., column] * weight], -1)


def _project(x_BHND: torch.Tensor, w_HDF: torch.Tensor) -> torch.Tensor:
    """In float32 or wider: the square of a rounded number would show."""
    wide = torch.promote_types(x_BHND.dtype, torch.float32)
    return x_BHND.to(wide) @ w_HDF.to(wide)
