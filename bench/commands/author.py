"""`check` and `new-variant`: for the author of a variant."""

from __future__ import annotations

import importlib.util
import keyword
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from bench import registry
from bench.errors import UserError, unknown
from bench.launch import Launcher
from bench.screen import Screen

LONGEST = 300  # characters of a finding on screen
CHECK_TIMEOUT_S = 1800.0
DEVICES = ("cpu", "cuda", "mps")
DTYPES = ("float32", "float64", "bfloat16", "float16")
SKELETON = Path(__file__).parent.parent / "skeleton.txt"


def check(
    names: Sequence[str], everything: bool, *, device: str, dtype: str, settings: dict[str, dict[str, Any]]
) -> int:
    """Run the conformance kit on variants and print its findings; returns the exit code."""
    for what, value, valid in (("device", device, DEVICES), ("dtype", dtype, DTYPES)):
        if value not in valid:
            raise unknown(what, value, valid)
    known = registry.entries(name for name in names if registry.is_file(name))
    if everything:
        wanted = [entry for entry in known if not entry.broken]
    elif names:
        wanted = [registry.find(Path(name).stem if registry.is_file(name) else name, known) for name in names]
    else:
        raise UserError("name a variant or a file to check, or use --all (example: python -m bench check local)")
    for name in settings:
        if name not in {entry.name for entry in wanted}:
            raise UserError(f"--set names variant '{name}', which is not checked here")
    failed = False
    with Launcher() as launcher:
        for entry in wanted:
            knobs = registry.resolve_knobs(entry, settings.get(entry.name, {}))
            request = {"function": "check", "source": entry.source(), "knobs": knobs, "device": device, "dtype": dtype}
            failed |= _show_findings(entry.name, launcher.call(request, timeout_s=CHECK_TIMEOUT_S), optional=everything)
    return 1 if failed else 0


def _show_findings(name: str, reply: dict[str, Any], *, optional: bool) -> bool:
    """Print the findings on one variant; returns whether anything failed or nothing could be checked.

    optional: a variant that cannot run on this machine is no failure.
    """
    console = Screen(markup=False)
    if reply["status"] != "ok":
        console.print(f"{name}: {reply['status']}: {reply['reason']}", markup=False)
        return True
    details = {finding["detail"] for finding in reply["findings"]}
    if len(details) == 1 and {finding["status"] for finding in reply["findings"]} == {"not applicable"}:
        console.print(f"{name}: cannot run here: {details.pop()}")
        return not optional
    table = Table("check", "direction", "result", "detail", title=name)
    counts: dict[str, int] = {}
    for finding in reply["findings"]:
        counts[finding["status"]] = counts.get(finding["status"], 0) + 1
        table.add_row(
            finding["check"],
            "causal" if finding["causal"] else "both ways",
            finding["status"],
            finding["detail"][:LONGEST],
        )
    console.print(table)
    console.print(f"{name}: " + ", ".join(f"{number} {status}" for status, number in counts.items()), markup=False)
    return "fail" in counts or "pass" not in counts


def new_variant(name: str, folder: Path) -> Path:
    """Write the skeleton of a variant; returns its path."""
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        raise UserError(f"'{name}' cannot name a variant: use letters, digits and _, starting with a letter")
    if any(entry.name == name for entry in registry.entries()):
        raise UserError(f"a variant '{name}' exists already; choose another name")
    path = folder / f"{name}.py"
    if importlib.util.find_spec(name) is not None:
        raise UserError(f"'{name}' is the name of an importable module, which the file would hide; choose another name")
    if path.exists():
        raise UserError(f"'{path}' exists already; choose another name or --out")
    if not folder.is_dir():
        raise UserError(f"--out '{folder}' is not a folder")
    skeleton = SKELETON.read_text(encoding="utf-8")
    try:
        path.write_text(skeleton.replace("{name}", name), encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write '{path}': {error.strerror}; choose another --out") from error
    return path
