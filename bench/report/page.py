"""The HTML page: one file that works offline, in light and dark, on a phone and on paper, without scripts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from bench.report.answer import Name
from bench.report.canvas import INK
from bench.report.document import METHOD, STATUSES, Document, counts_line
from bench.report.figures import Figure


def to_html(document: Document, figures: Sequence[Figure]) -> str:
    """The whole page. Everything from the rows is escaped by the template."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    here = Path(__file__).parent
    templates = Environment(
        loader=FileSystemLoader(here, encoding="utf-8"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    pictures: dict[str, list[tuple[Figure, str]]] = {}
    for number, figure in enumerate(figures, start=1):
        pictures.setdefault(figure.slug, []).append((figure, Markup(inline_svg(figure.svg, f"f{number}-"))))
    return templates.get_template("page.html").render(
        document=document,
        pictures=pictures,
        style=Markup((here / "page.css").read_text(encoding="utf-8")),
        is_name=lambda part: isinstance(part, Name),
        counts_line=counts_line,
        statuses=STATUSES,
        method=METHOD,
    )


def inline_svg(svg: str, prefix: str) -> str:
    """An SVG to stand inside a page: no XML head, ids of its own, ink and paper of the page, no fixed size."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'(\bid="|xlink:href="#|url\(#)', rf"\g<1>{prefix}", body)
    body = body.replace(INK, "currentColor").replace("fill: #ffffff", "fill: none")
    head, rest = body.split(">", 1)
    head = re.sub(r' (width|height)="[^"]*"', "", head)
    return f'{head} aria-hidden="true" focusable="false">{rest}'.rstrip()
