"""How well a variant learns a task: the same model, budget and data for every variant, learning rate chosen for each.

AdamW (weight decay 0.1, betas 0.9 and 0.98), one tenth of the steps of linear warm-up and a cosine to zero, gradients
clipped to norm 1. One trial a learning rate, all from the same weights and on the same batches; the best checkpoint of
the best trial, by validation, is scored once on the test split. Each step and each look has a stream of its own, so
that looking never changes what is learned. V vocabulary, S scored positions of a batch.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bench.model.block import BlockConfig, MakeAttention, count_params
from bench.model.init import derived, seeded
from bench.model.language import LanguageModel
from bench.results import Accuracy, Gap
from bench.tasks import IGNORE, Batch, Data, Metric, Preset, Task

Z95 = 1.959963984540054  # two-sided 95 % quantile of the normal distribution


class Diverged(Exception):  # the name of the status
    """No learning rate gave a finite loss; the row says `diverged` with this reason."""


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


@dataclass
class Trial:
    """One training at one learning rate; validation is its best score, None with a reason where it diverged.

    steps, tokens and cpu_s count what was done; weights are those of best_step.
    """

    learning_rate: float
    validation: float | None = None
    best_step: int | None = None
    steps: int = 0
    tokens: int = 0
    cpu_s: float = 0.0
    reason: str | None = None
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    curve: list[dict[str, float | None]] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """The trial as an entry of `Accuracy.trials`; `last` is the validation score at the last step."""
        kept = ("learning_rate", "validation", "best_step", "steps", "cpu_s", "reason")
        last = self.curve[-1]["validation"] if self.curve and self.reason is None else None
        return {**{name: getattr(self, name) for name in kept}, "last": last}


def train(
    make_attention: MakeAttention,
    task: Task,
    preset: Preset | str,
    *,
    causal: bool,
    seed: int,
    device: str = "cpu",
    text: str | Path | None = None,
    learning_rates: Sequence[float] | None = None,
) -> Accuracy:
    """Train a language model with the attention inside on a task, and score it.

    preset: of the task, or its name. text: replaces the text of a task that reads one. learning_rates: default those
    of the preset. The number of threads is the caller's. Raises `Diverged` when no learning rate gave a finite loss,
    and what `Task.open` and the variant raise.
    """
    preset = task.presets[preset] if isinstance(preset, str) else preset
    data = task.open(preset, seed=seed, text=text)
    with seeded(seed, "training"):
        trials = []
        for rate in learning_rates or preset.learning_rates:
            model = _model(make_attention, preset, causal, seed, device)
            trials.append(_trial(model, task.metric, preset, data, rate, seed))
        best = _best(trials, task.metric)
        model.load_state_dict(best.weights)
        scores = score(model, data.held_out("test"), seed)
    params, extra_params = count_params(model)
    low, high = interval(scores, task.metric)
    return Accuracy(
        metric=task.metric, higher_is_better=task.metric == "accuracy",
        value=scores.mean(task.metric), low=low, high=high,
        chance=data.baseline.score, chance_of=data.baseline.origin, validation=best.validation,
        learning_rate=best.learning_rate, trials=[trial.summary() for trial in trials],
        steps=best.steps, best_step=best.best_step, tokens=best.tokens, train_cpu_s=best.cpu_s,
        params=params, extra_params=extra_params,
        model={"layers": preset.layers, **dataclasses.asdict(block_config(preset))},
        by_gap=_by_bin(scores, task.metric, data.bins), curve=best.curve,
        data={**data.facts, "first_batch_sha256": hashlib.sha256(data.train(0).tokens.tobytes()).hexdigest()},
    )  # fmt: skip


def block_config(preset: Preset) -> BlockConfig:
    """The block of a preset: the fields they share."""
    wanted = {part.name for part in dataclasses.fields(BlockConfig)}
    return BlockConfig(**{name: value for name, value in vars(preset).items() if name in wanted})


def warm_cosine(step: int, steps: int) -> float:
    """Share of the learning rate at a step: rises over the first tenth of the steps, then a cosine to zero."""
    warm = max(1, steps // 10)
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


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
            logits_BNV, labels_BN = _run(model, batch)
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
    if metric == "accuracy":
        return wilson(float(each_S.mean()), len(each_S))
    _, index_S, counts = torch.unique(scores.sequence, return_inverse=True, return_counts=True)
    means = torch.zeros(len(counts), dtype=torch.float64).index_add(0, index_S, each_S) / counts
    if len(means) < 2:
        return None, None
    centre, half = float(means.mean()), Z95 * float(means.std()) / math.sqrt(len(means))
    return centre - half, centre + half


def wilson(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % score interval of a share of `count` trials (Wilson 1927)."""
    spread = Z95**2 / count
    centre = (share + spread / 2) / (1 + spread)
    half = Z95 / (1 + spread) * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    return max(0.0, centre - half), min(1.0, centre + half)


def _model(make_attention: MakeAttention, preset: Preset, causal: bool, seed: int, device: str) -> LanguageModel:
    return LanguageModel(
        block_config(preset),
        make_attention,
        vocab=preset.vocab,
        layers=preset.layers,
        causal=causal,
        max_len=preset.seq_len,
        seed=derived(seed, "model"),
    ).to(device)


def _trial(model: nn.Module, metric: Metric, preset: Preset, data: Data, rate: float, seed: int) -> Trial:
    """Train from the model's present weights until the budget, the target or a loss that is not finite."""
    trial = Trial(rate)
    started = time.process_time()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.1, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: warm_cosine(step, preset.steps))
    model.train()
    for step in range(preset.steps):
        torch.manual_seed(derived(seed, "step", step))
        batch = data.train(step)
        loss = scored_loss(*_run(model, batch))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        trial.steps += 1
        trial.tokens += int(batch.tokens.size if batch.mask is None else batch.mask.sum())
        done = trial.steps == preset.steps
        if not math.isfinite(loss.item()):
            trial.validation, trial.reason = None, f"loss became {loss.item()} at step {trial.steps}"
            break
        if (done or trial.steps % preset.eval_every == 0) and _look(
            trial, model, metric, preset, data, loss.item(), seed
        ):
            break
    trial.cpu_s = time.process_time() - started
    return trial


def _look(trial: Trial, model: nn.Module, metric: Metric, preset: Preset, data: Data, loss: float, seed: int) -> bool:
    """Validate, keep the weights if they are the best so far, and say whether the trial is over."""
    scores = score(model, data.held_out("validation"), seed)
    value = scores.mean(metric)
    if not bool(scores.loss.isfinite().all()):
        trial.validation, trial.reason = None, f"validation loss was not finite at step {trial.steps}"
        return True
    trial.curve.append({"step": trial.steps, "loss": loss, "validation": value})
    if trial.validation is None or _better(value, trial.validation, metric):
        trial.validation, trial.best_step = value, trial.steps
        trial.weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    return preset.target is not None and not _better(preset.target, trial.validation, metric)


def _better(left: float, right: float, metric: Metric) -> bool:
    return left > right if metric == "accuracy" else left < right


def _best(trials: Sequence[Trial], metric: Metric) -> Trial:
    finite = [trial for trial in trials if trial.validation is not None]
    if not finite:
        raise Diverged("; ".join(f"learning rate {trial.learning_rate:g}: {trial.reason}" for trial in trials))
    return (max if metric == "accuracy" else min)(finite, key=lambda trial: trial.validation or 0.0)


def _run(model: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (B, N, V) and labels (B, N) of a batch, on the model's device."""
    device = next(model.parameters()).device
    mask_BN = None if batch.mask is None else torch.from_numpy(batch.mask).to(device)
    logits_BNV = model(torch.from_numpy(batch.tokens).to(device), key_mask=mask_BN)
    return logits_BNV, torch.from_numpy(batch.labels).to(device)


def _scored(logits_BNV: torch.Tensor, labels_BN: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (S, V) and labels (S) of the positions that are scored."""
    kept_BN = labels_BN != IGNORE
    return logits_BNV[kept_BN], labels_BN[kept_BN]


def _by_bin(scores: Scores, metric: Metric, labels: Sequence[str]) -> list[Gap]:
    each_S = scores.each(metric)
    gaps = []
    for number, label in enumerate(labels):
        inside = each_S[scores.bins == number]
        gaps.append(Gap(label=label, value=float(inside.mean()) if len(inside) else None, count=len(inside)))
    return gaps
