"""Tables, figures and the page of one or more runs; a room above the results, below the command line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.errors import UserError, unknown

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["DEFAULT_FORMATS", "FORMATS", "show", "write"]

FORMATS = ("md", "html", "csv", "png", "svg", "tex", "parquet")
DEFAULT_FORMATS = ("md", "html", "csv", "png", "svg")
Folders = Path | str | Iterable[Path | str]


def write(run_folder: Folders, *, formats: Sequence[str] | None = None, out: Path | None = None) -> list[Path]:
    """Write the report of one or more run folders and return the files: page, Markdown, tables, figures.

    formats: any of FORMATS, by default DEFAULT_FORMATS. out: where to write, by default the run's own folder.
    UserError: no rows, an unknown format, several runs without `out`, a place that cannot be written, no pyarrow.
    """
    from bench.report import files
    from bench.report.document import read_document

    chosen = list(dict.fromkeys(formats if formats is not None else DEFAULT_FORMATS))
    for name in chosen:
        if name not in FORMATS:
            raise unknown("format", name, FORMATS)
    folders = [run_folder] if isinstance(run_folder, Path | str) else list(run_folder)
    if out is None and len(folders) != 1:
        raise UserError(f"the report of {len(folders)} runs has no folder of its own: give one with --out DIR")
    document = read_document(folders)
    return files.write_files(document, chosen, Path(folders[0] if out is None else out))


def show(run_folder: Folders, console: Console) -> None:
    """Print the tables and the short answer of one or more run folders; UserError when one has no rows."""
    from bench.report.document import read_document
    from bench.report.terminal import print_document

    print_document(read_document(run_folder), console)
