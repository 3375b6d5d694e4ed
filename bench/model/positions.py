"""How positions enter a model: added to the embedding (sinusoidal, learned), turned into q and k (rotary), or not.

B batch, N positions, H heads, D width of a head, C width of the model. Keys sit at positions 0..Nk-1 and query i at
Nk - Nq + i (bottom-right). Tables are rounded to float32 whatever the model's dtype.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

Positions = Literal["none", "sinusoidal", "learned", "rotary"]


def angles(length: int, pairs: int) -> torch.Tensor:
    """Angle of position p in pair i, p * 10000^(-i/pairs), float64 of shape (length, pairs)."""
    rates = 10000.0 ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    return torch.arange(length, dtype=torch.float64)[:, None] * rates


def sinusoidal(length: int, width: int) -> torch.Tensor:
    """Sine in even and cosine in odd columns, float32 (length, width); Vaswani et al. 2017, section 3.5."""
    angles_NP = angles(length, (width + 1) // 2)
    return torch.stack((angles_NP.sin(), angles_NP.cos()), dim=-1).flatten(1)[:, :width].float()


class Rotary(nn.Module):
    """Turns pairs of columns of q and k by their position, so that scores depend on distances (RoFormer, 2104.09864).

    Column i is paired with column i + D/2; an odd last column is left as it is.
    """

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, max_len: int, head_dim: int) -> None:
        super().__init__()
        angles_NP = angles(max_len, head_dim // 2)
        self.register_buffer("cos", angles_NP.cos().float(), persistent=False)
        self.register_buffer("sin", angles_NP.sin().float(), persistent=False)

    def forward(self, q_BHND: torch.Tensor, k_BGMD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The rotated queries (B, H, Nq, D) and keys (B, Hkv, Nk, D)."""
        key_len = k_BGMD.shape[2]
        return self._turn(q_BHND, key_len - q_BHND.shape[2]), self._turn(k_BGMD, 0)

    def _turn(self, x_BHND: torch.Tensor, first: int) -> torch.Tensor:
        places = slice(first, first + x_BHND.shape[2])
        cos_NP, sin_NP = self.cos[places].to(x_BHND.dtype), self.sin[places].to(x_BHND.dtype)
        half = cos_NP.shape[1]
        left, right, rest = x_BHND[..., :half], x_BHND[..., half : 2 * half], x_BHND[..., 2 * half :]
        return torch.cat((left * cos_NP - right * sin_NP, right * cos_NP + left * sin_NP, rest), dim=3)


class Embedding(nn.Module):
    """Token embedding plus absolute positions; (B, N) integers to (B, N, C). Every id is a symbol, also 0.

    Starts small (standard deviation 0.02, as GPT-2), but beside sinusoids at their own size (1, as in section 3.4 of
    Vaswani et al., where it is multiplied up): what is much larger than the blocks' output is slow to learn from.
    """

    places: torch.Tensor

    def __init__(self, vocab: int, width: int, positions: Positions, *, max_len: int, dropout: float) -> None:
        super().__init__()
        self.max_len = max_len
        std = 1.0 if positions == "sinusoidal" else 0.02
        self.tokens = nn.Embedding(vocab, width)
        self.dropout = nn.Dropout(dropout)
        self.learned = nn.Embedding(max_len, width) if positions == "learned" else None
        for table in (self.tokens, self.learned):
            if table is not None:
                nn.init.normal_(table.weight, std=std)
        self.register_buffer(
            "places", sinusoidal(max_len, width) if positions == "sinusoidal" else None, persistent=False
        )

    def forward(self, tokens_BN: torch.Tensor) -> torch.Tensor:
        """Raises ValueError for a sequence longer than max_len."""
        length = tokens_BN.shape[1]
        if length > self.max_len:
            raise ValueError(f"sequence length {length} exceeds max_len {self.max_len}")
        x_BNC: torch.Tensor = self.tokens(tokens_BN)
        if self.learned is not None:
            x_BNC = x_BNC + self.learned.weight[:length]
        elif self.places is not None:
            x_BNC = x_BNC + self.places[:length].to(x_BNC.dtype)
        out_BNC: torch.Tensor = self.dropout(x_BNC)
        return out_BNC
