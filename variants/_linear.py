"""Attention with a feature map in place of the softmax: keys and values fold into one small state.

sums = phi(q) . sum_j phi(k_j) [v_j, 1]; out = sums / its last column. It goes through the positions in segments that
stay in the cache, within a segment in chunks: a query reads the state of all chunks before its own, and its own chunk's
keys directly. Only q, k, v, the output and states are kept for the backward, which is linear in n: one
of each chunk where that is no larger than its keys, else one of each segment.

G key heads, g query heads on each, L positions of a segment, c chunks, R rows of a chunk (g times CHUNK), D features,
E width of a value, F = E + 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from variants._masking import group_rows, nothing_seen, zero_padding

# (..., D) -> (..., features), float32 or wider and differentiable; position by position, without parameters of its own.
FeatureMap = Callable[[torch.Tensor], torch.Tensor]

CHUNK = 64  # positions; 64 and 128 are fastest, 32 and 256 are slower
SEGMENT = {"cpu": 2**18}  # elements of phi(q) in a segment
SEGMENT_ELSEWHERE = 2**24  # few launches
TINY = 1e-37  # a total below counts as no weight at all: its reciprocal would overflow in the backward


def linear_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    key_mask: torch.Tensor | None,
    features_q: FeatureMap,
    features_k: FeatureMap,
    *,
    causal: bool,
) -> torch.Tensor:
    """(B,H,Nq,D), (B,G,Nk,D), (B,G,Nk,E), key_mask (B,Nk) -> (B,H,Nq,E) in the dtype of q.

    A query without keys, or whose total weight is 0, gives 0. Padded keys get 0 in place of their features.
    """
    k, v = zero_padding(k, v, key_mask)
    blind = max(0, q.shape[2] - k.shape[2]) if causal else 0
    if 0 in (q.shape[0], q.shape[2], k.shape[2]):
        return nothing_seen(q, v.shape[3])
    out: torch.Tensor = _Attend.apply(q[:, :, blind:], k, v, Problem(features_q, features_k, causal, key_mask))  # type: ignore[no-untyped-call]
    return F.pad(out, (0, 0, blind, 0)) if blind else out


def fold(k: torch.Tensor, v: torch.Tensor, key_mask: torch.Tensor | None, features_k: FeatureMap) -> torch.Tensor:
    """The state (B,G,D,F) of keys and values: sum of phi(k) [v, 1]^T."""
    k, v = zero_padding(k, v, key_mask)
    problem = Problem(features_k, features_k, True, key_mask)
    state = problem.empty(k, v)
    for at in _spans(k, state):
        state = state + problem.phi_k(k[:, :, at], at).mT @ _with_ones(v[:, :, at], state)
    return state


def read(q: torch.Tensor, state_BGDF: torch.Tensor, features_q: FeatureMap) -> torch.Tensor:
    """What queries (B,H,N,D) get from a state: (B,H,N,E) in the dtype of q."""
    return _ratio(_ask(features_q(q), state_BGDF))[0].to(q.dtype)


class Problem(NamedTuple):
    """What is the same for all segments."""

    features_q: FeatureMap
    features_k: FeatureMap
    causal: bool
    key_mask_BM: torch.Tensor | None

    def empty(self, k_BGMD: torch.Tensor, v_BGME: torch.Tensor) -> torch.Tensor:
        """The state of no keys."""
        phi = self.features_k(k_BGMD[:, :, :0])
        return phi.new_zeros(*phi.shape[:2], phi.shape[3], v_BGME.shape[3] + 1)

    def phi_k(self, k_BGLD: torch.Tensor, at: slice) -> torch.Tensor:
        """Features of the keys of a segment, 0 at padded ones: after the map, for it may give more for a key of 0."""
        phi = self.features_k(k_BGLD)
        return phi if self.key_mask_BM is None else phi.masked_fill(~self.key_mask_BM[:, None, at, None], 0)


class _Attend(torch.autograd.Function):
    """First the keys that every query sees; then the queries, each with its own key where causal (Nq <= Nk)."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, problem: Problem) -> torch.Tensor:
        """Keeps states that queries read, and the total weight of each query."""
        common = k.shape[2] - q.shape[2] if problem.causal else k.shape[2]
        state = problem.empty(k, v)
        for at in _spans(k[:, :, :common], state):
            state = state + problem.phi_k(k[:, :, at], at).mT @ _with_ones(v[:, :, at], state)
        states, out = [], q.new_empty(*q.shape[:3], v.shape[3])
        total = state.new_empty(*q.shape[:3], 1)
        for at in _spans(q, state):
            phi_q, keys = problem.features_q(q[:, :, at]), _later(at, common)
            if problem.causal:
                segment = _Segment(phi_q, problem.phi_k(k[:, :, keys], keys), _with_ones(v[:, :, keys], state))
                before_BGcDF, state = segment.states(state)
                sums = segment.sums(before_BGcDF)
                if any(ctx.needs_input_grad):
                    states.append(segment.to_keep(before_BGcDF))
            else:
                sums = _ask(phi_q, state)
            out[:, :, at], total[:, :, at] = _ratio(sums)
        ctx.save_for_backward(q, k, v, out, total, *states or [state])
        ctx.problem, ctx.common = problem, common
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """From the last segment to the first, collecting what later queries ask of a key; then the common keys."""
        q, k, v, out, total, *states = ctx.saved_tensors
        problem: Problem = ctx.problem
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        asked = problem.empty(k, v)  # sum of phi(q) dsums^T over the later queries
        for number, at in reversed(list(enumerate(_spans(q, asked)))):
            dsums = _ratio_gradient(grad[:, :, at], out[:, :, at], total[:, :, at])
            phi_q, pull_q = _differentiable(problem.features_q, q[:, :, at])
            keys = _later(at, ctx.common)
            if problem.causal:
                phi_k, pull_k = _differentiable(partial(problem.phi_k, at=keys), k[:, :, keys])
                segment = _Segment(phi_q, phi_k, _with_ones(v[:, :, keys], asked))
                dphi_q, dphi_k, dv[:, :, keys], asked = segment.gradients(dsums, segment.kept(states[number]), asked)
                dk[:, :, keys] = pull_k(dphi_k)
            else:
                dphi_q = _ask(dsums, states[0].mT)
                asked = asked + group_rows(phi_q, k.shape[1]).mT @ group_rows(dsums, k.shape[1])
            dq[:, :, at] = pull_q(dphi_q)
        for at in _spans(k[:, :, : ctx.common], asked):
            phi_k, pull_k = _differentiable(partial(problem.phi_k, at=at), k[:, :, at])
            dk[:, :, at] = pull_k(_with_ones(v[:, :, at], asked) @ asked.mT)
            dv[:, :, at] = (phi_k @ asked)[..., :-1]
        return dq, dk, dv, None


class _Segment:
    """Queries and keys at the same positions, cut into chunks."""

    def __init__(self, phi_q_BHLD: torch.Tensor, phi_k_BGLD: torch.Tensor, v_BGLF: torch.Tensor) -> None:
        self.length, self.kv_heads = phi_k_BGLD.shape[2], phi_k_BGLD.shape[1]
        self.rows = min(CHUNK, self.length)
        self.q_BGcRD = self._cut_queries(phi_q_BHLD)
        self.k_BGcMD, self.v_BGcMF = self._cut(phi_k_BGLD), self._cut(v_BGLF)

    def states(self, state_BGDF: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(the state before each chunk, the state after all), from the one before the segment."""
        # Each chunk's own part is added after it was read: a total less that part would let the future round the past.
        return _running(state_BGDF, self.k_BGcMD.mT @ self.v_BGcMF)

    def to_keep(self, before_BGcDF: torch.Tensor) -> torch.Tensor:
        """What the backward gets: all of them, or the first where a state has more features than a chunk positions."""
        return before_BGcDF if before_BGcDF.shape[3] <= CHUNK else before_BGcDF[:, :, :1].clone()

    def kept(self, before_BGcDF: torch.Tensor) -> torch.Tensor:
        """All the states again, from `to_keep`."""
        whole = before_BGcDF.shape[2] == self.k_BGcMD.shape[2]
        return before_BGcDF if whole else self.states(before_BGcDF[:, :, 0])[0]

    def sums(self, before_BGcDF: torch.Tensor) -> torch.Tensor:
        """Of the segment's queries, (B,H,L,F)."""
        weights_BGcRM = self._past(self.q_BGcRD @ self.k_BGcMD.mT)
        return self._join_queries((self.q_BGcRD @ before_BGcDF).add_(weights_BGcRM @ self.v_BGcMF))

    def gradients(
        self, dsums_BHLF: torch.Tensor, before_BGcDF: torch.Tensor, asked_BGDF: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """(of phi(q), of phi(k), of v without its ones, what the queries from here on ask of earlier keys)."""
        dsums_BGcRF = self._cut_queries(dsums_BHLF)
        weights_BGcRM = self._past(self.q_BGcRD @ self.k_BGcMD.mT)
        dweights_BGcRM = self._past(dsums_BGcRF @ self.v_BGcMF.mT)
        later_BGcDF, asked_BGDF = _running(asked_BGDF, self.q_BGcRD.mT @ dsums_BGcRF, backwards=True)
        dphi_q = (dsums_BGcRF @ before_BGcDF.mT).add_(dweights_BGcRM @ self.k_BGcMD)
        dphi_k = (self.v_BGcMF @ later_BGcDF.mT).add_(dweights_BGcRM.mT @ self.q_BGcRD)
        dv_BGcME = (self.k_BGcMD @ later_BGcDF[..., :-1]).add_(weights_BGcRM.mT @ dsums_BGcRF[..., :-1])
        return self._join_queries(dphi_q), self._join(dphi_k), self._join(dv_BGcME), asked_BGDF

    def _past(self, weights_BGcRM: torch.Tensor) -> torch.Tensor:
        """The weights of own and earlier positions of the chunk, in place: 0 for later ones."""
        weights_BGcRM.view(*weights_BGcRM.shape[:3], -1, self.rows, self.rows).tril_()
        return weights_BGcRM

    def _cut(self, x_BGLD: torch.Tensor) -> torch.Tensor:
        tail = -self.length % self.rows
        padded = F.pad(x_BGLD, (0, 0, 0, tail)) if tail else x_BGLD
        return padded.reshape(*padded.shape[:2], -1, self.rows, padded.shape[3])

    def _join(self, x_BGcMD: torch.Tensor) -> torch.Tensor:
        return x_BGcMD.flatten(2, 3)[:, :, : self.length]

    def _cut_queries(self, x_BHLD: torch.Tensor) -> torch.Tensor:
        """Query heads that share a key head lie in one chunk, so that keys are never repeated."""
        x_BHcMD = self._cut(x_BHLD)
        batch, _, chunks, rows, width = x_BHcMD.shape
        return x_BHcMD.view(batch, self.kv_heads, -1, chunks, rows, width).transpose(2, 3).flatten(3, 4)

    def _join_queries(self, x_BGcRD: torch.Tensor) -> torch.Tensor:
        batch, kv_heads, chunks, _, width = x_BGcRD.shape
        x_BGcgMD = x_BGcRD.view(batch, kv_heads, chunks, -1, self.rows, width)
        return self._join(x_BGcgMD.transpose(2, 3).flatten(1, 2))


def _running(
    start_BGDF: torch.Tensor, own_BGcDF: torch.Tensor, *, backwards: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """(start plus the parts of all chunks before each one, with all parts); backwards: of all chunks after each one."""
    before_BGcDF, total_BGDF = torch.empty_like(own_BGcDF), start_BGDF
    chunks = range(own_BGcDF.shape[2])
    for chunk in reversed(chunks) if backwards else chunks:
        before_BGcDF[:, :, chunk] = total_BGDF
        total_BGDF = total_BGDF + own_BGcDF[:, :, chunk]
    return before_BGcDF, total_BGDF


def _spans(x_BHND: torch.Tensor, state_BGDF: torch.Tensor) -> Iterator[slice]:
    """The positions of x in segments: whole chunks, and at most SEGMENT features, of which the state has one a row."""
    elements = SEGMENT.get(x_BHND.device.type, SEGMENT_ELSEWHERE)
    row = x_BHND.shape[0] * x_BHND.shape[1] * state_BGDF.shape[2]
    size = max(1, elements // (row * CHUNK)) * CHUNK
    return (slice(start, min(start + size, x_BHND.shape[2])) for start in range(0, x_BHND.shape[2], size))


def _later(at: slice, by: int) -> slice:
    return slice(at.start + by, at.stop + by)


def _with_ones(v_BGLE: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return F.pad(v_BGLE.to(like.dtype), (0, 1), value=1.0)


def _ask(rows_BHND: torch.Tensor, state_BGDF: torch.Tensor) -> torch.Tensor:
    asked = group_rows(rows_BHND, state_BGDF.shape[1]) @ state_BGDF
    return asked.view(*rows_BHND.shape[:3], -1)


def _ratio(sums_BHNF: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(output, total weight, which is infinite where there is none, so that output and gradients are 0)."""
    total = sums_BHNF[..., -1:]
    total = total.masked_fill(total < TINY, torch.inf)
    return sums_BHNF[..., :-1] / total, total


def _ratio_gradient(grad: torch.Tensor, out: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """Of the sums: for out = sums / total, total being their last column."""
    grad = grad.to(total.dtype)
    return torch.cat([grad, -(grad * out).sum(-1, keepdim=True)], -1).div_(total)


def _differentiable(
    function: FeatureMap, x: torch.Tensor
) -> tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]:
    """function(x), and what takes a gradient of it to the gradient of x."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        y = function(x)
    return y.detach(), lambda gradient: torch.autograd.grad(y, x, gradient)[0]
