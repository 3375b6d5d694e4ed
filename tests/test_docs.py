"""The pages that are made from the source are those that the source makes."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def test_the_page_of_variants_is_up_to_date() -> None:
    made = runpy.run_path(str(DOCS / "make_variants.py"))["page"]()
    written = (DOCS / "variants.md").read_text(encoding="utf-8")
    assert written == made, "run: python docs/make_variants.py"
