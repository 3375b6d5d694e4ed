"""Softmax attention, its scores and biases against jax, keras and transformers."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

os.environ["KERAS_BACKEND"] = "torch"


class Given(torch.nn.Module):
    """Stands in for a projection: gives what it was made with, heads side by side."""

    def __init__(self, x_BHND: torch.Tensor) -> None:
        super().__init__()
        self.x_BNC = x_BHND.transpose(1, 2).flatten(2)

    def forward(self, _: torch.Tensor) -> torch.Tensor:
        return self.x_BNC


def causal_mask(n: int) -> torch.Tensor:
    return torch.full((n, n), -torch.inf).triu(1)


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", ["full", "flash", "local"])
def test_softmax_equals_jax(build, draw, name: str, causal: bool, kv_heads: int) -> None:
    """Its layout is (B, N, H, D), its windows are extents beside the query."""
    jax = pytest.importorskip("jax")
    q, k, v = draw(100)
    k, v = k[:, :kv_heads], v[:, :kv_heads]
    extents = (15, 0 if causal else 15) if name == "local" else None
    arrays = (jax.numpy.asarray(x.transpose(1, 2).contiguous().numpy()) for x in (q, k, v))
    right = jax.nn.dot_product_attention(*arrays, is_causal=causal, local_window_size=extents)
    knobs: dict[str, Any] = {"window": 16} if name == "local" else {}
    ours = build(name, causal=causal, kv_heads=kv_heads, **knobs)(q, k, v)
    torch.testing.assert_close(ours.transpose(1, 2), torch.tensor(jax.device_get(right)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_additive_equals_keras(build, draw, causal: bool) -> None:
    """One head at a time, called with q, v, k; its weights of the tanh are a vector called scale."""
    keras = pytest.importorskip("keras")
    q, k, v = draw(50)
    module = build("additive", causal=causal)
    ours = module(q, k, v).detach()
    for head in range(4):
        layer = keras.layers.AdditiveAttention(use_scale=True)
        given = [x[:, head] for x in (q, v, k)]
        layer.build([x.shape for x in given])
        layer.scale.assign(module.u_HD[head].detach())
        right = layer(given, use_causal_mask=causal).detach()
        torch.testing.assert_close(ours[:, head], right, rtol=1e-5, atol=1e-5)


def test_luong_equals_keras(build, draw) -> None:
    """One head at a time, called with q, v, k."""
    keras = pytest.importorskip("keras")
    q, k, v = draw(50)
    layer = keras.layers.Attention(score_mode="dot")
    right = torch.stack([layer([x[:, head] for x in (q, v, k)], use_causal_mask=True) for head in range(4)], 1)
    torch.testing.assert_close(build("luong", causal=True)(q, k, v), right.detach(), rtol=1e-4, atol=1e-5)


def test_softcap_equals_gemma_2_of_transformers(build, draw) -> None:
    """Its mask is added after the cap; its output is (B, N, H, D)."""
    gemma = pytest.importorskip("transformers.models.gemma2.modeling_gemma2")
    q, k, v = draw(50)
    owner = torch.nn.Module()
    owner.num_key_value_groups = 1
    right, _ = gemma.eager_attention_forward(owner, q, k, v, causal_mask(50), scaling=32**-0.5, softcap=2.0)
    torch.testing.assert_close(build("softcap", causal=True, cap=2.0)(q, k, v), right.transpose(1, 2))


def test_differential_equals_diffllama_of_transformers(build, draw) -> None:
    """Its heads h and h + H are the two maps of ours, and the halves of a value; no rotary code; no learned gain."""
    model = pytest.importorskip("transformers.models.diffllama.modeling_diffllama")
    config = model.DiffLlamaConfig(
        hidden_size=128, num_attention_heads=8, num_key_value_heads=8, rms_norm_eps=1e-5, attn_implementation="eager"
    )
    layer = model.DiffLlamaAttention(config, layer_idx=2).eval()
    module = build("differential", causal=True, lambda_init=layer.lambda_init)
    q, k, v = draw(50)
    for name, x in (("q_proj", q), ("k_proj", k), ("v_proj", v)):
        setattr(layer, name, Given(torch.cat(x.chunk(2, -1), 1)))
    layer.o_proj = torch.nn.Identity()
    names = (("lambda_q1", "lambda_k1"), ("lambda_q2", "lambda_k2"))
    with torch.no_grad():
        for row, pair in zip(names, module.ab_22D, strict=True):
            for name, value in zip(row, pair, strict=True):
                getattr(layer, name).copy_(value)
        unturned = torch.ones(2, 50, 16), torch.zeros(2, 50, 16)
        right, _ = layer(torch.zeros(2, 50, 128), unturned, attention_mask=causal_mask(50)[None, None])
        ours = module(q, k, v).transpose(1, 2).flatten(2)
    torch.testing.assert_close(ours, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["full", "flash"])
def test_alibi_equals_bloom_of_transformers(build, draw, name: str) -> None:
    """It adds slope * j instead of -slope * (p - j): a constant of the row more."""
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    q, k, v = draw(50)
    bias = bloom.build_alibi_tensor(torch.ones(1, 50), 4, torch.float32)[None]
    right = (q @ k.mT * 32**-0.5 + bias + causal_mask(50)).softmax(-1) @ v
    torch.testing.assert_close(build(name, causal=True, bias="alibi")(q, k, v), right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("heads", range(1, 34))
def test_alibi_slopes_equal_bloom_for_any_number_of_heads(heads: int) -> None:
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    bias = pytest.importorskip("variants._bias")
    right = bloom.build_alibi_tensor(torch.ones(1, 2), heads, torch.float64)[:, 0, 1]
    ours = -bias.Alibi(bias.Shape(heads, 8))(torch.tensor([[1]]), torch.float64)[:, 0, 0]
    torch.testing.assert_close(ours, right)


@pytest.mark.parametrize("causal", [True, False])
def test_buckets_of_the_relative_bias_equal_t5_of_transformers(build, causal: bool) -> None:
    """Its distances are j - p."""
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    gap = torch.arange(0 if causal else -300, 300)
    right = t5.T5Attention._relative_position_bucket(-gap, bidirectional=not causal)
    ours = build("full", causal=causal, bias="t5").position_bias.buckets(gap)
    assert torch.equal(ours, right)
