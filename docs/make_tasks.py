"""Writes docs/tasks.md from what the tasks declare: `python docs/make_tasks.py`."""

from __future__ import annotations

from pathlib import Path

from bench import tasks

PAGE = Path(__file__).parent / "tasks.md"
INTRO = """# Tasks

What a variant can be trained and scored on: `python -m bench run --workload task:NAME`; the preset stands in the sweep
(`[tasks.NAME]`, `preset = "..."`), the first is the default. This page is made by `python docs/make_tasks.py`.
"""
TABLE = """| preset | what | length | layers × width | steps | learning rates |
| --- | --- | --- | --- | --- | --- |
"""


def page() -> str:
    """The page as it should be."""
    return INTRO + "".join(_part(tasks.find(name)) for name in tasks.names())


def _part(task: tasks.Task) -> str:
    directions = " or ".join("causal" if causal else "both ways" for causal in task.directions)
    what = f"{task.summary[0].upper()}{task.summary[1:]}. Metric: {task.metric.replace('_', ' ')}."
    head = f"\n## {task.name}\n\n{what} {directions.capitalize()}.\n\n{TABLE}"
    return head + "".join(_line(name, preset) for name, preset in task.presets.items())


def _line(name: str, preset: tasks.Preset) -> str:
    rates = ", ".join(f"{rate:g}" for rate in preset.learning_rates)
    size = f"{preset.layers} × {preset.d_model}"
    return f"| `{name}` | {preset.summary} | {preset.seq_len} | {size} | {preset.steps:,} | {rates} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
