"""Linear forms and recurrences against flash-linear-attention's naive code, linear-attention-transformer, performer."""

from __future__ import annotations

import ast
import types
from typing import Any

import pytest
import torch
from naive_forms import naive, package, turned

from bench.variant import Shape


def phi(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.elu(x) + 1


def normalised(out: torch.Tensor) -> torch.Tensor:
    return out / (out.square().mean(-1, keepdim=True) + 1e-6).sqrt()


def test_causal_linear_equals_fla(build, draw) -> None:
    """It takes the features, scales q by D^-1/2, which cancels, and wants whole chunks of 64."""
    q, k, v = draw(128)
    right = naive("linear_attn").naive_chunk_linear_attn(*turned(phi(q), phi(k), v), normalize=True)
    right = right[0] if isinstance(right, tuple) else right
    torch.testing.assert_close(build("linear", causal=True)(q, k, v), turned(right)[0], rtol=1e-4, atol=1e-5)


def test_retention_equals_fla(build, draw) -> None:
    """It works on (B, H, N, D) and does not normalise."""
    q, k, v = draw(100)
    right = naive("retention").naive_retention(q, k, v)
    torch.testing.assert_close(build("retention", causal=True)(q, k, v), normalised(right), rtol=1e-4, atol=1e-4)


def test_gla_equals_fla(build, draw) -> None:
    """It takes the logarithms of the decays, and does not normalise."""
    q, k, v = draw(100)
    x = torch.randn(2, 100, 128, generator=torch.Generator().manual_seed(1))
    module = build("gla", causal=True)
    raw = x @ module.down_RC.T @ module.up_FR.T + module.bias_F
    decay = (torch.nn.functional.logsigmoid(raw) / 16).view(2, 100, 4, 32).detach()
    right = naive("gla").naive_recurrent_gla(*turned(q, k, v), decay)
    right = turned(right[0] if isinstance(right, tuple) else right)[0]
    torch.testing.assert_close(module(q, k, v, x=x).detach(), normalised(right), rtol=1e-3, atol=1e-3)


def test_delta_equals_fla(build, draw) -> None:
    """It works on (B, H, N, D), wants keys of length 1, and does not normalise."""
    q, k, v = draw(100)
    x = torch.randn(2, 100, 128, generator=torch.Generator().manual_seed(1))
    module = build("delta", causal=True)
    beta = torch.sigmoid(x @ module.beta_HC.T).transpose(1, 2).detach()
    unit = torch.nn.functional.normalize(k, dim=-1)
    right = naive("delta_rule").delta_rule_recurrence(q, unit, v, beta)
    right = right[0] if isinstance(right, tuple) else right
    torch.testing.assert_close(module(q, k, v, x=x).detach(), normalised(right), rtol=1e-3, atol=1e-3)


def test_gated_delta_equals_transformers(build, draw) -> None:
    """Its recurrence wants (B, N, H, D) and the logarithms of the decays, and normalises keys itself when asked."""
    pytest.importorskip("transformers")
    model = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    q, k, v = draw(100)
    x = torch.randn(2, 100, 128, generator=torch.Generator().manual_seed(1))
    module = build("gated_delta", causal=True)
    beta = torch.sigmoid(x @ module.beta_HC.T).detach()
    rate = torch.nn.functional.softplus(x @ module.decay_HC.T + module.decay_bias_H)
    decay = (-module.log_a_H.exp() * rate).detach()
    unit = torch.nn.functional.normalize(k, dim=-1)
    right, _ = model.torch_recurrent_gated_delta_rule(
        *turned(q, unit, v), decay, beta, initial_state=None, output_final_state=False
    )
    torch.testing.assert_close(module(q, k, v, x=x).detach(), normalised(turned(right)[0]), rtol=1e-3, atol=1e-3)


def test_ssd_equals_flas_scalar_decay(build, draw) -> None:
    """Its simple GLA with the decay dt A, on dt v; it does not normalise."""
    q, k, v = draw(128)
    x = torch.randn(2, 128, 128, generator=torch.Generator().manual_seed(1))
    module = build("ssd", causal=True)
    dt = torch.nn.functional.softplus(x @ module.dt_HC.T + module.dt_bias_H).detach()
    decay = (-dt * module.log_a_H.exp()).detach()
    simple = naive("simple_gla")
    given = [*turned(q, k, v * dt.transpose(1, 2)[..., None]), decay]
    right = simple.naive_recurrent_simple_gla(*given, scale=1.0)
    right = turned(right[0] if isinstance(right, tuple) else right)[0] * 32**-0.5
    torch.testing.assert_close(module(q, k, v, x=x).detach(), normalised(right), rtol=2e-3, atol=2e-3)


def test_efficient_equals_linear_attention_transformer(build, draw) -> None:
    """Its q is scaled by D^-1/2 once more, after the softmax."""
    lat = pytest.importorskip("linear_attention_transformer.linear_attention_transformer")
    q, k, v = draw(100)
    right = lat.linear_attn(q.clone(), k.clone(), v.clone()) * 32**0.5
    torch.testing.assert_close(build("efficient", causal=False)(q, k, v), right, rtol=1e-5, atol=1e-6)


def test_performer_equals_performer_pytorch(build, draw) -> None:
    """The same projection; its epsilon of 1e-4 in every feature is not ours, so it is taken out of its code."""
    performer = pytest.importorskip("performer_pytorch.performer_pytorch")
    q, k, v = (x / 2 for x in draw(100))
    module = build("performer", causal=False, features=64)
    w = module.w_FD * 32**0.25
    phi_q, phi_k = (
        performer.softmax_kernel(x, projection_matrix=w, is_query=query, eps=0.0)
        for x, query in ((q, True), (k, False))
    )
    right = performer.linear_attention(phi_q, phi_k, v)
    torch.testing.assert_close(module(q, k, v), right, rtol=1e-4, atol=1e-4)


# What the kernels of the variant `fla` are given, in the terms of their naive forms, which differ in layout and scale.
NAIVE: dict[str, Any] = {
    "linear": lambda q, k, v, scale, normalize: naive("linear_attn").naive_recurrent_linear_attn(
        q, k, v, scale=scale, normalize=normalize
    ),
    "retention": lambda q, k, v, scale: turned(naive("retention").naive_retention(*turned(q, k, v))),
    "gla": lambda q, k, v, scale, g: naive("gla").naive_recurrent_gla(q, k, v, g),
    "delta": lambda q, k, v, scale, beta: turned(
        naive("delta_rule").delta_rule_recurrence(*turned(q, k, v), beta.mT)[0]
    ),
}


@pytest.mark.parametrize("op", NAIVE)
def test_fla_asks_its_kernels_for_what_its_reference_says(op: str, monkeypatch: pytest.MonkeyPatch, draw) -> None:
    """The kernels need CUDA: here their naive forms stand in, and the names of arguments are read from their source."""
    fla = pytest.importorskip("variants.fla")
    module, function = fla.OPS[op]
    source = package() / "ops" / module.rpartition(".")[2] / "chunk.py"
    tree = ast.parse(source.read_text(encoding="utf-8"))
    (declared,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function)
    names = {argument.arg for argument in declared.args.args}

    def kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **more: Any) -> Any:
        assert set(more) < names
        return NAIVE[op](q, k, v, **more)

    monkeypatch.setattr(fla, "library", lambda *_, **__: types.SimpleNamespace(**{function: kernel}))
    q, k, v = draw(70)
    x = torch.randn(2, 70, 128, generator=torch.Generator().manual_seed(1))
    attention = fla.Fla(Shape(4, 32, causal=True), op=op)
    with torch.no_grad():
        torch.testing.assert_close(
            attention(q, k, v, x=x).double(), attention.reference(q, k, v, x=x), rtol=1e-4, atol=1e-4
        )


def test_taylor_equals_flas_based(build, draw) -> None:
    """It takes projected queries and keys, and adds an epsilon to the total."""
    q, k, v = draw(100)
    module = build("taylor", causal=True)
    right = naive("based").naive_parallel_based(q @ module.q_HDF.detach(), k @ module.k_GDF.detach(), v)
    torch.testing.assert_close(module(q, k, v).detach(), right, rtol=1e-4, atol=1e-4)


def test_nsa_equals_the_branches_of_fla(build, draw) -> None:
    """Its branches one by one, on (B, N, H, D); its window needs flash-attn, so that one is torch's, masked."""
    fla = naive(
        "nsa",
        **{
            "fla": {},
            "fla.ops": {},
            "fla.ops.utils": {"prepare_chunk_offsets": None},
            "fla.ops.utils.pooling": {"mean_pooling": None},
        },
    )
    q, k, v = draw(96)
    x = torch.randn(2, 96, 128, generator=torch.Generator().manual_seed(1))
    module = build("nsa", causal=True, block=8, selected=5, window=20)
    near = torch.ones(96, 96, dtype=torch.bool).tril().triu(-19)
    window = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=near)
    q, k, v = turned(q, k, v)
    mean_k, mean_v = (y.unflatten(1, (12, 8)).mean(2) for y in (k, v))
    compressed, _ = fla.naive_nsa_compression(q, mean_k, mean_v, 8, 32**-0.5)
    chosen = fla.naive_nsa_topk(q, mean_k, 5, 8, 32**-0.5)
    selected = fla.naive_nsa_selection(q, k, v, chosen, 8)
    gates = torch.einsum("bnc,zhc->zbnh", x, module.gates_3HC.detach()).sigmoid()[..., None]
    right = gates[0] * compressed + gates[1] * selected + gates[2] * turned(window)[0]
    ours = module(*turned(q, k, v), x=x).detach()
    torch.testing.assert_close(turned(ours)[0], right, rtol=1e-4, atol=1e-5)
