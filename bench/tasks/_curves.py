"""Dashed curves that do not touch, drawn as an image: the geometry of Pathfinder.

Lengths are in pixels, directions in radians. A dash reaches from `margin` to `margin + dash` along a step of
`dash + 2 * margin` pixels, from one tip of a curve to the next. K candidates for a step, S dashes, P points on a dash,
N pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

CANDIDATES = 24
BACK = 8  # dashes taken back where there is no room to go on
PATIENCE = 12  # steps a dash, taken back ones among them, before an image is begun anew
Floats = Any  # NDArray[np.float64]


@dataclass(frozen=True)
class Sizes:
    """length: dashes of the two long curves, which start `apart` pixels from each other. short: of a distractor.

    clearance: least distance of points on two dashes that do not follow each other. straight: how seldom curves turn
    (among the turns that have room, up to a right angle, as a normal one of deviation 0.5 / straight). radius: of the
    two discs.
    """

    image: int
    length: int
    short: int
    distractors: int
    apart: float = 7.0
    dash: float = 2.0
    margin: float = 1.0
    thickness: float = 0.5
    clearance: float = 2.0
    straight: float = 1.0
    radius: float = 1.5


@dataclass(frozen=True)
class Step:
    """A dash by its points (P, 2), the tip of the curve after it, and its direction (NaN before the first dash)."""

    points: Floats
    tip: Floats
    angle: float


@dataclass(frozen=True)
class Drawing:
    """Points (S, P, 2) of all dashes, and the first and last tips (2, 2) of the two long curves."""

    points: Floats
    starts: Floats
    ends: Floats


def grow(rng: np.random.Generator, sizes: Sizes) -> Drawing:
    """One drawing: two long curves grown in turns, then the distractors, in the room that is left."""
    while True:
        starts = _starts(rng, sizes)
        steps = _long(rng, sizes, starts)
        if steps is not None and _distract(rng, sizes, steps):
            ends = [step.tip for step in steps[2 * sizes.length - 2 : 2 * sizes.length]]
            return Drawing(np.stack([step.points for step in steps]), starts, np.stack(ends))


def _starts(rng: np.random.Generator, sizes: Sizes) -> Floats:
    """Two places of the given distance, well inside the image."""
    low, high = sizes.radius + sizes.apart / 2, sizes.image - 1 - sizes.radius - sizes.apart / 2
    angle, middle_2 = rng.uniform(0, 2 * np.pi), rng.uniform(low, high, 2)
    away_2 = sizes.apart / 2 * np.array([np.sin(angle), np.cos(angle)])
    return np.stack([middle_2 - away_2, middle_2 + away_2])


def _long(rng: np.random.Generator, sizes: Sizes, starts: Floats) -> list[Step] | None:
    """The dashes of both long curves in turns; None where they got stuck."""
    steps: list[Step] = []
    for _ in range(PATIENCE * 2 * sizes.length):
        if len(steps) == 2 * sizes.length:
            return steps
        first = len(steps) < 2
        before = Step(np.zeros(0), starts[len(steps)], np.nan) if first else steps[-2]
        step = _next(rng, sizes, before, steps if first else [*steps[:-2], steps[-1]])
        if step is None:
            del steps[-BACK:]
        else:
            steps.append(step)
    return None


def _distract(rng: np.random.Generator, sizes: Sizes, steps: list[Step]) -> bool:
    """Add the distractors; whether there was room for all."""
    for _ in range(sizes.distractors):
        begun = len(steps)
        for _ in range(PATIENCE * sizes.short):
            first = len(steps) == begun
            place_2 = rng.uniform(sizes.radius, sizes.image - 1 - sizes.radius, 2)
            before = Step(np.zeros(0), place_2, np.nan) if first else steps[-1]
            step = _next(rng, sizes, before, steps if first else steps[:-1])
            if step is None:
                del steps[begun:]
                continue
            steps.append(step)
            if len(steps) == begun + sizes.short:
                break
        else:
            return False
    return True


def _next(rng: np.random.Generator, sizes: Sizes, before: Step, others: list[Step]) -> Step | None:
    """A step on from the tip of another that keeps clear of the others; None where there is no room."""
    if np.isnan(before.angle):
        angles_K, logs_K = rng.uniform(0, 2 * np.pi, CANDIDATES), np.zeros(CANDIDATES)
    else:
        turns_K = rng.uniform(-np.pi / 2, np.pi / 2, CANDIDATES)
        angles_K, logs_K = before.angle + turns_K, -2 * (sizes.straight * turns_K) ** 2
    units_K2 = np.stack([np.sin(angles_K), np.cos(angles_K)], axis=1)
    tips_K2 = before.tip + (sizes.dash + 2 * sizes.margin) * units_K2
    along_P = sizes.margin + sizes.dash * np.array([0, 0.5, 1])
    points_KP2 = before.tip + along_P[:, None] * units_K2[:, None]
    room_K = ((tips_K2 >= sizes.radius) & (tips_K2 <= sizes.image - 1 - sizes.radius)).all(axis=1)
    if others and room_K.any():
        placed_2 = np.concatenate([step.points for step in others])
        squares_KP = ((points_KP2[:, :, None] - placed_2) ** 2).sum(axis=3).min(axis=2)
        room_K &= (squares_KP >= sizes.clearance**2).all(axis=1)
    if not room_K.any():
        return None
    best = np.where(room_K, logs_K + rng.gumbel(size=CANDIDATES), -np.inf).argmax()  # drawn by weight
    return Step(points_KP2[best], tips_K2[best], float(angles_K[best]))


def paint(dashes_SP2: Floats, discs_22: Floats, sizes: Sizes) -> Any:
    """One image (image, image) of bytes: what of a pixel a dash or one of two discs covers, at the edge in part."""
    pixels = np.stack(np.meshgrid(np.arange(sizes.image), np.arange(sizes.image), indexing="ij"), axis=2)
    pixels_N12 = pixels.reshape(-1, 1, 2).astype(np.float32)
    starts_S2, ends_S2 = dashes_SP2[:, 0].astype(np.float32), dashes_SP2[:, -1].astype(np.float32)
    along_NS1 = ((pixels_N12 - starts_S2) * (ends_S2 - starts_S2)).sum(axis=2, keepdims=True) / sizes.dash**2
    nearest_NS2 = starts_S2 + np.clip(along_NS1, 0, 1) * (ends_S2 - starts_S2)
    dashes_N = sizes.thickness / 2 + 0.5 - _distance(pixels_N12, nearest_NS2)
    discs_N = sizes.radius + 0.5 - _distance(pixels_N12, discs_22)
    covered_N = np.clip(np.maximum(dashes_N, discs_N), 0, 1)
    return np.round(255 * covered_N).astype(np.uint8).reshape(sizes.image, sizes.image)


def _distance(from_N12: Floats, to_NS2: Floats) -> Floats:
    """To the nearest of some points."""
    return np.sqrt(((from_N12 - to_NS2) ** 2).sum(axis=2)).min(axis=1)
