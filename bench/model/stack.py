"""Embedding and blocks: what the language model, the classifier and the encoder-decoder share."""

from __future__ import annotations

import torch
from torch import nn

from bench.model.block import Block, BlockConfig, MakeAttention
from bench.model.init import derived, seeded
from bench.model.positions import Embedding


class Stack(nn.Module):
    """Token and position embedding, `layers` blocks, and a last norm where the blocks normalise first.

    seed: of the weights, which are the same whatever the variant. Raises ValueError for no layers.
    """

    def __init__(
        self,
        config: BlockConfig,
        make_attention: MakeAttention,
        *,
        vocab: int,
        layers: int,
        causal: bool,
        max_len: int,
        cross: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if layers < 1:
            raise ValueError(f"layers must be at least 1, got {layers}")
        with seeded(seed, "embedding"):
            self.embedding = Embedding(vocab, config.d_model, config.positions, max_len=max_len, dropout=config.dropout)
        self.blocks = nn.ModuleList(
            Block(
                config,
                make_attention,
                causal=causal,
                max_len=max_len,
                cross=cross,
                seed=derived(seed, "block", layer),
            )
            for layer in range(layers)
        )
        self.norm = nn.LayerNorm(config.d_model) if config.norm == "pre" else nn.Identity()

    def forward(
        self,
        tokens_BN: torch.Tensor,
        *,
        key_mask: torch.Tensor | None = None,
        memory: torch.Tensor | None = None,
        memory_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """(B, N) integers to (B, N, C); masks and memory as in `Block`."""
        x_BNC = self.embedding(tokens_BN)
        for block in self.blocks:
            x_BNC = block(x_BNC, key_mask=key_mask, memory=memory, memory_mask=memory_mask)
        out_BNC: torch.Tensor = self.norm(x_BNC)
        return out_BNC
