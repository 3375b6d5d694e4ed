"""Sequences made when asked for: one stream a batch, and none of a held-out split is ever trained on."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Iterator, Set
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from bench.tasks import Batch, Data, Preset, Split, batched, stream

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TRIES = 100  # draws of one batch before its sizes are said to hold too few different sequences
BINS = 8  # of distances
Held = dict[Split, list[Batch]]


@dataclass(eq=False)
class Generated(Data):
    """What the generated tasks share. A task adds `draw`, `bins` and `baseline`.

    purpose: names the streams. train_size: training sequences that there are, repeated in the same order; None where
    none comes twice. Whether a sequence is held out is told by the hash of its tokens, so the splits are disjoint.
    """

    preset: Preset
    seed: int
    purpose: str
    train_size: int | None = None

    @abstractmethod
    def draw(self, rng: np.random.Generator, count: int) -> Batch:
        """`count` sequences from a stream."""

    def train(self, step: int) -> Batch:
        """The training batch of a step."""
        if self.train_size is not None:
            step %= max(1, self.train_size // self.preset.batch)
        return self._other_than(self._held[1], "train", step, self.preset.batch)

    def held_out(self, split: Split) -> Iterator[Batch]:
        """The validation or test split in batches."""
        yield from self._held[0][split]

    @cached_property
    def _held(self) -> tuple[Held, Set[bytes]]:
        """The held-out splits and the hashes of their sequences."""
        held: Held = {"validation": [], "test": []}
        hashes: frozenset[bytes] = frozenset()
        for split, size in (("validation", self.preset.validation_size), ("test", self.preset.test_size)):
            name: Split = "validation" if split == "validation" else "test"
            held[name] = [
                self._other_than(hashes, name, step, count)
                for step, count in enumerate(batched(size, self.preset.batch))
            ]
            hashes = hashes.union(*(hashes_of(batch) for batch in held[name]))
        return held, hashes

    def _other_than(self, known: Set[bytes], split: Split, step: int, count: int) -> Batch:
        """`count` sequences of a stream whose hashes are not known; ValueError where hardly any is left."""
        rng = stream(self.seed, self.purpose, split, step)
        found: list[Batch] = []
        for _ in range(TRIES):
            batch = self.draw(rng, count)
            new = [row for row, digest in enumerate(hashes_of(batch)) if digest not in known]
            found.append(batch if len(new) == count else batch.rows(new))
            count -= len(new)
            if count == 0:
                return Batch.joined(found)
        raise ValueError(f"the sizes of task {self.purpose} hold too few different sequences to keep its splits apart")


@dataclass(eq=False)
class ByDistance(Generated):
    """Generated sequences whose scored positions are grouped by how far back the answer stands."""

    @property
    def longest(self) -> int:
        """The largest distance there can be."""
        return self.preset.seq_len - 1

    @property
    def width(self) -> int:
        """Distances in one bin."""
        return max(1, self.preset.seq_len // BINS)

    @property
    def bins(self) -> list[str]:
        """Labels of the bins of distances."""
        return ranges(self.longest, self.width)


def ranges(longest: int, width: int) -> list[str]:
    """Labels of 1 to `longest` in groups of `width`: 1-8, 9-16."""
    return [f"{low}-{min(low + width - 1, longest)}" for low in range(1, longest + 1, width)]


def distinct(
    rng: np.random.Generator, count: int, choices: int, size: int, weights: NDArray[np.float64] | None = None
) -> NDArray[np.int64]:
    """`size` different integers below `choices` for each of `count` sequences, in no order.

    weights: of the integers, drawn one after the other among those that are left, by the first of exponential clocks.
    """
    import numpy as np

    clocks = rng.random((count, choices))
    if weights is not None:
        clocks = -np.log1p(-clocks) / weights
    picked: NDArray[np.int64] = clocks.argsort(axis=1)[:, :size]
    return picked


def hashes_of(batch: Batch) -> list[bytes]:
    """A hash of the tokens of each sequence, padding apart."""
    rows = (
        batch.tokens if batch.mask is None else (row[real] for row, real in zip(batch.tokens, batch.mask, strict=True))
    )
    return [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in rows]
