"""cosFormer: linear attention with ReLU features and a cosine that favours near keys."""

from __future__ import annotations

import math

import torch
from torch import nn

from bench.variant import Shape, variant
from variants._linear import fold, linear_attention, read
from variants._reference import written_out

State = tuple[torch.Tensor, int]


@variant(
    kind="different", paper="Qin et al. 2022, arXiv 2202.08791, eq. 9 to 12", time="n", memory="n", normalised=False
)
class CosFormer(nn.Module):
    """Weights relu(q_i) . relu(k_j) cos(pi/2 (i - j) / M), divided by their sum; M = max_len at any length.

    The cosine of a difference splits into products, so that it is linear attention over 2 D features. A query whose
    weights are all 0, as ReLU can make them, gives 0; hence rows need not sum to 1.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B,H,Nq,D), (B,Hkv,Nk,D), (B,Hkv,Nk,Dv), key_mask (B,Nk) -> (B,H,Nq,Dv)."""
        first = k.shape[2] - q.shape[2]
        turned_q, turned_k = self._turn(q, first), self._turn(k, 0)
        out = linear_attention(turned_q, turned_k, v, key_mask, same, same, causal=self.shape.causal)
        return out.to(q.dtype)

    def prefill(self, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None) -> State:
        """The state (B, Hkv, 2 D, Dv + 1) after these keys and values, and how many positions there were."""
        return fold(self._turn(k, 0), v, key_mask, same), k.shape[2]

    def step(self, state: State, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, State]:
        """The output (B,H,1,Dv) for one more position, which sees itself, and the state after it (a new one)."""
        sums, position = state
        sums = sums + fold(self._turn(k, position), v, None, same)
        return read(self._turn(q, position), sums, same).to(q.dtype), (sums, position + 1)

    def state_size(self, n: int) -> int:
        """Elements of the state per example: the same for every length n."""
        return self.shape.kv_heads * 2 * self.shape.head_dim * (self.shape.value_dim + 1)

    def flops(self, query_len: int, key_len: int) -> int:
        """Of the recurrent form: every key is added to its head's state once, every query reads one."""
        per_row = 2 * 2 * self.shape.head_dim * (self.shape.value_dim + 1)
        return per_row * (self.shape.heads * query_len + self.shape.kv_heads * key_len)

    def reference(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The quadratic form in float64."""
        q, k, v, allowed = written_out(q, k, v, key_mask, self.shape.causal)
        gap_NM = torch.arange(k.shape[2] - q.shape[2], k.shape[2])[:, None] - torch.arange(k.shape[2])
        nearness_NM = torch.cos(math.pi / 2 * gap_NM.double() / self.shape.max_len)
        weights = (q.clamp(min=0) @ k.clamp(min=0).mT * nearness_NM).masked_fill(~allowed, 0)
        total = weights.sum(-1, keepdim=True)
        return weights @ v / total.masked_fill(total == 0, 1)

    def _turn(self, x_BHND: torch.Tensor, first: int) -> torch.Tensor:
        """relu(x) times cosine and sine of its position, (B, H, N, 2 D) in float32 or wider."""
        wide = torch.promote_types(x_BHND.dtype, torch.float32)
        positions = torch.arange(first, first + x_BHND.shape[2], device=x_BHND.device, dtype=wide)
        angle_N1 = (positions * (math.pi / 2 / self.shape.max_len))[:, None]
        positive = x_BHND.to(wide).relu()
        return torch.cat([positive * angle_N1.cos(), positive * angle_N1.sin()], -1)


def same(x: torch.Tensor) -> torch.Tensor:
    """Features that were made beforehand, for they depend on the position."""
    return x
