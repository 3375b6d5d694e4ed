"""What a cell would cost, predicted without allocating: fake tensors with a tracker of live bytes."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bench import registry
from bench.cells import Cell
from bench.measure import workload


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all tensor storages made under it: `live` now, `peak` since the last `restart`.

    Sees what PyTorch operators return, not what a fused operator allocates and frees inside.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._known: set[int] = set()

    def restart(self) -> int:
        """Start a new peak; returns the bytes live now."""
        self.peak = self.live
        return self.live

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._track(leaf.untyped_storage())
        return result

    def _track(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._known:
            return
        size = storage.nbytes()
        self._known.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._release, key, size)

    def _release(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


def flops(cell: Cell) -> int | None:
    """FLOPs of one call of the cell, None when the variant does not say; raises `Unsupported` where the cell would."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        return workload.build(cell, registry.load(cell.source), cell.device).flops


def predict(cell: Cell) -> dict[str, int | None]:
    """Predicted peak_bytes of the call, and total_bytes with all that exists before it.

    Raises `Unsupported` where the cell would, and whatever the variant raises on fake tensors.
    """
    cls = registry.load(cell.source)
    with FakeTensorMode(allow_non_fake_inputs=True), LiveBytes() as live:
        built = workload.build(cell, cls, cell.device)
        before = live.restart()
        result = built.call()
        peak = live.peak - before
        del result
    return {"peak_bytes": peak, "total_bytes": before + peak}
