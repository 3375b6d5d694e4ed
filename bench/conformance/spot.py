"""A check at the very size that is timed: a few queries of a long sequence against the oracle."""

from __future__ import annotations

import torch

from bench.conformance.subject import Subject
from bench.variant import Shape

ROWS = 4  # queries compared, the last ones: under bottom-right alignment they are a problem of their own
LONGEST_WHOLE = 512  # a variant without cross-attention is compared whole, up to here


def spot_error(subject: Subject, shape: Shape, query_len: int, key_len: int, *, train: bool) -> float | None:
    """Largest error of the last queries over the largest right entry, at these lengths and this shape.

    train: the module is in train mode, as in a timed train pass. None when the variant's own reference cannot be cut
    to a few queries and the length is too large for all of them.
    """
    module = subject.build(shape).train(train)
    q, k, v = (x.detach() for x in subject.draw(shape, query_len, key_len, batch=1))
    rows = min(ROWS, query_len)
    if subject.claims.kind == "different" and not subject.claims.cross:
        if query_len > LONGEST_WHOLE:
            return None
        rows = query_len
    with torch.no_grad():
        got = subject.call(module, (q, k, v))[:, :, -rows:].cpu().double()
        exact = [x.cpu().double() for x in (q[:, :, -rows:], k, v)]
        want = subject.expected(module, shape, exact)
    if not torch.isfinite(got).all():
        return float("inf")
    return float((got - want).abs().max()) / (float(want.abs().max()) or 1.0)
