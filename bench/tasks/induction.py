"""Induction heads (Olsson et al. 2022, arXiv 2209.11895; sizes of Gu and Dao 2023, Mamba, arXiv 2312.00752, table 11).

Random ids 0..V-2; id V-1 is special. It stands once at a place drawn uniformly, followed by a token, and again at the
end, where that token is asked for. One binding, at any distance: what shows is reach alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.tasks import IGNORE, Baseline, Batch, Data, Metric, Preset, Task
from bench.tasks._generated import ByDistance

if TYPE_CHECKING:
    import numpy as np


LEAST = 256  # test sequences of a length


@dataclass(frozen=True, kw_only=True)
class InductionPreset(Preset):
    """lengths: of the test sequences that show how far a model carries on beyond what it was trained at."""

    lengths: tuple[int, ...]


@dataclass(eq=False)
class Induction(ByDistance):
    """The sequences of one preset and seed, by the distance from a question to its answer."""

    preset: InductionPreset

    @property
    def longest(self) -> int:
        """From the question at the end to the second position."""
        return self.preset.seq_len - 2

    @property
    def baseline(self) -> Baseline:
        """Answering any of the ordinary ids."""
        return Baseline(1 / (self.preset.vocab - 1), "any of the tokens")

    def lengths(self) -> Mapping[int, Iterable[Batch]]:
        """As many tokens at each length as there are in the test split, of the trained length that split itself."""
        found: dict[int, Iterable[Batch]] = {}
        for length in self.preset.lengths:
            size = max(LEAST, self.preset.test_size * self.preset.seq_len // length)
            preset = replace(self.preset, seq_len=length, test_size=size)
            other = Induction(preset, self.seed, f"{self.purpose} at {length}")
            found[length] = (self if length == self.preset.seq_len else other).held_out("test")
        return found

    def draw(self, rng: np.random.Generator, count: int) -> Batch:
        """`count` sequences."""
        import numpy as np

        length, special = self.preset.seq_len, self.preset.vocab - 1
        tokens_BN = rng.integers(0, special, (count, length))
        place_B = rng.integers(0, length - 2, count)
        every_B = np.arange(count)
        answer_B = tokens_BN[every_B, place_B + 1]
        tokens_BN[every_B, place_B] = special
        tokens_BN[:, -1] = special
        labels_BN = np.full((count, length), IGNORE, np.int64)
        labels_BN[:, -1] = answer_B
        bins_BN = np.zeros((count, length), np.int64)
        bins_BN[:, -1] = (length - 1 - (place_B + 1) - 1) // self.width
        return Batch(tokens_BN, labels_BN, bins_BN)


TINY = InductionPreset(
    summary="64 tokens, tested at 32 to 512, 2 layers of width 32 without feed-forward",
    seq_len=64, vocab=16, lengths=(32, 64, 128, 256, 512), longest=512,
    d_model=32, layers=2, heads=1, ffn="none", positions="rotary", conv=3,
    batch=64, steps=600, learning_rates=(3e-3, 1e-2, 3e-2),
    eval_every=50, validation_size=512, test_size=2048, target=0.99,
)  # fmt: skip
PRESETS: dict[str, Preset] = {
    "tiny": TINY,
    "mamba": replace(
        TINY, summary="256 tokens, tested at 64 to 4096, 2 layers of width 64 (Mamba)",
        seq_len=256, lengths=(64, 128, 256, 512, 1024, 2048, 4096), longest=4096,
        d_model=64, batch=8, steps=8192, eval_every=512, learning_rates=(3e-4, 1e-3, 3e-3),
    ),
}  # fmt: skip


class InductionHeads(Task):
    """One pair to recall, near or far."""

    name = "induction"
    summary = "induction heads: the token that followed a special one, asked for at the end; accuracy by distance"
    metric: Metric = "accuracy"
    presets: Mapping[str, Preset] = PRESETS
    directions = (True, False)

    def open(self, preset: Preset, *, seed: int, text: str | Path | None = None) -> Data:
        """The data of one run; there is no text in it."""
        assert isinstance(preset, InductionPreset)
        return Induction(preset, seed, "induction")


TASK = InductionHeads()
