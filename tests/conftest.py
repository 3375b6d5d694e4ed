"""Shared by all tests: one torch thread a process, and plugins for every hazard in tests/plugins/."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
PLUGINS = Path(__file__).parent / "plugins"
torch.set_num_threads(1)


@pytest.fixture
def plugin():
    """The path of a fake plugin by name, as a user would write it."""

    def path(name: str) -> str:
        return str(PLUGINS / f"{name}.py")

    return path
