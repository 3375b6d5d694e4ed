"""A small encoder-decoder: a bidirectional stack read by a causal one through cross-attention (Vaswani et al. 2017)."""

from __future__ import annotations

import torch
from torch import nn

from bench.model.block import BlockConfig, MakeAttention
from bench.model.init import derived, seeded
from bench.model.stack import Stack


class EncoderDecoder(nn.Module):
    """Two stacks of the same blocks and a linear readout. Raises Unsupported for a variant without cross-attention."""

    def __init__(
        self,
        config: BlockConfig,
        make_attention: MakeAttention,
        *,
        source_vocab: int,
        target_vocab: int,
        layers: int,
        max_len: int,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.encoder = Stack(
            config,
            make_attention,
            vocab=source_vocab,
            layers=layers,
            causal=False,
            max_len=max_len,
            seed=derived(seed, "encoder"),
        )
        self.decoder = Stack(
            config,
            make_attention,
            vocab=target_vocab,
            layers=layers,
            causal=True,
            max_len=max_len,
            cross=True,
            seed=derived(seed, "decoder"),
        )
        with seeded(seed, "readout"):
            self.readout = nn.Linear(config.d_model, target_vocab, bias=False)

    def forward(
        self,
        source_BM: torch.Tensor,
        target_BN: torch.Tensor,
        *,
        source_mask: torch.Tensor | None = None,
        target_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """(B, M) and (B, N) integers to (B, N, target_vocab) logits; masks are True for real tokens."""
        memory_BMC = self.encoder(source_BM, key_mask=source_mask)
        x_BNC = self.decoder(target_BN, key_mask=target_mask, memory=memory_BMC, memory_mask=source_mask)
        logits_BNV: torch.Tensor = self.readout(x_BNC)
        return logits_BNV
