"""Which key each query sees, found by asking a variant: where the output moves when a value moves."""

from __future__ import annotations

from typing import Any

import torch

from bench.model.init import derived
from bench.variant import Shape, admit


def seen(module: Any, shape: Shape, length: int, *, seed: int = 0) -> list[str]:
    """A line of `1` and `0` for each of `length` queries, a sign for each key; on normal inputs, in any of the heads.

    The derivative of the output by the values, so that it holds for variants without weights as well; a choice that
    depends on the data is that of these inputs. Raises Unsupported.
    """
    admit(module, shape, dtype="float32", device="cpu", query_len=length, key_len=length)
    generator = torch.Generator().manual_seed(derived(seed, "seen"))
    sizes = (
        (shape.heads, length, shape.head_dim), (shape.kv_heads, length, shape.head_dim),
        (shape.kv_heads, length, shape.value_dim), (shape.heads, length, shape.value_dim),
    )  # fmt: skip
    q, k, v, weights = (torch.randn((1, *size), generator=generator) for size in sizes)
    x = torch.randn((1, length, shape.model_dim), generator=generator)
    extra = {"x": x} if module.claims.needs_x else {}
    q.requires_grad_()  # some kernels have a backward only where all of their inputs want one
    k.requires_grad_()
    v.requires_grad_()
    out_HNE = module.eval()(q, k, v, **extra)[0]
    lines = []
    for query in range(length):
        (moved,) = torch.autograd.grad((out_HNE * weights[0])[:, query].sum(), v, retain_graph=True)
        lines.append("".join("1" if found else "0" for found in moved[0].abs().sum((0, 2)).tolist()))
    return lines
