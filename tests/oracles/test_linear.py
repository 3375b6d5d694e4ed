"""Linear forms and recurrences against flash-linear-attention's naive code, linear-attention-transformer, performer."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch


def naive(name: str) -> Any:
    """A `naive.py` of flash-linear-attention, loaded by its path: the package needs Triton to import it."""
    spec = importlib.util.find_spec("fla")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("flash-linear-attention is not installed")
    path = Path(next(iter(spec.submodule_search_locations))) / "ops" / name / "naive.py"
    found = importlib.util.spec_from_file_location(f"naive_{name}", path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def turned(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Between (B, H, N, D) and (B, N, H, D)."""
    return [x.transpose(1, 2).contiguous() for x in tensors]


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
