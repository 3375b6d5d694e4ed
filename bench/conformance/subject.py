"""What is checked, and how two results are compared."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn

from bench.conformance.oracle import softmax_attention
from bench.pairs import full_pattern
from bench.variant import Claims, Shape, admit, no_backward

# Largest error over the largest entry of what is right.
TOLERANCE = {"float64": 1e-10, "float32": 1e-5, "bfloat16": 2e-2, "float16": 5e-3}
Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class NotApplicable(Exception):
    """A check says nothing about this subject; the message is the reason."""


@dataclass(frozen=True)
class Subject:
    """A variant with its knobs, device, dtype and direction: what every check takes."""

    cls: type
    knobs: dict[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    dtype: str = "float32"
    causal: bool = False

    @property
    def claims(self) -> Claims:
        """What the class declares."""
        claims: Claims = self.cls.claims  # type: ignore[attr-defined]
        return claims

    @property
    def tolerance(self) -> float:
        """Largest relative error allowed in this dtype."""
        return TOLERANCE[self.dtype]

    @cached_property
    def no_backward(self) -> str | None:
        """Why it has no backward on this device; None where it has one."""
        return no_backward(self.build(self.shape()), self.device)

    def shape(self, heads: int = 2, head_dim: int = 16, **sizes: int) -> Shape:
        """The shape a check asks for, in this direction."""
        return Shape(heads, head_dim, **sizes, causal=self.causal)

    def build(self, shape: Shape) -> nn.Module:
        """A new module for that shape, in eval mode; weights are drawn the same each time."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # a plugin may draw its weights from the global stream
            module: nn.Module = self.cls(shape, **self.knobs)
        return module.to(self.device, getattr(torch, self.dtype)).eval()

    def draw(self, shape: Shape, query_len: int, key_len: int, batch: int = 2, seed: int = 0) -> Tensors:
        """Random normal q, k and v that take gradients."""
        assert shape.kv_heads is not None
        assert shape.value_dim is not None
        generator = torch.Generator().manual_seed(seed)
        sizes = (
            (batch, shape.heads, query_len, shape.head_dim),
            (batch, shape.kv_heads, key_len, shape.head_dim),
            (batch, shape.kv_heads, key_len, shape.value_dim),
        )
        q, k, v = (self.leaf(torch.randn(size, generator=generator)) for size in sizes)
        return q, k, v

    def leaf(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the subject's device, in its dtype, that takes a gradient where there is a backward."""
        made = tensor.detach().to(self.device, getattr(torch, self.dtype), copy=True)
        return made.requires_grad_(self.no_backward is None)

    def admit(self) -> None:
        """Raise `Unsupported` where the variant does not do this device, dtype or direction at all."""
        shape = self.shape()
        admit(self.build(shape), shape, dtype=self.dtype, device=self.device, query_len=2, key_len=2)

    def call(
        self, module: nn.Module, qkv: Sequence[torch.Tensor], key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The module's output; a variant that wants the block's input gets one made of q."""
        out: torch.Tensor = module(*qkv, key_mask=key_mask, **self.extra(qkv[0]))
        return out

    def expected(
        self, module: nn.Module, shape: Shape, qkv: Sequence[torch.Tensor], key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """What the output should be: softmax attention under the declared pattern and bias, or the own reference.

        float64 on the CPU, from `qkv` in float64. For an approximate variant: what it stands in for.
        """
        slow: Any = copy.deepcopy(module).to("cpu", torch.float64)
        if self.claims.kind == "different":
            own: torch.Tensor = slow.reference(*qkv, key_mask=key_mask, **self.extra(qkv[0]))
            return own
        q, k, v = qkv
        lengths = q.shape[2], k.shape[2]
        pattern = getattr(module, "pattern", None)
        allowed = full_pattern(*lengths, self.causal) if pattern is None else pattern(*lengths)
        scale = self.knobs.get("scale")
        scale = shape.scale if scale is None else scale
        return softmax_attention(q, k, v, allowed, key_mask, scale, bias_of(slow, *lengths))

    def extra(self, q_BHND: torch.Tensor) -> dict[str, torch.Tensor]:
        """What a call takes besides q, k and v: the block's input x (B, N, H * D) where it is wanted.

        Here q, normalised at each position as a block's input is, and rounded to the subject's dtype: a call in another
        dtype gets the same numbers.
        """
        if not self.claims.needs_x:
            return {}
        exact_BNC = q_BHND.double().transpose(1, 2).flatten(2)
        exact_BNC = torch.nn.functional.rms_norm(exact_BNC, exact_BNC.shape[-1:])
        lost_BNC = (exact_BNC - exact_BNC.to(getattr(torch, self.dtype)).double()).detach()
        return {"x": (exact_BNC - lost_BNC).to(q_BHND.dtype)}


def bias_of(module: Any, query_len: int, key_len: int) -> torch.Tensor | None:
    """What an exact module declares that it adds to its scores, (H, Nq, Nk), by a method `bias`; None for nothing."""
    return module.bias(query_len, key_len) if hasattr(type(module), "bias") else None


def need(claimed: bool, reason: str) -> None:
    """Raise `NotApplicable` unless the property was claimed."""
    if not claimed:
        raise NotApplicable(reason)


def gradients(out: torch.Tensor, qkv: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Gradients of q, k and v for one fixed random gradient of the output; 0 where the output does not depend."""
    if not out.requires_grad:
        return [torch.zeros_like(x) for x in qkv]
    given = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to(out)
    found = torch.autograd.grad(out, list(qkv), given, allow_unused=True)
    return [torch.zeros_like(x) if grad is None else grad for x, grad in zip(qkv, found, strict=True)]


def match_oracle(
    subject: Subject,
    shape: Shape,
    qkv: Sequence[torch.Tensor],
    key_mask: torch.Tensor | None = None,
    *,
    values: bool = True,
    grads: bool = True,
    what: str = "",
) -> str | None:
    """Assert that output and gradients equal those of the oracle, within the subject's tolerance.

    An approximate variant has only to be finite: its error against what it stands in for is returned as text.
    """
    module = subject.build(shape)
    exact = [x.detach().cpu().double().requires_grad_() for x in qkv]
    wanted = subject.expected(module, shape, exact, None if key_mask is None else key_mask.cpu())
    out = subject.call(module, qkv, key_mask)
    if subject.claims.kind == "approximate":
        assert torch.isfinite(out).all(), f"the output{what} is not finite"
        right = wanted.detach()
        error = float((out.detach().cpu().double() - right).norm() / right.norm().clamp(min=1e-30))
        return f"relative error {error:.2g} against what it stands in for"
    if values:
        compare(f"the output{what}", [out], [wanted], subject.tolerance)
    if grads and subject.no_backward is None:
        compare(f"the gradient{what}", gradients(out, qkv), gradients(wanted, exact), subject.tolerance)
    return None


def compare(what: str, got: Sequence[torch.Tensor], want: Sequence[torch.Tensor], tolerance: float) -> None:
    """Assert equal shapes, finite numbers on both sides, and errors within tolerance of the largest right entry.

    The largest entry is taken over all the tensors given, so that one of them may be 0 by right.
    """
    for one, other in zip(got, want, strict=True):
        assert one.shape == other.shape, f"{what} has shape {tuple(one.shape)}, should be {tuple(other.shape)}"
        assert torch.isfinite(other).all(), f"{what}: what it is compared with is not finite"
        assert torch.isfinite(one).all(), f"{what} has NaN or infinite entries"
    pairs = [(one.detach().cpu().double(), other.detach().cpu().double()) for one, other in zip(got, want, strict=True)]
    pairs = [pair for pair in pairs if pair[0].numel()]
    largest = max((float(other.abs().max()) for _, other in pairs), default=0.0) or 1.0
    error = max((float((one - other).abs().max()) for one, other in pairs), default=0.0) / largest
    assert error <= tolerance, f"{what} is off by {error:.2g} of its largest entry (allowed {tolerance:g})"


def identical(what: str, got: torch.Tensor, want: torch.Tensor) -> None:
    """Assert that two tensors are equal bit for bit and hold no NaN."""
    assert got.shape == want.shape, f"{what} has shape {tuple(got.shape)}, should be {tuple(want.shape)}"
    got, want = got.detach(), want.detach()
    assert not torch.isnan(got).any(), f"{what} has NaN entries"
    largest = float((got.double() - want.double()).abs().max()) if got.numel() else 0.0
    assert torch.equal(got, want), f"{what} (largest change {largest:.2g})"
