"""Additive attention over tiles of queries and keys: nothing that grows with Nq * Nk is stored.

R rows (batch and query head), S rows of keys (batch and kv head), N queries, M keys, D width of q and k, E of v.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

TILE = 2**18  # elements of sigmoid(q + k) at a time: 1 MiB of float32 stays in the cache


class Problem(NamedTuple):
    """What the tiles are cut from. heads: R = batch * heads. groups: query heads that share one key head."""

    heads: int
    groups: int
    query_len: int
    key_len: int
    width: int
    causal: bool
    key_mask_BM: torch.Tensor | None

    def strips(self, batch: int) -> Iterator[tuple[slice, slice, int]]:
        """(rows, queries, number of keys they may see), for all rows and those queries that see any."""
        side = self.side()
        rows = max(1, TILE // (self.width * min(side, self.query_len) * min(side, self.key_len)))
        first = self.key_len - self.query_len
        for row in range(0, batch * self.heads, rows):
            for query in range(0, self.query_len, side):
                end = min(query + side, self.query_len)
                seen = first + end if self.causal else self.key_len
                if seen > 0:
                    yield slice(row, min(row + rows, batch * self.heads)), slice(query, end), seen

    def side(self) -> int:
        """Queries and keys of a tile."""
        return max(1, int((TILE / self.width) ** 0.5))

    def forbidden(self, row_R: torch.Tensor, queries: slice, keys: slice) -> torch.Tensor | None:
        """Bool, broadcasts to (rows, queries, keys); None where all is allowed."""
        found = None
        if self.causal:
            position_N = torch.arange(queries.start, queries.stop, device=row_R.device) + self.key_len - self.query_len
            found = torch.arange(keys.start, keys.stop, device=row_R.device) > position_N[:, None]
        if self.key_mask_BM is not None:
            padded_R1M = ~self.key_mask_BM[row_R // self.heads, None, keys]
            found = padded_R1M if found is None else found | padded_R1M
        return found


class AdditiveAttention(torch.autograd.Function):
    """softmax_j(u . tanh(q_i + k_j)) v_j; keeps the log-sum-exp of each query and computes the scores again backward.

    q (R,N,D), k (S,M,D), v (S,M,E) and u (R,D), all of the dtype that sums are kept in. With tanh(x) = 2 s(2 x) - 1, s
    the sigmoid, the scores are 2 u . s(2 q + 2 k) and a part that is the same for all keys, which falls out of the
    softmax: torch's tanh takes three to six times as long.
    """

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, u: torch.Tensor, problem: Problem
    ) -> torch.Tensor:
        """Row by row of tiles: all scores of some queries, their softmax, their output (R,N,E)."""
        q, k, u = 2 * q, 2 * k, 2 * u
        out, lse = q.new_zeros(*q.shape[:2], v.shape[2]), q.new_zeros(q.shape[:2])
        for rows, queries, seen in problem.strips(q.shape[0] // problem.heads):
            row_R = torch.arange(rows.start, rows.stop, device=q.device)
            scores_RNM = q.new_empty(rows.stop - rows.start, queries.stop - queries.start, seen)
            for keys in _spans(seen, problem.side()):
                gate_RNMD = _sigmoid(q[rows, queries], k[row_R // problem.groups, keys])
                scores_RNM[:, :, keys] = _project(gate_RNMD, u[rows])
            forbidden = problem.forbidden(row_R, queries, slice(0, seen))
            if forbidden is not None:
                scores_RNM.masked_fill_(forbidden, -torch.inf)
            lse_RN = scores_RNM.logsumexp(-1)
            lse_RN.masked_fill_(lse_RN == -torch.inf, 0)  # nothing allowed: every weight becomes exp(-inf) = 0
            weights_RNM = scores_RNM.sub_(lse_RN[..., None]).exp_()
            out[rows, queries] = weights_RNM @ v[row_R // problem.groups, :seen]
            lse[rows, queries] = lse_RN
        ctx.save_for_backward(q, k, v, u, out, lse)
        ctx.problem = problem
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Tile by tile: weights again from the scores and the log-sum-exp, then the gradients of all four."""
        q, k, v, u, out, lse = ctx.saved_tensors
        problem: Problem = ctx.problem
        dq, dk, dv, du = (torch.zeros_like(x) for x in (q, k, v, u))
        mean_RN = (grad * out).sum(-1)
        for rows, queries, seen in problem.strips(q.shape[0] // problem.heads):
            row_R = torch.arange(rows.start, rows.stop, device=q.device)
            shared_R, grad_RNE = row_R // problem.groups, grad[rows, queries]
            for keys in _spans(seen, problem.side()):
                gate_RNMD = _sigmoid(q[rows, queries], k[shared_R, keys])
                weights_RNM = (_project(gate_RNMD, u[rows]) - lse[rows, queries, None]).exp_()
                forbidden = problem.forbidden(row_R, queries, keys)
                if forbidden is not None:
                    weights_RNM.masked_fill_(forbidden, 0)
                dv[:, keys].index_add_(0, shared_R, weights_RNM.mT @ grad_RNE)
                dscores_RNM = (grad_RNE @ v[shared_R, keys].mT - mean_RN[rows, queries, None]).mul_(weights_RNM)
                du[rows] += (dscores_RNM.flatten(1)[:, None] @ gate_RNMD.flatten(1, 2))[:, 0]
                slope_RNMD = gate_RNMD.addcmul_(gate_RNMD, gate_RNMD, value=-1).mul_(dscores_RNM[..., None])
                dq[rows, queries] += slope_RNMD.sum(2).mul_(u[rows, None])
                dk[:, keys].index_add_(0, shared_R, slope_RNMD.sum(1).mul_(u[rows, None]))
        return dq.mul_(2), dk.mul_(2), dv, du.mul_(2), None


def _spans(length: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


def _sigmoid(q_RND: torch.Tensor, k_RMD: torch.Tensor) -> torch.Tensor:
    return (q_RND[:, :, None] + k_RMD[:, None]).sigmoid_()


def _project(gate_RNMD: torch.Tensor, u_RD: torch.Tensor) -> torch.Tensor:
    return (gate_RNMD.flatten(1, 2) @ u_RD[..., None]).view(gate_RNMD.shape[:3])
