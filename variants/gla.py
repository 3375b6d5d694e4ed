"""Gated linear attention: a state of which each feature decays by a number of its own."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import nn
from torch.nn import functional as F

from bench.variant import Ge, Gt, Shape, variant
from variants._recurrent import Recurrent, drawn, gate, masked, per_head, vector_decay


@variant(
    kind="different",
    paper="Yang et al. 2024 (GLA), arXiv 2312.06635, eq. 3 and section 4",
    time="n",
    memory="n",
    bidirectional=False,
    cross=False,
    normalised=False,
    needs_x=True,
)
class Gla(Recurrent):
    """S_t = diag(a_t) S_{t-1} + k_t v_t^T, out = q S / sqrt(D) normalised per head; a = sigmoid(x W1 W2 + b)^(1/16).

    W1 W2 has rank `rank`. A padded position does not count as time. The swish gate and the output projection of the
    paper's layer are the block's. normaliser: the root that is taken of the sigmoid.
    """

    segment = staticmethod(vector_decay)

    def __init__(
        self, shape: Shape, *, rank: Annotated[int, Ge(1)] = 16, normaliser: Annotated[float, Gt(0)] = 16.0
    ) -> None:
        super().__init__(shape)
        self.normaliser = normaliser
        width = shape.heads * shape.head_dim
        self.down_RC, self.up_FR = drawn((rank, shape.model_dim), (width, rank))
        self.bias_F = nn.Parameter(torch.zeros(width))

    def inputs(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        x: torch.Tensor | None,
        key_mask: torch.Tensor | None,
    ) -> tuple[torch.Tensor, ...]:
        """q / sqrt(D), k, v and the log decay of each feature, (B,H,N,D)."""
        k, v = per_head(self.shape.heads, k, v)
        raw_BNF = gate(x, self.down_RC, self.up_FR) + self.bias_F.to(k.dtype)
        log_decay_BNF = F.logsigmoid(raw_BNF) / self.normaliser
        log_decay_BHND = log_decay_BNF.view(*raw_BNF.shape[:2], self.shape.heads, self.shape.head_dim).transpose(1, 2)
        return q.to(k.dtype) * self.shape.scale, k, v, masked(log_decay_BHND, key_mask)

    def update(
        self, state_BHDE: torch.Tensor, k_BHD: torch.Tensor, v_BHE: torch.Tensor, *gates: torch.Tensor
    ) -> torch.Tensor:
        """diag(a) S + k v^T."""
        return state_BHDE * gates[0].exp()[..., None] + k_BHD[..., None] * v_BHE[..., None, :]
