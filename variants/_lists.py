"""Softmax attention in blocks of queries, each with a list of the key blocks that it may see.

Blocks are cut at absolute positions: block number i holds the positions i * block ... of queries and of keys alike;
a query at a position before key 0 lies in a block with a negative number. X rows (batch and key head), b blocks of
queries, r queries of a block, R = query heads that share a key head times r, L blocks of a list, S = L * block keys.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from variants._fused import one_width
from variants._masking import nothing_seen, zero_padding
from variants._sdpa import attend

# (positions p of queries, positions j of keys) -> which pairs are allowed, all broadcastable to (b, r, S).
Rule = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

TILE = {"cpu": 2**18}  # scores that exist at a time: 1 MiB of float32 stays in the cache
TILE_ELSEWHERE = 2**24  # enough to fill an accelerator


def query_blocks(query_len: int, key_len: int, block: int, device: torch.device | str) -> torch.Tensor:
    """The numbers of the blocks in which there are queries, int64 (b,)."""
    return torch.arange((key_len - query_len) // block, -(-key_len // block), device=device)


def others(lists_bL: torch.Tensor, count: int) -> torch.Tensor:
    """The first `count` blocks, (b, count), with -1 for those that stand in a list of neighbours."""
    first_bC = torch.arange(count, device=lists_bL.device).expand(len(lists_bL), -1)
    return first_bC.where((first_bC < lists_bL[:, :1]) | (first_bC > lists_bL[:, -1:]), -1)


class Seen(NamedTuple):
    """Which keys the queries may see: those of listed blocks that the rule allows; a query always its own.

    lists_bL: numbers of key blocks for every one of `query_blocks`; a number that no key has stands for nothing, and no
    block may be listed twice. around: where the rule looks at p - j alone and a list is the blocks around the own one,
    how many before and after it.
    """

    block: int
    lists_bL: torch.Tensor
    rule: Rule
    around: tuple[int, int] | None = None


def attend_lists(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, key_mask: torch.Tensor | None, seen: Seen, *, scale: float
) -> torch.Tensor:
    """softmax(scale * q k^T) v over the keys that are seen: (B,H,Nq,D), (B,G,Nk,D), (B,G,Nk,E) -> (B,H,Nq,E).

    On the CPU the scores exist by tiles, in float32 or wider, and are computed again in the backward; elsewhere torch's
    fused kernel runs on gathered keys.
    """
    return _attend(q, k, v, key_mask, seen, scale, totals=False)[0].to(q.dtype)


def part_of_lists(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, key_mask: torch.Tensor | None, seen: Seen, *, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same by tiles, in float32 or wider, with what `join` needs: (B,H,Nq,E) and the totals (B,H,Nq,2)."""
    return _attend(q, k, v, key_mask, seen, scale, totals=True)


def join(one: torch.Tensor, other: torch.Tensor, totals_one: torch.Tensor, totals_other: torch.Tensor) -> torch.Tensor:
    """One softmax over the keys of two parts, from their outputs (..., E) and totals (..., 2), see `tiled`.

    0 where both see nothing.
    """
    highest, log_sum = (totals_other - totals_one).unbind(-1)
    gap = (highest.detach().nan_to_num(0, torch.inf, -torch.inf) + log_sum)[..., None]
    return torch.lerp(one, other, gap.sigmoid())


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    key_mask: torch.Tensor | None,
    seen: Seen,
    scale: float,
    totals: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    k, v = zero_padding(k, v, key_mask)
    (batch, heads, query_len, width), (kv_heads, key_len) = q.shape, k.shape[1:3]
    if 0 in (batch, query_len, key_len):
        return nothing_seen(q, v.shape[3]), q.new_tensor((-torch.inf, 0)).expand(batch, heads, query_len, -1)
    block, lists_bL, rule, around = seen
    start, ahead = divmod(key_len - query_len, block)
    blocks, tail = lists_bL.shape[0], -key_len % block
    p_br = torch.arange(start * block, (start + blocks) * block, device=q.device).view(blocks, block)

    def allowed(some: slice) -> torch.Tensor:
        j_bS = positions(lists_bL[some], block)
        exists_bS = (j_bS >= 0) & (j_bS < key_len)
        allowed_1brS = (rule(p_br[some, :, None], j_bS[:, None]) & exists_bS[:, None]).expand(-1, block, -1)[None]
        if key_mask is None:
            return allowed_1brS
        return allowed_1brS & key_mask[:, j_bS.clamp(0, key_len - 1)][:, :, None]

    blind = key_mask is not None or start < 0 or ahead > 0 or tail > 0  # a row beside the keys may see none
    problem = Problem(lists_bL, block, heads // kv_heads, allowed, scale, totals=totals, blind=blind)
    if around and key_mask is None:
        back, after = around
        run = range(max(0, back - start), min(blocks, key_len // block - start - after))
        problem = problem._replace(run=run, first=start - back)
    by_tiles = totals or q.device.type == "cpu"
    dtype = torch.promote_types(q.dtype, torch.float32) if by_tiles else q.dtype
    q_BHPD, k_BGPD, v_BGPE = (
        (F.pad(x, (0, 0, before, tail)) if before or tail else x).to(dtype)
        for x, before in ((q, ahead), (k, 0), (v, 0))
    )
    q_BGgbrD = q_BHPD.reshape(batch, kv_heads, -1, blocks, block, width)
    q_XbRD = q_BGgbrD.transpose(2, 3).reshape(batch * kv_heads, blocks, -1, width)
    k_XMD, v_XME = (x.flatten(0, 1).contiguous() for x in (k_BGPD, v_BGPE))
    if by_tiles:
        out_XbRE, totals_XbR2 = tiled(q_XbRD, k_XMD, v_XME, problem)
    else:
        out_XbRE, totals_XbR2 = fused(q_XbRD, k_XMD, v_XME, problem), q_XbRD[..., :0]

    def joined(x_XbRE: torch.Tensor) -> torch.Tensor:
        x_BGbgrE = x_XbRE.view(batch, kv_heads, blocks, heads // kv_heads, block, x_XbRE.shape[3])
        return x_BGbgrE.transpose(2, 3).reshape(batch, heads, blocks * block, -1).narrow(2, ahead, query_len)

    return joined(out_XbRE), joined(totals_XbR2) if totals else totals_XbR2


def see_all(
    out: torch.Tensor,
    rows: slice,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    key_mask: torch.Tensor | None,
    *,
    scale: float,
) -> torch.Tensor:
    """The output (B,H,Nq,E) with that of some queries computed from all keys instead."""
    if rows.start == rows.stop:
        return out
    whole = attend(q[:, :, rows], k, v, key_mask, causal=False, scale=scale)
    return torch.cat([out[:, :, : rows.start], whole, out[:, :, rows.stop :]], 2)


def positions(lists_bL: torch.Tensor, block: int) -> torch.Tensor:
    """Of all keys in the listed blocks, (b, S)."""
    return (lists_bL[..., None] * block + torch.arange(block, device=lists_bL.device)).flatten(1)


class Problem(NamedTuple):
    """Who may see whom. lists_bL: a number that no block has stands for nothing. groups: R = groups * r.

    allowed: for some blocks of queries, bool (examples or 1, b, r, S), False at keys that do not exist. X rows belong
    to as many examples, in order. run: blocks of queries that all see the same neighbours, of which none has a gap: the
    lists are first, first + 1, ... for block 0, and a block on for each block. totals: whether the sums of the softmax
    are wanted, for a merge. blind: whether a query outside the run may see nothing.
    """

    lists_bL: torch.Tensor
    block: int
    groups: int
    allowed: Callable[[slice], torch.Tensor]
    scale: float = 1.0
    run: range = range(0)
    first: int = 0
    totals: bool = False
    blind: bool = True

    def in_run(self, blocks: slice) -> bool:
        """Whether these blocks of queries belong to the run."""
        return blocks.start in self.run and blocks.stop <= self.run.stop

    def listed(self, blocks: slice, keys: torch.Tensor) -> torch.Tensor:
        """Numbers of key blocks that exist, (b * L,): 0 stands in for those that do not."""
        lists_l = self.lists_bL[blocks].flatten()
        return lists_l.where((lists_l >= 0) & (lists_l * self.block < keys.shape[1]), 0)

    def read(self, x_XMD: torch.Tensor, blocks: slice) -> torch.Tensor:
        """Keys or values that blocks of queries may see, (X, b, S, D); of a run a view that overlaps itself."""
        (rows, _, width), step = x_XMD.shape, self.block * x_XMD.shape[2]
        count, seen = blocks.stop - blocks.start, self.lists_bL.shape[1]
        if self.in_run(blocks):
            start = x_XMD.storage_offset() + (self.first + blocks.start) * step
            return x_XMD.as_strided((rows, count, seen * self.block, width), (x_XMD.stride(0), step, width, 1), start)
        parts_XlsD = x_XMD.view(rows, -1, self.block, width).index_select(1, self.listed(blocks, x_XMD))
        return parts_XlsD.view(rows, count, -1, width)

    def add(self, total_XMD: torch.Tensor, blocks: slice, part_XbSD: torch.Tensor) -> None:
        """The transpose of `read`, in place: adds what belongs to some blocks of queries to the total of all keys."""
        rows, _, width = total_XMD.shape
        total_XmsD = total_XMD.view(rows, -1, self.block, width)
        if self.in_run(blocks):
            for place, part_XbsD in enumerate(part_XbSD.chunk(self.lists_bL.shape[1], 2), self.first):
                total_XmsD[:, place + blocks.start : place + blocks.stop] += part_XbsD
        else:
            index = self.listed(blocks, total_XMD)
            total_XmsD.index_add_(1, index, part_XbSD.view(rows, len(index), self.block, width))

    def masks(self, blocks: slice) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(what counts, which queries see nothing), bool (B or 1, b, R, S) and (B or 1, b, R, 1) or None.

        A query that sees nothing counts all, so that its weights and gradients are finite; its output has to become 0.
        """
        allowed_BbRS = self.allowed(blocks).repeat(1, 1, self.groups, 1)
        if self.in_run(blocks) or not self.blind:
            return allowed_BbRS, None
        blind_BbR1 = ~allowed_BbRS.any(-1, keepdim=True)
        return allowed_BbRS | blind_BbR1, blind_BbR1

    def tiles(self, q_XbRD: torch.Tensor) -> Iterator[Tile]:
        """All that there is to compute; in a tile of several rows are all blocks."""
        rows, blocks, queries, _ = q_XbRD.shape
        tile = TILE.get(q_XbRD.device.type, TILE_ELSEWHERE) // (queries * self.lists_bL.shape[1] * self.block)
        split = blocks > tile
        cuts = [0, self.run.start, self.run.stop, blocks] if split and self.run else [0, blocks]
        for at in (at for cut in itertools.pairwise(cuts) for at in _spans(*cut, tile)):
            if not (self.in_run(at) and at.start > self.run.start):  # else as before
                masks = self.masks(slice(at.start, at.start + 1) if self.in_run(at) else at)
                bias_BbRS = q_XbRD.new_zeros(()).where(masks[0], -torch.inf)
            share = rows // len(bias_BbRS)  # rows that have one mask
            for example, bias in enumerate(bias_BbRS):
                blind = None if masks[1] is None else masks[1][example]
                for row in _spans(example * share, (example + 1) * share, 1 if split else tile // blocks):
                    yield Tile(row, at, bias, blind)


class Tile(NamedTuple):
    """Scores that exist together. rows of X, blocks of queries; b is 1 where all of them have the same mask.

    bias of the scores (b, R, S), blind: which queries see nothing (b, R, 1), None if none does.
    """

    rows: slice
    blocks: slice
    bias_bRS: torch.Tensor
    blind_bR1: torch.Tensor | None


def tiled(
    q_XbRD: torch.Tensor, k_XMD: torch.Tensor, v_XME: torch.Tensor, problem: Problem
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output (X,b,R,E), 0 where nothing is seen, and if wanted the totals (X,b,R,2) of each query.

    Of scores s, their maximum m (a constant; -inf where nothing is seen) and log sum exp(s - m): apart, for their sum
    would round the second away where scores are large.
    """
    out, totals = Tiles.apply(q_XbRD, k_XMD, v_XME, problem)  # type: ignore[no-untyped-call]
    return out, totals


class Tiles(torch.autograd.Function):
    """Tile by tile: keeps the inputs and the output. q (X,b,R,D), k (X,M,D), v (X,M,E)."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, problem: Problem
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `tiled` says."""
        out = q.new_empty(*q.shape[:3], v.shape[2])
        totals = q.new_empty(*q.shape[:3], 2 if problem.totals else 0)
        for tile in problem.tiles(q):
            row, at, _, blind = tile
            scores = _scores(q[row, at], problem.read(k[row], at), tile, problem.scale)
            weights = scores.softmax(-1)
            _multiply(weights, problem.read(v[row], at), out[row, at])
            if problem.totals:
                totals[row, at, :, :1] = scores.amax(-1, keepdim=True)
                totals[row, at, :, 1:] = weights.amax(-1, keepdim=True).log_().neg_()
            if blind is not None:
                out[row, at].masked_fill_(blind, 0)
                totals[row, at, :, :1].masked_fill_(blind, -torch.inf)
        ctx.save_for_backward(q, k, v, out)
        ctx.problem = problem
        return out, totals

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor, grad_totals: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Of q, k and v."""
        q, k, v, out = ctx.saved_tensors
        problem: Problem = ctx.problem
        dq, dk, dv = q.new_empty(q.shape), torch.zeros_like(k), torch.zeros_like(v)
        mean_XbR1 = (grad * out).sum(-1, keepdim=True)
        if problem.totals:
            mean_XbR1 -= grad_totals[..., 1:]
        for tile in problem.tiles(q):
            row, at, _, blind = tile
            q_part, keys = q[row, at], problem.read(k[row], at)
            seen = grad[row, at] if blind is None else grad[row, at].masked_fill(blind, 0)
            weights = _scores(q_part, keys, tile, problem.scale).softmax(-1)
            problem.add(dv[row], at, weights.mT @ seen)
            slope = (seen @ problem.read(v[row], at).mT).sub_(mean_XbR1[row, at]).mul_(weights)
            _multiply(slope, keys, dq[row, at])
            problem.add(dk[row], at, slope.mT @ q_part)
        return dq.mul_(problem.scale), dk.mul_(problem.scale), dv, None


def fused(q_XbRD: torch.Tensor, k_XMD: torch.Tensor, v_XME: torch.Tensor, problem: Problem) -> torch.Tensor:
    """The same, (X,b,R,E), by torch's kernel: L copies of the keys."""
    every = slice(0, q_XbRD.shape[1])
    counts_BbRS, blind_BbR1 = problem.masks(every)
    share = len(q_XbRD) // len(counts_BbRS)
    q, k, v = one_width(q_XbRD, problem.read(k_XMD, every), problem.read(v_XME, every))
    counts_XbRS = counts_BbRS.repeat_interleave(share, 0)
    out_XbRE = F.scaled_dot_product_attention(q, k, v, attn_mask=counts_XbRS, scale=problem.scale)
    out_XbRE = out_XbRE[..., : v_XME.shape[2]]
    return out_XbRE if blind_BbR1 is None else out_XbRE.masked_fill(blind_BbR1.repeat_interleave(share, 0), 0)


def _scores(q: torch.Tensor, keys: torch.Tensor, tile: Tile, scale: float) -> torch.Tensor:
    scores = q @ keys.mT
    return torch.add(tile.bias_bRS, scores, alpha=scale, out=scores)


def _multiply(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """out = a @ b, each (X,b,.,.), straight into its place."""
    torch.bmm(a.flatten(0, 1), b.flatten(0, 1), out=out.view(-1, *out.shape[2:]))


def _spans(start: int, end: int, size: int) -> Iterator[slice]:
    size = max(1, size)
    return (slice(at, min(at + size, end)) for at in range(start, end, size))
