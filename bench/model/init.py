"""Parameters drawn from a seed and its purpose: the same in every process, whichever variant is inside."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derived(seed: int, *purpose: str | int) -> int:
    """The seed of one purpose: a 63-bit integer that depends on the seed and every word of the purpose."""
    digest = hashlib.sha256(repr((seed, *purpose)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


@contextmanager
def seeded(seed: int, *purpose: str | int) -> Iterator[None]:
    """Inside, draws on the CPU come from the stream of (seed, purpose); the process's own stream is left as it was.

    torch's layers, and a variant's own, take no generator: this is how their parameters get one.
    """
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(derived(seed, *purpose))
        yield
