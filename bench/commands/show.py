"""`show`: which key each query of a variant sees, drawn in the terminal or into a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.text import Text

from bench import registry
from bench.errors import UserError
from bench.launch import Launcher
from bench.screen import Screen

LONGEST = 72  # positions that fit a terminal of 80 columns
TIMEOUT_S = 120.0
SUFFIXES = (".svg", ".png")


def show(name: str, *, length: int, causal: bool | None, settings: dict[str, dict[str, Any]], out: str | None) -> int:
    """Draw the pattern of a variant; returns the exit code, 1 when it cannot run here.

    causal: by default what the variant claims, causal where it claims both. UserError: an unknown variant, a length
    that does not fit, a file that is neither SVG nor PNG.
    """
    if not 1 <= length <= LONGEST:
        raise UserError(f"--length takes 1 to {LONGEST} positions, got {length}")
    if out is not None and Path(out).suffix not in SUFFIXES:
        raise UserError(f"--out takes a file that ends in {' or '.join(SUFFIXES)}, got '{out}'")
    known = registry.entries([name] if registry.is_file(name) else [])
    entry = registry.find(Path(name).stem if registry.is_file(name) else name, known)
    for other in settings.keys() - {entry.name}:
        raise UserError(f"--set names variant '{other}', which is not shown here")
    assert entry.claims is not None
    knobs = registry.resolve_knobs(entry, settings.get(entry.name, {}))
    causal = entry.claims.causal if causal is None else causal
    request = {"function": "seen", "source": entry.source(), "knobs": knobs, "causal": causal, "length": length}
    with Launcher() as launcher:
        reply = launcher.call(request, timeout_s=TIMEOUT_S)
    screen = Screen(markup=False, highlight=False)
    if reply["status"] != "ok":
        screen.print(Text(f"{entry.name}: {reply['status']}: {reply['reason']}"))
        return 1
    told = _title(entry.name, knobs, causal, reply["rows"])
    if out is None:
        _print(told, reply["rows"], screen)
    else:
        _draw(told, reply["rows"], Path(out))
        screen.print(Text(f"wrote {out}"))
    return 0


def _title(name: str, knobs: dict[str, Any], causal: bool, rows: list[str]) -> str:
    set_ = ", ".join(f"{knob}={value}" for knob, value in knobs.items() if value is not None)
    direction = "causal" if causal else "bidirectional"
    pairs = sum(row.count("1") for row in rows)
    return f"{name}{f' ({set_})' if set_ else ''}, {direction}: {pairs:,} of {len(rows) ** 2:,} pairs"


def _print(title: str, rows: list[str], screen: Screen) -> None:
    try:
        "█·".encode(screen.encoding)
        signs = "█·"
    except UnicodeEncodeError:
        signs = "#."
    wide = 2 if 2 * len(rows) <= LONGEST else 1
    screen.print(Text(title, style="bold"))
    screen.print(Text("a row is a query, a column a key; filled: it is seen", style="dim"))
    for row in rows:
        screen.print(Text("".join(signs[sign == "0"] * wide for sign in row)), no_wrap=True, crop=False)


def _draw(title: str, rows: list[str], path: Path) -> None:
    from bench.report.canvas import look, new_axes
    from bench.report.styles import COLOURS

    with look():
        from matplotlib.colors import ListedColormap

        canvas, axes = new_axes("query", title, "")
        values = [[float(sign) for sign in row] for row in rows]
        axes.pcolormesh(values, cmap=ListedColormap(["#80808022", COLOURS[0]]), vmin=0, vmax=1)
        axes.set_aspect("equal")
        axes.invert_yaxis()
        axes.set_xlabel("key")
        axes.grid(visible=False)
        try:
            canvas.savefig(path, bbox_inches="tight", dpi=200, metadata={"Date": None} if path.suffix == ".svg" else {})
        except OSError as error:
            raise UserError(f"cannot write '{path}': {error.strerror}; choose another --out") from error
