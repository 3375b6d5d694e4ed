"""What every variant does with padding and with queries that may attend to nothing: each rule written once.

Padded keys and values are zeroed before anything is computed from them, so that neither a huge number nor a NaN
stored there can reach an output or a gradient. A query without any allowed key gives 0 and passes no gradient on.
"""

from __future__ import annotations

import torch

from bench.variant import check_key_mask

__all__ = ["group_rows", "masked_softmax", "nothing_seen", "zero_padding"]


def zero_padding(
    k_BGMD: torch.Tensor, v_BGME: torch.Tensor, key_mask_BM: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values with padded positions set to 0 (new tensors); the same tensors when there is no mask."""
    check_key_mask(key_mask_BM, k_BGMD.shape[0], k_BGMD.shape[2])
    if key_mask_BM is None:
        return k_BGMD, v_BGME
    padded_B1M1 = ~key_mask_BM[:, None, :, None]
    return k_BGMD.masked_fill(padded_B1M1, 0), v_BGME.masked_fill(padded_B1M1, 0)


def masked_softmax(scores: torch.Tensor, allowed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax over the allowed entries of the last axis, and which rows have any.

    Overwrites `scores`. A row with nothing allowed keeps finite weights, so that its gradients are finite too: the
    caller sets its output to 0, which also stops its gradient.
    """
    seen = allowed.any(-1, keepdim=True)
    return scores.masked_fill_(seen & ~allowed, -torch.inf).softmax(-1), seen


def group_rows(q_BHND: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """Queries as (B, Hkv, H/Hkv * Nq, D): those that share a key head lie in one matrix, so keys are never repeated."""
    batch, heads, rows, width = q_BHND.shape
    return q_BHND.reshape(batch, kv_heads, heads // kv_heads * rows, width)


def nothing_seen(q_BHND: torch.Tensor, value_dim: int) -> torch.Tensor:
    """The output when there is nothing to attend to: zeros (B, H, Nq, Dv) with gradient 0, on the graph of q."""
    everywhere = torch.ones((), dtype=torch.bool, device=q_BHND.device)
    return q_BHND[..., :1].masked_fill(everywhere, 0).expand(-1, -1, -1, value_dim)
