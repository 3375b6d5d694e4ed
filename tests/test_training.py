"""Training and scoring: the protocol is the same for every variant, and looking changes nothing."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bench import registry, tasks
from bench.journal import Journal
from bench.measure.scoring import Scores, interval, score, scored_loss, wilson
from bench.measure.training import block_config, checked_params, state_size, train
from bench.measure.trials import Diverged, warm_cosine
from bench.model.block import BlockConfig, MakeAttention, count_params
from bench.model.language import LanguageModel
from bench.results import Row, strict_json
from bench.tasks import IGNORE, Batch
from bench.variant import Shape, Unsupported, admit

MQAR, TEXT = tasks.find("mqar"), tasks.find("text")
ENTRIES = {entry.name: entry for entry in registry.entries() if entry.claims is not None}
CAUSAL = [name for name, entry in ENTRIES.items() if entry.claims is not None and entry.claims.causal]
TINY = MQAR.presets["tiny"]
SHORT = dataclasses.replace(
    TINY, seq_len=16, pairs=3, vocab=20, batch=16,
    steps=60, eval_every=20, validation_size=32, test_size=40, target=None, learning_rates=(1e-2, 3e-2),
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

    def kept(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: kept(part) for name, part in value.items() if "cpu_s" not in name}
        return list(map(kept, value)) if isinstance(value, list) else value

    return strict_json(kept(accuracy.model_dump()))


def shipped(name: str, **knobs: Any) -> MakeAttention:
    """What builds a variant of the registry; the test is skipped where it cannot be trained here."""

    def make(shape: Shape) -> nn.Module:
        try:
            module: nn.Module = registry.load(ENTRIES[name].source())(shape, **knobs)
            admit(module, shape, dtype="float32", device="cpu", query_len=1, key_len=1, train=True)
        except (ImportError, Unsupported) as reason:
            pytest.skip(str(reason))
        return module

    return make


@pytest.mark.parametrize("name", ["full", "flash"])
def test_mqar_tiny_is_learned_by_softmax(name: str) -> None:
    learned = train(shipped(name), MQAR, "tiny", causal=True, seed=0, learning_rates=[3e-2])
    assert learned.steps_to_99 is not None
    assert learned.steps_to_99 == learned.steps <= 400
    assert learned.value is not None
    assert learned.value >= 0.985
    assert all(gap.value is not None and gap.value > 0.95 for gap in learned.by_gap)
    assert sum(gap.count for gap in learned.by_gap) == learned.scored == 1024 * 16


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", ["full", "flash"])
def test_mqar_tiny_is_learned_by_softmax_at_the_best_of_three_rates(name: str, seed: int) -> None:
    learned = train(shipped(name), MQAR, "tiny", causal=True, seed=seed, learning_rates=[3e-3, 1e-2, 3e-2])
    assert learned.steps_to_99 is not None
    assert learned.steps_to_99 <= 600
    assert len(learned.trials) == 3


@pytest.mark.parametrize("name", ["mean", "none"])
def test_mqar_tiny_is_not_learned_without_attention(name: str) -> None:
    preset = dataclasses.replace(TINY, steps=100)
    control = train(shipped(name), MQAR, preset, causal=True, seed=0, learning_rates=[3e-2])
    assert control.value is not None
    assert control.value < 0.1
    assert (control.steps_to_99, control.cpu_s_to_99) == (None, None)


def test_local_knows_nothing_beyond_its_reach() -> None:
    """Two layers of window 12 and convolution 3 reach 2 * 11 + 2 * 2 = 26 back; beyond, a guess among 36 values."""
    preset = dataclasses.replace(MQAR.presets["quick"], steps=300, eval_every=300)
    found = train(shipped("local", window=12), MQAR, preset, causal=True, seed=0, learning_rates=[1e-2])
    near = [gap for gap in found.by_gap if int(gap.label.split("-")[1]) <= 26]
    far = [gap for gap in found.by_gap if int(gap.label.split("-")[0]) > 26]
    assert [gap.label for gap in near] == ["1-8", "9-16", "17-24"]
    assert [gap.label for gap in far] == ["33-40", "41-48", "49-56", "57-63"]

    def share(gaps: list[Any]) -> tuple[float, int]:
        count = sum(gap.count for gap in gaps)
        return sum(gap.value * gap.count for gap in gaps) / count, count

    guess = 1 / 36
    value, count = share(far)
    assert value <= guess + 4 * math.sqrt(guess / count)
    assert share(near)[0] > 3 * guess


@pytest.mark.parametrize(("window", "conv"), [(1, 3), (4, 3), (8, 0), (8, 3)])
def test_local_moves_no_answer_beyond_its_reach_at_all(window: int, conv: int) -> None:
    """Another value in a pair changes logits up to layers * (window - 1 + conv - 1) later, bit for bit."""
    preset = dataclasses.replace(TINY, conv=conv)
    model = _language(shipped("local", window=window), preset).eval()
    reach = 2 * (window - 1) + 2 * max(conv - 1, 0)
    tokens = torch.from_numpy(MQAR.open(preset, seed=0).train(0).tokens[:1].copy())
    other = tokens.clone()
    other[0, 1] = tokens[0, 3]
    moved = (model(tokens) != model(other)).any(2)[0].nonzero()[:, 0]
    assert moved.tolist() == list(range(1, 1 + reach + 1))


def _language(make: MakeAttention, preset: tasks.Preset) -> LanguageModel:
    return LanguageModel(
        block_config(preset), make, vocab=preset.vocab, layers=preset.layers, causal=True, max_len=preset.seq_len
    )


@pytest.mark.parametrize("name", CAUSAL)
def test_the_model_around_every_variant_has_the_same_parameters(name: str) -> None:
    model = _language(shipped(name), SHORT)
    every, inside = count_params(model)
    assert every - inside == count_params(_language(shipped("full"), SHORT))[0]


def test_a_model_that_is_larger_around_a_variant_is_an_error() -> None:
    model, around = (_language(shipped("full"), SHORT) for _ in range(2))
    assert checked_params(model, around) == (count_params(around)[0], 0)
    model.readout = nn.Linear(SHORT.d_model, 2 * SHORT.vocab, bias=False)
    with pytest.raises(AssertionError, match="parameters around the variant"):
        checked_params(model, around)


def test_state_size_is_that_of_all_layers() -> None:
    small = dataclasses.replace(SHORT, d_model=16, heads=2)  # heads of width 8, two layers
    assert state_size(_language(shipped("linear"), small), 100) == 2 * (2 * 8 * 9)
    assert state_size(_language(shipped("full"), small), 100) == 2 * (2 * 100 * (8 + 8))
    assert state_size(_language(shipped("none"), small), 100) is None


class Future(Softmax):
    """Softmax attention that sees everything: what a leak of the future looks like."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(dataclasses.replace(shape, causal=False))


def _loss_on_random_tokens(make: MakeAttention) -> float:
    """Nats of a small model trained to foretell 8 random tokens; below ln 8 only what has seen them can go."""
    vocab, length = 8, 12
    config = BlockConfig(16, 2, ffn="none", positions="learned")
    model = LanguageModel(config, make, vocab=vocab, layers=1, causal=True, max_len=length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2)
    generator = torch.Generator().manual_seed(1)

    def loss(batch: int) -> torch.Tensor:
        tokens = torch.randint(vocab, (batch, length + 1), generator=generator)
        return nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    for _ in range(40):
        optimizer.zero_grad()
        torch.autograd.backward(loss(16))
        optimizer.step()
    with torch.no_grad():
        return loss(256).item()


@pytest.mark.parametrize("name", CAUSAL)
def test_e13_no_causal_variant_foretells_random_tokens(name: str) -> None:
    assert _loss_on_random_tokens(shipped(name)) > math.log(8) - 0.01


def test_e13_a_leak_of_the_future_shows() -> None:
    assert _loss_on_random_tokens(Future) < math.log(8) - 0.2  # 20 times what is allowed


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


class Mortal(Noisy):
    """Kills its process, as the system does when memory runs out, after a number of training calls."""

    calls = 0
    last = math.inf

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        Mortal.calls += self.training
        if Mortal.calls > Mortal.last:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(*args, **kwargs)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
@pytest.mark.parametrize(("calls", "steps"), [(30, None), (2 * 45, 40), (2 * (60 + 31), 20)])
def test_a_killed_training_goes_on_to_the_same_figures(tmp_path: Path, calls: int, steps: int | None) -> None:
    """Killed before the first look, in the first trial, in the second; two layers make two calls a step."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\nimport torch; torch.set_num_threads(1)\n"
        "from pathlib import Path\nfrom test_training import MQAR, SHORT, Mortal, train\n"
        "Mortal.last = int(sys.argv[3])\n"
        "train(Mortal, MQAR, SHORT, causal=True, seed=3, checkpoint=Path(sys.argv[2]))"
    )
    checkpoint = tmp_path / "checkpoint-a.pt"
    command = [sys.executable, "-c", code, str(Path(__file__).parent), str(checkpoint), str(calls)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    stored = torch.load(checkpoint, weights_only=True)["trial"]["steps"] if checkpoint.exists() else None
    assert stored == steps
    whole = train(Mortal, MQAR, SHORT, causal=True, seed=3)
    Mortal.calls = 0
    rest = train(Mortal, MQAR, SHORT, causal=True, seed=3, checkpoint=checkpoint)
    done = {None: 0, 40: 40, 20: 60 + 20}[steps]
    assert Mortal.calls == 2 * (2 * 60 - done)
    assert _figures(rest) == _figures(whole)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-a.pt"]


def test_a_checkpoint_goes_when_the_row_is_written_or_all_is_begun_anew(tmp_path: Path) -> None:
    row = {"variant": "full", "workload": "task:mqar", "causal": True, "dtype": "float32", "device": "cpu", "seed": 0}
    with Journal(tmp_path, fresh=False) as journal:
        one, other = journal.checkpoint("one"), journal.checkpoint("other")
        for path in (one, other):
            path.write_bytes(b"")
        journal.add_row(Row(key="one", run="r", status="diverged", **row))
        assert (one.exists(), other.exists()) == (False, True)
    with Journal(tmp_path, fresh=True):
        assert not other.exists()


def test_a_budget_of_seconds_ends_a_trial_whatever_its_steps() -> None:
    preset = dataclasses.replace(SHORT, steps=10**9, eval_every=10)
    found = train(Softmax, MQAR, preset, causal=True, seed=0, learning_rates=[1e-2], cpu_s=0.5)
    assert found.train_cpu_s is not None
    assert found.steps is not None
    before = found.curve[-2]["cpu_s"]
    assert before is not None
    assert found.train_cpu_s >= 0.5 > before
    assert found.curve[-1]["step"] == found.steps
    long = train(Softmax, MQAR, preset, causal=True, seed=0, learning_rates=[1e-2], cpu_s=2.0)
    assert long.steps is not None
    assert long.steps > found.steps


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
    monkeypatch.setattr("bench.measure.trials.warm_cosine", lambda step, steps: 1.0 if step < 40 else 1000.0)
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
    assert accuracy.last == pytest.approx(trial["last"], abs=0.03)
    assert accuracy.last < accuracy.value


def test_learning_rate_is_chosen_by_validation() -> None:
    accuracy = train(Softmax, MQAR, SHORT, causal=True, seed=0, learning_rates=[1e-6, 1e-2])
    assert accuracy.learning_rate == 1e-2
    assert [trial["learning_rate"] for trial in accuracy.trials] == [1e-6, 1e-2]
    assert accuracy.validation == accuracy.trials[1]["validation"] > accuracy.trials[0]["validation"]


def test_target_ends_a_trial_early_and_the_steps_say_so() -> None:
    accuracy = train(Softmax, MQAR, dataclasses.replace(SHORT, target=0.01), causal=True, seed=0, learning_rates=[1e-2])
    assert accuracy.steps == accuracy.best_step == 20
    assert accuracy.steps_to_99 is None
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


@pytest.mark.parametrize(("alike", "least"), [(0.0, 0.92), (0.5, 0.90), (1.0, 0.92)])
def test_answers_of_one_sequence_are_not_independent(alike: float, least: float) -> None:
    """alike: share of the sequences in which all 16 answers are right or wrong together."""
    generator = torch.Generator().manual_seed(0)
    inside, sequence = 0, torch.arange(100).repeat_interleave(16)
    for _ in range(300):
        apart = torch.rand(100, 16, generator=generator) < 0.8
        together = torch.rand(100, 1, generator=generator) < 0.8
        right = torch.where(torch.rand(100, 1, generator=generator) < alike, together, apart).flatten()
        low, high = interval(Scores(right * 0.0, right, right.long(), sequence), "accuracy")
        assert low is not None
        assert high is not None
        inside += low <= 0.8 <= high
    assert least <= inside / 300 <= 0.99


def test_one_answer_a_sequence_and_no_doubt_are_wilsons() -> None:
    right = torch.arange(50) < 40
    alone = interval(Scores(right * 0.0, right, right.long(), torch.arange(50)), "accuracy")
    assert alone == pytest.approx(wilson(0.8, 50))
    sure = torch.ones(32, dtype=torch.bool)
    pairs = interval(Scores(sure * 0.0, sure, sure.long(), torch.arange(16).repeat_interleave(2)), "accuracy")
    assert pairs == pytest.approx(wilson(1.0, 16))  # nothing tells that they are more than the sequences


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
