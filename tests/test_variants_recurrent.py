"""Variants with a decaying state: their formulas written out, strong decay, padding, chunks, and limits among them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bench import registry
from bench.variant import Shape, Unsupported
from variants import _recurrent as recurrent
from variants._delta import KEY_EPS, delta_rule, unit

ENTRIES = {entry.name: entry for entry in registry.entries()}
NAMES = ("retention", "gla", "delta", "gated_delta", "ssd")
HEADS, WIDTH = 2, 8
LONG = 150  # three chunks: a state crosses two boundaries


def build(name: str, heads: int = HEADS, width: int = WIDTH, **knobs: Any) -> Any:
    return registry.load(ENTRIES[name].source())(Shape(heads, width, max_len=8192, causal=True), **knobs).double()


def draw(n: int, batch: int = 2, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sizes = dict.fromkeys("qkv", (batch, HEADS, n, WIDTH)) | {"x": (batch, n, HEADS * WIDTH)}
    return {name: torch.randn(size, generator=generator, dtype=torch.float64) for name, size in sizes.items()}


def call(module: Any, given: dict[str, torch.Tensor], **more: Any) -> torch.Tensor:
    extra = {"x": given["x"]} if module.claims.needs_x else {}
    return module(given["q"], given["k"], given["v"], **extra, **more)


def normalised(out: torch.Tensor) -> torch.Tensor:
    return out / (out.square().mean(-1, keepdim=True) + 1e-6).sqrt()


def test_retention_equals_its_formula() -> None:
    given = draw(150)
    position = torch.arange(150, dtype=torch.float64)
    gap = position[:, None] - position
    for head in range(HEADS):
        kept = 1 - 2.0 ** (-5 - head)
        weights = (given["q"][:, head] @ given["k"][:, head].mT) * torch.where(gap >= 0, kept**gap, 0.0) / WIDTH**0.5
        right = normalised(weights @ given["v"][:, head])
        torch.testing.assert_close(call(build("retention"), given)[:, head], right)


def loop(given: dict[str, torch.Tensor], step: Any) -> torch.Tensor:
    """out_t = q_t S_t for every example and head, S_t = step(S, k, v, b, h, t)."""
    q, k, v = given["q"] / WIDTH**0.5, given["k"], given["v"]
    out = torch.zeros_like(v)
    for b in range(len(q)):
        for h in range(HEADS):
            state = torch.zeros(WIDTH, WIDTH, dtype=torch.float64)
            for t in range(q.shape[2]):
                state = step(state, k[b, h, t], v[b, h, t], b, h, t)
                out[b, h, t] = q[b, h, t] @ state
    return normalised(out)


def test_gla_equals_its_recurrence() -> None:
    module, given = build("gla", rank=3), draw(LONG)
    raw = given["x"] @ module.down_RC.T @ module.up_FR.T + module.bias_F
    kept = torch.sigmoid(raw).pow(1 / 16).detach()

    def step(state, k, v, b, h, t):
        return kept[b, t, h * WIDTH : (h + 1) * WIDTH, None] * state + torch.outer(k, v)

    torch.testing.assert_close(call(module, given).detach(), loop(given, step))


def test_delta_equals_its_recurrence() -> None:
    module, given = build("delta"), draw(LONG)
    beta = torch.sigmoid(given["x"] @ module.beta_HC.T).detach()

    def step(state, k, v, b, h, t):
        k = k / k.norm()
        return state + beta[b, t, h] * torch.outer(k, v - k @ state)

    torch.testing.assert_close(call(module, given).detach(), loop(given, step))


def test_gated_delta_equals_its_recurrence() -> None:
    module, given = build("gated_delta"), draw(LONG)
    beta = torch.sigmoid(given["x"] @ module.beta_HC.T).detach()
    rate = torch.nn.functional.softplus(given["x"] @ module.decay_HC.T + module.decay_bias_H)
    kept = torch.exp(-module.log_a_H.exp() * rate).detach()
    eye = torch.eye(WIDTH, dtype=torch.float64)

    def step(state, k, v, b, h, t):
        k = k / k.norm()
        erased = (eye - beta[b, t, h] * torch.outer(k, k)) @ state
        return kept[b, t, h] * erased + beta[b, t, h] * torch.outer(k, v)

    torch.testing.assert_close(call(module, given).detach(), loop(given, step))


def test_ssd_equals_its_recurrence() -> None:
    module, given = build("ssd"), draw(LONG)
    dt = torch.nn.functional.softplus(given["x"] @ module.dt_HC.T + module.dt_bias_H).detach()
    a = -module.log_a_H.exp().detach()

    def step(state, k, v, b, h, t):
        return torch.exp(dt[b, t, h] * a[h]) * state + dt[b, t, h] * torch.outer(k, v)

    torch.testing.assert_close(call(module, given).detach(), loop(given, step))


def test_ssd_steps_start_between_a_thousandth_and_a_tenth() -> None:
    module = build("ssd", heads=5)
    start = torch.nn.functional.softplus(module.dt_bias_H.detach())
    torch.testing.assert_close(
        start[[0, 2, 4]], torch.tensor([0.001, 0.01, 0.1], dtype=torch.float64), rtol=1e-4, atol=0
    )
    assert module.log_a_H.detach().exp()[[0, 4]].tolist() == pytest.approx([1, 16])


def no_decay(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x[..., 0])


def test_limit_without_decay_retention_and_gla_are_unnormalised_linear() -> None:
    q, k, v, _ = draw(150).values()
    state = torch.zeros(2, HEADS, WIDTH, WIDTH).double()
    right = (q @ k.mT).tril() @ v
    torch.testing.assert_close(recurrent.scalar_decay(q, k, v, no_decay(k), state)[0], right)
    torch.testing.assert_close(recurrent.vector_decay(q, k, v, torch.zeros_like(k), state)[0], right)


def test_limit_without_decay_gated_delta_is_delta() -> None:
    gated, plain, given = build("gated_delta"), build("delta"), draw(150)
    with torch.no_grad():
        gated.beta_HC.copy_(plain.beta_HC)
        decaying = call(gated, given)
        gated.decay_bias_H.fill_(-1e3)  # softplus is 0
        torch.testing.assert_close(call(gated, given), call(plain, given))
    assert not torch.allclose(decaying, call(plain, given))


@pytest.mark.parametrize("name", ["delta", "gated_delta"])
@pytest.mark.parametrize("length", [1e-3, 1e4])
def test_only_the_direction_of_a_key_counts(name: str, length: float) -> None:
    module, given = build(name), draw(70)
    right = call(module, given)
    torch.testing.assert_close(call(module, given | {"k": given["k"] * length}), right)


@pytest.mark.parametrize("name", ["delta", "gated_delta"])
@pytest.mark.parametrize("length", [0.0, KEY_EPS / 100])
def test_a_key_without_direction_is_not_blown_up(name: str, length: float) -> None:
    module, given = build(name).float(), {key: part.float() for key, part in draw(70).items()}
    k = (given["k"] / given["k"].norm(dim=-1, keepdim=True) * length).requires_grad_()
    torch.testing.assert_close(unit(k).norm(dim=-1), torch.full(k.shape[:-1], length / KEY_EPS))
    out = call(module, given | {"k": k})
    out.sum().backward()
    assert torch.isfinite(out).all()
    assert torch.isfinite(k.grad).all()
    if length == 0:
        assert not out.any()


def test_equal_decays_of_all_features_are_one_scalar_decay() -> None:
    q, k, v, x = draw(150).values()
    decay = -x[..., 0].abs()[:, None].expand(-1, HEADS, -1)
    state = torch.randn(2, HEADS, WIDTH, WIDTH, generator=torch.Generator().manual_seed(5)).double()
    one = recurrent.scalar_decay(q, k, v, decay, state)
    other = recurrent.vector_decay(q, k, v, decay[..., None].expand_as(k), state)
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("strength", [5.0, 50.0, 500.0])
@pytest.mark.parametrize("form", ["scalar", "vector", "delta"])
def test_strong_decay_is_finite_and_right_forward_and_backward(form: str, strength: float) -> None:
    """exp(G_i) exp(-G_j) overflows float32 within one chunk at 5 a step."""
    q, k, v, x = (part.float() for part in draw(130).values())
    k = torch.nn.functional.normalize(k, dim=-1)
    decay = -strength * x[..., 0].sigmoid()[:, None].expand(-1, HEADS, -1)
    beta = torch.ones_like(decay) / 2
    gates = {"scalar": [decay], "vector": [decay[..., None].expand_as(k)], "delta": [beta, decay]}[form]
    segment = {"scalar": recurrent.scalar_decay, "vector": recurrent.vector_decay, "delta": delta_rule}[form]

    def run(dtype: torch.dtype) -> list[torch.Tensor]:
        inputs = [part.to(dtype).detach().requires_grad_() for part in (q, k, v, *gates)]
        state = torch.zeros(2, HEADS, WIDTH, WIDTH, dtype=dtype)
        out, last = segment(*inputs, state)
        gradients = torch.autograd.grad(out.square().sum() + last.sum(), inputs)
        return [out.detach(), last.detach(), *gradients]

    narrow, exact = run(torch.float32), run(torch.float64)
    largest = max(float(part.abs().max()) for part in exact)
    for one, other in zip(narrow, exact, strict=True):
        assert torch.isfinite(one).all()
        # Running sums of the logarithms reach hundreds, where float32 has steps of 3e-5.
        assert float((one - other).abs().max()) <= 1e-4 * largest


@pytest.mark.parametrize("name", NAMES)
def test_the_size_of_segments_does_not_show(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, given = build(name), draw(300)
    whole = call(module, given)
    monkeypatch.setitem(recurrent.SEGMENT, "cpu", 1)  # one chunk each
    torch.testing.assert_close(call(module, given), whole)


@pytest.mark.parametrize("name", [*NAMES, "lstm"])
def test_a_padded_position_leaves_the_state_as_it_is(name: str) -> None:
    module, given = build(name), draw(41)
    real = torch.rand(2, 41, generator=torch.Generator().manual_seed(1)) < 0.6
    out = call(module, given, key_mask=real)
    for b in range(2):
        alone = {key: (t[b : b + 1, real[b]] if key == "x" else t[b : b + 1, :, real[b]]) for key, t in given.items()}
        torch.testing.assert_close(out[b : b + 1, :, real[b]], call(module, alone))


@pytest.mark.parametrize("name", [*NAMES, "lstm"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_states_are_wide_in_low_precision(name: str, dtype: torch.dtype) -> None:
    module = build(name).to(dtype)
    given = {key: part.to(dtype) for key, part in draw(2000, batch=1).items()}
    with torch.no_grad():
        late = call(module, given)[:, :, -200:].double()
        right = call(module.double(), {key: part.double() for key, part in given.items()})[:, :, -200:]
    assert float((late - right).norm() / right.norm()) < (5e-3 if dtype == torch.bfloat16 else 1e-3)


def test_lstm_padding_leaves_both_directions_as_they_are() -> None:
    module = registry.load(ENTRIES["lstm"].source())(Shape(HEADS, WIDTH)).double()
    given = draw(23)
    real = torch.rand(2, 23, generator=torch.Generator().manual_seed(1)) < 0.5
    real[:, 0], real[:, 1] = False, True  # a position that has no real one before it
    out = call(module, given, key_mask=real)
    for b in range(2):
        alone = call(module, {key: given[key][b : b + 1, :, real[b]] for key in "qkv"})
        torch.testing.assert_close(out[b : b + 1, :, real[b]], alone)
    assert not out[:, 0, 0].any()  # the first head is of the forward direction, whose state is still 0
    assert out[:, 1, 0].any()


def test_lstm_equals_torchs_own_in_both_directions() -> None:
    given = draw(20)
    flat = given["v"].transpose(1, 2).flatten(2)
    for causal, directions in ((True, ["forward"]), (False, ["forward", "backward"])):
        module = registry.load(ENTRIES["lstm"].source())(Shape(HEADS, WIDTH, causal=causal)).double()
        other = torch.nn.LSTM(16, module.units, batch_first=True, bidirectional=not causal).double()
        with torch.no_grad():
            for direction, suffix in zip(directions, ("", "_reverse"), strict=False):
                for ours, theirs in (("input_FC", "weight_ih"), ("hidden_FU", "weight_hh"), ("bias_F", "bias_ih")):
                    getattr(other, f"{theirs}_l0{suffix}").copy_(getattr(module, f"{direction}_{ours}"))
                getattr(other, f"bias_hh_l0{suffix}").zero_()
            right = other(flat)[0]
        torch.testing.assert_close(call(module, given).detach().transpose(1, 2).flatten(2), right)


def test_what_an_lstm_cannot_do_is_refused() -> None:
    cls = registry.load(ENTRIES["lstm"].source())
    with pytest.raises(Unsupported, match="must be even for two directions, got 3"):
        cls(Shape(1, 3))
    given = draw(3)
    with pytest.raises(Unsupported, match="leave the padding out"):
        build("lstm").prefill(given["k"], given["v"], key_mask=torch.ones(2, 3, dtype=torch.bool))


@pytest.mark.parametrize("name", NAMES)
def test_values_of_width_1_are_refused(name: str) -> None:
    with pytest.raises(Unsupported, match="value_dim must be at least 2"):
        registry.load(ENTRIES[name].source())(Shape(1, 4, value_dim=1, causal=True))
