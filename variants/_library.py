"""Kernels of other libraries: imported when a variant that needs them is built, never by importing this package."""

from __future__ import annotations

import importlib
from typing import Any

from bench.variant import Unsupported


def library(module: str, package: str) -> Any:
    """An optional library; raises Unsupported with what to install, or with the cause where it is broken."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise _broken(package, error) from error
        raise Unsupported(f"{package} is not installed: pip install {package} (extra: attn-bench[kernels])") from None
    except (ImportError, OSError, RuntimeError, AttributeError) as error:  # wrong build, missing driver
        raise _broken(package, error) from error


def _broken(package: str, error: Exception) -> Unsupported:
    return Unsupported(f"{package} is installed but cannot be imported: {' '.join(str(error).split())}")
