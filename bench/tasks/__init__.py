"""Accuracy tasks, one file each: a module here that does not start with _ and holds its task as `TASK`.

B sequences of a batch, N positions. Nothing here imports torch, and numpy only when data is made, so that tasks are
listed at once. Every draw has a stream of its own for (seed, task, split, step): the same in any process and number
of processes, and none moves another.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from bench.errors import unknown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

IGNORE = -100
Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
Metric = Literal["accuracy", "bits_per_byte"]
Model = Literal["language", "classifier", "pairs", "encoder-decoder"]


@dataclass(frozen=True, kw_only=True)
class Preset:
    """All that fixes a training on a task but the variant, the direction and the seed: the same for every variant.

    batch, validation_size, test_size: sequences. steps: the budget of one trial; there is one trial a learning rate.
    eval_every: steps between two validations. target: validation score that ends a trial early. model: what the tokens
    go through (see `Batch`); classes: its outputs, default vocab; padded: its batches have a mask, so that a variant
    without key_mask is unsupported. longest: longest sequence the model must take, default seq_len. The rest is the
    model's, as in `bench.model`.
    """

    summary: str
    seq_len: int
    vocab: int
    d_model: int
    layers: int
    heads: int
    ffn: Literal["relu", "gelu", "swiglu", "none"]
    ffn_ratio: float = 4.0
    norm: Literal["pre", "post"] = "pre"
    positions: Literal["none", "sinusoidal", "learned", "rotary"]
    conv: int = 0
    dropout: float = 0.0
    batch: int
    steps: int
    learning_rates: tuple[float, ...]
    eval_every: int
    validation_size: int
    test_size: int
    target: float | None = None
    weight_decay: float = 0.1
    model: Model = "language"
    classes: int | None = None
    padded: bool = False
    longest: int | None = None


@dataclass(frozen=True)
class Batch:
    """tokens, labels (IGNORE where nothing is asked) and bins (index of the scored position's bin).

    mask, of the shape of tokens, is True for real tokens, None when there is no padding; it is never told from an id:
    each is a symbol. The model of the preset turns tokens and mask into logits (B, P, classes) beside labels and bins
    (B, P):

    language: tokens (B, N), P = N. classifier: tokens (B, N), P = 1. pairs: tokens (B, 2, N) of two documents, P = 1.
    encoder-decoder: tokens (B, 2, N), the source and what the decoder reads, P = N.
    """

    tokens: NDArray[np.int64]
    labels: NDArray[np.int64]
    bins: NDArray[np.int64]
    mask: NDArray[np.bool_] | None = None

    def rows(self, rows: Sequence[int]) -> Batch:
        """Some of the sequences, in that order."""
        chosen = list(rows)
        mask = None if self.mask is None else self.mask[chosen]
        return Batch(self.tokens[chosen], self.labels[chosen], self.bins[chosen], mask)

    @staticmethod
    def joined(batches: Sequence[Batch]) -> Batch:
        """One batch of several, all with a mask or none."""
        import numpy as np

        if len(batches) == 1:
            return batches[0]
        masks = [batch.mask for batch in batches if batch.mask is not None]
        return Batch(
            np.concatenate([batch.tokens for batch in batches]),
            np.concatenate([batch.labels for batch in batches]),
            np.concatenate([batch.bins for batch in batches]),
            np.concatenate(masks) if masks else None,
        )


@dataclass(frozen=True)
class Baseline:
    """The score that needs no model, and what it comes from."""

    score: float
    origin: str


class Data(Protocol):
    """A task opened for one preset and seed."""

    @property
    def bins(self) -> Sequence[str]:
        """Labels of the groups of scored positions."""

    @property
    def baseline(self) -> Baseline:
        """What no learning gives, on the test split: shown as chance."""

    @property
    def baselines(self) -> Mapping[str, float]:
        """Further scores on the very test split that need no attention, by what they know."""
        return {}

    @property
    def facts(self) -> Mapping[str, Any]:
        """What was read or made, for the row."""
        return {}

    def lengths(self) -> Mapping[int, Iterable[Batch]]:
        """Test sequences of other lengths than the preset's, for a task that asks how far a model carries on."""
        return {}

    def train(self, step: int) -> Batch:
        """The training batch of a step."""

    def held_out(self, split: Split) -> Iterator[Batch]:
        """The whole validation or test split, in batches, the same each time."""


class Task(Protocol):
    """What is learned and how it is scored. presets: the first is the default.

    directions: values of `causal` under which the task means something, the first of them by default.
    """

    name: str
    summary: str
    metric: Metric
    presets: Mapping[str, Preset]
    directions: tuple[bool, ...] = (True,)

    def open(self, preset: Preset, *, seed: int, text: str | Path | None = None) -> Data:
        """The data of one run; `text` is the file or folder of a task that reads one. UserError when it is unusable."""

    def absent(self, preset: Preset, text: str | None) -> str | None:
        """Why there is no data and how to get it, one line; None where there is. Asked before anything runs."""
        return None


def names() -> list[str]:
    """The names of all tasks, from their files."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_"))


def find(name: str) -> Task:
    """The task of that name; UserError with the nearest names when there is none."""
    if name not in names():
        raise unknown("task", name, names())
    return cast(Task, importlib.import_module(f"bench.tasks.{name}").TASK)


def fingerprint(text: str) -> str:
    """Hash of a user's file, of the names and sizes of all files in a folder, or of a name on the hub."""
    path = Path(text).expanduser()
    if path.is_dir():
        inside = sorted((part.relative_to(path).as_posix(), part.stat().st_size) for part in path.rglob("*"))
        return hashlib.sha256(repr(inside).encode()).hexdigest()
    return hashlib.sha256(path.read_bytes() if path.is_file() else text.encode()).hexdigest()


def stream(seed: int, purpose: str, split: Split, step: int) -> np.random.Generator:
    """The generator of one draw; streams of different arguments are independent."""
    import numpy as np

    return np.random.default_rng([seed, int.from_bytes(purpose.encode(), "big"), SPLITS.index(split), step])


def batched(size: int, batch: int) -> Iterator[int]:
    """Sizes of the batches that `size` sequences make."""
    for start in range(0, size, batch):
        yield min(batch, size - start)
