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

import peer_forms
import torch
from peer_forms import HEADS, WIDTH, WINDOW, Attention

from bench import machine, registry
from bench.stats import interval
from bench.variant import Shape

ROUNDS = 7
CLOSE = 1e-2  # of the largest entry; where the others start nystrom's iteration the same for all heads: 2e-3


@dataclass(frozen=True)
class Pair:
    """What is compared: ours and theirs.

    trains: whether theirs has a backward. same: whether both compute the same function of q, k and v. heads_last: q, k
    and v lie in memory as (B, N, H, D), what a projection gives, so that joining the heads costs theirs nothing.
    """

    name: str
    peer: str
    ours: Attention
    theirs: Callable[[], Attention]
    trains: bool = True
    same: bool = True
    heads_last: bool = False


def ours(name: str, n: int, *, causal: bool, **knobs: Any) -> Attention:
    """A variant of this project."""
    cls = registry.load(registry.find(name, registry.entries()).source())
    module: Attention = cls(Shape(HEADS, WIDTH, max_len=n, causal=causal), **knobs)
    return module


def pairs(n: int) -> list[Pair]:
    """All comparisons at one length."""
    local, linear, sparse = (ours(name, n, causal=True) for name in ("local", "linear", "sparse"))
    both_ways = {
        name: ours(name, n, causal=False) for name in ("linear", "efficient", "performer", "nystrom", "linformer")
    }
    low_rank = both_ways["linformer"]
    lat = "linear-attention-transformer"
    window = partial(ours, "flex", n, causal=True, window=WINDOW)
    blocks = partial(ours, "flex", n, causal=False, layout="window+global")
    return [
        Pair("local causal", "flex, compiled", local, window, trains=False),
        Pair("local causal", "local-attention", local, peer_forms.local_package),
        Pair("linear causal", "chunks, compiled", linear, lambda: peer_forms.compiled_chunks(n)),
        Pair("linear bidirectional", lat, both_ways["linear"], peer_forms.linear_package, same=False),
        Pair("efficient", lat, both_ways["efficient"], peer_forms.linear_package),
        Pair("block_sparse", "flex, compiled", ours("block_sparse", n, causal=False), blocks, trains=False),
        Pair("sparse causal", "gather form", sparse, lambda: peer_forms.strided_gather(n)),
        Pair("performer", "performer-pytorch", both_ways["performer"], peer_forms.performer_package, same=False),
        Pair("nystrom", "plain form", both_ways["nystrom"], peer_forms.nystrom_plain),
        Pair("nystrom", "nystrom-attention", both_ways["nystrom"], peer_forms.nystrom_package, heads_last=True),
        Pair("linformer", "plain form", low_rank, lambda: peer_forms.linformer_plain(low_rank)),
        Pair("linformer", "linformer", low_rank, lambda: peer_forms.linformer_package(low_rank, n), heads_last=True),
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
    if pair.heads_last:
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))

    def forward(attention: Attention) -> None:
        with torch.no_grad():
            attention(q, k, v)

    def train(attention: Attention) -> None:
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        torch.autograd.grad(attention(*leaves), leaves, gradient)

    if pair.same:
        with torch.no_grad():
            right = theirs(q, k, v)
            error = float((pair.ours(q, k, v) - right).abs().max() / right.abs().max())
        if error > CLOSE:
            sys.exit(f"{pair.name} and {pair.peer} differ by {error:.2g} of the largest entry (allowed {CLOSE:g})")
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
        facts = machine.fingerprint()
        where = f"{facts['cpu']}, one thread, torch {facts['torch']}, {facts['os']}, Python {facts['python']}"
        text = [f"# Against other packages: CPU time, float32, n = {options.seq_len}", "", where, "", HEADER, *lines]
        options.out.write_text("\n".join([*text, *(f"\nLeft out: {one}" for one in absent), ""]), encoding="utf-8")
    ratios = [float(text.split("|")[5].split()[0]) for text in lines]
    return int(any(not math.isfinite(ratio) or ratio > 1.05 for ratio in ratios))


if __name__ == "__main__":
    sys.exit(main())
