"""One Transformer block around any attention: projections, heads, positions, residuals and norms.

B batch, N query positions, M key positions, C width of the model, H query heads, G key-value heads, D width of q and
k, E width of v. The block is the same for every variant and knows none of them by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import nn

from bench.errors import unknown
from bench.model.init import seeded
from bench.model.positions import Positions, Rotary
from bench.variant import Shape, Unsupported, check_key_mask

MakeAttention = Callable[[Shape], nn.Module]
Ffn = Literal["relu", "gelu", "swiglu", "none"]
Norm = Literal["pre", "post"]


@dataclass(frozen=True)
class BlockConfig:
    """Everything around the attention. Raises ValueError, one line, for a value that makes no block.

    d_model: width C. heads, kv_heads (default heads), head_dim (default d_model / heads), value_dim (default
    head_dim): as in `Shape`. ffn_ratio: hidden width of the feed-forward over d_model; swiglu takes two thirds of it,
    which costs the same parameters. conv: width of a depthwise convolution before the mixer, 0 for none.
    """

    d_model: int
    heads: int
    kv_heads: int | None = None
    head_dim: int | None = None
    value_dim: int | None = None
    ffn: Ffn = "gelu"
    ffn_ratio: float = 4.0
    norm: Norm = "pre"
    positions: Positions = "rotary"
    conv: int = 0
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.d_model < 1:
            raise ValueError(f"d_model must be at least 1, got {self.d_model}")
        if self.head_dim is None and (self.heads < 1 or self.d_model % self.heads):
            raise ValueError(f"heads must divide d_model={self.d_model} unless head_dim is given, got {self.heads}")
        for name, choices in (("ffn", Ffn), ("norm", Norm), ("positions", Positions)):
            value, valid = getattr(self, name), get_args(choices)
            if value not in valid:
                raise ValueError(f"{name} must be one of {', '.join(valid)}, got {value!r}")
        if self.ffn_ratio <= 0:
            raise ValueError(f"ffn_ratio must be above 0, got {self.ffn_ratio}")
        if self.conv < 0:
            raise ValueError(f"conv must be at least 0, got {self.conv}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")
        self.shape(max_len=1, causal=False)

    def shape(self, *, max_len: int, causal: bool) -> Shape:
        """What a variant inside this block is told."""
        head_dim = self.d_model // self.heads if self.head_dim is None else self.head_dim
        kv_heads = self.heads if self.kv_heads is None else self.kv_heads
        value_dim = head_dim if self.value_dim is None else self.value_dim
        return Shape(self.heads, head_dim, kv_heads, value_dim, max_len, causal, self.d_model)


PRESETS: dict[str, BlockConfig] = {
    "original": BlockConfig(512, 8, ffn="relu", norm="post", positions="sinusoidal", dropout=0.1),
    "modern": BlockConfig(512, 8, ffn="swiglu", norm="pre", positions="rotary"),
}


def preset(name: str, **changes: Any) -> BlockConfig:
    """A named block: `original` is the Transformer of Vaswani et al. 2017; `changes` replace fields (d_model=64)."""
    if name not in PRESETS:
        raise unknown("block preset", name, PRESETS)
    return replace(PRESETS[name], **changes)


class ShortConv(nn.Module):
    """Adds to each position a depthwise convolution over a few neighbours and itself; (B, N, C) to the same.

    Causal: the position and the width - 1 before it. Bidirectional: centred, with the odd one of an even width
    before the position. Padded positions count as zero.
    """

    def __init__(self, width: int, channels: int, causal: bool) -> None:
        super().__init__()
        self.before = width - 1 if causal else width // 2
        self.after = width - 1 - self.before
        self.weight_KC = nn.Parameter(torch.empty(width, channels))
        nn.init.uniform_(self.weight_KC, -(width**-0.5), width**-0.5)

    def forward(self, x_BNC: torch.Tensor, key_mask_BN: torch.Tensor | None) -> torch.Tensor:
        """The mask (B, N) hides padded neighbours whatever they hold."""
        if key_mask_BN is not None:
            x_BNC = x_BNC.masked_fill(~key_mask_BN[:, :, None], 0)
        padded = nn.functional.pad(x_BNC, (0, 0, self.before, self.after))
        out_BNC = x_BNC
        for place, weight_C in enumerate(self.weight_KC):
            out_BNC = torch.addcmul(out_BNC, padded[:, place : place + x_BNC.shape[1]], weight_C)
        return out_BNC


class Mixing(nn.Module):
    """Projections and head splitting around one variant; `memory` makes it cross-attention."""

    def __init__(
        self, config: BlockConfig, make_attention: MakeAttention, shape: Shape, *, cross: bool, seed: int
    ) -> None:
        super().__init__()
        assert shape.kv_heads is not None
        assert shape.value_dim is not None
        role = "cross" if cross else "self"
        self.shape = shape
        with seeded(seed, "projections", role):
            self.to_q = nn.Linear(config.d_model, shape.heads * shape.head_dim, bias=False)
            self.to_k = nn.Linear(config.d_model, shape.kv_heads * shape.head_dim, bias=False)
            self.to_v = nn.Linear(config.d_model, shape.kv_heads * shape.value_dim, bias=False)
            self.to_out = nn.Linear(shape.heads * shape.value_dim, config.d_model, bias=False)
            # Two sequences share neither an origin of positions nor neighbours: only self-attention has these.
            self.conv = ShortConv(config.conv, config.d_model, shape.causal) if config.conv and not cross else None
        self.rotary = Rotary(shape.max_len, shape.head_dim) if config.positions == "rotary" and not cross else None
        with seeded(seed, "attention", role):
            self.attention = make_attention(shape)
        claims = getattr(self.attention, "claims", None)
        if cross and claims is not None and not claims.cross:
            raise Unsupported("cross-attention is not supported")
        self.needs_x = claims is not None and claims.needs_x

    def forward(
        self, x_BNC: torch.Tensor, memory_BMC: torch.Tensor | None, key_mask_BM: torch.Tensor | None
    ) -> torch.Tensor:
        """(B, N, C) to (B, N, C); the mask is True for real keys."""
        if memory_BMC is None and self.conv is not None:
            x_BNC = self.conv(x_BNC, key_mask_BM)
        keys_BMC = x_BNC if memory_BMC is None else memory_BMC
        check_key_mask(key_mask_BM, keys_BMC.shape[0], keys_BMC.shape[1])
        q_BHND = _split(self.to_q(x_BNC), self.shape.heads)
        k_BGMD = _split(self.to_k(keys_BMC), self.shape.kv_heads)
        v_BGME = _split(self.to_v(keys_BMC), self.shape.kv_heads)
        if self.rotary is not None:
            q_BHND, k_BGMD = self.rotary(q_BHND, k_BGMD)
        extra = {"x": x_BNC} if self.needs_x else {}
        mixed_BHNE = self.attention(q_BHND, k_BGMD, v_BGME, key_mask=key_mask_BM, **extra)
        out_BNC: torch.Tensor = self.to_out(mixed_BHNE.transpose(1, 2).flatten(2))
        return out_BNC


def _split(x_BNF: torch.Tensor, heads: int | None) -> torch.Tensor:
    """(B, N, heads * D) to (B, heads, N, D)."""
    assert heads is not None
    return x_BNF.reshape(*x_BNF.shape[:2], heads, x_BNF.shape[2] // heads).transpose(1, 2)


class FeedForward(nn.Module):
    """Two layers at each position by itself: ReLU (Vaswani et al.), GELU, or SwiGLU (Shazeer 2020, 2002.05202)."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        gated = config.ffn == "swiglu"
        hidden = max(1, round(config.ffn_ratio * config.d_model * (2 / 3 if gated else 1)))
        self.gate = nn.Linear(config.d_model, hidden, bias=False) if gated else None
        self.up = nn.Linear(config.d_model, hidden, bias=not gated)
        self.down = nn.Linear(hidden, config.d_model, bias=not gated)
        self.activation = nn.functional.relu if config.ffn == "relu" else nn.functional.gelu

    def forward(self, x_BNC: torch.Tensor) -> torch.Tensor:
        """(B, N, C) to the same."""
        up_BNF = self.up(x_BNC)
        hidden_BNF = self.activation(up_BNF) if self.gate is None else nn.functional.silu(self.gate(x_BNC)) * up_BNF
        out_BNC: torch.Tensor = self.down(hidden_BNF)
        return out_BNC


class Residual(nn.Module):
    """A sub-layer with its norm, dropout and residual: x + f(norm(x)) (pre) or norm(x + f(x)) (post)."""

    def __init__(self, config: BlockConfig, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.norm = nn.LayerNorm(config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.pre = config.norm == "pre"

    def forward(self, x_BNC: torch.Tensor, *context: torch.Tensor | None) -> torch.Tensor:
        """(B, N, C) to the same; `context` is what the sub-layer takes besides."""
        inner_BNC = self.inner(self.norm(x_BNC) if self.pre else x_BNC, *context)
        sum_BNC: torch.Tensor = x_BNC + self.dropout(inner_BNC)
        out_BNC: torch.Tensor = sum_BNC if self.pre else self.norm(sum_BNC)
        return out_BNC


class Block(nn.Module):
    """Attention and feed-forward: an encoder block, with `causal` a decoder block, with `cross` reading a memory.

    make_attention: builds the variant for a shape (called twice with `cross`). max_len: longest sequence. seed: of the
    weights, which are the same whatever the variant. Raises Unsupported for a cross block of a variant that has none.
    """

    def __init__(
        self,
        config: BlockConfig,
        make_attention: MakeAttention,
        *,
        causal: bool,
        max_len: int,
        cross: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.max_len = max_len
        shape = config.shape(max_len=max_len, causal=causal)
        self.mix = Residual(config, Mixing(config, make_attention, shape, cross=False, seed=seed))
        self.cross = None
        if cross:
            shape = replace(shape, causal=False)
            self.cross = Residual(config, Mixing(config, make_attention, shape, cross=True, seed=seed))
        self.ffn = None
        if config.ffn != "none":
            with seeded(seed, "feed-forward"):
                self.ffn = Residual(config, FeedForward(config))

    def forward(
        self,
        x_BNC: torch.Tensor,
        *,
        key_mask: torch.Tensor | None = None,
        memory: torch.Tensor | None = None,
        memory_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """(B, N, C) to the same. key_mask (B, N), memory (B, M, C), memory_mask (B, M); masks are True for real tokens.

        Raises ValueError for a sequence longer than max_len, and for a memory that is missing or not expected.
        """
        longest = max(x_BNC.shape[1], 0 if memory is None else memory.shape[1])
        if longest > self.max_len:
            raise ValueError(f"sequence length {longest} exceeds max_len {self.max_len}")
        if (memory is None) != (self.cross is None):
            raise ValueError("memory goes with cross=True: give both or neither")
        out_BNC: torch.Tensor = self.mix(x_BNC, None, key_mask)
        if self.cross is not None:
            out_BNC = self.cross(out_BNC, memory, memory_mask)
        if self.ffn is not None:
            out_BNC = self.ffn(out_BNC)
        return out_BNC


def count_params(model: nn.Module) -> tuple[int, int]:
    """(all parameters, those of the variants inside)."""
    inside = [part.attention for part in model.modules() if isinstance(part, Mixing)]
    return _numel(model), sum(map(_numel, inside))


def _numel(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
