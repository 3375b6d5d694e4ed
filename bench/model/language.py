"""A small language model: logits over the vocabulary at every position."""

from __future__ import annotations

import torch
from torch import nn

from bench.model.block import BlockConfig, MakeAttention
from bench.model.init import seeded
from bench.model.stack import Stack


class LanguageModel(nn.Module):
    """A stack of blocks and a linear readout; causal for next-token prediction, bidirectional for filling in."""

    def __init__(
        self,
        config: BlockConfig,
        make_attention: MakeAttention,
        *,
        vocab: int,
        layers: int,
        causal: bool,
        max_len: int,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.stack = Stack(
            config, make_attention, vocab=vocab, layers=layers, causal=causal, max_len=max_len, seed=seed
        )
        with seeded(seed, "readout"):
            self.readout = nn.Linear(config.d_model, vocab, bias=False)

    def forward(self, tokens_BN: torch.Tensor, *, key_mask: torch.Tensor | None = None) -> torch.Tensor:
        """(B, N) integers to (B, N, vocab) logits; key_mask (B, N) is True for real tokens."""
        logits_BNV: torch.Tensor = self.readout(self.stack(tokens_BN, key_mask=key_mask))
        return logits_BNV
