"""Selective copying (Gu and Dao 2023, Mamba, arXiv 2312.00752, appendix E.1; sizes of MAD, arXiv 2403.17844).

Ids 0..V-3 are data, V-2 is the blank, V-1 the copy token. `count` data tokens stand at places drawn uniformly among
the blanks of the first part; then comes the copy token and `count` blanks, at which the data tokens are asked for in
their order. So the answer needs what a token is and how many stood before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.tasks import IGNORE, Baseline, Batch, Data, Metric, Preset, Task
from bench.tasks._generated import ByDistance, distinct

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, kw_only=True)
class CopyPreset(Preset):
    """count: data tokens to copy. Raises ValueError for sizes that hold no such sequence."""

    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.count <= (self.seq_len - 1) // 2:
            raise ValueError(f"count must be 1 to {(self.seq_len - 1) // 2} (half of seq_len), got {self.count}")
        if self.vocab < 4:
            raise ValueError(f"vocab must be at least 4 (two data ids, blank, copy), got {self.vocab}")

    @property
    def room(self) -> int:
        """Positions in which the data tokens stand."""
        return self.seq_len - self.count - 1


@dataclass(eq=False)
class Copies(ByDistance):
    """The sequences of one preset and seed, by the distance from a question to its answer."""

    preset: CopyPreset

    @property
    def baseline(self) -> Baseline:
        """Answering any of the data ids."""
        return Baseline(1 / (self.preset.vocab - 2), "any of the data tokens")

    def draw(self, rng: np.random.Generator, count: int) -> Batch:
        """`count` sequences."""
        import numpy as np

        preset = self.preset
        blank, copy = preset.vocab - 2, preset.vocab - 1
        data_BT = rng.integers(0, preset.vocab - 2, (count, preset.count))
        places_BT = np.sort(distinct(rng, count, preset.room, preset.count), axis=1)
        tokens_BN = np.full((count, preset.seq_len), blank, np.int64)
        np.put_along_axis(tokens_BN, places_BT, data_BT, axis=1)
        tokens_BN[:, preset.room] = copy
        labels_BN = np.full((count, preset.seq_len), IGNORE, np.int64)
        asked_T = preset.room + 1 + np.arange(preset.count)
        labels_BN[:, asked_T] = data_BT
        bins_BN = np.zeros((count, preset.seq_len), np.int64)
        bins_BN[:, asked_T] = (asked_T - places_BT - 1) // self.width
        return Batch(tokens_BN, labels_BN, bins_BN)


TINY = CopyPreset(
    summary="128 tokens, 8 to copy, 2 layers of width 64",
    seq_len=128, vocab=16, count=8,
    d_model=64, layers=2, heads=4, ffn="gelu", ffn_ratio=2.0, positions="learned", conv=3,
    batch=32, steps=1000, learning_rates=(1e-3, 3e-3, 1e-2),
    eval_every=100, validation_size=256, test_size=1024, target=0.99,
)  # fmt: skip
PRESETS: dict[str, Preset] = {
    "tiny": TINY,
    "mad": replace(
        TINY, summary="256 tokens, 16 to copy, width 128 (MAD)",
        seq_len=256, count=16, d_model=128, batch=128, steps=20_000, eval_every=500, learning_rates=(1e-4, 5e-4, 1e-3),
        ffn="swiglu", ffn_ratio=4.0, test_size=1280,
    ),
    "mamba": replace(
        TINY, summary="4096 tokens, 16 to copy, width 64 (Mamba)",
        seq_len=4096, count=16, batch=64, steps=400_000, eval_every=2000, learning_rates=(3e-5, 1e-4, 3e-4),
    ),
}  # fmt: skip


class SelectiveCopy(Task):
    """Copying by order and place, not by content alone."""

    name = "selective_copy"
    summary = "selective copying: data tokens among blanks, asked for in their order; accuracy by distance"
    metric: Metric = "accuracy"
    presets: Mapping[str, Preset] = PRESETS
    directions = (True, False)

    def open(self, preset: Preset, *, seed: int, text: str | Path | None = None) -> Data:
        """The data of one run; there is no text in it."""
        assert isinstance(preset, CopyPreset)
        return Copies(preset, seed, "selective_copy")


TASK = SelectiveCopy()
