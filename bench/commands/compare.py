"""`compare`: two runs -> verdicts, as a table in the terminal, Markdown, JSON or a page."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.compare import AXES, QUANTITIES, WORSE, Call, Quantity, Verdict, compare, exit_code, mean_ratio
from bench.errors import UserError, unknown
from bench.machine import environment_key
from bench.noise import NoiseFloor, noise_file, read_noise
from bench.report.digits import MIB, Estimate, number
from bench.report.markdown import escape
from bench.report.source import Source, read_sources
from bench.results import strict_json
from bench.screen import Screen

FORMATS = ("table", "md", "json", "html")
TITLES: dict[Quantity, tuple[str, float]] = {
    "time": ("Time of one call [ms]; ratio: new / baseline", 1e3),
    "memory": ("Peak memory of one call [MiB]; ratio: new / baseline", 1 / MIB),
    "accuracy": ("Score on the test split; change: new - baseline", 1.0),
}
HEADINGS = ("cell", "baseline", "new", "change [95 %]", "verdict")
BETTER = frozenset({"faster", "smaller", "better"})
LABELLED = ("variant", "knobs", "seq_len", "key_len", "task")  # in every label, or said by another axis
PLAIN_AXES = ("variant", "workload", "pass", "preset", "device", "dtype")  # values that say what they are


@dataclass(frozen=True)
class Comparison:
    """All there is to print. notes: on the noise floor, on versions, on what was left out."""

    baseline: Source
    new: Source
    floor: NoiseFloor
    verdicts: list[Verdict]
    notes: list[str]


def run_compare(
    a: str, b: str, *, format: str | None = None, noise_path: str | None = None, out: str | None = None
) -> int:
    """Compare the run in folder `b` with the baseline in folder `a` and print the verdicts; returns the exit code.

    format: one of FORMATS, by default that of the suffix of `out`, else `table`. noise_path: a stored noise floor, by
    default that of the machine in results/noise.
    out: a file to write into, by default the standard output. UserError: nothing comparable, no rows, a wrong value.
    """
    if format is None:
        suffix = Path(out).suffix.removeprefix(".") if out else ""
        format = suffix if suffix in FORMATS else "table"
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    baseline, new = read_sources([a, b])
    floor, note = _floor(new, noise_path)
    verdicts = compare(baseline.rows, new.rows, floor)
    notes = [note, *_versions(verdicts)]
    notes += [f"{source.run}: {told}" for source in (baseline, new) for told in source.notes]
    found = Comparison(baseline, new, floor, verdicts, notes)
    if format == "table" and out is None:
        _print(found, Screen())
    else:
        _write({"table": _to_text, "md": to_markdown, "json": to_json, "html": to_html}[format](found), out)
    return exit_code(verdicts)


def _floor(new: Source, noise_path: str | None) -> tuple[NoiseFloor, str]:
    """The noise floor that holds for a run, and in words where it is from."""
    facts = new.part("environment")
    path = Path(noise_path) if noise_path else noise_file(facts)
    floor, origin = NoiseFloor(), ""
    if noise_path or path.is_file():
        floor = read_noise(path)
        origin = f" ({path}, measured {floor.measured_at})"
        if facts and floor.environment_key != environment_key(facts):
            raise UserError(f"the noise floor in '{path}' was measured in another environment than '{new.folder}'")
    devices = dict.fromkeys(row.device for row in new.rows)
    shares = ", ".join(f"{100 * floor.share(device):.1f} % on {device}" for device in devices)
    assumed = ", ".join(device for device in devices if device not in floor.shares)
    hint = f"; assumed, not measured on {assumed} (python -m bench noise)" if assumed else ""
    return floor, f"noise floor: {shares}{origin}{hint}"


def _versions(verdicts: Sequence[Verdict]) -> list[str]:
    names = dict.fromkeys(verdict.cell["variant"] for verdict in verdicts if verdict.versions)
    return [f"another version of the source than in the baseline: {', '.join(names)}"] if names else []


# --- what every format says ---


def summary(verdicts: Sequence[Verdict]) -> list[str]:
    """Counts of the verdicts, worst first, and the mean time ratio with what it is over."""
    counts = Counter(verdict.verdict for verdict in verdicts)
    told = ", ".join(f"{counts[call]} {call}" for call in get_args(Call) if counts[call])
    lines = [f"{len(verdicts)} figures: {told}."]
    mean = mean_ratio(verdicts)
    if mean.value is not None:
        failed = f", {mean.failed} failed" if mean.failed else ""
        cells = f"{mean.count} of {mean.count + mean.failed} cells{failed}"
        lines.append(f"Time, geometric mean of new / baseline: {mean.value:.2f} over {cells}.")
    return lines


def _own_axes(cells: Sequence[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """(axes on which cells differ, what they share in words); variant, knobs and length are in every label."""
    names = [name for name in AXES if name not in LABELLED]
    differing = [name for name in names if any(cell[name] != cells[0][name] for cell in cells)]
    first = cells[0]
    return differing, [_axis(name, first[name]) for name in names if name not in differing and first[name] is not None]


def _axis(name: str, value: Any) -> str:
    if name == "causal":
        return "causal" if value else "bidirectional"
    return str(value) if name in PLAIN_AXES else f"{name}={value}"


def label(cell: dict[str, Any], axes: Sequence[str]) -> str:
    """A cell in a few words, by the axes on which it may differ from others: `local(window=128) forward n=512`."""
    knobs = ",".join(f"{name}={value}" for name, value in cell["knobs"].items() if value is not None)
    parts = [f"{cell['variant']}({knobs})" if knobs else cell["variant"]]
    parts += [_axis(name, cell[name]) for name in axes if cell[name] is not None]
    return " ".join(parts) + (f" n={cell['seq_len']}" if cell["seq_len"] is not None else "")


@dataclass(frozen=True)
class Section:
    """The verdicts on one quantity. shared: what all its cells have in common; lines: five texts a verdict."""

    title: str
    shared: str
    verdicts: list[Verdict]
    lines: list[tuple[str, ...]]
    reasons: list[str]


def sections(verdicts: Sequence[Verdict]) -> list[Section]:
    """The verdicts by quantity, as text."""
    made = []
    for quantity in QUANTITIES:
        chosen = [verdict for verdict in verdicts if verdict.quantity == quantity]
        if chosen:
            axes, shared = _own_axes([verdict.cell for verdict in chosen])
            lines = [_line(verdict, axes) for verdict in chosen]
            made.append(Section(TITLES[quantity][0], ", ".join(shared), chosen, lines, _reasons(chosen, axes)))
    return made


def _line(verdict: Verdict, axes: Sequence[str]) -> tuple[str, ...]:
    """One line of a table."""
    scale = TITLES[verdict.quantity][1]
    figures = ["-" if value is None else number(value * scale) for value in (verdict.baseline, verdict.new)]
    return (label(verdict.cell, axes), *figures, _change(verdict), verdict.verdict)


def _change(verdict: Verdict) -> str:
    """`1.10 [1.05, 1.15]`; three decimals where two would hide a change."""
    change, form = (verdict.ratio, ".2f") if verdict.difference is None else (verdict.difference, "+.3f")
    if change is None:
        return "-"
    if form == ".2f" and abs(change - 1) < 0.1:
        form = ".3f"
    if verdict.low is None or verdict.high is None:
        return f"{change:{form}}"
    return f"{change:{form}} [{verdict.low:{form}}, {verdict.high:{form}}]"


def _reasons(verdicts: Sequence[Verdict], axes: Sequence[str]) -> list[str]:
    """Why a verdict is none or hurts without a figure, cells of one reason together."""
    cells: dict[tuple[str, str], list[str]] = {}
    for verdict in verdicts:
        if verdict.reason:
            cells.setdefault((verdict.verdict, verdict.reason), []).append(label(verdict.cell, axes))
    return [f"{call}: {reason}: {', '.join(dict.fromkeys(names))}" for (call, reason), names in cells.items()]


def _heading(found: Comparison) -> str:
    return f"{found.new.run} against the baseline {found.baseline.run}"


# --- formats ---


def _write(text: str, out: str | None) -> None:
    if out is None:
        print(text, end="")
        return
    try:
        Path(out).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write '{out}': {error.strerror}; choose another --out") from error


def to_json(found: Comparison) -> str:
    """The comparison as strict JSON."""
    mean = mean_ratio(found.verdicts)
    value = {
        "baseline": {"run": found.baseline.run, "folder": str(found.baseline.folder)},
        "new": {"run": found.new.run, "folder": str(found.new.folder)},
        "noise_floor": {
            device: found.floor.share(device) for device in dict.fromkeys(r.device for r in found.new.rows)
        },
        "counts": Counter(verdict.verdict for verdict in found.verdicts),
        "time_ratio": {"geometric_mean": mean.value, "cells": mean.count, "failed": mean.failed},
        "notes": found.notes,
        "verdicts": [verdict.model_dump(mode="json") for verdict in found.verdicts],
    }
    return strict_json(value, indent=2) + "\n"


def to_markdown(found: Comparison) -> str:
    """The comparison as Markdown: what got worse is bold."""
    lines = [f"# {escape(_heading(found))}", "", *map(escape, summary(found.verdicts))]
    for section in sections(found.verdicts):
        lines += ["", f"## {escape(section.title)}", "", f"{escape(section.shared)}.", ""]
        lines += [f"| {' | '.join(map(escape, HEADINGS))} |", "| :-- | --: | --: | --: | :-- |"]
        for *figures, call in section.lines:
            shown = [*map(escape, figures), f"**{call}**" if call in WORSE else call]
            lines.append(f"| {' | '.join(shown)} |")
        lines += ["", *(f"- {escape(reason)}" for reason in section.reasons)]
    return "\n".join([*lines, "", *(f"- {escape(note)}" for note in found.notes)]) + "\n"


def to_html(found: Comparison) -> str:
    """The comparison as a page like that of a report: tables that sort and filter, what got worse in red."""
    from markupsafe import Markup

    from bench.report.page import inline_svg, render
    from bench.report.verdict_figure import Change, verdict_figure

    floors = {found.floor.share(row.device) for row in found.new.rows}

    def pictures(section: Section, number: int) -> Iterator[tuple[Any, str]]:
        ratios = section.verdicts[0].quantity != "accuracy"
        changes = [
            Change(line[0], Estimate(value, verdict.low, verdict.high), _kind(verdict.verdict))
            for verdict, line in zip(section.verdicts, section.lines, strict=True)
            if (value := verdict.ratio if ratios else verdict.difference) is not None
        ]
        floor = max(floors) if section.verdicts[0].quantity == "time" else None
        figure = verdict_figure(section.title, changes, ratios=ratios, floor=floor, slug=f"verdicts-{number}")
        if figure is not None:
            yield figure, Markup(inline_svg(figure.svg, f"v{number}-"))

    return render(
        "verdicts.html",
        title=_heading(found),
        summary=summary(found.verdicts),
        sections=sections(found.verdicts),
        headings=HEADINGS,
        rows=_page_rows,
        pictures=pictures,
        notes=found.notes,
    )


def _page_rows(section: Section) -> Iterator[dict[str, Any]]:
    for verdict, (cell, *texts, call) in zip(section.verdicts, section.lines, strict=True):
        change = verdict.ratio if verdict.difference is None else verdict.difference
        values = (verdict.baseline, verdict.new, change)
        yield {"label": cell, "figures": list(zip(texts, values, strict=True)), "kind": _kind(call), "call": call}


def _kind(call: str) -> str:
    return "worse" if call in WORSE else "better" if call in BETTER else ""


def _to_text(found: Comparison) -> str:
    text = io.StringIO()
    _print(found, Console(file=text, width=80, no_color=True))
    return text.getvalue()


def _print(found: Comparison, console: Console) -> None:
    console.print(Text(_heading(found), style="bold"))
    for section in sections(found.verdicts):
        console.print()
        console.print(Text(section.title, style="bold"))
        console.print(Text(section.shared, style="dim"))
        console.print(_table(section))
        for reason in section.reasons:
            console.print(Text(f"- {reason}"))
    console.print()
    for note in found.notes:
        console.print(Text(note))
    for line in summary(found.verdicts):
        console.print(Text(line, style="bold"))


def _table(section: Section) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for place, heading in enumerate(HEADINGS):
        table.add_column(Text(heading), justify="right" if 0 < place < 4 else "left", no_wrap=place > 0)
    for verdict, line in zip(section.verdicts, section.lines, strict=True):
        style = "red" if verdict.verdict in WORSE else "green" if verdict.verdict in BETTER else ""
        table.add_row(*map(Text, line), style=style)
    return table
