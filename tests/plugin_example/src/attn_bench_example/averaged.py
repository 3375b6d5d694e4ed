"""The average of all allowed values: attention whose scores are all equal."""

from __future__ import annotations

import torch
from torch import nn

from bench.pairs import full_pairs, full_pattern
from bench.variant import Shape, check_key_mask, variant


@variant(kind="different", paper="a control: softmax attention at scale 0", time="n^2", memory="n^2")
class Averaged(nn.Module):
    """The average of all allowed values."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B,H,Nq,D), (B,Hkv,Nk,D), (B,Hkv,Nk,Dv) -> (B,H,Nq,Dv)."""
        check_key_mask(key_mask, k.shape[0], k.shape[2])
        v_BHME = v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)
        allowed_BNM = full_pattern(q.shape[2], k.shape[2], self.shape.causal, q.device)[None]
        if key_mask is not None:
            v_BHME = v_BHME.masked_fill(~key_mask[:, None, :, None], 0)
            allowed_BNM = allowed_BNM & key_mask[:, None, :]
        counts_BN1 = allowed_BNM.sum(-1, keepdim=True).clamp(min=1)
        weights_B1NM = (allowed_BNM.to(torch.float32) / counts_BN1).to(v.dtype)[:, None]
        return weights_B1NM @ v_BHME

    def reference(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The same by loops, in float64."""
        out = torch.zeros(*q.shape[:3], v.shape[3], dtype=torch.float64)
        for b in range(q.shape[0]):
            for h in range(q.shape[1]):
                for i in range(q.shape[2]):
                    seen = [
                        v[b, h * v.shape[1] // q.shape[1], j].double()
                        for j in range(k.shape[2])
                        if (key_mask is None or key_mask[b, j])
                        and (not self.shape.causal or j <= k.shape[2] - q.shape[2] + i)
                    ]
                    if seen:
                        out[b, h, i] = torch.stack(seen).mean(0)
        return out

    def flops(self, query_len: int, key_len: int) -> int:
        """Multiply and add of every allowed value."""
        return 2 * self.shape.heads * full_pairs(query_len, key_len, self.shape.causal) * self.shape.value_dim
