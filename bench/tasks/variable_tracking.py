"""Variable tracking, as in RULER (Hsieh et al. 2024, arXiv 2404.06654), on integer tokens and trained from scratch.

Token 0 is filler, variables are 1..V/2-1, values V/2..V-1. A chain gives a variable a value and then, `hops` times, the
last variable to a new one: x1 = 7, x2 = x1, x3 = x2. Each assignment is two tokens, the variable and what it gets, in a
slot drawn uniformly from the first half, in order within its chain; chains mingle. In the second half every variable
is asked for once and the label is the value at the start of its chain. Accuracy falls with hops for a model that is not
deep enough, and at all hops for one that cannot recall.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.tasks import IGNORE, Baseline, Batch, Data, Metric, Preset, Task
from bench.tasks._generated import Generated, distinct

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, kw_only=True)
class TrackingPreset(Preset):
    """chains of 1 + hops assignments. Raises ValueError for sizes that hold no such sequence."""

    chains: int
    hops: int

    def __post_init__(self) -> None:
        most = self.seq_len // 4
        if self.chains < 1 or self.hops < 0 or self.variables > most:
            raise ValueError(f"chains * (hops + 1) must be 1 to {most} (seq_len / 4), got {self.variables}")
        if self.vocab % 2 or self.vocab // 2 <= self.variables:
            raise ValueError(f"vocab must be even and above {2 * self.variables} (2 variables), got {self.vocab}")

    @property
    def variables(self) -> int:
        """Variables in a sequence."""
        return self.chains * (self.hops + 1)


@dataclass(eq=False)
class Assignments(Generated):
    """The sequences of one preset and seed."""

    preset: TrackingPreset

    @property
    def bins(self) -> list[str]:
        """Labels by the number of variables between the one asked for and the value."""
        return [f"{hop} hops" if hop != 1 else "1 hop" for hop in range(self.preset.hops + 1)]

    @property
    def baseline(self) -> Baseline:
        """Answering one of the values in the sequence, whichever."""
        return Baseline(1 / self.preset.chains, "any of the values in the sequence")

    @property
    def baselines(self) -> Mapping[str, float]:
        """Looking up a variable once: right where that gives a value, a guess where it gives a variable."""
        share = 1 / (self.preset.hops + 1)
        return {"one look-up": share + (1 - share) / self.preset.chains}

    def draw(self, rng: np.random.Generator, count: int) -> Batch:
        """`count` sequences."""
        import numpy as np

        preset, half = self.preset, self.preset.vocab // 2
        chains, links, total = preset.chains, preset.hops + 1, preset.variables
        names_BCL = 1 + distinct(rng, count, half - 1, total).reshape(count, chains, links)
        values_BC = half + distinct(rng, count, half, chains)
        given_BCL = np.concatenate([values_BC[:, :, None], names_BCL[:, :, :-1]], axis=2)
        slots = preset.seq_len // 4
        places_BCL = np.sort(distinct(rng, count, slots, total).reshape(count, chains, links), axis=2)
        set_BP, asked_BP = 2 * places_BCL.reshape(count, total), 2 * slots + 2 * distinct(rng, count, slots, total)
        names_BP = names_BCL.reshape(count, total)
        tokens_BN = np.zeros((count, preset.seq_len), np.int64)
        np.put_along_axis(tokens_BN, set_BP, names_BP, axis=1)
        np.put_along_axis(tokens_BN, set_BP + 1, given_BCL.reshape(count, total), axis=1)
        np.put_along_axis(tokens_BN, asked_BP, names_BP, axis=1)
        labels_BN = np.full((count, preset.seq_len), IGNORE, np.int64)
        np.put_along_axis(labels_BN, asked_BP, values_BC.repeat(links, axis=1), axis=1)
        bins_BN = np.zeros((count, preset.seq_len), np.int64)
        np.put_along_axis(bins_BN, asked_BP, np.tile(np.arange(links), (count, chains)), axis=1)
        return Batch(tokens_BN, labels_BN, bins_BN)


TINY = TrackingPreset(
    summary="64 tokens, 8 chains of 1 hop; 2 layers of width 64 without feed-forward",
    seq_len=64, vocab=64, chains=8, hops=1,
    d_model=64, layers=2, heads=1, ffn="none", positions="learned", conv=3,
    batch=64, steps=600, learning_rates=(1e-3, 3e-3, 1e-2),
    eval_every=50, validation_size=256, test_size=1024, target=0.99,
)  # fmt: skip
PRESETS: dict[str, Preset] = {
    "tiny": TINY,
    "small": replace(
        TINY, summary="64 tokens, 5 chains of 2 hops; 3 layers of width 64", chains=5, hops=2,
        layers=3, ffn="gelu", ffn_ratio=2.0, steps=3000, eval_every=250,
    ),
    "ruler": replace(
        TINY, summary="1024 tokens, 8 chains of 4 hops, as many as in RULER; 6 layers of width 128",
        seq_len=1024, vocab=512, chains=8, hops=4, d_model=128, layers=6, heads=4, ffn="gelu", ffn_ratio=2.0,
        steps=20_000, eval_every=500, learning_rates=(3e-4, 1e-3, 3e-3),
    ),
}  # fmt: skip


class VariableTracking(Task):
    """Chains of look-ups: shows depth beside recall."""

    name = "variable_tracking"
    summary = "variables given on from one to the next: accuracy of their values, by hops"
    metric: Metric = "accuracy"
    presets: Mapping[str, Preset] = PRESETS
    directions = (True, False)

    def open(self, preset: Preset, *, seed: int, text: str | Path | None = None) -> Data:
        """The data of one run; nothing is read."""
        assert isinstance(preset, TrackingPreset)
        return Assignments(preset, seed, "variable_tracking")


TASK = VariableTracking()
