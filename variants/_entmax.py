"""1.5-entmax: p = max(z / 2 - tau, 0) ** 2 with the threshold tau that makes p sum to 1; sparse, unlike softmax."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

STEPS = 10  # 8 reach the last bit of float64 for a row of 100,000 scores, whatever their spread


class Entmax15(torch.autograd.Function):
    """Along the last axis; entries of minus infinity get 0. Keeps its output only."""

    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor) -> torch.Tensor:
        """Newton's method for |max(z - tau, 0)| = 1, where z is scores / 2 less its maximum.

        That norm is convex and falls with tau, so that steps from tau = -1, where it is at least 1, never pass the
        threshold; on a fixed support of equal entries one step is exact.
        """
        z = (scores - scores.amax(-1, keepdim=True)).mul_(0.5)
        tau = torch.full_like(z[..., :1], -1)
        above = (z - tau).clamp_(min=0)
        for _ in range(STEPS):
            norm = torch.linalg.vector_norm(above, dim=-1, keepdim=True)
            tau = tau + (norm - 1) * norm / above.sum(-1, keepdim=True)
            torch.sub(z, tau, out=above).clamp_(min=0)
        weights = above.square_()
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        """s (g - (s . g) / sum s), s = sqrt(p): Peters et al. 2019, arXiv 1905.05702, section 3.2."""
        slope: torch.Tensor = ctx.saved_tensors[0].sqrt()
        rise = slope * grad
        return rise.sub_(slope.mul_(rise.sum(-1, keepdim=True) / slope.sum(-1, keepdim=True)))


def entmax15(scores: torch.Tensor) -> torch.Tensor:
    """Weights of the shape of `scores`, which must hold something finite in every row."""
    weights: torch.Tensor = Entmax15.apply(scores)  # type: ignore[no-untyped-call]
    return weights
