"""Writes docs/variants.md from what the variants declare: `python docs/make_variants.py`."""

from __future__ import annotations

from pathlib import Path

from bench import registry

PAGE = Path(__file__).parent / "variants.md"
INTRO = """# Variants

What each variant declares about itself; every claim is checked by `python -m bench check NAME`. This page is made by
`python docs/make_variants.py`; `python -m bench list variants` also tells what can run on a machine, and why not.

*exact* equals softmax attention under its pattern, *approximate* stands in for it (its error: workload `fidelity`),
*different* is another function.

| variant | what it is | kind | time | memory | does | knobs | paper |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""


def page() -> str:
    """The page as it should be."""
    return INTRO + "".join(_line(entry) for entry in registry.entries() if entry.claims is not None)


def _line(entry: registry.Entry) -> str:
    claims = entry.claims
    assert claims is not None
    able = {
        "causal": claims.causal, "both ways": claims.bidirectional, "cross": claims.cross, "padding": claims.key_mask,
        "grouped heads": claims.grouped, "decode": claims.decode,
    }  # fmt: skip
    knobs = ", ".join(f"`{knob.name}={knob.default}`" for knob in entry.knobs.values())
    cells = (
        f"`{entry.name}`", entry.summary, claims.kind, claims.time, claims.memory,
        ", ".join(name for name, yes in able.items() if yes), knobs, claims.paper,
    )  # fmt: skip
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
