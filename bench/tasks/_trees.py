"""Random ListOps expressions, a batch at a time, level by level.

Ids 0..9 are the digits, 10..13 open MIN, MAX, MED and SM, 14 closes. Arrays of a level hold its nodes (suffix M) in the
order of their parents, so that the children of a node stand together; T expressions, N positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
FIRST_OPERATOR, CLOSE = 10, 14
SYMBOLS = (*"0123456789", *OPERATORS, "]")
OPERATOR_SHARE = 0.25
ROOTS = 512  # expressions begun at a time

Ints = Any  # NDArray[np.int64]; numpy is imported with this module only


@dataclass(frozen=True)
class Level:
    """Symbol of each node (a digit or an operator) and the number of its children (0 for a digit)."""

    symbol_M: Ints
    kids_M: Ints


@dataclass(frozen=True)
class Expressions:
    """tokens (T, N), padded on the right with 0 where mask (T, N) is False, and the values (T)."""

    tokens: NDArray[np.int64]
    mask: NDArray[np.bool_]
    values: NDArray[np.int64]


def grow(rng: np.random.Generator, max_depth: int, max_args: int) -> list[Level]:
    """Levels of ROOTS trees: above max_depth a node is an operator of 2 to max_args arguments in a quarter of cases."""
    levels: list[Level] = []
    count = ROOTS
    while count:
        operator_M = rng.random(count) < (OPERATOR_SHARE if len(levels) < max_depth - 1 else 0)
        digit_M, kind_M = rng.integers(10, size=count), FIRST_OPERATOR + rng.integers(4, size=count)
        args_M = rng.integers(2, max_args + 1, count)
        levels.append(Level(np.where(operator_M, kind_M, digit_M), np.where(operator_M, args_M, 0)))
        count = int(levels[-1].kids_M.sum())
    return levels


def sizes_of(levels: list[Level]) -> list[Ints]:
    """Tokens of each node with all below it, level by level: a digit is one, an operator and its bracket two."""
    sizes: list[Ints] = []
    below_M = np.zeros(0, np.int64)
    for level in reversed(levels):
        parents_M = np.repeat(np.arange(len(level.kids_M)), level.kids_M)
        inner_M = np.bincount(parents_M, below_M, minlength=len(level.kids_M)).astype(np.int64)
        below_M = np.where(level.kids_M > 0, inner_M + 2, 1)
        sizes.append(below_M)
    return sizes[::-1]


def values_of(levels: list[Level]) -> Ints:
    """Value of each root. MED is the mean of the two middle ones, rounded down, for an even number of arguments."""
    below_M = np.zeros(0, np.int64)
    for level in reversed(levels):
        value_M = level.symbol_M.copy()
        inner_M = np.flatnonzero(level.kids_M)
        if len(inner_M):
            kids_M = level.kids_M[inner_M]
            first_M = kids_M.cumsum() - kids_M
            sorted_M = below_M[np.lexsort((below_M, np.repeat(np.arange(len(kids_M)), kids_M)))]
            results = (
                sorted_M[first_M],
                sorted_M[first_M + kids_M - 1],
                (sorted_M[first_M + (kids_M - 1) // 2] + sorted_M[first_M + kids_M // 2]) // 2,
                np.add.reduceat(below_M, first_M) % 10,
            )
            value_M[inner_M] = np.choose(level.symbol_M[inner_M] - FIRST_OPERATOR, results)
        below_M = value_M
    return below_M


def pick(levels: list[Level], roots_M: NDArray[np.bool_]) -> list[Level]:
    """The trees of some roots."""
    kept, keep_M = [], roots_M
    for level in levels:
        if not keep_M.any():
            break
        kept.append(Level(level.symbol_M[keep_M], level.kids_M[keep_M]))
        keep_M = np.repeat(keep_M, level.kids_M)
    return kept


def written(levels: list[Level], sizes: list[Ints], length: int) -> tuple[Ints, NDArray[np.bool_]]:
    """Tokens and mask (T, length), each expression from its first token on."""
    tokens_TN = np.zeros((len(sizes[0]), length), np.int64)
    tree_M = np.arange(len(sizes[0]))
    place_M = np.zeros(len(sizes[0]), np.int64)
    for level, size_M, below_M in zip(levels, sizes, [*sizes[1:], np.zeros(0, np.int64)], strict=True):
        tokens_TN[tree_M, place_M] = level.symbol_M
        inner_M = level.kids_M > 0
        tokens_TN[tree_M[inner_M], (place_M + size_M - 1)[inner_M]] = CLOSE
        before_M = below_M.cumsum() - below_M  # tokens of all nodes before in the next level
        first_M = (level.kids_M.cumsum() - level.kids_M)[inner_M]
        tree_M = np.repeat(tree_M, level.kids_M)
        place_M = np.repeat(place_M[inner_M] + 1 - before_M[first_M], level.kids_M[inner_M]) + before_M
    return tokens_TN, np.arange(length) < sizes[0][:, None]


def draw(rng: np.random.Generator, count: int, *, above: int, below: int, max_depth: int, max_args: int) -> Expressions:
    """The first `count` expressions of a stream that have more than `above` and fewer than `below` tokens."""
    parts: list[Expressions] = []
    while count > sum(len(part.values) for part in parts):
        levels = grow(rng, max_depth, max_args)
        root_sizes_M = sizes_of(levels)[0]
        levels = pick(levels, (above < root_sizes_M) & (root_sizes_M < below))
        if levels:
            parts.append(Expressions(*written(levels, sizes_of(levels), below), values_of(levels)))
    return Expressions(
        *(np.concatenate([getattr(part, name) for part in parts])[:count] for name in ("tokens", "mask", "values"))
    )
