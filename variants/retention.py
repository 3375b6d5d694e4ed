"""Retention: a fixed decay per head in place of the softmax."""

from __future__ import annotations

import torch

from bench.variant import Shape, variant
from variants._recurrent import Recurrent, masked, per_head, scalar_decay, wide


@variant(
    kind="different",
    paper="Sun et al. 2023 (RetNet), arXiv 2307.08621, eq. 5 to 8",
    time="n",
    memory="n",
    bidirectional=False,
    cross=False,
    normalised=False,
)
class Retention(Recurrent):
    """out_i = sum over j <= i of g^(i - j) (q_i . k_j) v_j / sqrt(D), normalised per head, with g_h = 1 - 2^(-5 - h).

    A padded position does not count as time. The rotation of q and k (xPos), the swish gate and the output
    projection of the paper's layer are the block's.
    """

    segment = staticmethod(scalar_decay)

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)

    def inputs(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        x: torch.Tensor | None,
        key_mask: torch.Tensor | None,
    ) -> tuple[torch.Tensor, ...]:
        """q / sqrt(D), k, v and the log decay of each head."""
        head = torch.arange(self.shape.heads, device=q.device, dtype=wide(q.dtype))
        log_decay_BHN = torch.log1p(-torch.exp2(-5 - head))[None, :, None].expand(q.shape[:3])
        k, v = per_head(self.shape.heads, k, v)
        return q.to(k.dtype) * self.shape.scale, k, v, masked(log_decay_BHN, key_mask)

    def update(
        self, state_BHDE: torch.Tensor, k_BHD: torch.Tensor, v_BHE: torch.Tensor, *gates: torch.Tensor
    ) -> torch.Tensor:
        """g S + k v^T."""
        return state_BHDE * gates[0].exp()[..., None, None] + k_BHD[..., None] * v_BHE[..., None, :]
