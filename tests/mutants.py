"""An honest variant and what goes wrong with it in practice: each class below spoils one step."""

from __future__ import annotations

import torch
from torch import nn

from bench.variant import Shape, check_key_mask, variant

exact = variant(kind="exact", paper="test")


@exact
class Honest(nn.Module):
    """Softmax attention, step by step."""

    def __init__(self, shape: Shape, *, scale: float | None = None) -> None:
        super().__init__()
        self.shape = shape
        self.scale = shape.scale if scale is None else scale

    def forward(self, q, k, v, *, key_mask=None):
        check_key_mask(key_mask, k.shape[0], k.shape[2])
        k, v = self.clean(k, key_mask), self.clean(v, key_mask)
        k, v = self.share(k, q.shape[1] // k.shape[1]), self.share(v, q.shape[1] // k.shape[1])
        allowed = self.may(q.shape[2], k.shape[2])[None, None]
        if key_mask is not None:
            allowed = allowed & self.real(key_mask)
        return self.mix(self.scores(q, k), allowed, v)

    def clean(self, x, key_mask):
        return x if key_mask is None else x.masked_fill(~key_mask[:, None, :, None], 0)

    def share(self, x, groups):
        return x.repeat_interleave(groups, 1)

    def may(self, query_len, key_len):
        return self.pattern(query_len, key_len)

    def real(self, key_mask):
        return key_mask[:, None, None, :]

    def scores(self, q, k):
        return (q * self.scale) @ k.mT

    def mix(self, scores, allowed, v):
        seen = allowed.any(-1, keepdim=True)
        weights = scores.masked_fill(seen & ~allowed, -torch.inf).softmax(-1)
        return (weights @ v).masked_fill(~seen, 0)

    def pattern(self, query_len, key_len, device="cpu"):
        position = torch.arange(key_len - query_len, key_len)[:, None]
        future = torch.arange(key_len) > position
        return ~future if self.shape.causal else torch.ones_like(future)


class Peeks(Honest):
    """One key too late is visible."""

    def may(self, query_len, key_len):
        return self.pattern(query_len, key_len).roll(-1, 0) if self.shape.causal else self.pattern(query_len, key_len)


class Shifted(Honest):
    """The query itself is not visible, although the pattern says so."""

    def may(self, query_len, key_len):
        return self.pattern(query_len, key_len).tril(key_len - query_len - 1)


class TopLeft(Honest):
    """Causal aligned with the first key instead of the last."""

    def may(self, query_len, key_len):
        return self.pattern(query_len, key_len).new_ones(query_len, key_len).tril()


class WrongScale(Honest):
    """The scale of another width."""

    def scores(self, q, k):
        return super().scores(q, k) * 1.01


class IgnoresScale(Honest):
    """The knob is not used."""

    def scores(self, q, k):
        return (q * self.shape.scale) @ k.mT


class ScalesLate(Honest):
    """The product overflows before it is scaled."""

    def scores(self, q, k):
        return q @ k.mT * self.scale


class IgnoresBias(Honest):
    """The declared bias is not added to the scores."""

    def bias(self, query_len, key_len):
        heads = torch.arange(1.0, self.shape.heads + 1, dtype=torch.float64)[:, None, None]
        return (heads * torch.arange(key_len) / 8).expand(-1, query_len, -1)


class InPlace(Honest):
    """Writes into the caller's values."""

    def clean(self, x, key_mask):
        return x if key_mask is None else x.data.masked_fill_(~key_mask[:, None, :, None], 0) + (x - x.detach())


class MaskedRowsNan(Honest):
    """Minus infinity in a whole row."""

    def mix(self, scores, allowed, v):
        return scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ v


class MaskedRowsCleanedLate(Honest):
    """NaN is removed after the softmax: the output is right, the gradient is not."""

    def mix(self, scores, allowed, v):
        bias = torch.zeros_like(scores).masked_fill(~allowed, -torch.inf)
        return (scores + bias).softmax(-1).nan_to_num(0) @ v


class KeepsPaddedValues(Honest):
    """Padded values have weight 0, and 0 times NaN is NaN."""

    def clean(self, x, key_mask):
        return x


class IgnoresMask(Honest):
    """The key mask is accepted and dropped."""

    def clean(self, x, key_mask):
        return x

    def real(self, key_mask):
        return torch.ones_like(key_mask)[:, None, None, :]


class MaskOnQueries(Honest):
    """The key mask is laid over the queries."""

    def real(self, key_mask):
        return key_mask[:, None, :, None]


class CouplesBatch(Honest):
    """Keys are centred over the batch."""

    def scores(self, q, k):
        return super().scores(q, k - k.mean(0, keepdim=True))


class WrongAxis(Honest):
    """Softmax over queries."""

    def mix(self, scores, allowed, v):
        seen = allowed.any(-1, keepdim=True)
        weights = scores.masked_fill(~allowed, -1e30).softmax(-2).masked_fill(~allowed, 0)
        return (weights @ v).masked_fill(~seen, 0)


class MasksAfterSoftmax(Honest):
    """Forbidden weights are removed after the softmax: the rest does not sum to 1."""

    def mix(self, scores, allowed, v):
        return scores.softmax(-1).masked_fill(~allowed, 0) @ v


class LargeConstant(Honest):
    """-1e4 in place of minus infinity."""

    def mix(self, scores, allowed, v):
        seen = allowed.any(-1, keepdim=True)
        return (scores.masked_fill(~allowed, -1e4).softmax(-1) @ v).masked_fill(~seen, 0)


class TilesHeads(Honest):
    """Query head h reads key head h mod Hkv."""

    def share(self, x, groups):
        return x.repeat(1, groups, 1, 1)


class RemembersMask(Honest):
    """What was made for the first length is used for all."""

    def may(self, query_len, key_len):
        if not hasattr(self, "kept"):
            self.kept = key_len
        pattern = self.pattern(query_len, key_len)
        return pattern if key_len == self.kept else pattern.tril(key_len - query_len - 1)


class DropsPartialBlock(Honest):
    """Keys beyond the last whole block of 64 are lost."""

    def may(self, query_len, key_len):
        whole = key_len // 64 * 64 or key_len
        return self.pattern(query_len, key_len) & (torch.arange(key_len) < whole)


class NanFromBlock(Honest):
    """Only the gradient is NaN, at lengths that are no multiple of 64."""

    def mix(self, scores, allowed, v):
        out = super().mix(scores, allowed, v)
        if out.requires_grad and out.shape[2] > 64 and out.shape[2] % 64:
            out.register_hook(lambda gradient: gradient * torch.nan)
        return out


class CountsWrong(Honest):
    """The closed form of the pairs does not belong to the pattern."""

    def pairs(self, query_len, key_len):
        return query_len * key_len


class Raises(Honest):
    """A plain mistake."""

    def mix(self, scores, allowed, v):
        return scores.no_such_method()


class WritesResult(Honest):
    """Puts the result into the caller's values where no gradient is asked for."""

    def forward(self, q, k, v, *, key_mask=None):
        out = super().forward(q, k, v, key_mask=key_mask)
        return out if torch.is_grad_enabled() or v.shape != out.shape else v.data.copy_(out)
