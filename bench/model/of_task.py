"""The model that a task's preset asks for: each turns tokens and key_mask into logits (B, P, V), as `tasks.Batch` says.

B sequences, N positions, P answers a sequence, V classes, C width of the model.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import nn

from bench.model.block import BlockConfig, MakeAttention
from bench.model.classifier import Classifier, Pooled
from bench.model.encoder_decoder import EncoderDecoder
from bench.model.init import derived, seeded
from bench.model.language import LanguageModel
from bench.tasks import Preset


def block_config(preset: Preset) -> BlockConfig:
    """The block of a preset: the fields they share."""
    wanted = {part.name for part in dataclasses.fields(BlockConfig)}
    return BlockConfig(**{name: value for name, value in vars(preset).items() if name in wanted})


def build(make_attention: MakeAttention, preset: Preset, *, causal: bool, seed: int) -> nn.Module:
    """The model of a preset on the CPU. `causal` is the direction of all its blocks but an encoder-decoder's."""
    config, seed, max_len = block_config(preset), derived(seed, "model"), preset.longest or preset.seq_len
    classes = preset.classes or preset.vocab
    if preset.model == "encoder-decoder":
        return SourceTarget(
            EncoderDecoder(
                config, make_attention, source_vocab=preset.vocab, target_vocab=classes,
                layers=preset.layers, max_len=max_len, seed=seed,
            )
        )  # fmt: skip
    if preset.model == "language":
        return LanguageModel(
            config, make_attention, vocab=classes, layers=preset.layers, causal=causal, max_len=max_len, seed=seed
        )
    if preset.model == "classifier":
        return OneAnswer(
            Classifier(
                config, make_attention, vocab=preset.vocab, classes=classes,
                layers=preset.layers, causal=causal, max_len=max_len, seed=seed,
            )
        )  # fmt: skip
    tower = Pooled(
        config, make_attention, vocab=preset.vocab, layers=preset.layers, causal=causal, max_len=max_len, seed=seed
    )
    return PairClassifier(tower, width=config.d_model, classes=classes, seed=seed)


class OneAnswer(nn.Module):
    """A classifier's logits (B, V) as those of one answer, (B, 1, V)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, tokens_BN: torch.Tensor, *, key_mask: torch.Tensor | None = None) -> torch.Tensor:
        """(B, N) integers to (B, 1, V)."""
        logits_BV: torch.Tensor = self.inner(tokens_BN, key_mask=key_mask)
        return logits_BV[:, None]


class PairClassifier(nn.Module):
    """One tower reads both documents; two layers answer from x, y, x * y and x - y (Tay et al. 2020, 2011.04006)."""

    def __init__(self, tower: nn.Module, *, width: int, classes: int, seed: int) -> None:
        super().__init__()
        self.tower = tower
        with seeded(seed, "readout"):
            self.readout = nn.Sequential(nn.Linear(4 * width, width), nn.ReLU(), nn.Linear(width, classes))

    def forward(self, tokens_B2N: torch.Tensor, *, key_mask: torch.Tensor | None = None) -> torch.Tensor:
        """(B, 2, N) integers to (B, 1, V)."""
        mask = None if key_mask is None else key_mask.flatten(0, 1)
        pooled_B2C = self.tower(tokens_B2N.flatten(0, 1), key_mask=mask).unflatten(0, (-1, 2))
        x_BC, y_BC = pooled_B2C.unbind(1)
        logits_BV: torch.Tensor = self.readout(torch.cat((x_BC, y_BC, x_BC * y_BC, x_BC - y_BC), 1))
        return logits_BV[:, None]


class SourceTarget(nn.Module):
    """An encoder-decoder whose source and target come as one array."""

    def __init__(self, inner: EncoderDecoder) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, tokens_B2N: torch.Tensor, *, key_mask: torch.Tensor | None = None) -> torch.Tensor:
        """(B, 2, N) integers to (B, N, V)."""
        source_mask, target_mask = (None, None) if key_mask is None else key_mask.unbind(1)
        logits_BNV: torch.Tensor = self.inner(
            tokens_B2N[:, 0], tokens_B2N[:, 1], source_mask=source_mask, target_mask=target_mask
        )
        return logits_BNV
