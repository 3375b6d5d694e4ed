"""Fused softmax attention: the kernels that never store the n-by-n matrices, named and never replaced."""

from __future__ import annotations

import warnings
from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.pairs import full_pairs, full_pattern
from bench.variant import Shape, Unsupported, variant
from variants._fused import one_width
from variants._masking import nothing_seen, zero_padding

KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
QUERY_BLOCK = 512  # rows of a causal key mask that exist at a time


@variant(
    kind="exact",
    paper="Dao et al. 2022, arXiv 2205.14135",
    time="n^2",
    memory="n",
    devices=("cpu", "cuda"),
    runs=("flash_attention",),
)
class Flash(nn.Module):
    """Fused softmax attention: exact, without n-by-n matrices in memory.

    backend: the kernel, strictly: `flash` (torch; CPU and CUDA), `efficient` and `cudnn` (torch; CUDA), `xformers`
    (memory_efficient_attention; CUDA). scale: factor of the scores; None is head_dim ** -0.5.

    Exact conversions: torch's causal flag is aligned top-left, so queries that see nothing are cut off (Nq > Nk) and
    missing ones put in front as zeros (Nq < Nk); key masks go to the kernel as boolean masks, with the causal pattern
    in blocks of queries, whose biases a train call keeps (n^2 / 2 numbers, where a key mask meets the causal flag);
    values of another width than the keys are padded with zeros.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        backend: Literal["flash", "efficient", "cudnn", "xformers"] = "flash",
        scale: float | None = None,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.backend = backend
        self.scale = shape.scale if scale is None else scale
        self.kernel_scale = self.scale if self.scale > 0 else 1.0
        self.runs = ("xformers",) if backend == "xformers" else (f"{backend}_attention",)

    def require(self, *, dtype: str, device: str) -> None:
        """Raise `Unsupported`, with the kernel's own reason, unless it takes this shape, dtype and device."""
        if device == "cpu" and self.backend in ("efficient", "cudnn"):
            raise Unsupported(f"backend '{self.backend}' needs a CUDA device, got cpu (use backend='flash')")
        kv_heads, value_dim = self.shape.kv_heads or self.shape.heads, self.shape.value_dim or self.shape.head_dim
        sizes = ((self.shape.heads, self.shape.head_dim), (kv_heads, self.shape.head_dim), (kv_heads, value_dim))
        with warnings.catch_warnings(record=True) as notes:  # torch gives its reasons as warnings
            warnings.simplefilter("always")
            try:
                self(*(torch.zeros(1, h, 8, d, dtype=getattr(torch, dtype), device=device) for h, d in sizes))
            except ImportError as error:
                raise Unsupported(
                    f"backend '{self.backend}' needs a package: pip install xformers ({error})"
                ) from error
            except (RuntimeError, ValueError) as error:
                told = "; ".join([*(str(note.message) for note in notes), str(error)])
                raise Unsupported(f"backend '{self.backend}' on {device}: {' '.join(told.split())}") from error

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B,H,Nq,D), (B,Hkv,Nk,D), (B,Hkv,Nk,Dv), key_mask (B,Nk) -> (B,H,Nq,Dv)."""
        k, v = zero_padding(k, v, key_mask)
        query_len, key_len, value_dim = q.shape[2], k.shape[2], v.shape[3]
        if 0 in (q.shape[0], query_len, key_len):
            return nothing_seen(q, value_dim)
        blind = max(0, query_len - key_len) if self.shape.causal else 0
        q, k, v = one_width(q[:, :, blind:] if blind else q, k, v)
        if self.scale <= 0:  # the kernel multiplies after masking: minus infinity would become NaN or plus infinity
            q = q * self.scale
        causal = self.shape.causal and q.shape[2] > 1
        out = self._whole(q, k, v, causal) if key_mask is None else self._masked(q, k, v, key_mask, causal)
        return F.pad(out[..., :value_dim], (0, 0, blind, 0)) if blind else out[..., :value_dim]

    def _whole(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
        if self.backend == "xformers":
            return _xformers(q, k, v, causal, self.kernel_scale)
        ahead = k.shape[2] - q.shape[2] if causal else 0
        return self._kernel(F.pad(q, (0, 0, ahead, 0)) if ahead else q, k, v, causal=causal)[:, :, ahead:]

    def _masked(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, key_mask: torch.Tensor, causal: bool
    ) -> torch.Tensor:
        if self.backend == "xformers" or (self.backend == "flash" and q.device.type == "cuda"):
            raise Unsupported(f"backend '{self.backend}' takes no key_mask on {q.device.type} (use 'efficient')")
        if not causal:
            return self._kernel(q, k, v, key_mask[:, None, None, :])
        first, outs = k.shape[2] - q.shape[2], []
        for start in range(0, q.shape[2], QUERY_BLOCK):
            q_block = q[:, :, start : start + QUERY_BLOCK]
            end = first + start + q_block.shape[2]
            mask = key_mask[:, None, None, :end] & full_pattern(q_block.shape[2], end, True, q.device)
            outs.append(self._kernel(q_block, k[:, :, :end], v[:, :, :end], mask))
        return torch.cat(outs, 2)

    def _kernel(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mask: torch.Tensor | None = None,
        causal: bool = False,
    ) -> torch.Tensor:
        with sdpa_kernel(KERNELS[self.backend]):
            return F.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=mask,
                is_causal=causal,
                scale=self.kernel_scale,
                enable_gqa=q.shape[1] != k.shape[1],
            )

    def pattern(self, query_len: int, key_len: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Allowed pairs, bool (Nq, Nk)."""
        return full_pattern(query_len, key_len, self.shape.causal, device)

    def pairs(self, query_len: int, key_len: int) -> int:
        """Number of allowed pairs per head."""
        return full_pairs(query_len, key_len, self.shape.causal)


def _xformers(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    from xformers.ops import memory_efficient_attention
    from xformers.ops.fmha.attn_bias import LowerTriangularFromBottomRightMask

    # Its layout for grouped heads is (B, N, Hkv, H/Hkv, D), keys and values expanded without a copy.
    batch, heads, query_len, width = q.shape
    shared = (batch, k.shape[1], heads // k.shape[1])
    q_BNGHD = q.reshape(*shared, query_len, width).permute(0, 3, 1, 2, 4)
    k_BMGHD, v_BMGHD = (x.transpose(1, 2)[:, :, :, None].expand(-1, -1, -1, shared[2], -1) for x in (k, v))
    bias = LowerTriangularFromBottomRightMask() if causal else None
    out_BNGHD = memory_efficient_attention(q_BNGHD, k_BMGHD, v_BMGHD, attn_bias=bias, scale=scale)
    out: torch.Tensor = out_BNGHD.permute(0, 2, 3, 1, 4).reshape(batch, heads, query_len, width)
    return out
