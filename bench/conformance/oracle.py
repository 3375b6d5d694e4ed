"""Softmax attention as loops: slow, obvious, float64. Shares no code with any variant."""

from __future__ import annotations

import torch


def softmax_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    allowed: torch.Tensor,
    key_mask: torch.Tensor | None,
    scale: float,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """(B,H,Nq,D), (B,Hkv,Nk,D), (B,Hkv,Nk,Dv) -> (B,H,Nq,Dv), one query at a time; differentiable.

    allowed: bool (Nq,Nk), or (H,Nq,Nk) where heads differ. A query with no key gives 0. bias: (H,Nq,Nk), added to the
    scaled scores.
    """
    batch, heads, query_len, _ = q.shape
    kv_heads, key_len = k.shape[1:3]
    nothing = q.sum() * 0 if q.numel() else q.sum()
    rows = []
    for b in range(batch):
        for h in range(heads):
            shared = h * kv_heads // heads
            may = (allowed if allowed.dim() == 2 else allowed[h]).tolist()
            real = [True] * key_len if key_mask is None else key_mask[b].tolist()
            for i in range(query_len):
                keys = [j for j in range(key_len) if may[i][j] and real[j]]
                if not keys:
                    rows.append(nothing.expand(v.shape[3]))
                    continue
                scores = k[b, shared, keys] @ q[b, h, i] * scale
                if bias is not None:
                    scores = scores + bias[h, i, keys]
                weights = (scores - scores.max()).exp()
                rows.append(weights @ v[b, shared, keys] / weights.sum())
    if not rows:
        return nothing.expand(batch, heads, query_len, v.shape[3])
    return torch.stack(rows).view(batch, heads, query_len, v.shape[3])
