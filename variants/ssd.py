"""State space duality (Mamba-2): a state that each token decays by a number of its own."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from bench.variant import Shape, variant
from variants._recurrent import Recurrent, drawn, gate, masked, per_head, scalar_decay


@variant(
    kind="different",
    paper="Dao and Gu 2024 (Mamba-2), arXiv 2405.21060, eq. 16 and section 7",
    time="n",
    memory="n",
    bidirectional=False,
    cross=False,
    normalised=False,
    needs_x=True,
)
class Ssd(Recurrent):
    """S_t = exp(dt_t A_h) S_{t-1} + dt_t k_t v_t^T, out = q S normalised per head; dt = softplus(x W + b), A_h < 0.

    -A starts evenly from 1 to 16 over the heads, dt between 0.001 and 0.1 in logarithmic steps. A padded position does
    not count as time. The short convolution, the skip by D and the gate of the paper's layer are the block's.
    """

    segment = staticmethod(scalar_decay)

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        heads = shape.heads
        (self.dt_HC,) = drawn((heads, shape.model_dim))
        self.log_a_H = nn.Parameter(torch.linspace(1, 16, heads).log())
        # softplus(b) = dt
        self.dt_bias_H = nn.Parameter(torch.logspace(-3, -1, heads).expm1().log())

    def inputs(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        x: torch.Tensor | None,
        key_mask: torch.Tensor | None,
    ) -> tuple[torch.Tensor, ...]:
        """q, k, dt v and the log decay dt A."""
        k, v = per_head(self.shape.heads, k, v)
        dt_BNH = F.softplus(gate(x, self.dt_HC) + self.dt_bias_H.to(k.dtype))
        dt_BHN = masked(dt_BNH.mT, key_mask)
        log_decay_BHN = -dt_BHN * self.log_a_H.to(k.dtype).exp()[:, None]
        return q.to(k.dtype) * self.shape.scale, k, v * dt_BHN[..., None], log_decay_BHN

    def update(
        self, state_BHDE: torch.Tensor, k_BHD: torch.Tensor, v_BHE: torch.Tensor, *gates: torch.Tensor
    ) -> torch.Tensor:
        """exp(dt A) S + k (dt v)^T."""
        return state_BHDE * gates[0].exp()[..., None, None] + k_BHD[..., None] * v_BHE[..., None, :]
