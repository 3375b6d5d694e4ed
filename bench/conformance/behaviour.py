"""Checks of behaviour: what may and may not change an output. A check returns text worth reporting, or None."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bench.conformance.subject import Subject, compare, gradients, identical, need
from bench.variant import Shape, Unsupported, admit

LENGTH = 70  # more than one block of most variants
CUTS = (1, 33, 64, 69)


def check_causality(subject: Subject) -> str | None:
    """Changing what comes after a position leaves the outputs up to it equal bit for bit, also in train mode."""
    need(subject.causal, "only for causal attention")
    shape = subject.shape()
    q, k, v = (x.detach() for x in subject.draw(shape, LENGTH, LENGTH, batch=1))
    for train in (False, True):
        module = subject.build(shape).train(train)
        before = subject.call(module, [q, k, v])
        for cut in CUTS:
            changed = subject.call(module, [_after(cut, x) for x in (q, k, v)])
            mode = "train" if train else "eval"
            what = f"in {mode} mode outputs before position {cut} depend on what stands from there on"
            identical(what, changed[:, :, :cut], before[:, :, :cut])
    return None


def check_causality_of_block(subject: Subject) -> str | None:
    """The same for a whole Transformer block around it: changing the input leaves earlier outputs equal."""
    from bench.model.block import Block, BlockConfig

    need(subject.causal, "only for causal attention")
    block = Block(BlockConfig(d_model=32, heads=2, conv=3), subject.build, causal=True, max_len=LENGTH)
    block = block.to(subject.device, getattr(torch, subject.dtype)).eval()
    shape = subject.shape(heads=1, head_dim=32)
    x_BNC = subject.draw(shape, LENGTH, LENGTH)[0].detach()[:, 0]
    with torch.no_grad():
        before = block(x_BNC)
        for cut in CUTS:
            changed = block(_after(cut, x_BNC[:, None])[:, 0])
            what = f"outputs of the block before position {cut} depend on its input from there on"
            identical(what, changed[:, :cut], before[:, :cut])
    return None


def check_padding(subject: Subject) -> str | None:
    """What stands in padded keys and values changes nothing, be it 1e30 or NaN, nor any gradient; padded queries (and
    inputs x) change no other output; and real positions come out as without the padding."""
    need(subject.claims.key_mask, "key_mask is not claimed")
    shape, real = subject.shape(), 41
    q, k, v = subject.draw(shape, LENGTH, LENGTH)
    mask = torch.arange(LENGTH, device=subject.device).expand(2, -1) < real
    module = subject.build(shape)
    huge = min(1e30, torch.finfo(k.dtype).max)
    results = []
    for filling in (0.0, huge, float("nan")):
        qkv = [q, *(subject.leaf(x.detach().masked_fill(~mask[:, None, :, None], filling)) for x in (k, v))]
        out = subject.call(module, qkv, mask)
        results.append((out[:, :, :real], gradients(out, qkv)))
        what = f"with {filling:g} in padded places the output"
        identical(f"{what} differs from that with 0", results[-1][0], results[0][0])
        compare(f"with {filling:g} in padded places the gradient", results[-1][1], results[0][1], 0.0)
    other = subject.call(module, [_after(real, q.detach()), k, v], mask)[:, :, :real]
    identical("the output of real positions depends on padded queries", other, results[0][0])
    alone = subject.call(module, [x[:, :, :real] for x in (q, k, v)])
    compare("beside padding the output of real positions", [results[0][0]], [alone], subject.tolerance)
    return None


def check_batch_independence(subject: Subject) -> str | None:
    """An example's output does not depend on what else is in the batch."""
    shape = subject.shape()
    q, k, v = (x.detach() for x in subject.draw(shape, LENGTH, LENGTH))
    module = subject.build(shape)
    together = subject.call(module, [q, k, v])
    other = subject.call(module, [torch.cat([x[:1], x[1:] * 6]) for x in (q, k, v)])
    identical("the output depends on the other example of the batch", other[:1], together[:1])
    alone = subject.call(module, [x[:1] for x in (q, k, v)])
    compare("the output of an example in a batch, against alone,", [together[:1]], [alone], subject.tolerance)
    return None


def check_masked_rows(subject: Subject) -> str | None:
    """A query whose keys are all masked gives 0, its gradients are 0, and all gradients are finite."""
    need(subject.claims.key_mask, "key_mask is not claimed")
    shape, length = subject.shape(), 5
    qkv = subject.draw(shape, length, length, batch=3)
    mask = torch.arange(length) < torch.tensor([5, 0, 3])[:, None]  # lengths 5, 0 and 3
    out = subject.call(subject.build(shape), qkv, mask.to(subject.device))
    assert torch.isfinite(out).all(), "NaN or infinite output where all keys of a query are masked"
    assert not out[1].any(), "queries without any key give something other than 0"
    for name, gradient in zip("qkv", gradients(out, qkv), strict=True):
        assert torch.isfinite(gradient).all(), f"the gradient of {name} is not finite where all keys are masked"
        assert not gradient[1].any(), f"the gradient of {name} is not 0 where all keys are masked"
    return None


def check_empty(subject: Subject) -> str | None:
    """No positions, no examples, no keys: an output of the right shape (zeros without keys), and a backward."""
    shape = subject.shape()
    cases = [(2, 0, 0), (0, 5, 5)] + ([(2, 5, 0), (2, 0, 5)] if subject.claims.cross else [])
    for batch, query_len, key_len in cases:
        what = f"batch {batch}, {query_len} queries, {key_len} keys"
        qkv = subject.draw(shape, query_len, key_len, batch)
        out = subject.call(subject.build(shape), qkv)
        wanted = (batch, shape.heads, query_len, shape.value_dim)
        assert tuple(out.shape) == wanted, f"{what}: output of shape {tuple(out.shape)}, should be {wanted}"
        assert not out.any(), f"{what}: the output is not 0"
        gradients(out, qkv)
    return None


def check_inputs_unchanged(subject: Subject) -> str | None:
    """The caller's tensors are not written to, forward or backward, and are not what comes back."""
    shape = subject.shape()
    qkv = subject.draw(shape, LENGTH, LENGTH)
    mask = None
    if subject.claims.key_mask:
        mask = (torch.arange(LENGTH, device=subject.device) < LENGTH - 3).expand(2, -1).contiguous()
    given = [*qkv] if mask is None else [*qkv, mask]
    copies = [x.detach().clone() for x in given]
    with torch.no_grad():
        out = subject.call(subject.build(shape), qkv, mask)
    assert all(out.data_ptr() != x.data_ptr() for x in given), "the output is one of the inputs, not a new tensor"
    gradients(subject.call(subject.build(shape), qkv, mask), qkv)
    for name, tensor, copy in zip(["q", "k", "v", "key_mask"], given, copies, strict=False):
        assert torch.equal(tensor, copy), f"{name} was changed in place"
    return None


def check_reuse(subject: Subject) -> str | None:
    """One module used at several lengths gives the same as a new one at each."""
    shape = subject.shape()
    module = subject.build(shape)
    for length in (LENGTH, 37, LENGTH):
        qkv = subject.draw(shape, length, length, batch=1)
        fresh = subject.call(subject.build(shape), qkv)
        identical(f"a used module at length {length} differs from a new one", subject.call(module, qkv), fresh)
    return None


def check_steps(subject: Subject) -> str | None:
    """`prefill` and then `step` by `step` give what one causal call gives, and `step` leaves the old state alone."""
    shape = subject.shape()
    module: Any = subject.build(shape)
    need(hasattr(module, "prefill") and hasattr(module, "step"), "it has no recurrent state")
    need(subject.causal, "only for causal attention")
    q, k, v = (x.detach() for x in subject.draw(shape, 12, 12))
    whole = subject.call(module, [q, k, v])
    for known in (0, 9):
        state = module.prefill(k[:, :, :known], v[:, :, :known], **subject.extra(q[:, :, :known]))
        for i in range(known, 12):
            at = slice(i, i + 1)
            now, extra = (q[:, :, at], k[:, :, at], v[:, :, at]), subject.extra(q[:, :, at])
            out, following = module.step(state, *now, **extra)
            again, _ = module.step(state, *now, **extra)
            identical("the same step twice differs: it changes the state it is given", again, out)
            what = f"step {i} after a prefill of {known}: the output"
            compare(what, [out], [whole[:, :, at]], subject.tolerance)
            state = following
    return None


def check_pattern(subject: Subject) -> str | None:
    """The declared pattern never shows the future when causal, and `pairs` counts it."""
    need(subject.claims.kind == "exact", "only exact variants declare a pattern")
    module: Any = subject.build(subject.shape())
    need(hasattr(module, "pattern"), "it declares no pattern: full attention")
    for query_len, key_len in [(n, m) for n in (0, 1, 2, 7, 16) for m in (0, 1, 3, 7, 16)]:
        pattern = module.pattern(query_len, key_len)
        what = f"pattern({query_len}, {key_len})"
        assert pattern.dtype == torch.bool, f"{what} is {pattern.dtype}, should be torch.bool"
        assert pattern.shape[-2:] == (query_len, key_len), f"{what} has shape {tuple(pattern.shape)}"
        seen = [pair[-2:] for pair in pattern.nonzero().tolist()] if subject.causal else []
        assert all(j <= key_len - query_len + i for i, j in seen), f"{what} lets a query see a later key"
        if hasattr(module, "pairs"):
            pairs, counted = module.pairs(query_len, key_len), int(pattern.sum())
            assert pairs == counted, f"pairs({query_len}, {key_len}) is {pairs}, but {what} has {counted}"
    return None


def check_claims(subject: Subject) -> str | None:
    """What is not claimed is refused before anything runs."""
    claims, shape = subject.claims, subject.shape()
    turned = Shape(2, 16, causal=not subject.causal)
    asks: list[tuple[bool, str, Shape, dict[str, Any]]] = [
        (claims.cross, "cross-attention", shape, {"key_len": 5}),
        (claims.key_mask, "a key_mask", shape, {"masked": True}),
        (claims.grouped, "grouped heads", subject.shape(kv_heads=1), {}),
        (claims.bidirectional if subject.causal else claims.causal, "the other direction", turned, {}),
        (False, "a longer sequence than max_len", Shape(2, 16, max_len=4, causal=subject.causal), {}),
        *((dtype in claims.dtypes, dtype, shape, {"dtype": dtype}) for dtype in ("float64", "bfloat16", "float16")),
    ]
    for claimed, what, asked, options in asks:
        call = {"dtype": subject.dtype, "device": subject.device, "query_len": 9, "key_len": 9, **options}
        assert claimed or _refuses(subject.build(asked), asked, call), f"{what} is not claimed, yet it is admitted"
    return None


def check_determinism(subject: Subject) -> str | None:
    """Reported, not judged: whether two runs, forward and backward, are equal bit for bit."""
    shape = subject.shape()
    qkv = subject.draw(shape, LENGTH, LENGTH)
    module = subject.build(shape)
    runs = [(out, *gradients(out, qkv)) for out in (subject.call(module, qkv), subject.call(module, qkv))]
    same = all(torch.equal(one, other) for one, other in zip(*runs, strict=True))
    return f"deterministic: {'yes' if same else 'no'}"


def _after(cut: int, x_BGND: torch.Tensor) -> torch.Tensor:
    """A copy with other, larger numbers from position `cut` on."""
    changed = x_BGND.clone()
    changed[:, :, cut:] = changed[:, :, cut:].flip(-1) * -20
    return changed


def _refuses(module: nn.Module, shape: Shape, call: dict[str, Any]) -> bool:
    try:
        admit(module, shape, **call)
    except Unsupported:
        return True
    return False
