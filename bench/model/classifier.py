"""A small sequence classifier: logits of one label for the whole sequence."""

from __future__ import annotations

import torch
from torch import nn

from bench.model.block import BlockConfig, MakeAttention
from bench.model.init import seeded
from bench.model.stack import Stack


class Pooled(nn.Module):
    """A stack of blocks and the mean over the real tokens: padding changes nothing."""

    def __init__(
        self,
        config: BlockConfig,
        make_attention: MakeAttention,
        *,
        vocab: int,
        layers: int,
        max_len: int,
        causal: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.stack = Stack(
            config, make_attention, vocab=vocab, layers=layers, causal=causal, max_len=max_len, seed=seed
        )

    def forward(self, tokens_BN: torch.Tensor, *, key_mask: torch.Tensor | None = None) -> torch.Tensor:
        """(B, N) integers to (B, C); key_mask (B, N) is True for real tokens, None for no padding."""
        x_BNC = self.stack(tokens_BN, key_mask=key_mask)
        if key_mask is None:
            mean_BC: torch.Tensor = x_BNC.mean(1)
            return mean_BC
        total_BC: torch.Tensor = x_BNC.masked_fill(~key_mask[:, :, None], 0).sum(1)
        return total_BC / key_mask.sum(1, keepdim=True).clamp(min=1)


class Classifier(nn.Module):
    """A pooled stack and a linear readout."""

    def __init__(
        self,
        config: BlockConfig,
        make_attention: MakeAttention,
        *,
        vocab: int,
        classes: int,
        layers: int,
        max_len: int,
        causal: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.pooled = Pooled(
            config, make_attention, vocab=vocab, layers=layers, causal=causal, max_len=max_len, seed=seed
        )
        with seeded(seed, "readout"):
            self.readout = nn.Linear(config.d_model, classes)

    def forward(self, tokens_BN: torch.Tensor, *, key_mask: torch.Tensor | None = None) -> torch.Tensor:
        """(B, N) integers to (B, classes) logits; key_mask (B, N) is True for real tokens, None for no padding."""
        logits_BK: torch.Tensor = self.readout(self.pooled(tokens_BN, key_mask=key_mask))
        return logits_BK
