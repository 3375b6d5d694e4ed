"""What the two delta rules share: their scan, one step of it, and keys of length 1."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from variants._recurrent import Recurrent, between, chunks, joined

KEY_EPS = 1e-6  # a key shorter than this is not blown up to length 1


def unit(k: torch.Tensor) -> torch.Tensor:
    """Keys of length 1; a key of 0 stays 0."""
    return F.normalize(k, dim=-1, eps=KEY_EPS)


def delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta_BHL: torch.Tensor,
    log_decay_BHL: torch.Tensor,
    state_BHDE: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A `SegmentScan` of S_t = a_t (I - b_t k_t k_t^T) S_{t-1} + b_t k_t v_t^T, |k| = 1 (Yang et al. 2024, 2412.06464).

    Within a chunk the corrections depend on each other through a unit triangular system, solved at once.
    """
    length, value_dim = q.shape[2], v.shape[3]
    q, k, v, beta, total = (*map(chunks, (q, k, v, beta_BHL)), chunks(log_decay_BHL).cumsum(-1))
    decay_RR, grown = between(total), total.exp()[..., None]
    beta = beta[..., None]
    system = (k * beta) @ k.mT * decay_RR
    right = torch.cat([v * beta, k * beta * grown], -1)
    # solve_triangular reads the strict lower triangle only: its diagonal stands for 1.
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    fresh_v, fresh_k = solved.split([value_dim, k.shape[-1]], -1)
    inside = q @ k.mT * decay_RR
    end = total[..., -1:]
    late_k = (k * (end - total).exp()[..., None]).mT
    outs, state = [], state_BHDE
    by_chunk = (q * grown, inside, late_k, fresh_v, fresh_k, end.exp()[..., None])
    for asked, weights, keys, new_v, new_k, decay in zip(*(x.unbind(2) for x in by_chunk), strict=True):
        value = new_v - new_k @ state
        outs.append(asked @ state + weights @ value)
        state = state * decay + keys @ value
    return joined(torch.stack(outs, 2), length), state


class DeltaRule(Recurrent):
    """A state that is corrected by what it lacks; its gates are the strength and the log decay, both (B,H,N)."""

    segment = staticmethod(delta_rule)
    reads_per_key = 1

    def update(
        self, state_BHDE: torch.Tensor, k_BHD: torch.Tensor, v_BHE: torch.Tensor, *gates: torch.Tensor
    ) -> torch.Tensor:
        """a S + b k (v - a k^T S)^T."""
        beta_BH, log_decay_BH = gates
        kept_BHDE = state_BHDE * log_decay_BH.exp()[..., None, None]
        lacking_BHE = v_BHE - torch.einsum("BHD,BHDE->BHE", k_BHD, kept_BHDE)
        return kept_BHDE + (beta_BH[..., None] * k_BHD)[..., None] * lacking_BHE[..., None, :]
