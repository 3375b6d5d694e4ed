"""What our variants are compared with by `peers.py`: other packages and plain forms, as functions of q, k and v.

All of (1, HEADS, n, WIDTH); what a package adds around its attention (projections, a convolution) is taken out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

HEADS, WIDTH, WINDOW = 8, 64, 256
Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def local_package() -> Attention:
    """local-attention, exact window."""
    from local_attention import LocalAttention

    layer = LocalAttention(
        window_size=WINDOW - 1,
        causal=True,
        look_backward=1,
        exact_windowsize=True,
        use_rotary_pos_emb=False,
        autopad=True,
    )
    return lambda q, k, v: layer(q, k, v)


def linear_package() -> Attention:
    """linear-attention-transformer, bidirectional; it works in place, and scales once more."""
    from linear_attention_transformer.linear_attention_transformer import linear_attn

    return lambda q, k, v: linear_attn(q.clone(), k.clone(), v.clone()) * WIDTH**0.5


def compiled_chunks(n: int) -> Attention:
    """The plain chunked form of causal linear attention, compiled."""

    def chunked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k = (torch.nn.functional.elu(x) + 1 for x in (q, k))
        v = torch.nn.functional.pad(v, (0, 1), value=1.0)
        q, k, v = (x.view(*x.shape[:2], -1, 64, x.shape[3]) for x in (q, k, v))
        states = (k.mT @ v).cumsum(2)
        states = torch.cat([torch.zeros_like(states[:, :, :1]), states[:, :, :-1]], 2)
        sums = q @ states + (q @ k.mT).tril() @ v
        return (sums[..., :-1] / sums[..., -1:]).flatten(2, 3)

    compiled: Attention = torch.compile(chunked)
    return compiled


def performer_package() -> Attention:
    """performer-pytorch, bidirectional, 256 features."""
    from performer_pytorch import FastAttention

    return FastAttention(dim_heads=WIDTH, nb_features=256, causal=False)


class Given(torch.nn.Module):
    """Stands in for a projection: gives what was put into it, one tensor or what `chunk` is to give."""

    parts: tuple[torch.Tensor, ...]

    def forward(self, _: torch.Tensor) -> Any:
        """The tensor, or itself for `chunk`."""
        return self.parts[0] if len(self.parts) == 1 else self

    def chunk(self, *_: Any, **__: Any) -> tuple[torch.Tensor, ...]:
        """The tensors."""
        return self.parts


def joined(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """(B, H, N, D) -> (B, N, H * D)."""
    return tuple(x.transpose(1, 2).flatten(2) for x in tensors)


def nystrom_package() -> Attention:
    """nystrom-attention, 64 landmarks, without its projections and its convolution."""
    from nystrom_attention import NystromAttention

    layer = NystromAttention(HEADS * WIDTH, WIDTH, HEADS, num_landmarks=64, residual=False)
    layer.to_qkv, layer.to_out = Given(), torch.nn.Identity()

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        layer.to_qkv.parts = joined(q, k, v)
        out: torch.Tensor = layer(layer.to_qkv.parts[0])
        return out.unflatten(2, (HEADS, WIDTH)).transpose(1, 2)

    return call


def linformer_package(module: Any, n: int) -> Attention:
    """linformer, rank 256, with our mixtures and without its projections."""
    from linformer import LinformerSelfAttention

    layer = LinformerSelfAttention(HEADS * WIDTH, n, k=256, heads=HEADS)
    layer.to_q, layer.to_k, layer.to_v, layer.to_out = Given(), Given(), Given(), torch.nn.Identity()
    with torch.no_grad():
        layer.proj_k.copy_(module.mix_k_RM.T)
        layer.proj_v.copy_(module.mix_v_RM.T)

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        for slot, x in zip((layer.to_q, layer.to_k, layer.to_v), joined(q, k, v), strict=True):
            slot.parts = (x,)
        out: torch.Tensor = layer(layer.to_q.parts[0])
        return out.unflatten(2, (HEADS, WIDTH)).transpose(1, 2)

    return call


def nystrom_plain() -> Attention:
    """Nystrom attention written out, 64 landmarks."""

    def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scale = WIDTH**-0.5
        near_q, near_k = (x.view(*x.shape[:2], 64, -1, WIDTH).mean(3) for x in (q, k))
        left, small, right = ((a * scale @ b.mT).softmax(-1) for a, b in ((q, near_k), (near_q, near_k), (near_q, k)))
        z = small.mT / (small.sum(-1).amax() * small.sum(-2).amax())
        eye = torch.eye(64)
        for _ in range(6):
            az = small @ z
            z = 0.25 * z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az)))
        return (left @ z) @ (right @ v)

    return plain


def linformer_plain(module: Any) -> Attention:
    """Linformer written out, with our mixtures."""
    e, f = module.mix_k_RM, module.mix_v_RM
    return lambda q, k, v: (q * WIDTH**-0.5 @ (e @ k).mT).softmax(-1) @ (f @ v)


def strided_gather(n: int) -> Attention:
    """The strided pattern at stride 64, near and far keys gathered for every block and put into one softmax."""
    stride = 64
    blocks = n // stride
    gap_rs = stride + torch.arange(stride)[:, None] - torch.arange(2 * stride)  # a block's keys start a block before it
    exists_cs = torch.arange(2 * stride) >= stride - stride * torch.arange(blocks)[:, None]
    near_crs = (gap_rs >= 0) & (gap_rs <= stride) & exists_cs[:, None]
    far_cf = torch.arange(blocks) < torch.arange(blocks)[:, None] - 1  # the one a stride away is among the near keys
    mask_crS = torch.cat([near_crs, far_cf[:, None].expand(-1, stride, -1)], -1)

    def gathered(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        padded_k, padded_v = (torch.nn.functional.pad(x, (0, 0, stride, 0)) for x in (k, v))
        near_k_BHcsD, near_v_BHcsD = (x.unfold(2, 2 * stride, stride).mT for x in (padded_k, padded_v))
        far_k_BHrfD, far_v_BHrfD = (x.view(1, HEADS, blocks, stride, WIDTH).transpose(2, 3) for x in (k, v))
        q_BHcrD = q.view(1, HEADS, blocks, stride, WIDTH) * WIDTH**-0.5
        far_BHcrf = torch.einsum("bhcrd,bhrfd->bhcrf", q_BHcrD, far_k_BHrfD)
        scores_BHcrS = torch.cat([q_BHcrD @ near_k_BHcsD.mT, far_BHcrf], -1)
        weights_BHcrS = scores_BHcrS.masked_fill(~mask_crS, -torch.inf).softmax(-1)
        near_BHcrs, far_BHcrf = weights_BHcrS.split([2 * stride, blocks], -1)
        out = near_BHcrs @ near_v_BHcsD + torch.einsum("bhcrf,bhrfd->bhcrd", far_BHcrf, far_v_BHrfD)
        return out.flatten(2, 3)

    return gathered
