"""Windows, block layouts and chosen blocks against loops in words, and the hazards of choosing by content."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from bench import registry
from bench.conformance import parametrize_with_checks
from bench.measure.kernels import profile_call
from bench.measure.memory import peak_of
from bench.variant import Shape, attention_flops
from variants import _lists
from variants._layout import distinct

ENTRIES = {entry.name: entry for entry in registry.entries()}
NAMES = ("local", "dilated", "longformer", "bigbird", "block_sparse", "reformer", "moba", "nsa")
CLASSES = {name: registry.load(ENTRIES[name].source()) for name in NAMES}
WORDS = [
    ("local", {"window": 3}),
    ("local", {"window": 40}),
    ("dilated", {"window": 3, "dilation": 2}),
    ("dilated", {"window": 2, "dilation": 5}),
    ("longformer", {"window": 3, "global_tokens": 2}),
    ("longformer", {"window": 1, "global_tokens": 0}),
    ("bigbird", {"block": 3, "random_blocks": 0}),
    ("bigbird", {"block": 2, "window_blocks": 4, "global_blocks": 3, "random_blocks": 0}),
    ("block_sparse", {"block": 3, "blocks": 4, "layout": "window"}),
    ("block_sparse", {"block": 2, "blocks": 3, "layout": "window+global"}),
]
DRAWN = [
    ("bigbird", {"block": 2, "global_blocks": 1, "random_blocks": 2}),
    ("block_sparse", {"block": 2, "blocks": 3, "layout": "random"}),
]
LENGTHS = [(1, 1), (9, 9), (20, 20), (1, 13), (4, 11), (11, 4), (17, 23)]


def build(name: str, shape: Shape, **knobs) -> torch.nn.Module:
    return CLASSES[name](shape, **knobs)


def draw(shape: Shape, query_len: int, key_len: int, batch: int = 2, seed: int = 3) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sizes = [
        (batch, shape.heads, query_len, shape.head_dim),
        (batch, shape.kv_heads, key_len, shape.head_dim),
        (batch, shape.kv_heads, key_len, shape.value_dim),
    ]
    return [torch.randn(size, generator=generator, dtype=torch.float64).requires_grad_() for size in sizes]


def gaps(length: int, batch: int = 2) -> torch.Tensor:
    """A mask with holes, different in each example."""
    return torch.rand(batch, length, generator=torch.Generator().manual_seed(length)) < 0.7


def visible(name: str, knobs: dict, causal: bool, p: int, j: int) -> bool:
    """The pattern of each variant in words, for the query at position p and key j."""
    if causal and j > p:
        return False
    if name == "local":
        return abs(p - j) < knobs["window"]
    if name == "dilated":
        return (p - j) % knobs["dilation"] == 0 and abs(p - j) // knobs["dilation"] < knobs["window"]
    if name == "longformer":
        return abs(p - j) < knobs["window"] or j < knobs["global_tokens"] or 0 <= p < knobs["global_tokens"]
    row, column = p // knobs["block"], j // knobs["block"]
    if name == "bigbird":
        count, around = knobs.get("global_blocks", 2), knobs.get("window_blocks", 3)
        marked = set(range(count))
        back = around // 2
        return column in marked or (row in marked and not causal) or row - back <= column < row - back + around
    marked = {0} if knobs["layout"] == "window+global" else set()
    around = knobs["blocks"] - len(marked)
    ahead = 0 if causal else (around - 1) // 2
    return column in marked or (row in marked and not causal) or row + ahead - around < column <= row + ahead


def dense(module: torch.nn.Module, qkv: list[torch.Tensor], allowed: torch.Tensor, mask: torch.Tensor | None):
    """Softmax attention over all pairs."""
    q, k, v = qkv
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    if mask is not None:
        allowed = allowed & mask[:, None, None]
    seen = allowed.any(-1, keepdim=True)
    weights = (q @ k.mT * module.scale).masked_fill(seen & ~allowed, -torch.inf).softmax(-1)
    return (weights @ v) * seen


def grads(out: torch.Tensor, qkv: list[torch.Tensor]) -> list[torch.Tensor]:
    given = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    found = torch.autograd.grad(out, qkv, given, allow_unused=True)
    return [torch.zeros_like(x) if grad is None else grad for x, grad in zip(qkv, found, strict=True)]


def same(out: torch.Tensor, wanted: torch.Tensor, qkv: list[torch.Tensor]) -> None:
    torch.testing.assert_close(out, wanted, rtol=0, atol=1e-12)
    for ours, right in zip(grads(out, qkv), grads(wanted, qkv), strict=True):
        torch.testing.assert_close(ours, right, rtol=0, atol=1e-11)


def conforming(name: str, **knobs):
    return parametrize_with_checks([CLASSES[name]], knobs=knobs)


# The kit with knobs so small that its short sequences have many blocks.


@conforming("local", window=3)
def test_local_conforms(check) -> None:
    check()


@conforming("dilated", window=3, dilation=2)
def test_dilated_conforms(check) -> None:
    check()


@conforming("longformer", window=3, global_tokens=2)
def test_longformer_conforms(check) -> None:
    check()


@conforming("bigbird", block=8, random_blocks=1)
def test_bigbird_conforms(check) -> None:
    check()


@conforming("block_sparse", block=8, blocks=3, layout="random")
def test_block_sparse_conforms(check) -> None:
    check()


@conforming("reformer", buckets=4, chunk=3)
def test_reformer_conforms(check) -> None:
    """Batch mates, padding and later positions change no bit, though the keys are sorted by content."""
    check()


@conforming("moba", block=4, topk=3)
def test_moba_conforms(check) -> None:
    check()


@conforming("nsa", block=4, selected=4, window=5)
def test_nsa_conforms(check) -> None:
    check()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("name", "knobs"), WORDS)
def test_b29_patterns_and_pairs_are_what_the_words_say(name: str, knobs: dict, causal: bool) -> None:
    module = build(name, Shape(1, 4, causal=causal), **knobs)
    for n in range(17):
        for m in range(17):
            wanted = [[visible(name, knobs, causal, m - n + i, j) for j in range(m)] for i in range(n)]
            assert module.pattern(n, m).tolist() == wanted, (n, m)
            assert module.pairs(n, m) == sum(map(sum, wanted)), (n, m)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("name", "knobs"), [*WORDS, *DRAWN])
def test_a28_a29_a40_values_and_gradients_under_the_pattern(name: str, knobs: dict, causal: bool) -> None:
    shape = Shape(4, 3, 2, 5, causal=causal)
    module = build(name, shape, **knobs)
    for n, m in LENGTHS:
        for mask in (None, gaps(m)):
            qkv = draw(shape, n, m)
            same(module(*qkv, key_mask=mask), dense(module, qkv, module.pattern(n, m), mask), qkv)


@pytest.mark.parametrize(("name", "knobs"), [("local", {"window": 40}), ("bigbird", {"block": 16}), ("moba", {})])
def test_a29_tiles_do_not_show(name: str, knobs: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Shape(2, 4, causal=True)
    qkv, mask = draw(shape, 150, 150), gaps(150)
    whole = build(name, shape, **knobs)(*qkv, key_mask=mask)
    monkeypatch.setattr(_lists, "TILE", {"cpu": 1})
    same(build(name, shape, **knobs)(*qkv, key_mask=mask), whole, qkv)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("name", "knobs"), [WORDS[0], WORDS[4], *DRAWN])
def test_the_form_for_accelerators_equals_that_by_tiles(
    name: str, knobs: dict, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = Shape(4, 3, 2, 5, causal=causal)
    module = build(name, shape, **knobs)
    for n, m in LENGTHS:
        qkv, mask = draw(shape, n, m), gaps(m)
        wanted = module(*qkv, key_mask=mask)
        with monkeypatch.context() as patch:
            patch.setattr(_lists, "tiled", lambda *given: (_lists.fused(*given), None))
            same(module(*qkv, key_mask=mask), wanted, qkv)


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operator makes."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        made = out if isinstance(out, (tuple, list)) else [out]
        self.elements = max([self.elements, *(x.numel() for x in made if isinstance(x, torch.Tensor))])
        return out


def lines_run(call: Callable[[], object]) -> int:
    """Lines of Python that a call runs."""
    count, before = 0, sys.gettrace()

    def trace(frame, event, argument):
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", ["sparse", "local", "dilated", "longformer", "bigbird", "block_sparse", "moba", "nsa"])
def test_b29_flops_at_131072_take_no_loop_and_no_array_over_positions(name: str, causal: bool) -> None:
    n = 131072
    cls = registry.load(ENTRIES[name].source())
    if not (causal or cls.claims.bidirectional):
        pytest.skip("causal only")
    shape = Shape(8, 64, max_len=n, causal=causal)
    module = cls(shape)
    assert lines_run(lambda: attention_flops(module, shape, n, n)) < 2000
    tracemalloc.start()
    flops = attention_flops(module, shape, n, n)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    with Largest() as largest:
        attention_flops(module, shape, n, n)
    with FakeTensorMode(allow_non_fake_inputs=True):  # as in a plan: no tensor has values
        assert attention_flops(cls(shape), shape, n, n) == flops
    assert 0 < flops < 8 * n * n * 4 * 64
    assert peak < 2**20
    assert largest.elements * 8 < 2**18


def row_lists(seed: int, length: int, causal: bool, **knobs) -> list[set[int]]:
    module = build("bigbird", Shape(1, 4, causal=causal, max_len=40), block=1, seed=seed, **knobs)
    return [set(row.nonzero().flatten().tolist()) for row in module.pattern(length, length)]


@pytest.mark.parametrize("causal", [True, False])
def test_random_blocks_are_as_many_as_asked_and_apart_from_window_and_global_ones(causal: bool) -> None:
    around = row_lists(0, 40, causal, random_blocks=0)
    for row, (base, all_seen) in enumerate(zip(around, row_lists(0, 40, causal, random_blocks=4), strict=True)):
        left = row + 1 - len(base) if causal else 40 - len(base)
        assert base <= all_seen
        assert len(all_seen - base) == min(4, left), row


def test_random_blocks_are_seeded_and_not_all_the_same() -> None:
    first, again, other = (row_lists(seed, 40, False) for seed in (0, 0, 1))
    assert first == again != other
    drawn = [seen - base for seen, base in zip(first, row_lists(0, 40, False, random_blocks=0), strict=True)]
    assert len(set().union(*drawn)) > 30  # of 40: no block is preferred, none out of reach


@pytest.mark.parametrize("causal", [True, False])
def test_a_row_does_not_depend_on_how_long_the_sequence_gets(causal: bool) -> None:
    short, long = (row_lists(0, length, causal) for length in (17, 40))
    assert [seen & set(range(17)) for seen in long[:17]] == short
    decoded = build("bigbird", Shape(1, 4, causal=True, max_len=40), block=1).pattern(1, 17)[0]
    assert set(decoded.nonzero().flatten().tolist()) == row_lists(0, 40, True)[16]


def test_distinct_numbers_are_evenly_drawn_without_repetition() -> None:
    draws = np.random.default_rng(0).integers(2**31, size=(6000, 3))
    drawn = distinct(draws, np.full((6000, 1), 4))
    assert all(len(set(row)) == 3 and set(row) <= {0, 1, 2, 3} for row in drawn.tolist())
    # Each of the 4 sets of 3 has a chance of a quarter: 1500 of 6000, standard deviation 34.
    missing = np.bincount(6 - drawn.sum(1), minlength=4)
    assert all(abs(count - 1500) < 5 * 34 for count in missing.tolist())
    assert (distinct(draws[:5], np.arange(5)[:, None]) < 4).sum(1).tolist() == [0, 1, 2, 3, 3]


@pytest.mark.parametrize(
    ("name", "knobs", "message"),
    [
        ("dilated", {"window": 0}, "window must be at least 1, got 0"),
        ("dilated", {"dilation": 0}, "dilation must be at least 1, got 0"),
        ("longformer", {"global_tokens": -1}, "global_tokens must be at least 0, got -1"),
        ("bigbird", {"block": 0}, "block must be at least 1, got 0"),
        ("bigbird", {"random_blocks": -1}, "random_blocks must be at least 0, got -1"),
        ("block_sparse", {"blocks": 0}, r"blocks must be at least 2 with layout 'window\+global', got 0"),
        ("block_sparse", {"layout": "window", "blocks": 0}, "blocks must be at least 1 with layout 'window', got 0"),
        ("reformer", {"chunk": 0}, "chunk must be at least 1, got 0"),
        ("moba", {"topk": 0}, "topk must be at least 1, got 0"),
        ("nsa", {"selected": 0}, "selected must be at least 1, got 0"),
    ],
)
def test_a22_a_knob_out_of_range_is_named(name: str, knobs: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(name, Shape(1, 4, causal=True), **knobs)


def test_wide_windows_and_many_blocks_are_full_attention() -> None:
    shape = Shape(2, 4, causal=True)
    qkv = draw(shape, 20, 20)
    full = dense(build("local", shape), qkv, torch.ones(20, 20).tril().bool(), None)
    for name, knobs in (
        ("local", {"window": 20}),
        ("dilated", {"window": 20, "dilation": 1}),
        ("block_sparse", {"block": 4, "blocks": 5, "layout": "random"}),
        ("moba", {"block": 4, "topk": 5}),
        ("reformer", {"hashes": 3, "buckets": 1, "chunk": 20}),
    ):
        torch.testing.assert_close(build(name, shape, **knobs).double()(*qkv), full, rtol=0, atol=1e-12)


def keys_by_hash(module, q: torch.Tensor, k: torch.Tensor, real: list[int], p: int, causal: bool) -> list[int]:
    """Which keys a query of Reformer sees, with repetition, from the description in words."""

    def bucket(x: torch.Tensor, rotation: torch.Tensor) -> int:
        turned = (x.detach() @ rotation).tolist()
        sides = (turned + [-entry for entry in turned])[: module.buckets]
        return sides.index(max(sides))

    found = []
    for rotation in module.rotations:
        mates = [j for j in real if bucket(k[j], rotation) == bucket(q, rotation)]
        chunk = max(sum(j <= p for j in mates) - 1, 0) // module.chunk
        near = mates[max(chunk - 1, 0) * module.chunk : (chunk + 1) * module.chunk]
        found += [j for j in near if j != p and (j < p or not causal)] + [p] * (p in real)
    return found


@pytest.mark.parametrize("causal", [True, False])
def test_reformer_equals_loops(causal: bool) -> None:
    shape = Shape(4, 3, 2, 5, causal=causal)
    for seed, (n, m) in enumerate(LENGTHS):
        module = build("reformer", shape, buckets=seed % 4 + 1, chunk=seed % 3 + 1, seed=seed).double()
        qkv, mask = draw(shape, n, m), gaps(m)
        q, k, v = qkv
        rows = []
        for b, h, i in ((b, h, i) for b in range(2) for h in range(4) for i in range(n)):
            real = mask[b].nonzero().flatten().tolist()
            keys = keys_by_hash(module, q[b, h, i], k[b, h // 2], real, m - n + i, causal)
            weights = (k[b, h // 2, keys] @ q[b, h, i] * module.scale).softmax(0)
            rows.append(weights @ v[b, h // 2, keys] if keys else q[b, h, i].sum() * 0 + v.new_zeros(5))
        same(module(*qkv, key_mask=mask), torch.stack(rows).view(2, 4, n, 5), qkv)


def weights_of(name: str, shape: Shape, q: torch.Tensor, k: torch.Tensor, **knobs) -> torch.Tensor:
    """(Nq, Nk), from one-hot values."""
    eye = torch.eye(k.shape[2], dtype=torch.float64)[None, None]
    with torch.no_grad():
        weights: torch.Tensor = build(name, shape, **knobs).double()(q, k, eye)[0, 0]
    return weights


@pytest.mark.parametrize("causal", [True, False])
def test_reformer_sees_itself_and_its_neighbours_when_all_keys_collide(causal: bool) -> None:
    shape = Shape(1, 4, value_dim=50, causal=causal)
    q, _, _ = draw(shape, 50, 50, batch=1)
    k = torch.ones(1, 1, 50, 4, dtype=torch.float64)
    for keys in (k, -q):  # all keys in one bucket; every query far from the bucket of its key
        weights = weights_of("reformer", shape, q, keys, chunk=5, buckets=2, hashes=1)
        assert (weights.diagonal() > 0).all()
        assert ((weights > 0).sum(1) <= 11).all()
    weights = weights_of("reformer", shape, q.abs(), k, chunk=5, buckets=1, hashes=1)
    assert (weights[42] > 0).nonzero().flatten().tolist() == list(range(35, 43 if causal else 45))


def test_moba_reads_the_blocks_whose_mean_it_likes_best() -> None:
    shape = Shape(1, 2, value_dim=8, causal=True)
    k = torch.tensor([[3.0, 0], [3, 0], [0, 1], [0, 1], [2, 0], [2, 0], [9, 9], [9, 9]], dtype=torch.float64)
    q = torch.tensor([1.0, 0], dtype=torch.float64).expand(1, 1, 8, 2)
    weights = weights_of("moba", shape, q, k[None, None], block=2, topk=2)
    seen = [row.nonzero().flatten().tolist() for row in weights]
    assert seen == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 4], [0, 1, 4, 5], [0, 1, 6], [0, 1, 6, 7]]


@pytest.mark.parametrize(("name", "knobs"), [("moba", {"block": 4, "topk": 2}), ("nsa", {"block": 4, "selected": 4})])
def test_a01_chosen_blocks_and_their_gradients_equal_the_slow_form(name: str, knobs: dict) -> None:
    shape = Shape(4, 3, 2, 5, causal=True, model_dim=6)
    module = build(name, shape, **knobs).double()
    for n in (1, 4, 15, 37):
        extra = (
            {"x": torch.randn(2, n, 6, generator=torch.Generator().manual_seed(n)).double()} if name == "nsa" else {}
        )
        qkv = draw(shape, n, n)
        for mask in (None, gaps(n)):
            same(module(*qkv, key_mask=mask, **extra), module.reference(*qkv, key_mask=mask, **extra), qkv)


def test_nsa_always_reads_its_own_block_the_one_before_and_the_first() -> None:
    module = build("nsa", Shape(1, 4, causal=True), block=4, selected=3)
    weight = torch.zeros(1, 1, 24, 6)
    weight[..., 2:4] = 0.5
    chosen = module._choose(weight, torch.ones(1, 6, dtype=torch.bool))
    assert chosen[0, 0, 21].tolist() == [5, 4, 0]
    assert chosen[0, 0, 5].tolist() == [1, 0, -1]


def test_nsa_gates_mix_the_three_branches() -> None:
    shape = Shape(1, 4, causal=True)
    qkv = draw(shape, 30, 30)
    module = build("nsa", shape, block=4, selected=2, window=3).double()
    with torch.no_grad():
        module.gates_3HC.zero_()[2] = 1
    outs = [module(*qkv, x=torch.full((2, 30, 4), size, dtype=torch.float64)) for size in (-1e3, 1e3)]
    local = build("local", shape, window=3)(*qkv)
    torch.testing.assert_close(outs[1] - outs[0], local, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_plans_run_on_fake_tensors(name: str) -> None:
    """No value is read: forward, backward and masks on tensors without data."""
    shape = Shape(4, 8, 2, 6, causal=True, max_len=300)
    with FakeTensorMode(allow_non_fake_inputs=True):
        qkv = [torch.empty(2, h, 300, d).requires_grad_() for h, d in ((4, 8), (2, 8), (2, 6))]
        extra = {"x": torch.empty(2, 300, 32)} if name == "nsa" else {}
        out = build(name, shape)(*qkv, key_mask=torch.ones(2, 300, dtype=torch.bool), **extra)
        assert out.shape == (2, 4, 300, 6)
        torch.autograd.grad(out, qkv, torch.empty_like(out))


def peak(module: torch.nn.Module, shape: Shape, n: int) -> int:
    qkv = [x.detach().float().requires_grad_() for x in draw(shape, n, n, batch=1)]
    extra = {"x": torch.ones(1, n, shape.model_dim)} if module.claims.needs_x else {}
    return peak_of(profile_call(lambda: torch.autograd.grad(module(*qkv, **extra).sum(), qkv), "cpu").deltas)


@pytest.mark.parametrize("name", NAMES)
def test_memory_of_training_grows_as_claimed(name: str) -> None:
    shape = Shape(1, 16, causal=True, max_len=4096)
    knobs = {"selected": 2, "window": 64} if name == "nsa" else {}
    short, long = (peak(build(name, shape, **knobs), shape, n) for n in (2048, 4096))
    assert long < 2.1 * short


@pytest.mark.parametrize("name", NAMES)
def test_variants_are_readable_without_import(name: str) -> None:
    assert ENTRIES[name].broken is None
    assert ENTRIES[name].claims == CLASSES[name].claims
    assert ENTRIES[name].summary.endswith(".")
