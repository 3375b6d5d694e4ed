"""The naive code of flash-linear-attention, and its layout."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch


def package() -> Path:
    """The folder of the installed package, which is not imported: it needs Triton."""
    spec = importlib.util.find_spec("fla")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("flash-linear-attention is not installed")
    return Path(next(iter(spec.submodule_search_locations)))


def naive(name: str, **absent: Any) -> Any:
    """A `naive.py` of the package, loaded by its path. absent: modules that it imports and that need Triton."""
    path = package() / "ops" / name / "naive.py"
    with pytest.MonkeyPatch.context() as patch:
        for module, attributes in absent.items():
            patch.setitem(sys.modules, module, types.ModuleType(module))
            vars(sys.modules[module]).update(attributes)
        found = importlib.util.spec_from_file_location(f"naive_{name}", path)
        assert found is not None and found.loader is not None
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
        return module


def turned(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Between (B, H, N, D) and (B, N, H, D)."""
    return [x.transpose(1, 2).contiguous() for x in tensors]
