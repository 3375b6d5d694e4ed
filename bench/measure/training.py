"""How well a variant learns a task: the same model, budget and data for every variant, learning rate chosen for each.

The test split is used once, when all training is over and the trial is chosen by validation: it scores the best
checkpoint (the figure) and the last one (shown beside it) of that trial, and nothing is chosen by it.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from bench.measure.scoring import by_bin, interval, score, whole
from bench.measure.trials import Diverged, Training, Weights, best_of
from bench.model.block import MakeAttention, Mixing, count_params
from bench.model.init import seeded
from bench.model.of_task import block_config, build
from bench.results import Accuracy, Gap
from bench.tasks import Data, Preset, Task

SAME = 0.01  # share of the parameters by which the model around two variants may differ


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
    cpu_s: float | None = None,
    checkpoint: Path | None = None,
    keep: Callable[[Preset, Data, Weights], None] | None = None,
) -> Accuracy:
    """Train the model of a task with the attention inside, and score it.

    preset: of the task, or its name. text: replaces the text of a task that reads one. learning_rates: default those
    of the preset. cpu_s: seconds of processor time a trial, in place of the preset's steps. checkpoint: a file of this
    very training, from which it goes on if it exists; the caller removes it. keep: gets
    the preset, the data and the best weights. The number of threads is the caller's.
    Raises `Diverged` when no learning rate gave a finite loss, and what `Task.open` and the variant raise.
    """
    preset = task.presets[preset] if isinstance(preset, str) else preset
    data = task.open(preset, seed=seed, text=text)

    def made() -> nn.Module:
        return _model(make_attention, preset, causal, seed, device)

    with seeded(seed, "training"):
        model = made()
        params, extra_params = checked_params(model, _model(_nothing, preset, causal, seed, "cpu"))
        trials = Training(made, preset, task.metric, data, seed, cpu_s, checkpoint).trials(
            learning_rates or preset.learning_rates
        )
        best = best_of(trials, task.metric)
        if best is None:
            raise Diverged("; ".join(f"learning rate {trial.learning_rate:g}: {trial.reason}" for trial in trials))
        model.load_state_dict(best.last)
        last = score(model, data.held_out("test"), seed)
        model.load_state_dict(best.weights)
        scores = score(model, data.held_out("test"), seed)
        at_lengths = {length: score(model, batches, seed) for length, batches in data.lengths().items()}
    if keep is not None:
        keep(preset, data, best.weights)
    low, high = interval(scores, task.metric)
    fastest = min(
        (trial for trial in trials if trial.steps_to_99 is not None), key=lambda t: t.steps_to_99 or 0, default=None
    )
    return Accuracy(
        metric=task.metric, higher_is_better=task.metric == "accuracy",
        value=scores.mean(task.metric), low=low, high=high, last=last.mean(task.metric), scored=len(scores.loss),
        whole=whole(scores) if task.metric == "accuracy" else None,
        chance=data.baseline.score, chance_of=data.baseline.origin, baselines=dict(data.baselines),
        validation=best.validation,
        learning_rate=best.learning_rate, trials=[trial.summary() for trial in trials],
        steps=best.steps, best_step=best.best_step, tokens=best.tokens, train_cpu_s=best.cpu_s,
        steps_to_99=fastest and fastest.steps_to_99, cpu_s_to_99=fastest and fastest.cpu_s_to_99,
        params=params, extra_params=extra_params, state_size=_state_size(model, preset) if causal else None,
        model={"layers": preset.layers, **dataclasses.asdict(block_config(preset))},
        by_gap=by_bin(scores, task.metric, data.bins), curve=best.curve,
        by_length=[
            Gap(label=str(length), value=found.mean(task.metric), count=len(found.loss))
            for length, found in at_lengths.items()
        ],
        data={**data.facts, "first_batch_sha256": hashlib.sha256(data.train(0).tokens.tobytes()).hexdigest()},
    )  # fmt: skip


def state_size(model: nn.Module, length: int) -> int | None:
    """Elements that all layers keep of `length` positions to decode the next one, per example.

    A variant's own `state_size`, or the keys and values; None where a variant does not decode.
    """
    total = 0
    for part in model.modules():
        if isinstance(part, Mixing):
            inner: Any = part.attention
            claims = getattr(inner, "claims", None)
            if claims is not None and not claims.decode:
                return None
            cache = part.shape.kv_heads * length * (part.shape.head_dim + part.shape.value_dim)
            total += inner.state_size(length) if hasattr(inner, "state_size") else cache
    return total


def _state_size(model: nn.Module, preset: Preset) -> int | None:
    return state_size(model, preset.seq_len) if preset.model == "language" else None


def checked_params(model: nn.Module, around: nn.Module) -> tuple[int, int]:
    """(all parameters, those of the variants inside); an error where the rest is not as large as around any variant.

    around: the same model with nothing inside. What a variant brings itself is shown in the row, and may differ.
    """
    params, extra_params = count_params(model)
    expected = count_params(around)[0]
    assert abs(params - extra_params - expected) <= SAME * expected, (
        f"the model has {params - extra_params} parameters around the variant, {expected} are right"
    )
    return params, extra_params


def _model(make_attention: MakeAttention, preset: Preset, causal: bool, seed: int, device: str) -> nn.Module:
    return build(make_attention, preset, causal=causal, seed=seed).to(device)


def _nothing(shape: object) -> nn.Module:
    """Stands in for a variant where only the model around it is of interest."""
    return nn.Identity()
