"""torch's fused attention under this project's conventions: bottom-right causal, masks, any width of values."""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn import functional as F

from bench.pairs import distances, full_pattern
from variants._fused import one_width, positive_scale
from variants._masking import nothing_seen, zero_padding

QUERY_BLOCK = 512  # queries whose mask exists at a time


class Kernel(Protocol):
    """Fused softmax attention of q (B,H,N,D), k and v (B,G,M,D): a mask (bool, or added to the scores) or causal."""

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        mask: torch.Tensor | None,
        causal: bool,
        scale: float,
    ) -> torch.Tensor:
        """(B,H,N,D); causal is aligned bottom-right, with N <= M."""


class Bias(Protocol):
    """What is added to the scaled scores."""

    def __call__(self, gap_NM: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """(H, N, M) from the distances p - j."""


def sdpa(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, mask: torch.Tensor | None, causal: bool, scale: float
) -> torch.Tensor:
    """The `Kernel` that torch chooses. Its causal flag is aligned top-left: missing queries are put in front as 0."""
    ahead = k.shape[2] - q.shape[2] if causal else 0
    q = F.pad(q, (0, 0, ahead, 0)) if ahead else q
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    return out[:, :, ahead:]


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    key_mask: torch.Tensor | None,
    *,
    causal: bool,
    scale: float,
    kernel: Kernel = sdpa,
    bias: Bias | None = None,
) -> torch.Tensor:
    """softmax(scale * q k^T + bias) v: (B,H,Nq,D), (B,G,Nk,D), (B,G,Nk,E), key_mask (B,Nk) -> (B,H,Nq,E).

    Queries that see nothing are cut off (Nq > Nk); values of another width than the keys are padded with zeros. A bias,
    or a key mask beside the causal flag, goes to the kernel as a mask in blocks of queries: a train call keeps them.
    """
    k, v = zero_padding(k, v, key_mask)
    query_len, key_len, value_dim = q.shape[2], k.shape[2], v.shape[3]
    if 0 in (q.shape[0], query_len, key_len):
        return nothing_seen(q, value_dim)
    blind = max(0, query_len - key_len) if causal else 0
    q, k, v = one_width(q[:, :, blind:] if blind else q, k, v)
    q, scale = positive_scale(q, scale)
    causal = causal and q.shape[2] > 1
    if bias is not None or (causal and key_mask is not None):
        out = _blocks(q, k, v, key_mask, causal, scale, kernel, bias)
    else:
        mask = None if key_mask is None else key_mask[:, None, None, :]
        out = kernel(q, k, v, mask=mask, causal=causal, scale=scale)
    return F.pad(out[..., :value_dim], (0, 0, blind, 0)) if blind else out[..., :value_dim]


def _blocks(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    key_mask: torch.Tensor | None,
    causal: bool,
    scale: float,
    kernel: Kernel,
    bias: Bias | None,
) -> torch.Tensor:
    first, outs = k.shape[2] - q.shape[2], []
    for start in range(0, q.shape[2], QUERY_BLOCK):
        q_block = q[:, :, start : start + QUERY_BLOCK]
        rows = q_block.shape[2]
        end = first + start + rows if causal else k.shape[2]
        mask = full_pattern(rows, end, causal, q.device)[None, None]
        if key_mask is not None:
            mask = mask & key_mask[:, None, None, :end]
        if bias is not None:
            gap_NM = distances(rows, end, q.device) + (first + start + rows - end)
            mask = bias(gap_NM, q.dtype).masked_fill(~mask, -torch.inf)
        outs.append(kernel(q_block, k[:, :, :end], v[:, :, :end], mask=mask, causal=False, scale=scale))
    return torch.cat(outs, 2)
