"""The block and the models around an attention. B batch, N positions, C width; the oracle is plain loops."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import variants
from bench.errors import UserError
from bench.model.block import PRESETS, Block, BlockConfig, ShortConv, count_params, preset
from bench.model.classifier import Classifier
from bench.model.encoder_decoder import EncoderDecoder
from bench.model.init import derived, seeded
from bench.model.language import LanguageModel
from bench.model.positions import Rotary, sinusoidal
from bench.variant import Shape, Unsupported, admit, variant


@variant(kind="exact", paper="softmax written for these tests")
class Softmax(nn.Module):
    """Softmax attention with a parameter of its own, so that a variant's draws could disturb the block's."""

    def __init__(self, shape: Shape, own: int = 1) -> None:
        super().__init__()
        self.shape = shape
        self.own = nn.Parameter(torch.randn(own))

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        repeats = q.shape[1] // k.shape[1]
        allowed = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
        if self.shape.causal:
            allowed = allowed.tril(k.shape[2] - q.shape[2])
        if key_mask is not None:
            allowed = allowed & key_mask[:, None, None, :]
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed)


def _built_in() -> dict[str, type]:
    found = {}
    for path in sorted(Path(next(iter(variants.__path__))).glob("*.py")):
        if not path.stem.startswith("_"):
            module = importlib.import_module(f"variants.{path.stem}")
            found[path.stem] = next(c for c in vars(module).values() if isinstance(c, type) and hasattr(c, "claims"))
    return found


VARIANTS = _built_in()


def _maker(name: str, length: int) -> Callable[[Shape], nn.Module]:
    def make(shape: Shape) -> nn.Module:
        module: Any = VARIANTS[name](shape)
        try:
            admit(module, shape, dtype="float32", device="cpu", query_len=length, key_len=length)
        except Unsupported as refusal:
            pytest.skip(str(refusal))
        return module

    return make


def _normal(*size: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _tokens(vocab: int, *size: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(vocab, size, generator=torch.Generator().manual_seed(seed))


def _loop_attention(q: Any, k: Any, v: Any, causal: bool, repeats: int) -> torch.Tensor:
    out = torch.zeros(*q.shape[:3], v.shape[3], dtype=torch.float64)
    for b, h, i in ((b, h, i) for b in range(q.shape[0]) for h in range(q.shape[1]) for i in range(q.shape[2])):
        seen = [j for j in range(k.shape[2]) if not causal or j <= i + k.shape[2] - q.shape[2]]
        scores = [math.exp(float(q[b, h, i] @ k[b, h // repeats, j]) / math.sqrt(q.shape[3])) for j in seen]
        for j, weight in zip(seen, scores, strict=True):
            out[b, h, i] += weight / sum(scores) * v[b, h // repeats, j]
    return out


def _loop_block(block: Block, x: torch.Tensor, causal: bool, pre: bool) -> torch.Tensor:
    """The same block from its weights: ReLU feed-forward, no positions, no convolution."""
    weights = {name: value.detach() for name, value in block.state_dict().items()}
    shape = block.mix.inner.shape

    def norm(y: torch.Tensor, name: str) -> torch.Tensor:
        centred = y - y.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weights[f"{name}.norm.weight"]

    def attend(y: torch.Tensor) -> torch.Tensor:
        def heads(name: str, count: int) -> torch.Tensor:
            flat = y @ weights[f"mix.inner.{name}.weight"].T
            return torch.stack(flat.chunk(count, dim=-1), dim=1)

        q, k, v = heads("to_q", shape.heads), heads("to_k", shape.kv_heads), heads("to_v", shape.kv_heads)
        mixed = _loop_attention(q, k, v, causal, shape.heads // shape.kv_heads)
        return torch.cat(mixed.unbind(1), dim=-1) @ weights["mix.inner.to_out.weight"].T

    def feed(y: torch.Tensor) -> torch.Tensor:
        hidden = y @ weights["ffn.inner.up.weight"].T + weights["ffn.inner.up.bias"]
        return hidden.clamp(min=0) @ weights["ffn.inner.down.weight"].T + weights["ffn.inner.down.bias"]

    for name, inner in (("mix", attend), ("ffn", feed)):
        x = x + inner(norm(x, name)) if pre else norm(x + inner(x), name)
    return x


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("causal", [True, False])
def test_block_equals_plain_loops(norm: Any, causal: bool) -> None:
    config = BlockConfig(12, 4, kv_heads=2, head_dim=5, value_dim=6, ffn="relu", norm=norm, positions="none")
    block = Block(config, Softmax, causal=causal, max_len=7).double()
    x = _normal(2, 7, 12).double()
    torch.testing.assert_close(block(x).detach(), _loop_block(block, x, causal, norm == "pre"), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", sorted(n for n, cls in VARIANTS.items() if cls.claims.causal))
def test_a58_block_is_causal(name: str) -> None:
    length, changed = 37, 20
    config = BlockConfig(16, 2, conv=3, positions="rotary")
    if "cpu" not in VARIANTS[name].claims.devices:
        pytest.skip("it does not run on a CPU")
    if name == "flex":
        pytest.skip("it takes minutes in the compiler; the kit checks its block, marked slow")
    try:
        model = LanguageModel(config, _maker(name, length), vocab=9, layers=2, causal=True, max_len=length)
    except Unsupported as reason:
        pytest.skip(str(reason))
    tokens = _tokens(9, 2, length)
    other = tokens.clone()
    other[:, changed] = (other[:, changed] + 1) % 9
    before, after = model(tokens).detach(), model(other).detach()
    assert torch.equal(before[:, :changed], after[:, :changed])
    assert not torch.equal(before[:, changed], after[:, changed])


def test_a58_catches_a_variant_that_sees_the_future() -> None:
    def peeking(shape: Shape) -> nn.Module:
        return Softmax(Shape(shape.heads, shape.head_dim, causal=False))

    model = LanguageModel(BlockConfig(16, 2), peeking, vocab=9, layers=1, causal=True, max_len=8)
    tokens = _tokens(9, 1, 8)
    other = tokens.clone()
    other[:, 7] = (other[:, 7] + 1) % 9
    assert not torch.equal(model(tokens)[:, :7], model(other)[:, :7])


def test_a41_dropout_is_off_in_eval() -> None:
    x = _normal(2, 5, 8)
    dropped = Block(BlockConfig(8, 2, dropout=0.5), Softmax, causal=True, max_len=5).eval()
    plain = Block(BlockConfig(8, 2, dropout=0.0), Softmax, causal=True, max_len=5)
    assert torch.equal(dropped(x), dropped(x))
    assert torch.equal(dropped(x), plain(x))
    with seeded(0, "dropout"):
        assert not torch.equal(dropped.train()(x), plain(x))


@pytest.mark.parametrize("name", sorted(n for n, c in VARIANTS.items() if c.claims.bidirectional and c.claims.key_mask))
@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary"])
def test_e10_padding_changes_no_logit(name: str, positions: Any) -> None:
    length = 19
    config = BlockConfig(16, 2, conv=3, positions=positions)
    model = Classifier(config, _maker(name, 2 * length), vocab=9, classes=3, layers=2, max_len=2 * length).eval()
    tokens = _tokens(9, 3, length)
    padded = torch.cat((tokens, _tokens(9, 3, length, seed=1)), dim=1)
    mask = torch.arange(2 * length).expand(3, -1) < length
    torch.testing.assert_close(model(padded, key_mask=mask), model(tokens), rtol=0, atol=1e-4)
    assert (model(padded) - model(tokens)).abs().max() > 1e-3


def test_classifier_of_nothing_but_padding_is_finite() -> None:
    model = Classifier(BlockConfig(8, 2), Softmax, vocab=5, classes=2, layers=1, max_len=4)
    mask = torch.tensor([[True, True, False, False], [False] * 4])
    assert model(_tokens(5, 2, 4), key_mask=mask).isfinite().all()


def test_weights_depend_on_the_seed_alone() -> None:
    config = BlockConfig(8, 2, conv=3)
    state = torch.get_rng_state()
    small, large = (
        Block(config, lambda shape, own=own: Softmax(shape, own), causal=True, max_len=4, cross=True) for own in (1, 99)
    )
    again = Block(config, Softmax, causal=True, max_len=4, cross=True, seed=1)
    assert torch.equal(state, torch.get_rng_state())
    for name, value in small.state_dict().items():
        if not name.endswith(".own"):
            assert torch.equal(value, large.state_dict()[name])
    assert not torch.equal(small.mix.inner.to_q.weight, again.mix.inner.to_q.weight)
    assert not torch.equal(small.mix.inner.to_q.weight, small.mix.inner.to_k.weight)
    assert torch.equal(
        small.mix.inner.attention.own, Block(config, Softmax, causal=True, max_len=4).mix.inner.attention.own
    )


def test_layers_and_purposes_have_different_seeds() -> None:
    model = LanguageModel(BlockConfig(8, 2), Softmax, vocab=5, layers=2, causal=True, max_len=4)
    first, second = (block.mix.inner.to_q.weight for block in model.stack.blocks)
    assert not torch.equal(first, second)
    assert len({derived(0, "a", 1), derived(0, "a", 2), derived(1, "a", 1), derived(0, "b", 1)}) == 4


def test_count_params_tells_the_variants_own_apart() -> None:
    block = Block(BlockConfig(8, 2, ffn="none"), lambda shape: Softmax(shape, 7), causal=True, max_len=4, cross=True)
    assert count_params(block) == (2 * (4 * 8 * 8 + 2 * 8) + 14, 14)


def test_swiglu_costs_what_the_others_cost() -> None:
    def matrices(ffn: Any) -> int:
        block = Block(BlockConfig(24, 2, ffn=ffn), Softmax, causal=True, max_len=2)
        return sum(weight.numel() for weight in block.ffn.parameters() if weight.ndim == 2)

    assert matrices("relu") == matrices("gelu") == matrices("swiglu") == 2 * 24 * 96


def test_sinusoidal_is_the_papers_formula() -> None:
    table = sinusoidal(6, 5)
    for position in range(6):
        for column in range(5):
            angle = position / 10000 ** ((column - column % 2) / 6)
            expected = math.cos(angle) if column % 2 else math.sin(angle)
            assert float(table[position, column]) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("head_dim", [6, 7])
def test_rotary_scores_depend_on_distance_and_are_bottom_right(head_dim: int) -> None:
    rotary = Rotary(9, head_dim).double()
    q = _normal(1, 1, 1, head_dim).double().expand(1, 2, 9, head_dim)
    k = _normal(1, 1, 1, head_dim, seed=1).double().expand(1, 1, 9, head_dim)
    q_all, k_all = rotary(q, k)
    scores = (q_all @ k_all.transpose(2, 3))[0, 0]
    for offset in range(-8, 9):
        diagonal = scores.diagonal(offset)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-6, atol=1e-6)
    assert float(scores[0].std()) > 1e-3
    assert torch.equal(rotary(q[:, :, :2], k)[0], q_all[:, :, -2:])
    assert torch.equal(q_all.norm(dim=3) > 0, q.norm(dim=3) > 0)


@pytest.mark.parametrize(("causal", "reach"), [(True, {3, 4, 5, 6}), (False, {2, 3, 4, 5})])
def test_conv_reach(causal: bool, reach: set[int]) -> None:
    """Width 4: causal sees 3 before; centred sees 2 before and 1 after, so position 3 moves 2..5."""
    conv = ShortConv(4, 8, causal)
    x = _normal(1, 10, 8)
    moved = x.clone()
    moved[:, 3] += 1
    changed = (conv(x, None) != conv(moved, None)).any(-1)[0].nonzero().flatten().tolist()
    assert set(changed) == reach


@pytest.mark.parametrize("causal", [True, False])
def test_padding_never_enters_the_convolution(causal: bool) -> None:
    conv = ShortConv(3, 8, causal)
    x = _normal(2, 6, 8)
    mask = torch.tensor([[False, True, True, True, False, False], [True] * 6])
    dirty = x.masked_fill(~mask[:, :, None], float("nan"))
    clean = x.masked_fill(~mask[:, :, None], 0)
    assert torch.equal(conv(dirty, mask)[mask], conv(clean, None)[mask])


@pytest.mark.parametrize("positions", ["none", "learned", "sinusoidal", "rotary"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtypes(dtype: torch.dtype, positions: Any) -> None:
    config = BlockConfig(16, 2, conv=3, ffn="swiglu", positions=positions)
    model = LanguageModel(config, Softmax, vocab=9, layers=2, causal=True, max_len=11)
    exact = model(_tokens(9, 2, 11)).detach()
    low = model.to(dtype)(_tokens(9, 2, 11))
    assert low.dtype == dtype
    torch.testing.assert_close(low.detach().float(), exact, rtol=0, atol=0.05)


def test_fake_tensors_run_forward_and_backward() -> None:
    with FakeTensorMode():
        config = BlockConfig(64, 2, conv=3, positions="learned")
        model = LanguageModel(config, Softmax, vocab=9, layers=1, causal=True, max_len=100_000)
        logits = model(torch.zeros(1, 100_000, dtype=torch.int64))
        logits.sum().backward()
    assert tuple(logits.shape) == (1, 100_000, 9)


def test_needs_x_gets_what_the_projections_get() -> None:
    @variant(kind="different", paper="gate", needs_x=True)
    class Gated(nn.Module):
        def __init__(self, shape: Shape) -> None:
            super().__init__()

        def forward(self, q: Any, k: Any, v: Any, *, key_mask: Any = None, x: Any = None) -> torch.Tensor:
            self.seen = x
            return v

    block = Block(BlockConfig(8, 1, norm="post"), Gated, causal=True, max_len=4)
    x = _normal(1, 4, 8)
    block(x)
    assert torch.equal(block.mix.inner.attention.seen, x)


def test_encoder_decoder_is_causal_and_hides_padding() -> None:
    config = preset("original", d_model=16, heads=2)
    model = EncoderDecoder(config, Softmax, source_vocab=7, target_vocab=9, layers=2, max_len=12).eval()
    source, target = _tokens(7, 2, 5), _tokens(9, 2, 6)
    logits = model(source, target)
    assert tuple(logits.shape) == (2, 6, 9)
    later = target.clone()
    later[:, 4] = (later[:, 4] + 1) % 9
    assert torch.equal(model(source, later)[:, :4], logits[:, :4])
    other = source.clone()
    other[:, 2] = (other[:, 2] + 1) % 7
    assert not torch.allclose(model(other, target)[:, 0], logits[:, 0])
    padded = torch.cat((source, _tokens(7, 2, 5, seed=3)), dim=1)
    mask = torch.arange(10).expand(2, -1) < 5
    torch.testing.assert_close(model(padded, target, source_mask=mask), logits, rtol=0, atol=1e-4)


def test_original_is_the_transformer_of_2017() -> None:
    original = PRESETS["original"]
    assert (original.norm, original.ffn, original.positions) == ("post", "relu", "sinusoidal")
    assert (original.d_model, original.heads, original.ffn_ratio, original.dropout) == (512, 8, 4, 0.1)
    with pytest.raises(UserError, match="unknown block preset 'orignal'; did you mean 'original'"):
        preset("orignal")


def test_cross_attention_is_refused_and_memory_checked() -> None:
    @variant(kind="different", paper="none", cross=False)
    class Alone(Softmax):
        pass

    with pytest.raises(Unsupported, match="cross-attention"):
        Block(BlockConfig(8, 2), Alone, causal=True, max_len=4, cross=True)
    block = Block(BlockConfig(8, 2), Softmax, causal=True, max_len=4, cross=True)
    with pytest.raises(ValueError, match="give both or neither"):
        block(_normal(1, 3, 8))
    with pytest.raises(ValueError, match="length 5 exceeds max_len 4"):
        block(_normal(1, 3, 8), memory=_normal(1, 5, 8))
    with pytest.raises(TypeError, match=r"torch\.bool"):
        block(_normal(1, 3, 8), key_mask=torch.ones(1, 3), memory=_normal(1, 4, 8))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"d_model": 0}, "d_model must be at least 1, got 0"),
        ({"heads": 3}, "heads must divide d_model=8 unless head_dim is given, got 3"),
        ({"heads": 0}, "heads must divide d_model=8 unless head_dim is given, got 0"),
        ({"kv_heads": 3}, "kv_heads must divide heads=2, got 3"),
        ({"head_dim": 0}, "head_dim must be at least 1, got 0"),
        ({"ffn": "geglu"}, "ffn must be one of relu, gelu, swiglu, none, got 'geglu'"),
        ({"norm": "both"}, "norm must be one of pre, post, got 'both'"),
        ({"positions": "alibi"}, "positions must be one of none, sinusoidal, learned, rotary, got 'alibi'"),
        ({"ffn_ratio": 0}, "ffn_ratio must be above 0, got 0"),
        ({"conv": -1}, "conv must be at least 0, got -1"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
    ],
)
def test_config_errors_are_one_line(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        BlockConfig(**{"d_model": 8, "heads": 2, **wrong})


def test_too_long_a_sequence_is_an_error() -> None:
    model = LanguageModel(BlockConfig(8, 2), Softmax, vocab=5, layers=1, causal=True, max_len=4)
    with pytest.raises(ValueError, match="sequence length 5 exceeds max_len 4"):
        model(_tokens(5, 1, 5))
    with pytest.raises(ValueError, match="layers must be at least 1, got 0"):
        LanguageModel(BlockConfig(8, 2), Softmax, vocab=5, layers=0, causal=True, max_len=4)
