"""Raises when it is imported."""

from bench.variant import variant

raise RuntimeError("the library libfoo.so is missing")


@variant(kind="exact", paper="none")
class Fake:
    """Never reached."""
