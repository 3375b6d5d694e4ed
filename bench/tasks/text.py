"""Next-byte prediction on the text of Python's own standard library, real and on every machine, or on the user's file.

Every byte is a symbol, 0..255; there is no padding. The library is split by file (nine tenths of the files to train
on, told by a hash of the name), one file of the user by place: the first 80 %, the next 10 %, the last 10 %.
"""

from __future__ import annotations

import hashlib
import math
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.errors import UserError
from bench.tasks import SPLITS, Baseline, Batch, Data, Metric, Preset, Split, Task, stream

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages"}
REMEDY = "give a file of plain text of your own"


@dataclass(frozen=True)
class Corpus:
    """The bytes of each split and what they come from."""

    parts: Mapping[Split, NDArray[np.uint8]]
    facts: Mapping[str, Any]


def read_library(root: Path) -> Corpus:
    """The Python sources under `root` without tests and installed packages, split by file."""
    files = sorted(
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if not LEFT_OUT.intersection(path.relative_to(root).parts)
    )
    if not files:
        raise UserError(f"no Python sources in '{root}' to learn from; {REMEDY}")
    parts: dict[Split, list[bytes]] = {split: [] for split in SPLITS}
    for name in files:
        twentieth = int(hashlib.sha256(name.encode()).hexdigest(), 16) % 20
        parts["validation" if twentieth == 0 else "test" if twentieth == 1 else "train"].append(
            (root / name).read_bytes()
        )
    source = f"standard library of Python {sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"
    return _corpus({split: b"".join(texts) for split, texts in parts.items()}, source=source, files=len(files))


def read_file(path: Path) -> Corpus:
    """One file of the user, split by place; UserError when it is missing, not a file, unreadable or empty."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the text '{path}' ({error.strerror}); {REMEDY}") from error
    if not text:
        raise UserError(f"the text '{path}' is empty; {REMEDY}")
    first, second = len(text) * 8 // 10, len(text) * 9 // 10
    parts: dict[Split, bytes] = {"train": text[:first], "validation": text[first:second], "test": text[second:]}
    return _corpus(parts, source=path.name, files=1)


def _corpus(texts: Mapping[Split, bytes], **facts: Any) -> Corpus:
    import numpy as np

    whole = hashlib.sha256(b"".join(texts[split] for split in SPLITS)).hexdigest()
    sizes = {f"{split}_bytes": len(text) for split, text in texts.items()}
    return Corpus(
        {split: np.frombuffer(text, np.uint8) for split, text in texts.items()}, {**facts, **sizes, "sha256": whole}
    )


@dataclass(frozen=True)
class Bytes(Data):
    """The data of one run: windows of seq_len + 1 bytes, at random in training, evenly spaced in the other splits."""

    preset: Preset
    seed: int
    corpus: Corpus

    @property
    def facts(self) -> Mapping[str, Any]:
        """What was read: its source, sizes and hash."""
        return self.corpus.facts

    @property
    def bins(self) -> Sequence[str]:
        """Labels of the bins of context lengths: 1-16 bytes, then doubling."""
        edges = self._edges()
        return [f"{low + 1}-{high}" for low, high in zip([0, *edges[:-1]], edges, strict=True)]

    @property
    def baseline(self) -> Baseline:
        """Coding each byte by its frequency in training, plus one: cross-entropy in bits over the scored test bytes."""
        import numpy as np

        counts = np.bincount(self.corpus.parts["train"], minlength=256) + 1
        bits = -np.log2(counts / counts.sum())
        labels = np.concatenate([batch.labels.ravel() for batch in self.held_out("test")])
        return Baseline(float(bits[labels].mean()), "byte frequencies of the training text")

    def train(self, step: int) -> Batch:
        """The training batch of a step."""
        last = len(self.corpus.parts["train"]) - self.preset.seq_len
        rng = stream(self.seed, "text", "train", step)
        return self._windows("train", rng.integers(0, last, self.preset.batch))

    def held_out(self, split: Split) -> Iterator[Batch]:
        """The validation or test windows in batches: the same for every seed, never overlapping."""
        import numpy as np

        room, window = len(self.corpus.parts[split]), self.preset.seq_len + 1
        wanted = self.preset.validation_size if split == "validation" else self.preset.test_size
        starts = np.linspace(0, room - window, min(wanted, room // window)).astype(np.int64)
        for first in range(0, len(starts), self.preset.batch):
            yield self._windows(split, starts[first : first + self.preset.batch])

    def _windows(self, split: Split, starts_B: NDArray[np.int64]) -> Batch:
        import numpy as np

        length = self.preset.seq_len
        bytes_BN = self.corpus.parts[split][starts_B[:, None] + np.arange(length + 1)].astype(np.int64)
        bins_N = np.searchsorted(self._edges(), np.arange(1, length + 1))
        return Batch(bytes_BN[:, :-1], bytes_BN[:, 1:], np.broadcast_to(bins_N, (len(starts_B), length)))

    def _edges(self) -> list[int]:
        """The longest context of each bin."""
        length = self.preset.seq_len
        doublings = max(0, math.ceil(math.log2(length / 16)))
        return [min(16 * 2**i, length) for i in range(doublings + 1)]


QUICK = Preset(
    summary="128 bytes of context, 2 layers of width 48",
    seq_len=128, vocab=256,
    d_model=48, layers=2, heads=2, ffn="gelu", ffn_ratio=2.0, positions="rotary",
    batch=8, steps=300, learning_rates=(2e-3, 5e-3, 1e-2),
    eval_every=100, validation_size=64, test_size=512,
)  # fmt: skip
PRESETS: dict[str, Preset] = {
    "quick": QUICK,
    "standard": replace(
        QUICK, summary="256 bytes of context, 2 layers of width 96",
        seq_len=256, d_model=96, heads=4, batch=16, steps=1500, learning_rates=(1e-3, 3e-3, 1e-2),
        validation_size=256, test_size=1024,
    ),
}  # fmt: skip


class Text(Task):
    """Real text: a check of realism. Short budgets reward locality and do not tell variants apart by reach."""

    name = "text"
    summary = "next-byte prediction on the standard library's text or your own: bits per byte, by context length"
    metric: Metric = "bits_per_byte"
    presets: Mapping[str, Preset] = PRESETS

    def absent(self, preset: Preset, text: str | None) -> str | None:
        """Whether the user's file is there; the standard library is."""
        if text is None:
            return None
        path = Path(text).expanduser()
        if not path.is_file():
            return f"the text file '{text}' does not exist"
        return None if path.stat().st_size else f"the text file '{text}' is empty"

    def open(self, preset: Preset, *, seed: int, text: str | Path | None = None) -> Data:
        """The data of one run; UserError when the text cannot be read or a split has no whole window."""
        if text is None:
            corpus = read_library(Path(sysconfig.get_path("stdlib")))
        else:
            corpus = read_file(Path(text).expanduser())
        if min(len(part) for part in corpus.parts.values()) <= preset.seq_len:
            size = sum(len(part) for part in corpus.parts.values())
            least = 10 * (preset.seq_len + 1)
            raise UserError(f"the text has {size} bytes, this preset needs at least {least}; give a longer one")
        return Bytes(preset, seed, corpus)


TASK = Text()
