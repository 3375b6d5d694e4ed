"""The flash-attn package: its own CUDA kernels of FlashAttention 2 and 3."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from torch import nn

from bench.pairs import window_pairs, window_pattern
from bench.variant import Ge, Shape, Unsupported, variant
from variants._fused import positive_scale
from variants._library import library
from variants._masking import nothing_seen

WIDEST = 256  # of a head
PYTORCH = "--index-url https://download.pytorch.org/whl/cu130"  # what PyPI has under the name of version 3 is empty


@variant(
    kind="exact",
    paper="Dao 2023, arXiv 2307.08691; Shah et al. 2024, arXiv 2407.08608",
    time="n^2",
    memory="n",
    key_mask=False,
    dtypes=("bfloat16", "float16"),
    devices=("cuda",),
    runs=("flash",),
)
class FlashAttn(nn.Module):
    """FlashAttention by the flash-attn package.

    version: 2, or 3 (Hopper), each a package of its own. window: 0 for none; else each query sees that many positions,
    itself included (in both directions without causality). scale: None is head_dim ** -0.5.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        version: Literal["2", "3"] = "2",
        window: Annotated[int, Ge(0)] = 0,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        package = (
            library("flash_attn", "flash-attn", extra="flash-attn")
            if version == "2"
            else library("flash_attn_interface", "flash-attn-3", index=PYTORCH)
        )
        self._call: Any = package.flash_attn_func
        if max(shape.head_dim, shape.value_dim) > WIDEST or shape.head_dim != shape.value_dim:
            raise Unsupported(
                f"head_dim and value_dim must be equal and at most {WIDEST}, got {shape.head_dim} and {shape.value_dim}"
            )
        self.shape = shape
        self.window = window
        self.scale = shape.scale if scale is None else scale

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B,H,Nq,D), (B,Hkv,Nk,D), (B,Hkv,Nk,Dv) -> (B,H,Nq,Dv); the package's layout is (B,N,H,D)."""
        if 0 in (q.shape[0], q.shape[2], k.shape[2]):
            return nothing_seen(q, v.shape[3])
        # Its extents leave the query itself out, and its causal form is aligned bottom-right as ours is.
        reach = self.window - 1 if self.window else -1
        window = (reach, 0 if self.shape.causal else reach)
        q, scale = positive_scale(q, self.scale)
        turned = (x.transpose(1, 2) for x in (q, k, v))
        out = self._call(*turned, softmax_scale=scale, causal=self.shape.causal, window_size=window)
        out_BNHD: torch.Tensor = out[0] if isinstance(out, tuple) else out  # version 3 returns more
        return out_BNHD.transpose(1, 2)

    def pattern(self, query_len: int, key_len: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Allowed pairs, bool (Nq, Nk)."""
        return window_pattern(query_len, key_len, self.window, self.shape.causal, device)

    def pairs(self, query_len: int, key_len: int) -> int:
        """Number of allowed pairs per head."""
        return window_pairs(query_len, key_len, self.window, self.shape.causal)
