"""The commands: parse, call one function, print. Data goes to stdout, progress and messages to stderr."""

from __future__ import annotations

import errno
import shlex
import signal
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from bench.errors import UserError

OK, FAILED, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 130

app = typer.Typer(
    name="bench",
    help="Measure attention variants inside one common Transformer block: time, memory and accuracy.\n\n"
    "Example: python -m bench run --variant full,flash --seq-len 512,1024",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def main() -> None:
    """Run the command line; a user's error is one line and exit code 2, a bug is a traceback."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        app()
    except UserError as error:
        _say(f"error: {error}")
        sys.exit(WRONG_INPUT)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(OK)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _say("error: the disk is full; free some space and run the same command again to go on (what was done is kept)")
        sys.exit(FAILED)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _split(values: Sequence[str] | None) -> list[str]:
    """A flag that takes a list takes commas and repeats."""
    return [part.strip() for value in values or () for part in value.split(",") if part.strip()]


def _integers(flag: str, values: Sequence[str] | None) -> list[int]:
    try:
        return [int(part) for part in _split(values)]
    except ValueError:
        raise UserError(
            f"{flag} takes whole numbers, got '{','.join(values or ())}' (example: {flag} 512,1024)"
        ) from None


def _settings(values: Sequence[str] | None) -> dict[str, dict[str, Any]]:
    """--set local.window=128 -> {"local": {"window": 128}}; several values (64,128) are an axis."""
    knobs: dict[str, dict[str, Any]] = {}
    for text in values or ():
        name, equals, value = text.partition("=")
        variant, dot, knob = name.partition(".")
        if not (equals and dot and variant and knob and value):
            raise UserError(f"--set takes VARIANT.KNOB=VALUE, got '{text}' (example: --set local.window=128)")
        parts = [_value(part) for part in value.split(",")]
        knobs.setdefault(variant, {})[knob] = parts if len(parts) > 1 else parts[0]
    return knobs


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


Many = list[str] | None


@app.command(
    help="Measure a sweep: a preset, a TOML file or flags. Resumes where an earlier run of the same sweep stopped.\n\n"
    "Example: python -m bench run quick --variant full,flash,local --seq-len 1024,4096 --set local.window=128\n\n"
    "Exit codes: 0 all done, 1 something failed or nothing could be measured, 2 wrong input, 130 interrupted."
)
def run(
    sweep: Annotated[str, typer.Argument(help="A preset (list presets) or a path to a sweep.toml.")] = "quick",
    variant: Annotated[Many, typer.Option(help="Names or .py files of variants.")] = None,
    workload: Annotated[Many, typer.Option(help="attention, block, model, fidelity[:MODEL], task:NAME.")] = None,
    pass_: Annotated[Many, typer.Option("--pass", help="forward, train, decode.")] = None,
    seq_len: Annotated[Many, typer.Option(help="Sequence lengths.")] = None,
    device: Annotated[Many, typer.Option(help="auto (all found), cpu, cuda, mps.")] = None,
    dtype: Annotated[Many, typer.Option(help="float32, bfloat16, float16, float64.")] = None,
    causal: Annotated[bool | None, typer.Option("--causal/--bidirectional", help="Hide the future or not.")] = None,
    batch: Annotated[Many, typer.Option(help="Batch sizes.")] = None,
    heads: Annotated[Many, typer.Option(help="Query heads.")] = None,
    kv_heads: Annotated[Many, typer.Option(help="Key and value heads (divide the heads).")] = None,
    head_dim: Annotated[Many, typer.Option(help="Width of a head.")] = None,
    threads: Annotated[Many, typer.Option(help="CPU threads of a timed cell.")] = None,
    seeds: Annotated[Many, typer.Option(help="Seeds of trainings.")] = None,
    set_: Annotated[Many, typer.Option("--set", help="A knob: VARIANT.KNOB=VALUE[,VALUE].")] = None,
    text: Annotated[str | None, typer.Option(help="Your own text file for task:text.")] = None,
    out: Annotated[str | None, typer.Option(help="Folder of the run (default: results/NAME-HASH).")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Validate and show the plan; measure nothing.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure all again; earlier rows are set aside.")] = False,
    rerun: Annotated[str | None, typer.Option(help="'failed': measure failed cells again.")] = None,
    budget: Annotated[float | None, typer.Option(help="Seconds a cell may take, all replicates together.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds after which a replicate is stopped.")] = None,
    memory_limit: Annotated[float | None, typer.Option(help="GiB a CPU cell may take.")] = None,
) -> None:
    numbers = {
        "seq_len": seq_len, "batch": batch, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim,
        "threads": threads, "seeds": seeds,
    }  # fmt: skip
    names = {"variant": variant, "workload": workload, "pass": pass_, "device": device, "dtype": dtype}
    overrides: dict[str, Any] = {key: _split(value) for key, value in names.items() if value}
    overrides |= {key: _integers("--" + key.replace("_", "-"), value) for key, value in numbers.items() if value}
    limits = {"budget": budget, "timeout": timeout, "memory_limit": memory_limit}
    overrides |= {key: value for key, value in limits.items() if value is not None}
    if causal is not None:
        overrides["causal"] = [causal]
    if set_:
        overrides["knobs"] = _settings(set_)
    if text is not None:
        overrides["tasks"] = {"text": {"file": text}}
    if rerun not in (None, "failed"):
        raise UserError(f"--rerun takes 'failed', got '{rerun}'")
    from bench.commands import run as job

    command = shlex.join(["python", "-m", "bench", *sys.argv[1:]])
    try:
        code = job.run(
            sweep, overrides, out=out, dry_run=dry_run, fresh=fresh, rerun_failed=rerun is not None, command=command
        )
    except KeyboardInterrupt:
        _say("interrupted; what was done is kept, run the same command again to go on")
        code = INTERRUPTED
    raise typer.Exit(code)


@app.command(
    help="Make tables, figures and the page of one or more runs again.\n\n"
    "Example: python -m bench report results/quick-1a2b3c4d --format md,html"
)
def report(
    runs: Annotated[list[str], typer.Argument(help="Folders of runs.")],
    format_: Annotated[
        Many, typer.Option("--format", help="md, html, csv, png, svg, tex, parquet (default: the first five).")
    ] = None,
    out: Annotated[str | None, typer.Option(help="Folder to write into (default: the first run's).")] = None,
) -> None:
    from bench import report as reports
    from bench.screen import Screen

    folders = [Path(name) for name in runs]
    written = reports.write(folders, formats=_split(format_) or None, out=Path(out) if out else None)
    reports.show(folders, Screen())
    for path in written:
        _say(f"wrote {path}")


@app.command(
    help="Write the rows and tables of one or more runs for other tools; units stand in the names.\n\n"
    "Example: python -m bench export results/quick-1a2b3c4d --format csv,parquet --out exported"
)
def export(
    runs: Annotated[list[str], typer.Argument(help="Folders of runs.")],
    format_: Annotated[Many, typer.Option("--format", help="csv, parquet, tex, md (default: csv).")] = None,
    out: Annotated[str | None, typer.Option(help="Folder to write into (default: the run's).")] = None,
) -> None:
    from bench import report as reports

    formats = _split(format_) or ["csv"]
    for path in reports.write([Path(name) for name in runs], formats=formats, out=Path(out) if out else None):
        print(path)


@app.command(
    help="Compare a run with a baseline: a verdict per cell, beyond the noise floor, with a correction for "
    "many cells.\n\n"
    "Example: python -m bench compare results/before results/after --format md\n\n"
    "Exit codes: 0 nothing got worse, 1 something is slower, larger or vanished, 2 nothing comparable."
)
def compare(
    baseline: Annotated[str, typer.Argument(help="Folder of the baseline run.")],
    new: Annotated[str, typer.Argument(help="Folder of the run to judge.")],
    format_: Annotated[
        str | None, typer.Option("--format", help="table, md, json or html (default: by the suffix of --out).")
    ] = None,
    noise_floor: Annotated[
        str | None, typer.Option("--noise", help="A stored noise floor (default: this machine's).")
    ] = None,
    out: Annotated[str | None, typer.Option(help="File to write into (default: the screen).")] = None,
) -> None:
    from bench.commands import compare as job

    raise typer.Exit(job.run_compare(baseline, new, format=format_, noise_path=noise_floor, out=out))


@app.command(
    help="Measure this machine's noise floor, the same code against itself, and store it for compare.\n\n"
    "Example: python -m bench noise"
)
def noise(
    out: Annotated[str | None, typer.Option(help="File to write (default: results/noise/MACHINE.json).")] = None,
) -> None:
    from bench.commands import noise as job

    raise typer.Exit(job.noise(out=out))


@app.command(
    help="Check that a variant does what it claims: oracle, causality, padding, gradients and more.\n\n"
    "Example: python -m bench check local\n\nExample: python -m bench check ./my_attention.py"
)
def check(
    names: Annotated[Many, typer.Argument(help="Names or .py files of variants.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every variant there is.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, mps.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32, float64, bfloat16, float16.")] = "float32",
    set_: Annotated[Many, typer.Option("--set", help="A knob: VARIANT.KNOB=VALUE.")] = None,
) -> None:
    from bench.commands import author

    raise typer.Exit(author.check(names or [], all_, device=device, dtype=dtype, settings=_settings(set_)))


@app.command(
    "list",
    help="What there is, and why something cannot run here.\n\nExample: python -m bench list variants",
)
def list_(what: Annotated[str, typer.Argument(help="variants, tasks, presets or devices.")]) -> None:
    from bench.commands import look

    look.show_list(what)


@app.command(
    help="Draw which key each query of a variant sees, or with --learned the weights it gives the keys that a trained "
    "model gave it.\n\n"
    "Example: python -m bench show local --set local.window=4 --length 16\n\n"
    "Example: python -m bench show flash --learned results/mine/model-1a2b.npz --out weights.svg"
)
def show(
    variant: Annotated[str, typer.Argument(help="Name or .py file of a variant.")],
    length: Annotated[int, typer.Option(help="Positions.")] = 24,
    causal: Annotated[bool | None, typer.Option("--causal/--bidirectional", help="Hide the future or not.")] = None,
    set_: Annotated[Many, typer.Option("--set", help="A knob: VARIANT.KNOB=VALUE.")] = None,
    learned: Annotated[str | None, typer.Option(help="A model-*.npz that a run with task:NAME kept.")] = None,
    out: Annotated[str | None, typer.Option(help="An .svg or .png file (default: the screen).")] = None,
) -> None:
    from bench.commands import show as job

    settings = _settings(set_)
    if learned is not None:
        raise typer.Exit(job.show_learned(variant, model=learned, settings=settings, out=out))
    raise typer.Exit(job.show(variant, length=length, causal=causal, settings=settings, out=out))


@app.command(
    help="Write a commented one-file skeleton of a variant that passes `check`.\n\n"
    "Example: python -m bench new-variant my_attention"
)
def new_variant(
    name: Annotated[str, typer.Argument(help="Name of the variant and of its file.")],
    out: Annotated[str, typer.Option(help="Folder to write into.")] = ".",
) -> None:
    from bench.commands import author

    path = author.new_variant(name, Path(out))
    print(path)
    _say(f"next: python -m bench check {path}")


@app.command(help="Show the machine and the versions that go into every run.\n\nExample: python -m bench env")
def env() -> None:
    from bench.commands import look

    look.show_environment()
