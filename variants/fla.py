"""The flash-linear-attention package: Triton kernels of linear attention and of recurrences with a state."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional as F

from bench.variant import Shape, Unsupported, variant
from variants._library import library
from variants._masking import nothing_seen
from variants._recurrent import drawn, gate

OPS = {
    "linear": ("fla.ops.linear_attn", "chunk_linear_attn"),
    "retention": ("fla.ops.retention", "chunk_retention"),
    "gla": ("fla.ops.gla", "chunk_gla"),
    "delta": ("fla.ops.delta_rule", "chunk_delta_rule"),
}
EPS = 1e-10  # what the package adds to the total weight
RANK, ROOT = 16, 16  # of the gates of `gla`


@variant(
    kind="different",
    paper="Yang and Zhang 2024, flash-linear-attention",
    time="n",
    memory="n",
    bidirectional=False,
    cross=False,
    key_mask=False,
    grouped=False,
    normalised=False,
    decode=False,
    needs_x=True,
    dtypes=("float32", "bfloat16"),
    devices=("cuda",),
    runs=("chunk",),
)
class Fla(nn.Module):
    """Chunked kernels by the flash-linear-attention package: S_t = a_t S_{t-1} + k_t v_t^T, out = q S / sqrt(D).

    op: `linear`: features elu(x) + 1, a = 1, divided by the total weight. The others are not normalised, not even per
    head as the variants of these names here are. `retention`: a = 1 - 2^(-5 - h). `gla`: a per feature,
    sigmoid(x W1 W2 + b)^(1/16). `delta`: v_t less what S_{t-1} holds for k_t, times sigmoid(x W), |k| = 1; no
    float32. Sums that are not normalised leave float16, so it is not claimed.
    """

    def __init__(self, shape: Shape, *, op: Literal["linear", "retention", "gla", "delta"] = "linear") -> None:
        super().__init__()
        module, function = OPS[op]
        self._call: Any = getattr(library(module, "flash-linear-attention", extra="fla"), function)
        self.shape = shape
        self.op = op
        width = shape.heads * shape.head_dim
        sizes = {"gla": ((RANK, shape.model_dim), (width, RANK)), "delta": ((shape.heads, shape.model_dim),)}.get(op)
        self.weights = nn.ParameterList(drawn(*sizes) if sizes else [])
        self.bias_F = nn.Parameter(torch.zeros(width)) if op == "gla" else None

    def require(self, *, dtype: str, device: str) -> None:
        """Raise `Unsupported` for what the package refuses."""
        if self.op == "delta" and dtype == "float32":
            raise Unsupported("op 'delta' of flash-linear-attention takes bfloat16, got float32")

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        x: torch.Tensor,
        key_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """(B,H,N,D), (B,H,N,D), (B,H,N,Dv), x (B,N,C) -> (B,H,N,Dv); the package's layout is (B,N,H,D)."""
        if 0 in (q.shape[0], q.shape[2]):
            return nothing_seen(q, v.shape[3])
        q, k = self._features(q), self._features(k, key=True)
        more: dict[str, Any] = {"normalize": True} if self.op == "linear" else {}
        if self.op == "gla":
            more["g"] = self._log_decay(x)
        if self.op == "delta":
            more["beta"] = gate(x, *self.weights).sigmoid().to(q.dtype)
        turned = (x.transpose(1, 2).contiguous() for x in (q, k, v))
        out_BNHE: torch.Tensor = self._call(*turned, scale=self.shape.scale, **more)[0]
        return out_BNHE.transpose(1, 2)

    def reference(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        x: torch.Tensor,
        key_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Position by position in float64."""
        q, k, v, x = self._features(q.double()), self._features(k.double(), key=True), v.double(), x.double()
        heads, width = self.shape.heads, self.shape.head_dim
        kept_BHND = torch.ones_like(k)
        if self.op == "retention":
            kept_BHND = kept_BHND - 2.0 ** (-5 - torch.arange(heads, dtype=torch.float64))[:, None, None]
        if self.op == "gla":
            kept_BHND = self._log_decay(x).exp().transpose(1, 2)
        share_BHN1 = torch.ones_like(k[..., :1])
        if self.op == "delta":
            share_BHN1 = gate(x, *self.weights).sigmoid().mT[..., None]
        state_BHDE, total_BHD, outs = q.new_zeros(len(q), heads, width, v.shape[3]), torch.zeros_like(k[:, :, 0]), []
        for i in range(q.shape[2]):
            asked, key, value = q[:, :, i] * self.shape.scale, k[:, :, i], v[:, :, i]
            held = torch.einsum("BHD,BHDE->BHE", key, state_BHDE) if self.op == "delta" else 0
            added = share_BHN1[:, :, i] * (value - held)
            state_BHDE = kept_BHND[:, :, i, :, None] * state_BHDE + key[..., None] * added[..., None, :]
            total_BHD = total_BHD + key
            out = torch.einsum("BHD,BHDE->BHE", asked, state_BHDE)
            outs.append(out / ((asked * total_BHD).sum(-1, keepdim=True) + EPS) if self.op == "linear" else out)
        return torch.stack(outs, 2)

    def flops(self, query_len: int, key_len: int) -> int:
        """Of the recurrent form: reads of the state, the outer product of every key and value, and the gates."""
        state = self.shape.heads * self.shape.head_dim * self.shape.value_dim
        gates = sum(weight.numel() for weight in self.parameters() if weight.dim() == 2)
        return 2 * state * (query_len + (2 if self.op == "delta" else 1) * key_len) + 2 * gates * key_len

    def _features(self, x_BHND: torch.Tensor, *, key: bool = False) -> torch.Tensor:
        wide = x_BHND.to(torch.promote_types(x_BHND.dtype, torch.float32))
        if self.op == "linear":  # not elu(x) + 1, which cancels
            return torch.where(wide > 0, wide + 1, wide.clamp(max=0).exp()).to(x_BHND.dtype)
        return F.normalize(wide, dim=-1).to(x_BHND.dtype) if self.op == "delta" and key else x_BHND

    def _log_decay(self, x_BNC: torch.Tensor) -> torch.Tensor:
        """(B,N,H,D), float32 or wider."""
        assert self.bias_F is not None
        raw_BNF = gate(x_BNC, *self.weights) + self.bias_F
        log_decay_BNF = F.logsigmoid(raw_BNF) / ROOT
        return log_decay_BNF.view(*raw_BNF.shape[:2], self.shape.heads, self.shape.head_dim)
