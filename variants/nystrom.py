"""Nystromformer: the softmax matrix rebuilt from a few landmarks."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import nn

from bench.variant import Ge, Shape, variant
from variants._masking import masked_softmax, nothing_seen, zero_padding
from variants._sdpa import attend


@variant(
    kind="approximate",
    paper="Xiong et al. 2021, arXiv 2102.03902, eq. 13 and 14",
    time="n*landmarks",
    memory="n",
    causal=False,
    cross=False,
    decode=False,
    normalised=False,
)
class Nystrom(nn.Module):
    """softmax(q K'^T) Z softmax(Q' k^T) v, with Q' and K' the means of `landmarks` equal stretches of real positions.

    Z is the pseudo-inverse of softmax(Q' K'^T) by `iterations` steps of the paper's iteration. They start from a scale
    of each head and example by itself, so that no example changes another. Where there are fewer real positions than
    landmarks, each is its own. Bidirectional self-attention only: a landmark contains the future. The depthwise
    convolution of values that the authors add beside it is left to the block.
    """

    def __init__(
        self, shape: Shape, *, landmarks: Annotated[int, Ge(1)] = 64, iterations: Annotated[int, Ge(1)] = 6
    ) -> None:
        super().__init__()
        self.shape = shape
        self.landmarks = landmarks
        self.iterations = iterations

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B,H,N,D), (B,Hkv,N,D), (B,Hkv,N,Dv), key_mask (B,N) -> (B,H,N,Dv)."""
        k, v = zero_padding(k, v, key_mask)
        if 0 in (q.shape[0], q.shape[2]):
            return nothing_seen(q, v.shape[3])
        dtype, wide = q.dtype, torch.promote_types(q.dtype, torch.float32)
        q, k, v = q.to(wide), k.to(wide), v.to(wide)
        stretch_BLN, used_BL = self._stretches(q, key_mask)
        q_real = q if key_mask is None else q.masked_fill(~key_mask[:, None, :, None], 0)
        near_q_BHLD, near_k_BGLD = (stretch_means(x, stretch_BLN, alike=key_mask is None) for x in (q_real, k))
        near_k_BHLD = near_k_BGLD.repeat_interleave(q.shape[1] // k.shape[1], 1)
        pair_B1LL = used_BL[:, None, :, None] & used_BL[:, None, None, :]
        weights, _ = masked_softmax(near_q_BHLD * self.shape.scale @ near_k_BHLD.mT, pair_B1LL)
        inverse_BHLL = pseudo_inverse(weights * pair_B1LL, self.iterations)
        means_BHLE = attend(near_q_BHLD, k, v, key_mask, causal=False, scale=self.shape.scale)
        out = attend(q, near_k_BHLD, inverse_BHLL @ means_BHLE, used_BL, causal=False, scale=self.shape.scale)
        return out.to(dtype)

    def flops(self, query_len: int, key_len: int) -> int:
        """Landmarks of q and k, two products with n * landmarks weights, and the iteration on landmarks^2 of them."""
        count, heads = self.landmarks, self.shape.heads
        means = 2 * count * self.shape.head_dim * (heads * query_len + self.shape.kv_heads * key_len)
        weights = heads * 2 * count * (query_len + key_len) * (self.shape.head_dim + self.shape.value_dim)
        small = heads * 2 * count**2 * (self.shape.head_dim + self.shape.value_dim + 4 * self.iterations * count)
        return means + weights + small

    def _stretches(self, q: torch.Tensor, key_mask: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Which share each position has in each landmark, (B or 1, 1, L, N), and which landmarks are used, (B, L)."""
        length = q.shape[2]
        real_BN = torch.ones(1, length, dtype=torch.bool, device=q.device) if key_mask is None else key_mask
        count_B1 = real_BN.sum(1, keepdim=True)
        place_BN = real_BN.cumsum(1) - 1
        landmarks_B1 = count_B1.clamp(max=self.landmarks)
        of_BN = place_BN * landmarks_B1 // count_B1.clamp(min=1)
        number_L = torch.arange(min(self.landmarks, length), device=q.device)
        member_BLN = (of_BN[:, None] == number_L[:, None]) & real_BN[:, None]
        share_BLN = member_BLN.to(q.dtype) / member_BLN.sum(2, keepdim=True).clamp(min=1)
        return share_BLN[:, None], (number_L < landmarks_B1).expand(q.shape[0], -1)


def stretch_means(x_BHND: torch.Tensor, share_BLN: torch.Tensor, *, alike: bool) -> torch.Tensor:
    """Means of the stretches, (B,H,L,D), by the share of each position. alike: the same for all, with no padding."""
    count = share_BLN.shape[2]
    if alike and not x_BHND.shape[2] % count:
        return x_BHND.view(*x_BHND.shape[:2], count, -1, x_BHND.shape[3]).mean(3)
    return share_BLN @ x_BHND


def pseudo_inverse(a_BHLL: torch.Tensor, iterations: int) -> torch.Tensor:
    """Eq. 14, from A^T over the largest row sum and column sum of each matrix; a matrix of zeros gives zeros."""
    sums = a_BHLL.abs()
    rows, columns = (sums.sum(dim).amax(-1)[..., None, None] for dim in (-1, -2))
    z = a_BHLL.mT / (rows * columns).clamp(min=torch.finfo(a_BHLL.dtype).tiny)
    eye = torch.eye(a_BHLL.shape[-1], dtype=a_BHLL.dtype, device=a_BHLL.device)
    for _ in range(iterations):
        az = a_BHLL @ z
        z = 0.25 * z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az)))
    return z
