"""The conformance kit: one function a property, run on any variant, given to authors under pytest."""

from bench.conformance.run import CHECKS, GATE, Finding, gate, parametrize_with_checks, run_checks
from bench.conformance.spot import spot_error
from bench.conformance.subject import NotApplicable, Subject

__all__ = [
    "CHECKS",
    "GATE",
    "Finding",
    "NotApplicable",
    "Subject",
    "gate",
    "parametrize_with_checks",
    "run_checks",
    "spot_error",
]
