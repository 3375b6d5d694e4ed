"""Pathfinder (Linsley et al. 2018, 1805.08315; Houtkamp and Roelfsema 2010): are two discs on one dashed curve.

Two long curves of dashes and shorter distractors stand in an image of 32 by 32 pixels, read row by row; a disc is on
the first tip of one long curve and another on the last tip of the same curve (connected) or of the other one. The
numbers are those published for Long Range Arena's images; the program is our own, so the images are not theirs and an
accuracy here is no accuracy there (`lra_pathfinder` reads those). An image of 14 dashes takes about 40 ms to make, so
the training images are kept and come again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from bench.tasks import Baseline, Batch, Data, Metric, Preset, Task
from bench.tasks._generated import Generated

if TYPE_CHECKING:
    import numpy as np

SIDE = 32
CLASSES = ("not connected", "connected")
INK = 20  # dashes of all distractors together
LEARNED_FROM = 10  # training batches of the bag of tokens


@dataclass(frozen=True, kw_only=True)
class PathfinderPreset(Preset):
    """length: dashes of the long curves; a distractor has a third. train_size: images to train on."""

    length: int
    train_size: int

    def __post_init__(self) -> None:
        if not 3 <= self.length <= 14:
            raise ValueError(f"length must be 3 to 14 (dashes that find room), got {self.length}")


@dataclass(eq=False)
class Images(Generated):
    """The images of one preset and seed."""

    preset: PathfinderPreset
    bins = CLASSES
    kept: dict[int, Batch] = field(default_factory=dict)

    @cached_property
    def baseline(self) -> Baseline:
        """Always the more frequent class."""
        from bench.tasks._baselines import labels_of, majority

        return majority(labels_of(self.held_out("test")))

    @cached_property
    def baselines(self) -> Mapping[str, float]:
        """How often each shade comes."""
        from bench.tasks._baselines import bag_of_tokens

        batches = map(self.train, range(LEARNED_FROM))
        return {"bag of tokens": bag_of_tokens(batches, self.held_out("test"), vocab=256, classes=2)}

    def train(self, step: int) -> Batch:
        """The training batch of a step, made once."""
        import numpy as np

        step %= max(1, self.preset.train_size // self.preset.batch)
        if step not in self.kept:
            batch = super().train(step)
            self.kept[step] = replace(batch, tokens=batch.tokens.astype(np.uint8))
        return replace(self.kept[step], tokens=self.kept[step].tokens.astype(np.int64))

    def draw(self, rng: np.random.Generator, count: int) -> Batch:
        """`count` images, each as likely connected as not."""
        import numpy as np

        from bench.tasks import _curves

        short = self.preset.length // 3
        sizes = _curves.Sizes(SIDE, self.preset.length, short, INK // short)
        labels_B1 = rng.integers(2, size=(count, 1))
        tokens_BN = np.empty((count, SIDE * SIDE), np.int64)
        for row, connected in enumerate(labels_B1[:, 0]):
            drawing = _curves.grow(rng, sizes)
            curve = rng.integers(2)
            discs = np.stack([drawing.starts[curve], drawing.ends[curve if connected else 1 - curve]])
            tokens_BN[row] = _curves.paint(drawing.points, discs, sizes).ravel()
        return Batch(tokens_BN, labels_B1, labels_B1)


EASY = PathfinderPreset(
    summary="32 by 32, 6 dashes, 1024 pixels; 2 layers of width 64",
    seq_len=SIDE * SIDE, vocab=256, model="classifier", classes=2, length=6, train_size=10_000,
    d_model=64, layers=2, heads=2, ffn="gelu", ffn_ratio=2.0, positions="learned",
    batch=32, steps=2000, learning_rates=(3e-4, 1e-3, 2e-3),
    eval_every=200, validation_size=500, test_size=1000,
)  # fmt: skip
PRESETS: dict[str, Preset] = {
    "easy": EASY,
    "hard-14": replace(
        EASY, summary="32 by 32, 14 dashes, 1024 pixels; 4 layers of width 128", length=14, train_size=40_000,
        d_model=128, layers=4, heads=4, batch=128, steps=60_000, eval_every=1000, dropout=0.1,
        validation_size=1000, test_size=2000,
    ),
}  # fmt: skip


class Pathfinder(Task):
    """Tracing in space; short trainings stay at one half."""

    name = "pathfinder"
    summary = "images of dashed curves: accuracy of whether two discs are on the same one"
    metric: Metric = "accuracy"
    presets: Mapping[str, Preset] = PRESETS
    directions = (False, True)

    def open(self, preset: Preset, *, seed: int, text: str | Path | None = None) -> Data:
        """The data of one run; nothing is read."""
        assert isinstance(preset, PathfinderPreset)
        return Images(preset, seed, f"pathfinder {preset.length}", preset.train_size)


TASK = Pathfinder()
