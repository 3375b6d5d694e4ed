"""Relatives of softmax attention against loops in plain Python numbers and against cases worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from bench import registry
from bench.conformance import gate, run_checks
from bench.measure.kernels import profile_call
from bench.measure.memory import peak_of
from bench.variant import Shape, Unsupported, admit, attention_flops

ENTRIES = {entry.name: entry for entry in registry.entries()}
NEW = ("differential", "entmax15", "luong", "mean", "sigmoid", "sinks", "softcap", "topk")
FORMS = [
    *((name, {}) for name in NEW),
    ("luong", {"score": "general"}),
    ("sinks", {"sinks": 2, "window": 3}),
    ("topk", {"k": 2}),
    ("softcap", {"cap": 1.5}),
    ("differential", {"lambda_init": 0.5}),
    ("full", {"bias": "alibi"}),
    ("full", {"bias": "t5"}),
    ("flash", {"bias": "alibi"}),
]
LINEAR_MEMORY = [("flash", {}), *((name, {}) for name in NEW if name != "sinks"), ("sinks", {"window": 64})]


def build(name: str, shape: Shape, **knobs) -> torch.nn.Module:
    return registry.load(ENTRIES[name].source())(shape, **knobs)


def draw(shape: Shape, query_len: int, key_len: int, batch: int = 2) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    sizes = [
        (batch, shape.heads, query_len, shape.head_dim),
        (batch, shape.kv_heads, key_len, shape.head_dim),
        (batch, shape.kv_heads, key_len, shape.value_dim),
    ]
    return [torch.randn(size, generator=generator, dtype=torch.float64).requires_grad_() for size in sizes]


# The oracle: weights of one query as a function of its scores, in plain floats.


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def softmax(scores: list[float]) -> list[float]:
    top = max(scores, default=0.0)
    weights = [math.exp(score - top) for score in scores]
    return [weight / sum(weights) for weight in weights]


def entmax(scores: list[float]) -> list[float]:
    """By halving the interval that holds the threshold."""
    low, high = max(scores) / 2 - 1, max(scores) / 2
    for _ in range(200):
        tau = (low + high) / 2
        mass = sum(max(score / 2 - tau, 0) ** 2 for score in scores)
        low, high = (tau, high) if mass > 1 else (low, tau)
    return [max(score / 2 - low, 0) ** 2 for score in scores]


def t5_bucket(past: int, causal: bool) -> int:
    """The published rule for one distance p - j."""
    count, offset = (32, 0) if causal else (16, 16 if past < 0 else 0)
    distance = max(past, 0) if causal else abs(past)
    near = count // 2
    if distance < near:
        return offset + distance
    far = math.log(distance / near) / math.log(128 / near) * (count - near)
    return offset + min(near + int(far + 1e-9), count - 1)


def bias(module, knobs: dict, head: int, past: int, causal: bool) -> float:
    if knobs.get("bias") == "alibi":
        return -(2 ** (-8 * (head + 1) / module.shape.heads)) * abs(past)
    if knobs.get("bias") == "t5":
        return module.position_bias.table_HK[head, t5_bucket(past, causal)].item()
    return 0.0


def weights_of(name: str, module, q: list[float], keys: list[list[float]], head: int) -> list[float]:
    width = len(q)
    scores = [dot(q, key) / math.sqrt(width) for key in keys]
    match name:
        case "luong":
            if module.w_HDE is not None:
                q = [dot(q, column) for column in module.w_HDE[head].T.tolist()]
            return softmax([dot(q, key) for key in keys])
        case "sigmoid":
            return [1 / (1 + math.exp(-(score - math.log(len(keys))))) for score in scores]
        case "entmax15":
            return entmax(scores)
        case "softcap":
            return softmax([module.cap * math.tanh(score / module.cap) for score in scores])
        case "topk":
            least = sorted(scores)[-module.kept] if len(scores) > module.kept else -math.inf
            return softmax([score if score >= least else -math.inf for score in scores])
        case "mean":
            return [1 / len(keys)] * len(keys)
        case "differential":
            half = width // 2
            maps = [
                softmax([dot(q[part], key[part]) / math.sqrt(half) for key in keys])
                for part in (slice(half), slice(half, width))
            ]
            (a1, b1), (a2, b2) = module.ab_22D.tolist()
            factor = math.exp(dot(a1, b1)) - math.exp(dot(a2, b2)) + module.lambda_init
            return [one - factor * other for one, other in zip(*maps, strict=True)]
    raise AssertionError(name)


def visible(module, name: str, causal: bool, position: int, key: int) -> bool:
    if causal and key > position:
        return False
    return name != "sinks" or key < module.sinks or abs(position - key) < module.window


def finish(name: str, module, row: list[float]) -> list[float]:
    if name != "differential":
        return row
    norm = math.sqrt(dot(row, row) / len(row) + 1e-5)
    gains = module.gain_E.tolist()
    return [(1 - module.lambda_init) * gain * x / norm for gain, x in zip(gains, row, strict=True)]


def loops(name: str, knobs: dict, module, causal: bool, qkv: list[torch.Tensor], mask) -> torch.Tensor:
    """Over batch, head, query and key."""
    q, k, v = (x.tolist() for x in qkv)
    (batch, heads, query_len, _), (kv_heads, key_len) = qkv[0].shape, qkv[1].shape[1:3]
    out = torch.zeros(batch, heads, query_len, qkv[2].shape[3], dtype=torch.float64)
    for b, h, i in ((b, h, i) for b in range(batch) for h in range(heads) for i in range(query_len)):
        g, position = h // (heads // kv_heads), key_len - query_len + i
        keys = [j for j in range(key_len) if visible(module, name, causal, position, j)]
        keys = [j for j in keys if mask is None or mask[b][j]]
        if not keys:
            continue
        if name in ("full", "flash", "sinks"):
            scores = [dot(q[b][h][i], k[b][g][j]) * module.scale for j in keys]
            added = [bias(module, knobs, h, position - j, causal) for j in keys]
            weights = softmax([score + more for score, more in zip(scores, added, strict=True)])
        else:
            weights = weights_of(name, module, q[b][h][i], [k[b][g][j] for j in keys], h)
        row = [dot(weights, [v[b][g][j][e] for j in keys]) for e in range(out.shape[3])]
        out[b, h, i] = torch.tensor(finish(name, module, row), dtype=torch.float64)
    return out


def error(name: str, knobs: dict, causal: bool, query_len: int, key_len: int, mask=None, **sizes: int) -> float:
    shape = Shape(**{"heads": 4, "head_dim": 4, **sizes}, causal=causal)
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
    for query_len, key_len in ((1, 1), (13, 13), (2, 5), (1, 9), (9, 2), (0, 3), (3, 0)):
        assert error(name, knobs, causal, query_len, key_len) < 1e-12
    mask = [[True, False, True, True, False], [False, False, False, True, False]]
    assert error(name, knobs, causal, 5, 5, mask) < 1e-12
    assert error(name, knobs, causal, 3, 5, mask, kv_heads=2, value_dim=3) < 1e-12


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("name", "knobs"), FORMS)
def test_gradients_equal_finite_differences(name: str, knobs: dict, causal: bool) -> None:
    """Those of learned parameters too, which the kit does not look at."""
    shape = Shape(2, 4, 1, 2, causal=causal)
    module = build(name, shape, **knobs).double()
    mask = torch.tensor([[True, True, False, True, True, True, True]])
    leaves = [*draw(shape, 5, 7, batch=1), *module.parameters()]
    assert torch.autograd.gradcheck(lambda q, k, v, *_: module(q, k, v, key_mask=mask), leaves)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("name", "knobs"), FORMS)
def test_variants_keep_their_claims(name: str, knobs: dict, causal: bool) -> None:
    if knobs == {"score": "general"}:
        pytest.skip("scores of several times -15000: float32 does not hold the differences that the kit looks for")
    found = run_checks(registry.load(ENTRIES[name].source()), knobs, causal=causal)
    assert not [finding for finding in found if finding.status == "fail"]


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
@pytest.mark.parametrize(("name", "knobs"), FORMS)
def test_variants_pass_the_gate_in_every_dtype(name: str, knobs: dict, dtype: str) -> None:
    cls = registry.load(ENTRIES[name].source())
    for causal in (True, False):
        found = gate(cls, knobs, device="cpu", dtype=dtype, causal=causal)
        assert not [finding for finding in found if finding.status == "fail"]


@pytest.mark.parametrize("name", NEW)
def test_variants_are_readable_without_import(name: str) -> None:
    entry = ENTRIES[name]
    assert entry.broken is None
    assert entry.claims == registry.load(entry.source()).claims
    assert entry.summary.endswith(".")


@pytest.mark.parametrize(
    ("name", "knobs", "message"),
    [
        ("sinks", {"sinks": -1}, "sinks must be at least 0, got -1"),
        ("sinks", {"window": 0}, "window must be at least 1, got 0"),
        ("topk", {"k": 0}, "k must be at least 1, got 0"),
        ("softcap", {"cap": 0.0}, r"cap must be greater than 0, got 0\.0"),
        ("differential", {"lambda_init": 1.0}, r"lambda_init must be at least 0 and less than 1, got 1\.0"),
    ],
)
def test_a22_a_knob_out_of_range_is_named(name: str, knobs: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(name, Shape(1, 4), **knobs)


def test_differential_refuses_an_odd_width() -> None:
    with pytest.raises(Unsupported, match=r"head_dim must be even .*, got 5"):
        build("differential", Shape(2, 5))


def test_differential_halves_are_paired_within_a_head() -> None:
    """With equal halves both maps are the same: what is left is (1 - lambda) times softmax attention, normalised."""
    shape = Shape(2, 4, value_dim=3)
    module = build("differential", shape).double()
    q, k, v = draw(shape, 5, 5)
    q, k = (torch.cat([x[..., :2], x[..., :2]], -1) for x in (q, k))
    plain = torch.nn.functional.scaled_dot_product_attention(q[..., :2], k[..., :2], v)
    (a1, b1), (a2, b2) = module.ab_22D
    left = (1 - (a1 @ b1).exp() + (a2 @ b2).exp() - 0.8) * plain
    torch.testing.assert_close(module(q, k, v), torch.nn.functional.rms_norm(left, (3,), eps=1e-5) * (1 - 0.8))


def test_a23_sinks_and_window_through_the_weights() -> None:
    shape = Shape(1, 4, value_dim=8, causal=True)
    q, k, _ = draw(shape, 3, 8, batch=1)
    weights = build("sinks", shape, sinks=2, window=2).double()(q, k, torch.eye(8, dtype=torch.float64)[None, None])
    rows = [row.nonzero().flatten().tolist() for row in weights[0, 0]]
    assert rows == [[0, 1, 4, 5], [0, 1, 5, 6], [0, 1, 6, 7]]


@pytest.mark.parametrize("causal", [True, False])
def test_pairs_of_sinks_are_counted_by_brute_force(causal: bool) -> None:
    for sinks, window in ((0, 3), (1, 1), (2, 3), (4, 2), (5, 9), (30, 2)):
        module = build("sinks", Shape(3, 5, value_dim=2, causal=causal), sinks=sinks, window=window)
        for n, m in ((n, m) for n in range(15) for m in range(15)):
            counted = sum(visible(module, "sinks", causal, m - n + i, j) for i in range(n) for j in range(m))
            assert module.pairs(n, m) == counted, (sinks, window, n, m)
            assert attention_flops(module, module.shape, n, m) == 3 * counted * 2 * (5 + 2)


def test_pairs_of_sinks_need_no_loop() -> None:
    n = 10**9
    assert build("sinks", Shape(1, 4, causal=True)).pairs(n, n) == 260 * n - 260 * 259 // 2


def test_flops_worked_by_hand() -> None:
    assert build("luong", Shape(2, 8, causal=True)).flops(4, 4) == 2 * 10 * 2 * 16
    assert build("luong", Shape(2, 8), score="general").flops(3, 5) == 2 * (15 * 2 * 16 + 3 * 2 * 64)
    assert build("differential", Shape(2, 8, value_dim=6)).flops(3, 5) == 2 * 15 * (2 * 8 + 4 * 6)
    assert build("mean", Shape(4, 8, 2, 6)).flops(3, 5) == 2 * 6 * (3 + 5)
    for name in ("sigmoid", "entmax15", "topk", "softcap"):
        shape = Shape(1, 4, causal=True)
        assert attention_flops(build(name, shape), shape, 8, 8) == 576


def test_sinks_alone_or_a_window_alone_or_wide_enough_is_another_variant() -> None:
    shape = Shape(2, 4, causal=True)
    qkv = draw(shape, 300, 300)
    torch.testing.assert_close(build("sinks", shape, sinks=0, window=7)(*qkv), build("local", shape, window=7)(*qkv))
    torch.testing.assert_close(build("sinks", shape, sinks=300, window=1)(*qkv), build("full", shape)(*qkv))


def test_sigmoid_has_one_row_mass_for_equal_scores_at_any_length() -> None:
    """With scores 0 each of n keys weighs 1 / (1 + n): the bias is -log n, and when causal -log(p + 1)."""
    zeros, ones = torch.zeros(1, 1, 4, 2), torch.ones(1, 1, 4, 2)
    out = build("sigmoid", Shape(1, 2))(zeros, zeros, ones)
    torch.testing.assert_close(out, torch.full_like(out, 4 / 5))
    causal = build("sigmoid", Shape(1, 2, causal=True))(zeros, zeros, ones)[0, 0, :, 0]
    torch.testing.assert_close(causal, torch.tensor([1 / 2, 2 / 3, 3 / 4, 4 / 5]))


def test_sigmoid_of_a_prefix_does_not_depend_on_what_follows() -> None:
    shape = Shape(2, 4, causal=True)
    module, (q, k, v) = build("sigmoid", shape), draw(shape, 9, 9)
    torch.testing.assert_close(module(q, k, v)[:, :, :5], module(*(x[:, :, :5] for x in (q, k, v))))


def test_entmax_worked_by_hand() -> None:
    """Scores 0 and -1: s and t with s^2 + t^2 = 1, s - t = 1/2; scores 0 and -3: all weight on the first."""
    q, v = torch.ones(1, 1, 1, 1, dtype=torch.float64), torch.eye(2, dtype=torch.float64)[None, None]
    module = build("entmax15", Shape(1, 1, value_dim=2))
    near, far = (module(q, torch.tensor([[[[0.0], [low]]]], dtype=torch.float64), v) for low in (-1, -3))
    t = (-0.5 + math.sqrt(1.75)) / 2
    torch.testing.assert_close(near.flatten(), torch.tensor([(t + 0.5) ** 2, t**2], dtype=torch.float64))
    assert far.flatten().tolist() == [1, 0]


@pytest.mark.parametrize("length", [2, 1000, 100_000])
@pytest.mark.parametrize("kind", ["normal", "equal", "large", "heavy", "geometric"])
def test_entmax_thresholds_are_exact_whatever_the_spread(kind: str, length: int) -> None:
    from variants._entmax import entmax15

    generator = torch.Generator().manual_seed(length)
    normal, uniform = (draw(length, generator=generator, dtype=torch.float64) for draw in (torch.randn, torch.rand))
    steps = torch.arange(length, dtype=torch.float64)
    scores = {
        "normal": normal,
        "equal": torch.zeros_like(normal),
        "large": normal * 1e4,
        "heavy": -(uniform.clamp(min=1e-9) ** -2),
        "geometric": -(2.0 ** -(steps % 50)),
    }[kind].requires_grad_()
    weights = entmax15(scores)
    (grad,) = torch.autograd.grad(weights, scores, normal)
    low, high = scores.max().detach() / 2 - 1, scores.max().detach() / 2
    for _ in range(100):
        tau = (low + high) / 2
        low, high = (tau, high) if (scores / 2 - tau).clamp(min=0).square().sum() > 1 else (low, tau)
    torch.testing.assert_close(weights, (scores / 2 - low).clamp(min=0).square(), rtol=0, atol=1e-12)
    assert abs(float(weights.detach().sum()) - 1) < 1e-12
    assert torch.isfinite(grad).all()
    assert abs(float(grad.sum())) < 1e-10 * max(1.0, float(grad.abs().sum()))


def test_topk_keeps_every_key_that_ties_with_the_last() -> None:
    q = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    k = torch.tensor([2.0, 1.0, 3.0, 1.0, 0.0, 1.0], dtype=torch.float64).view(1, 1, 6, 1)
    v = torch.eye(6, dtype=torch.float64)[None, None]
    for kept, seen in ((1, [2]), (2, [0, 2]), (3, [0, 1, 2, 3, 5]), (5, [0, 1, 2, 3, 5]), (6, [0, 1, 2, 3, 4, 5])):
        out = build("topk", Shape(1, 1, value_dim=6), k=kept)(q, k, v)
        assert out.flatten().nonzero().flatten().tolist() == seen
        assert abs(float(out.sum()) - 1) < 1e-12


def test_softcap_of_a_large_cap_is_softmax_and_of_a_small_one_bounds_the_ratio_of_weights() -> None:
    shape = Shape(2, 4, value_dim=5)
    q, k, _ = draw(shape, 5, 5)
    v = torch.eye(5, dtype=torch.float64).expand(2, 2, 5, 5)
    torch.testing.assert_close(build("softcap", shape, cap=1e6)(q, k, v), build("full", shape)(q, k, v))
    weights = build("softcap", shape, cap=0.5)(q * 100, k * 100, v).detach()
    assert float((weights.amax(-1) / weights.amin(-1)).max()) <= math.e + 1e-9


def test_slopes_of_alibi_for_heads_that_are_no_power_of_two() -> None:
    slopes = build("full", Shape(6, 4), bias="alibi").position_bias.slopes
    assert slopes == [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3]


@pytest.mark.parametrize("causal", [True, False])
def test_t5_buckets_equal_the_published_rule(causal: bool) -> None:
    buckets = build("full", Shape(1, 4, causal=causal), bias="t5").position_bias.buckets
    gaps = range(0 if causal else -300, 300)
    assert buckets(torch.tensor(gaps)).tolist() == [t5_bucket(gap, causal) for gap in gaps]


def test_a_bias_runs_the_fused_kernel_and_no_other() -> None:
    shape = Shape(4, 8, 2, 6, causal=True)
    module = build("flash", shape, bias="alibi")
    for mask in (None, torch.ones(2, 5, dtype=torch.bool)):
        ran = profile_call(lambda: module(*draw(shape, 5, 5), key_mask=mask), "cpu").operators  # noqa: B023
        assert any("flash_attention" in name for name in ran)
        assert not any("attention_math" in name or "softmax" in name for name in ran)


def test_a_bias_is_refused_by_kernels_that_take_none() -> None:
    shape = Shape(2, 8)
    with pytest.raises(Unsupported, match=r"backend 'xformers' takes no bias on cpu \(use 'efficient'\)"):
        admit(
            build("flash", shape, backend="xformers", bias="alibi"),
            shape,
            dtype="float32",
            device="cpu",
            query_len=5,
            key_len=5,
        )


def test_luong_and_differential_run_a_fused_kernel() -> None:
    shape = Shape(4, 8, 2, 6, causal=True)
    for name in ("luong", "differential"):
        ran = profile_call(lambda: build(name, shape)(*draw(shape, 5, 7)), "cpu").operators  # noqa: B023
        assert any("flash_attention" in operator for operator in ran)


@pytest.mark.parametrize(("name", "knobs"), FORMS)
def test_plans_run_on_fake_tensors(name: str, knobs: dict) -> None:
    """No value is read: forward, backward and masks on tensors without data."""
    shape = Shape(4, 8, 2, 6, causal=True, max_len=300)
    with FakeTensorMode(allow_non_fake_inputs=True):
        qkv = [x.detach().requires_grad_() for x in (torch.empty(2, h, 300, d) for h, d in ((4, 8), (2, 8), (2, 6)))]
        out = build(name, shape, **knobs)(*qkv, key_mask=torch.ones(2, 300, dtype=torch.bool))
        assert out.shape == (2, 4, 300, 6)
        torch.autograd.grad(out, qkv, torch.empty_like(out), allow_unused=True)


@pytest.mark.parametrize("name", ["entmax15", "sigmoid", "softcap", "topk"])
def test_a29_blocks_of_queries_do_not_show(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("variants._blocks.TILE", {"cpu": 1})  # 16 queries a block
    for causal in (True, False):
        shape = Shape(2, 4, 1, causal=causal)
        module = build(name, shape).double()
        for query_len, key_len in ((16, 16), (17, 17), (33, 70), (70, 33)):
            qkv = draw(shape, query_len, key_len)
            mask = torch.arange(key_len) % 5 != torch.tensor([[7], [2]])
            out, wanted = module(*qkv, key_mask=mask), module.reference(*qkv, key_mask=mask)
            torch.testing.assert_close(out, wanted, rtol=0, atol=1e-11)
            given = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view_as(out)
            pairs = zip(*(torch.autograd.grad(x, qkv, given) for x in (out, wanted)), strict=True)
            for ours, right in pairs:
                torch.testing.assert_close(ours, right, rtol=0, atol=1e-10)


def test_mean_steps_equal_the_whole_and_the_state_does_not_grow() -> None:
    shape = Shape(4, 6, 2, 5, causal=True)
    module, (q, k, v) = build("mean", shape), draw(shape, 9, 9)
    state = module.prefill(k[:, :, :4], v[:, :, :4])
    assert state[0].numel() == module.state_size(4) == module.state_size(10**6)
    for i in range(4, 9):
        at = slice(i, i + 1)
        out, state = module.step(state, q[:, :, at], k[:, :, at], v[:, :, at])
        torch.testing.assert_close(out, module(q, k, v)[:, :, at])


def test_mean_of_many_bfloat16_values_does_not_drift() -> None:
    """A sum kept in bfloat16 stops at 256."""
    shape = Shape(1, 1, causal=True, max_len=5000)
    ones = torch.ones(1, 1, 5000, 1, dtype=torch.bfloat16)
    assert torch.equal(build("mean", shape)(ones, ones, ones), ones)


def peak(module: torch.nn.Module, shape: Shape, n: int, train: bool) -> int:
    qkv = [x.detach().float().requires_grad_(train) for x in draw(shape, n, n, batch=1)]
    gradient = torch.ones(1, shape.heads, n, shape.head_dim)

    def call():
        if not train:
            return module(*qkv)
        edge = torch.autograd.graph.get_gradient_edge(module(*qkv))
        return torch.autograd.grad([edge], qkv, [gradient], allow_unused=True)

    return peak_of(profile_call(call, "cpu").deltas)


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize(("name", "knobs"), LINEAR_MEMORY)
def test_memory_grows_linearly(name: str, knobs: dict, train: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("variants._blocks.TILE", {"cpu": 2**14})  # so that a block does not hide what grows
    shape = Shape(1, 16, causal=True, max_len=4096)
    module = build(name, shape, **knobs)
    short, long = (peak(module, shape, n, train) for n in (1024, 2048))
    assert long < 2.1 * short
