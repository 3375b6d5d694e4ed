"""Variable tracking, copying across two stacks, and the models that tasks go through."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bench import tasks
from bench.errors import UserError
from bench.measure.scoring import Scores, whole
from bench.measure.training import train
from bench.model.of_task import build
from bench.sweep import make_sweep
from bench.tasks import IGNORE
from bench.tasks.copy_reverse import COPY
from bench.tasks.listops import SHORT
from bench.tasks.variable_tracking import TINY
from bench.variant import Shape

TRACKING, COPYING = tasks.find("variable_tracking"), tasks.find("copy_reverse")


class Softmax(nn.Module):
    """Softmax attention with a key mask, written for these tests."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.causal = shape.causal

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        scores = q @ k.transpose(2, 3) * q.shape[3] ** -0.5
        if self.causal:
            scores = scores.masked_fill(torch.ones(scores.shape[2:], dtype=torch.bool).triu(1), -math.inf)
        if key_mask is not None:
            scores = scores.masked_fill(~key_mask[:, None, None], -math.inf)
        return scores.softmax(3) @ v


def test_e09_every_variable_leads_to_the_value_of_its_chain() -> None:
    """By following the assignments in the text, and nothing of the generator."""
    preset = replace(TINY, chains=3, hops=2, test_size=2000)
    data = TRACKING.open(preset, seed=0)
    seen_bins: set[int] = set()
    for batch in data.held_out("test"):
        assert batch.mask is None
        for tokens, labels, bins in zip(batch.tokens.tolist(), batch.labels.tolist(), batch.bins.tolist(), strict=True):
            given = {tokens[at]: tokens[at + 1] for at in range(0, 32, 2) if tokens[at]}
            assert len(given) == 9
            assert all(1 <= name < 32 for name in given)
            asked = [at for at, label in enumerate(labels) if label != IGNORE]
            assert sorted(tokens[at] for at in asked) == sorted(given)
            assert all(at >= 32 and at % 2 == 0 for at in asked)
            assert sum(token != 0 for token in tokens) == 2 * 9 + 9
            for at in asked:
                value, hops = given[tokens[at]], 0
                while value < 32:
                    assert tokens.index(value) < tokens.index(tokens[at])  # a variable is set before it is given on
                    value, hops = given[value], hops + 1
                assert labels[at] == value
                assert int(data.bins[bins[at]].split()[0]) == hops
                seen_bins.add(hops)
    assert seen_bins == {0, 1, 2}
    assert data.bins == ["0 hops", "1 hop", "2 hops"]


def test_e20_one_look_up_is_scored_by_what_it_can_know() -> None:
    data = TRACKING.open(replace(TINY, chains=4, hops=1), seed=0)
    assert data.baseline.score == 1 / 4
    assert data.baselines == {"one look-up": 0.5 + 0.5 / 4}


@pytest.mark.parametrize(("wrong", "message"), [
    ({"chains": 6, "hops": 2}, r"chains \* \(hops \+ 1\) must be 1 to 16 \(seq_len / 4\), got 18"),
    ({"vocab": 32}, r"vocab must be even and above 32 \(2 variables\), got 32"),
])  # fmt: skip
def test_sizes_that_hold_no_chains_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TINY, **wrong)


@pytest.mark.parametrize("name", ["copy-32", "reverse-32"])
def test_the_target_is_the_source_in_its_order(name: str) -> None:
    data = COPYING.open(COPYING.presets[name], seed=0)
    batch = data.train(0)
    source, read = batch.tokens[:, 0], batch.tokens[:, 1]
    assert np.array_equal(batch.labels, source if name == "copy-32" else source[:, ::-1])
    assert (read[:, 0] == 32).all()
    assert np.array_equal(read[:, 1:], batch.labels[:, :-1])
    assert set(np.unique(source)) == set(range(32))
    for place, number in enumerate(batch.bins[0]):
        low, high = map(int, data.bins[number].split("-"))
        assert low <= place + 1 <= high


@pytest.mark.parametrize(("task", "preset"), [(TRACKING, TINY), (COPYING, COPY)], ids=["variable_tracking", "copy"])
def test_e07_splits_and_seeds_are_disjoint(task: tasks.Task, preset: tasks.Preset) -> None:
    found = []
    for seed in (0, 1):
        data = task.open(replace(preset, validation_size=200, test_size=200), seed=seed)
        rows = {split: list(data.held_out(split)) for split in ("validation", "test")}
        found += [{row.tobytes() for batch in part for row in batch.tokens} for part in rows.values()]
        found.append({row.tobytes() for step in range(4) for row in data.train(step).tokens})
    assert len(set().union(*found)) == sum(map(len, found)) == 2 * (200 + 200 + 4 * 64)


def test_e07_a_held_out_sequence_is_never_trained_on_even_where_there_are_few() -> None:
    """Of the 81 sources of 4 tokens in 3 symbols half are held out: by chance every batch would meet one."""
    preset = replace(COPY, seq_len=4, vocab=4, batch=8, validation_size=24, test_size=16)
    data = COPYING.open(preset, seed=0)
    validation, test = ({row.tobytes() for b in data.held_out(s) for row in b.tokens} for s in ("validation", "test"))
    assert not validation & test
    trained = {row.tobytes() for step in range(40) for row in data.train(step).tokens}
    assert len(trained) > 30
    assert not trained & (validation | test)


def test_sizes_with_nothing_left_to_train_on_are_an_error() -> None:
    data = COPYING.open(replace(COPY, seq_len=1, vocab=3, batch=4, validation_size=16, test_size=4), seed=0)
    with pytest.raises(ValueError, match="hold too few different sequences to keep its splits apart"):
        data.train(0)


def test_e16_a_batch_depends_on_seed_split_and_step_alone() -> None:
    for task, preset in ((TRACKING, TINY), (COPYING, COPY)):
        forward, backward = (task.open(preset, seed=3) for _ in range(2))
        first = [forward.train(step).tokens for step in range(3)]
        list(backward.held_out("test"))
        for step in (2, 1, 0):
            assert np.array_equal(backward.train(step).tokens, first[step])
        assert not np.array_equal(first[0], first[1])


def test_one_layer_looks_up_once_and_two_layers_follow_a_hop() -> None:
    deep = train(Softmax, TRACKING, replace(TINY, steps=300), causal=True, seed=0, learning_rates=[1e-2])
    flat = train(Softmax, TRACKING, replace(TINY, layers=1, steps=300), causal=True, seed=0, learning_rates=[1e-2])
    assert deep.value is not None
    assert deep.value > 0.98
    direct, given = (gap.value for gap in flat.by_gap)
    assert direct is not None and given is not None
    assert direct > 0.9
    assert given < 0.3


def test_softmax_learns_to_reverse_and_whole_sequences_are_counted() -> None:
    preset = replace(COPYING.presets["reverse-32"], seq_len=12, steps=120, eval_every=40, validation_size=64)
    found = train(Softmax, COPYING, preset, causal=True, seed=0, learning_rates=[5e-3])
    assert found.value is not None
    assert found.value > 0.9
    assert found.whole is not None
    assert found.whole < found.value
    assert found.scored == 512 * 12
    assert found.state_size is None
    assert (found.chance, found.baselines) == (1 / 32, {})


def test_whole_counts_sequences_in_which_all_is_right() -> None:
    right = torch.tensor([True, True, False, True, True, True])
    sequence = torch.tensor([0, 0, 1, 1, 1 << 32, 1 << 32])
    zeros = torch.zeros(6)
    assert whole(Scores(zeros, right, zeros, sequence)) == pytest.approx(2 / 3)
    assert whole(Scores(zeros, right, zeros, torch.arange(6))) is None


def test_each_model_answers_as_many_places_as_there_are_labels() -> None:
    few = {"d_model": 8, "layers": 1, "heads": 1, "batch": 3}
    for preset, tokens, answers, classes in (
        (replace(TINY, **few), (3, 64), 64, 64),
        (replace(SHORT, **few), (3, 128), 1, 10),
        (replace(COPY, **few), (3, 2, 32), 32, 33),
        (replace(SHORT, model="pairs", **few), (3, 2, 128), 1, 10),
    ):
        model = build(Softmax, preset, causal=preset.model == "language", seed=0)
        assert model(torch.zeros(tokens, dtype=torch.int64), key_mask=None).shape == (3, answers, classes)


def test_e10_padding_changes_no_answer_about_a_pair() -> None:
    preset = replace(SHORT, model="pairs", d_model=8, heads=1, layers=1, above=3, seq_len=12)
    model = build(Softmax, preset, causal=False, seed=0).eval()
    tokens = torch.randint(15, (2, 2, 6), generator=torch.Generator().manual_seed(0))
    padded = torch.cat((tokens, tokens.flip(2)), dim=2)
    mask = torch.arange(12).expand(2, 2, 12) < 6
    torch.testing.assert_close(model(padded, key_mask=mask), model(tokens), rtol=0, atol=1e-5)
    swapped = model(tokens.flip(1))
    assert not torch.allclose(swapped, model(tokens))


@pytest.mark.parametrize(("name", "causal", "told"), [
    ("text", False, "task 'text' cannot be trained with causal = false; leave it out"),
    ("copy_reverse", False, "task 'copy_reverse' cannot be trained with causal = false; leave it out"),
])  # fmt: skip
def test_e13_a_direction_that_gives_the_answer_away_is_refused(name: str, causal: bool, told: str) -> None:
    with pytest.raises(UserError, match=told):
        make_sweep({"workload": [f"task:{name}"], "variant": ["full"], "tasks": {name: {"causal": causal}}})


@pytest.mark.parametrize("task", [tasks.find(name) for name in tasks.names()], ids=tasks.names())
def test_the_default_direction_of_a_task_is_its_first(task: tasks.Task) -> None:
    assert set(task.directions) <= {True, False}
    for preset in task.presets.values():
        assert preset.model in ("classifier", "pairs") or task.directions[0]
