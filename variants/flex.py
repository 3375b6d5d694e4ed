"""FlexAttention: torch's compiler makes a kernel for the mask; forward only on CPUs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from torch import nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from bench.pairs import window_pairs, window_pattern
from bench.variant import Ge, Shape, variant
from variants._flex import layout_mask, window_mask
from variants._layout import Layout
from variants._masking import nothing_seen

RECOMPILES = 1000  # the compiler's limit of 8 shapes would end in another, much slower form


@variant(
    kind="exact",
    paper="Dong et al. 2024, arXiv 2412.05496",
    time="n^2",
    memory="n",
    key_mask=False,
    dtypes=("float32", "bfloat16", "float16"),
    devices=("cpu", "cuda"),
    runs=("CompiledFxGraph",),
)
class Flex(nn.Module):
    """torch's FlexAttention, compiled for shapes that may change; blocks that the mask hides are skipped.

    window: 0 for none; else each query sees that many positions, itself included (in both directions without
    causality). layout: instead of a window a block layout, with `block` and `blocks` as in `block_sparse`. The
    compilation falls into the first call. On a CPU there is no backward: a train pass is refused. scale: None is
    head_dim ** -0.5.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        window: Annotated[int, Ge(0)] = 0,
        layout: Literal["none", "window", "window+global", "random"] = "none",
        block: Annotated[int, Ge(1)] = 64,
        blocks: Annotated[int, Ge(1)] = 8,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        if window and layout != "none":
            raise ValueError(f"window must be 0 where there is a layout, got window={window} and layout='{layout}'")
        self.shape = shape
        self.window = window
        self.layout = None if layout == "none" else Layout.named(layout, shape, block=block, blocks=blocks, seed=0)
        self.scale = shape.scale if scale is None else scale
        self._compiled: Any = torch.compile(flex_attention, dynamic=True, fullgraph=True)
        self._masks: dict[tuple[int, int, torch.device], BlockMask] = {}

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B,H,Nq,D), (B,Hkv,Nk,D), (B,Hkv,Nk,Dv) -> (B,H,Nq,Dv)."""
        query_len, key_len = q.shape[2], k.shape[2]
        if 0 in (q.shape[0], query_len, key_len):
            return nothing_seen(q, v.shape[3])
        at = (query_len, key_len, q.device)
        if at not in self._masks:
            self._masks[at] = self.mask(*at)
        with torch._dynamo.config.patch(recompile_limit=RECOMPILES, accumulated_recompile_limit=RECOMPILES):
            out: torch.Tensor = self._compiled(
                q, k, v, block_mask=self._masks[at], scale=self.scale, enable_gqa=q.shape[1] != k.shape[1]
            )
        return out

    def no_backward(self, device: str) -> str | None:
        """Why there is no backward on this device."""
        return "FlexAttention has no backward on CPUs" if device == "cpu" else None

    def mask(self, query_len: int, key_len: int, device: torch.device) -> BlockMask:
        """What the library is told of the pattern."""
        if self.layout is None:
            return window_mask(query_len, key_len, self.window, self.shape.causal, device)
        return layout_mask(self.layout, query_len, key_len, device)

    def pattern(self, query_len: int, key_len: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Allowed pairs, bool (Nq, Nk)."""
        if self.layout is not None:
            return self.layout.pattern(query_len, key_len, device)
        return window_pattern(query_len, key_len, self.window, self.shape.causal, device)

    def pairs(self, query_len: int, key_len: int) -> int:
        """Number of allowed pairs per head."""
        if self.layout is not None:
            return self.layout.pairs(query_len, key_len)
        return window_pairs(query_len, key_len, self.window, self.shape.causal)
