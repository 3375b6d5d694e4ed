"""The benchmark from Python, as in a notebook: a sweep in, a tidy table out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.commands.run import run_folder, run_sweep
from bench.errors import UserError
from bench.results import read_results
from bench.sweep import Sweep, read_sweep

if TYPE_CHECKING:
    import pandas as pd


def run(
    sweep: Sweep | str = "quick",
    *,
    out: Path | str | None = None,
    fresh: bool = False,
    rerun_failed: bool = False,
    **axes: Any,
) -> pd.DataFrame:
    """Run a sweep and return its rows as `read_results` does: one line a cell, plain columns (`time.median_s`).

    sweep: a preset, a path to a sweep.toml, or a `Sweep`. axes: of a preset or file, replaced (`pass_` for `pass`).
    out: folder of the run, by default that of the command line, so that the same sweep resumes. fresh: measure all
    again. rerun_failed: measure failed cells again. Progress goes to stderr; report and figures into the folder.
    UserError: the sweep is wrong. A script that calls it needs the guard `if __name__ == "__main__":`, since workers
    are processes of their own.
    """
    if isinstance(sweep, Sweep):
        if axes:
            raise UserError(
                f"axes are replaced in a preset or a file, got a Sweep and {', '.join(axes)}: put them there"
            )
        command = f"run(Sweep(**{sweep.model_dump(mode='json', exclude_defaults=True)!r}))"
    else:
        command = f"run({', '.join([repr(sweep), *(f'{name}={value!r}' for name, value in axes.items())])})"
        sweep = read_sweep(sweep, {name.rstrip("_"): value for name, value in axes.items()})
    place = None if out is None else str(out)
    run_sweep(
        sweep, out=place, dry_run=False, fresh=fresh, rerun_failed=rerun_failed, shown=False,
        command=f"from bench import Sweep, run; {command}",
    )  # fmt: skip
    return read_results([run_folder(sweep, place)])
