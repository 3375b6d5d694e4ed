"""Our CPU variants against the packages people would use instead, on the same work, alternating in one process.

One thread, process CPU time, float32, batch 1, 8 heads of 64. Every line is the median over the alternations of
ours / theirs with its 95 % interval; below 1 is faster. Beside it each one's share of causal flash in the same run.
Where both compute the same function their outputs are compared first. Install the packages of `tox -e oracles` before;
what is absent is left out by name::

    python benchmarks/peers.py --out results/reference/my-machine/peers.md
    python benchmarks/peers.py --seq-len 16384
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench import machine, registry
from bench.stats import interval
from bench.variant import Shape

HEADS, WIDTH, WINDOW = 8, 64, 256
ROUNDS = 7
Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Pair:
    """What is compared: ours and theirs.

    trains: whether theirs has a backward. same: whether both compute the same function of q, k and v.
    """

    name: str
    peer: str
    ours: Attention
    theirs: Callable[[], Attention]
    trains: bool = True
    same: bool = True


def ours(name: str, n: int, *, causal: bool, **knobs: Any) -> Attention:
    """A variant of this project."""
    cls = registry.load(registry.find(name, registry.entries()).source())
    module: Attention = cls(Shape(HEADS, WIDTH, max_len=n, causal=causal), **knobs)
    return module


def local_package() -> Attention:
    """local-attention, exact window."""
    from local_attention import LocalAttention

    layer = LocalAttention(
        window_size=WINDOW - 1,
        causal=True,
        look_backward=1,
        exact_windowsize=True,
        use_rotary_pos_emb=False,
        autopad=True,
    )
    return lambda q, k, v: layer(q, k, v)


def compiled_flex(n: int) -> Attention:
    """torch's FlexAttention, compiled for this length."""
    return ours("flex", n, causal=True, window=WINDOW)


def linear_package() -> Attention:
    """linear-attention-transformer, bidirectional; it works in place, and scales once more."""
    from linear_attention_transformer.linear_attention_transformer import linear_attn

    return lambda q, k, v: linear_attn(q.clone(), k.clone(), v.clone()) * WIDTH**0.5


def compiled_chunks(n: int) -> Attention:
    """The plain chunked form of causal linear attention, compiled."""

    def chunked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k = (torch.nn.functional.elu(x) + 1 for x in (q, k))
        v = torch.nn.functional.pad(v, (0, 1), value=1.0)
        q, k, v = (x.view(*x.shape[:2], -1, 64, x.shape[3]) for x in (q, k, v))
        states = (k.mT @ v).cumsum(2)
        states = torch.cat([torch.zeros_like(states[:, :, :1]), states[:, :, :-1]], 2)
        sums = q @ states + (q @ k.mT).tril() @ v
        return (sums[..., :-1] / sums[..., -1:]).flatten(2, 3)

    compiled: Attention = torch.compile(chunked)
    return compiled


def performer_package() -> Attention:
    """performer-pytorch, bidirectional, 256 features."""
    from performer_pytorch import FastAttention

    return FastAttention(dim_heads=WIDTH, nb_features=256, causal=False)


def nystrom_plain() -> Attention:
    """Nystrom attention written out, 64 landmarks."""

    def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scale = WIDTH**-0.5
        near_q, near_k = (x.view(*x.shape[:2], 64, -1, WIDTH).mean(3) for x in (q, k))
        left, small, right = ((a * scale @ b.mT).softmax(-1) for a, b in ((q, near_k), (near_q, near_k), (near_q, k)))
        z = small.mT / (small.sum(-1).amax() * small.sum(-2).amax())
        eye = torch.eye(64)
        for _ in range(6):
            az = small @ z
            z = 0.25 * z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az)))
        return (left @ z) @ (right @ v)

    return plain


def linformer_plain(n: int) -> Attention:
    """Linformer written out, rank 256."""
    generator = torch.Generator().manual_seed(0)
    e, f = (torch.randn(256, n, generator=generator).div(16).requires_grad_() for _ in range(2))
    return lambda q, k, v: (q * WIDTH**-0.5 @ (e @ k).mT).softmax(-1) @ (f @ v)


def strided_gather(n: int) -> Attention:
    """The strided pattern, near and far keys gathered for every block and put into one softmax."""
    stride = 64
    module = ours("sparse", n, causal=True)
    mask = None

    def gathered(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        nonlocal mask
        blocks = n // stride
        padded_k, padded_v = (torch.nn.functional.pad(x, (0, 0, stride, 0)) for x in (k, v))
        near_k, near_v = (x.unfold(2, 2 * stride, stride).mT for x in (padded_k, padded_v))  # (B,H,b,2s,D)
        far_k, far_v = (x.view(1, HEADS, blocks, stride, WIDTH).transpose(2, 3) for x in (k, v))  # (B,H,s,b,D)
        if mask is None:
            pattern = module.pattern(n, n).view(blocks, stride, n)  # type: ignore[attr-defined]
            own = torch.arange(blocks)[:, None, None]
            keys = (own - 1) * stride + torch.arange(2 * stride)
            near = torch.where(keys >= 0, pattern.gather(2, keys.clamp(min=0).expand(-1, stride, -1)), False)
            far = torch.arange(blocks) < own - 1  # nearer ones are among the near keys
            mask = torch.cat([near, far.expand(blocks, stride, blocks)], -1)
        cut = q.view(1, HEADS, blocks, stride, WIDTH) * WIDTH**-0.5
        scores = torch.cat([cut @ near_k.mT, torch.einsum("bhcrd,bhrfd->bhcrf", cut, far_k)], -1)
        weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
        near_w, far_w = weights.split([2 * stride, blocks], -1)
        out = near_w @ near_v + torch.einsum("bhcrf,bhrfd->bhcrd", far_w, far_v)
        return out.flatten(2, 3)

    return gathered


def pairs(n: int) -> list[Pair]:
    """All comparisons at one length."""
    local, linear = ours("local", n, causal=True), ours("linear", n, causal=True)
    both_ways = {
        name: ours(name, n, causal=False) for name in ("linear", "efficient", "performer", "nystrom", "linformer")
    }
    lat = "linear-attention-transformer"
    return [
        Pair("local causal", "flex, compiled", local, lambda: compiled_flex(n), trains=False),
        Pair("local causal", "local-attention", local, local_package),
        Pair("linear causal", "chunks, compiled", linear, lambda: compiled_chunks(n)),
        Pair("linear bidirectional", lat, both_ways["linear"], linear_package, same=False),
        Pair("efficient", lat, both_ways["efficient"], linear_package),
        Pair("sparse causal", "gather form", ours("sparse", n, causal=True), lambda: strided_gather(n)),
        Pair("performer", "performer-pytorch", both_ways["performer"], performer_package, same=False),
        Pair("nystrom", "plain form", both_ways["nystrom"], nystrom_plain),
        Pair("linformer", "plain form", both_ways["linformer"], lambda: linformer_plain(n), same=False),
    ]


def seconds(call: Callable[[], Any]) -> float:
    """CPU seconds of this process for one call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def measured(pair: Pair, flash: Attention, n: int, rounds: int) -> list[str]:
    """Lines of the table: forward, and train where theirs can."""
    theirs = pair.theirs()
    generator = torch.Generator().manual_seed(0)
    q, k, v, gradient = (torch.randn(1, HEADS, n, WIDTH, generator=generator) for _ in range(4))

    def forward(attention: Attention) -> None:
        with torch.no_grad():
            attention(q, k, v)

    def train(attention: Attention) -> None:
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        torch.autograd.grad(attention(*leaves), leaves, gradient)

    if pair.same:
        with torch.no_grad():
            torch.testing.assert_close(pair.ours(q, k, v), theirs(q, k, v), rtol=1e-3, atol=1e-4)
    lines = []
    for name, run in (("forward", forward), ("train", train))[: 2 if pair.trains else 1]:
        times: dict[str, list[float]] = {"ours": [], "theirs": [], "flash": []}
        for turn in range(rounds + 1):
            for side, attention in (("ours", pair.ours), ("theirs", theirs), ("flash", flash)):
                spent = seconds(partial(run, attention))
                if turn:  # the first warms up and compiles
                    times[side].append(spent)
        lines.append(line(pair, name, n, times))
        print(lines[-1], flush=True)
    return lines


def line(pair: Pair, name: str, n: int, times: dict[str, list[float]]) -> str:
    """One line of the Markdown table."""
    ratios = [a / b for a, b in zip(times["ours"], times["theirs"], strict=True)]
    low, high = interval(ratios)
    flash = statistics.median(times["flash"])
    shares = [statistics.median(times[side]) / flash for side in ("ours", "theirs")]
    bounds = "" if low is None or high is None else f" ({low:.2f} to {high:.2f})"
    ms = [1e3 * statistics.median(times[side]) for side in ("ours", "theirs")]
    ratio = f"{statistics.median(ratios):.2f}{bounds}"
    cells = [pair.name, pair.peer, n, name, ratio, *(f"{one:.0f}" for one in ms), *(f"{one:.3f}" for one in shares)]
    return f"| {' | '.join(map(str, cells))} |"


COLUMNS = (
    "ours", "theirs", "n", "pass", "ours / theirs (95 %)", "ours, ms CPU", "theirs, ms CPU", "ours / flash causal",
    "theirs / flash causal",
)  # fmt: skip
HEADER = f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}"


def main() -> int:
    """Print the table and write it where asked; 1 when ours is slower than the best of a line by more than 5 %."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--seq-len", type=int, default=4096, help="a multiple of 64")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, help="also write the table to this Markdown file")
    options = parser.parse_args()
    machine.set_process_state(1, 0)
    print(HEADER)
    flash = ours("flash", options.seq_len, causal=True)
    lines, absent = [], []
    for pair in pairs(options.seq_len):
        try:
            lines += measured(pair, flash, options.seq_len, options.rounds)
        except ImportError as error:
            absent.append(f"{pair.peer}: {error}")
    for reason in absent:
        print(f"left out: {reason}")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text("\n".join([HEADER, *lines, *absent, ""]), encoding="utf-8")
    ratios = [float(text.split("|")[5].split()[0]) for text in lines]
    return int(any(not math.isfinite(ratio) or ratio > 1.05 for ratio in ratios))


if __name__ == "__main__":
    sys.exit(main())
