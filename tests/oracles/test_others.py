"""Low rank and relatives of the softmax against the packages of their authors and others."""

from __future__ import annotations

import pytest
import torch


def test_entmax_equals_the_package(build, draw) -> None:
    """It raises on a row without keys; ours gives 0."""
    entmax = pytest.importorskip("entmax")
    q, k, v = draw(60)
    scores = (q @ k.mT) * 32**-0.5
    scores = scores.masked_fill(torch.ones(60, 60, dtype=torch.bool).triu(1), -torch.inf)
    right = entmax.entmax15(scores, dim=-1) @ v
    torch.testing.assert_close(build("entmax15", causal=True)(q, k, v), right, rtol=1e-4, atol=1e-5)


def test_nystrom_equals_nystrom_attention(build, draw) -> None:
    """Its start of the iteration is shared by the batch, so examples go one by one; no convolution, no projections."""
    package = pytest.importorskip("nystrom_attention")
    q, k, v = draw(128)
    layer = package.NystromAttention(dim=128, dim_head=32, heads=4, num_landmarks=16, residual=False).eval()
    layer.to_qkv, layer.to_out = torch.nn.Identity(), torch.nn.Identity()
    ours = build("nystrom", causal=False, landmarks=16)
    for b in range(2):
        for h in range(4):
            single = [x[b : b + 1, h : h + 1] for x in (q, k, v)]
            layer.heads = 1
            flat = torch.cat([x.transpose(1, 2).flatten(2) for x in single], -1)
            right = layer(flat)
            torch.testing.assert_close(ours(q, k, v)[b, h], right[0], rtol=1e-3, atol=1e-4)


def test_linformer_equals_the_package(build, draw) -> None:
    """Its projections pass each head through; its E and F are (N, rank)."""
    package = pytest.importorskip("linformer")
    q, k, v = draw(64)
    layer = package.LinformerSelfAttention(dim=384, seq_len=64, k=16, heads=4, dim_head=32).eval()
    unit = torch.eye(128)
    module = build("linformer", causal=False, max_len=64, rank=16)
    with torch.no_grad():
        for part, linear in enumerate((layer.to_q, layer.to_k, layer.to_v)):
            linear.weight.zero_()
            linear.weight[:, part * 128 : (part + 1) * 128] = unit
        layer.proj_k.copy_(module.mix_k_RM.T)
        layer.proj_v.copy_(module.mix_v_RM.T)
        layer.to_out = torch.nn.Identity()
        flat = torch.cat([x.transpose(1, 2).flatten(2) for x in (q, k, v)], -1)
        right = layer(flat).view(2, 64, 4, 32).transpose(1, 2)
    torch.testing.assert_close(module(q, k, v).detach(), right, rtol=1e-4, atol=1e-5)
