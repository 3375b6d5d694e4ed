"""Stand-ins for libraries that need a GPU, by their documented interface, as plain attention in float64."""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import types
from typing import Any

import pytest
import torch


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, allowed: torch.Tensor, scale: float) -> torch.Tensor:
    """Softmax attention of (B, H, N, D) in float64; a query without keys gives 0."""
    groups = q.shape[1] // k.shape[1]
    q, k, v = q.double(), *(x.double().repeat_interleave(groups, 1) for x in (k, v))
    blind = ~allowed.any(1, keepdim=True)
    weights = (q @ k.mT * scale).masked_fill(~allowed & ~blind, -torch.inf).softmax(-1)
    return (weights @ v).masked_fill(blind, 0)


def seen(n: int, m: int, left: int | None, right: int | None) -> torch.Tensor:
    """Pairs of a bottom-right window with extents beside the query; None for no limit."""
    rows = [[m - n + i - j for j in range(m)] for i in range(n)]
    return torch.tensor([[(left is None or g <= left) and (right is None or -g <= right) for g in row] for row in rows])


def turned(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Between (B, H, N, D) and (B, N, H, D)."""
    return [x.transpose(1, 2) for x in tensors]


def flash_attn_func(q, k, v, *, softmax_scale, causal, window_size):
    """(B, N, H, D); -1 is no limit; bottom-right. It masks before it scales, so the scale has to be positive."""
    assert softmax_scale > 0
    left, right = (None if extent < 0 else extent for extent in window_size)
    allowed = seen(q.shape[1], k.shape[1], left, 0 if causal else right)
    return turned(plain(*turned(q, k, v), allowed, softmax_scale))[0].to(q.dtype)


def sageattn(q, k, v, *, tensor_layout, is_causal, sm_scale):
    """(B, H, N, D) of one of three widths."""
    assert tensor_layout == "HND"
    assert {x.shape[3] for x in (q, k, v)} in ({64}, {96}, {128})
    allowed = seen(q.shape[2], k.shape[2], None, 0 if is_causal else None)
    return plain(q, k, v, allowed, sm_scale).to(q.dtype)


def na1d(q, k, v, *, kernel_size, is_causal, scale):
    """(B, N, H, D); exactly `kernel_size` neighbours, causal cut short at the start; 0.0 is taken for not given."""
    n = q.shape[1]
    assert 2 <= kernel_size <= n
    starts = [min(max(i - kernel_size // 2, 0), n - kernel_size) for i in range(n)]
    if is_causal:
        rows = [[i - kernel_size < j <= i for j in range(n)] for i in range(n)]
    else:
        rows = [[start <= j < start + kernel_size for j in range(n)] for start in starts]
    return turned(plain(*turned(q, k, v), torch.tensor(rows), scale or q.shape[3] ** -0.5))[0].to(q.dtype)


def memory_efficient_attention(q, k, v, *, attn_bias, scale, op):
    """(B, N, Hkv, H / Hkv, D); the bias is the package's own, written out; no query is without a key."""
    n, m = q.shape[1], k.shape[1]
    allowed = torch.ones(n, m, dtype=torch.bool) if attn_bias is None else attn_bias.materialize((n, m)) == 0
    assert allowed.any(1).all()
    assert scale > 0
    flat = turned(*(x.flatten(2, 3) for x in (q, k, v)))
    return turned(plain(*flat, allowed, scale))[0].unflatten(2, q.shape[2:4]).to(q.dtype)


FUNCTIONS: dict[str, tuple[str, Any]] = {
    "flash_attn": ("flash_attn", flash_attn_func),
    "natten": ("natten.functional", na1d),
    "sageattention": ("sageattention", sageattn),
}


def install(monkeypatch: pytest.MonkeyPatch, variant: str) -> None:
    """Let the library of a variant be its stand-in."""
    if variant == "xformers":
        ops = pytest.importorskip("xformers.ops")
        monkeypatch.setattr(ops, "memory_efficient_attention", memory_efficient_attention)
        return
    module, function = FUNCTIONS[variant]
    for name in {module, module.partition(".")[0]}:
        made = types.ModuleType(name)
        made.__spec__ = importlib.machinery.ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, made)
    setattr(sys.modules[module], function.__name__, function)
