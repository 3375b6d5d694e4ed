"""The report as data: what every output shows, in the order in which it is shown."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.report.accuracy import accuracy_section
from bench.report.answer import Sentence, short_answer
from bench.report.beside import beside_tables
from bench.report.costs import cost_tables
from bench.report.decision import decision_tables
from bench.report.directions import bidirectional, directions_table
from bench.report.fidelity import fidelity_section, is_fidelity
from bench.report.groups import Cells, group_cells
from bench.report.scaling import crossover_table, growth_table
from bench.report.source import Source, clean, read_sources, status_counts
from bench.report.tables import Section, Table, flag_notes, reasons
from bench.report.tradeoff import Trade, tradeoff_table, trades

CHOICES = "choices"  # slug of what stands above all sections
METHOD = (
    "Each replicate is a fresh process that builds the module and its inputs from seeded generators, warms up, and "
    "times calls with nothing but the variant's own work inside the clock. Rounds measure every cell once, in random "
    "order.",
    "A time is the median over replicates of the median over samples; its 95 % interval comes from the replicates. "
    "One replicate has no interval. Figures whose intervals overlap are not told apart: all of them are marked as "
    "best.",
    "Peak memory is the highest live total of the allocator during a call less what was live before it, in a pass of "
    "its own. MiB are 2^20 bytes. A device without such a counter has no figure and says why.",
    "A cell without a figure shows its status and is left out of every mean; nothing is filled in.",
)
STATUSES = {
    "ok": "measured",
    "unsupported": "the variant says it cannot do this",
    "oom": "it needs more memory than there is or was allowed",
    "timeout": "it ran longer than was allowed",
    "diverged": "training gave values that are not finite",
    "incorrect": "the conformance gate failed, so it has no time",
    "fallback": "another kernel ran than the one asked for",
    "crashed": "the process died",
    "error": "an exception was raised",
    "skipped": "it was not started",
}


@dataclass(frozen=True)
class Provenance:
    """Where the figures of one run come from: how many cells, what was left out, on what and by which command.

    memory_limit: bytes that a call on the CPU was allowed.
    """

    run: str
    command: str | None
    counts: dict[str, int]
    notes: list[str]
    facts: list[tuple[str, str]]
    environment: list[tuple[str, str]]
    memory_limit: int | None = None


@dataclass(frozen=True)
class Document:
    """A whole report: what to take (answer, decisions, trades), the tables of each group, where it comes from."""

    title: str
    answer: list[Sentence]
    decisions: list[Table]
    trades: list[Trade]
    sections: list[Section]
    provenance: list[Provenance]

    @property
    def several(self) -> bool:
        """Whether more than one run is shown."""
        return len(self.provenance) > 1

    @property
    def choices(self) -> list[Table]:
        """The tables of what to take: by length and device, cost beside quality, several runs beside each other."""
        beside = [tradeoff_table(trade, self.heading(trade.cells)) for trade in self.trades]
        return [*self.decisions, *beside, *beside_tables([section.cells for section in self.sections])]

    def memory_limit(self, cells: Cells) -> int | None:
        """Bytes a call of these cells was allowed; None where it is not known, as on an accelerator."""
        limits = {found.run: found.memory_limit for found in self.provenance}
        return limits[cells.group.run] if cells.group.device == "cpu" else None

    def heading(self, found: Section | Cells) -> str:
        """The heading of a section, with its run where there are several."""
        group = (found.cells if isinstance(found, Section) else found).group
        return f"{group.run}: {group.title}" if self.several else group.title


def read_document(folders: Path | str | Iterable[Path | str]) -> Document:
    """Read one or more run folders into a report; UserError when one has no rows file."""
    sources = read_sources(folders)
    groups = group_cells(sources)
    by_group = {cells.group: cells for cells in groups}
    sections = [_section(cells, by_group.get(bidirectional(cells.group))) for cells in groups]
    title = "Attention benchmark: " + ", ".join(source.run for source in sources)
    return Document(
        title, short_answer(groups), decision_tables(groups), trades(groups), sections, list(map(_provenance, sources))
    )


def _section(cells: Cells, other: Cells | None) -> Section:
    if cells.group.is_task:
        return accuracy_section(cells)
    return fidelity_section(cells) if is_fidelity(cells) else _cost_section(cells, other)


def _cost_section(cells: Cells, other: Cells | None) -> Section:
    """The tables of one group of timed cells, and why figures are missing. other: the same, bidirectional."""
    more = growth_table(cells), crossover_table(cells), directions_table(cells, other)
    tables = [*cost_tables(cells), *(table for table in more if table)]
    return Section(cells, tuple(tables), tuple(reasons(cells)), (*flag_notes(cells), *cells.notes))


def counts_line(counts: dict[str, int]) -> str:
    """`36 cells: 30 ok, 4 skipped, 2 oom`."""
    total = sum(counts.values())
    parts = ", ".join(f"{n} {status}" for status, n in counts.items())
    return f"{total} {'cell' if total == 1 else 'cells'}{': ' if parts else ''}{parts}"


def _provenance(source: Source) -> Provenance:
    command = source.info.get("command")
    return Provenance(
        run=source.run,
        command=clean(command) if command else None,
        counts=status_counts(source.rows),
        notes=source.notes,
        facts=_facts(source),
        environment=_flat(source.part("environment")),
        memory_limit=_memory_limit(source),
    )


def _memory_limit(source: Source) -> int | None:
    """Bytes a call on the CPU was allowed: what the sweep says, else the memory of the machine."""
    asked, there = source.part("sweep").get("memory_limit"), source.part("environment").get("memory_bytes")
    if isinstance(asked, int | float):
        return int(asked * 2**30)
    return there if isinstance(there, int) else None


def _facts(source: Source) -> list[tuple[str, str]]:
    facts: list[tuple[str, object]] = [("started", source.info.get("started_at"))]
    times = [row.time for row in source.rows if row.status == "ok" and row.time]
    facts.append(("replicates a cell", _span([time.replicates for time in times])))
    stops = Counter(time.stop for time in times if time.stop)
    facts.append(("cells stopped because", ", ".join(f"{why} ({n})" for why, n in sorted(stops.items())) or None))
    facts.append(("threads", _span([row.threads for row in source.rows if row.threads is not None])))
    facts.append(("seeds", ", ".join(map(str, sorted({row.seed for row in source.rows}))) or None))
    facts.append(("seed of the order", source.info.get("order_seed")))
    return [(name, clean(value)) for name, value in facts if value is not None]


def _span(values: Sequence[int]) -> str | None:
    if not values:
        return None
    return str(min(values)) if min(values) == max(values) else f"{min(values)} to {max(values)}"


def _flat(facts: dict[str, object]) -> list[tuple[str, str]]:
    """Names and values of a dict, nested dicts on one line, bytes also in GiB, what is not known left out."""
    lines = []
    for name, value in facts.items():
        if isinstance(value, dict):
            text = ", ".join(f"{inner} {found}" for inner, found in value.items() if found is not None)
        elif name.endswith("_bytes") and isinstance(value, int):
            name, text = name.removesuffix("_bytes"), f"{value / 2**30:.1f} GiB"
        else:
            text = json.dumps(value, ensure_ascii=False) if isinstance(value, list) else str(value)
        if value is not None and text:
            lines.append((clean(name), clean(text)))
    return lines
