"""Multi-query associative recall (Arora, Eyuboglu et al. 2023, Zoology, arXiv 2312.04927).

Token 0 is filler, keys are 1..V/2-1, values V/2..V-1. A sequence starts with `pairs` distinct keys, each followed by
its value, all values distinct. The rest are slots of two tokens; each key is asked once, as the first token of a slot
drawn uniformly or by a power law, and the label at that position is the key's value. The answer is never written beside
the question, so the causal and the bidirectional task are the same.
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

EPOCHS, EXAMPLES = 64, 100_000  # of the published trainings


@dataclass(frozen=True, kw_only=True)
class MqarPreset(Preset):
    """pairs: keys to recall per sequence. Raises ValueError for sizes that hold no such sequence.

    power: exponent a of the law by which a slot s = 1, 2, ... is drawn, s^(a-1): 1 is uniform, near 0 most questions
    come early. examples: training sequences that there are, None where none comes twice.
    """

    pairs: int
    power: float = 1.0
    examples: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.pairs <= self.seq_len // 4:
            raise ValueError(f"pairs must be 1 to {self.seq_len // 4} (seq_len / 4), got {self.pairs}")
        if self.vocab % 2 or self.vocab // 2 <= self.pairs:
            raise ValueError(f"vocab must be even and above {2 * self.pairs} (2 pairs), got {self.vocab}")


@dataclass(eq=False)
class Recall(ByDistance):
    """The sequences of one preset and seed, by the distance from a question to its answer."""

    preset: MqarPreset

    @property
    def baseline(self) -> Baseline:
        """Answering one of the values in the sequence, whichever."""
        return Baseline(1 / self.preset.pairs, "any of the values in the sequence")

    def draw(self, rng: np.random.Generator, count: int) -> Batch:
        """`count` sequences."""
        import numpy as np

        length, pairs, half = self.preset.seq_len, self.preset.pairs, self.preset.vocab // 2

        keys_BP = 1 + distinct(rng, count, half - 1, pairs)
        values_BP = half + distinct(rng, count, half, pairs)
        slots, bend = (length - 2 * pairs) // 2, self.preset.power - 1
        weights = np.arange(1, slots + 1, dtype=np.float64) ** bend if bend else None
        asked_BP = 2 * pairs + 2 * distinct(rng, count, slots, pairs, weights)
        bound_P = 2 * np.arange(pairs)
        tokens_BN = np.zeros((count, length), np.int64)
        tokens_BN[:, bound_P], tokens_BN[:, bound_P + 1] = keys_BP, values_BP
        np.put_along_axis(tokens_BN, asked_BP, keys_BP, axis=1)
        labels_BN = np.full((count, length), IGNORE, np.int64)
        np.put_along_axis(labels_BN, asked_BP, values_BP, axis=1)
        bins_BN = np.zeros((count, length), np.int64)
        np.put_along_axis(bins_BN, asked_BP, (asked_BP - bound_P - 1) // self.width, axis=1)
        return Batch(tokens_BN, labels_BN, bins_BN)


TINY = MqarPreset(
    summary="64 tokens, 16 pairs, 2 layers of width 16 without feed-forward",
    seq_len=64, vocab=256, pairs=16,
    d_model=16, layers=2, heads=1, ffn="none", positions="learned", conv=3,
    batch=64, steps=600, learning_rates=(3e-3, 1e-2, 3e-2),
    eval_every=50, validation_size=256, test_size=1024, target=0.99,
)  # fmt: skip

# Fewer symbols and more width: also a variant that can answer only some questions learns those within the budget.
QUICK = replace(
    TINY, summary="tiny with 72 symbols and width 32: learned sooner, also within a window",
    vocab=72, d_model=32,
)  # fmt: skip
PRESETS: dict[str, Preset] = {
    "quick": QUICK,
    "tiny": TINY,
    "standard": replace(QUICK, summary="quick with more steps", steps=1500),
    "small": replace(
        TINY, summary="128 tokens, 16 pairs, 2 layers of width 64 without feed-forward",
        seq_len=128, vocab=512, d_model=64, steps=1500, learning_rates=(1e-3, 3e-3, 1e-2),
    ),
    **{
        f"paper-{length}": replace(
            TINY, summary=f"{length} tokens, {pairs} pairs mostly asked early, vocabulary 8192, width 64 (Zoology)",
            power=0.01, examples=EXAMPLES, dropout=0.1,
            seq_len=length, vocab=8192, pairs=pairs, d_model=64, batch=batch, steps=EPOCHS * -(-EXAMPLES // batch),
            eval_every=1000, learning_rates=(1e-4, 4.64e-4, 2.15e-3, 1e-2), validation_size=1000, test_size=3000,
        )
        for length, pairs, batch in ((64, 4, 512), (128, 8, 512), (256, 16, 256), (512, 64, 128))
    },
}  # fmt: skip


class Mqar(Task):
    """Recall of many pairs: shows capacity (flat but low) and reach (a cliff at the receptive field)."""

    name = "mqar"
    summary = "multi-query associative recall: accuracy over the keys asked, by distance"
    metric: Metric = "accuracy"
    presets: Mapping[str, Preset] = PRESETS
    directions = (True, False)

    def open(self, preset: Preset, *, seed: int, text: str | Path | None = None) -> Data:
        """The data of one run; there is no text in it."""
        assert isinstance(preset, MqarPreset)
        return Recall(preset, seed, "mqar", preset.examples)


TASK = Mqar()
