"""The HTML page: one file that works offline, in light and dark, on a phone and on paper; scripts sort and filter."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.report.answer import Name
from bench.report.canvas import INK
from bench.report.document import METHOD, STATUSES, Document, counts_line
from bench.report.figures import Figure
from bench.report.groups import Cells
from bench.report.source import clean
from bench.report.tables import ABSENT, column_name
from bench.results import FAILED, Row

HERE = Path(__file__).parent


def to_html(document: Document, figures: Sequence[Figure]) -> str:
    """The whole page. Everything from the rows is escaped by the template."""
    from markupsafe import Markup

    pictures: dict[str, list[tuple[Figure, str]]] = {}
    for number, figure in enumerate(figures, start=1):
        pictures.setdefault(figure.slug, []).append((figure, Markup(inline_svg(figure.svg, f"f{number}-"))))
    return render(
        "page.html",
        title=document.title,
        document=document,
        pictures=pictures,
        maps=[_status_map(section.cells, document.heading(section)) for section in document.sections],
        is_name=lambda part: isinstance(part, Name),
        counts_line=counts_line,
        statuses=STATUSES,
        method=METHOD,
    )


def render(template: str, **values: Any) -> str:
    """A page from a template of this folder that extends `base.html`; all values are escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    templates = Environment(
        loader=FileSystemLoader(HERE, encoding="utf-8"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    style, script = (Markup((HERE / name).read_text(encoding="utf-8")) for name in ("page.css", "page.js"))
    return templates.get_template(template).render(style=style, script=script, **values)


@dataclass(frozen=True)
class Place:
    """One cell in the map of statuses: its word, why it has no figure, and how it is coloured."""

    text: str
    kind: str
    why: str = ""


@dataclass(frozen=True)
class StatusMap:
    """What became of every cell of a group."""

    slug: str
    heading: str
    columns: list[str]
    rows: list[tuple[str, list[Place]]]


def _status_map(cells: Cells, heading: str) -> StatusMap:
    where = "seed " if cells.group.is_task else ""
    rows = [
        (label, [_place(line[column]) if column in line else Place(ABSENT, "absent") for column in cells.columns])
        for label, line in cells.by_label.items()
    ]
    return StatusMap(cells.slug, heading, [where + column_name(column) for column in cells.columns], rows)


def _place(row: Row) -> Place:
    if row.status == "ok":
        return Place("ok †" if row.flags else "ok", "fine")
    return Place(row.status, "failed" if row.status in FAILED else "not", clean(row.reason or STATUSES[row.status]))


def inline_svg(svg: str, prefix: str) -> str:
    """An SVG to stand inside a page: no XML head, ids of its own, ink and paper of the page, no fixed size."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'(\bid="|xlink:href="#|url\(#)', rf"\g<1>{prefix}", body)
    body = body.replace(INK, "currentColor").replace("fill: #ffffff", "fill: none")
    head, rest = body.split(">", 1)
    head = re.sub(r' (width|height)="[^"]*"', "", head)
    return f'{head} aria-hidden="true" focusable="false">{rest}'.rstrip()
