"""Linear attention: a feature map in place of the softmax, so that keys and values fold into one small state."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from bench.pairs import full_pattern
from bench.variant import Shape, variant
from variants._masking import group_rows, nothing_seen, zero_padding

CHUNK = 64  # positions per chunk of the causal form; 64 and 128 are fastest, 32 and 256 are slower
TINY = 1e-37  # a total below counts as no weight at all: its reciprocal would overflow in the backward


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
        query_len, key_len = q.shape[2], k.shape[2]
        blind = max(0, query_len - key_len) if self.shape.causal else 0
        if 0 in (q.shape[0], query_len, key_len):
            return nothing_seen(q, v.shape[3])
        phi_q_BHND = features(q[:, :, blind:])
        phi_k_BGMD, v_BGMF = _keys_and_values(k, v, key_mask)
        if self.shape.causal:
            sums_BHNF = _causal(phi_q_BHND, phi_k_BGMD, v_BGMF)
        else:
            sums_BHNF = _read(phi_q_BHND, phi_k_BGMD.mT @ v_BGMF)
        return F.pad(_ratio(sums_BHNF), (0, 0, blind, 0)).to(q.dtype)

    def prefill(self, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None) -> torch.Tensor:
        """The state (B, Hkv, D, Dv + 1) after these keys and values: S, and z as its last column."""
        phi_k_BGMD, v_BGMF = _keys_and_values(k, v, key_mask)
        return phi_k_BGMD.mT @ v_BGMF

    def step(
        self, state_BGDF: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The output (B,H,1,Dv) for one more position, which sees itself, and the state after it (a new tensor)."""
        state_BGDF = state_BGDF + self.prefill(k, v)
        return _ratio(_read(features(q), state_BGDF)).to(q.dtype), state_BGDF

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


class Features(torch.autograd.Function):
    """elu(x) + 1 as exp(min(x, 0)) + max(x, 0): near -8 the sum elu(x) + 1 would cancel. Keeps its output only."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Elementwise."""
        phi = x.clamp(max=0).exp_().add_(x.clamp(min=0))
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


def _keys_and_values(
    k: torch.Tensor, v: torch.Tensor, key_mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """phi(k), 0 at padded keys (after the map, for phi(0) = 1), and v with a column of ones that sums the weights."""
    k, v = zero_padding(k, v, key_mask)
    phi_k = features(k)
    if key_mask is not None:
        phi_k = phi_k.masked_fill(~key_mask[:, None, :, None], 0)
    return phi_k, F.pad(v.to(phi_k.dtype), (0, 1), value=1.0)


def _read(phi_q_BHND: torch.Tensor, state_BGDF: torch.Tensor) -> torch.Tensor:
    rows = group_rows(phi_q_BHND, state_BGDF.shape[1]) @ state_BGDF
    return rows.view(*phi_q_BHND.shape[:3], -1)


def _ratio(sums_BHNF: torch.Tensor) -> torch.Tensor:
    total_BHN1 = sums_BHNF[..., -1:]
    return sums_BHNF[..., :-1] / total_BHN1.masked_fill(total_BHN1 < TINY, 1)


def _causal(phi_q_BHND: torch.Tensor, phi_k_BGMD: torch.Tensor, v_BGMF: torch.Tensor) -> torch.Tensor:
    """Sums (B, H, Nq, Dv + 1) over the keys up to each query, Nq <= Nk, in chunks: no loop, so the backward is linear.

    A query reads the state of all chunks before its own, and its own chunk's keys directly.
    """
    (batch, heads, query_len, _), (kv_heads, key_len) = phi_q_BHND.shape, phi_k_BGMD.shape[1:3]
    groups, first = heads // kv_heads, key_len - query_len
    rows = min(CHUNK, key_len)
    chunks, start = -(-key_len // rows), first // rows
    ahead, tail = first - start * rows, chunks * rows - key_len
    q_BGgcrD = F.pad(phi_q_BHND, (0, 0, ahead, tail)).view(batch, kv_heads, groups, chunks - start, rows, -1)
    q_BGcRD = q_BGgcrD.transpose(2, 3).flatten(3, 4)
    cut = (batch, kv_heads, chunks, rows, -1)
    k_BGcMD, v_BGcMF = (F.pad(x, (0, 0, 0, tail)).view(cut) for x in (phi_k_BGMD, v_BGMF))
    # Shifted before it is summed: a total less its own part would let the future round the past.
    before_BGcDF = F.pad(k_BGcMD.mT @ v_BGcMF, (0, 0, 0, 0, 1, -1)).cumsum(2)
    future_RM = ~full_pattern(rows, rows, True, phi_q_BHND.device).repeat(groups, 1)
    inside_BGcRM = (q_BGcRD @ k_BGcMD[:, :, start:].mT).masked_fill_(future_RM, 0)
    sums_BGcRF = q_BGcRD @ before_BGcDF[:, :, start:] + inside_BGcRM @ v_BGcMF[:, :, start:]
    sums_BGgcrF = sums_BGcRF.view(batch, kv_heads, chunks - start, groups, rows, -1).transpose(2, 3)
    return sums_BGgcrF.reshape(batch, heads, ahead + query_len + tail, -1).narrow(2, ahead, query_len)
