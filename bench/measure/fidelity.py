"""How far a variant's numbers are from exact softmax attention, without training.

The exact side is float64 and goes block by block of queries, so that long sequences fit. Beside each error against the
exact output stands the same relative to the average of the values: 1 means no better than averaging, which alone tells
whether an error is small (where rows are nearly even, averaging is right to a quarter).

B = 1; H heads, N positions, D width of q and k, E of v.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from bench.model.init import derived
from bench.pairs import full_pattern
from bench.variant import Claims, Shape, admit

SPREADS = (0.5, 1.0, 2.0)  # standard deviations of q and k: from nearly even rows to rows of a few keys
DRAWS = 5  # over which a variant with a `seed` is averaged
BLOCK = 256  # queries of the exact side at a time
ROWS_LONGEST = 2048  # weights are recovered column by column of the values: one call for every E keys
GONE = 1e-12  # a weight below counts as missing

Errors = dict[str, float | None]
Make = Callable[[Mapping[str, Any]], nn.Module]  # knobs that replace the cell's -> the variant


class Inputs(NamedTuple):
    """q, k (1,H,N,D), v (1,H,N,E), the block's input x (1,N,C), and the gradient of the output (1,H,N,E); float64."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    x: torch.Tensor
    gradient: torch.Tensor


class Exact(NamedTuple):
    """Of exact attention: output, gradients of q, k and v, the average of the visible values, entropy of the rows."""

    out: torch.Tensor
    gradients: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    mean: torch.Tensor
    entropy: float


def draw(shape: Shape, length: int, spread: float, seed: int) -> Inputs:
    """Normal inputs; those of q and k with this standard deviation."""
    generator = torch.Generator().manual_seed(derived(seed, "fidelity"))
    heads, width, value_width = shape.heads, shape.head_dim, shape.value_dim
    q, k, v, x, gradient = (
        torch.randn((1, *size), generator=generator, dtype=torch.float64)
        for size in (
            (heads, length, width), (heads, length, width), (heads, length, value_width), (length, shape.model_dim),
            (heads, length, value_width),
        )
    )  # fmt: skip
    return Inputs(q * spread, k * spread, v, x, gradient)


def exact(inputs: Inputs, causal: bool, scale: float) -> Exact:
    """Softmax attention and its gradients written out, for a block of queries at a time."""
    q, k, v, _, gradient = inputs
    outs, means, entropy = [], [], 0.0
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for rows, weights_HRM, allowed_RM in _weights(inputs, causal, scale):
        outs.append(weights_HRM @ v[0])
        means.append(allowed_RM.double() @ v[0] / allowed_RM.sum(1, keepdim=True))
        entropy += float(-torch.special.xlogy(weights_HRM, weights_HRM).sum())
        given = gradient[0, :, rows]
        dv[0] += weights_HRM.mT @ given
        dweights = given @ v[0].mT
        dscores = weights_HRM * (dweights - (dweights * weights_HRM).sum(-1, keepdim=True))
        dq[0, :, rows] = dscores @ k[0] * scale
        dk[0] += dscores.mT @ q[0, :, rows] * scale
    rows_in_all = q.shape[1] * q.shape[2]
    return Exact(torch.cat(outs, 1)[None], (dq, dk, dv), torch.cat(means, 1)[None], entropy / rows_in_all)


def compare(make: Make, inputs: Inputs, shape: Shape, *, seeded: bool, dtype: str, device: str) -> Errors:
    """Errors of a variant against the exact side; of one with a knob `seed` (seeded) their average over DRAWS.

    output, gradient: Frobenius norm of the difference over that of what is right (gradient: the worst of q, k and v).
    output_vs_mean: the first relative to the distance of what is right from the average of the values. For variants
    with weights, up to ROWS_LONGEST positions: top1, share of rows whose heaviest key is the right one; missing_mass,
    the right weight on keys to which the variant gives none; row_kl, mean KL divergence, null where mass is missing or
    a weight is negative. entropy: of the exact rows, in nats.
    """
    right = exact(inputs, shape.causal, shape.scale)
    modules = [make({"seed": seed}) for seed in range(DRAWS)] if seeded else [make({})]
    found = [_errors(module, inputs, right, shape, dtype, device) for module in modules]
    return {**{name: _mean([one[name] for one in found]) for name in found[0]}, "entropy": right.entropy}


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if len(known) == len(values) else None


def _errors(module: Any, inputs: Inputs, right: Exact, shape: Shape, dtype: str, device: str) -> Errors:
    kind = getattr(torch, dtype)
    module = module.to(device, kind)
    leaves = [part.to(device, kind, copy=True).requires_grad_() for part in inputs[:3]]
    extra = {"x": inputs.x.to(device, kind)} if module.claims.needs_x else {}
    out = module(*leaves, **extra)
    given = inputs.gradient.to(device, kind)
    found = torch.autograd.grad(out, leaves, given, allow_unused=True) if out.requires_grad else (None, None, None)
    gradients = [torch.zeros_like(leaf) if one is None else one for one, leaf in zip(found, leaves, strict=True)]
    difference = (out.detach().cpu().double() - right.out).norm()
    errors: Errors = {
        "output": float(difference / right.out.norm()),
        "output_vs_mean": _over(difference, (right.out - right.mean).norm()),
        "gradient": max(map(_relative, gradients, right.gradients)),
        "top1": None, "missing_mass": None, "row_kl": None,
    }  # fmt: skip
    if has_weights(module.claims) and inputs.q.shape[2] <= ROWS_LONGEST:
        errors |= _row_errors(module, inputs, shape, kind, device)
    return errors


def has_weights(claims: Claims) -> bool:
    """Whether the output of a variant is a weighted sum of the values."""
    return claims.normalised or claims.kind == "approximate"


def _relative(found: torch.Tensor, right: torch.Tensor) -> float:
    return float((found.detach().cpu().double() - right).norm() / right.norm().clamp(min=1e-300))


def _over(difference: torch.Tensor, distance: torch.Tensor) -> float | None:
    """None where what is right is itself the average."""
    return float(difference / distance) if float(distance) > 0 else None


def _row_errors(module: Any, inputs: Inputs, shape: Shape, dtype: torch.dtype, device: str) -> Errors:
    """From the weights, recovered by values that are columns of the unit matrix."""
    weights_HNM = recovered(module, inputs, dtype, device)
    hits = missing = divergence = 0.0
    for rows, right_HRM, _ in _weights(inputs, shape.causal, shape.scale):
        found = weights_HNM[:, rows]
        hits += float((found.argmax(-1) == right_HRM.argmax(-1)).sum())
        missing += float(right_HRM.masked_fill(found > GONE, 0).sum())
        divergence += float((torch.special.xlogy(right_HRM, right_HRM / found.clamp(min=GONE))).sum())
    rows_in_all = weights_HNM.shape[0] * weights_HNM.shape[1]
    whole = missing / rows_in_all < GONE and not bool((weights_HNM < -GONE).any())
    return {
        "top1": hits / rows_in_all,
        "missing_mass": missing / rows_in_all,
        "row_kl": max(0.0, divergence / rows_in_all) if whole else None,
    }


def recovered(module: Any, inputs: Inputs, dtype: torch.dtype, device: str) -> torch.Tensor:
    """The weights (H, N, N) in float64 of a variant that has any."""
    length, width = inputs.v.shape[2:]
    q, k, x = (part.to(device, dtype) for part in (inputs.q, inputs.k, inputs.x))
    extra = {"x": x} if module.claims.needs_x else {}
    columns = []
    with torch.no_grad():
        for start in range(0, length, width):
            values = torch.zeros_like(inputs.v)
            for column in range(min(width, length - start)):
                values[:, :, start + column, column] = 1
            out = module(q, k, values.to(device, dtype), **extra)
            columns.append(out[0, :, :, : length - start].cpu().double())
    return torch.cat(columns, -1)


def _weights(inputs: Inputs, causal: bool, scale: float) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
    """(queries, their exact weights (H,R,N), which keys they may see (R,N)), block by block."""
    length = inputs.q.shape[2]
    for start in range(0, length, BLOCK):
        rows = slice(start, min(start + BLOCK, length))
        # The last row of a block has bottom-right alignment with the keys up to it.
        seen = full_pattern(rows.stop - start, rows.stop if causal else length, causal)
        allowed_RM = torch.nn.functional.pad(seen, (0, length - seen.shape[1]))
        scores = inputs.q[0, :, rows] @ inputs.k[0].mT * scale
        yield rows, scores.masked_fill(~allowed_RM, -torch.inf).softmax(-1), allowed_RM


def measure(given: Mapping[str, Inputs], make: Make, shape: Shape, *, seeded: bool, dtype: str, device: str) -> Errors:
    """`compare` on named inputs of one shape: {"output, NAME": ..., ...}; raises Unsupported."""
    length = next(iter(given.values())).q.shape[2]
    admit(make({}), shape, dtype=dtype, device=device, query_len=length, key_len=length)
    found: Errors = {}
    for name, inputs in given.items():
        errors = compare(make, inputs, shape, seeded=seeded, dtype=dtype, device=device)
        found |= {f"{metric}, {name}": value for metric, value in errors.items()}
    return found
