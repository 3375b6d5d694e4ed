"""attn-bench: measures attention variants inside one common Transformer block.

From Python: `from bench import Sweep, run, read_results`. Names are loaded when they are asked for; none loads torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.api import run
    from bench.results import read_results
    from bench.sweep import Sweep

__version__ = "0.1.0"
__all__ = ["Sweep", "__version__", "read_results", "run"]
_HOMES = {"Sweep": "bench.sweep", "read_results": "bench.results", "run": "bench.api"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bench' has no attribute '{name}' (public: {', '.join(__all__)})")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
