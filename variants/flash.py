"""Fused softmax attention: the kernels that never store the n-by-n matrices, named and never replaced."""

from __future__ import annotations

import warnings
from typing import Literal

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.pairs import distances, full_pairs, full_pattern
from bench.variant import Shape, Unsupported, variant
from variants._bias import Alibi
from variants._sdpa import attend, sdpa
from variants._xformers import memory_efficient

KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


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
    (memory_efficient_attention; CUDA). scale: factor of the scores; None is head_dim ** -0.5. bias: `alibi` goes to
    the kernel as a mask, for none computes it: a forward holds 512 H n numbers, a train call keeps H n^2 (causal half).

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
        bias: Literal["none", "alibi"] = "none",
    ) -> None:
        super().__init__()
        self.shape = shape
        self.backend = backend
        self.scale = shape.scale if scale is None else scale
        self.position_bias = Alibi(shape) if bias == "alibi" else None
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
        for name, given in (("key_mask", key_mask is not None), ("bias", self.position_bias is not None)):
            if given and (self.backend == "xformers" or (self.backend == "flash" and q.device.type == "cuda")):
                raise Unsupported(f"backend '{self.backend}' takes no {name} on {q.device.type} (use 'efficient')")
        return attend(
            q,
            k,
            v,
            key_mask,
            causal=self.shape.causal,
            scale=self.scale,
            kernel=_xformers if self.backend == "xformers" else self._kernel,
            bias=self.position_bias,
        )

    def _kernel(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        mask: torch.Tensor | None,
        causal: bool,
        scale: float,
    ) -> torch.Tensor:
        with sdpa_kernel(KERNELS[self.backend]):
            return sdpa(q, k, v, mask=mask, causal=causal, scale=scale)

    def bias(self, query_len: int, key_len: int) -> torch.Tensor | None:
        """What is added to the scores, float64 (H, Nq, Nk); None for nothing."""
        gap_NM = distances(query_len, key_len)
        return None if self.position_bias is None else self.position_bias(gap_NM, torch.float64)

    def pattern(self, query_len: int, key_len: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Allowed pairs, bool (Nq, Nk)."""
        return full_pattern(query_len, key_len, self.shape.causal, device)

    def pairs(self, query_len: int, key_len: int) -> int:
        """Number of allowed pairs per head."""
        return full_pairs(query_len, key_len, self.shape.causal)


def _xformers(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, mask: torch.Tensor | None, causal: bool, scale: float
) -> torch.Tensor:
    assert mask is None
    return memory_efficient(q, k, v, causal=causal, scale=scale)
