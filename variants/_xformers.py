"""memory_efficient_attention of the xformers package: its layout, its biases and its kernels by name."""

from __future__ import annotations

from typing import Any, Literal

import torch

Kernel = Literal["cutlass", "flash"]


def memory_efficient(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool,
    scale: float,
    window: int = 0,
    kernel: Kernel | None = None,
) -> torch.Tensor:
    """(B,H,Nq,D), (B,Hkv,Nk,D), (B,Hkv,Nk,Dv) -> (B,H,Nq,Dv); imports the package.

    window: 0 for none, else positions that each query sees, itself included. kernel: None lets the package choose.
    """
    from xformers.ops import fmha, memory_efficient_attention

    op = None if kernel is None else {"cutlass": fmha.cutlass, "flash": fmha.flash}[kernel]
    # Its layout for grouped heads is (B, N, Hkv, H/Hkv, D), keys and values expanded without a copy.
    batch, heads, query_len, width = q.shape
    shared = (batch, k.shape[1], heads // k.shape[1])
    q_BNGHD = q.reshape(*shared, query_len, width).permute(0, 3, 1, 2, 4)
    k_BMGHD, v_BMGHD = (x.transpose(1, 2)[:, :, :, None].expand(-1, -1, -1, shared[2], -1) for x in (k, v))
    out_BNGHD = memory_efficient_attention(
        q_BNGHD,
        k_BMGHD,
        v_BMGHD,
        attn_bias=bias(causal, window),
        scale=scale,
        op=None if op is None else (op.FwOp, op.BwOp),
    )
    out: torch.Tensor = out_BNGHD.permute(0, 2, 3, 1, 4).reshape(batch, heads, query_len, -1)
    return out


def bias(causal: bool, window: int) -> Any:
    """The package's bias for a pattern, bottom-right; None for all pairs. Its causal window counts the query itself."""
    from xformers.ops.fmha import attn_bias

    if causal:
        triangle = attn_bias.LowerTriangularFromBottomRightMask()
        return triangle.make_local_attention(window) if window else triangle
    beside = window - 1
    return attn_bias.LocalAttentionFromBottomRightMask(window_left=beside, window_right=beside) if window else None
