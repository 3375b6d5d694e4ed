"""A small trained model in a file, as a run keeps one."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from bench import registry, tasks
from bench.measure import recorded
from bench.measure.training import train


def trained(path: Path, variant: str = "flash", task: str = "mqar", steps: int = 2) -> Path:
    """A model after a few steps, kept at `path`."""
    entry, of_task = registry.find(variant, registry.entries()), tasks.find(task)
    name, preset = next(iter(of_task.presets.items()))
    cls, knobs = registry.load(entry.source()), registry.resolve_knobs(entry, {})
    of = {
        "variant": variant, "knobs": knobs, "source": entry.source(), "task": task, "preset": name, "file": None,
        "causal": True, "seed": 0,
    }  # fmt: skip
    small = replace(preset, steps=steps, eval_every=steps, validation_size=preset.batch, test_size=preset.batch)
    rates, keep = preset.learning_rates[:1], partial(recorded.keep, path, of)
    train(lambda shape: cls(shape, **knobs), of_task, small, causal=True, seed=0, learning_rates=rates, keep=keep)
    return path
