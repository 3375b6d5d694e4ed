"""Image of Long Range Arena (Tay et al. 2020, arXiv 2011.04006): CIFAR-10 in grey, 1024 pixels one after another.

Published accuracies on its training set reach 97 % with 39 % on its test set: it measures over-fitting more than reach.
The preset has the sizes of the ports (Xiong et al. 2021, Chen et al. 2021): one model for all variants, unlike the
original, where its size differs from variant to variant and black pixels count as padding. The rate follows this
harness's schedule, a warm-up and a cosine.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bench.tasks import Data, Metric, Preset, Task

PRESETS: dict[str, Preset] = {
    "port": Preset(
        summary="1024 pixels; 2 layers of width 64, mean over positions (port)",
        seq_len=1024, vocab=256, model="classifier", classes=10,
        d_model=64, layers=2, heads=2, ffn="gelu", ffn_ratio=2.0, positions="learned", dropout=0.1,
        batch=256, steps=35_000, learning_rates=(1e-4, 3e-4, 1e-3), weight_decay=0.0,
        eval_every=1000, validation_size=5000, test_size=10_000,
    ),
}  # fmt: skip


class LraImage(Task):
    """CIFAR-10 from a folder or the hub."""

    name = "lra_image"
    summary = "Long Range Arena, image: CIFAR-10 as 1024 grey pixels, from your folder; accuracy by class"
    metric: Metric = "accuracy"
    presets: Mapping[str, Preset] = PRESETS
    directions = (False, True)

    def absent(self, preset: Preset, text: str | None) -> str | None:
        """Whether the folder of CIFAR-10 is there."""
        from bench.tasks import _images, _stored

        return _stored.missing(text, _images.CIFAR_FILES, _images.CIFAR_HOW, hub=_images.CIFAR_HUB)

    def open(self, preset: Preset, *, seed: int, text: str | Path | None = None) -> Data:
        """The data of one run; `text` is the folder of CIFAR-10 or `hub:`. UserError when it cannot be read."""
        from bench.tasks import _images, _stored

        parts = _images.cifar(str(text))
        return _stored.Stored(preset, seed, self.name, "CIFAR-10", _images.CIFAR_CLASSES, parts)


TASK = LraImage()
