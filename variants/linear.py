"""Linear attention: a feature map in place of the softmax, so that keys and values fold into one small state."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from bench.pairs import full_pattern
from bench.variant import Shape, variant
from variants._linear import fold, linear_attention, read
from variants._masking import zero_padding


@variant(kind="different", paper="Katharopoulos et al. 2020, arXiv 2006.16236, eq. 5 and 9", time="n", memory="n")
class Linear(nn.Module):
    """Linear attention with feature map elu(x) + 1: out = phi(q) S / (phi(q) z), S = sum phi(k) v^T, z = sum phi(k).

    Sums and states are float32 (float64 for float64 inputs). A query whose normaliser is 0 gives 0.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B,H,Nq,D), (B,Hkv,Nk,D), (B,Hkv,Nk,Dv), key_mask (B,Nk) -> (B,H,Nq,Dv)."""
        return linear_attention(q, k, v, key_mask, features, features, causal=self.shape.causal)

    def prefill(self, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None) -> torch.Tensor:
        """The state (B, Hkv, D, Dv + 1) after these keys and values: S, and z as its last column."""
        return fold(k, v, key_mask, features)

    def step(
        self, state_BGDF: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The output (B,H,1,Dv) for one more position, which sees itself, and the state after it (a new tensor)."""
        state_BGDF = state_BGDF + fold(k, v, None, features)
        return read(q, state_BGDF, features), state_BGDF

    def state_size(self, n: int) -> int:
        """Elements of the state per example: the same for every length n."""
        return (self.shape.kv_heads or 0) * self.shape.head_dim * ((self.shape.value_dim or 0) + 1)

    def flops(self, query_len: int, key_len: int) -> int:
        """Of the recurrent form: every key is added to its head's state once, every query reads one."""
        columns = (self.shape.value_dim or 0) + 1
        return 2 * self.shape.head_dim * columns * (self.shape.heads * query_len + (self.shape.kv_heads or 0) * key_len)

    def reference(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The quadratic form in float64: weights phi(q) phi(k)^T, masked, divided by their sum."""
        k, v = zero_padding(k.double(), v.double(), key_mask)
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        phi_q, phi_k = (torch.where(x > 0, x + 1, x.clamp(max=0).exp()) for x in (q.double(), k))
        weights_BHNM = phi_q @ phi_k.mT
        weights_BHNM = weights_BHNM * full_pattern(q.shape[2], k.shape[2], self.shape.causal, q.device)
        if key_mask is not None:
            weights_BHNM = weights_BHNM * key_mask[:, None, None, :]
        total_BHN1 = weights_BHNM.sum(-1, keepdim=True)
        return weights_BHNM @ v / total_BHN1.masked_fill(total_BHN1 == 0, 1)


LOG2_E = math.log2(math.e)  # exp(x) as 2^(x log2 e): torch's exp takes 3 times as long on processors of AMD


class Features(torch.autograd.Function):
    """elu(x) + 1 as exp(min(x, 0)) + max(x, 0): near -8 the sum elu(x) + 1 would cancel. Keeps its output only."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Elementwise."""
        phi = x.clamp(max=0).mul_(LOG2_E).exp2_().add_(x.clamp(min=0))
        ctx.save_for_backward(phi)
        return phi

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        """The slope is exp(x) = phi where x < 0, else 1."""
        phi: torch.Tensor = ctx.saved_tensors[0]
        return phi.clamp(max=1).mul_(grad)


def features(x: torch.Tensor) -> torch.Tensor:
    """phi(x) in float32 or wider."""
    phi: torch.Tensor = Features.apply(x.to(torch.promote_types(x.dtype, torch.float32)))  # type: ignore[no-untyped-call]
    return phi
