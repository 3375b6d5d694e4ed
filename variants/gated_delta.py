"""The gated delta rule: a state that decays, and is corrected by what it lacks."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from bench.variant import Shape, variant
from variants._delta import DeltaRule, unit
from variants._recurrent import drawn, gate, masked, per_head


@variant(
    kind="different",
    paper="Yang et al. 2024 (Gated DeltaNet), arXiv 2412.06464, eq. 10",
    time="n",
    memory="n",
    bidirectional=False,
    cross=False,
    normalised=False,
    needs_x=True,
)
class GatedDelta(DeltaRule):
    """S_t = a_t (I - b_t k_t k_t^T) S_{t-1} + b_t k_t v_t^T, out = q S / sqrt(D) normalised per head; |k| = 1.

    b = sigmoid(x W); a = exp(-A_h softplus(x U + c)), A_h and c started as in `ssd`. A padded position changes nothing.
    The short convolution, the SiLU of q, k and v and the output gate of the paper's layer are the block's.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        heads = shape.heads
        self.beta_HC, self.decay_HC = drawn((heads, shape.model_dim), (heads, shape.model_dim))
        self.log_a_H = nn.Parameter(torch.linspace(1, 16, heads).log())
        self.decay_bias_H = nn.Parameter(torch.logspace(-3, -1, heads).expm1().log())

    def inputs(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        x: torch.Tensor | None,
        key_mask: torch.Tensor | None,
    ) -> tuple[torch.Tensor, ...]:
        """q / sqrt(D), k of length 1, v, b and the log decay."""
        k, v = per_head(self.shape.heads, k, v)
        beta_BHN = masked(gate(x, self.beta_HC).sigmoid().mT, key_mask)
        rate_BNH = F.softplus(gate(x, self.decay_HC) + self.decay_bias_H.to(k.dtype))
        log_decay_BHN = masked(-rate_BNH.mT * self.log_a_H.to(k.dtype).exp()[:, None], key_mask)
        return q.to(k.dtype) * self.shape.scale, unit(k), v, beta_BHN, log_decay_BHN
