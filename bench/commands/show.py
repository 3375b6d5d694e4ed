"""`show`: which key each query of a variant sees, or which weights it gives them, on the screen or in a file."""

from __future__ import annotations

import itertools
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from bench import kept, registry
from bench.errors import UserError
from bench.launch import Launcher
from bench.screen import Screen

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    _check_out(out)
    entry, knobs = _variant(name, settings)
    assert entry.claims is not None
    causal = entry.claims.causal if causal is None else causal
    screen = Screen(markup=False, highlight=False)
    reply = _ask(screen, entry, {"function": "seen", "knobs": knobs, "causal": causal, "length": length})
    if reply is None:
        return 1
    told = _title(entry.name, knobs, causal, reply["rows"])
    if out is None:
        _print(told, reply["rows"], screen)
    else:
        _draw(told, reply["rows"], Path(out))
        screen.print(Text(f"wrote {out}"))
    return 0


def show_learned(name: str, *, model: str, settings: dict[str, dict[str, Any]], out: str | None) -> int:
    """Draw the weights that a variant gives the q and k of a trained model, for each layer and head; the exit code.

    The variant that was trained is that of the model, with what it learned. UserError: as `show`, no file to draw into,
    a file that is no kept model.
    """
    if out is None:
        raise UserError("learned weights are drawn into a file: add --out weights.svg")
    _check_out(out)
    entry, knobs = _variant(name, settings)
    path = Path(model).absolute()
    of = kept.read_about(path)
    screen = Screen(markup=False, highlight=False)
    asked = {"function": "learned weights", "variant": entry.name, "knobs": knobs, "model": str(path)}
    reply = _ask(screen, entry, asked)
    if reply is None:
        return 1
    trained = f"trained on {of.task} ({of.preset}), {'causal' if of.causal else 'bidirectional'}, seed {of.seed}"
    whose = trained if of.variant == entry.name else f"on q and k of {of.variant} {trained}"
    _draw_weights(f"{entry.name} {whose}", reply["weights"], Path(out))
    screen.print(Text(f"wrote {out}"))
    return 0


def _check_out(out: str | None) -> None:
    if out is not None and Path(out).suffix not in SUFFIXES:
        raise UserError(f"--out takes a file that ends in {' or '.join(SUFFIXES)}, got '{out}'")


def _variant(name: str, settings: dict[str, dict[str, Any]]) -> tuple[registry.Entry, dict[str, Any]]:
    """A variant by its name or file, with its knobs."""
    known = registry.entries([name] if registry.is_file(name) else [])
    entry = registry.find(Path(name).stem if registry.is_file(name) else name, known)
    for other in settings.keys() - {entry.name}:
        raise UserError(f"--set names variant '{other}', which is not shown here")
    return entry, registry.resolve_knobs(entry, settings.get(entry.name, {}))


def _ask(screen: Screen, entry: registry.Entry, request: dict[str, Any]) -> dict[str, Any] | None:
    """The reply of a worker; None, and said why, when the variant cannot do it."""
    with Launcher() as launcher:
        reply = launcher.call({**request, "source": entry.source()}, timeout_s=TIMEOUT_S)
    if reply["status"] == "ok":
        return reply
    screen.print(Text(f"{entry.name}: {reply['status']}: {reply['reason']}"))
    return None


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
        _save(canvas, path)


def _draw_weights(title: str, weights: list[list[list[list[float]]]], path: Path) -> None:
    """A row of panels for each layer, a column for each head; all on one scale of colours."""
    from bench.report.canvas import INK, look

    with look():
        from matplotlib.figure import Figure

        layers, heads = len(weights), len(weights[0])
        canvas = Figure(figsize=(1.2 + 2.4 * heads, 0.8 + 2.4 * layers), layout="constrained")
        canvas.suptitle("\n".join(textwrap.wrap(title, 30 + 30 * heads)), fontsize="medium", color=INK)
        panels = canvas.subplots(layers, heads, squeeze=False, sharex=True, sharey=True)
        highest = max(weight for layer in weights for head in layer for row in head for weight in row)
        for layer, head in itertools.product(range(layers), range(heads)):
            axes = panels[layer][head]
            mesh = axes.pcolormesh(weights[layer][head], cmap="viridis", vmin=0, vmax=highest, rasterized=True)
            axes.set_title(f"layer {layer + 1}, head {head + 1}", fontsize="small")
            axes.set_aspect("equal")
            axes.grid(visible=False)
        panels[0][0].invert_yaxis()
        canvas.supxlabel("key", fontsize="medium")
        canvas.supylabel("query", fontsize="medium")
        canvas.colorbar(mesh, ax=panels, label="weight of a key", shrink=0.8)
        _save(canvas, path)


def _save(canvas: Figure, path: Path) -> None:
    metadata = {"Date": None} if path.suffix == ".svg" else {}
    try:
        canvas.savefig(path, bbox_inches="tight", dpi=200, metadata=metadata)
    except OSError as error:
        raise UserError(f"cannot write '{path}': {error.strerror}; choose another --out") from error
