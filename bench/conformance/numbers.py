"""Checks of the numbers: each compares with the oracle. A check returns text that is worth reporting, or None."""

from __future__ import annotations

import inspect
from dataclasses import replace

import torch

from bench.conformance.subject import Subject, bias_of, compare, match_oracle, need
from bench.variant import Unsupported

LENGTH = 7  # differs from every number of heads and every width used here
DEFAULT_BLOCK = 64
BLOCK_KNOBS = ("block", "block_size", "chunk", "stride", "window")
WIDTHS = ((1, 1), (3, 3), (33, 33), (80, 80), (257, 257), (48, 32), (6, 11))  # of keys and of values
LONGEST = 300  # the oracle loops over queries and keys


def check_values(subject: Subject) -> str | None:
    """The output equals the oracle's."""
    shape = subject.shape()
    return match_oracle(subject, shape, subject.draw(shape, LENGTH, LENGTH), grads=False)


def check_gradients(subject: Subject) -> str | None:
    """The gradients of q, k and v equal the oracle's."""
    need(subject.no_backward is None, subject.no_backward or "")
    shape = subject.shape()
    return match_oracle(subject, shape, subject.draw(shape, LENGTH, LENGTH), values=False)


def check_lengths(subject: Subject) -> str | None:
    """Output and gradients are right at 1, around a block, at primes: the last, partial block like the others."""
    shape = subject.shape(heads=1)
    blocks = [subject.knobs[name] for name in BLOCK_KNOBS if name in subject.knobs]
    edges = [length for block in blocks or [DEFAULT_BLOCK] for length in (block - 1, block, block + 1)]
    told = None
    for length in sorted({1, 2, 13, 137, *(edge for edge in edges if 0 < edge <= LONGEST)}):
        qkv = subject.draw(shape, length, length, batch=1, seed=length)
        told = match_oracle(subject, shape, qkv, what=f" at length {length}")
    return told


def check_cross(subject: Subject) -> str | None:
    """Other numbers of queries than keys: the last query is aligned with the last key."""
    need(subject.claims.cross, "cross-attention is not claimed")
    shape = subject.shape()
    told = None
    for query_len, key_len in ((1, 9), (3, 8), (2, 5), (8, 3), (5, 70), (70, 5)):
        qkv = subject.draw(shape, query_len, key_len, batch=1)
        told = match_oracle(subject, shape, qkv, what=f" with {query_len} queries and {key_len} keys")
    return told


def check_key_mask(subject: Subject) -> str | None:
    """A key mask with gaps hides exactly its keys; a mask that is not boolean is a TypeError that names its dtype."""
    need(subject.claims.key_mask, "key_mask is not claimed")
    shape = subject.shape()
    qkv = subject.draw(shape, LENGTH, LENGTH)
    mask = torch.tensor([[True, False, True, True, False, True, False], [True, True, True, False, False, False, True]])
    told = match_oracle(subject, shape, qkv, mask.to(subject.device), what=" under a key mask")
    for wrong in (torch.float32, torch.int64):
        refusal = ""
        try:
            subject.call(subject.build(shape), qkv, mask.to(subject.device, wrong))
        except TypeError as error:
            refusal = str(error)
        assert refusal, f"a key_mask of {wrong} was accepted: it must be a TypeError (bench.variant.check_key_mask)"
        assert str(wrong) in refusal, f"the TypeError for a {wrong} key_mask does not name its dtype: {refusal}"
    return told


def check_grouped(subject: Subject) -> str | None:
    """Query head h reads key head h * kv_heads // heads."""
    need(subject.claims.grouped, "grouped heads are not claimed")
    told = None
    for heads, kv_heads in ((4, 2), (6, 2), (3, 1)):
        shape = subject.shape(heads=heads, kv_heads=kv_heads)
        qkv = subject.draw(shape, LENGTH, LENGTH)
        told = match_oracle(subject, shape, qkv, what=f" with {heads} heads on {kv_heads} key heads")
    return told


def check_widths(subject: Subject) -> str | None:
    """Any width of keys, and values of another width, give right numbers or are refused as unsupported."""
    told, refusals = None, []
    for head_dim, value_dim in WIDTHS:
        shape = subject.shape(head_dim=head_dim, value_dim=value_dim)
        qkv = subject.draw(shape, LENGTH, LENGTH, batch=1)
        try:
            told = match_oracle(subject, shape, qkv, what=f" at widths {head_dim} and {value_dim}")
        except Unsupported as reason:
            refusals.append(str(reason))
    need(len(refusals) < len(WIDTHS), "; ".join(refusals))
    return told


def check_scale(subject: Subject) -> str | None:
    """The knob `scale` is obeyed; 0.0 is a value and averages the allowed keys, None is head_dim ** -0.5."""
    need("scale" in inspect.signature(subject.cls).parameters, "it has no knob `scale`")
    told = None
    for scale in (0.25, 1.0, 0.0, None):
        scaled = replace(subject, knobs={**subject.knobs, "scale": scale})
        shape = scaled.shape()
        told = match_oracle(scaled, shape, scaled.draw(shape, LENGTH, LENGTH), what=f" with scale={scale}")
    return told


def check_layouts(subject: Subject) -> str | None:
    """Keys and values that are expanded over heads, and inputs in (B, N, H, D) memory, give the same as copies."""
    shape = subject.shape()
    for length in (31, 32, 33, 65):
        q, k, v = (x.detach() for x in subject.draw(shape, length, length, batch=1))
        module = subject.build(shape)
        shared = [x[:, :1].expand_as(x) for x in (k, v)]
        turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
        for what, given in (("keys and values expanded over heads", [q, *shared]), ("transposed inputs", turned)):
            got, want = (subject.call(module, qkv) for qkv in (given, [x.contiguous() for x in given]))
            compare(f"with {what} at length {length} the output", [got], [want], subject.tolerance)
    return None


def check_low_precision(subject: Subject) -> str | None:
    """In the low dtypes it claims the numbers are right within their tolerance, also where q . k is near overflow."""
    dtypes = [dtype for dtype in ("bfloat16", "float16") if dtype in subject.claims.dtypes]
    need(bool(dtypes), "no low precision is claimed")
    told = None
    for dtype in dtypes:
        low = replace(subject, dtype=dtype)
        shape = low.shape(head_dim=64)
        told = match_oracle(low, shape, low.draw(shape, 40, 40, batch=1), what=f" in {dtype}")
        if bias_of(low.build(shape), 1, 1) is not None:
            continue  # it would be lost in the rounding of such scores
        # float16: q . k is 102400 before the scale, beyond its range.
        for entry in (40.0,) if dtype == "float16" else (40.0, 1e5):
            q, k, v = low.draw(shape, LENGTH, LENGTH)
            large = [low.leaf(torch.full_like(x, entry)) for x in (q, k)]
            match_oracle(low, shape, [*large, v], grads=False, what=f" in {dtype} where all of q and k is {entry:g}")
    return told


def check_large_logits(subject: Subject) -> str | None:
    """Hidden keys weigh nothing even where all allowed scores are about -15000: hidden means minus infinity."""
    shape = subject.shape()
    if bias_of(subject.build(shape), 1, 1) is not None:
        subject = replace(subject, dtype="float64")  # beside such scores narrower numbers do not hold a bias
    size = (15000 / (shape.head_dim * shape.scale)) ** 0.5
    q, k, v = subject.draw(shape, LENGTH, LENGTH)
    low = [subject.leaf(torch.full_like(x, entry)) for x, entry in ((q, size), (k, -size))]
    mask = torch.arange(LENGTH, device=subject.device).expand(2, -1) < 5 if subject.claims.key_mask else None
    return match_oracle(subject, shape, [*low, v], mask, grads=False, what=" where scores are near -15000")


def check_rows_sum_to_one(subject: Subject) -> str | None:
    """With all values 1 the output is 1: the weights of each query sum to 1 over its keys."""
    need(subject.claims.normalised, "weights that sum to 1 are not claimed")
    shape = subject.shape(heads=3)
    q, k, v = subject.draw(shape, 5, 5)
    masks = [None] + ([torch.tensor([[True, True, True, False, False]] * 2)] if subject.claims.key_mask else [])
    module = subject.build(shape)
    for mask in masks:
        out = subject.call(module, [q, k, torch.ones_like(v)], None if mask is None else mask.to(subject.device))
        rows = out if mask is None else out[:, :, :3]  # these see a key in either direction
        compare("with all values 1 the output", [rows], [torch.ones_like(rows)], subject.tolerance)
    return None
