"""What the attentions of a trained model are given: q, k and v of each layer, recorded on a sequence of its test split.

H heads, N positions of the sequence, D width of q and k, E of v, C width of the model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from bench import kept, registry, tasks
from bench.errors import UserError
from bench.measure.fidelity import Inputs, has_weights, recovered
from bench.measure.trials import Weights
from bench.model.block import Mixing
from bench.model.init import derived
from bench.model.of_task import block_config, build
from bench.tasks import Data, Preset
from bench.variant import Shape, Unsupported, admit


class Recording(NamedTuple):
    """shape: what a variant is told that takes the inputs. Of each layer its inputs, and the trained variant itself."""

    about: kept.About
    shape: Shape
    layers: list[Inputs]
    modules: list[nn.Module]


def keep(path: Path, of: dict[str, Any], preset: Preset, data: Data, weights: Weights) -> None:
    """Keep a model in a file, unless it has other attentions than of a sequence to itself.

    of: the variant, its knobs and source, the task and its preset by name, file, direction and seed.
    """
    if preset.model not in ("language", "classifier"):
        return
    shape = block_config(preset).shape(max_len=preset.seq_len, causal=of["causal"])
    assert shape.value_dim is not None
    sizes = {"heads": shape.heads, "head_dim": shape.head_dim, "value_dim": shape.value_dim}
    about = kept.About(**of, **sizes, length=len(_sequence(data)))
    kept.write(path, about, {name: tensor.cpu().numpy() for name, tensor in weights.items()})


def record(path: Path) -> Recording:
    """Run a kept model on the first sequence of its test split, without what is padded at its end.

    Raises UserError when the file is no model, or one of another version of the project.
    """
    of = kept.read_about(path)
    preset = tasks.find(of.task).presets[of.preset]
    cls = registry.load(of.source)
    model = build(lambda shape: cls(shape, **of.knobs), preset, causal=of.causal, seed=of.seed).eval()
    try:
        model.load_state_dict({name: torch.from_numpy(value) for name, value in kept.read_weights(path).items()})
    except RuntimeError as error:
        raise UserError(f"the model '{path}' is from another version of the project; train it again") from error
    data = tasks.find(of.task).open(preset, seed=of.seed, text=of.file)
    mixers = [part for part in model.modules() if isinstance(part, Mixing)]
    given: list[tuple[torch.Tensor, ...]] = []
    for mixer in mixers:
        mixer.register_forward_pre_hook(lambda module, args: given.append((_convolved(module, args[0]),)))
        mixer.attention.register_forward_pre_hook(lambda _, args: given.append(args[:3]))
    with torch.no_grad():
        model(_sequence(data)[None])
    layers = [_inputs((*qkv, *x), of.seed) for x, qkv in zip(given[::2], given[1::2], strict=True)]
    shape = Shape(of.heads, of.head_dim, of.heads, of.value_dim, of.length, of.causal, layers[0].x.shape[2])
    return Recording(of, shape, layers, [mixer.attention for mixer in mixers])


def learned_weights(recording: Recording, cls: Any, knobs: dict[str, Any]) -> list[torch.Tensor]:
    """Of each layer the weights (H,N,N) that a variant gives on the recorded q and k; raises Unsupported.

    cls: its class, None for the variant that was trained, which is taken with what it learned.
    """
    weights = []
    for inputs, trained in zip(recording.layers, recording.modules, strict=True):
        module: Any = trained if cls is None else cls(recording.shape, **knobs).eval()
        if not has_weights(module.claims):
            raise Unsupported("there are no weights to show: the output is not a weighted sum of the values")
        length = inputs.q.shape[2]
        admit(module, recording.shape, dtype="float32", device="cpu", query_len=length, key_len=length)
        weights.append(recovered(module, inputs, torch.float32, "cpu"))
    return weights


def _sequence(data: Data) -> torch.Tensor:
    """The first sequence of the test split, (N)."""
    batch = next(iter(data.held_out("test")))
    length = batch.tokens.shape[1] if batch.mask is None else int(batch.mask[0].sum())
    return torch.from_numpy(batch.tokens[0, :length])


def _convolved(mixer: Mixing, x_1NC: torch.Tensor) -> torch.Tensor:
    """What is projected: the input of a mixer after its convolution."""
    return x_1NC if mixer.conv is None else mixer.conv(x_1NC, None)


def _inputs(parts: tuple[torch.Tensor, ...], seed: int) -> Inputs:
    q, k, v, x = (part.double() for part in parts)
    k, v = (part.repeat_interleave(q.shape[1] // part.shape[1], 1) for part in (k, v))
    generator = torch.Generator().manual_seed(derived(seed, "fidelity"))
    gradient = torch.randn((*q.shape[:3], v.shape[3]), generator=generator, dtype=torch.float64)
    return Inputs(q, k, v, x, gradient)
