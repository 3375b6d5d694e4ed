"""What a label can be told by without attention, on the very split that is scored. T examples, K classes, V ids."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from bench.tasks import Baseline, Batch

if TYPE_CHECKING:
    from numpy.typing import NDArray


def majority(labels_T: NDArray[np.int64]) -> Baseline:
    """Always the most frequent label."""
    return Baseline(float(np.bincount(labels_T).max() / len(labels_T)), "the most frequent class")


def best_by(group_T: NDArray[np.int64], labels_T: NDArray[np.int64]) -> float:
    """Accuracy of the most frequent label of each group: all that knowing the group alone can give."""
    counts = np.zeros((group_T.max() + 1, labels_T.max() + 1), np.int64)
    np.add.at(counts, (group_T, labels_T), 1)
    return float(counts.max(axis=1).sum() / len(labels_T))


def labels_of(batches: Iterable[Batch]) -> NDArray[np.int64]:
    """The labels of sequences that have one each."""
    return np.concatenate([batch.labels[:, 0] for batch in batches])


def bag_of_tokens(train: Iterable[Batch], test: Iterable[Batch], *, vocab: int, classes: int) -> float:
    """Accuracy of multinomial naive Bayes on how often each id comes: what needs no order, learned from some batches.

    Source: McCallum and Nigam 1998, equation 4 with a prior of one.
    """
    counts_KV, labels_K = np.ones((classes, vocab)), np.ones(classes)
    for batch in train:
        np.add.at(counts_KV, batch.labels[:, 0], _bags(batch, vocab))
        np.add.at(labels_K, batch.labels[:, 0], 1)
    weights_VK = np.log(counts_KV / counts_KV.sum(axis=1, keepdims=True)).T
    right = [
        (_bags(batch, vocab) @ weights_VK + np.log(labels_K)).argmax(axis=1) == batch.labels[:, 0] for batch in test
    ]
    return float(np.concatenate(right).mean())


def _bags(batch: Batch, vocab: int) -> NDArray[np.float64]:
    """How often each id comes in each sequence, (T, V); padding apart."""
    bags_TV = np.zeros((len(batch.tokens), vocab))
    for row, tokens in enumerate(batch.tokens):
        real = tokens.ravel() if batch.mask is None else tokens[batch.mask[row]]
        bags_TV[row] = np.bincount(real, minlength=vocab)
    return bags_TV
