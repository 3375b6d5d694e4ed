"""Examples that are read, not made: their splits, batches and what no attention scores on them.

An example is one document or a pair of them, as bytes, and a label. B examples of a batch, N positions.
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.errors import UserError
from bench.tasks import SPLITS, Baseline, Batch, Data, Preset, Split, stream
from bench.tasks._baselines import bag_of_tokens, labels_of, majority

HUB = "hub:"
LEARNED_FROM = 50  # training batches of the bag of tokens
LENGTHS = 4  # bins of lengths, each twice as wide as the one before


class Example(NamedTuple):
    """One document, or two to compare, and the label."""

    documents: tuple[bytes, ...]
    label: int

    @property
    def digest(self) -> bytes:
        """A hash of the documents."""
        lengths = ",".join(str(len(document)) for document in self.documents)
        return hashlib.sha256(lengths.encode() + b"".join(self.documents)).digest()


Parts = Mapping[Split, Sequence[Example]]


def missing(text: str | None, wanted: Sequence[str], how: str, *, hub: str | None = None) -> str | None:
    """Why a task cannot read its data, one line that says how to get it; None where it can.

    text: the folder the user gave, or `hub:NAME`. wanted: what must be in the folder; alternatives are told apart by
    `|`. hub: the name on the hub that `hub:` alone stands for.
    """
    if text is None:
        return f"its data is not here; {how}"
    if text.startswith(HUB):
        if text == HUB and hub is None:
            return "no data set on the hub is known for it; give file = 'hub:OWNER/NAME'"
        found = importlib.util.find_spec("datasets") is not None
        return None if found else "the hub needs the package datasets: pip install 'attn-bench[hub]'"
    folder = Path(text).expanduser()
    for part in wanted:
        if not any((folder / name).exists() for name in part.split("|")):
            return f"'{text}' has no {part.replace('|', ' or ')}; {how}"
    return None


def split_by_hash(examples: Iterable[Example], tenths: Mapping[Split, int]) -> dict[Split, list[Example]]:
    """Examples by a hash of their documents: of ten, so many to validation and test, the others to train."""
    parts: dict[Split, list[Example]] = {split: [] for split in SPLITS}
    validation, test = tenths.get("validation", 0), tenths.get("test", 0)
    for example in examples:
        tenth = int.from_bytes(example.digest[:8], "big") % 10
        split: Split = "validation" if tenth < validation else "test" if tenth < validation + test else "train"
        parts[split].append(example)
    return parts


@dataclass(eq=False)
class Stored(Data):
    """The data of one run. A document that is in two splits stays in test, else in validation, and the rest is counted.

    purpose: names the streams. source: what was read. classes: names of the labels. Documents are cut at seq_len and
    padded where the preset says so; elsewhere all have seq_len bytes. Raises UserError for a split without examples.
    """

    preset: Preset
    seed: int
    purpose: str
    source: str
    classes: Sequence[str]
    read: Parts

    def __post_init__(self) -> None:
        seen: set[bytes] = set()
        self.parts: dict[Split, list[Example]] = {}
        for split in reversed(SPLITS):
            fresh = [(example, example.digest) for example in self.read[split]]
            self.parts[split] = [example for example, digest in fresh if digest not in seen]
            seen.update(digest for _, digest in fresh)
            if not self.parts[split]:
                raise UserError(f"{self.source} leaves no example to the {split} split; give the whole data set")
        self._sha256 = hashlib.sha256(b"".join(sorted(seen))).hexdigest()

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """What was read: its source, hash and sizes; examples left out as repeats of a later split, documents cut."""
        documents = itertools.chain.from_iterable(e.documents for part in self.parts.values() for e in part)
        return {
            "source": self.source,
            "sha256": self._sha256,
            **{f"{split}_examples": len(part) for split, part in self.parts.items()},
            "repeats_left_out": sum(len(self.read[split]) - len(self.parts[split]) for split in SPLITS),
            "truncated": sum(len(document) > self.preset.seq_len for document in documents),
        }

    @property
    def bins(self) -> Sequence[str]:
        """Labels of the bins: of lengths where documents have different ones, else the classes."""
        if not self.preset.padded:
            return self.classes
        edges = [0, *self._edges]
        return [f"{low + 1}-{high} bytes" for low, high in itertools.pairwise(edges)]

    @property
    def _edges(self) -> list[int]:
        return [self.preset.seq_len >> (LENGTHS - 1 - part) for part in range(LENGTHS)]

    @cached_property
    def baseline(self) -> Baseline:
        """Always the most frequent class."""
        return majority(labels_of(self.held_out("test")))

    @cached_property
    def baselines(self) -> Mapping[str, float]:
        """All tokens in no order."""
        batches = map(self.train, range(LEARNED_FROM))
        vocab, classes = self.preset.vocab, len(self.classes)
        return {"bag of tokens": bag_of_tokens(batches, self.held_out("test"), vocab=vocab, classes=classes)}

    def train(self, step: int) -> Batch:
        """The training batch of a step: different examples, drawn anew for each step."""
        part = self.parts["train"]
        rng = stream(self.seed, self.purpose, "train", step)
        picked = rng.choice(len(part), self.preset.batch, replace=len(part) < self.preset.batch)
        return self._batch([part[number] for number in picked])

    def held_out(self, split: Split) -> Iterator[Batch]:
        """The validation or test split in batches, evenly taken from what was read: the same for every seed."""
        wanted = self.preset.validation_size if split == "validation" else self.preset.test_size
        part = self.parts[split]
        picked = np.linspace(0, len(part) - 1, min(wanted, len(part))).astype(np.int64)
        for first in range(0, len(picked), self.preset.batch):
            yield self._batch([part[number] for number in picked[first : first + self.preset.batch]])

    def _batch(self, examples: Sequence[Example]) -> Batch:
        length, documents = self.preset.seq_len, len(examples[0].documents)
        tokens = np.zeros((len(examples), documents, length), np.int64)
        sizes = np.zeros((len(examples), documents), np.int64)
        for row, example in enumerate(examples):
            for place, document in enumerate(example.documents):
                kept = np.frombuffer(document[:length], np.uint8)
                tokens[row, place, : len(kept)] = kept
                sizes[row, place] = len(kept)
        mask = np.arange(length) < sizes[:, :, None]
        if documents == 1:
            tokens, mask = tokens[:, 0], mask[:, 0]
        labels = np.array([[example.label] for example in examples])
        if not self.preset.padded:
            return Batch(tokens, labels, labels)
        return Batch(tokens, labels, np.searchsorted(self._edges, sizes.max(axis=1))[:, None], mask)


def hub_splits(name: str, columns: Sequence[str]) -> dict[str, Iterable[tuple[Any, ...]]]:
    """Rows of the named columns by the hub's own names of splits; UserError when they cannot be had."""
    import datasets  # the extra `hub`

    try:
        loaded = datasets.load_dataset(name)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"cannot read '{name}' from the hub ({reason}); download it and give its folder") from error
    for split in loaded:
        lacking = [column for column in columns if column not in loaded[split].column_names]
        if lacking:
            have = ", ".join(loaded[split].column_names)
            raise UserError(f"'{name}' on the hub has no column {lacking[0]} (it has {have}); give another data set")
    return {split: (tuple(row[column] for column in columns) for row in loaded[split]) for split in loaded}
