"""What torch's fused kernels need of their inputs."""

from __future__ import annotations

import torch
from torch.nn import functional as F


def one_width(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v padded with zeros to one width, on CUDA a multiple of 8; the padding changes no score.

    The output is too wide by the same columns: cut it to the width of v.
    """
    width = max(k.shape[-1], v.shape[-1])
    if q.device.type == "cuda":
        width = -(-width // 8) * 8
    wide = [x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1])) for x in (q, k, v)]
    return wide[0], wide[1], wide[2]


def positive_scale(q: torch.Tensor, scale: float) -> tuple[torch.Tensor, float]:
    """q and the scale of its scores, moved into q unless positive: kernels scale minus infinity after masking."""
    return (q, scale) if scale > 0 else (q * scale, 1.0)
