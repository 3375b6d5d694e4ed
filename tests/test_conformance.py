"""bench.conformance: what is right passes, each mutant fails exactly the checks that should find it."""

from __future__ import annotations

import importlib
from pathlib import Path

import mutants
import pytest
import torch
from mutants import Honest
from torch import nn

from bench import registry
from bench.conformance import CHECKS, Subject, gate, parametrize_with_checks, run_checks
from bench.conformance.oracle import softmax_attention
from bench.conformance.subject import compare, identical
from bench.variant import Shape, Unsupported, admit, variant

BUILT_IN = {entry.name: registry.load(entry.source()) for entry in registry.entries()}
COMPILED = pytest.param("flex", marks=pytest.mark.slow)  # minutes in the compiler
NAMES = [*(name for name in sorted(BUILT_IN) if name != "flex"), COMPILED]
KNOBS = [(name, {}) for name in NAMES[:-1]] + [
    pytest.param("flex", {}, marks=pytest.mark.slow),
    pytest.param("flex", {"window": 20}, marks=pytest.mark.slow),
    ("local", {"window": 1}),
    ("local", {"window": 20}),
    ("sparse", {"stride": 4}),
    ("sparse", {"mode": "fixed"}),
    ("sparse", {"mode": "fixed", "stride": 4, "summary": 2}),
    ("full", {"bias": "alibi"}),
    ("full", {"bias": "t5"}),
    ("flash", {"bias": "alibi"}),
    ("sinks", {"window": 5, "sinks": 2}),
    ("performer", {"kernel": "relu", "features": 32}),
    ("nystrom", {"landmarks": 5}),
    ("synthesizer", {"mode": "random"}),
]


def failures(findings: list) -> dict[str, str]:
    return {finding.check: finding.detail for finding in findings if finding.status == "fail"}


def claim(name: str, knobs: dict, dtype: str, causal: bool) -> type:
    """The class; skips where it does not claim this, or cannot run on this machine."""
    try:
        Subject(BUILT_IN[name], knobs, "cpu", dtype, causal).admit()
    except Unsupported as reason:
        pytest.skip(str(reason))
    return BUILT_IN[name]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("name", "knobs"), KNOBS)
def test_built_in_variants_keep_their_claims(name: str, knobs: dict, causal: bool) -> None:
    """A03, A06, A08, A11, A29, A32, A34, A35, A37, A40, A46, A50, A55, A58 for every variant, by the kit."""
    findings = run_checks(claim(name, knobs, "float32", causal), knobs, causal=causal)
    assert not failures(findings)
    assert len(findings) == len(CHECKS)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
@pytest.mark.parametrize("name", NAMES)
def test_built_in_variants_pass_the_gate_in_every_dtype(name: str, dtype: str, causal: bool) -> None:
    assert not failures(gate(claim(name, {}, dtype, causal), {}, device="cpu", dtype=dtype, causal=causal))


@parametrize_with_checks([Honest])
def test_an_honest_variant_passes(check) -> None:
    check()


@parametrize_with_checks([mutants.IgnoresScale], expected_failures={"scale": "the knob is not used"})
def test_an_expected_failure_has_its_reason(check) -> None:
    check()


# Where the function itself is wrong, every check that compares numbers says so.
NUMBERS = {"values", "gradients", "lengths", "cross", "key_mask", "grouped", "widths", "scale", "low_precision"}
LEAKS = {"causality", "causality_of_block"}
CAUGHT_CAUSAL = {
    mutants.Peeks: NUMBERS | LEAKS | {"large_logits", "padding"},
    mutants.Shifted: NUMBERS | {"large_logits", "rows_sum_to_one"},
    mutants.TopLeft: {"cross"},
    mutants.WrongScale: NUMBERS,
    mutants.IgnoresScale: {"scale"},
    mutants.IgnoresBias: NUMBERS | {"large_logits"},
    mutants.ScalesLate: {"low_precision"},
    mutants.InPlace: {"inputs_unchanged"},
    mutants.WritesResult: {"inputs_unchanged"},
    mutants.MaskedRowsNan: {"masked_rows", "cross"},
    mutants.MaskedRowsCleanedLate: {"masked_rows", "cross"},
    mutants.KeepsPaddedValues: {"padding"},
    mutants.IgnoresMask: {"key_mask", "padding", "masked_rows", "large_logits"},
    mutants.MaskOnQueries: {"key_mask", "large_logits"},
    mutants.CouplesBatch: NUMBERS | {"batch_independence"},
    mutants.WrongAxis: NUMBERS | LEAKS | {"large_logits", "padding", "rows_sum_to_one"},
    mutants.MasksAfterSoftmax: NUMBERS | LEAKS | {"large_logits", "padding", "rows_sum_to_one"},
    mutants.LargeConstant: {"large_logits"},
    mutants.TilesHeads: {"grouped"},
    mutants.RemembersMask: {"reuse", "padding"},
    mutants.DropsPartialBlock: {"lengths", "cross"},
    mutants.NanFromBlock: {"lengths", "cross", "padding"},
    mutants.CountsWrong: {"pattern"},
}
CAUGHT_BIDIRECTIONAL = {
    mutants.MaskedRowsNan: {"masked_rows"},
    mutants.MaskOnQueries: {"key_mask", "padding", "large_logits", "rows_sum_to_one"},
    mutants.MasksAfterSoftmax: {"key_mask", "padding", "large_logits", "rows_sum_to_one"},
}


@pytest.mark.parametrize("mutant", CAUGHT_CAUSAL)
def test_mutants_are_caught_by_the_checks_that_should(mutant: type) -> None:
    assert set(failures(run_checks(mutant, causal=True))) == CAUGHT_CAUSAL[mutant]


@pytest.mark.parametrize("mutant", CAUGHT_BIDIRECTIONAL)
def test_mutants_without_causality(mutant: type) -> None:
    assert set(failures(run_checks(mutant, causal=False))) == CAUGHT_BIDIRECTIONAL[mutant]


def test_every_mutant_is_in_the_list() -> None:
    defined = {x for x in vars(mutants).values() if isinstance(x, type) and issubclass(x, Honest)}
    assert defined - {Honest, mutants.Raises} == set(CAUGHT_CAUSAL)


def test_the_gate_stops_what_would_be_timed_wrongly() -> None:
    """A58, D01: a variant that cheats has no time."""
    for mutant in (mutants.Peeks, mutants.WrongScale, mutants.KeepsPaddedValues, mutants.CouplesBatch, mutants.InPlace):
        assert failures(gate(mutant, {}, device="cpu", dtype="float32", causal=True))


def test_a_mistake_in_a_plugin_is_a_finding_with_its_type_and_message() -> None:
    found = failures(run_checks(mutants.Raises, causal=False))
    assert found["values"] == "AttributeError: 'Tensor' object has no attribute 'no_such_method'"


@pytest.mark.parametrize("shift", [1, -1])
def test_a03_a_shifted_mask_helper_is_noticed(shift: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle of the tests builds its mask itself; the kit has the pattern's own word only against the future."""
    from test_variants import error_against_loops

    module = importlib.import_module("variants.full")
    honest = module.full_pattern
    assert error_against_loops("full", {}, True, 6, 6) < 1e-12
    monkeypatch.setattr(module, "full_pattern", lambda *size: honest(*size).roll(shift, 0))
    assert error_against_loops("full", {}, True, 6, 6) > 0.1
    if shift < 0:
        assert "pattern" in failures(run_checks(module.Full, causal=True))


NAN, ONE = torch.tensor([float("nan")]), torch.tensor([1.0])


@pytest.mark.parametrize(("got", "want"), [(NAN, ONE), (ONE, NAN), (NAN, NAN), (ONE * torch.inf, ONE)])
def test_a56_the_comparison_fails_on_nan(got: torch.Tensor, want: torch.Tensor) -> None:
    with pytest.raises(AssertionError, match=r"not finite|NaN or infinite"):
        compare("the output", [got], [want], 1.0)


def test_a56_bit_equality_fails_on_nan() -> None:
    with pytest.raises(AssertionError, match="NaN"):
        identical("the output", NAN, NAN)


def test_comparison_is_relative_to_the_largest_entry_and_names_shapes() -> None:
    compare("x", [torch.tensor([100.0, 1e-4])], [torch.tensor([100.0, 0.0])], 1e-5)
    with pytest.raises(AssertionError, match=r"x is off by 0\.01 of its largest entry"):
        compare("x", [torch.tensor([101.0])], [torch.tensor([100.0])], 1e-5)
    with pytest.raises(AssertionError, match=r"shape \(1, 2\), should be \(2,\)"):
        compare("x", [torch.ones(1, 2)], [torch.ones(2)], 1.0)


@variant(kind="different", paper="test", needs_x=True, cross=False, grouped=False, key_mask=False, normalised=False)
class Gated(nn.Module):
    """A running sum of the values, times a gate of the block's input."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.model_dim, 1)

    def forward(self, q, k, v, *, x, key_mask=None):
        return v.cumsum(2) * self.weigh(x)[:, None]

    def weigh(self, x):
        return self.gate(x).sigmoid()

    def reference(self, q, k, v, *, x, key_mask=None):
        gate = (x @ self.gate.weight.T + self.gate.bias).sigmoid()
        return torch.stack([v[:, :, : i + 1].sum(2) * gate[:, None, i] for i in range(v.shape[2])], 2) if len(v) else v

    def prefill(self, k, v, *, x, key_mask=None):
        return v.sum(2, keepdim=True)

    def step(self, state, q, k, v, *, x):
        return (state + v) * self.weigh(x)[:, None], state + v


class PeeksInX(Gated):
    """Its gate knows the whole sequence, in the fast form and in the reference alike."""

    def weigh(self, x):
        return self.gate(x).sigmoid() + x.mean((1, 2))[:, None, None]

    def reference(self, q, k, v, *, x, key_mask=None):
        return self.forward(q, k, v, x=x)


def test_a_variant_that_wants_x_is_checked_with_it_decodes_from_its_state_and_may_not_peek_in_it() -> None:
    assert not failures(run_checks(Gated, causal=True))
    assert {"causality", "causality_of_block", "steps"} <= set(failures(run_checks(PeeksInX, causal=True)))
    shape = Shape(2, 16, causal=True)
    asked = {"dtype": "float32", "device": "cpu", "query_len": 1, "key_len": 9}
    admit(Gated(shape), shape, **asked, decode=True)
    with pytest.raises(Unsupported, match="no cross-attention"):
        admit(Gated(shape), shape, **asked)


def test_the_oracle_on_a_case_worked_by_hand() -> None:
    q, k = torch.zeros(1, 1, 2, 1, dtype=torch.double), torch.zeros(1, 1, 2, 1, dtype=torch.double)
    v = torch.tensor([[[[2.0], [4.0]]]], dtype=torch.double)
    out = softmax_attention(q, k, v, torch.tensor([[True, False], [True, True]]), None, 1.0)
    assert out.flatten().tolist() == [2, 3]
    masked = softmax_attention(q, k, v, torch.tensor([[True, False], [True, True]]), torch.tensor([[False, True]]), 1.0)
    assert masked.flatten().tolist() == [0, 4]


class AddsBias(mutants.IgnoresBias):
    """As it declares."""

    def scores(self, q, k):
        return super().scores(q, k) + self.bias(q.shape[2], k.shape[2]).to(q)


@parametrize_with_checks([AddsBias])
def test_a_bias_that_is_declared_and_added_passes(check) -> None:
    check()


def test_the_oracle_adds_a_bias_by_head() -> None:
    q, k = torch.ones(1, 2, 1, 1, dtype=torch.double), torch.zeros(1, 1, 2, 1, dtype=torch.double)
    v = torch.tensor([[[[0.0], [4.0]]]], dtype=torch.double)
    bias = torch.tensor([[[0.0, 0.0]], [[0.0, 3.0]]], dtype=torch.double).exp().log1p()  # weights 1 + e^b, so 2 : 2
    out = softmax_attention(q, k, v, torch.ones(1, 2, dtype=torch.bool), None, 1.0, bias)
    assert out.flatten().tolist() == pytest.approx([2, 4 * (1 + torch.e**3) / (3 + torch.e**3)])


def test_what_is_not_claimed_is_not_checked_and_the_gate_refuses_it() -> None:
    limited = variant(kind="exact", paper="test", bidirectional=False, key_mask=False, dtypes=("float32",))(
        type("Limited", (Honest,), {})
    )
    findings = run_checks(limited)
    assert {finding.causal for finding in findings} == {True}
    assert not failures(findings)
    skipped = {finding.check: finding.detail for finding in findings if finding.status == "not applicable"}
    assert skipped["padding"] == "key_mask is not claimed"
    with pytest.raises(Unsupported, match="bidirectional"):
        gate(limited, {}, device="cpu", dtype="float32", causal=False)
    with pytest.raises(Unsupported, match="bfloat16"):
        gate(limited, {}, device="cpu", dtype="bfloat16", causal=True)


def test_a55_a_claim_of_causality_that_leaks_is_caught() -> None:
    class LowRank(Honest):
        def scores(self, q, k):
            return super().scores(q, k + k.mean(2, keepdim=True))

    assert {"causality", "causality_of_block"} <= set(
        failures(gate(LowRank, {}, device="cpu", dtype="float32", causal=True))
    )


def test_an_approximate_variant_has_its_error_reported() -> None:
    rough = variant(kind="approximate", paper="test")(type("Rough", (mutants.WrongScale,), {}))
    findings = {finding.check: finding for finding in run_checks(rough, causal=False)}
    assert findings["values"].status == "info"
    assert findings["values"].detail.startswith("relative error 0.0")
    assert not failures(list(findings.values()))


def test_a48_determinism_is_reported() -> None:
    findings = {finding.check: finding for finding in run_checks(Honest, causal=True)}
    assert (findings["determinism"].status, findings["determinism"].detail) == ("info", "deterministic: yes")


def test_a41_dropout_in_eval_mode_is_caught() -> None:
    class Drops(Honest):
        def mix(self, scores, allowed, v):
            return nn.functional.dropout(super().mix(scores, allowed, v), 0.5)

    torch.manual_seed(0)
    findings = run_checks(Drops, causal=False)
    assert "values" in failures(findings)
    assert next(f.detail for f in findings if f.check == "determinism") == "deterministic: no"


def test_building_a_subject_leaves_the_global_random_stream_alone() -> None:
    class Draws(Honest):
        def __init__(self, shape, **knobs):
            super().__init__(shape, **knobs)
            self.weight = nn.Parameter(torch.randn(3))

    torch.manual_seed(5)
    first = Subject(Draws).build(Subject(Draws).shape())
    after = torch.randn(1)
    torch.manual_seed(5)
    assert torch.equal(after, torch.randn(1))
    assert torch.equal(first.weight, Subject(Draws).build(Subject(Draws).shape()).weight)


def test_a_kernel_that_cannot_run_here_is_not_applicable_with_its_own_reason() -> None:
    findings = run_checks(BUILT_IN["flash"], {"backend": "cudnn"}, causal=True)
    assert {finding.status for finding in findings} == {"not applicable"}
    assert findings[0].detail == "backend 'cudnn' needs a CUDA device, got cpu (use backend='flash')"


def test_the_skeleton_passes_every_check_as_it_is(tmp_path: Path) -> None:
    text = (Path(registry.__file__).parent / "skeleton.txt").read_text(encoding="utf-8")
    path = tmp_path / "my_attention.py"
    path.write_text(text.replace("{name}", "my_attention"), encoding="utf-8")
    entry = registry.read_source(path, "my_attention", "test")
    assert entry.broken is None
    assert entry.knobs["window"].default == 64
    cls = registry.load(entry.source())
    assert not failures(run_checks(cls))
    assert not failures(run_checks(cls, {"window": 5}))
