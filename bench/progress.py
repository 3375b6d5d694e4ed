"""What runs now, how much is left and for how long: one live line on a terminal, plain lines elsewhere (stderr)."""

from __future__ import annotations

import time

from rich.console import Console
from rich.markup import escape
from rich.status import Status

PLAIN_EVERY_S = 10.0


class Progress:
    """Counts units of work (replicates and trainings) towards a total that may shrink as cells are decided."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = None
        self._start = self._printed = time.monotonic()
        self._cells_left = 0
        self._total = self._done = 0

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._status = self._console.status("starting")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def expect(self, units: int, cells: int) -> None:
        """How many units and cells are still to do."""
        self._total, self._cells_left = self._done + units, cells

    def working(self, what: str) -> None:
        """Say what runs now."""
        line = f"{what} | {self._cells_left} cells left{self._time_left()}"
        if self._status is not None:
            self._status.update(escape(line))
        elif time.monotonic() - self._printed >= PLAIN_EVERY_S:
            self._printed = time.monotonic()
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def step(self) -> None:
        """One unit is done."""
        self._done += 1

    def note(self, text: str) -> None:
        """A line that stays on the screen."""
        text = "".join(sign if sign.isprintable() else "?" for sign in text)
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _time_left(self) -> str:
        if self._done < 5:
            return ""
        seconds = (time.monotonic() - self._start) / self._done * max(0, self._total - self._done)
        return f", about {seconds / 60:.0f} min" if seconds >= 90 else f", about {max(seconds, 1):.0f} s"
