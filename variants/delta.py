"""The delta rule: a state that is corrected by what it lacks."""

from __future__ import annotations

import torch

from bench.variant import Shape, variant
from variants._delta import DeltaRule, unit
from variants._recurrent import drawn, gate, masked, per_head


@variant(
    kind="different",
    paper="Schlag et al. 2021, arXiv 2102.11174, eq. 24; chunked: Yang et al. 2024, arXiv 2406.06484",
    time="n",
    memory="n",
    bidirectional=False,
    cross=False,
    normalised=False,
    needs_x=True,
)
class Delta(DeltaRule):
    """S_t = S_{t-1} + b_t k_t (v_t - k_t^T S_{t-1})^T, out = q S / sqrt(D) normalised per head; |k| = 1.

    b = sigmoid(x W): the share by which what the state holds for k is replaced with v. A padded position changes
    nothing. The short convolution, the SiLU of q, k and v and the output projection of the paper's layer are the
    block's.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        (self.beta_HC,) = drawn((shape.heads, shape.model_dim))

    def inputs(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        x: torch.Tensor | None,
        key_mask: torch.Tensor | None,
    ) -> tuple[torch.Tensor, ...]:
        """q / sqrt(D), k of length 1, v, b and the log decay, which is 0."""
        k, v = per_head(self.shape.heads, k, v)
        beta_BHN = masked(gate(x, self.beta_HC).sigmoid().mT, key_mask)
        return q.to(k.dtype) * self.shape.scale, unit(k), v, beta_BHN, torch.zeros_like(beta_BHN)
