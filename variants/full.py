"""Softmax attention written out: every score and every weight is stored."""

from __future__ import annotations

import torch
from torch import nn

from bench.pairs import full_pairs, full_pattern
from bench.variant import Shape, variant
from variants._masking import group_rows, zero_padding


@variant(kind="exact", paper="Vaswani et al. 2017, arXiv 1706.03762, eq. 1", time="n^2", memory="n^2")
class Full(nn.Module):
    """Softmax attention written out: two n-by-n matrices in memory.

    scale: factor of the scores; None is head_dim ** -0.5, and 0.0 averages the allowed values.
    """

    def __init__(self, shape: Shape, *, scale: float | None = None) -> None:
        super().__init__()
        self.shape = shape
        self.scale = shape.scale if scale is None else scale

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B,H,Nq,D), (B,Hkv,Nk,D), (B,Hkv,Nk,Dv), key_mask (B,Nk) -> (B,H,Nq,Dv)."""
        k, v = zero_padding(k, v, key_mask)
        q_XRD, k_XMD, v_XME = (x.flatten(0, 1) for x in (group_rows(q, k.shape[1]), k, v))
        bias, seen_B1N1 = self._bias(q, k, key_mask)
        # The scale is a factor inside the product, before rounding: low precision does not overflow, and neither a
        # scaled copy of q nor a second one of the scores is kept.
        scores_XRM = torch.baddbmm(bias, q_XRD, k_XMD.mT, alpha=self.scale)
        del bias  # n by n when anything is masked, and not needed further
        out_BHNE = (scores_XRM.softmax(-1) @ v_XME).view(*q.shape[:3], v.shape[3])
        return out_BHNE if seen_B1N1 is None else out_BHNE.masked_fill(~seen_B1N1, 0)

    def _bias(
        self, q: torch.Tensor, k: torch.Tensor, key_mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What is added to the scores, 0 or minus infinity, and which queries see any key; None means all.

        The bias of a query that sees none is 0: its weights and gradients stay finite, and its output is set to 0.
        """
        if key_mask is None and not self.shape.causal:
            return q.new_zeros(1, 1, 1), None
        allowed_BNM = self.pattern(q.shape[2], k.shape[2], q.device)[None]
        if key_mask is not None:
            allowed_BNM = allowed_BNM & key_mask[:, None]
        seen_BN1 = allowed_BNM.any(-1, keepdim=True)
        bias = q.new_zeros(allowed_BNM.shape).masked_fill_(seen_BN1 & ~allowed_BNM, -torch.inf)
        if key_mask is not None:
            bias = bias.repeat_interleave(k.shape[1], 0)
        return bias.repeat(1, q.shape[1] // k.shape[1], 1), seen_BN1[:, None]

    def pattern(self, query_len: int, key_len: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Allowed pairs, bool (Nq, Nk)."""
        return full_pattern(query_len, key_len, self.shape.causal, device)

    def pairs(self, query_len: int, key_len: int) -> int:
        """Number of allowed pairs per head."""
        return full_pairs(query_len, key_len, self.shape.causal)
