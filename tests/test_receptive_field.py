"""What moves what: one position is changed, and the outputs that move are compared with what a variant declares.

A position has its query, its key and value, and where a variant asks for it its input x. An exact variant moves exactly
the declared pairs, unless its weights may be zero within them; any other moves nothing before the position (causal).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bench import registry
from bench.variant import Shape, Unsupported, admit

ENTRIES = {entry.name: entry for entry in registry.entries() if entry.claims is not None}
N, HEADS, WIDTH = 12, 2, 8
SELECTIVE = {"entmax15", "topk"}  # they give no weight to some of the keys they may see
KNOBS: dict[str, dict[str, Any]] = {  # so that the pattern of 12 positions has holes
    "local": {"window": 4},
    "sparse": {"stride": 3},
    "dilated": {"window": 2, "dilation": 3},
    "longformer": {"window": 3, "global_tokens": 1},
    "block_sparse": {"block": 2, "blocks": 2},
    "bigbird": {"block": 2, "window_blocks": 1, "global_blocks": 1, "random_blocks": 1},
    "flex": {"window": 4},
    "natten": {"window": 5},
}
DIRECTIONS = pytest.mark.parametrize("causal", [True, False])
COMPILED = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")]  # by the compiler
NAMES = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=COMPILED) if name == "flex" else name for name in ENTRIES]
)


def build(name: str, causal: bool) -> Any:
    """A module in evaluation mode; a variant whose library or direction is not there is skipped."""
    shape = Shape(HEADS, WIDTH, max_len=N, causal=causal)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module = registry.load(ENTRIES[name].source())(shape, **KNOBS.get(name, {}))
        admit(module, shape, dtype=dtype_of(name), device="cpu", query_len=N, key_len=N)
    except (ImportError, Unsupported) as reason:
        pytest.skip(str(reason))
    return module.to(getattr(torch, dtype_of(name))).eval()


def dtype_of(name: str) -> str:
    """float64, where the variant does it: a change is then far above rounding."""
    claims = ENTRIES[name].claims
    assert claims is not None
    return "float64" if "float64" in claims.dtypes else "float32"


def inputs(name: str, seed: int = 0) -> dict[str, torch.Tensor]:
    """q, k and v (1,H,N,D) and, where it is wanted, x (1,N,C)."""
    generator = torch.Generator().manual_seed(seed)
    claims = ENTRIES[name].claims
    assert claims is not None
    sizes = dict.fromkeys("qkv", (1, HEADS, N, WIDTH))
    made = {part: torch.randn(size, generator=generator, dtype=torch.float64) for part, size in sizes.items()}
    if claims.needs_x:
        made["x"] = torch.randn((1, N, HEADS * WIDTH), generator=generator, dtype=torch.float64)
    return {part: value.to(getattr(torch, dtype_of(name))) for part, value in made.items()}


def moved(module: Any, name: str, parts: str, seed: int = 0) -> torch.Tensor:
    """Which outputs of a head move when these parts of a position change, bool (H, N outputs, N positions)."""
    given, other = inputs(name, seed), inputs(name, seed + 1)
    before = module(**given)
    columns = []
    for j in range(N):
        changed = {part: value.clone() for part, value in given.items()}
        for part in parts:
            if part in changed:
                place = (slice(None), slice(None), j) if part != "x" else (slice(None), j)
                changed[part][place] = other[part][place]
        gap = (module(**changed) - before).abs().amax(-1)[0]
        columns.append(gap > (1e-9 if dtype_of(name) == "float64" else 1e-4) * before.abs().max())
    return torch.stack(columns, -1)


def declared(module: Any, causal: bool) -> torch.Tensor:
    """The pattern, bool (1 or H, N, N); without one, all that the direction allows."""
    if hasattr(module, "pattern"):
        pattern = module.pattern(N, N)
        return pattern if pattern.dim() == 3 else pattern[None]
    everything = torch.ones(1, N, N, dtype=torch.bool)
    return everything.tril() if causal else everything


@DIRECTIONS
@NAMES
def test_a_key_and_value_move_the_outputs_of_the_declared_pairs(name: str, causal: bool) -> None:
    claims = ENTRIES[name].claims
    assert claims is not None
    module = build(name, causal)
    found, allowed = moved(module, name, "kvx"), declared(module, causal)
    if claims.kind != "exact":
        assert not causal or not found.triu(1).any(), "an output moved with a later position"
        return
    assert not (found & ~allowed).any(), "an output moved that may not attend there"
    if name not in SELECTIVE:
        assert torch.equal(found, allowed.expand_as(found)), "an output did not move that may attend there"


@DIRECTIONS
@NAMES
def test_a_query_moves_its_own_output_alone(name: str, causal: bool) -> None:
    """In an exact variant; one that mixes or sorts queries moves others, in the causal direction only later ones."""
    claims = ENTRIES[name].claims
    assert claims is not None
    module = build(name, causal)
    found = moved(module, name, "q")
    others = ~torch.eye(N, dtype=torch.bool)
    if claims.kind == "exact":
        assert not (found & others).any()
        several = declared(module, causal).sum(-1) > 1
        assert bool((found.diagonal(dim1=1, dim2=2) | ~several).all()), "a query with several keys did not move"
    elif causal:
        assert not found.triu(1).any()


@DIRECTIONS
@NAMES
def test_every_output_moves_with_something(name: str, causal: bool) -> None:
    """No variant is constant: each position's output depends on some key or value."""
    assert moved(build(name, causal), name, "kvx").any(-1).all()


@DIRECTIONS
@pytest.mark.parametrize("name", KNOBS)
def test_the_knobs_above_leave_holes(name: str, causal: bool) -> None:
    module = build(name, causal)
    everything = torch.ones(N, N, dtype=torch.bool)
    assert not torch.equal(declared(module, causal)[0], everything.tril() if causal else everything)


def test_a_peek_at_the_future_and_a_window_too_wide_would_show() -> None:
    """The two mistakes these tests are for, made on purpose."""

    class Peek:
        def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return (q @ k.mT).softmax(-1) @ v

    assert moved(Peek(), "full", "kvx").triu(1).any()
    wide = registry.load(ENTRIES["local"].source())(Shape(HEADS, WIDTH, max_len=N, causal=True), window=5)
    narrow = build("local", causal=True)
    assert (moved(wide, "local", "kvx") & ~declared(narrow, causal=True)).any()
