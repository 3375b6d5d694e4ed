"""The contract of a variant: what the block tells it, what it declares, and how it refuses.

A variant is a class in a file of its own, marked by `@variant`. It gets projected, head-split queries, keys and
values, and only mixes them::

    @variant(kind="exact", paper="Vaswani et al. 2017, arXiv 1706.03762", time="n^2", memory="n^2")
    class Attention(nn.Module):
        def __init__(self, shape: Shape, *, window: Annotated[int, Ge(1)] = 256) -> None: ...
        def forward(self, q, k, v, *, key_mask=None): ...   # -> (B, H, Nq, Dv)

Arguments of `@variant` and the keyword-only arguments of `__init__` (the knobs) are literals, so that names, claims
and knobs are read from the source without importing it. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from annotated_types import Ge, Gt, Le, Lt

from bench.pairs import full_pairs

if TYPE_CHECKING:
    import torch

__all__ = [
    "Claims",
    "Ge",
    "Gt",
    "Le",
    "Lt",
    "Shape",
    "Unsupported",
    "admit",
    "attention_flops",
    "check_key_mask",
    "no_backward",
    "variant",
]

Kind = Literal["exact", "approximate", "different"]
KINDS = ("exact", "approximate", "different")
C = TypeVar("C", bound=type)


class Unsupported(Exception):
    """A variant cannot do what a cell asks; the message names the limit and the value: the row says `unsupported`."""


@dataclass(frozen=True)
class Shape:
    """What the block tells a variant.

    heads: query heads H. head_dim: width D of q and k. kv_heads: heads of k and v (divides H; default H).
    value_dim: width Dv of v (default D). max_len: longest Nk it will meet. causal: whether the future is hidden.
    model_dim: width C of the block's input x (default H * D), of interest to a variant that asks for x.
    """

    heads: int
    head_dim: int
    kv_heads: int = None  # type: ignore[assignment]  # None becomes heads
    value_dim: int = None  # type: ignore[assignment]  # None becomes head_dim
    max_len: int = 1024
    causal: bool = False
    model_dim: int = None  # type: ignore[assignment]  # None becomes heads * head_dim

    def __post_init__(self) -> None:
        if self.kv_heads is None:
            object.__setattr__(self, "kv_heads", self.heads)  # type: ignore[unreachable]
        if self.value_dim is None:
            object.__setattr__(self, "value_dim", self.head_dim)  # type: ignore[unreachable]
        if self.model_dim is None:
            object.__setattr__(self, "model_dim", self.heads * self.head_dim)  # type: ignore[unreachable]
        for name in ("heads", "head_dim", "kv_heads", "value_dim", "max_len", "model_dim"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads must divide heads={self.heads}, got {self.kv_heads}")

    @property
    def scale(self) -> float:
        """The customary softmax scale, head_dim ** -0.5."""
        return float(self.head_dim**-0.5)


@dataclass(frozen=True)
class Claims:
    """What a variant declares about itself; every claim is checked by the conformance kit.

    kind: `exact` equals softmax attention under its pattern, `approximate` stands in for it, `different` is another
    function. time, memory: growth with the length n ("n", "n*w", "n^2"). causal, bidirectional: the directions it can
    do. cross: Nq != Nk. key_mask: padding. grouped: kv_heads < heads. normalised: weights of a row sum to 1.
    decode: one query after a context. needs_x: it wants the block's input as keyword `x` (B, N, C) in `forward`,
    `reference`, `prefill` and `step`; such a variant has no cross-attention.
    runs: name fragments of the operators that prove the kernel it stands for has run ("flash_attention"); a module
    whose kernel depends on a knob has an attribute `runs` of its own.
    """

    kind: Kind
    paper: str
    time: str = "n^2"
    memory: str = "n^2"
    causal: bool = True
    bidirectional: bool = True
    cross: bool = True
    key_mask: bool = True
    grouped: bool = True
    normalised: bool = True
    decode: bool = True
    needs_x: bool = False
    dtypes: tuple[str, ...] = ("float64", "float32", "bfloat16", "float16")
    devices: tuple[str, ...] = ("cpu", "cuda", "mps")
    runs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if not (self.causal or self.bidirectional):
            raise ValueError("a variant must support causal or bidirectional attention, or both")


def variant(**claims: Any) -> Callable[[C], C]:
    """Mark a class as a variant with its claims (the fields of `Claims`). Marks only: nothing is registered."""
    declared = Claims(**claims)

    def mark(cls: C) -> C:
        cls.claims = declared  # type: ignore[attr-defined]
        return cls

    return mark


def admit(
    module: Any,
    shape: Shape,
    *,
    dtype: str,
    device: str,
    query_len: int,
    key_len: int,
    masked: bool = False,
    decode: bool = False,
    train: bool = False,
) -> None:
    """Raise `Unsupported` unless the module claims all that a call would ask of it; called before anything runs.

    A module may add limits of its own in `require(*, dtype, device)`, and say in `no_backward(device)` why it cannot be
    trained there.
    """
    claims: Claims = module.claims
    if dtype not in claims.dtypes:
        raise Unsupported(f"dtype {dtype} is not supported (supported: {', '.join(claims.dtypes)})")
    if device not in claims.devices:
        raise Unsupported(f"device {device} is not supported (supported: {', '.join(claims.devices)})")
    if shape.causal and not claims.causal:
        raise Unsupported("causal attention is not supported (it mixes positions across the whole sequence)")
    if not shape.causal and not claims.bidirectional:
        raise Unsupported("bidirectional attention is not supported (causal only)")
    if decode and not claims.decode:
        raise Unsupported("decoding (one query after a context) is not supported")
    if query_len != key_len and not claims.cross and not (decode and hasattr(module, "step")):
        raise Unsupported(f"query length {query_len} must equal key length {key_len}: no cross-attention")
    if shape.kv_heads != shape.heads and not claims.grouped:
        raise Unsupported(f"kv_heads={shape.kv_heads} with heads={shape.heads}: grouped heads are not supported")
    if masked and not claims.key_mask:
        raise Unsupported("key_mask is not supported")
    if key_len > shape.max_len:
        raise Unsupported(f"key length {key_len} exceeds max_len {shape.max_len}")
    if hasattr(module, "require"):
        module.require(dtype=dtype, device=device)
    reason = no_backward(module, device) if train else None
    if reason is not None:
        raise Unsupported(f"training is not supported: {reason}")


def no_backward(module: Any, device: str) -> str | None:
    """Why a module has no backward on a device; None where it has one."""
    reason: str | None = module.no_backward(device) if hasattr(module, "no_backward") else None
    return reason


def check_key_mask(key_mask: torch.Tensor | None, batch: int, key_len: int) -> None:
    """Raise unless `key_mask` is None or bool of shape (B, Nk); True marks a real token."""
    import torch

    if key_mask is None:
        return
    if key_mask.dtype != torch.bool:
        raise TypeError(f"key_mask must be torch.bool (True = may attend), got {key_mask.dtype}")
    if tuple(key_mask.shape) != (batch, key_len):
        raise ValueError(f"key_mask must have shape {(batch, key_len)}, got {tuple(key_mask.shape)}")


def attention_flops(module: Any, shape: Shape, query_len: int, key_len: int) -> int | None:
    """FLOPs of one forward call for one example, all heads; multiply and add count 2, allowed pairs only.

    A softmax-like variant costs 2 * (D + Dv) per allowed pair and query head, whatever kv_heads is; its pairs come
    from `module.pairs(Nq, Nk)`, by default those of full attention. One with another cost has `flops(Nq, Nk)`.
    """
    if hasattr(module, "flops"):
        return int(module.flops(query_len, key_len))
    if hasattr(module, "pairs"):
        pairs = int(module.pairs(query_len, key_len))
    elif module.claims.kind == "exact":
        pairs = full_pairs(query_len, key_len, shape.causal)
    else:
        return None
    return shape.heads * pairs * 2 * (shape.head_dim + shape.value_dim)
