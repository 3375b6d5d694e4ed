"""The files of a report, always UTF-8 with plain line ends, whatever the code page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.errors import UserError
from bench.report.document import Document

if TYPE_CHECKING:
    import pandas as pd

    from bench.report.figures import Figure

STEM = "report"
FIGURES = "figures"


def write_files(document: Document, formats: Sequence[str], out: Path) -> list[Path]:
    """Write the wanted formats under `out` and return the files; UserError when `out` cannot be written."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        return _write(document, formats, out)
    except OSError as error:
        raise UserError(f"cannot write the report to '{out}': {error.strerror or error}") from error


def _write(document: Document, formats: Sequence[str], out: Path) -> list[Path]:
    figures = _figures(document, formats)
    pictures = {figure.name: f"{FIGURES}/{figure.name}" for figure in figures}
    written: list[Path] = []
    if "md" in formats:
        from bench.report.markdown import to_markdown

        suffix = next((form for form in ("svg", "png") if form in formats), None)
        shown = [(fig.slug, f"{pictures[fig.name]}.{suffix}", fig.alt) for fig in figures] if suffix else []
        written.append(_text(out / f"{STEM}.md", to_markdown(document, shown)))
    if "html" in formats:
        from bench.report.page import to_html

        written.append(_text(out / f"{STEM}.html", to_html(document, figures)))
    if "tex" in formats:
        from bench.report.latex import to_latex

        written.append(_text(out / f"{STEM}.tex", to_latex(document)))
    for figure in figures:
        if "svg" in formats:
            written.append(_text(out / FIGURES / f"{figure.name}.svg", figure.svg))
        if "png" in formats and figure.png is not None:
            written.append(_bytes(out / FIGURES / f"{figure.name}.png", figure.png))
    return written + _frames(document, formats, out)


def _figures(document: Document, formats: Sequence[str]) -> list[Figure]:
    if not {"html", "svg", "png"} & set(formats):
        return []
    from bench.report.figures import draw_figures

    return draw_figures(document, png="png" in formats)


def _frames(document: Document, formats: Sequence[str], out: Path) -> list[Path]:
    wanted = [form for form in ("csv", "parquet") if form in formats]
    if not wanted:
        return []
    from bench.report.frame import cells_frame, tables_frame

    written = []
    for name, frame in (("cells", cells_frame(document)), ("tables", tables_frame(document))):
        if "csv" in wanted:
            written.append(_text(out / f"{name}.csv", frame.to_csv(index=False, lineterminator="\n")))
        if "parquet" in wanted:
            written.append(_parquet(frame, out / f"{name}.parquet"))
    return written


def _parquet(frame: pd.DataFrame, path: Path) -> Path:
    try:
        frame.to_parquet(path, index=False)
    except ImportError as error:
        raise UserError("parquet needs pyarrow: pip install 'attn-bench[parquet]'") from error
    return path


def _text(path: Path, text: str) -> Path:
    return _bytes(path, text.encode("utf-8"))


def _bytes(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path
