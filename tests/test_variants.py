"""The built-in variants against loops in plain Python numbers and against cases worked out by hand."""

from __future__ import annotations

import importlib
import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from bench import registry
from bench.measure.kernels import profile_call
from bench.measure.memory import peak_of
from bench.variant import Shape, Unsupported, admit, attention_flops

ENTRIES = {entry.name: entry for entry in registry.entries()}
NAMES = ("additive", "flash", "full", "linear", "local", "none", "sparse")
SOFTMAX = [
    ("full", {}),
    ("flash", {}),
    ("local", {"window": 3}),
    ("sparse", {"stride": 3}),
    ("sparse", {"mode": "fixed", "stride": 4, "summary": 2}),
]
FORMS = [*SOFTMAX, ("additive", {}), ("linear", {})]


def build(name: str, shape: Shape, **knobs) -> torch.nn.Module:
    return registry.load(ENTRIES[name].source())(shape, **knobs)


def draw(shape: Shape, query_len: int, key_len: int, batch: int = 2, dtype=torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    sizes = [
        (batch, shape.heads, query_len, shape.head_dim),
        (batch, shape.kv_heads, key_len, shape.head_dim),
        (batch, shape.kv_heads, key_len, shape.value_dim),
    ]
    return [torch.randn(size, generator=generator, dtype=dtype).requires_grad_() for size in sizes]


def visible(name: str, knobs: dict, causal: bool, position: int, key: int) -> bool:
    """The pattern of each variant, in words of its own."""
    if causal and key > position:
        return False
    distance = abs(position - key)
    if name == "local":
        return distance < knobs["window"]
    if name == "sparse" and knobs.get("mode") == "fixed":
        stride, summary = knobs["stride"], knobs["summary"]
        return position // stride == key // stride or key % stride in range(stride - summary, stride)
    if name == "sparse":
        return distance < knobs["stride"] or distance % knobs["stride"] == 0
    return True


def similarity(name: str, module, head: int, q: list[float], k: list[float]) -> float:
    """The weight of a key before it is normalised."""
    if name == "linear":
        phi = [[x + 1 if x > 0 else math.exp(x) for x in side] for side in (q, k)]
        return sum(a * b for a, b in zip(*phi, strict=True))
    if name == "additive":
        return math.exp(sum(u * math.tanh(a + b) for u, a, b in zip(module.u_HD[head].tolist(), q, k, strict=True)))
    return math.exp(sum(a * b for a, b in zip(q, k, strict=True)) * module.scale)


def loops(name: str, knobs: dict, module, causal: bool, qkv: list[torch.Tensor], mask: list[list[bool]] | None):
    """Loops over batch, head, query, key and width, in Python floats."""
    q, k, v = (x.tolist() for x in qkv)
    heads, kv_heads, width = len(q[0]), len(k[0]), qkv[2].shape[3]
    out = torch.zeros(len(q), heads, qkv[0].shape[2], width, dtype=torch.float64)
    for b in range(len(q)):
        for h in range(heads):
            g = h // (heads // kv_heads)
            for i in range(len(q[b][h])):
                position = len(k[b][g]) - len(q[b][h]) + i
                keys = [j for j in range(len(k[b][g])) if visible(name, knobs, causal, position, j)]
                weights = {
                    j: similarity(name, module, h, q[b][h][i], k[b][g][j]) for j in keys if mask is None or mask[b][j]
                }
                for e in range(width if weights else 0):
                    total = sum(weight * v[b][g][j][e] for j, weight in weights.items())
                    out[b, h, i, e] = total / sum(weights.values())
    return out


def error_against_loops(
    name: str, knobs: dict, causal: bool, query_len: int, key_len: int, mask=None, **sizes: int
) -> float:
    shape = Shape(**{"heads": 4, "head_dim": 3, **sizes}, causal=causal)
    module = build(name, shape, **knobs).double()
    qkv = draw(shape, query_len, key_len)
    with torch.no_grad():
        out = module(*qkv, key_mask=None if mask is None else torch.tensor(mask))
    wanted = loops(name, knobs, module, causal, [x.detach() for x in qkv], mask)
    assert out.shape == wanted.shape
    assert torch.isfinite(out).all()
    return float((out - wanted).abs().max()) if out.numel() else 0.0


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("name", "knobs"), FORMS)
def test_variants_equal_plain_loops(name: str, knobs: dict, causal: bool) -> None:
    """A01, A04, A13, A29, A38, A40: lengths, cross-attention, masks, grouped heads and widths in one net."""
    for query_len, key_len in ((1, 1), (5, 5), (13, 13), (2, 5), (1, 9), (9, 2), (0, 3), (3, 0)):
        assert error_against_loops(name, knobs, causal, query_len, key_len) < 1e-12
    mask = [[True, False, True, True, False], [False, False, False, True, False]]
    assert error_against_loops(name, knobs, causal, 5, 5, mask) < 1e-12
    assert error_against_loops(name, knobs, causal, 3, 5, mask, kv_heads=2, value_dim=2) < 1e-12


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("name", "knobs"), FORMS)
def test_gradients_equal_finite_differences(name: str, knobs: dict, causal: bool) -> None:
    shape = Shape(2, 3, 1, 2, causal=causal)
    module = build(name, shape, **knobs).double()
    mask = torch.tensor([[True, True, False, True, True, True, True]])
    inputs = draw(shape, 5, 7, batch=1)
    leaves = [*inputs, *module.parameters()]
    assert torch.autograd.gradcheck(lambda q, k, v, *_: module(q, k, v, key_mask=mask), leaves)


@pytest.mark.parametrize(("name", "knobs"), [*FORMS, ("none", {})])
def test_blocks_do_not_show(name: str, knobs: dict) -> None:
    """A21, A29, A31: around every block size, exact multiples included, the same as the slow form; finite gradients."""
    shape = Shape(1, 4, causal=True, max_len=2048)
    module = build(name, shape, **knobs).double()
    for n in (63, 64, 65, 127, 128, 129, 130, 137, 513):
        qkv = draw(shape, n, n, batch=1)
        out = module(*qkv)
        assert out.shape == (1, 1, n, 4)
        if hasattr(module, "reference"):
            wanted = module.reference(*qkv)
        else:
            scores = (qkv[0] @ qkv[1].mT * 0.5).masked_fill(~module.pattern(n, n), -torch.inf)
            wanted = scores.softmax(-1) @ qkv[2]
        torch.testing.assert_close(out, wanted, rtol=0, atol=1e-11)
        for ours, right in zip(grads(out, qkv), grads(wanted, qkv), strict=True):
            torch.testing.assert_close(ours, right, rtol=0, atol=1e-10)


def grads(out: torch.Tensor, qkv: list[torch.Tensor]) -> list[torch.Tensor]:
    found = torch.autograd.grad(out, qkv, torch.linspace(-1, 1, out.numel()).view_as(out).to(out), allow_unused=True)
    return [torch.zeros_like(x) if grad is None else grad for x, grad in zip(qkv, found, strict=True)]


def seen_keys(name: str, query_len: int, key_len: int, causal: bool = True, **knobs) -> list[list[int]]:
    """Which keys have weight, from one-hot values."""
    shape = Shape(1, 4, value_dim=key_len, causal=causal)
    q, k, _ = draw(shape, query_len, key_len, batch=1)
    weights = build(name, shape, **knobs).double()(q, k, torch.eye(key_len, dtype=torch.float64)[None, None])
    return [row.nonzero().flatten().tolist() for row in weights[0, 0]]


@pytest.mark.parametrize("name", ["full", "flash", "additive", "linear", "local"])
def test_a01_causal_shows_9_pairs_to_2_queries_of_5_keys(name: str) -> None:
    assert seen_keys(name, 2, 5) == [[0, 1, 2, 3], [0, 1, 2, 3, 4]]


def test_a23_a28_windows_through_the_weights() -> None:
    assert sum(map(len, seen_keys("local", 7, 7, window=3))) == 18
    assert seen_keys("local", 3, 8, window=2) == [[4, 5], [5, 6], [6, 7]]
    assert seen_keys("local", 4, 4, causal=False, window=2) == [[0, 1], [0, 1, 2], [1, 2, 3], [2, 3]]


def test_sparse_patterns_through_the_weights() -> None:
    assert seen_keys("sparse", 8, 8, stride=3)[7] == [1, 4, 5, 6, 7]
    fixed = seen_keys("sparse", 8, 8, mode="fixed", stride=3, summary=1)
    assert (fixed[5], fixed[7]) == ([2, 3, 4, 5], [2, 5, 6, 7])


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("name", "knobs"), SOFTMAX)
def test_pairs_and_flops_are_counted_by_brute_force(name: str, knobs: dict, causal: bool) -> None:
    module = build(name, Shape(3, 5, value_dim=2, causal=causal), **knobs)
    for n in range(17):
        for m in range(17):
            counted = sum(visible(name, knobs, causal, m - n + i, j) for i in range(n) for j in range(m))
            assert module.pairs(n, m) == counted, (n, m)
            assert attention_flops(module, module.shape, n, m) == 3 * counted * 2 * (5 + 2)


def test_flops_worked_by_hand() -> None:
    assert attention_flops(build("full", Shape(1, 4, causal=True)), Shape(1, 4, causal=True), 8, 8) == 576
    assert build("linear", Shape(4, 8, 2)).flops(10, 20) == 2 * 8 * 9 * (4 * 10 + 2 * 20)
    assert build("additive", Shape(2, 8)).flops(3, 5) == 2 * 15 * (3 * 8 + 2 * 8)
    assert build("none", Shape(2, 8)).flops(5, 5) == 0


def test_a17_causal_linear_worked_by_hand() -> None:
    q, k, v = (torch.tensor(x, dtype=torch.float64).view(1, 1, 3, 1) for x in ([0, 1, -1], [1, 0, 2], [1, 2, 3]))
    out = build("linear", Shape(1, 1, causal=True))(q, k, v)
    torch.testing.assert_close(out.flatten(), torch.tensor([1, 4 / 3, 13 / 6], dtype=torch.float64))


def test_a16_padded_keys_of_linear_count_for_nothing() -> None:
    shape = Shape(2, 4)
    module, (q, k, v) = build("linear", shape), draw(shape, 5, 5, batch=1)
    mask = torch.tensor([[True, True, True, False, False]])
    torch.testing.assert_close(module(q, k, v, key_mask=mask), module(q, k[:, :, :3], v[:, :, :3]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
def test_a19_linear_is_finite_at_any_size(size: float, dtype: torch.dtype) -> None:
    for causal in (True, False):
        shape = Shape(2, 16, causal=causal)
        qkv = [x.detach().to(dtype).requires_grad_() for x in draw(shape, 70, 70)]
        scaled = [x * size for x in qkv[:2]]
        out = build("linear", shape)(*scaled, qkv[2], key_mask=torch.tensor([[True] * 70, [False] * 70]))
        assert torch.isfinite(out).all()
        assert not out[1].any()
        assert all(torch.isfinite(grad).all() for grad in grads(out, qkv))


def test_linear_features_do_not_cancel() -> None:
    features = importlib.import_module("variants.linear").features
    x = torch.tensor([-8.0, -6.0, 0.0, 2.0], dtype=torch.bfloat16)
    wanted = torch.tensor([math.exp(-8), math.exp(-6), 1.0, 3.0])
    torch.testing.assert_close(features(x), wanted, rtol=1e-6, atol=0)


def test_linear_steps_equal_the_whole() -> None:
    shape = Shape(4, 6, 2, 5, causal=True)
    module, (q, k, v) = build("linear", shape), draw(shape, 9, 9)
    state = module.prefill(k[:, :, :4], v[:, :, :4])
    assert state[0].numel() == module.state_size(4) == module.state_size(10**6)
    outs = []
    for i in range(4, 9):
        out, state = module.step(state, q[:, :, i : i + 1], k[:, :, i : i + 1], v[:, :, i : i + 1])
        outs.append(out)
    torch.testing.assert_close(torch.cat(outs, 2), module(q, k, v)[:, :, 4:])


@pytest.mark.parametrize("name", NAMES)
def test_a14_a_mask_of_another_dtype_is_a_type_error(name: str) -> None:
    shape = Shape(2, 4)
    qkv = draw(shape, 5, 5)
    for dtype in (torch.float32, torch.int64, torch.uint8):
        with pytest.raises(TypeError, match=str(dtype)):
            build(name, shape)(*qkv, key_mask=torch.ones(2, 5, dtype=dtype))
    with pytest.raises(ValueError, match=r"shape \(2, 5\), got \(5, 2\)"):
        build(name, shape)(*qkv, key_mask=torch.ones(5, 2, dtype=torch.bool))


@pytest.mark.parametrize(
    ("name", "knobs", "message"),
    [
        ("local", {"window": 0}, "window must be at least 1, got 0"),
        ("sparse", {"stride": 0}, "stride must be at least 1, got 0"),
        ("sparse", {"mode": "fixed", "stride": 4, "summary": 5}, "summary must be from 1 to stride=4, got 5"),
    ],
)
def test_a22_a_knob_out_of_range_is_named(name: str, knobs: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(name, Shape(1, 4), **knobs)


@pytest.mark.parametrize(("name", "knobs"), SOFTMAX)
def test_a37_a_scale_of_zero_averages(name: str, knobs: dict) -> None:
    shape = Shape(1, 4, causal=True)
    q, k, v = draw(shape, 5, 5, batch=1)
    module = build(name, shape, scale=0.0, **knobs).double()
    pattern = module.pattern(5, 5).double()
    torch.testing.assert_close(module(q, k, v), pattern @ v / pattern.sum(-1, keepdim=True))
    assert build(name, shape, **knobs).scale == 0.5


@pytest.mark.parametrize("name", NAMES)
def test_a43_a44_weights_sum_to_one_over_the_real_keys(name: str) -> None:
    shape = Shape(3, 4, value_dim=5)
    q, k, _ = draw(shape, 5, 5)
    eye = torch.eye(5, dtype=torch.float64).expand(2, 3, 5, 5)
    mask = torch.tensor([[True, True, True, False, False]] * 2)
    weights = build(name, shape).double()(q, k, eye, key_mask=mask)
    assert not weights[..., 3:].any()
    torch.testing.assert_close(weights.sum(-1)[..., :3], torch.ones(2, 3, 3, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("name", "knobs"), SOFTMAX)
def test_a46_no_overflow_before_the_scale(name: str, knobs: dict, dtype: torch.dtype) -> None:
    shape = Shape(2, 64)
    v = draw(shape, 7, 7)[2]
    entry = 40.0 if dtype == torch.float16 else 1e5
    q = torch.full((2, 2, 7, 64), entry, dtype=dtype)
    module = build(name, shape, **knobs)
    out = module(q, q.clone(), v.to(dtype)).double()
    pattern = module.pattern(7, 7).double()
    torch.testing.assert_close(out, pattern @ v / pattern.sum(-1, keepdim=True), rtol=0, atol=0.03)


@pytest.mark.parametrize("name", NAMES)
def test_a50_a_batch_with_an_empty_example(name: str) -> None:
    shape = Shape(2, 4)
    qkv = draw(shape, 5, 5, batch=3)
    out = build(name, shape).double()(*qkv, key_mask=torch.arange(5) < torch.tensor([5, 0, 3])[:, None])
    assert not out[1].any()
    assert all(torch.isfinite(grad).all() and not grad[1].any() for grad in grads(out, qkv))


@pytest.mark.parametrize("name", NAMES)
def test_plans_run_on_fake_tensors(name: str) -> None:
    """No value is read: forward, backward and masks on tensors without data."""
    shape = Shape(4, 8, 2, 6, causal=True, max_len=300)
    with FakeTensorMode(allow_non_fake_inputs=True):
        qkv = [x.detach().requires_grad_() for x in (torch.empty(2, h, 300, d) for h, d in ((4, 8), (2, 8), (2, 6)))]
        out = build(name, shape)(*qkv, key_mask=torch.ones(2, 300, dtype=torch.bool))
        assert out.shape == (2, 4, 300, 6)
        torch.autograd.grad(out, qkv, torch.empty_like(out), allow_unused=True)


def operators(module: torch.nn.Module, qkv: list[torch.Tensor], **options) -> list[str]:
    return profile_call(lambda: module(*qkv, **options), "cpu").operators


@pytest.mark.parametrize("causal", [True, False])
def test_flash_always_runs_the_kernel_it_is_named_for(causal: bool) -> None:
    shape = Shape(4, 8, 2, 6, causal=causal)
    module = build("flash", shape)
    for query_len, key_len, mask in (
        (5, 5, None),
        (3, 7, None),
        (7, 3, None),
        (5, 5, torch.ones(2, 5, dtype=torch.bool)),
    ):
        ran = operators(module, draw(shape, query_len, key_len), key_mask=mask)
        assert any(module.runs[0] in name for name in ran)
        assert not any("attention_math" in name or "softmax" in name for name in ran)


def test_flash_refuses_kernels_that_this_device_lacks() -> None:
    shape = Shape(2, 8)
    for backend in ("cudnn", "efficient"):
        with pytest.raises(Unsupported, match=f"backend '{backend}' needs a CUDA device, got cpu"):
            admit(build("flash", shape, backend=backend), shape, dtype="float32", device="cpu", query_len=5, key_len=5)


def test_flash_tells_why_xformers_cannot_run_here() -> None:
    pytest.importorskip("xformers", exc_type=ImportError)
    shape = Shape(2, 8)
    module = build("flash", shape, backend="xformers")
    with pytest.raises(Unsupported, match=r"No operator found .*device=cpu \(supported: \{'cuda'\}\)") as caught:
        admit(module, shape, dtype="float32", device="cpu", query_len=5, key_len=5)
    assert "\n" not in str(caught.value)


def peak(module: torch.nn.Module, shape: Shape, n: int, train: bool) -> int:
    qkv = [x.detach().float().requires_grad_(train) for x in draw(shape, n, n, batch=1)]
    gradient = torch.ones(1, shape.heads, n, shape.head_dim)

    def call():
        if not train:
            return module(*qkv)
        edge = torch.autograd.graph.get_gradient_edge(module(*qkv))
        return torch.autograd.grad([edge], qkv, [gradient])

    return peak_of(profile_call(call, "cpu").deltas)


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize(
    ("name", "knobs", "growth"),
    [
        ("flash", {}, 2.1),
        ("local", {"window": 64}, 2.1),
        ("linear", {}, 2.1),
        ("additive", {}, 2.1),
        ("sparse", {}, 2.9),
    ],
)
def test_memory_grows_as_claimed(name: str, knobs: dict, growth: float, train: bool) -> None:
    shape = Shape(1, 16, causal=True, max_len=4096)
    module = build(name, shape, **knobs)
    short, long = (peak(module, shape, n, train) for n in (1024, 2048))
    assert long < growth * short


@pytest.mark.slow
def test_additive_at_2048_stays_under_256_and_512_mib() -> None:
    shape = Shape(8, 64, max_len=2048)
    module = build("additive", shape)
    assert peak(module, shape, 2048, train=False) < 256 * 2**20
    assert peak(module, shape, 2048, train=True) < 512 * 2**20


@pytest.mark.parametrize("name", NAMES)
def test_shipped_variants_are_readable_without_import(name: str) -> None:
    entry = ENTRIES[name]
    assert entry.broken is None
    assert entry.claims == registry.load(entry.source()).claims
    assert entry.summary.endswith(".")


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("level", [-40.0, -100.0, 100.0])
def test_a19_linear_stays_finite_when_its_normaliser_is_near_zero_or_huge(causal: bool, level: float) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, 9, 4, generator=generator) for _ in range(3))
    q, k = ((x + level).requires_grad_() for x in (q, k))
    out = registry.load(registry.find("linear", registry.entries()).source())(Shape(1, 4, causal=causal))(q, k, v)
    grads = torch.autograd.grad(out.sum(), [q, k])
    assert all(torch.isfinite(x).all() for x in (out, *grads))
