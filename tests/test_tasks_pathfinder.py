"""Pathfinder's images: dashes keep apart, discs stand where the label says, and splits are apart."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, combinations, pairwise

import numpy as np
import pytest

from bench import tasks
from bench.tasks import _curves
from bench.tasks.pathfinder import EASY

PATHFINDER = tasks.find("pathfinder")
FEW = replace(EASY, batch=8, validation_size=8, test_size=16, train_size=24)
SIZES = _curves.Sizes(32, 6, 2, 10)


def drawings(count: int) -> list[_curves.Drawing]:
    rng = np.random.default_rng(0)
    return [_curves.grow(rng, SIZES) for _ in range(count)]


def chains(drawing: _curves.Drawing) -> list[list[int]]:
    """Numbers of the dashes of each curve, in order: the long ones in turns, then the distractors."""
    long = [list(range(curve, 2 * SIZES.length, 2)) for curve in (0, 1)]
    first = 2 * SIZES.length
    return long + [
        list(range(at, at + SIZES.short)) for at in range(first, first + SIZES.short * SIZES.distractors, SIZES.short)
    ]


def test_there_are_two_long_curves_and_the_distractors() -> None:
    for drawing in drawings(5):
        assert len(drawing.points) == 2 * 6 + 10 * 2
        assert sorted(chain.from_iterable(chains(drawing))) == list(range(32))


def test_dashes_follow_each_other_without_a_sharp_turn() -> None:
    for drawing in drawings(5):
        for curve in chains(drawing):
            for one, next_ in pairwise(curve):
                before, after = drawing.points[one], drawing.points[next_]
                assert np.isclose(np.linalg.norm(before[-1] - before[0]), 2)
                assert np.linalg.norm(after[0] - before[-1]) <= 2 + 1e-9  # a margin on each side
                assert np.dot(before[-1] - before[0], after[-1] - after[0]) >= -1e-9  # at most a right angle


def test_dashes_that_do_not_follow_each_other_keep_apart() -> None:
    for drawing in drawings(5):
        near = {frozenset(pair) for curve in chains(drawing) for pair in pairwise(curve)}
        for one, other in combinations(range(len(drawing.points)), 2):
            if frozenset((one, other)) not in near:
                distances = np.linalg.norm(drawing.points[one][:, None] - drawing.points[other], axis=2)
                assert distances.min() >= 2 - 1e-9


def test_tips_belong_to_their_curves_and_lie_inside() -> None:
    for drawing in drawings(5):
        assert np.isclose(np.linalg.norm(drawing.starts[0] - drawing.starts[1]), 7)
        for curve, dashes in enumerate(chains(drawing)[:2]):
            assert np.isclose(np.linalg.norm(drawing.points[dashes[0]][0] - drawing.starts[curve]), 1)
            assert np.isclose(np.linalg.norm(drawing.points[dashes[-1]][-1] - drawing.ends[curve]), 1)
        for tips in (drawing.starts, drawing.ends):
            assert tips.min() >= 1.5
            assert tips.max() <= 31 - 1.5


def test_a_painted_dash_is_where_its_points_are() -> None:
    dash = np.array([[[10.0, 5.0], [10.0, 6.0], [10.0, 7.0]]])
    image = _curves.paint(dash, np.array([[20.0, 20.0], [25.0, 8.0]]), SIZES)
    assert image.shape == (32, 32)
    assert (image[10, 5:8] == round(255 * 0.75)).all()
    assert image[10, 3] == image[10, 9] == image[12, 6] == 0
    assert image[20, 20] == image[20, 21] == image[25, 8] == 255
    assert image[20, 23] == 0


def test_labels_say_whether_the_discs_are_on_one_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two discs of every image against the tips of its curves."""
    seen: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    grow, paint = _curves.grow, _curves.paint
    last: list[_curves.Drawing] = []

    def noting(rng: np.random.Generator, sizes: _curves.Sizes) -> _curves.Drawing:
        last[:] = [grow(rng, sizes)]
        return last[0]

    def looking(points: np.ndarray, discs: np.ndarray, sizes: _curves.Sizes) -> np.ndarray:
        seen.append((last[0].starts, last[0].ends, discs))
        image: np.ndarray = paint(points, discs, sizes)
        return image

    data = PATHFINDER.open(FEW, seed=0)
    list(data.held_out("test"))
    monkeypatch.setattr(_curves, "grow", noting)
    monkeypatch.setattr(_curves, "paint", looking)
    labels = data.train(0).labels[:, 0]
    assert set(labels) == {0, 1}
    for label, (starts, ends, discs) in zip(labels, seen, strict=True):
        first = [curve for curve in (0, 1) if np.array_equal(discs[0], starts[curve])]
        last_ = [curve for curve in (0, 1) if np.array_equal(discs[1], ends[curve])]
        assert (first == last_) == bool(label)


def test_e12_pixels_are_bytes_of_which_black_is_one() -> None:
    batch = PATHFINDER.open(FEW, seed=0).train(0)
    assert batch.mask is None
    assert batch.tokens.shape == (8, 1024)
    assert batch.tokens.dtype == np.int64
    assert 0 in batch.tokens
    assert batch.tokens.max() == 255


def test_e07_splits_share_no_image_and_the_training_images_come_again() -> None:
    data = PATHFINDER.open(FEW, seed=0)
    validation, test = ({row.tobytes() for b in data.held_out(s) for row in b.tokens} for s in ("validation", "test"))
    steps = [data.train(step).tokens for step in range(6)]
    trained = {row.tobytes() for tokens in steps for row in tokens}
    assert len(trained) == 24
    assert np.array_equal(steps[0], steps[3])
    assert len(trained | validation | test) == 24 + 8 + 16
    again = PATHFINDER.open(FEW, seed=0)
    assert np.array_equal(again.train(4).tokens, steps[1])


def test_e20_shades_alone_say_nothing() -> None:
    data = PATHFINDER.open(replace(FEW, batch=32, train_size=320, test_size=96), seed=0)
    assert 0.5 <= data.baseline.score < 0.68
    assert 0.3 < data.baselines["bag of tokens"] < 0.7


def test_fourteen_dashes_find_room() -> None:
    sizes = _curves.Sizes(32, 14, 4, 5)
    assert len(_curves.grow(np.random.default_rng(0), sizes).points) == 2 * 14 + 5 * 4


def test_a_length_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match=r"length must be 3 to 14 \(dashes that find room\), got 40"):
        replace(EASY, length=40)
