"""ListOps: what is written is what is asked, nothing is lost, and how much reading little gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bench import tasks
from bench.tasks import Batch
from bench.tasks.listops import SHORT, ListOpsPreset, decode, encode, root_on_its_digits

LISTOPS = tasks.find("listops")
LRA = LISTOPS.presets["lra"]
OPERATIONS: dict[str, Callable[[list[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(float(np.median(values))),
    "[SM": lambda values: sum(values) % 10,
}


def solve(expression: str) -> int:
    """The value of a written expression, by a stack."""
    stack: list[tuple[str, list[int]]] = [("", [])]
    for symbol in expression.split():
        if symbol in OPERATIONS:
            stack.append((symbol, []))
        elif symbol == "]":
            operator, values = stack.pop()
            assert len(values) >= 2
            stack[-1][1].append(OPERATIONS[operator](values))
        else:
            stack[-1][1].append(int(symbol))
    assert len(stack) == len(stack[0][1]) == 1
    return stack[0][1][0]


def written(batch: Batch) -> list[str]:
    """The expressions of a batch, padding apart."""
    assert batch.mask is not None
    return [decode(row[real].tolist()) for row, real in zip(batch.tokens, batch.mask, strict=True)]


def test_e01_brackets_are_kept() -> None:
    near, far = "[SM 4 [MIN 7 2 ] 9 ]", "[SM 4 [MIN 7 2 9 ] ]"
    assert (solve(near), solve(far)) == (5, 6)
    assert encode(near) != encode(far)
    assert [decode(encode(text)) for text in (near, far)] == [near, far]
    assert len(encode(near)) == 8


@pytest.mark.parametrize(("preset", "steps"), [(SHORT, 20), (LRA, 4)], ids=["listops-128", "lra"])
def test_e03_every_label_is_the_value_of_the_whole_expression(preset: ListOpsPreset, steps: int) -> None:
    data = LISTOPS.open(preset, seed=0)
    assert data.facts["truncated"] == 0
    depths: Counter[int] = Counter()
    arguments: set[int] = set()
    for step in range(steps):
        batch = data.train(step)
        assert batch.tokens.shape == (preset.batch, preset.seq_len)
        for text, label, bin_ in zip(written(batch), batch.labels[:, 0], batch.bins[:, 0], strict=True):
            assert solve(text) == label
            low, high = map(int, data.bins[bin_].split("-"))
            assert preset.above < low <= len(text.split()) <= high < preset.seq_len
            depth = np.cumsum([(symbol in OPERATIONS) - (symbol == "]") for symbol in text.split()])
            depths[int(depth.max())] += 1
            arguments |= kids(text)
    assert max(depths) == preset.max_depth - 1  # a digit is the last level
    assert arguments == set(range(2, preset.max_args + 1))


def kids(expression: str) -> set[int]:
    """How many arguments the operators of an expression have."""
    found, open_ = set(), [0]
    for symbol in expression.split():
        if symbol == "]":
            found.add(open_.pop())
        else:
            open_[-1] += 1
            if symbol in OPERATIONS:
                open_.append(0)
    return found


def test_e12_zero_is_a_digit_and_not_padding() -> None:
    batch = LISTOPS.open(SHORT, seed=0).train(0)
    assert batch.mask is not None
    assert (batch.tokens[batch.mask] == 0).any()
    lengths = batch.mask.sum(axis=1)
    assert all(row[:length].all() and not row[length:].any() for row, length in zip(batch.mask, lengths, strict=True))
    assert (batch.tokens[np.arange(len(lengths)), lengths - 1] == encode("]")[0]).all()


def test_e07_splits_and_seeds_share_no_expression() -> None:
    found = []
    for seed in (0, 1):
        data = LISTOPS.open(replace(SHORT, test_size=500, validation_size=500), seed=seed)
        found.append({text for step in range(20) for text in written(data.train(step))})
        found += [
            {text for batch in data.held_out(split) for text in written(batch)} for split in ("validation", "test")
        ]
    assert len(set().union(*found)) == sum(map(len, found)) == 2 * (20 * 64 + 500 + 500)


def test_the_training_split_has_as_many_expressions_as_it_says() -> None:
    data = LISTOPS.open(replace(SHORT, train_size=64 * 3 + 10, validation_size=10, test_size=10), seed=0)
    texts = [tuple(written(data.train(step))) for step in range(7)]
    assert texts[:3] == texts[3:6]
    assert len(set(texts)) == 3
    assert texts[6] == texts[0]


def test_e20_what_reading_little_gives_is_scored_on_the_same_split() -> None:
    data = LISTOPS.open(replace(SHORT, test_size=1000), seed=0)
    texts = [(text, solve(text)) for batch in data.held_out("test") for text in written(batch)]
    values = Counter(value for _, value in texts)
    assert data.baseline.score == values.most_common(1)[0][1] / 1000
    by_root: dict[str, Counter[int]] = {}
    for text, value in texts:
        by_root.setdefault(text.split()[0], Counter())[value] += 1
    assert data.baselines["root operator"] == sum(counts.most_common(1)[0][1] for counts in by_root.values()) / 1000
    right = sum(OPERATIONS[text.split()[0]](own) == value if (own := own_digits(text)) else value == 0
                for text, value in texts)  # fmt: skip
    assert data.baselines["root operator on its own digits"] == right / 1000
    assert 0.1 < data.baselines["bag of tokens"] < 0.25


def own_digits(expression: str) -> list[int]:
    """The digits that are arguments of the first operator."""
    depth, found = 0, []
    for symbol in expression.split():
        depth += (symbol in OPERATIONS) - (symbol == "]")
        if depth == 1 and symbol.isdigit():
            found.append(int(symbol))
    return found


def test_the_root_rule_by_hand() -> None:
    texts = [
        "[SM 4 [MIN 7 2 ] 9 ]",
        "[MED 1 8 [MAX 9 9 ] 4 6 ]",
        "[MIN [MAX 1 2 ] [MAX 3 4 ] ]",
        "[MAX 3 [SM 9 9 ] 5 ]",
    ]
    tokens, mask = np.zeros((4, 12), np.int64), np.zeros((4, 12), bool)
    for row, text in enumerate(texts):
        ids = encode(text)
        tokens[row, : len(ids)], mask[row, : len(ids)] = ids, True
    none = np.zeros((4, 1), np.int64)
    assert root_on_its_digits(Batch(tokens, none, none, mask)).tolist() == [3, 5, 0, 5]


def statistics(size: int) -> dict[str, float]:
    """What is published of LRA's expressions, of ours."""
    data = LISTOPS.open(replace(LRA, test_size=size, validation_size=1), seed=0)
    batches = list(data.held_out("test"))
    lengths = np.concatenate([batch.mask.sum(axis=1) for batch in batches if batch.mask is not None])
    labels = np.concatenate([batch.labels[:, 0] for batch in batches])
    return {
        "mean": float(lengths.mean()), "median": float(np.median(lengths)),
        "zero": float((labels == 0).mean()), "nine": float((labels == 9).mean()),
        "root": data.baselines["root operator"], "digits": data.baselines["root operator on its own digits"],
    }  # fmt: skip


PUBLISHED = {"mean": 1033, "median": 937, "zero": 0.156, "nine": 0.168, "root": 0.358, "digits": 0.469}
SPREAD = {"mean": 384, "median": 560, "zero": 0.37, "nine": 0.374, "root": 0.48, "digits": 0.5}  # of one expression


@pytest.mark.parametrize("size", [1500, pytest.param(40_000, marks=pytest.mark.slow)])
def test_the_expressions_have_the_published_statistics(size: int) -> None:
    """The published ones come from 4,000 expressions: four standard errors of a difference to those."""
    for name, value in statistics(size).items():
        error = SPREAD[name] * (1 / size + 1 / 4000) ** 0.5
        assert abs(value - PUBLISHED[name]) < 4 * error, (name, value)


@pytest.mark.parametrize(("wrong", "message"), [
    ({"above": 127}, r"above must be 3 to 126 \(seq_len - 2\), got 127"),
    ({"max_args": 1}, "max_args and max_depth must be at least 2, got 1 and 10"),
])  # fmt: skip
def test_bounds_that_hold_no_expression_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SHORT, **wrong)
