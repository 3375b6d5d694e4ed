"""What is run around an attention: the operation alone, one Transformer block, or a small model, for one pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from bench.cells import Cell
from bench.model.block import Block, BlockConfig
from bench.model.init import derived
from bench.model.language import LanguageModel
from bench.variant import Shape, admit, attention_flops

VOCAB = 256
LAYERS = 2
TRAIN_FLOPS = 3  # forward plus backward, the customary factor; recomputation is not credited


@dataclass
class Workload:
    """A built cell. forward: one forward call. call: one call of the cell's pass. flops: of one call, None unknown.

    runs: name fragments of the operators that the variant stands for.
    """

    forward: Callable[[], torch.Tensor]
    call: Callable[[], Any]
    inputs: list[torch.Tensor]
    params: list[torch.Tensor]
    flops: int | None
    tokens: int
    runs: tuple[str, ...]


def shape_of(cell: Cell) -> Shape:
    """The shape a measured cell tells its variant."""
    assert cell.heads and cell.head_dim and cell.seq_len
    kv_heads, value_dim = cell.kv_heads or cell.heads, cell.value_dim or cell.head_dim
    return Shape(cell.heads, cell.head_dim, kv_heads, value_dim, max_len=cell.seq_len, causal=cell.causal)


def build(cell: Cell, cls: Any, device: str) -> Workload:
    """The module and its inputs for a cell, from generators seeded by (seed, purpose); raises `Unsupported`.

    q, k and v are three separate random tensors, the same for every variant of the cell. Gradients are returned by
    each train call, never accumulated, so nothing has to be cleared between calls.
    """
    assert cell.batch and cell.seq_len and cell.pass_
    shape = shape_of(cell)
    kv_heads, value_dim = cell.kv_heads or shape.heads, cell.value_dim or shape.head_dim
    dtype = getattr(torch, cell.dtype)
    variants: list[Any] = []

    def make_attention(asked: Shape) -> nn.Module:
        module: nn.Module = cls(asked, **cell.knobs)
        admit(
            module,
            asked,
            dtype=cell.dtype,
            device=device,
            query_len=query_len,
            key_len=n,
            decode=cell.pass_ == "decode",
            train=cell.pass_ == "train",
        )
        variants.append(module)
        return module

    named: dict[str, torch.Tensor] = {}
    n = cell.seq_len
    query_len = 1 if cell.pass_ == "decode" else n
    if cell.workload == "attention":
        module = make_attention(shape)
        sizes = {
            "q": (cell.batch, shape.heads, query_len, shape.head_dim),
            "k": (cell.batch, kv_heads, n, shape.head_dim),
            "v": (cell.batch, kv_heads, n, value_dim),
        }
        inputs = [_normal(size, cell.seed, name, dtype, device) for name, size in sizes.items()]
        if module.claims.needs_x:  # type: ignore[union-attr]
            named["x"] = _normal((cell.batch, n, shape.model_dim), cell.seed, "x", dtype, device)
        out_size: tuple[int, ...] = (cell.batch, shape.heads, query_len, value_dim)
    elif cell.workload == "block":
        module = Block(_config(cell), make_attention, causal=cell.causal, max_len=n)
        inputs = [_normal((cell.batch, n, shape.heads * shape.head_dim), cell.seed, "x", dtype, device)]
        out_size = tuple(inputs[0].shape)
    else:
        module = LanguageModel(_config(cell), make_attention, vocab=VOCAB, layers=LAYERS, causal=cell.causal, max_len=n)
        inputs = [_tokens((cell.batch, n), cell.seed, device)]
        out_size = (cell.batch, n, VOCAB)
    _place(module, device, dtype)
    module.train(cell.pass_ == "train")
    return _assemble(cell, module, variants, shape, inputs, named, out_size)


def _assemble(
    cell: Cell,
    module: nn.Module,
    variants: list[Any],
    shape: Shape,
    inputs: list[torch.Tensor],
    named: dict[str, torch.Tensor],
    out_size: tuple[int, ...],
) -> Workload:
    assert cell.batch and cell.seq_len
    query_len = 1 if cell.pass_ == "decode" else cell.seq_len
    params: list[torch.Tensor] = [*module.parameters(), *module.buffers()]
    tokens = cell.batch * query_len
    runs: tuple[str, ...] = getattr(variants[0], "runs", variants[0].claims.runs)
    flops = _flops(module, variants, shape, cell.batch, query_len, cell.seq_len)
    if cell.pass_ == "train":
        leaves = [*(x for x in (*inputs, *named.values()) if x.is_floating_point()), *module.parameters()]
        for leaf in leaves:
            leaf.requires_grad_()
        gradient = torch.ones(out_size, dtype=getattr(torch, cell.dtype), device=inputs[0].device)

        def forward() -> torch.Tensor:
            return module(*inputs, **named)  # type: ignore[no-any-return]

        def train() -> Any:
            # The edge lets the output go before the backward, as a training step does once the loss has read it.
            edge = torch.autograd.graph.get_gradient_edge(forward())
            return torch.autograd.grad([edge], leaves, [gradient], allow_unused=True)

        total = None if flops is None else TRAIN_FLOPS * flops
        return Workload(forward, train, [*inputs, *named.values(), gradient], params, total, tokens, runs)

    held = [*inputs, *named.values()]
    if cell.pass_ == "decode" and hasattr(module, "step"):
        call, held = _step(module, inputs, named)
        flops = _flops(module, variants, shape, cell.batch, 1, 1)
    else:

        def call() -> torch.Tensor:
            return module(*inputs, **named)  # type: ignore[no-any-return]

    def infer() -> torch.Tensor:
        with torch.inference_mode():
            return call()

    return Workload(infer, infer, held, params, flops, tokens, runs)


def idle_call(train: bool) -> Callable[[], Any]:
    """A call of a module that does nothing, made as `build` makes them: what a call costs beside its work."""
    module, x = nn.Identity(), torch.zeros(1)

    def infer() -> Any:
        with torch.inference_mode():
            return module(x)

    def step() -> Any:
        edge = torch.autograd.graph.get_gradient_edge(module(x.view(1)))
        return torch.autograd.grad([edge], [x], [gradient], allow_unused=True)

    if not train:
        return infer
    x.requires_grad_()
    gradient = torch.ones(1)
    return step


def _place(module: nn.Module, device: str, dtype: torch.dtype) -> None:
    """Move a module in place; unlike `nn.Module.to` this also works on fake tensors, which cannot be swapped."""
    moved: dict[int, nn.Parameter] = {}  # tied weights stay tied
    for part in module.modules():
        for name, weight in list(part.named_parameters(recurse=False)):
            if id(weight) not in moved:
                moved[id(weight)] = nn.Parameter(weight.detach().to(device=device, dtype=dtype), weight.requires_grad)
            setattr(part, name, moved[id(weight)])
        for name, buffer in list(part.named_buffers(recurse=False)):
            setattr(part, name, buffer.to(device=device, dtype=dtype if buffer.is_floating_point() else None))


def _step(
    module: Any, inputs: list[torch.Tensor], named: dict[str, torch.Tensor]
) -> tuple[Callable[[], torch.Tensor], list[torch.Tensor]]:
    """Decoding of a recurrent variant: one step from the state of all keys but the last, and what the step reads."""
    q, k, v = inputs
    with torch.inference_mode():
        state = module.prefill(k[:, :, :-1], v[:, :, :-1], **{name: x[:, :-1] for name, x in named.items()})
        last = [q, k[:, :, -1:].clone(), v[:, :, -1:].clone()]
        last_named = {name: x[:, -1:].clone() for name, x in named.items()}

    def step() -> torch.Tensor:
        return module.step(state, *last, **last_named)[0]  # type: ignore[no-any-return]

    kept = [leaf for leaf in tree_leaves(state) if isinstance(leaf, torch.Tensor)]
    return step, [*last, *last_named.values(), *kept]


def _config(cell: Cell) -> BlockConfig:
    assert cell.heads and cell.head_dim
    return BlockConfig(
        d_model=cell.heads * cell.head_dim,
        heads=cell.heads,
        kv_heads=cell.kv_heads,
        head_dim=cell.head_dim,
        value_dim=cell.value_dim,
    )


def _flops(
    module: nn.Module, variants: list[Any], shape: Shape, batch: int, query_len: int, key_len: int
) -> int | None:
    """FLOPs of one forward call: the variants' by the one rule, plus 2 per weight and position of every projection."""
    inside = {id(part) for variant in variants for part in variant.modules()}
    total = 0
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Conv1d) and id(part) not in inside:
            total += 2 * part.weight.numel() * batch * query_len
    for variant in variants:
        own = attention_flops(variant, shape, query_len, key_len)
        if own is None:
            return None
        total += batch * own
    return total


def _normal(size: tuple[int, ...], seed: int, purpose: str, dtype: torch.dtype, device: str) -> torch.Tensor:
    made = torch.randn(size, generator=_generator(seed, purpose))
    return made.to(device=device, dtype=dtype)


def _tokens(size: tuple[int, int], seed: int, device: str) -> torch.Tensor:
    return torch.randint(VOCAB, size, generator=_generator(seed, "tokens")).to(device)


def _generator(seed: int, purpose: str) -> torch.Generator:
    return torch.Generator().manual_seed(derived(seed, "workload", purpose))
