"""Selective copying and induction: what is asked, where it stands, and that splits are apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from bench import registry, tasks
from bench.measure.training import train
from bench.tasks import IGNORE
from bench.tasks.selective_copy import TINY, CopyPreset

COPY, INDUCTION = tasks.find("selective_copy"), tasks.find("induction")


def opened(task: tasks.Task, preset: str = "tiny", seed: int = 0) -> tasks.Data:
    return task.open(task.presets[preset], seed=seed)


@pytest.mark.parametrize("preset", ["tiny", "mad"])
def test_the_data_tokens_are_asked_for_in_their_order(preset: str) -> None:
    data = opened(COPY, preset)
    sizes = COPY.presets[preset]
    assert isinstance(sizes, CopyPreset)
    blank, copy = sizes.vocab - 2, sizes.vocab - 1
    batch = data.train(3)
    for tokens, labels, bins in zip(batch.tokens, batch.labels, batch.bins, strict=True):
        first = tokens[: sizes.room]
        places = [place for place, token in enumerate(first) if token != blank]
        assert len(places) == sizes.count
        assert all(token < blank for token in first[places])
        assert tokens[sizes.room] == copy
        assert set(tokens[sizes.room + 1 :]) == {blank}
        asked = [at for at, label in enumerate(labels) if label != IGNORE]
        assert asked == list(range(sizes.room + 1, sizes.seq_len))
        assert list(labels[asked]) == list(first[places])
        for at, place in zip(asked, places, strict=True):
            low, _, high = data.bins[bins[at]].partition("-")
            assert int(low) <= at - place <= int(high)


def test_places_are_uniform_and_the_last_data_token_need_not_touch_the_copy_token() -> None:
    batch = opened(COPY).train(0)
    last = [max(at for at, token in enumerate(row[: TINY.room]) if token != TINY.vocab - 2) for row in batch.tokens]
    assert len(set(last)) > 5
    assert min(last) < TINY.room - 1


@pytest.mark.parametrize("preset", ["tiny", "mamba"])
def test_induction_asks_for_what_followed_the_special_token(preset: str) -> None:
    data = opened(INDUCTION, preset)
    special = INDUCTION.presets[preset].vocab - 1
    for step in range(8):
        batch = data.train(step)
        for tokens, labels, bins in zip(batch.tokens, batch.labels, batch.bins, strict=True):
            first, last = (at for at, token in enumerate(tokens) if token == special)
            assert last == len(tokens) - 1
            assert [at for at, label in enumerate(labels) if label != IGNORE] == [last]
            assert labels[last] == tokens[first + 1]
            low, _, high = data.bins[bins[last]].partition("-")
            assert int(low) <= last - (first + 1) <= int(high)


def test_induction_is_asked_at_other_lengths_too() -> None:
    data = opened(INDUCTION)
    found = {length: [*batches] for length, batches in data.lengths().items()}
    assert list(found) == [32, 64, 128, 256, 512]
    for length, batches in found.items():
        for batch in batches:
            assert batch.tokens.shape[1] == length
            for tokens, labels in zip(batch.tokens, batch.labels, strict=True):
                first = list(tokens).index(15)
                assert (tokens[-1], labels[-1]) == (15, tokens[first + 1])
    assert [batch.tokens.tobytes() for batch in found[64]] == [b.tokens.tobytes() for b in data.held_out("test")]
    assert sum(len(batch.tokens) for batch in found[512]) == 256


def test_the_length_curve_is_in_the_row() -> None:
    preset: Any = INDUCTION.presets["tiny"]
    preset = replace(preset, steps=20, eval_every=20, lengths=(16, 64, 96), longest=96)
    cls = registry.load(registry.find("flash", registry.entries()).source())
    found = train(cls, INDUCTION, preset, causal=True, seed=0, learning_rates=[1e-2])
    assert [(part.label, part.count) for part in found.by_length] == [("16", 8192), ("64", 2048), ("96", 1365)]
    assert found.by_length[1].value == found.value


@pytest.mark.parametrize("task", [COPY, INDUCTION], ids=["selective_copy", "induction"])
def test_e07_splits_and_seeds_are_disjoint_and_repeat(task: tasks.Task) -> None:
    def rows(seed: int, split: str) -> set[bytes]:
        data = opened(task, seed=seed)
        batches = [data.train(step) for step in range(4)] if split == "train" else data.held_out(split)
        return {row.tobytes() for batch in batches for row in batch.tokens}

    found = [rows(seed, split) for seed in (0, 1) for split in ("train", "validation", "test")]
    assert sum(map(len, found)) == len(set().union(*found))
    assert rows(0, "test") == rows(0, "test")
    sizes = task.presets["tiny"]
    assert sum(len(batch.tokens) for batch in opened(task).held_out("test")) == sizes.test_size


@pytest.mark.parametrize(
    ("changes", "message"), [({"count": 64}, "count must be 1 to 63"), ({"vocab": 3}, "at least 4")]
)
def test_sizes_that_hold_no_sequence_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TINY, **changes)


def score(task: tasks.Task, variant: str, steps: int, rate: float, **knobs) -> dict[str, float | None]:
    cls = registry.load(registry.find(variant, registry.entries()).source())
    preset = replace(task.presets["tiny"], steps=steps, validation_size=128, test_size=512)
    torch.set_num_threads(1)
    found = train(lambda shape: cls(shape, **knobs), task, preset, causal=True, seed=0, learning_rates=[rate])
    return {"all": found.value, **{gap.label: gap.value for gap in found.by_gap}}


def test_e10_softmax_learns_induction_and_a_window_does_not_reach() -> None:
    """Two layers of a window of 4 and a convolution of 3 reach 2 * (3 + 2) = 10 positions back."""
    full = score(INDUCTION, "full", 300, 1e-2)
    local = score(INDUCTION, "local", 300, 1e-2, window=4)
    assert full["all"] is not None and full["all"] > 0.9
    far = [value for label, value in local.items() if label != "all" and int(label.partition("-")[0]) > 16]
    assert far and all(value is None or value < 0.2 for value in far)  # chance is 1 in 15
