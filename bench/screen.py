"""The terminal that all commands write their results to."""

from __future__ import annotations

import os
import sys

from rich.console import Console


class Screen(Console):
    """A console whose reader may leave early (`| head -1`): the rest goes nowhere, the exit code stays what it is."""

    def on_broken_pipe(self) -> None:
        """Send what is still to come to nowhere, also what is flushed at the end; rich itself would exit with 1."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
