"""What a trained model scores: loss and hits at every scored position, their mean, interval and curve by bin.

B sequences, N positions, V vocabulary, S scored positions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from bench.model.init import derived
from bench.results import Gap
from bench.tasks import IGNORE, Batch, Metric

Z95 = 1.959963984540054  # two-sided 95 % quantile of the normal distribution


@dataclass(frozen=True)
class Scores:
    """Of every scored position: loss in nats, whether the argmax is right, its bin, its sequence; each of shape (S)."""

    loss: torch.Tensor
    right: torch.Tensor
    bins: torch.Tensor
    sequence: torch.Tensor

    def each(self, metric: Metric) -> torch.Tensor:
        """The metric of each position, float64."""
        return self.right.double() if metric == "accuracy" else self.loss.double() / math.log(2)

    def mean(self, metric: Metric) -> float:
        """The metric over all positions, each counted once whatever batch it came in."""
        return float(self.each(metric).mean())


def better(left: float, right: float, metric: Metric) -> bool:
    """Whether the left score beats the right one."""
    return left > right if metric == "accuracy" else left < right


def run(model: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (B, P, V) and labels (B, P) of a batch (`tasks.Batch`), on the model's device."""
    device = next(model.parameters()).device
    mask_BN = None if batch.mask is None else torch.from_numpy(batch.mask).to(device)
    logits_BPV = model(torch.from_numpy(batch.tokens).to(device), key_mask=mask_BN)
    return logits_BPV, torch.from_numpy(batch.labels).to(device)


def scored_loss(logits_BNV: torch.Tensor, labels_BN: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy in nats over the positions whose label is not IGNORE."""
    return nn.functional.cross_entropy(*_scored(logits_BNV, labels_BN))


def score(model: nn.Module, batches: Iterable[Batch], seed: int) -> Scores:
    """Scores of a model in evaluation mode on the scored positions of some batches; the model trains on afterwards."""
    parts: list[tuple[torch.Tensor, ...]] = []
    model.eval()
    torch.manual_seed(derived(seed, "score"))
    with torch.no_grad():
        for number, batch in enumerate(batches):
            logits_BNV, labels_BN = run(model, batch)
            logits_SV, labels_S = _scored(logits_BNV, labels_BN)
            row_S, column_S = (labels_BN.cpu() != IGNORE).nonzero(as_tuple=True)
            loss_S = nn.functional.cross_entropy(logits_SV, labels_S, reduction="none")
            right_S = logits_SV.argmax(1) == labels_S
            bins_S = torch.from_numpy(batch.bins.copy())[row_S, column_S]
            parts.append((loss_S.cpu(), right_S.cpu(), bins_S, row_S + (number << 32)))
    model.train()
    return Scores(*(torch.cat(column) for column in zip(*parts, strict=True)))


def interval(scores: Scores, metric: Metric) -> tuple[float | None, float | None]:
    """95 % interval of the test estimate: Wilson's for accuracy, normal over sequences for bits per byte.

    It speaks of the test sample alone, not of another seed. None for fewer than two sequences of bits per byte.
    """
    each_S = scores.each(metric)
    _, index_S, counts = torch.unique(scores.sequence, return_inverse=True, return_counts=True)
    sums = torch.zeros(len(counts), dtype=torch.float64).index_add(0, index_S, each_S)
    if metric == "accuracy":
        return wilson(float(each_S.mean()), _independent(sums, counts))
    means = sums / counts
    if len(means) < 2:
        return None, None
    centre, half = float(means.mean()), Z95 * float(means.std()) / math.sqrt(len(means))
    return centre - half, centre + half


def _independent(right: torch.Tensor, counts: torch.Tensor) -> float:
    """How many independent trials the answers are worth: those of one sequence are right and wrong together.

    right, counts: of each sequence. The trials whose binomial variance is that of the share over sequences (Kish 1965),
    at least the sequences, at most the answers.
    """
    answers, sequences = int(counts.sum()), len(counts)
    share = float(right.sum()) / answers
    spread = float((right - share * counts).square().sum()) * sequences / max(1, sequences - 1) / answers**2
    worth = share * (1 - share) / spread if spread > 0 else 0.0
    return min(max(worth, float(sequences)), float(answers))


def whole(scores: Scores) -> float | None:
    """Share of the sequences in which every scored position is right; None where each has but one."""
    _, index_S, counts = torch.unique(scores.sequence, return_inverse=True, return_counts=True)
    if int(counts.max()) == 1:
        return None
    wrong = torch.zeros(len(counts), dtype=torch.int64).index_add(0, index_S, (~scores.right).long())
    return float((wrong == 0).double().mean())


def wilson(share: float, count: float) -> tuple[float, float]:
    """Wilson's 95 % score interval of a share of `count` trials (Wilson 1927)."""
    spread = Z95**2 / count
    centre = (share + spread / 2) / (1 + spread)
    half = Z95 / (1 + spread) * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    return max(0.0, centre - half), min(1.0, centre + half)


def by_bin(scores: Scores, metric: Metric, labels: Sequence[str]) -> list[Gap]:
    """The metric of the positions of each bin, in the order of the labels."""
    each_S = scores.each(metric)
    gaps = []
    for number, label in enumerate(labels):
        inside = each_S[scores.bins == number]
        gaps.append(Gap(label=label, value=float(inside.mean()) if len(inside) else None, count=len(inside)))
    return gaps


def _scored(logits_BNV: torch.Tensor, labels_BN: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (S, V) and labels (S) of the positions that are scored."""
    kept_BN = labels_BN != IGNORE
    return logits_BNV[kept_BN], labels_BN[kept_BN]
