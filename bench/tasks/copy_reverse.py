"""Copying and reversing for an encoder-decoder: all that the target needs comes through cross-attention.

Ids 0..V-2 are data, V-1 starts the target. The source is random; at place i the decoder has read the start and the i
tokens before it and is asked for the next one: of the source as it stands, or from its end. Jelassi et al. 2024
(arXiv 2402.01032) show that copying is what a fixed state cannot do for long.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bench.tasks import Baseline, Batch, Data, Metric, Preset, Task
from bench.tasks._generated import BINS, Generated, ranges

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, kw_only=True)
class CopyReversePreset(Preset):
    """order: of the target. Raises ValueError for sizes that hold no such sequence."""

    order: Literal["copy", "reverse"]

    def __post_init__(self) -> None:
        if self.vocab < 3:
            raise ValueError(f"vocab must be at least 3 (two data ids and the start), got {self.vocab}")


@dataclass(eq=False)
class Pairs(Generated):
    """Sources and targets of one preset and seed."""

    preset: CopyReversePreset

    @property
    def width(self) -> int:
        """Places in one bin."""
        return max(1, self.preset.seq_len // BINS)

    @property
    def bins(self) -> list[str]:
        """Labels of the bins of places in the target."""
        return ranges(self.preset.seq_len, self.width)

    @property
    def baseline(self) -> Baseline:
        """Answering any of the data ids."""
        return Baseline(1 / (self.preset.vocab - 1), "any of the data tokens")

    def draw(self, rng: np.random.Generator, count: int) -> Batch:
        """`count` sources with what the decoder reads and is asked for."""
        import numpy as np

        length, start = self.preset.seq_len, self.preset.vocab - 1
        source_BN = rng.integers(0, start, (count, length))
        target_BN = source_BN if self.preset.order == "copy" else source_BN[:, ::-1]
        read_BN = np.concatenate([np.full((count, 1), start), target_BN[:, :-1]], axis=1)
        bins_BN = np.broadcast_to(np.arange(length) // self.width, (count, length))
        return Batch(np.stack([source_BN, read_BN], axis=1), np.ascontiguousarray(target_BN), bins_BN)


COPY = CopyReversePreset(
    summary="copy 32 tokens; 1 layer of width 64 on each side",
    seq_len=32, vocab=33, order="copy", model="encoder-decoder",
    d_model=64, layers=1, heads=2, ffn="gelu", ffn_ratio=2.0, positions="learned",
    batch=64, steps=600, learning_rates=(1e-3, 3e-3, 1e-2),
    eval_every=50, validation_size=128, test_size=512, target=0.99,
)  # fmt: skip
LONG = replace(
    COPY, summary="copy 256 tokens; 2 layers of width 128 on each side", seq_len=256, vocab=257,
    d_model=128, layers=2, heads=4, steps=5000, eval_every=250, learning_rates=(3e-4, 1e-3, 3e-3),
)  # fmt: skip
PRESETS: dict[str, Preset] = {
    "copy-32": COPY,
    "reverse-32": replace(COPY, summary="reverse 32 tokens; 1 layer of width 64 on each side", order="reverse"),
    "copy-256": LONG,
    "reverse-256": replace(LONG, summary="reverse 256 tokens; 2 layers of width 128 on each side", order="reverse"),
}  # fmt: skip


class CopyReverse(Task):
    """Cross-attention that must point at one place."""

    name = "copy_reverse"
    summary = "encoder-decoder: write the source again, forwards or backwards; accuracy by place"
    metric: Metric = "accuracy"
    presets: Mapping[str, Preset] = PRESETS

    def open(self, preset: Preset, *, seed: int, text: str | Path | None = None) -> Data:
        """The data of one run; nothing is read."""
        assert isinstance(preset, CopyReversePreset)
        return Pairs(preset, seed, f"copy_reverse {preset.order}")


TASK = CopyReverse()
