"""The trials of one training: one a learning rate, all from the same weights and on the same batches.

AdamW (weight decay of the preset, betas 0.9 and 0.98), one tenth of the budget of linear warm-up and a cosine to zero,
gradients clipped to norm 1. The budget of a trial is a number of steps or seconds of processor time. Each step and each
look has a stream of its own, so that looking, or going on after a kill, never changes what is learned.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bench.measure.scoring import better, run, score, scored_loss
from bench.model.init import derived
from bench.tasks import Data, Metric, Preset

LEARNED = 0.99  # the accuracy at which a task counts as learned
FINE = 1000  # steps into which a budget of seconds divides the schedule

Weights = dict[str, torch.Tensor]


class Diverged(Exception):  # the name of the status
    """No learning rate gave a finite loss; the row says `diverged` with this reason."""


@dataclass
class Trial:
    """One training at one learning rate; validation is its best score, None with a reason where it diverged.

    steps, tokens and cpu_s count what was done, looks apart; weights are those of best_step, last those of the end.
    steps_to_99, cpu_s_to_99: what the first look at an accuracy of LEARNED had taken.
    """

    learning_rate: float
    validation: float | None = None
    best_step: int | None = None
    steps: int = 0
    tokens: int = 0
    cpu_s: float = 0.0
    steps_to_99: int | None = None
    cpu_s_to_99: float | None = None
    reason: str | None = None
    over: bool = False
    weights: Weights = field(default_factory=dict)
    last: Weights = field(default_factory=dict)
    curve: list[dict[str, float | None]] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """The trial as an entry of `Accuracy.trials`; `last` is the validation score at the last step."""
        apart = ("tokens", "over", "weights", "last", "curve")
        kept = {name: value for name, value in vars(self).items() if name not in apart}
        return {**kept, "last": self.curve[-1]["validation"] if self.curve and self.reason is None else None}


@dataclass
class Training:
    """What the trials of one cell share, and where they stand on the disk.

    cpu_s: the budget of a trial in seconds of processor time, None for the steps of the preset. checkpoint: the file,
    None for none.
    """

    build: Callable[[], nn.Module]
    preset: Preset
    metric: Metric
    data: Data
    seed: int
    cpu_s: float | None = None
    checkpoint: Path | None = None

    def trials(self, learning_rates: Sequence[float]) -> list[Trial]:
        """A finished trial for each rate; only the best one so far keeps its weights. Goes on from the checkpoint."""
        done, state = self._stored()
        for rate in learning_rates[len(done) :]:
            model = self.build()
            optimizer = torch.optim.AdamW(
                model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=self.preset.weight_decay, fused=True
            )
            trial = Trial(rate)
            if state:
                trial, state = _restored(state, model, optimizer), None
            self._finish(trial, model, optimizer, done)
            done.append(trial)
            best = best_of(done, self.metric)
            for other in done:
                if other is not best:
                    other.weights, other.last = {}, {}
        return done

    def _finish(self, trial: Trial, model: nn.Module, optimizer: torch.optim.Optimizer, done: list[Trial]) -> None:
        """Train until the budget, the target or a loss that is not finite."""
        model.train()
        while not trial.over:
            loss = self._step(trial, model, optimizer)
            spent = self._spent(trial) >= 1
            if trial.reason is not None:
                trial.over = True
            elif spent or trial.steps % self.preset.eval_every == 0:
                trial.over = self._look(trial, model, loss) or spent
                self._store(trial, model, optimizer, done)
        trial.last = _copied(model)

    def _step(self, trial: Trial, model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
        """One step; its loss. A loss that is not finite ends the trial."""
        started = time.process_time()
        torch.manual_seed(derived(self.seed, "step", trial.steps))
        for group in optimizer.param_groups:
            group["lr"] = trial.learning_rate * self._warmth(trial)
        batch = self.data.train(trial.steps)
        loss = scored_loss(*run(model, batch))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        trial.steps += 1
        trial.tokens += int(batch.tokens.size if batch.mask is None else batch.mask.sum())
        value = loss.item()
        if not math.isfinite(value):
            trial.validation, trial.reason = None, f"loss became {value} at step {trial.steps}"
        trial.cpu_s += time.process_time() - started
        return value

    def _warmth(self, trial: Trial) -> float:
        """Share of the learning rate for the next step."""
        if self.cpu_s is None:
            return warm_cosine(trial.steps, self.preset.steps)
        return warm_cosine(int(FINE * self._spent(trial)), FINE)

    def _spent(self, trial: Trial) -> float:
        """Share of the budget that is spent."""
        return trial.steps / self.preset.steps if self.cpu_s is None else trial.cpu_s / self.cpu_s

    def _look(self, trial: Trial, model: nn.Module, loss: float) -> bool:
        """Validate, keep the weights if they are the best so far, and say whether the trial is over."""
        scores = score(model, self.data.held_out("validation"), self.seed)
        value = scores.mean(self.metric)
        if not bool(scores.loss.isfinite().all()):
            trial.validation, trial.reason = None, f"validation loss was not finite at step {trial.steps}"
            return True
        trial.curve.append({"step": trial.steps, "loss": loss, "validation": value, "cpu_s": trial.cpu_s})
        if self.metric == "accuracy" and value >= LEARNED and trial.steps_to_99 is None:
            trial.steps_to_99, trial.cpu_s_to_99 = trial.steps, trial.cpu_s
        if trial.validation is None or better(value, trial.validation, self.metric):
            trial.validation, trial.best_step, trial.weights = value, trial.steps, _copied(model)
        return self.preset.target is not None and not better(self.preset.target, trial.validation, self.metric)

    def _store(self, trial: Trial, model: nn.Module, optimizer: torch.optim.Optimizer, done: list[Trial]) -> None:
        """Write all that is needed to go on, whole or not at all."""
        if self.checkpoint is None:
            return
        state = {
            "done": list(map(vars, done)), "trial": vars(trial),
            "model": model.state_dict(), "optimizer": optimizer.state_dict(),
        }  # fmt: skip
        self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.checkpoint.with_suffix(".tmp")
        torch.save(state, temporary)
        temporary.replace(self.checkpoint)

    def _stored(self) -> tuple[list[Trial], dict[str, Any] | None]:
        """The finished trials and the state of the one under way."""
        if self.checkpoint is None or not self.checkpoint.exists():
            return [], None
        state = torch.load(self.checkpoint, map_location="cpu", weights_only=True)
        return [Trial(**values) for values in state["done"]], state


def best_of(trials: Sequence[Trial], metric: Metric) -> Trial | None:
    """The trial with the best validation score, the first of equals; None when all diverged."""
    finite = [trial for trial in trials if trial.validation is not None]
    return (max if metric == "accuracy" else min)(finite, key=lambda trial: trial.validation or 0.0, default=None)


def warm_cosine(step: int, steps: int) -> float:
    """Share of the learning rate at a step: rises over the first tenth of the steps, then a cosine to zero."""
    warm = max(1, steps // 10)
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def _restored(state: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer) -> Trial:
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return Trial(**state["trial"])


def _copied(model: nn.Module) -> Weights:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}
