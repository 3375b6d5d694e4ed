"""Kernels of other libraries: imported when a variant that needs them is built, never by importing this package."""

from __future__ import annotations

import importlib
from typing import Any

from bench.variant import Unsupported


def library(module: str, package: str, *, extra: str | None = None, index: str = "") -> Any:
    """An optional library; raises Unsupported with what to install, or with the cause where it is broken.

    extra: of this package, that installs it. index: options of pip that find it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise _broken(package, error) from error
        install = " ".join(filter(None, ("pip install", package, index)))
        by_extra = f" (or attn-bench[{extra}])" if extra else ""
        raise Unsupported(f"{package} is not installed: {install}{by_extra}") from None
    except (ImportError, OSError, RuntimeError, AttributeError) as error:  # wrong build, missing driver
        raise _broken(package, error) from error


def _broken(package: str, error: Exception) -> Unsupported:
    return Unsupported(f"{package} is installed but cannot be imported: {' '.join(str(error).split())}")
