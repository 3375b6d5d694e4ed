"""Windows, global tokens and blocks against local-attention, transformers and xformers."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize("n", [128, 100])
@pytest.mark.parametrize("causal", [True, False])
def test_local_equals_local_attention(build, draw, causal: bool, n: int) -> None:
    """Its exact window is w - 1 positions beside the query; without a mask it attends to its own padding."""
    local_attention = pytest.importorskip("local_attention")
    q, k, v = draw(n)
    other = local_attention.LocalAttention(
        window_size=15, causal=causal, look_backward=1, look_forward=0 if causal else 1, exact_windowsize=True,
        use_rotary_pos_emb=False, autopad=True,
    )  # fmt: skip
    right = other(q, k, v, mask=torch.ones(2, n, dtype=torch.bool))
    torch.testing.assert_close(build("local", causal=causal, window=16)(q, k, v), right, rtol=1e-5, atol=1e-5)


def longformer(window: int, tokens: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """(q, k and v of its layer, its output); mask 0 is local, 10000 global."""
    transformers = pytest.importorskip("transformers")
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 128, 128, generator=generator)
    config = transformers.LongformerConfig(
        hidden_size=128, num_attention_heads=4, attention_window=[2 * (window - 1)], attention_probs_dropout_prob=0.0
    )
    layer = LongformerSelfAttention(config, layer_id=0).eval()
    inputs = []
    for name in ("query", "key", "value"):
        weight = torch.randn(128, 128, generator=generator) / 8
        for part in (name, f"{name}_global"):  # ours has one set of projections: the block's
            with torch.no_grad():
                getattr(layer, part).weight.copy_(weight)
                getattr(layer, part).bias.zero_()
        inputs.append((x @ weight.T).view(2, 128, 4, 32).transpose(1, 2))
    mask = torch.zeros(2, 128)
    mask[:, :tokens] = 10000.0
    out = layer(
        x, attention_mask=mask, is_index_masked=mask < 0, is_index_global_attn=mask > 0, is_global_attn=tokens > 0
    )[0]
    return inputs, out.view(2, 128, 4, 32).transpose(1, 2).detach()


def test_local_equals_longformer_without_global_tokens(build) -> None:
    """attention_window = 2 (w - 1): it counts both sides and not the query; lengths are whole windows."""
    inputs, right = longformer(window=17, tokens=0)
    torch.testing.assert_close(build("local", causal=False, window=17)(*inputs), right, rtol=1e-4, atol=1e-5)


def test_longformer_equals_transformers(build) -> None:
    """One set of projections in place of its separate ones for global tokens."""
    inputs, right = longformer(window=17, tokens=2)
    ours = build("longformer", causal=False, window=17, global_tokens=2)(*inputs)
    torch.testing.assert_close(ours, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("n", "m"), [(64, 64), (30, 64), (1, 64)])
@pytest.mark.parametrize("window", [1, 7, 64])
def test_patterns_equal_the_matrices_of_xformers(build, n: int, m: int, window: int) -> None:
    """Its windows of a causal mask count the query; those of LocalAttention are extents beside it."""
    bias = pytest.importorskip("xformers.ops.fmha.attn_bias")
    causal = bias.LowerTriangularFromBottomRightMask()
    found = {
        ("full", True): causal.materialize((n, m)),
        ("local", True): causal.make_local_attention(window).materialize((n, m)),
        ("local", False): bias.LocalAttentionFromBottomRightMask(
            window_left=window - 1, window_right=window - 1
        ).materialize((n, m)),
    }
    for (name, direction), matrix in found.items():
        module = build(name, causal=direction, **({"window": window} if name == "local" else {}))
        pattern = module.pattern(n, m) if name == "local" else torch.ones(n, m, dtype=torch.bool).tril(m - n)
        assert torch.equal(pattern, matrix == 0), (name, direction)
