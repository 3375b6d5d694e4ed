"""Block layouts: window, global and random blocks, as lists of key blocks for every block of queries.

b blocks of queries, L blocks of a list. Blocks have absolute numbers, see `_lists`. No row depends on where a sequence
ends, so that padding changes nothing: global blocks stand at its start, and random ones may lie beyond its end. The
lists are made by numpy: a plan, whose tensors have no values, counts their pairs too.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from bench.pairs import full_pattern
from bench.variant import Shape
from variants._lists import Seen, attend_lists, see_all

Numbers = npt.NDArray[np.int64]


class Layout:
    """Which blocks see which.

    block: positions of a block. back, ahead: window blocks before and after the own one; when causal none after. first:
    global blocks, which all see, and which see all if not causal. random: blocks a row drawn from `seed` among the
    others up to max_len; when causal among those before.
    """

    def __init__(
        self, shape: Shape, *, block: int, back: int, ahead: int, first: int, random: int = 0, seed: int = 0
    ) -> None:
        self.causal = shape.causal
        self.block = block
        self.back = back
        self.ahead = 0 if shape.causal else ahead
        self.first = first
        rows = -(-shape.max_len // block)
        self.draws_bR: Numbers = np.random.default_rng(seed).integers(2**31, size=(rows, random))

    @classmethod
    def named(
        cls, name: Literal["window", "window+global", "random"], shape: Shape, *, block: int, blocks: int, seed: int
    ) -> Layout:
        """`blocks` blocks of keys for each block of queries, the own one included; see `block_sparse`."""
        if block < 1:
            raise ValueError(f"block must be at least 1, got {block}")
        first = 1 if name == "window+global" else 0
        if blocks < 1 + first:
            raise ValueError(f"blocks must be at least {1 + first} with layout '{name}', got {blocks}")
        random = blocks - 1 if name == "random" else 0
        around = blocks - 1 - first - random
        ahead = 0 if shape.causal else around // 2
        return cls(shape, block=block, back=around - ahead, ahead=ahead, first=first, random=random, seed=seed)

    def rows(self, query_len: int, key_len: int) -> Numbers:
        """Numbers of the blocks in which there are queries, (b, 1)."""
        return np.arange((key_len - query_len) // self.block, -(-key_len // self.block))[:, None]

    def lists(self, row_b1: Numbers) -> Numbers:
        """(b, L): window, global and random blocks of every row; -1 for one that is listed before or does not exist."""
        window_bW = row_b1 + np.arange(-self.back, self.ahead + 1)
        low_b1, high_b1 = window_bW[:, :1], window_bW[:, -1:] + 1
        global_C = np.arange(self.first)
        global_bC = np.where((global_C < low_b1) | (global_C >= high_b1), global_C, -1)
        # What a row may draw: from `first` up to its window, and from there to the end.
        end = max(len(self.draws_bR), self.first)
        low_b1 = low_b1.clip(self.first, end)
        high_b1 = np.full_like(low_b1, end) if self.causal else high_b1.clip(self.first, end)
        count_b1 = low_b1 - self.first + end - high_b1
        place_bR = distinct(self.draws_bR[row_b1[:, 0] % len(self.draws_bR)], count_b1)
        drawn_bR = self.first + place_bR + np.where(place_bR >= low_b1 - self.first, high_b1 - low_b1, 0)
        return np.concatenate([window_bW, global_bC, np.where(place_bR < count_b1, drawn_bR, -1)], 1)

    def all_seeing(self, query_len: int, key_len: int) -> slice:
        """The queries of global blocks, if they see all keys."""
        start, stop = (min(max(p - key_len + query_len, 0), query_len) for p in (0, self.first * self.block))
        return slice(0, 0) if self.causal else slice(start, stop)

    def table(self, query_len: int, key_len: int) -> npt.NDArray[np.bool_]:
        """Which blocks of queries see which blocks of keys, (b, m), the causal limit aside."""
        row_b1 = self.rows(query_len, key_len)
        seen_bm = (self.lists(row_b1)[:, :, None] == np.arange(-(-key_len // self.block))).any(1)
        sees_all_b1 = (row_b1 >= 0) & (row_b1 < self.first) & (not self.causal)
        table_bm: npt.NDArray[np.bool_] = seen_bm | sees_all_b1
        return table_bm

    def pattern(self, query_len: int, key_len: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Allowed pairs, bool (Nq, Nk)."""
        row_N = np.arange(key_len - query_len, key_len) // self.block - (key_len - query_len) // self.block
        allowed_NM = self.table(query_len, key_len)[row_N][:, np.arange(key_len) // self.block]
        return torch.from_numpy(allowed_NM).to(device) & full_pattern(query_len, key_len, self.causal, device)

    def pairs(self, query_len: int, key_len: int) -> int:
        """Number of allowed pairs, from the lists."""
        row_b1 = self.rows(query_len, key_len)
        lists_bL = self.lists(row_b1)
        low_b1 = (row_b1 * self.block).clip(min=key_len - query_len)
        high_b1 = ((row_b1 + 1) * self.block).clip(max=key_len)
        keys_bL = np.where(lists_bL >= 0, (key_len - lists_bL * self.block).clip(0, self.block), 0)
        pairs_bL = keys_bL * (high_b1 - low_b1)
        if self.causal:  # a row of the own block at place x sees x + 1 keys of it
            own_b1 = (low_b1 + high_b1 + 1 - 2 * row_b1 * self.block) * (high_b1 - low_b1) // 2
            pairs_bL = np.where(lists_bL == row_b1, own_b1, pairs_bL)
            return int(pairs_bL[(row_b1 >= 0) & (lists_bL <= row_b1)].sum())
        whole = self.all_seeing(query_len, key_len)
        others_b1 = (row_b1 < 0) | (row_b1 >= self.first)
        return int((pairs_bL * others_b1).sum()) + int(whole.stop - whole.start) * key_len

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, key_mask: torch.Tensor | None, *, scale: float
    ) -> torch.Tensor:
        """Softmax attention in this layout: (B,H,Nq,D), (B,G,Nk,D), (B,G,Nk,E), key_mask (B,Nk) -> (B,H,Nq,E)."""
        lists_bL = torch.from_numpy(self.lists(self.rows(q.shape[2], k.shape[2]))).to(q.device)
        around = None if self.first or self.draws_bR.size else (self.back, self.ahead)
        out = attend_lists(q, k, v, key_mask, Seen(self.block, lists_bL, self._rule, around), scale=scale)
        return see_all(out, self.all_seeing(q.shape[2], k.shape[2]), q, k, v, key_mask, scale=scale)

    def _rule(self, p: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return j <= p if self.causal else j == j


def distinct(draws_bR: Numbers, count_b1: Numbers) -> Numbers:
    """R different numbers below the count of a row, evenly drawn, (b, R); a huge one where there are no more.

    The i-th draw counts among the numbers that are left: it passes over those taken before it, from the smallest on.
    """
    taken_bR = draws_bR[:, :0]
    for i in range(draws_bR.shape[1]):
        left_b1 = count_b1 - i
        number_b1 = draws_bR[:, i : i + 1] % left_b1.clip(min=1)
        for other in range(i):
            number_b1 = number_b1 + (number_b1 >= taken_bR[:, other : other + 1])
        number_b1 = np.where(left_b1 > 0, number_b1, 2**40)
        taken_bR = np.sort(np.concatenate([taken_bR, number_b1], 1), 1)
    return taken_bR
