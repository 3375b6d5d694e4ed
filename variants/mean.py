"""The control that looks at nothing: each query gets the average of the values it may see."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from bench.variant import Shape, variant
from variants._masking import nothing_seen, zero_padding
from variants._reference import written_out


@variant(kind="different", paper="control: averages the values without looking at them", time="n", memory="n")
class Mean(nn.Module):
    """Average of the visible values, whatever q and k are (the control for what looking is worth).

    Sums are float32 or wider. Causal: a running average. A query that sees nothing gets 0.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B,H,Nq,D), (B,Hkv,Nk,D), (B,Hkv,Nk,Dv), key_mask (B,Nk) -> (B,H,Nq,Dv)."""
        (batch, heads, query_len, _), key_len = q.shape, k.shape[2]
        if 0 in (batch, query_len, key_len):
            return nothing_seen(q, v.shape[3])
        v_BGMF = _counted(k, v, key_mask)
        if self.shape.causal:
            seen = min(query_len, key_len)
            mean_BGNE = F.pad(_ratio(v_BGMF.cumsum(2)[:, :, key_len - seen :]), (0, 0, query_len - seen, 0))
        else:
            mean_BGNE = _ratio(v_BGMF.sum(2, keepdim=True)).expand(-1, -1, query_len, -1)
        return mean_BGNE.to(q.dtype).repeat_interleave(heads // v.shape[1], 1)

    def prefill(self, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None) -> torch.Tensor:
        """The state (B, Hkv, 1, Dv + 1) after these values: their sum, and their number as its last column."""
        return _counted(k, v, key_mask).sum(2, keepdim=True)

    def step(
        self, state_BG1F: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The output (B,H,1,Dv) for one more position, which sees itself, and the state after it (a new tensor)."""
        state_BG1F = state_BG1F + self.prefill(k, v)
        return _ratio(state_BG1F).to(q.dtype).repeat_interleave(q.shape[1] // k.shape[1], 1), state_BG1F

    def state_size(self, n: int) -> int:
        """Elements of the state per example: the same for every length n."""
        return (self.shape.kv_heads or 0) * ((self.shape.value_dim or 0) + 1)

    def reference(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The same in float64 as weights: 1 over the number of allowed keys."""
        q, k, v, allowed = written_out(q, k, v, key_mask, self.shape.causal)
        weights = allowed.expand(*q.shape[:3], k.shape[2]).double()
        return weights / weights.sum(-1, keepdim=True).clamp(min=1) @ v

    def flops(self, query_len: int, key_len: int) -> int:
        """Of the running form: every value is added once per key head; every query divides once there."""
        return (self.shape.kv_heads or 0) * (self.shape.value_dim or 0) * (query_len + key_len)


def _counted(k: torch.Tensor, v: torch.Tensor, key_mask: torch.Tensor | None) -> torch.Tensor:
    """v (B, G, M, E + 1) in float32 or wider, 0 where padded, with a column that counts the real positions."""
    _, v = zero_padding(k, v, key_mask)
    v = v.to(torch.promote_types(v.dtype, torch.float32))
    if key_mask is None:
        return F.pad(v, (0, 1), value=1.0)
    return torch.cat([v, key_mask[:, None, :, None].to(v.dtype).expand(-1, v.shape[1], -1, -1)], -1)


def _ratio(sums_BGNF: torch.Tensor) -> torch.Tensor:
    return sums_BGNF[..., :-1] / sums_BGNF[..., -1:].clamp(min=1)
