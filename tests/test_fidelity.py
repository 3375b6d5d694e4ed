"""bench.measure.fidelity: errors against exact attention, against plain code and the published table."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import registry
from bench.cells import cells
from bench.commands.run import run
from bench.measure import fidelity
from bench.results import read_run
from bench.sweep import make_sweep
from bench.variant import Shape, Unsupported

ENTRIES = {entry.name: entry for entry in registry.entries()}


def make(name: str, shape: Shape, **knobs: Any):
    cls = registry.load(ENTRIES[name].source())
    return lambda more: cls(shape, **{**knobs, **more})


def errors(name: str, n: int, spread: float, *, causal: bool = False, heads: int = 2, width: int = 8, **knobs: Any):
    shape = Shape(heads, width, max_len=n, causal=causal)
    inputs = fidelity.draw(shape, n, spread, seed=0)
    seeded = "seed" in ENTRIES[name].knobs
    return fidelity.compare(make(name, shape, **knobs), inputs, shape, seeded=seeded, dtype="float64", device="cpu")


@pytest.mark.parametrize("causal", [True, False])
def test_the_exact_side_equals_autograd_and_does_not_show_its_blocks(causal: bool, monkeypatch) -> None:
    shape = Shape(2, 8, value_dim=5, causal=causal)
    inputs = fidelity.draw(shape, 40, 1.5, seed=1)
    q, k, v = (part.clone().requires_grad_() for part in inputs[:3])
    scores = torch.einsum("bhnd,bhmd->bhnm", q, k) / math.sqrt(8)
    hidden = torch.ones(40, 40, dtype=torch.bool).triu(1) if causal else torch.zeros(40, 40, dtype=torch.bool)
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    out = weights @ v
    gradients = torch.autograd.grad(out, (q, k, v), inputs.gradient)
    for block in (256, 7):
        monkeypatch.setattr(fidelity, "BLOCK", block)
        found = fidelity.exact(inputs, causal, shape.scale)
        torch.testing.assert_close(found.out, out.detach())
        for one, other in zip(found.gradients, gradients, strict=True):
            torch.testing.assert_close(one, other)
        means = torch.stack([inputs.v[:, :, : i + 1 if causal else 40].mean(2) for i in range(40)], 2)
        torch.testing.assert_close(found.mean, means)
        entropy = -(weights * weights.clamp(min=1e-300).log()).sum(-1).mean()
        assert found.entropy == pytest.approx(float(entropy.detach()))


@pytest.mark.parametrize("causal", [True, False])
def test_exact_variants_have_no_error(causal: bool) -> None:
    for name in ("full", "flash"):
        found = errors(name, 60, 2.0, causal=causal)
        assert found["top1"] == 1
        assert all(found[key] < 1e-12 for key in ("output", "output_vs_mean", "gradient", "missing_mass", "row_kl"))


@pytest.mark.parametrize("causal", [True, False])
def test_the_average_of_the_values_is_no_better_than_itself(causal: bool) -> None:
    found = errors("mean", 60, 1.0, causal=causal)
    assert found["output_vs_mean"] == pytest.approx(1)
    assert found["gradient"] == pytest.approx(1)  # it has none of q and k


def test_missing_mass_is_what_a_window_cannot_see() -> None:
    shape = Shape(1, 8, max_len=50)
    inputs = fidelity.draw(shape, 50, 1.0, seed=0)
    found = errors("local", 50, 1.0, heads=1, window=4)
    weights = (inputs.q @ inputs.k.mT / math.sqrt(8)).softmax(-1)[0, 0]
    gap = torch.arange(50)[:, None] - torch.arange(50)
    assert found["missing_mass"] == pytest.approx(float(weights[gap.abs() >= 4].sum()) / 50)
    assert found["row_kl"] is None


def test_random_features_are_averaged_over_draws() -> None:
    shape = Shape(2, 8, max_len=40)
    inputs = fidelity.draw(shape, 40, 0.5, seed=0)

    def single(seed: int) -> float:
        of = make("performer", shape, features=16, seed=seed)
        value = fidelity.compare(of, inputs, shape, seeded=False, dtype="float64", device="cpu")["output"]
        assert value is not None
        return value

    draws = [single(seed) for seed in range(fidelity.DRAWS)]
    assert len(set(draws)) == fidelity.DRAWS >= 5
    assert errors("performer", 40, 0.5, features=16)["output"] == pytest.approx(sum(draws) / len(draws))


def test_weights_that_need_too_many_calls_are_null(monkeypatch) -> None:
    monkeypatch.setattr(fidelity, "ROWS_LONGEST", 30)
    found = errors("full", 40, 1.0)
    assert (found["top1"], found["missing_mass"], found["row_kl"]) == (None, None, None)
    assert found["output"] is not None


@pytest.mark.parametrize(
    ("name", "knobs", "spread", "metric", "value"),
    [
        ("linear", {}, 0.5, "output_vs_mean", 0.95),
        ("linear", {}, 0.5, "gradient", 0.96),
        ("linear", {}, 1.0, "row_kl", 0.45),
        ("linear", {}, 2.0, "output_vs_mean", 1.00),
        ("local", {"window": 64}, 0.5, "output", 2.96),
        ("topk", {"k": 64}, 2.0, "output", 0.03),
        ("mean", {}, 1.0, "output", 0.81),
        ("mean", {}, 2.0, "row_kl", 4.57),
        ("full", {}, 0.5, "entropy", 6.90),
        ("full", {}, 1.0, "entropy", 6.44),
        ("full", {}, 2.0, "entropy", 2.36),
    ],
)
def test_figures_at_1024_positions_are_those_known(name: str, knobs: dict, spread: float, metric: str, value: float):
    found = errors(name, 1024, spread, width=64, **knobs)[metric]
    assert found == pytest.approx(value, rel=0.05, abs=0.005)  # those are rounded


def test_a_variant_that_wants_x_is_compared_too_and_one_without_weights_has_none() -> None:
    found = errors("gla", 40, 1.0, causal=True)
    assert found["output"] is not None
    assert found["top1"] is None


def test_what_is_not_supported_is_refused() -> None:
    shape = Shape(2, 8, max_len=16, causal=True)
    given = {"spread 1": fidelity.draw(shape, 16, 1.0, seed=0)}
    with pytest.raises(Unsupported, match="causal attention is not supported"):
        fidelity.measure(given, make("nystrom", shape), shape, seeded=False, dtype="float32", device="cpu")


def test_cells_have_one_example_and_the_controls(tmp_path: Path) -> None:
    sweep = make_sweep({"variant": "linear", "workload": "fidelity", "seq_len": [16, 32], "controls": ["mean"]})
    made = cells(sweep, registry.entries(), devices=["cpu"], threads=1, environment="e")
    assert [(cell.variant, cell.seq_len, cell.once) for cell in made] == [
        ("linear", 16, True), ("mean", 16, True), ("linear", 32, True), ("mean", 32, True),
    ]  # fmt: skip
    options = {"dry_run": False, "fresh": False, "rerun_failed": False, "command": "python -m bench run"}
    values = {"variant": ["linear", "nystrom"], "workload": "fidelity", "seq_len": 32, "controls": ["mean"], "heads": 2}
    assert run("quick", {**values, "causal": True, "seeds": [0]}, out=str(tmp_path / "run"), **options) == 0
    rows = {row.variant: row for row in read_run(tmp_path / "run")[0]}
    assert {name: row.status for name, row in rows.items()} == {
        "linear": "ok", "mean": "ok", "nystrom": "unsupported",
    }  # fmt: skip
    error = rows["mean"].error
    assert error is not None
    assert error["output_vs_mean, spread 1"] == pytest.approx(1, abs=1e-4)
    page = (tmp_path / "run" / "report.md").read_text(encoding="utf-8")
    assert "Error against exact attention at n = 32" in page
