"""Running the checks: all of them, or the gate before a variant is timed; and their form as pytest tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from bench.conformance import behaviour, numbers
from bench.conformance.subject import NotApplicable, Subject
from bench.variant import Unsupported

Check = Callable[[Subject], str | None]

GATE: tuple[Check, ...] = (
    numbers.check_values,
    numbers.check_gradients,
    behaviour.check_causality,
    behaviour.check_padding,
    behaviour.check_batch_independence,
    behaviour.check_masked_rows,
    behaviour.check_inputs_unchanged,
    behaviour.check_causality_of_block,
    numbers.check_lengths,
)
GATE_NEEDS = frozenset({"values", "gradients", "lengths"})
GATE_IF_CLAIMED: tuple[Check, ...] = (numbers.check_cross, numbers.check_grouped, behaviour.check_steps)
CHECKS: tuple[Check, ...] = (
    *GATE,
    *GATE_IF_CLAIMED,
    numbers.check_key_mask,
    numbers.check_widths,
    numbers.check_scale,
    numbers.check_layouts,
    numbers.check_low_precision,
    numbers.check_large_logits,
    numbers.check_rows_sum_to_one,
    behaviour.check_empty,
    behaviour.check_reuse,
    behaviour.check_pattern,
    behaviour.check_claims,
    behaviour.check_determinism,
)
# What a variant may raise out of its own mistakes: reported as the failure of the check that met it.
MISTAKES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    RuntimeError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True)
class Finding:
    """What one check said about one direction of a variant. `info`: reported, not judged."""

    check: str
    status: Literal["pass", "fail", "not applicable", "info"]
    detail: str
    causal: bool


def name_of(check: Check) -> str:
    """`check_values` -> `values`."""
    return check.__name__.removeprefix("check_")


def find(check: Check, subject: Subject) -> Finding:
    """Run one check. What the variant refuses is not applicable; what it raises by mistake is a failure."""
    status: Literal["pass", "fail", "not applicable", "info"] = "pass"
    try:
        subject.admit()
        told = check(subject) or ""
        status = "info" if told else "pass"
    except (NotApplicable, Unsupported) as reason:
        status, told = "not applicable", str(reason)
    except MISTAKES as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        known = type(error) is AssertionError and str(error)
        status, told = "fail", str(error) if known else f"{type(error).__name__}: {error}"
    return Finding(name_of(check), status, " ".join(told.split()), subject.causal)


def run_checks(
    cls: type,
    knobs: Mapping[str, Any] | None = None,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    causal: bool | None = None,
) -> list[Finding]:
    """All checks on a class marked by `@variant`, in both directions that it claims, or in the one asked for."""
    claims = cls.claims  # type: ignore[attr-defined]
    claimed = [direction for direction, yes in ((True, claims.causal), (False, claims.bidirectional)) if yes]
    return [
        find(check, Subject(cls, dict(knobs or {}), device, dtype, direction))
        for direction in (claimed if causal is None else [causal])
        for check in CHECKS
    ]


def gate(cls: type, knobs: Mapping[str, Any], *, device: str, dtype: str, causal: bool) -> list[Finding]:
    """The checks that decide whether a variant may be timed, on this device, in this dtype and direction.

    Those of `GATE`, and of `GATE_IF_CLAIMED` where they apply. One of `GATE_NEEDS` that says nothing counts as failed:
    what was not compared with the oracle gets no time. Raises Unsupported where the variant does not claim what is
    asked.
    """
    subject = Subject(cls, dict(knobs), device, dtype, causal)
    subject.admit()
    findings = [find(check, subject) for check in (*GATE, *GATE_IF_CLAIMED)]
    needed = GATE_NEEDS if subject.no_backward is None else GATE_NEEDS - {"gradients"}  # then it is never trained
    return [
        replace(finding, status="fail", detail=f"could not be checked: {finding.detail}")
        if finding.status == "not applicable" and finding.check in needed
        else finding
        for finding in findings
    ]


def parametrize_with_checks(
    classes: Iterable[type],
    *,
    knobs: Mapping[str, Any] | None = None,
    expected_failures: Mapping[str, str] | None = None,
) -> Any:
    """Decorator for pytest: one test for each class, direction and check.

    knobs: for all classes. expected_failures: {check name: why it may fail}; such a test has to fail (strict xfail)::

        @parametrize_with_checks([MyAttention])
        def test_my_attention(check):
            check()
    """
    import pytest

    def case(check: Check, subject: Subject) -> Callable[[], None]:
        def run() -> None:
            finding = find(check, subject)
            if finding.status == "not applicable":
                pytest.skip(finding.detail)
            assert finding.status != "fail", finding.detail

        return run

    cases = []
    for cls in classes:
        claims = cls.claims  # type: ignore[attr-defined]
        for causal in [yes for yes in (True, False) if (claims.causal if yes else claims.bidirectional)]:
            for check in CHECKS:
                reason = (expected_failures or {}).get(name_of(check))
                marks = [pytest.mark.xfail(reason=reason, strict=True)] if reason else []
                label = f"{cls.__name__}-{'causal' if causal else 'bidirectional'}-{name_of(check)}"
                run = case(check, Subject(cls, dict(knobs or {}), causal=causal))
                cases.append(pytest.param(run, id=label, marks=marks))
    return pytest.mark.parametrize("check", cases)
