"""Training and scoring: the protocol is the same for every variant, and looking changes nothing."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bench import tasks
from bench.measure.training import Diverged, Scores, interval, score, scored_loss, train, warm_cosine, wilson
from bench.results import strict_json
from bench.tasks import IGNORE, Batch
from bench.variant import Shape

MQAR, TEXT = tasks.find("mqar"), tasks.find("text")
TINY = MQAR.presets["tiny"]
SHORT = dataclasses.replace(
    TINY, seq_len=16, pairs=3, vocab=20, batch=16,
    steps=60, eval_every=20, validation_size=32, test_size=40, target=None,
)  # fmt: skip


class Softmax(nn.Module):
    """Causal softmax attention written for these tests."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.causal = shape.causal

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        assert key_mask is None
        scores = q @ k.transpose(2, 3) * q.shape[3] ** -0.5
        if self.causal:
            scores = scores.masked_fill(torch.ones(scores.shape[2:], dtype=torch.bool).triu(1), -math.inf)
        return scores.softmax(3) @ v


class Noisy(Softmax):
    """Draws from the global stream in every call, as a variant with random features or dropout may."""

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        out = super().forward(*args, **kwargs)
        return out + 0.1 * torch.randn(out.shape)


class Broken(Softmax):
    """Gives NaN after a number of training calls shared by all its instances."""

    calls = 0
    good = 0

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        Broken.calls += self.training
        out = super().forward(*args, **kwargs)
        return out * math.nan if Broken.calls > Broken.good else out


def _figures(accuracy: Any) -> str:
    """What must be the same in every process: all but the seconds."""
    values = accuracy.model_dump()
    del values["train_cpu_s"]
    for trial in values["trials"]:
        del trial["cpu_s"]
    return strict_json(values)


def test_mqar_tiny_is_learned_by_softmax_and_not_without_attention() -> None:
    full, none = (
        next(c for c in vars(importlib.import_module(f"variants.{name}")).values() if hasattr(c, "claims"))
        for name in ("full", "none")
    )
    learned = train(full, MQAR, "tiny", causal=True, seed=0, learning_rates=[3e-2])
    assert learned.value is not None
    assert learned.value >= 0.98
    assert learned.steps is not None
    assert learned.steps <= 400
    assert all(gap.value is not None and gap.value > 0.95 for gap in learned.by_gap)
    assert sum(gap.count for gap in learned.by_gap) == 1024 * 16
    control = train(none, MQAR, dataclasses.replace(TINY, steps=100), causal=True, seed=0, learning_rates=[3e-2])
    assert control.value is not None
    assert control.value < 0.1
    assert (control.params, control.extra_params) == (learned.params, learned.extra_params)
    assert control.data == learned.data


def test_bidirectional_mqar_is_learned_too() -> None:
    preset = dataclasses.replace(MQAR.presets["quick"], steps=200)
    accuracy = train(Softmax, MQAR, preset, causal=False, seed=0, learning_rates=[1e-2])
    assert accuracy.value is not None
    assert accuracy.value >= 0.98


def test_same_seed_gives_the_same_figures_in_a_fresh_process() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\nimport torch; torch.set_num_threads(1); torch.manual_seed(5)\n"
        "from test_training import MQAR, SHORT, Noisy, _figures, train\n"
        "print(_figures(train(Noisy, MQAR, SHORT, causal=True, seed=int(sys.argv[2]))))"
    )

    def fresh(seed: str) -> dict[str, Any]:
        command = [sys.executable, "-c", code, str(Path(__file__).parent), seed]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        values: dict[str, Any] = json.loads(printed)
        return values

    here = json.loads(_figures(train(Noisy, MQAR, SHORT, causal=True, seed=3)))
    assert fresh("3") == here
    other = json.loads(_figures(train(Noisy, MQAR, SHORT, causal=True, seed=4)))
    assert other["curve"] != here["curve"]
    assert other["data"] != here["data"]


def test_global_stream_is_left_alone_and_not_used() -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = train(Noisy, MQAR, SHORT, causal=True, seed=0)
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(2)
    assert _figures(train(Noisy, MQAR, SHORT, causal=True, seed=0)) == _figures(first)


def test_e15_looking_more_often_changes_no_training_loss() -> None:
    preset = dataclasses.replace(SHORT, dropout=0.1)
    seldom = train(Noisy, MQAR, preset, causal=True, seed=0, learning_rates=[1e-2])
    often = train(Noisy, MQAR, dataclasses.replace(preset, eval_every=5), causal=True, seed=0, learning_rates=[1e-2])
    losses = {point["step"]: point["loss"] for point in often.curve}
    assert len(seldom.curve) == 3
    assert len(often.curve) == 12
    assert all(losses[point["step"]] == point["loss"] for point in seldom.curve)


def test_e18_loss_is_the_mean_over_scored_positions() -> None:
    logits = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[1, 2, 3, IGNORE, IGNORE, IGNORE], [4, IGNORE, 0, 1, 2, IGNORE]])
    each = [
        -math.log(math.exp(float(logits[b, n, labels[b, n]])) / sum(math.exp(float(x)) for x in logits[b, n]))
        for b in range(2)
        for n in range(6)
        if labels[b, n] != IGNORE
    ]
    assert float(scored_loss(logits, labels)) == pytest.approx(sum(each) / 7, rel=1e-5)


def test_e18_batches_weigh_by_their_scored_positions() -> None:
    """One batch with 1 scored position that is wrong, one with 3 that are right: 3/4, not 1/2."""

    class Echo(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.size = nn.Parameter(torch.tensor(9.0))

        def forward(self, tokens: torch.Tensor, *, key_mask: torch.Tensor | None = None) -> torch.Tensor:
            return self.size * nn.functional.one_hot(tokens, 4).float()

    def batch(tokens: list[int], labels: list[int]) -> Batch:
        return Batch(np.array([tokens]), np.array([labels]), np.zeros((1, len(tokens)), np.int64))

    scores = score(Echo(), [batch([1, 2, 3], [0, IGNORE, IGNORE]), batch([0, 2, 3], [0, 2, 3])], seed=0)
    assert scores.mean("accuracy") == 0.75
    right, wrong = math.log(1 + 3 * math.exp(-9)), math.log(math.exp(9) + 3)
    assert scores.mean("bits_per_byte") == pytest.approx((3 * right + wrong) / 4 / math.log(2), rel=1e-5)


def test_e04_the_best_checkpoint_is_scored_and_the_last_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that collapses late: weights are destroyed after step 40 by a learning rate raised a thousandfold."""
    monkeypatch.setattr("bench.measure.training.warm_cosine", lambda step, steps: 1.0 if step < 40 else 1000.0)
    preset = dataclasses.replace(MQAR.presets["quick"], steps=60, eval_every=20, test_size=256, target=None)
    accuracy = train(Softmax, MQAR, preset, causal=True, seed=0, learning_rates=[1e-2])
    (trial,) = accuracy.trials
    assert (accuracy.best_step, accuracy.steps) == (40, 60)
    assert accuracy.curve[-1]["validation"] == trial["last"]
    assert accuracy.validation == trial["validation"]
    assert accuracy.value is not None
    assert accuracy.validation is not None
    assert trial["last"] < accuracy.validation
    assert accuracy.value == pytest.approx(accuracy.validation, abs=0.03)


def test_learning_rate_is_chosen_by_validation() -> None:
    accuracy = train(Softmax, MQAR, SHORT, causal=True, seed=0, learning_rates=[1e-6, 1e-2])
    assert accuracy.learning_rate == 1e-2
    assert [trial["learning_rate"] for trial in accuracy.trials] == [1e-6, 1e-2]
    assert accuracy.validation == accuracy.trials[1]["validation"] > accuracy.trials[0]["validation"]


def test_target_ends_a_trial_early_and_the_steps_say_so() -> None:
    accuracy = train(Softmax, MQAR, dataclasses.replace(SHORT, target=0.01), causal=True, seed=0, learning_rates=[1e-2])
    assert accuracy.steps == accuracy.best_step == 20
    assert accuracy.tokens == 20 * 16 * 16


def test_a_trial_that_is_not_finite_is_null_and_all_are_diverged() -> None:
    Broken.calls, Broken.good = 0, 2 * SHORT.steps  # two layers: the first trial passes, the second gives NaN at once
    accuracy = train(Broken, MQAR, SHORT, causal=True, seed=0, learning_rates=[1e-2, 3e-2])
    assert accuracy.learning_rate == 1e-2
    assert accuracy.trials[1]["validation"] is None
    assert accuracy.trials[1]["reason"] == "loss became nan at step 1"
    json.loads(json.dumps(accuracy.model_dump(), allow_nan=False))
    Broken.calls, Broken.good = 0, 50  # fails at step 26, after a finite look at step 20
    with pytest.raises(
        Diverged, match=r"^learning rate 0.01: loss became nan at step 26; learning rate 0.03: .* step 1$"
    ):
        train(Broken, MQAR, SHORT, causal=True, seed=0, learning_rates=[1e-2, 3e-2])


def test_text_is_scored_in_bits_per_byte(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_bytes(b"abcd" * 1000)
    preset = dataclasses.replace(
        TEXT.presets["quick"], seq_len=20, batch=8, steps=80, eval_every=40, validation_size=8, test_size=10
    )
    accuracy = train(Softmax, TEXT, preset, causal=True, seed=0, text=tmp_path / "own.txt", learning_rates=[1e-2])
    assert accuracy.metric == "bits_per_byte"
    assert not accuracy.higher_is_better
    assert accuracy.chance == pytest.approx(2, abs=0.2)
    assert accuracy.value is not None
    assert accuracy.value < 0.5
    assert accuracy.low is not None
    assert accuracy.high is not None
    assert accuracy.low <= accuracy.value <= accuracy.high
    assert [gap.label for gap in accuracy.by_gap] == ["1-16", "17-20"]
    assert [gap.count for gap in accuracy.by_gap] == [160, 40]
    assert accuracy.data["source"] == "own.txt"
    assert accuracy.model["conv"] == 0
    assert accuracy.model["positions"] == "rotary"


def test_bits_per_byte_interval_is_over_sequences() -> None:
    """Means of three sequences 1, 2 and 6 bits: mean 3, standard error sqrt(7/3)."""
    bits = torch.tensor([1.0, 1.0, 2.0, 2.0, 5.0, 7.0])
    scores = Scores(bits * math.log(2), bits > 9, bits.long() * 0, torch.tensor([0, 0, 1, 1, 2, 2]))
    low, high = interval(scores, "bits_per_byte")
    assert low == pytest.approx(3 - 1.96 * math.sqrt(7 / 3), abs=1e-3)
    assert high == pytest.approx(3 + 1.96 * math.sqrt(7 / 3), abs=1e-3)
    one = Scores(bits, bits > 9, bits.long() * 0, bits.long() * 0)
    assert interval(one, "bits_per_byte") == (None, None)


@pytest.mark.parametrize(("share", "count", "low", "high"), [
    (0.9, 1000, 0.8799, 0.9171), (0.0, 10, 0.0, 0.2775), (1.0, 10, 0.7225, 1.0), (0.5, 4, 0.1500, 0.8500),
])  # fmt: skip
def test_wilson_interval(share: float, count: int, low: float, high: float) -> None:
    assert wilson(share, count) == pytest.approx((low, high), abs=1e-4)


def test_learning_rate_rises_for_a_tenth_and_falls_to_zero() -> None:
    rates = [warm_cosine(step, 100) for step in range(101)]
    assert rates[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert rates[10] == 1
    assert rates[55] == pytest.approx(0.5)
    assert rates[100] == pytest.approx(0)
    assert all(before > after for before, after in pairwise(rates[10:]))
    assert warm_cosine(0, 1) == 1


def test_e04_the_test_score_belongs_to_the_best_learning_rate_not_to_the_last_weights() -> None:
    preset = dataclasses.replace(MQAR.presets["quick"], steps=150, learning_rates=(5e-3, 1e-6))
    found = train(Softmax, MQAR, preset, causal=True, seed=0)
    assert found.learning_rate == 5e-3
    assert [trial["validation"] > 0.9 for trial in found.trials] == [True, False]
    assert found.value is not None
    assert found.value > 0.9
