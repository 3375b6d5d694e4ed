"""Comparisons with independent packages, in an environment of their own: `tox -e oracles`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from bench import registry
from bench.variant import Shape

ENTRIES = {entry.name: entry for entry in registry.entries()}
torch.set_num_threads(1)


@pytest.fixture
def build() -> Callable[..., Any]:
    """A variant by name for 4 heads of 32."""

    def make(name: str, *, causal: bool, max_len: int = 1024, kv_heads: int = 4, **knobs: Any) -> Any:
        shape = Shape(4, 32, kv_heads=kv_heads, max_len=max_len, causal=causal)
        return registry.load(ENTRIES[name].source())(shape, **knobs)

    return make


@pytest.fixture
def draw() -> Callable[[int], list[torch.Tensor]]:
    """Normal q, k and v (2, 4, N, 32) in float32."""

    def make(n: int = 128) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        return [torch.randn(2, 4, n, 32, generator=generator) for _ in range(3)]

    return make


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.filterwarnings("default"))  # other packages have warnings of their own
