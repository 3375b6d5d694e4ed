"""Text of Long Range Arena (Tay et al. 2020, arXiv 2011.04006): is a film review favourable, read byte by byte.

The reviews are those of Maas et al. 2011 (aclImdb), cut at the preset's length, which is part of the task and counted.
A tenth of the training reviews, by hash, validates: the original and its ports validate on the test reviews. Local
features do well here: a convolution of width 5 comes within 2 % of the best.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.tasks import Data, Metric, Preset, Task

if TYPE_CHECKING:
    from bench.tasks._stored import Example, Parts

CLASSES = ("negative", "positive")
FOLDERS = {"neg": 0, "pos": 1}
WANTED = tuple(f"{split}/{folder}" for split in ("train", "test") for folder in FOLDERS)
HUB = "stanfordnlp/imdb"
HOW = (
    "download https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz, unpack it and give "
    "file = 'aclImdb', or file = 'hub:'"
)

PORT = Preset(
    summary="4096 bytes; 2 layers of width 64, mean over positions (port)",
    seq_len=4096, vocab=256, model="classifier", classes=2, padded=True,
    d_model=64, layers=2, heads=2, ffn="gelu", ffn_ratio=2.0, positions="learned", dropout=0.1,
    batch=32, steps=20_000, learning_rates=(1e-4, 3e-4, 1e-3), weight_decay=0.0,
    eval_every=1000, validation_size=2500, test_size=25_000,
)  # fmt: skip
PRESETS: dict[str, Preset] = {
    "port": PORT,
    "1k": replace(PORT, summary="1024 bytes; 2 layers of width 64, mean over positions", seq_len=1024),
}


def read(text: str) -> Parts:
    """The reviews of a folder aclImdb or of the hub."""
    from bench.tasks import _stored

    own: dict[str, list[Example]] = {"train": [], "test": []}
    if text.startswith(_stored.HUB):
        rows = _stored.hub_splits(text.removeprefix(_stored.HUB) or HUB, ("text", "label"))
        own = {split: [_stored.Example((t.encode(),), label) for t, label in rows[split]] for split in own}
    else:
        for split, examples in own.items():
            examples.extend(_reviews(Path(text).expanduser() / split))
    return {**_stored.split_by_hash(own["train"], {"validation": 1}), "test": own["test"]}


def _reviews(folder: Path) -> Iterator[Example]:
    """The reviews in the folders neg and pos, by name."""
    from bench.tasks import _stored

    for name, label in FOLDERS.items():
        for path in sorted((folder / name).glob("*.txt")):
            yield _stored.Example((path.read_bytes(),), label)


class LraText(Task):
    """IMDb reviews from a folder or the hub."""

    name = "lra_text"
    summary = "Long Range Arena, text: IMDb reviews by byte, from your folder; accuracy by length"
    metric: Metric = "accuracy"
    presets: Mapping[str, Preset] = PRESETS
    directions = (False, True)

    def absent(self, preset: Preset, text: str | None) -> str | None:
        """Whether the folder of the reviews is there."""
        from bench.tasks import _stored

        return _stored.missing(text, WANTED, HOW, hub=HUB)

    def open(self, preset: Preset, *, seed: int, text: str | Path | None = None) -> Data:
        """The data of one run; `text` is the folder aclImdb or `hub:`. UserError when it cannot be read."""
        from bench.tasks import _stored

        return _stored.Stored(preset, seed, self.name, "IMDb reviews", CLASSES, read(str(text)))


TASK = LraText()
