"""Performer: softmax attention estimated by positive random features (FAVOR+)."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import nn

from bench.variant import Ge, Shape, variant
from variants._linear import FeatureMap, fold, linear_attention, read
from variants._masking import zero_padding

HIGHEST = 60.0  # exponents of keys stay below: exp(60) times a million positions is far from the end of float32
RELU_OFFSET = 1e-3  # keeps a row of ReLU features from being all 0 (the authors' kernel_epsilon)


@variant(kind="approximate", paper="Choromanski et al. 2021, arXiv 2009.14794, eq. 5 and lemma 1", time="n", memory="n")
class Performer(nn.Module):
    """FAVOR+: weights phi(q) . phi(k) with phi(x) = exp(w x - |x|^2 / 2) over random w, an estimate of exp(q . k).

    x is scaled by head_dim ** -1/4. w: `features` rows, orthogonal in blocks of head_dim, as long as normal rows are,
    drawn once from `seed` and shared by all heads. What keeps the exponents in range cancels in the ratio: for a query
    its own largest; for keys the largest of all, or with causality, where that would tell of the future, a constant of
    w alone. No epsilon is added: it would not cancel. kernel: `relu` takes max(w x, 0) + 0.001 instead, which estimates
    no softmax.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        features: Annotated[int, Ge(1)] = 256,
        kernel: Literal["softmax", "relu"] = "softmax",
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.softmax = kernel == "softmax"
        self.w_FD: torch.Tensor
        self.register_buffer("w_FD", orthogonal(features, shape.head_dim, seed) * shape.head_dim**-0.25)

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B,H,Nq,D), (B,Hkv,Nk,D), (B,Hkv,Nk,Dv), key_mask (B,Nk) -> (B,H,Nq,Dv)."""
        k, v = zero_padding(k, v, key_mask)
        features_k = self._features_k(None if self.shape.causal or k.shape[2] == 0 else k)
        return linear_attention(q, k, v, key_mask, self._features_q, features_k, causal=self.shape.causal)

    def prefill(self, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None) -> torch.Tensor:
        """The state (B, Hkv, features, Dv + 1) after these keys and values."""
        return fold(k, v, key_mask, self._features_k(None))

    def step(
        self, state_BGFE: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The output (B,H,1,Dv) for one more position, which sees itself, and the state after it (a new tensor)."""
        state_BGFE = state_BGFE + self.prefill(k, v)
        return read(q, state_BGFE, self._features_q), state_BGFE

    def state_size(self, n: int) -> int:
        """Elements of the state per example: the same for every length n."""
        return self.shape.kv_heads * len(self.w_FD) * (self.shape.value_dim + 1)

    def flops(self, query_len: int, key_len: int) -> int:
        """Of the recurrent form: features of every query and key, every key added to a state, every query reads one."""
        per_row = 2 * len(self.w_FD) * (self.shape.head_dim + self.shape.value_dim + 1)
        return per_row * (self.shape.heads * query_len + self.shape.kv_heads * key_len)

    def _features_q(self, q: torch.Tensor) -> torch.Tensor:
        projected = self._project(q)
        if not self.softmax:
            return projected.relu_() + RELU_OFFSET
        return projected.sub_(projected.detach().amax(-1, keepdim=True)).exp_()

    def _features_k(self, k: torch.Tensor | None) -> FeatureMap:
        """The map for these keys; without keys, the one that holds for any."""
        if not self.softmax:
            return self._features_q
        highest = self._bound() if k is None else self._exponents(k.detach()).amax((2, 3), keepdim=True)
        return lambda x: self._exponents(x).sub_(highest).exp_()

    def _exponents(self, x: torch.Tensor) -> torch.Tensor:
        half_norm = x.to(torch.promote_types(x.dtype, torch.float32)).square().sum(-1, keepdim=True)
        return self._project(x).sub_(half_norm * (0.5 * self.shape.head_dim**-0.5))

    def _bound(self) -> torch.Tensor:
        """w x - |x|^2 / 2 is at most |w|^2 / 2, whatever x is; only what exceeds HIGHEST is taken off."""
        norms = self.w_FD.float().square().sum(-1) * self.shape.head_dim**0.5
        bound: torch.Tensor = (norms.max() / 2 - HIGHEST).clamp(min=0)
        return bound

    def _project(self, x: torch.Tensor) -> torch.Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        projected: torch.Tensor = x.to(wide) @ self.w_FD.to(wide).T
        return projected


def orthogonal(rows: int, width: int, seed: int) -> torch.Tensor:
    """(rows, width): blocks of orthogonal rows with uniform directions and the lengths of normal rows."""
    generator = torch.Generator().manual_seed(seed)
    blocks = []
    for _ in range(-(-rows // width)):
        # Q of a QR decomposition is uniform once the signs of R's diagonal are taken out.
        q, r = torch.linalg.qr(torch.randn(width, width, generator=generator))
        blocks.append((q * r.diagonal().sign()).T)
    drawn = torch.randn(rows, width, generator=generator)
    return torch.cat(blocks)[:rows] * drawn.square().sum(1, keepdim=True).sqrt()
