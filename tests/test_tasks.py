"""The tasks' data: what is asked, that splits are apart, and that nothing but the seed decides it."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import tasks
from bench.errors import UserError
from bench.tasks.mqar import TINY
from bench.tasks.text import read_library

MQAR, TEXT = tasks.find("mqar"), tasks.find("text")
SMALL = dataclasses.replace(TEXT.presets["quick"], seq_len=20, batch=4, validation_size=6, test_size=10)


def _rows(data: tasks.Data, split: str, steps: int = 4) -> list[bytes]:
    batches = [data.train(step) for step in range(steps)] if split == "train" else data.held_out(split)
    return [row.tobytes() for batch in batches for row in batch.tokens]


def _text(tmp_path: Path, size: int, name: str = "own.txt") -> Path:
    """A file of `size` bytes of every value, in no order."""
    path = tmp_path / name
    path.write_bytes(np.random.default_rng(7).integers(0, 256, size, np.uint8).tobytes())
    return path


def test_tasks_are_listed_without_torch_or_numpy() -> None:
    code = (
        "import sys; from bench import tasks\n"
        "for name in tasks.names(): task = tasks.find(name); print(task.name, task.summary, list(task.presets))\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert [line.split()[0] for line in printed.splitlines()] == tasks.names()


def test_an_unknown_task_is_named_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"unknown task 'mqra'; did you mean 'mqar'\? \(valid: copy_reverse, "):
        tasks.find("mqra")


def test_questions_of_the_published_sizes_come_early_by_their_power_law() -> None:
    sizes = dataclasses.replace(TINY, pairs=1, power=0.01, batch=20_000)
    column = np.argmax(MQAR.open(sizes, seed=0).train(0).labels >= 0, axis=1)
    slots = (column - 2) // 2
    right = [(s + 1) ** (0.01 - 1) for s in range(31)]
    for slot in (0, 1, 5, 30):
        expected = right[slot] / sum(right)
        assert (slots == slot).mean() == pytest.approx(expected, abs=4 * math.sqrt(expected / 20_000))
    published: Any = MQAR.presets["paper-64"]
    assert (published.power, published.examples, published.dropout) == (0.01, 100_000, 0.1)


def test_a_training_set_that_is_finite_comes_again_in_order() -> None:
    data = MQAR.open(dataclasses.replace(TINY, examples=3 * TINY.batch), seed=0)
    first, again = (_rows(data, "train", steps=3), [row.tobytes() for n in (3, 4, 5) for row in data.train(n).tokens])
    assert first == again
    assert len(set(first)) == 3 * TINY.batch


@pytest.mark.parametrize("name", tasks.names())
def test_presets_are_complete(name: str) -> None:
    task = tasks.find(name)
    assert task.name == name
    for preset in task.presets.values():
        assert len(preset.learning_rates) >= 3
        assert preset.steps >= preset.eval_every
        assert preset.summary


def test_mqar_tiny_is_the_published_size() -> None:
    assert (TINY.seq_len, TINY.pairs, TINY.vocab, TINY.d_model, TINY.layers, TINY.heads) == (64, 16, 256, 16, 2, 1)
    assert (TINY.ffn, TINY.positions, TINY.conv, TINY.batch) == ("none", "learned", 3, 64)


def test_e09_every_question_is_answered_by_the_pair_before_it() -> None:
    """Brute force over 10^4 sequences, by the definition of the task and nothing of the generator."""
    preset = dataclasses.replace(TINY, seq_len=24, pairs=5, vocab=40, test_size=10_000, batch=1000)
    slots: Counter[int] = Counter()
    data = MQAR.open(preset, seed=0)
    for batch in data.held_out("test"):
        assert batch.mask is None
        for tokens, labels, bins in zip(batch.tokens.tolist(), batch.labels.tolist(), batch.bins.tolist(), strict=True):
            keys, values = tokens[0:10:2], tokens[1:10:2]
            assert len(set(keys)) == len(set(values)) == 5
            assert all(1 <= key < 20 for key in keys)
            assert all(20 <= value < 40 for value in values)
            asked = [place for place, label in enumerate(labels) if label != tasks.IGNORE]
            assert sorted(tokens[place] for place in asked) == sorted(keys)
            for place in asked:
                first = tokens.index(tokens[place])
                assert labels[place] == tokens[first + 1]
                assert place >= 10
                assert place % 2 == 0
                low, high = map(int, data.bins[bins[place]].split("-"))
                assert low <= place - first <= high
                slots[place] += 1
            assert all(token == 0 for place, token in enumerate(tokens) if place >= 10 and place not in asked)
    expected = 10_000 * 5 / 7
    assert len(slots) == 7
    assert max(abs(count - expected) for count in slots.values()) < 5 * math.sqrt(expected)


def test_e09_two_pairs_of_sixteen_tokens() -> None:
    data = MQAR.open(dataclasses.replace(TINY, seq_len=16, pairs=2, vocab=20), seed=0)
    tokens, labels = data.train(0).tokens[0].tolist(), data.train(0).labels[0].tolist()
    binding = dict(zip(tokens[0:4:2], tokens[1:4:2], strict=True))
    assert {tokens[place]: label for place, label in enumerate(labels) if label != tasks.IGNORE} == binding


def test_mqar_bins_are_eighths_of_the_length() -> None:
    data = MQAR.open(TINY, seed=0)
    assert data.bins == ["1-8", "9-16", "17-24", "25-32", "33-40", "41-48", "49-56", "57-63"]
    assert data.baseline.score == 1 / 16


@pytest.mark.parametrize(("wrong", "message"), [
    ({"pairs": 17}, r"pairs must be 1 to 16 \(seq_len / 4\), got 17"),
    ({"vocab": 255}, r"vocab must be even and above 32 \(2 pairs\), got 255"),
    ({"vocab": 32}, r"vocab must be even and above 32 \(2 pairs\), got 32"),
])  # fmt: skip
def test_mqar_refuses_sizes_that_hold_no_sequence(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(TINY, **wrong)


def test_e07_mqar_splits_and_seeds_are_disjoint() -> None:
    preset = dataclasses.replace(TINY, validation_size=200, test_size=200)
    sets = [
        set(_rows(MQAR.open(preset, seed=seed), split)) for seed in (0, 1) for split in ("train", "validation", "test")
    ]
    assert len(set.union(*sets)) == sum(map(len, sets)) == 2 * (4 * 64 + 200 + 200)


def test_e07_text_splits_share_no_byte(tmp_path: Path) -> None:
    text = _text(tmp_path, 3000).read_bytes()
    data = TEXT.open(SMALL, seed=0, text=tmp_path / "own.txt")
    for split, low, high in (("train", 0, 2400), ("validation", 2400, 2700), ("test", 2700, 3000)):
        for row in _rows(data, split, steps=50):
            place = text.find(np.frombuffer(row, np.int64).astype(np.uint8).tobytes())
            assert low <= place < high - 20


def test_e07_library_is_split_by_file(tmp_path: Path) -> None:
    for number in range(60):
        (tmp_path / f"m{number}.py").write_text(f"<{number}>")
    for left_out in ("test/a.py", "pkg/tests/b.py", "site-packages/c.py", "pkg/d.txt"):
        path = tmp_path / left_out
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("no")
    corpus = read_library(tmp_path)
    parts = {split: part.tobytes().decode() for split, part in corpus.parts.items()}
    assert all(parts.values())
    assert sorted("".join(parts.values())) == sorted("".join(f"<{n}>" for n in range(60)))
    assert len(parts["train"]) > 0.8 * sum(map(len, parts.values()))
    assert corpus.facts["files"] == 60
    assert corpus.facts["train_bytes"] == len(parts["train"])
    (tmp_path / "m0.py").write_text("<x>")
    assert read_library(tmp_path).facts["sha256"] != corpus.facts["sha256"]


def test_e16_any_order_gives_the_same_batches(tmp_path: Path) -> None:
    """What is drawn depends on (seed, split, step) alone: not on what was drawn before, nor in which process."""
    text = _text(tmp_path, 3000)
    for task, preset in ((MQAR, TINY), (TEXT, SMALL)):
        forward, backward = (task.open(preset, seed=3, text=text) for _ in range(2))
        first = [forward.train(step).tokens for step in (0, 1, 2)]
        list(backward.held_out("validation"))
        for step in (2, 1, 0):
            assert np.array_equal(backward.train(step).tokens, first[step])
        assert not np.array_equal(first[0], first[1])
        assert not np.array_equal(task.open(preset, seed=4, text=text).train(0).tokens, first[0])


def test_e12_every_byte_is_a_symbol_and_nothing_is_padding(tmp_path: Path) -> None:
    (tmp_path / "zeros.bin").write_bytes(bytes([0, 0, 1]) * 400)
    data = TEXT.open(SMALL, seed=0, text=tmp_path / "zeros.bin")
    batch = data.train(0)
    assert batch.mask is None
    assert (batch.labels != tasks.IGNORE).all()
    assert set(np.unique(batch.tokens)) == {0, 1}
    assert np.array_equal(batch.tokens[:, 1:], batch.labels[:, :-1])


def test_text_windows_are_whole_and_never_overlap(tmp_path: Path) -> None:
    path = _text(tmp_path, 3000)
    text = path.read_bytes()
    data = TEXT.open(SMALL, seed=0, text=path)
    places = [text.find(np.frombuffer(row, np.int64).astype(np.uint8).tobytes()) for row in _rows(data, "test")]
    assert len(places) == 10
    assert all(after - before >= 21 for before, after in pairwise(places))
    many = TEXT.open(dataclasses.replace(SMALL, test_size=999), seed=0, text=path)
    assert len(_rows(many, "test")) == 300 // 21
    assert _rows(TEXT.open(SMALL, seed=5, text=path), "test") == _rows(data, "test")


def test_text_baseline_is_the_unigram_code(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_bytes(b"ab" * 800 + b"b" * 200 + b"aaab" * 50)
    data = TEXT.open(SMALL, seed=0, text=tmp_path / "own.txt")
    seen = Counter((b"ab" * 800)[:1600])
    bits = {symbol: -math.log2((seen[symbol] + 1) / (1600 + 256)) for symbol in b"ab"}
    labels = [int(label) for batch in data.held_out("test") for label in batch.labels.ravel()]
    assert data.baseline.score == pytest.approx(sum(bits[label] for label in labels) / len(labels))


@pytest.mark.parametrize(("length", "bins"), [
    (128, ["1-16", "17-32", "33-64", "65-128"]),
    (100, ["1-16", "17-32", "33-64", "65-100"]),
    (16, ["1-16"]),
    (10, ["1-10"]),
])  # fmt: skip
def test_text_bins_are_context_lengths(tmp_path: Path, length: int, bins: list[str]) -> None:
    data = TEXT.open(dataclasses.replace(SMALL, seq_len=length), seed=0, text=_text(tmp_path, 3000))
    assert list(data.bins) == bins
    for place, number in enumerate(data.train(0).bins[0].tolist()):
        low, high = map(int, bins[number].split("-"))
        assert low <= place + 1 <= high


def test_e06_synthetic_tasks_need_no_data() -> None:
    assert MQAR.open(TINY, seed=0, text="/nowhere").train(0).tokens.shape == (64, 64)


def test_e06_a_text_that_cannot_be_used_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "short.txt").write_bytes(b"x" * 200)
    for name, message in {
        "absent.txt": r"cannot read the text '.*absent\.txt' \(No such file or directory\); give a file of plain text",
        ".": r"cannot read the text '.*' \(Is a directory\)",
        "empty.txt": r"the text '.*empty\.txt' is empty; give a file",
        "short.txt": r"the text has 200 bytes, this preset needs at least 210; give a longer one",
    }.items():
        with pytest.raises(UserError, match=message) as caught:
            TEXT.open(SMALL, seed=0, text=tmp_path / name)
        assert "\n" not in str(caught.value)
    (tmp_path / "enough.txt").write_bytes(b"x" * 210)
    assert TEXT.open(SMALL, seed=0, text=tmp_path / "enough.txt").facts["source"] == "enough.txt"
    with pytest.raises(UserError, match="no Python sources in"):
        read_library(tmp_path)
