"""What the slow forms begin and end with: float64, keys repeated for every query head, all pairs at once."""

from __future__ import annotations

import torch

from bench.pairs import full_pattern
from variants._masking import zero_padding

Operands = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def written_out(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, key_mask: torch.Tensor | None, causal: bool
) -> Operands:
    """q (B,H,N,D), k (B,H,M,D), v (B,H,M,E) in float64, and the allowed pairs, bool (B or 1, 1, N, M)."""
    k, v = zero_padding(k.double(), v.double(), key_mask)
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    allowed_B1NM = full_pattern(q.shape[2], k.shape[2], causal, q.device)[None, None]
    if key_mask is not None:
        allowed_B1NM = allowed_B1NM & key_mask[:, None, None, :]
    return q.double(), k, v, allowed_B1NM


def softmax_over(scores_BHNM: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """Weights over the allowed keys; all 0 where there are none."""
    seen = allowed.any(-1, keepdim=True)
    return scores_BHNM.masked_fill(seen & ~allowed, -torch.inf).softmax(-1).masked_fill(~seen, 0)
